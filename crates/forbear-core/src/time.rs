//! Moments on the store's clock, and the arithmetic that cannot overflow (H3, T1).

use std::{fmt, time::Duration};

/// A moment in microseconds since the Unix epoch, on the *store's* clock.
///
/// Not [`std::time::Instant`]: gate state outlives the process and travels between processes, so a moment is a number.
/// All arithmetic saturates (H3): a deadline too far to hold is "at least that far", never in the past.
///
/// ```
/// use forbear_core::time::Timestamp;
/// use std::time::Duration;
/// let t = Timestamp::from_secs(100);
/// assert_eq!(t.plus(Duration::from_secs(5)).since(t), Duration::from_secs(5));
/// assert_eq!(t.plus(Duration::MAX), Timestamp::MAX);
/// assert_eq!(t.since(t.plus(Duration::from_secs(1))), Duration::ZERO);
/// ```
#[derive(Clone, Copy, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The Unix epoch; also "never happened" where a field's documentation says so.
    pub const ZERO: Timestamp = Timestamp(0);
    /// The furthest moment: "at least that late".
    pub const MAX: Timestamp = Timestamp(u64::MAX);

    /// From microseconds since the Unix epoch.
    #[must_use]
    pub const fn from_micros(us: u64) -> Timestamp {
        Timestamp(us)
    }

    /// From whole seconds since the Unix epoch; saturates.
    #[must_use]
    pub const fn from_secs(s: u64) -> Timestamp {
        Timestamp(s.saturating_mul(1_000_000))
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// This moment and `d` more, rounded up to the next microsecond (T2: waits round up); saturates.
    #[must_use]
    pub fn plus(self, d: Duration) -> Timestamp {
        // Not by `as_nanos`: its 128 bits would cost more than the rest of a decision's arithmetic.
        let us =
            d.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(d.subsec_nanos().div_ceil(1000)));
        Timestamp(self.0.saturating_add(us))
    }

    /// This moment less `d`; the epoch if that would be earlier.
    #[must_use]
    pub fn minus(self, d: Duration) -> Timestamp {
        Timestamp(self.0.saturating_sub(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }

    /// Time from `earlier` to this moment; zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }

    /// The time still to go until this moment; zero once it is reached.
    #[must_use]
    pub fn until(self, now: Timestamp) -> Duration {
        self.since(now)
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:06}", self.0 / 1_000_000, self.0 % 1_000_000)
    }
}
