//! The store's clock, as a member knows it between two answers (T1).

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use forbear_core::time::Timestamp;
use parking_lot::Mutex;

use crate::gate::clock::{boot_now, monotonic_ns};

/// A monotonic clock, in microseconds.
pub(crate) type Tick = Box<dyn Fn() -> u64 + Send + Sync>;

/// The machine's.
pub(super) fn of_the_machine() -> Tick {
    Box::new(|| monotonic_ns() / 1000)
}

/// For how long the machine has been suspended.
pub(super) fn suspended() -> Tick {
    // The difference of two clocks, one of which counts it.
    Box::new(|| {
        let booted = boot_now().map_or(0, |(_, up)| u64::try_from(up.as_micros()).unwrap_or(u64::MAX));
        booted.saturating_sub(monotonic_ns() / 1000)
    })
}

/// Moments of the store, carried on by this process's monotonic clock. They never go back, and no step of the store's clock
/// moves them: whoever waits waits as long as it was told.
///
/// An answer was written some time before it came in, so the moment it tells is the least that it can be by then: with it
/// waits end late, never early. How late at most is [`StoreClock::slack`].
pub(super) struct StoreClock {
    /// The process's monotonic clock, in microseconds.
    tick: Tick,
    /// For how long the machine has been suspended, which that clock does not count, in microseconds.
    suspended: Tick,
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
    /// How far we are ahead of the store's clock, since it was set: back where this is positive.
    ahead_us: i64,
    /// The steps forward that we have seen: what was written before such a moment of the store, and by how much it was set.
    steps: [(u64, u64); STEPS],
    /// The machine has been suspended for so long in all.
    suspended_us: u64,
}

impl Anchor {
    /// The store's clock is `by` microseconds ahead of what it was thought to be.
    fn set_forward(&mut self, thought: u64, by: u64) {
        self.ahead_us = self.ahead_us.saturating_sub_unsigned(by);
        self.steps.rotate_right(1);
        // Who has not heard of the step writes in the old time for some seconds, and who has in the new one.
        let until_us = thought.saturating_add((by / 2).max(by.saturating_sub(OLD_US)));
        self.steps[0] = (until_us, by);
    }

    /// The store's clock is `by` microseconds behind what it was thought to be: so much less are the last steps forward. Beyond
    /// these what it has may be of before or after.
    fn set_back(&mut self, by: u64) {
        self.ahead_us = self.ahead_us.saturating_add_unsigned(by);
        let mut left = by;
        for (until_us, forward) in &mut self.steps {
            let less = left.min(*forward);
            (*forward, left) = (*forward - less, left - less);
            if *forward == 0 {
                *until_us = 0;
            }
        }
    }
}

impl StoreClock {
    pub(super) fn new(tick: Tick, suspended: Tick) -> StoreClock {
        let anchor = Anchor { suspended_us: suspended(), ..Anchor::default() };
        let (last, told_us) = (AtomicU64::new(0), AtomicU64::new(0));
        StoreClock { tick, suspended, anchor: Mutex::new(anchor), last, told_us }
    }

    /// A reading of the monotonic clock, in microseconds.
    pub(super) fn tick(&self) -> u64 {
        (self.tick)()
    }

    /// An answer that was asked for at `sent_us`, came in at `received_us`, and told the store's time. True if the store's clock was
    /// set forward since the last one: what it has was written in its old time.
    #[must_use]
    pub(super) fn observe(&self, store: Timestamp, sent_us: u64, received_us: u64) -> bool {
        self.told_us.fetch_max(received_us, Relaxed);
        let mut anchor = self.anchor.lock();
        let store_us = store.as_micros();
        let known = anchor.store_us != 0;
        let thought = anchor.store_us.saturating_add(received_us.saturating_sub(anchor.at_us));
        let round_trip_us = received_us.saturating_sub(sent_us);
        let back = thought.saturating_sub(store_us.saturating_add(round_trip_us));
        if known && back > STEP_US {
            anchor.set_back(back);
        }
        let forward = store_us.saturating_sub(thought.saturating_add(anchor.round_trip_us));
        let mut is_set_forward = false;
        if known && forward > STEP_US {
            // The time that the machine was suspended has passed for the store as well.
            let suspended_us = (self.suspended)();
            let slept = suspended_us.saturating_sub(anchor.suspended_us);
            anchor.suspended_us = suspended_us;
            is_set_forward = forward > slept.saturating_add(STEP_US);
            if is_set_forward {
                anchor.set_forward(thought + slept, store_us - thought - slept);
            }
        }
        // The latest moment is the closest one; an old one has drifted.
        let old = received_us.saturating_sub(anchor.at_us) > DRIFTED_US;
        if !known || back > STEP_US || store_us > thought || old {
            *anchor = Anchor { store_us, at_us: received_us, round_trip_us, ..*anchor };
        }
        is_set_forward
    }

    /// The present moment, on our side of the steps of the store's clock.
    pub(super) fn now(&self) -> Timestamp {
        let anchor = *self.anchor.lock();
        let store_us = anchor.store_us.saturating_add(self.tick().saturating_sub(anchor.at_us));
        let now = store_us.saturating_add_signed(anchor.ahead_us);
        Timestamp::from_micros(self.last.fetch_max(now, Relaxed).max(now))
    }

    /// Whether the store should be asked for its time, since it has not told it for so long. One that never told it is asked by whoever
    /// joins.
    pub(super) fn is_old(&self) -> bool {
        let told_us = self.told_us.load(Relaxed);
        told_us != 0 && self.tick().saturating_sub(told_us) > OLD_US
    }

    /// What our moments are ahead of the store's by, since its clock was set.
    pub(super) fn ahead_us(&self) -> i64 {
        self.anchor.lock().ahead_us
    }

    /// The same for what was written at a moment of the store's: before a step forward or after it.
    pub(super) fn ahead_of_us(&self, written: Timestamp) -> i64 {
        let anchor = self.anchor.lock();
        let later = anchor.steps.iter().filter(|(until_us, _)| written.as_micros() < *until_us);
        later.fold(anchor.ahead_us, |ahead, (_, by)| ahead.saturating_add_unsigned(*by))
    }

    /// How far the store may be ahead of us: a deadline that others keep is set later by this.
    pub(super) fn slack(&self) -> Duration {
        Duration::from_micros(self.anchor.lock().round_trip_us.min(STEP_US))
    }
}

/// So many steps forward are remembered; what was written before the oldest of more is long gone.
const STEPS: usize = 4;
/// Less than this is not a step, but a late answer.
const STEP_US: u64 = 2_000_000;
/// Two clocks are apart by some milliseconds after this.
const DRIFTED_US: u64 = 30_000_000;
/// Two clocks are apart by less than a timer is late after this.
const OLD_US: u64 = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn clock() -> StoreClock {
        StoreClock::new(of_the_machine(), Box::new(|| 0))
    }

    fn at(s: u64) -> Timestamp {
        Timestamp::from_secs(s)
    }

    #[test]
    fn t1_the_stores_time_never_goes_back() {
        let clock = clock();
        let tick = clock.tick();
        assert!(!clock.observe(at(1_000_000), tick, tick + 100));
        let first = clock.now();
        assert!(first >= at(1_000_000) && first < at(1_000_060), "{first:?}");
        assert!(!clock.observe(at(999_000), tick + 200, tick + 300)); // its clock was set back
        assert!(clock.now() >= first);
        let ahead = clock.ahead_us();
        assert!((999_000_000..1_001_000_000).contains(&ahead), "{ahead}");
        // From here on its moments are moved, and time goes on.
        assert!(!clock.observe(at(999_001), tick + 400, tick + 500));
        let now = clock.now();
        assert!(now > first && now < at(1_000_060), "{now:?}");
        assert!(clock.slack() <= Duration::from_micros(100));
    }

    #[test]
    fn t1_no_pause_is_shorter_since_the_stores_clock_was_set_forward() {
        let clock = clock();
        let tick = clock.tick();
        assert!(!clock.observe(at(1_000_000), tick, tick + 100));
        assert!(clock.observe(at(1_000_300), tick + 200, tick + 300), "by five minutes");
        assert!(clock.now() < at(1_000_060), "our time goes on");
        assert!(!clock.observe(at(1_000_301), tick + 400, tick + 1_000_400), "once");
        let ahead = clock.ahead_us();
        assert!((-300_000_000..-299_000_000).contains(&ahead), "{ahead}");
        // What was written before is of the old time, and what was written since of the new one.
        assert_eq!(clock.ahead_of_us(at(1_000_000)).abs() / 1_000_000, 0);
        assert_eq!(clock.ahead_of_us(at(1_000_008)).abs() / 1_000_000, 0, "by one who has not heard of it");
        assert_eq!(clock.ahead_of_us(at(1_000_300)), ahead);
        // It was set too far, and a little back again: what is old is as old as before.
        assert!(!clock.observe(at(1_000_297), tick + 1_000_500, tick + 1_000_600));
        assert!(clock.now() < at(1_000_060), "our time goes on");
        assert!((-1..=1).contains(&(clock.ahead_of_us(at(1_000_000)) / 1_000_000)), "{}", clock.ahead_us());
        assert!((-298_000_000..-294_000_000).contains(&clock.ahead_of_us(at(1_000_300))));
    }

    #[test]
    fn t1_a_suspend_of_the_machine_is_no_step_of_the_store() {
        let slept = std::sync::Arc::new(AtomicU64::new(7_000_000));
        let read = slept.clone();
        let clock = StoreClock::new(of_the_machine(), Box::new(move || read.load(Relaxed)));
        let tick = clock.tick();
        assert!(!clock.observe(at(1_000_000), tick, tick + 100));
        slept.store(607_000_000, Relaxed);
        assert!(!clock.observe(at(1_000_600), tick + 200, tick + 300));
        assert!(clock.now() >= at(1_000_600), "ten minutes have passed");
        assert!(clock.observe(at(1_001_200), tick + 400, tick + 500), "it has not slept again");
    }

    #[test]
    fn t1_a_late_answer_is_no_step() {
        let clock = clock();
        let tick = clock.tick();
        assert!(!clock.observe(at(1_000), tick, tick + 10));
        let late = at(1_000).plus(Duration::from_millis(1));
        assert!(!clock.observe(late, tick + 500, tick + 1_800_000));
        assert_eq!(clock.ahead_us(), 0);
        assert_eq!(clock.slack(), Duration::from_micros(10), "the closer one is kept");
        // The next one is early after it.
        assert!(!clock.observe(at(1_003), tick + 1_800_000, tick + 1_900_000));
        assert_eq!(clock.ahead_us(), 0);
    }
}
