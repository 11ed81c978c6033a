//! The store's clock, as a member knows it between two answers (T1).

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use forbear_core::time::Timestamp;
use parking_lot::Mutex;

use crate::gate::clock::monotonic_ns;

/// A monotonic clock, in microseconds.
pub(crate) type Tick = Box<dyn Fn() -> u64 + Send + Sync>;

/// The machine's.
pub(super) fn of_the_machine() -> Tick {
    Box::new(|| monotonic_ns() / 1000)
}

/// Moments of the store, carried on by this process's monotonic clock. They never go back.
///
/// An answer was written some time before it came in, so the moment it tells is the least that it can be by then: with it
/// waits end late, never early. How late at most is [`StoreClock::slack`].
pub(super) struct StoreClock {
    /// The process's monotonic clock, in microseconds.
    tick: Tick,
    anchor: Mutex<Anchor>,
    last: AtomicU64,
    /// When the store told its time last, on the monotonic clock.
    told_us: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Anchor {
    /// The store's time at `at_us` of the monotonic clock, at least.
    store_us: u64,
    at_us: u64,
    round_trip_us: u64,
    /// The store's clock has gone back by so much since; ours goes on.
    ahead_us: u64,
}

impl StoreClock {
    pub(super) fn new(tick: Tick) -> StoreClock {
        StoreClock { tick, anchor: Mutex::default(), last: AtomicU64::new(0), told_us: AtomicU64::new(0) }
    }

    /// A reading of the monotonic clock, in microseconds.
    pub(super) fn tick(&self) -> u64 {
        (self.tick)()
    }

    /// An answer that was asked for at `sent_us`, came in at `received_us`, and told the store's time.
    pub(super) fn observe(&self, store: Timestamp, sent_us: u64, received_us: u64) {
        self.told_us.fetch_max(received_us, Relaxed);
        let mut anchor = self.anchor.lock();
        let store_us = store.as_micros();
        let known = anchor.store_us != 0;
        let thought = anchor.store_us + received_us.saturating_sub(anchor.at_us);
        let round_trip_us = received_us.saturating_sub(sent_us);
        let back = thought.saturating_sub(store_us + round_trip_us);
        if known && back > STEP_US {
            anchor.ahead_us += back;
        }
        // The latest moment is the closest one; an old one has drifted.
        let old = received_us.saturating_sub(anchor.at_us) > DRIFTED_US;
        if !known || back > STEP_US || store_us > thought || old {
            *anchor = Anchor { store_us, at_us: received_us, round_trip_us, ..*anchor };
        }
    }

    /// The present moment, on our side of the steps of the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        let anchor = *self.anchor.lock();
        let now = anchor.store_us + self.tick().saturating_sub(anchor.at_us) + anchor.ahead_us;
        Timestamp::from_micros(self.last.fetch_max(now, Relaxed).max(now))
    }

    /// Whether the store should be asked for its time, since it has not told it for so long. One that never told it is asked by whoever
    /// joins.
    pub(super) fn is_old(&self) -> bool {
        let told_us = self.told_us.load(Relaxed);
        told_us != 0 && self.tick().saturating_sub(told_us) > OLD_US
    }

    /// What our moments are ahead of the store's by, since its clock went back.
    pub(super) fn ahead_us(&self) -> i64 {
        i64::try_from(self.anchor.lock().ahead_us).unwrap_or(i64::MAX)
    }

    /// How far the store may be ahead of us: a deadline that others keep is set later by this.
    pub(super) fn slack(&self) -> Duration {
        Duration::from_micros(self.anchor.lock().round_trip_us.min(STEP_US))
    }
}

/// Less than this is not a step, but a late answer.
const STEP_US: u64 = 2_000_000;
/// Two clocks are apart by some milliseconds after this.
const DRIFTED_US: u64 = 30_000_000;
/// Two clocks are apart by less than a timer is late after this.
const OLD_US: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_the_stores_time_never_goes_back() {
        let clock = StoreClock::new(of_the_machine());
        let at = |s: u64| Timestamp::from_secs(s);
        let tick = clock.tick();
        clock.observe(at(1_000_000), tick, tick + 100);
        let first = clock.now();
        assert!(first >= at(1_000_000) && first < at(1_000_060), "{first:?}");
        clock.observe(at(999_000), tick + 200, tick + 300); // its clock was set back
        assert!(clock.now() >= first);
        let ahead = clock.ahead_us();
        assert!((999_000_000..1_001_000_000).contains(&ahead), "{ahead}");
        // From here on its moments are moved, and time goes on.
        clock.observe(at(999_001), tick + 400, tick + 500);
        let now = clock.now();
        assert!(now > first && now < at(1_000_060), "{now:?}");
        assert!(clock.slack() <= Duration::from_micros(100));
    }

    #[test]
    fn t1_a_late_answer_is_no_step() {
        let clock = StoreClock::new(of_the_machine());
        let tick = clock.tick();
        clock.observe(Timestamp::from_secs(1_000), tick, tick + 10);
        clock.observe(
            Timestamp::from_secs(1_000).plus(Duration::from_millis(1)),
            tick + 500,
            tick + 1_800_000,
        );
        assert_eq!(clock.ahead_us(), 0);
        assert_eq!(clock.slack(), Duration::from_micros(10), "the closer one is kept");
    }
}
