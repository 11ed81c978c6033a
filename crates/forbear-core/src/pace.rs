//! Start rates: GCRA over several windows at once, weighted by cost (C1).

use std::{fmt, num::NonZeroU32, str::FromStr, time::Duration};

use crate::time::Timestamp;

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
        if self.burst.get() > 1 { write!(f, " burst {}", self.burst) } else { Ok(()) }
    }
}

/// At most this many rates hold for one scope at once (`10/s` and `5000/h`, say): a server that counts more windows is
/// rare, and each costs a word of every gate.
pub const MAX_RATES: usize = 2;

/// The rates that hold for one scope together, each a ceiling: at least one, at most [`MAX_RATES`] (C1).
///
/// Written with commas between. Starts of a rate without a burst are spaced evenly, so of two such rates only the slower
/// one is ever felt; a long window next to a short one wants a burst.
///
/// ```
/// use forbear_core::pace::RateList;
/// let rates: RateList = "10/s, 1000/h burst 100".parse().unwrap();
/// assert_eq!(rates.iter().map(|rate| rate.count()).collect::<Vec<_>>(), [10, 1000]);
/// assert!("10/s, 100/min, 1000/h".parse::<RateList>().is_err());
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

/// The rates that hold for a scope together, made ready for [`Clocks`].
///
/// Each is a GCRA (ITU-T I.371, the virtual scheduling form). For `N/W` with burst `b` the interval between starts is
/// `W / (N - b + 1)`, rounded up to a nanosecond, so that *every* window of `W` has at most `N` starts (C1): a plain
/// `W / N` would let `b - 1` more through in the first one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rates([Spacing; MAX_RATES]);

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Spacing {
    /// Nanoseconds between starts; zero where there is no rate.
    interval_ns: u64,
    /// How far ahead of the schedule a start may be.
    tolerance_ns: u64,
}

/// Where a scope stands on each of its rates: the theoretical arrival time of the next start, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Clocks(pub(crate) [u64; MAX_RATES]);

impl From<RateList> for Rates {
    fn from(list: RateList) -> Rates {
        let mut all = [Spacing::default(); MAX_RATES];
        all.iter_mut().zip(list.iter()).for_each(|(slot, rate)| *slot = Spacing::from(rate));
        Rates(all)
    }
}

impl From<Rate> for Spacing {
    fn from(rate: Rate) -> Spacing {
        let steps = u64::from(rate.count() - rate.burst() + 1);
        let interval_ns = nanos(rate.per()).div_ceil(steps);
        Spacing { interval_ns, tolerance_ns: interval_ns.saturating_mul(u64::from(rate.burst() - 1)) }
    }
}

impl Rates {
    /// Whether nothing is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0].interval_ns == 0
    }

    /// The earliest moment at which a start of this cost conforms to every rate.
    #[must_use]
    pub fn earliest(&self, clocks: &Clocks, cost: u32) -> Timestamp {
        let mut latest = 0;
        for (spacing, tat) in self.0.iter().zip(clocks.0) {
            if spacing.interval_ns == 0 {
                break;
            }
            // A cost above the burst waits for the full burst, and pays the rest afterwards.
            let ahead = spacing.interval_ns.saturating_mul(u64::from(cost.saturating_sub(1)));
            let slack = spacing.tolerance_ns.saturating_sub(ahead);
            latest = latest.max(tat.saturating_sub(slack));
        }
        Timestamp::from_micros(latest.div_ceil(1000))
    }

    /// The least time from the first start to the last of `starts`: the slowest of the rates has its way.
    #[must_use]
    pub fn least_time(&self, starts: u64) -> Duration {
        let later = starts.saturating_sub(1);
        let by = |s: &Spacing| s.interval_ns.saturating_mul(later).saturating_sub(s.tolerance_ns);
        Duration::from_nanos(self.0.iter().map(by).max().unwrap_or(0))
    }

    /// Notes a start of this cost at `now`.
    pub fn take(&self, clocks: &mut Clocks, now: Timestamp, cost: u32) {
        let now_ns = now.as_micros().saturating_mul(1000);
        for (spacing, tat) in self.0.iter().zip(&mut clocks.0) {
            if spacing.interval_ns == 0 {
                break;
            }
            *tat = (*tat).max(now_ns).saturating_add(spacing.interval_ns.saturating_mul(u64::from(cost)));
        }
    }

    /// Lets `starts` slots of each rate pass unused.
    pub(crate) fn skip(&self, clocks: &mut Clocks, now: Timestamp, starts: f64) {
        let now_ns = now.as_micros().saturating_mul(1000);
        for (spacing, tat) in self.0.iter().zip(&mut clocks.0) {
            if spacing.interval_ns == 0 {
                break;
            }
            let step = (spacing.interval_ns as f64 * starts.max(0.0)) as u64;
            *tat = (*tat).max(now_ns).saturating_add(step);
        }
    }

    /// Nothing may start ahead of the schedule from `now` on, until it has waited for it.
    pub(crate) fn spend_burst(&self, clocks: &mut Clocks, now: Timestamp) {
        let now_ns = now.as_micros().saturating_mul(1000);
        for (spacing, tat) in self.0.iter().zip(&mut clocks.0).filter(|(spacing, _)| spacing.interval_ns > 0)
        {
            *tat = (*tat).max(now_ns.saturating_add(spacing.tolerance_ns));
        }
    }

    /// How many starts the slowest rate allows in `time`, once its burst is used up; none without any rate.
    pub(crate) fn starts_in(&self, time: Duration) -> Option<f64> {
        let slowest = self.0.iter().map(|spacing| spacing.interval_ns).max().filter(|ns| *ns > 0)?;
        Some(nanos(time) as f64 / slowest as f64)
    }

    /// Corrects the schedule once the real cost of a start is known (C1).
    pub fn correct(&self, clocks: &mut Clocks, estimated: u32, real: u32) {
        for (spacing, tat) in self.0.iter().zip(&mut clocks.0) {
            let step = spacing.interval_ns.saturating_mul(u64::from(estimated.abs_diff(real)));
            *tat = if real > estimated { tat.saturating_add(step) } else { tat.saturating_sub(step) };
        }
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// Longer windows are a quota of a year or a typing error; both are better refused than held.
const MAX_WINDOW: Duration = Duration::from_secs(366 * 86_400);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

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
        ] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }

    #[test]
    fn c1_lists_of_rates_are_read_and_shown_in_words() {
        for (text, shown) in [
            ("10/s", "10/s"),
            ("10/s,1000/h", "10/s, 1000/h"),
            (" 1000/1h burst 100 , 10 / s ", "1000/h burst 100, 10/s"),
            ("10/s, 10/s burst 2", "10/s, 10/s burst 2"),
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
            ("10/s, 100/min, 1000/h", RateListError::TooMany(3)),
            ("60/min, 60/1m", RateListError::Twice(twice)),
        ] {
            assert_eq!(text.parse::<RateList>(), Err(error), "{text}");
        }
        assert_eq!(RateList::new(&[]), Err(RateListError::Empty));
        assert!(RateListError::TooMany(3).to_string().starts_with("at most 2 rates can hold together"));
    }

    #[test]
    fn c1_the_slowest_rate_has_its_way() {
        for (list, starts, least_ms) in [
            ("10/s", 0, 0),
            ("10/s", 1, 0),
            ("10/s", 11, 1000),
            ("10/s burst 3", 3, 0),
            ("10/s burst 3", 11, 1000),
            ("10/s, 1000/h", 11, 36_000),
            ("10/s, 60/min burst 41", 41, 4000),
            ("60/min burst 41, 10/s", 50, 27_000),
        ] {
            let list: RateList = list.parse().unwrap();
            assert_eq!(
                Rates::from(list).least_time(starts),
                Duration::from_millis(least_ms),
                "{starts} by {list}"
            );
        }
        assert_eq!(Rates::default().least_time(u64::MAX), Duration::ZERO, "nothing holds nothing up");
    }

    /// Counts, windows in milliseconds and bursts.
    fn rates() -> impl Strategy<Value = Vec<(u32, u64, u32)>> {
        prop::collection::vec((1u32..40, 50u64..20_000, 1u32..40), 1..=MAX_RATES)
    }

    /// The same rate twice is one.
    fn list_of(rates: Vec<(u32, u64, u32)>) -> RateList {
        let rate = |(n, ms, b): (u32, u64, u32)| Rate::new(n, Duration::from_millis(ms), b.min(n)).unwrap();
        let mut rates: Vec<Rate> = rates.into_iter().map(rate).collect();
        rates.dedup();
        RateList::new(&rates).unwrap()
    }

    proptest! {
        #[test]
        fn c1_no_window_has_more_than_its_starts(
            rates in rates(),
            gaps in prop::collection::vec(0u64..400_000, 1..300),
        ) {
            let list = list_of(rates);
            let (ready, mut clocks) = (Rates::from(list), Clocks::default());
            let (mut now, mut starts) = (Timestamp::from_secs(1_700_000_000), Vec::new());
            for gap in gaps {
                now = now.plus(Duration::from_micros(gap)).max(ready.earliest(&clocks, 1));
                ready.take(&mut clocks, now, 1);
                starts.push(now);
            }
            for rate in list.iter() {
                for (i, first) in starts.iter().enumerate() {
                    let within = starts[i..].iter().take_while(|t| t.since(*first) < rate.per()).count();
                    prop_assert!(within <= rate.count() as usize, "{within} in a window of {rate} under {list}");
                }
            }
        }

        #[test]
        fn c1_whoever_starts_at_the_first_chance_takes_the_least_time(
            rates in rates(),
            starts in 1u64..300,
        ) {
            let list = list_of(rates);
            let (ready, mut clocks) = (Rates::from(list), Clocks::default());
            let first = Timestamp::from_secs(1_700_000_000);
            let mut now = first;
            for _ in 0..starts {
                now = now.max(ready.earliest(&clocks, 1));
                ready.take(&mut clocks, now, 1);
            }
            let (took, least) = (now.since(first), ready.least_time(starts));
            // Each start waits for a whole microsecond.
            prop_assert!(least <= took && took <= least + Duration::from_micros(starts), "{list}: {took:?}, not {least:?}");
        }

        #[test]
        fn c1_a_list_is_written_as_it_is_read(rates in rates()) {
            let list = list_of(rates);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }
    }

    #[test]
    fn c1_costs_are_paid_in_full_and_corrected() {
        let (rates, mut clocks) = (Rates::from("10/s".parse::<RateList>().unwrap()), Clocks::default());
        let t = Timestamp::from_secs(1000);
        rates.take(&mut clocks, t, 5);
        assert_eq!(rates.earliest(&clocks, 1).since(t), Duration::from_millis(500));
        rates.correct(&mut clocks, 5, 8);
        assert_eq!(rates.earliest(&clocks, 1).since(t), Duration::from_millis(800));
        rates.correct(&mut clocks, 8, 1);
        assert_eq!(
            rates.earliest(&clocks, 50).since(t),
            Duration::from_millis(100),
            "a large cost waits, not for ever"
        );
    }
}
