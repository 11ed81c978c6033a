//! Durations and sizes in words: `1h30m`, `500ms`, `64MiB`.

use std::time::Duration;

/// Why a text is no duration or size.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WordsError {
    /// No number with a unit.
    #[error("expected a time like `30s`, `5m`, `1h30m` or `500ms`")]
    Duration,
    /// A bare number says nothing.
    #[error("a time needs a unit: write `{0}s` for seconds or `{0}ms` for milliseconds")]
    NoTimeUnit(String),
    /// Longer than anything that will ever be waited for.
    #[error("at most 366 days (`366d`)")]
    TooLong,
    /// No number with a unit.
    #[error("expected a size like `64MiB`, `512KiB` or `1000B`")]
    Size,
    /// A bare number says nothing.
    #[error("a size needs a unit: write `{0}MiB` for mebibytes or `{0}B` for bytes")]
    NoSizeUnit(String),
    /// More bytes than a 64-bit number holds.
    #[error("too large a size")]
    TooLarge,
}

/// Reads a duration: numbers with units, largest unit first (`1h30m`); decimals are exact to the nanosecond.
///
/// # Errors
/// A bare number other than 0, unknown or repeated units, more than 366 days.
pub fn parse_duration(text: &str) -> Result<Duration, WordsError> {
    let text = text.trim();
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(WordsError::NoTimeUnit(text.to_owned()));
    }
    let (mut rest, mut total, mut last) = (text, 0u128, u128::MAX);
    while !rest.is_empty() {
        let (number, tail) = split_at(rest, |c| c.is_ascii_digit() || c == '.');
        let (unit, tail) = split_at(tail, |c| c.is_ascii_alphabetic());
        let (_, nanos) = TIMES.iter().find(|(names, _)| names.contains(&unit)).ok_or(WordsError::Duration)?;
        if *nanos >= last {
            return Err(WordsError::Duration);
        }
        total = total.saturating_add(scaled(number, *nanos).ok_or(WordsError::Duration)?);
        last = *nanos;
        rest = tail.trim_start();
    }
    if last == u128::MAX {
        return Err(WordsError::Duration);
    }
    let seconds = u64::try_from(total / 1_000_000_000).map_err(|_| WordsError::TooLong)?;
    let found = Duration::new(seconds, (total % 1_000_000_000) as u32);
    if found > MAX { Err(WordsError::TooLong) } else { Ok(found) }
}

/// Writes a duration as [`parse_duration`] reads it.
#[must_use]
pub fn show_duration(d: Duration) -> String {
    if d.is_zero() {
        return "0s".to_owned();
    }
    let mut nanos = d.as_nanos();
    let mut text = String::new();
    for (names, size) in TIMES {
        if nanos >= *size {
            text += &format!("{}{}", nanos / size, names[0]);
            nanos %= size;
        }
    }
    text
}

/// Reads a size in bytes: a number with a unit, binary (`KiB MiB GiB TiB`) or decimal (`kB MB GB TB`).
///
/// # Errors
/// A bare number other than 0, an unknown unit, more than a 64-bit number holds, a fraction of a byte.
pub fn parse_size(text: &str) -> Result<u64, WordsError> {
    let text = text.trim();
    if text == "0" {
        return Ok(0);
    }
    if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return Err(WordsError::NoSizeUnit(text.to_owned()));
    }
    let (number, unit) = split_at(text, |c| c.is_ascii_digit() || c == '.');
    let unit = unit.trim();
    let (_, bytes) =
        SIZES.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(WordsError::Size)?;
    let found = scaled(number, u128::from(*bytes)).ok_or(WordsError::Size)?;
    u64::try_from(found).map_err(|_| WordsError::TooLarge)
}

/// Writes a size in the largest binary unit that divides it.
#[must_use]
pub fn show_size(bytes: u64) -> String {
    let whole = SIZES
        .iter()
        .filter(|(name, _)| name.ends_with("iB"))
        .find(|(_, n)| bytes >= *n && bytes.is_multiple_of(*n));
    whole.map_or_else(|| format!("{bytes}B"), |(name, n)| format!("{}{name}", bytes / n))
}

fn split_at(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}

/// A decimal number times `unit`, exactly; `None` if it is no number or leaves a fraction.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || whole.len() > 20 || fraction.len() > 15 {
        return None;
    }
    let of_fraction = fraction.parse::<u128>().ok()?.checked_mul(unit)?;
    let scale = 10u128.pow(u32::try_from(fraction.len()).ok()?);
    if of_fraction % scale != 0 {
        return None;
    }
    whole.parse::<u128>().ok()?.checked_mul(unit)?.checked_add(of_fraction / scale)
}

/// Nobody waits longer; and arithmetic on moments stays far from its ends.
const MAX: Duration = Duration::from_secs(366 * 86_400);
/// Units of time in nanoseconds, the largest first; the first name is the one that is written.
const TIMES: &[(&[&str], u128)] = &[
    (&["d", "day", "days"], 86_400_000_000_000),
    (&["h", "hour", "hours"], 3_600_000_000_000),
    (&["m", "min", "mins"], 60_000_000_000),
    (&["s", "sec", "secs"], 1_000_000_000),
    (&["ms"], 1_000_000),
    (&["us"], 1_000),
    (&["ns"], 1),
];
/// Units of size in bytes, the largest first.
const SIZES: &[(&str, u64)] = &[
    ("TiB", 1 << 40),
    ("TB", 1_000_000_000_000),
    ("GiB", 1 << 30),
    ("GB", 1_000_000_000),
    ("MiB", 1 << 20),
    ("MB", 1_000_000),
    ("KiB", 1 << 10),
    ("kB", 1_000),
    ("B", 1),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_in_words() {
        let ms = |n| Ok(Duration::from_millis(n));
        for (text, expected) in [
            ("300s", ms(300_000)),
            ("5m", ms(300_000)),
            ("1h30m", ms(5_400_000)),
            ("1h 30m 5s", ms(5_405_000)),
            ("500ms", ms(500)),
            ("1.5s", ms(1500)),
            ("2min", ms(120_000)),
            ("2d", ms(172_800_000)),
            ("0s", ms(0)),
            ("0", ms(0)),
            ("0ms", ms(0)),
            ("366d", ms(366 * 86_400_000)),
            ("367d", Err(WordsError::TooLong)),
            ("99999999999999999999s", Err(WordsError::TooLong)),
            ("30", Err(WordsError::NoTimeUnit("30".into()))),
            ("1.5", Err(WordsError::NoTimeUnit("1.5".into()))),
            ("", Err(WordsError::Duration)),
            ("s", Err(WordsError::Duration)),
            ("-1s", Err(WordsError::Duration)),
            ("5 parsecs", Err(WordsError::Duration)),
            ("30m1h", Err(WordsError::Duration)),
            ("1s1s", Err(WordsError::Duration)),
            ("1s2", Err(WordsError::Duration)),
            ("1e3s", Err(WordsError::Duration)),
            (".5s", Err(WordsError::Duration)),
            ("1.s", Err(WordsError::Duration)),
            ("0.5ns", Err(WordsError::Duration)),
            ("inf", Err(WordsError::Duration)),
        ] {
            assert_eq!(parse_duration(text), expected, "{text:?}");
        }
    }

    #[test]
    fn sizes_in_words() {
        for (text, expected) in [
            ("64MiB", Ok(64 << 20)),
            ("512KiB", Ok(512 << 10)),
            ("1.5GiB", Ok(3 << 29)),
            ("10MB", Ok(10_000_000)),
            ("1000B", Ok(1000)),
            ("5 kb", Ok(5000)),
            ("0", Ok(0)),
            ("0B", Ok(0)),
            ("16", Err(WordsError::NoSizeUnit("16".into()))),
            ("16M", Err(WordsError::Size)),
            ("-1B", Err(WordsError::Size)),
            ("", Err(WordsError::Size)),
            ("0.5B", Err(WordsError::Size)),
            ("99999999999TiB", Err(WordsError::TooLarge)),
        ] {
            assert_eq!(parse_size(text), expected, "{text:?}");
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for ms in [0, 1, 500, 1500, 30_000, 90_000, 5_400_000, 86_400_000] {
            let d = Duration::from_millis(ms);
            assert_eq!(parse_duration(&show_duration(d)), Ok(d));
        }
        for n in [0, 1, 1000, 1024, 16 << 20, 3 << 29, u64::MAX] {
            assert_eq!(parse_size(&show_size(n)), Ok(n));
        }
    }
}
