//! The clock of a store inside one process.

use std::{
    fs,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forbear_core::time::Timestamp;
use quanta::Instant;

/// Wall time at the start of the process, and monotonic time since: steps of the wall clock do no harm (T1).
///
/// Read from the processor's counter where that is steady, since two readings are a large part of a decision's cost.
///
/// After a suspend it is behind the wall clock by the time slept, so waits end late, never early.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    wall_at_start: Timestamp,
}

impl Clock {
    /// A clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> Clock {
        Clock { start: Instant::now(), wall_at_start: wall_now() }
    }

    /// The present moment.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.wall_at_start.plus(self.start.elapsed())
    }
}

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
