//! The clock of a store inside one process.

use std::{
    fs,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forbear_core::time::Timestamp;

/// Wall time at the start of the process, and monotonic time since: steps of the wall clock do no harm (T1).
///
/// Read from the processor's counter where that is steady, since two readings are a large part of a decision's cost, and
/// set right by the system's clock ten times a second: how fast the counter runs is only estimated, and a ten-thousandth
/// would end a told pause of an hour by a third of a second early (P1).
///
/// After a suspend it is behind the wall clock by the time slept, so waits end late, never early.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start_ns: u64,
    wall_at_start: Timestamp,
}

impl Clock {
    /// A clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> Clock {
        Clock { start_ns: monotonic_ns(), wall_at_start: wall_now() }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        // Without a `Duration` between, whose making and taking apart costs as much as the reading.
        let since_us = monotonic_ns().saturating_sub(self.start_ns) / 1000;
        Timestamp::from_micros(self.wall_at_start.as_micros().saturating_add(since_us))
    }
}

/// The process's one monotonic clock.
pub(super) fn monotonic_ns() -> u64 {
    static CLOCK: OnceLock<(quanta::Clock, u64, std::time::Instant, Correction)> = OnceLock::new();
    let (counter, start, real, correction) = CLOCK.get_or_init(|| {
        let counter = quanta::Clock::new();
        let start = counter.raw();
        (counter, start, std::time::Instant::now(), Correction::default())
    });
    let real = || u64::try_from(real.elapsed().as_nanos()).unwrap_or(u64::MAX);
    correction.apply(counter.delta_as_nanos(*start, counter.raw()), real)
}

/// Lets a counter of uncertain speed run slow on purpose and pushes it forward: so it never goes back, and is never ahead.
#[derive(Debug, Default)]
struct Correction {
    /// What the slowed counter is behind by; it only grows, so whoever reads an old one is a moment late.
    behind: AtomicU64,
    next: AtomicU64,
}

impl Correction {
    /// The time for a reading of the counter; `real` is asked now and then.
    fn apply(&self, counter: u64, real: impl FnOnce() -> u64) -> u64 {
        let slowed = counter - (counter >> SLOWER);
        if counter >= self.next.load(Relaxed) {
            self.next.store(counter + EVERY_NS, Relaxed);
            self.behind.fetch_max(real().saturating_sub(slowed), Relaxed);
        }
        slowed + self.behind.load(Relaxed)
    }
}

/// The counter is slowed by 2^-11, 488 parts in a million: more than its speed is ever wrong by.
const SLOWER: u32 = 11;
/// So it is behind by 0.1 ms at most.
const EVERY_NS: u64 = 100_000_000;

/// The wall clock.
pub(super) fn wall_now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

/// Time since boot, suspends included, with the boot's id; none where the system does not tell.
pub(super) fn boot_now() -> Option<(String, Duration)> {
    let id = fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned();
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    Some((id, Duration::try_from_secs_f64(seconds).ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_a_counter_that_runs_wrong_is_never_ahead_and_never_goes_back() {
        for wrong_ppm in [-400, -20, 0, 20, 103, 400] {
            let (correction, mut last) = (Correction::default(), 0);
            for step in 1..200_000_u64 {
                let real = step * 37_000_000; // two hours of it
                let counter = real.checked_add_signed(real as i64 / 1_000_000 * wrong_ppm).unwrap();
                let shown = correction.apply(counter, || real);
                assert!(shown >= last && shown <= real, "{wrong_ppm} ppm at {real}: {shown}");
                assert!(real - shown < 150_000, "{wrong_ppm} ppm: behind by {} ns", real - shown);
                last = shown;
            }
        }
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "two clocks are compared while time passes")]
    fn p1_no_wait_on_it_is_shorter_by_more_than_the_pad_covers() {
        let (real, clock) = (std::time::Instant::now(), Clock::start());
        let start = clock.now();
        for _ in 0..50 {
            std::thread::sleep(Duration::from_millis(5));
            let shown = clock.now().since(start);
            assert!(shown <= real.elapsed() + Duration::from_millis(1), "{shown:?}");
        }
    }
}
