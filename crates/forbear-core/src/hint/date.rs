//! Dates as servers write them (H1): the three forms of [RFC 9110 section 5.6.7], their sloppy cousins, RFC 3339.
//!
//! `httpdate` reads the three forms strictly: it rejects a wrong weekday, a one-digit day or an offset. A server that
//! writes such a date still named one moment, and to ignore it is to come back early, so these readers are our own.
//! They are strict about everything that could name two moments: digits, ranges, the number of days in a month.
//!
//! [RFC 9110 section 5.6.7]: https://www.rfc-editor.org/rfc/rfc9110#section-5.6.7

use std::time::Duration;

use crate::time::Timestamp;

/// A moment and the precision it was written in.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Moment {
    pub(crate) at: Timestamp,
    /// The smallest difference that the writing can show: a second, or less with a fraction.
    pub(crate) step: Duration,
}

const WEEKDAYS: [&str; 7] = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];
const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];
/// Zones that [RFC 5322 section 4.3](https://www.rfc-editor.org/rfc/rfc5322#section-4.3) gives an offset; hours.
const ZONES: [(&str, i64); 8] =
    [("est", -5), ("edt", -4), ("cst", -6), ("cdt", -5), ("mst", -7), ("mdt", -6), ("pst", -8), ("pdt", -7)];
/// Longer than any date anybody writes (a JavaScript `Date` with its zone in words is about 70).
const LEN_MAX: usize = 128;

/// Reads an HTTP-date: IMF-fixdate, RFC 850, asctime, and what people make of them. `now` is needed for two-digit
/// years alone.
///
/// Tolerated: no or a wrong weekday, letter case, a one-digit day, doubled spaces, dashes, no zone (UTC), a numeric
/// offset, the zone names of RFC 5322, any other word as UTC, second 60, the output of JavaScript's `Date`.
pub(crate) fn http(raw: &[u8], now: Timestamp) -> Option<Moment> {
    if raw.len() > LEN_MAX {
        return None;
    }
    let mut text = std::str::from_utf8(raw).ok()?.trim_matches([' ', '\t']);
    // JavaScript ends with the zone's name in brackets; the offset before it has said it all.
    if let Some((before, comment)) = text.split_once('(') {
        comment.strip_suffix(')').filter(|inner| !inner.contains(['(', ')']))?;
        text = before;
    }
    // The one comma that may occur follows the weekday.
    if let Some((first, rest)) = text.split_once(',') {
        if !is_weekday(first.trim_matches([' ', '\t'])) || rest.contains(',') {
            return None;
        }
        text = rest;
    }
    let mut words = text.split([' ', '\t']).filter(|w| !w.is_empty()).peekable();
    if words.peek().is_some_and(|w| is_weekday(w)) {
        words.next();
    }
    let first = words.next()?;
    let (day, month, year, clock);
    if let Some(m) = month_of(first) {
        // asctime has the year last, JavaScript has it before the time.
        month = m;
        day = words.next()?;
        let next = words.next()?;
        if next.contains(':') {
            clock = next;
            year = words.next()?;
            if year.len() != 4 {
                return None;
            }
        } else {
            year = next;
            clock = words.next()?;
        }
    } else if first.contains('-') {
        let mut parts = first.split('-');
        (day, month, year) = (parts.next()?, month_of(parts.next()?)?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        clock = words.next()?;
    } else {
        (day, month, year) = (first, month_of(words.next()?)?, words.next()?);
        clock = words.next()?;
    }
    let offset = match words.next() {
        Some(word) => zone(word)?,
        None => 0,
    };
    if words.next().is_some() {
        return None;
    }
    if day.len() > 2 {
        return None;
    }
    let day = digits(day)?;
    let clock = time_of_day(clock.as_bytes())?;
    match year.len() {
        4 => moment(digits(year)?, month, day, &clock, offset),
        2 => {
            // RFC 9110: a two-digit year that seems more than 50 years ahead is the latest such year in the past.
            let far = now.plus(Duration::from_secs(50 * 31_556_952));
            let century = year_of(now) / 100 * 100;
            let short = digits(year)?;
            [century + 100, century, century - 100]
                .iter()
                .filter_map(|c| moment(c + short, month, day, &clock, offset))
                .find(|m| m.at <= far)
        }
        _ => None,
    }
}

/// Reads an ISO 8601 instant in the extended form (RFC 3339 among them) or the basic form with `T`. Seconds and zone
/// may be absent (UTC); a space may stand for the `T`.
pub(crate) fn iso(raw: &[u8]) -> Option<Moment> {
    let (moment, rest) = iso_prefix(raw)?;
    rest.is_empty().then_some(moment)
}

/// Like [`iso`], for an instant at the start of a sentence: returns what follows it.
pub(crate) fn iso_prefix(raw: &[u8]) -> Option<(Moment, &[u8])> {
    let (year, rest) = (number(raw, 4)?, raw.get(4..)?);
    let extended = rest.first() == Some(&b'-');
    let sep = |rest: &mut &[u8], byte: u8| -> Option<()> {
        if extended {
            *rest = rest.strip_prefix(&[byte])?;
        }
        Some(())
    };
    let mut rest = rest;
    let two = |rest: &mut &[u8]| -> Option<i64> {
        let n = number(rest, 2)?;
        *rest = &rest[2..];
        Some(n)
    };
    sep(&mut rest, b'-')?;
    let month = two(&mut rest)?;
    sep(&mut rest, b'-')?;
    let day = two(&mut rest)?;
    match rest.first()? {
        b'T' | b't' => {}
        b' ' if extended => {}
        _ => return None,
    }
    rest = &rest[1..];
    let hour = two(&mut rest)?;
    sep(&mut rest, b':')?;
    let minute = two(&mut rest)?;
    let (mut second, mut nanos, mut step) = (0, 0, Duration::from_secs(1));
    let has_seconds =
        if extended { rest.first() == Some(&b':') } else { rest.first().is_some_and(u8::is_ascii_digit) };
    if has_seconds {
        sep(&mut rest, b':')?;
        second = two(&mut rest)?;
        if matches!(rest.first(), Some(b'.' | b',')) && rest.get(1).is_some_and(u8::is_ascii_digit) {
            let len = rest[1..].iter().take_while(|b| b.is_ascii_digit()).count();
            (nanos, step) = fraction(&rest[1..=len]);
            rest = &rest[1 + len..];
        }
    }
    let clock = TimeOfDay { hour, minute, second, nanos, step };
    let (offset, rest) = iso_zone(rest)?;
    Some((moment(year, month, day, &clock.checked()?, offset)?, rest))
}

/// `Z`, `+01:00`, `+0100`, `+01`, ` UTC`, ` GMT` or nothing; seconds east of Greenwich, and what follows.
fn iso_zone(rest: &[u8]) -> Option<(i64, &[u8])> {
    match rest.first() {
        Some(b'Z' | b'z') => Some((0, &rest[1..])),
        Some(b'+' | b'-') => {
            let len = rest[1..].iter().take_while(|b| b.is_ascii_digit() || **b == b':').count();
            Some((offset(&rest[..=len])?, &rest[1 + len..]))
        }
        Some(b' ')
            if rest.len() >= 4 && [b"UTC", b"GMT"].iter().any(|z| rest[1..4].eq_ignore_ascii_case(*z)) =>
        {
            Some((0, &rest[4..]))
        }
        _ => Some((0, rest)),
    }
}

fn is_weekday(word: &str) -> bool {
    let word = word.to_ascii_lowercase();
    WEEKDAYS.iter().any(|day| *day == word || day[..3] == word)
}

fn month_of(word: &str) -> Option<i64> {
    let at = MONTHS.iter().position(|m| m.eq_ignore_ascii_case(word))?;
    i64::try_from(at + 1).ok()
}

/// The offset of a zone word in seconds east of Greenwich.
fn zone(word: &str) -> Option<i64> {
    if word.starts_with(['+', '-']) {
        return offset(word.as_bytes());
    }
    // JavaScript glues the offset to the word: `GMT+0100`.
    for scale in ["GMT", "UTC"] {
        if let Some((head, tail)) = word.split_at_checked(3)
            && head.eq_ignore_ascii_case(scale)
            && !tail.is_empty()
        {
            return offset(tail.as_bytes());
        }
    }
    if !word.bytes().all(|b| b.is_ascii_alphabetic()) {
        return None;
    }
    let hours = ZONES.iter().find(|(name, _)| name.eq_ignore_ascii_case(word)).map_or(0, |(_, hours)| *hours);
    Some(hours * 3600)
}

/// `+0200`, `+02:00`, `+02`; seconds.
fn offset(raw: &[u8]) -> Option<i64> {
    let sign = match raw.first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let (hours, minutes) = match raw.len() {
        3 => (number(&raw[1..], 2)?, 0),
        5 => (number(&raw[1..], 2)?, number(&raw[3..], 2)?),
        6 if raw[3] == b':' => (number(&raw[1..], 2)?, number(&raw[4..], 2)?),
        _ => return None,
    };
    (hours <= 23 && minutes <= 59).then_some(sign * (hours * 3600 + minutes * 60))
}

struct TimeOfDay {
    hour: i64,
    minute: i64,
    second: i64,
    nanos: i64,
    step: Duration,
}

impl TimeOfDay {
    /// Second 60 is legal in the grammar: it is the next minute's start.
    fn checked(self) -> Option<TimeOfDay> {
        (self.hour <= 23 && self.minute <= 59 && self.second <= 60).then_some(self)
    }
}

/// `hh:mm:ss`, with an optional fraction.
fn time_of_day(raw: &[u8]) -> Option<TimeOfDay> {
    if raw.len() < 8 || raw[2] != b':' || raw[5] != b':' {
        return None;
    }
    let (hour, minute, second) = (number(raw, 2)?, number(&raw[3..], 2)?, number(&raw[6..], 2)?);
    let (nanos, step) = match &raw[8..] {
        [] => (0, Duration::from_secs(1)),
        [b'.', tail @ ..] if !tail.is_empty() && tail.iter().all(u8::is_ascii_digit) => fraction(tail),
        _ => return None,
    };
    TimeOfDay { hour, minute, second, nanos, step }.checked()
}

/// The digits after the point as nanoseconds, rounded up (T2), and the step that they can show.
fn fraction(digits: &[u8]) -> (i64, Duration) {
    let (mut nanos, mut scale) = (0, 1_000_000_000);
    for (at, digit) in digits.iter().enumerate() {
        if at < 9 {
            scale /= 10;
            nanos += i64::from(digit - b'0') * scale;
        } else if *digit != b'0' {
            nanos += 1;
            break;
        }
    }
    (nanos, Duration::from_nanos(scale.unsigned_abs()))
}

/// Exactly `len` digits at the start of `raw`.
fn number(raw: &[u8], len: usize) -> Option<i64> {
    digits(std::str::from_utf8(raw.get(..len)?).ok()?)
}

fn digits(text: &str) -> Option<i64> {
    // `parse` alone would take a sign.
    (!text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())).then(|| text.parse().ok())?
}

fn moment(year: i64, month: i64, day: i64, clock: &TimeOfDay, offset: i64) -> Option<Moment> {
    if !(1..=12).contains(&month) || day < 1 || day > days_in(year, month) {
        return None;
    }
    let seconds =
        days_before(year, month, day) * 86_400 + clock.hour * 3600 + clock.minute * 60 + clock.second
            - offset;
    // Before 1970 is long over, whatever it was exactly.
    let micros = (seconds * 1_000_000).saturating_add((clock.nanos + 999) / 1000);
    Some(Moment { at: Timestamp::from_micros(u64::try_from(micros).unwrap_or(0)), step: clock.step })
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap(year) => 29,
        2 => 28,
        _ => 31,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

/// Days from 1 January 1970 to a date of the Gregorian calendar, year 1 and later.
fn days_before(year: i64, month: i64, day: i64) -> i64 {
    let past = year - 1;
    let leaps = past / 4 - past / 100 + past / 400;
    let months: i64 = (1..month).map(|m| days_in(year, m)).sum();
    past * 365 + leaps + months + (day - 1) - 719_162
}

fn year_of(now: Timestamp) -> i64 {
    // Two-digit years need the century only, so the mean year is precise enough but for New Year's Eve of 2099.
    1970 + i64::try_from(now.as_micros() / 1_000_000 / 31_556_952).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 29 November 2026, 13:00:00 UTC.
    const NOW: Timestamp = Timestamp::from_secs(1_795_957_200);

    fn secs(m: Option<Moment>) -> Option<i64> {
        m.map(|m| i64::try_from(m.at.as_micros() / 1_000_000).unwrap() - 1_795_957_200)
    }

    #[test]
    fn h1_http_dates_in_all_forms() {
        for (text, expected) in [
            ("Sun, 29 Nov 2026 13:05:00 GMT", Some(300)),
            ("Sunday, 29-Nov-26 13:05:00 GMT", Some(300)),
            ("Sun Nov 29 13:05:00 2026", Some(300)),
            ("Sun Dec  6 13:00:00 2026", Some(7 * 86_400)),
            ("sun, 29 nov 2026 13:05:00 gmt", Some(300)),
            ("Mon, 29 Nov 2026 13:05:00 GMT", Some(300)),
            ("29 Nov 2026 13:05:00 GMT", Some(300)),
            ("Sun,29 Nov 2026 13:05:00 GMT", Some(300)),
            ("Sun, 29 Nov 2026 13:05:00", Some(300)),
            ("Sun, 29 Nov 2026 14:05:00 +0100", Some(300)),
            ("Sun, 29 Nov 2026 14:05:00 +01:00", Some(300)),
            ("Sun, 29 Nov 2026 08:05:00 EST", Some(300)),
            ("Sun, 29 Nov 2026 13:05:00 XYZ", Some(300)),
            ("Sun, 29 Nov 2026 12:59:60 GMT", Some(0)),
            ("Sun Nov 29 2026 14:00:02 GMT+0100 (Central European Standard Time)", Some(2)),
            ("Sun Nov 29 2026 14:00:02 GMT+0100", Some(2)),
            ("Fri, 31 Dec 1999 23:59:59 GMT", Some(946_684_799 - 1_795_957_200)),
            ("Friday, 31-Dec-99 23:59:59 GMT", Some(946_684_799 - 1_795_957_200)),
            ("Thu, 01 Jan 1970 00:00:00 GMT", Some(-1_795_957_200)),
            ("Fri, 31 Dec 9999 23:59:59 GMT", Some(253_402_300_799 - 1_795_957_200)),
            ("Fri, 31 Dec 99999 23:59:59 GMT", None),
            ("Sun, 29 Nov 2026 24:00:00 GMT", None),
            ("Sun, 29 Nov 2026 13:60:00 GMT", None),
            ("Sun, 29 Nov 2026 13:00:61 GMT", None),
            ("Sun, 29 Nov 2026 13:05 GMT", None),
            ("Sun, 31 Nov 2026 13:05:00 GMT", None),
            ("Mon, 29 Feb 2027 13:05:00 GMT", None),
            ("Sun, 0 Nov 2026 13:05:00 GMT", None),
            ("Sun, 29 Nvo 2026 13:05:00 GMT", None),
            ("Some, 29 Nov 2026 13:05:00 GMT", None),
            ("Sun, 29 Nov 2026 13:05:00 GMT junk", None),
            ("Sun, 29 Nov 2026", None),
            ("Sun Nov 29 13:05:00", None),
            ("GMT", None),
            ("", None),
        ] {
            assert_eq!(secs(http(text.as_bytes(), NOW)), expected, "{text:?}");
        }
    }

    #[test]
    fn h1_two_digit_years_follow_the_fifty_year_rule() {
        for (year, full) in
            [("26", 2026), ("27", 2027), ("76", 2076), ("78", 1978), ("99", 1999), ("00", 2000)]
        {
            let short = http(format!("Sunday, 01-Nov-{year} 00:00:00 GMT").as_bytes(), NOW);
            let long = http(format!("01 Nov {full} 00:00:00 GMT").as_bytes(), NOW);
            assert_eq!(short, long, "{year}");
        }
    }

    #[test]
    fn h1_iso_instants() {
        for (text, expected) in [
            ("2026-11-29T13:05:00Z", Some(300)),
            ("2026-11-29t13:05:00z", Some(300)),
            ("2026-11-29 13:05:00 UTC", Some(300)),
            ("2026-11-29 13:05:00", Some(300)),
            ("2026-11-29T13:05", Some(300)),
            ("2026-11-29T14:05:00+01:00", Some(300)),
            ("2026-11-29T14:05+01", Some(300)),
            ("2026-11-29T14:05:00.25+0100", Some(300)),
            ("20261129T130500Z", Some(300)),
            ("2026-11-29", None),
            ("2026-11-31T13:05:00Z", None),
            ("2026-13-01T13:05:00Z", None),
            ("2026-11-29T25:05:00Z", None),
            ("2026-11-29T13:05:00Zjunk", None),
            ("2026-11-29T13:05:00+25:00", None),
            ("20261129", None),
            ("20261129130500", None),
            ("2026", None),
        ] {
            assert_eq!(secs(iso(text.as_bytes())), expected, "{text:?}");
        }
        let fine = iso(b"2026-11-29T13:00:00.243057Z").unwrap();
        assert_eq!(fine.at.since(NOW), Duration::from_micros(243_057));
        assert_eq!(fine.step, Duration::from_micros(1));
    }

    #[test]
    fn h1_the_calendar_agrees_with_httpdate() {
        for day in (0..60_000_u64).step_by(37) {
            let at = Duration::from_secs(day * 86_400 + day % 86_400);
            let text = httpdate::fmt_http_date(std::time::UNIX_EPOCH + at);
            assert_eq!(http(text.as_bytes(), NOW).unwrap().at, Timestamp::ZERO.plus(at), "{text}");
        }
    }
}
