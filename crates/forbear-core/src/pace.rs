//! Start rates: GCRA over several windows at once, weighted by cost (C1).

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

/// At most `count` starts in any window of `per`, at most `burst` of them at once.
///
/// Written `10/s`, `5/15s`, `100/min`, `5000/1h`, and with a burst `10/s burst 3`. Without one the burst is 1: starts are
/// spaced evenly (C1).
///
/// ```
/// use forbear_core::pace::Rate;
/// let rate: Rate = "5/15s".parse().unwrap();
/// assert_eq!((rate.count(), rate.per().as_secs(), rate.burst()), (5, 15, 1));
/// assert!("0/s".parse::<Rate>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    count: NonZeroU32,
    per: Duration,
    burst: NonZeroU32,
}

/// Why a text or a set of numbers is no [`Rate`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RateError {
    /// The text has no `COUNT/TIME` form.
    #[error("expected a rate like `10/s`, `5/15s`, `100/min` or `10/s burst 3`")]
    Form,
    /// A rate of nothing would never let anything through.
    #[error("a rate must allow at least one request")]
    Zero,
    /// A window must last.
    #[error("a rate's window must be longer than nothing and at most 366 days")]
    Window,
    /// A burst above the count would break the promise of the window.
    #[error("a burst must be between 1 and the rate's count")]
    Burst,
}

impl Rate {
    /// `count` starts per window of `per`, at most `burst` at once.
    ///
    /// # Errors
    /// Zero counts, empty or endless windows, and a burst that is not between 1 and `count`.
    pub fn new(count: u32, per: Duration, burst: u32) -> Result<Rate, RateError> {
        let count = NonZeroU32::new(count).ok_or(RateError::Zero)?;
        if per.is_zero() || per > MAX_WINDOW {
            return Err(RateError::Window);
        }
        let burst = NonZeroU32::new(burst).filter(|b| *b <= count).ok_or(RateError::Burst)?;
        Ok(Rate { count, per, burst })
    }

    /// Starts allowed in one window.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count.get()
    }

    /// The window's length.
    #[must_use]
    pub fn per(&self) -> Duration {
        self.per
    }

    /// Starts allowed at one moment.
    #[must_use]
    pub fn burst(&self) -> u32 {
        self.burst.get()
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let (rate, burst) = match text.split_once("burst") {
            Some((rate, burst)) => (rate, burst.trim().parse().map_err(|_| RateError::Form)?),
            None => (text, 1),
        };
        let (count, window) = rate.trim().split_once('/').ok_or(RateError::Form)?;
        let count = count.trim().parse().map_err(|_| RateError::Form)?;
        let window = window.trim();
        let digits = window.len() - window.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let n: u64 = if digits == 0 { 1 } else { window[..digits].parse().map_err(|_| RateError::Window)? };
        let unit = match window[digits..].trim() {
            "ms" => 1,
            "s" | "sec" | "second" => 1_000,
            "m" | "min" | "minute" => 60_000,
            "h" | "hour" => 3_600_000,
            "d" | "day" => 86_400_000,
            _ => return Err(RateError::Form),
        };
        Rate::new(count, Duration::from_millis(n.saturating_mul(unit)), burst)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.per.as_millis();
        let (n, unit) = match ms {
            _ if ms % 86_400_000 == 0 => (ms / 86_400_000, "d"),
            _ if ms % 3_600_000 == 0 => (ms / 3_600_000, "h"),
            _ if ms % 60_000 == 0 => (ms / 60_000, "min"),
            _ if ms % 1000 == 0 => (ms / 1000, "s"),
            _ => (ms, "ms"),
        };
        write!(f, "{}/", self.count)?;
        if n != 1 {
            write!(f, "{n}")?;
        }
        f.write_str(unit)?;
        if self.burst.get() > 1 { write!(f, " burst {}", self.burst) } else { Ok(()) }
    }
}

/// Longer windows are a quota of a year or a typing error; both are better refused than held.
const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);
