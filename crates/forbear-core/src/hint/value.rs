//! Reading one value that means a time (H1): what `Retry-After`, a `*-reset` header or a body field may hold.
//!
//! Reading ([`read`]) and setting against a clock ([`Value::wait`]) are two steps. The whole value must fit one form;
//! digits followed by junk are junk.

use std::time::Duration;

use super::date;
use crate::time::Timestamp;

/// The longest wait that is told apart, `2^31` seconds: "at least that long". Long waits saturate here (H3).
pub const TOO_LONG: Duration = Duration::from_secs(2_147_483_648);

/// A bare number within this distance of now, read as an epoch, is a moment and not a delay.
const EPOCH_WITHIN: Duration = Duration::from_secs(5 * 31_556_952);
/// Longer values are junk. A date is under 80 bytes; the rest is for lists.
const LEN_MAX: usize = 4096;

/// What a bare number counts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Unit {
    /// Milliseconds: names that end in `-ms`, and `x-amz-retry-after`.
    Millis,
    /// Seconds: everything that says nothing else.
    Seconds,
    /// Minutes: Meta's regain time.
    Minutes,
}

impl Unit {
    const fn nanos(self) -> u128 {
        match self {
            Unit::Millis => 1_000_000,
            Unit::Seconds => 1_000_000_000,
            Unit::Minutes => 60_000_000_000,
        }
    }
}

/// A time that a server wrote, not yet set against a clock.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum When {
    /// Counted from the response's arrival.
    Delay(Duration),
    /// A moment on the *server's* clock.
    At(Timestamp),
}

/// One value as read, with the precision it was written in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Value {
    /// The time.
    pub when: When,
    /// The smallest difference that the writing can show: a second for `2`, a millisecond for `1500` of a `-ms` header.
    pub step: Duration,
}

/// The clocks that a moment is set against (H3).
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The client's own clock at receipt.
    pub now: Timestamp,
    /// The server's: `Date` and `Age` of the same response, where readable. Both ends of a wait then come from one
    /// clock, so a wrong one on either side does no harm.
    pub served: Option<Timestamp>,
}

impl Clock {
    /// Only the client's clock.
    #[must_use]
    pub fn local(now: Timestamp) -> Clock {
        Clock { now, served: None }
    }
}

/// A wait from receipt, with the precision it was written in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wait {
    /// At most [`TOO_LONG`]; zero for a moment that is past.
    pub time: Duration,
    /// As [`Value::step`].
    pub step: Duration,
    /// Whether it was a delay, which is immune to clock skew.
    pub delta: bool,
}

impl Value {
    /// How long this is from receipt: zero when already past, at most [`TOO_LONG`].
    #[must_use]
    pub fn wait(&self, clock: &Clock) -> Duration {
        match self.when {
            When::Delay(delay) => delay,
            When::At(at) => at.since(clock.served.unwrap_or(clock.now)),
        }
        .min(TOO_LONG)
    }
}

/// Reads one value as a wait in seconds, by the rules for `Retry-After`; `None` is "no hint", never zero.
///
/// ```
/// use forbear_core::{hint::value, time::Timestamp};
/// use std::time::Duration;
/// let clock = value::Clock::local(Timestamp::from_secs(1_795_957_200));
/// let wait = |raw: &str| value::retry_after(raw.as_bytes(), &clock);
/// assert_eq!(wait("120"), Some(Duration::from_secs(120)));
/// assert_eq!(wait("Sun, 29 Nov 2026 13:00:10 GMT"), Some(Duration::from_secs(10)));
/// assert_eq!(wait("1m30s"), Some(Duration::from_secs(90)));
/// assert_eq!(wait("99999999999999999999"), Some(value::TOO_LONG));
/// assert_eq!(wait("120junk"), None);
/// ```
#[must_use]
pub fn retry_after(raw: &[u8], clock: &Clock) -> Option<Duration> {
    wait(raw, Unit::Seconds, clock).map(|w| w.time)
}

/// Reads a value or a comma-separated list of values; the longest readable member of a list counts.
#[must_use]
pub fn wait(raw: &[u8], unit: Unit, clock: &Clock) -> Option<Wait> {
    let told = |value: Value| Wait {
        time: value.wait(clock),
        step: value.step,
        delta: matches!(value.when, When::Delay(_)),
    };
    if raw.len() > LEN_MAX {
        return None;
    }
    if let Some(value) = read(raw, unit, clock) {
        return Some(told(value));
    }
    if !raw.contains(&b',') {
        return None;
    }
    raw.split(|b| *b == b',').filter_map(|member| read(member, unit, clock)).map(told).max_by_key(|w| w.time)
}

/// Reads one whole value: a number, a date in any of its forms, an ISO 8601 instant or a Go-style duration.
///
/// The clock decides whether a bare number is a delay or a moment (a number that, as epoch seconds or milliseconds,
/// lands within five years of now is that moment), and the century of a two-digit year.
#[must_use]
pub fn read(raw: &[u8], unit: Unit, clock: &Clock) -> Option<Value> {
    let raw = trim(raw);
    let first = *raw.first()?;
    if !first.is_ascii_alphanumeric() {
        return None;
    }
    if let Some(number) = Number::read(raw) {
        return Some(number.value(unit, clock));
    }
    if first.is_ascii_digit()
        && let Some(value) = go_duration(raw)
    {
        return Some(value);
    }
    let moment = date::http(raw, clock.now).or_else(|| date::iso(raw))?;
    Some(Value { when: When::At(moment.at), step: moment.step })
}

/// SP and HTAB around a value are not part of it.
pub(crate) fn trim(mut raw: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = raw {
        raw = rest;
    }
    raw
}

/// `digits` or `digits.digits`, exactly.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Number {
    /// Saturated at `u64::MAX`.
    whole: u64,
    /// The first [`Number::PLACES`] decimals, rounded up.
    fraction: u64,
    decimals: u32,
}

impl Number {
    /// Decimals that are kept: picoseconds are finer than any clock, and products stay within `u128`.
    const PLACES: u32 = 12;

    pub(crate) fn read(raw: &[u8]) -> Option<Number> {
        let (whole, fraction) = match raw.iter().position(|b| *b == b'.') {
            Some(at) => (&raw[..at], &raw[at + 1..]),
            None => (raw, &b"0"[..]),
        };
        let all_digits = |part: &[u8]| !part.is_empty() && part.iter().all(u8::is_ascii_digit);
        if !all_digits(whole) || !all_digits(fraction) {
            return None;
        }
        let whole = whole.iter().fold(0_u64, |n, b| n.saturating_mul(10).saturating_add(u64::from(b - b'0')));
        let places = Number::PLACES as usize;
        let mut kept = 0;
        for at in 0..places {
            kept = kept * 10 + u64::from(fraction.get(at).map_or(0, |b| b - b'0'));
        }
        if fraction.iter().skip(places).any(|b| *b != b'0') {
            kept += 1;
        }
        let decimals =
            if raw.contains(&b'.') { u32::try_from(fraction.len()).unwrap_or(u32::MAX) } else { 0 };
        Some(Number { whole, fraction: kept, decimals: decimals.min(9) })
    }

    /// As a count, for `limit` and `remaining`.
    pub(crate) fn as_f64(self) -> f64 {
        self.whole as f64 + self.fraction as f64 / 1e12
    }

    /// This many of `unit`.
    pub(crate) fn of(self, unit: Unit) -> Duration {
        self.times(unit.nanos())
    }

    /// This many of `unit` nanoseconds, rounded up (T2) and saturated.
    fn times(self, unit: u128) -> Duration {
        let part = (u128::from(self.fraction) * unit).div_ceil(1_000_000_000_000);
        let nanos = u128::from(self.whole) * unit + part;
        let seconds = u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX);
        Duration::new(seconds, (nanos % 1_000_000_000) as u32).min(TOO_LONG)
    }

    fn step(self, unit: u128) -> Duration {
        let nanos = unit / 10_u128.pow(self.decimals);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX).max(1))
    }

    fn value(self, unit: Unit, clock: &Clock) -> Value {
        for epoch_unit in [1_000_000_000, 1_000_000] {
            if let Some(at) = self.epoch(epoch_unit)
                && [Some(clock.now), clock.served].into_iter().flatten().any(|now| near(at, now))
            {
                return Value { when: When::At(at), step: self.step(epoch_unit) };
            }
        }
        Value { when: When::Delay(self.times(unit.nanos())), step: self.step(unit.nanos()) }
    }

    /// As a moment in units of `unit` nanoseconds since the epoch, rounded up to the microsecond.
    fn epoch(self, unit: u128) -> Option<Timestamp> {
        let part = (u128::from(self.fraction) * unit).div_ceil(1_000_000_000_000);
        let micros = (u128::from(self.whole) * unit + part).div_ceil(1000);
        u64::try_from(micros).ok().map(Timestamp::from_micros)
    }
}

fn near(at: Timestamp, now: Timestamp) -> bool {
    at.since(now).max(now.since(at)) <= EPOCH_WITHIN
}

/// A duration as Go prints it: `6m0s`, `20ms`, `7.66s`, `1h2m3s`.
pub(crate) fn go_duration(raw: &[u8]) -> Option<Value> {
    let (mut rest, mut total, mut step) = (raw, Duration::ZERO, Duration::MAX);
    if raw.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let len = rest.iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count();
        let number = Number::read(&rest[..len])?;
        let (unit, used) = go_unit(&rest[len..])?;
        total = total.saturating_add(number.times(unit)).min(TOO_LONG);
        step = step.min(number.step(unit));
        rest = &rest[len + used..];
    }
    Some(Value { when: When::Delay(total), step })
}

/// Nanoseconds of the unit at the start of `raw`, and its length. The two-letter units come first: `ms` is not `m`.
fn go_unit(raw: &[u8]) -> Option<(u128, usize)> {
    const UNITS: [(&str, u128); 8] = [
        ("ms", 1_000_000),
        ("us", 1_000),
        ("\u{b5}s", 1_000),  // micro sign
        ("\u{3bc}s", 1_000), // Greek mu
        ("ns", 1),
        ("h", 3_600_000_000_000),
        ("m", 60_000_000_000),
        ("s", 1_000_000_000),
    ];
    UNITS.iter().find(|(name, _)| raw.starts_with(name.as_bytes())).map(|(name, nanos)| (*nanos, name.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_795_957_200;

    fn check(raw: &str, unit: Unit, expected_ms: Option<u64>) {
        let clock = Clock::local(Timestamp::from_secs(NOW));
        let got = wait(raw.as_bytes(), unit, &clock).map(|w| w.time);
        assert_eq!(got, expected_ms.map(Duration::from_millis), "{raw:?}");
    }

    #[test]
    fn h1_one_value_in_all_forms() {
        const LONG: u64 = 2_147_483_648_000;
        for (raw, expected) in [
            ("120", Some(120_000)),
            (" \t30\t ", Some(30_000)),
            ("0030", Some(30_000)),
            ("0", Some(0)),
            ("30.0", Some(30_000)),
            ("0.493", Some(493)),
            ("2147483648", Some(LONG)),
            ("99999999999999999999", Some(LONG)),
            ("9999999999", Some(LONG)),
            ("1795957245", Some(45_000)),
            ("1795957245.5", Some(45_500)),
            ("1795957238250", Some(38_250)),
            ("1795957170", Some(0)),
            ("30s", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("6m0s", Some(360_000)),
            ("1h2m3s", Some(3_723_000)),
            ("7.66s", Some(7_660)),
            ("2.417s", Some(2_417)),
            ("2026-11-29T13:00:45.500Z", Some(45_500)),
            ("Sun, 29 Nov 2026 13:00:10 GMT", Some(10_000)),
            ("3, 60", Some(60_000)),
            ("120, 120", Some(120_000)),
            ("75, later", Some(75_000)),
            ("Sun, 29 Nov 2026 13:00:10 GMT, 5", Some(10_000)),
            ("", None),
            ("   ", None),
            ("-1", None),
            ("+30", None),
            ("1e3", None),
            ("0x1E", None),
            ("30.5.1", None),
            ("30.", None),
            (".5", None),
            ("120junk", None),
            ("3;foo", None),
            ("soon", None),
            ("null", None),
            ("inf", None),
            ("Infinity", None),
            ("NaN", None),
            ("30 seconds", None),
            ("\u{b2}", None),
            ("\u{663}\u{660}", None),
            ("s", None),
            ("1d", None),
            (",", None),
        ] {
            check(raw, Unit::Seconds, expected);
        }
    }

    #[test]
    fn h1_a_number_counts_the_units_of_its_header() {
        check("1500", Unit::Millis, Some(1500));
        check("1", Unit::Millis, Some(1));
        check("19", Unit::Minutes, Some(1_140_000));
        check("fast", Unit::Millis, None);
    }

    #[test]
    fn h3_a_moment_is_set_against_the_servers_clock() {
        let clock = Clock { now: Timestamp::from_secs(NOW), served: Some(Timestamp::from_secs(NOW - 3600)) };
        let read = |raw: &str| retry_after(raw.as_bytes(), &clock).unwrap();
        assert_eq!(read("Sun, 29 Nov 2026 12:00:05 GMT"), Duration::from_secs(5));
        assert_eq!(read("1795953605"), Duration::from_secs(5));
        assert_eq!(read("5"), Duration::from_secs(5));
    }
}
