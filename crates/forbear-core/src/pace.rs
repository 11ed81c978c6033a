//! Start rates: GCRA over several windows at once, weighted by cost (C1).

mod clocks;

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

pub use clocks::{Clocks, Rates};

/// At most `count` starts in any window of `per`, at most `burst` of them at once.
///
/// Written `10/s`, `5/15s`, `100/min`, `5000/1h`, and with a burst `10/s burst 3`. Without one the burst is 1: starts are
/// spaced evenly (C1). What is counted is the cost of each start, which is 1 where nothing else is said; a rate with the
/// word `requests` counts each start as one, whatever it costs: `500/min requests`. `tokens`, `points`, `units` and `cost`
/// may stand in the same place and say what is counted anyway: `200000/min tokens burst 4000`.
///
/// ```
/// use forbear_core::pace::{Counts, Rate};
/// let rate: Rate = "5/15s".parse().unwrap();
/// assert_eq!((rate.count(), rate.per().as_secs(), rate.burst()), (5, 15, 1));
/// assert_eq!("5/15s tokens".parse(), Ok(rate));
/// assert_eq!("5/15s requests".parse::<Rate>().unwrap().counts(), Counts::Requests);
/// assert!("0/s".parse::<Rate>().is_err());
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    count: NonZeroU32,
    per: Duration,
    burst: NonZeroU32,
    counts: Counts,
}

/// What a rate, or a server's budget, counts.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Counts {
    /// The cost of each request: tokens, points, or one where nothing is said.
    Cost,
    /// Each request as one.
    Requests,
}

/// Why a text or a set of numbers is no [`Rate`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RateError {
    /// The text has no `COUNT/TIME` form.
    #[error(
        "expected a rate like `10/s`, `5/15s`, `100/min`, `10/s burst 3`, `500/min requests` or `9000/min tokens`"
    )]
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
        Ok(Rate { count, per, burst, counts: Counts::Cost })
    }

    /// The same rate, counting something else.
    #[must_use]
    pub fn counting(self, counts: Counts) -> Rate {
        Rate { counts, ..self }
    }

    /// What it counts.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
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
        // The unit, where one is said, stands behind the window and a space.
        let (window, counts) = match window.trim().rsplit_once(char::is_whitespace) {
            Some((window, unit)) if counts(unit).is_some() => (window, counts(unit)),
            _ => (window, None),
        };
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
        let rate = Rate::new(count, Duration::from_millis(n.saturating_mul(unit)), burst)?;
        Ok(rate.counting(counts.unwrap_or(Counts::Cost)))
    }
}

/// What a word behind a rate says that it counts.
fn counts(unit: &str) -> Option<Counts> {
    match unit {
        "request" | "requests" | "req" => Some(Counts::Requests),
        "token" | "tokens" | "point" | "points" | "unit" | "units" | "cost" => Some(Counts::Cost),
        _ => None,
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.per.as_millis();
        let (n, unit) = match ms {
            _ if ms.is_multiple_of(86_400_000) => (ms / 86_400_000, "d"),
            _ if ms.is_multiple_of(3_600_000) => (ms / 3_600_000, "h"),
            _ if ms.is_multiple_of(60_000) => (ms / 60_000, "min"),
            _ if ms.is_multiple_of(1000) => (ms / 1000, "s"),
            _ => (ms, "ms"),
        };
        write!(f, "{}/", self.count)?;
        if n != 1 {
            write!(f, "{n}")?;
        }
        f.write_str(unit)?;
        if self.counts == Counts::Requests {
            f.write_str(" requests")?;
        }
        if self.burst.get() > 1 { write!(f, " burst {}", self.burst) } else { Ok(()) }
    }
}

/// At most this many rates hold for one scope at once: requests and tokens, each by the minute and by the day, say.
pub const MAX_RATES: usize = 4;

/// The rates that hold for one scope together, each a ceiling: at least one, at most [`MAX_RATES`] (C1).
///
/// Written with commas between. Starts of a rate without a burst are spaced evenly, so of two such rates only the slower
/// one is ever felt; a long window next to a short one wants a burst.
///
/// ```
/// use forbear_core::pace::RateList;
/// let rates: RateList = "10/s, 1000/h burst 100".parse().unwrap();
/// assert_eq!(rates.iter().map(|rate| rate.count()).collect::<Vec<_>>(), [10, 1000]);
/// let llm: RateList = "500/min requests, 200000/min tokens burst 4000".parse().unwrap();
/// assert_eq!(llm.iter().count(), 2);
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RateList {
    first: Rate,
    more: [Option<Rate>; MAX_RATES - 1],
}

/// Why a text or some rates are no [`RateList`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RateListError {
    /// One of them is no rate.
    #[error(transparent)]
    Rate(#[from] RateError),
    /// A list of nothing would look like a limit and be none.
    #[error("a list of rates must have at least one")]
    Empty,
    /// More than a gate has room for.
    #[error(
        "at most {MAX_RATES} rates can hold together, and these are {0}; leave out those that matter least"
    )]
    TooMany(usize),
    /// The second one would change nothing, so another was meant.
    #[error("`{0}` stands twice; once is enough")]
    Twice(Rate),
}

impl RateList {
    /// These rates together.
    ///
    /// # Errors
    /// None at all, more than [`MAX_RATES`], or one of them twice.
    pub fn new(rates: &[Rate]) -> Result<RateList, RateListError> {
        let (first, rest) = rates.split_first().ok_or(RateListError::Empty)?;
        if rates.len() > MAX_RATES {
            return Err(RateListError::TooMany(rates.len()));
        }
        if let Some((_, twice)) = rates.iter().enumerate().find(|(i, rate)| rates[..*i].contains(rate)) {
            return Err(RateListError::Twice(*twice));
        }
        let mut list = RateList::from(*first);
        list.more.iter_mut().zip(rest).for_each(|(slot, rate)| *slot = Some(*rate));
        Ok(list)
    }

    /// The rates, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = Rate> {
        std::iter::once(self.first).chain(self.more.into_iter().flatten())
    }
}

impl From<Rate> for RateList {
    fn from(rate: Rate) -> RateList {
        RateList { first: rate, more: [None; MAX_RATES - 1] }
    }
}

impl FromStr for RateList {
    type Err = RateListError;

    fn from_str(text: &str) -> Result<RateList, RateListError> {
        let rates = text.split(',').map(str::parse).collect::<Result<Vec<Rate>, RateError>>()?;
        RateList::new(&rates)
    }
}

impl fmt::Display for RateList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        self.more.iter().flatten().try_for_each(|rate| write!(f, ", {rate}"))
    }
}

/// Longer windows are a quota of a year or a typing error; both are better refused than held.
const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c1_rates_are_read_and_shown_in_words() {
        for (text, count, ms, burst, shown) in [
            ("10/s", 10, 1000, 1, "10/s"),
            ("5/15s", 5, 15_000, 1, "5/15s"),
            ("100/min", 100, 60_000, 1, "100/min"),
            ("5000/1h", 5000, 3_600_000, 1, "5000/h"),
            (" 10 / s burst 3 ", 10, 1000, 3, "10/s burst 3"),
            ("1/250ms", 1, 250, 1, "1/250ms"),
            ("200000/min tokens", 200_000, 60_000, 1, "200000/min"),
            ("5000/min  units  burst 1000", 5000, 60_000, 1000, "5000/min burst 1000"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate, Rate::new(count, Duration::from_millis(ms), burst).unwrap(), "{text}");
            assert_eq!(rate.to_string(), shown);
        }
        for text in [
            "",
            "10",
            "0/s",
            "-1/s",
            "10/0s",
            "10/y",
            "1.5/s",
            "10/s burst 11",
            "10/s burst 0",
            "9/99999999999999d",
            "10/s apples",
            "10/requests",
            "10/s requests tokens",
            "10/srequests",
            "10/s burst 3 requests",
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn c1_a_rate_says_what_it_counts() {
        for (text, counts, shown) in [
            ("500/min requests", Counts::Requests, "500/min requests"),
            ("500/1m req burst 20", Counts::Requests, "500/min requests burst 20"),
            ("1 / 2s request", Counts::Requests, "1/2s requests"),
            ("500/min", Counts::Cost, "500/min"),
            ("500/min cost", Counts::Cost, "500/min"),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!((rate.counts(), rate.to_string().as_str()), (counts, shown), "{text}");
            assert_eq!(shown.parse(), Ok(rate), "{text}");
        }
        assert_ne!("5/s requests".parse::<Rate>(), "5/s".parse::<Rate>());
    }

    #[test]
    fn c1_lists_of_rates_are_read_and_shown_in_words() {
        for (text, shown) in [
            ("10/s", "10/s"),
            ("10/s,1000/h", "10/s, 1000/h"),
            (" 1000/1h burst 100 , 10 / s ", "1000/h burst 100, 10/s"),
            ("10/s, 10/s burst 2", "10/s, 10/s burst 2"),
            ("10/s requests, 10/s tokens", "10/s requests, 10/s"),
            ("9/s, 99/min, 999/h, 9999/d requests", "9/s, 99/min, 999/h, 9999/d requests"),
        ] {
            let list: RateList = text.parse().unwrap();
            assert_eq!(list.to_string(), shown);
            let rates: Vec<Rate> = shown.split(", ").map(|rate| rate.parse().unwrap()).collect();
            assert_eq!(list.iter().collect::<Vec<_>>(), rates, "{text}");
        }
        let twice = "60/min".parse().unwrap();
        for (text, error) in [
            ("", RateListError::Rate(RateError::Form)),
            (",", RateListError::Rate(RateError::Form)),
            ("10/s,", RateListError::Rate(RateError::Form)),
            ("10/s 1000/h", RateListError::Rate(RateError::Form)),
            ("10/s; 1000/h", RateListError::Rate(RateError::Form)),
            ("10/s, 0/h", RateListError::Rate(RateError::Zero)),
            ("10/s, 5/h burst 6", RateListError::Rate(RateError::Burst)),
            ("1/s, 2/s, 3/s, 4/s, 5/s", RateListError::TooMany(5)),
            ("60/min tokens, 60/1m", RateListError::Twice(twice)),
            ("60/min, 60/1m", RateListError::Twice(twice)),
        ] {
            assert_eq!(text.parse::<RateList>(), Err(error), "{text}");
        }
        assert_eq!(RateList::new(&[]), Err(RateListError::Empty));
        assert!(RateListError::TooMany(5).to_string().starts_with("at most 4 rates can hold together"));
    }
}
