//! `not_before`: a moment as [RFC 3339] writes it.
//!
//! [RFC 3339]: https://www.rfc-editor.org/rfc/rfc3339

use std::time::Duration;

use forbear_core::time::Timestamp;

/// The end of the year 9999, in seconds: beyond it RFC 3339 has no words, and a number is most likely milliseconds.
pub(super) const SECONDS_MAX: u64 = 253_402_300_799;

/// `date-time` of RFC 3339 section 5.6, with a space allowed for the `T` (its note). The zone must be there: a moment
/// without one is a guess. Fractions beyond a microsecond round up, as waits do (T2).
pub(super) fn rfc3339(text: &str) -> Option<Timestamp> {
    let b = text.as_bytes();
    let number = |from: usize, len: usize| -> Option<u64> {
        let digits = b.get(from..from + len)?;
        digits
            .iter()
            .all(u8::is_ascii_digit)
            .then(|| digits.iter().fold(0, |n, d| n * 10 + u64::from(d - b'0')))
    };
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    let shape = b[4] == b'-' && b[7] == b'-' && b"Tt ".contains(&b[10]) && b[13] == b':' && b[16] == b':';
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    let days_in_month = match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + u64::from(leap),
        1..=12 => 31,
        _ => return None,
    };
    // A leap second is the last moment before the next minute; the clock that we compare with has none.
    if !shape || !(1..=days_in_month).contains(&day) || hour > 23 || minute > 59 || second > 60 || year < 1970
    {
        return None;
    }
    let (nanos, zone) = fraction(&b[19..])?;
    let offset_minutes: i64 = match zone {
        [b'Z' | b'z'] => 0,
        [sign @ (b'+' | b'-'), _, _, b':', _, _] => {
            let at = b.len() - 5;
            let (hours, minutes) = (number(at, 2)?, number(at + 3, 2)?);
            if hours > 23 || minutes > 59 {
                return None;
            }
            let minutes = (hours * 60 + minutes).cast_signed();
            if *sign == b'+' { minutes } else { -minutes }
        }
        _ => return None,
    };
    let local = days(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let seconds = u64::try_from(local.cast_signed() - offset_minutes * 60).ok()?;
    Some(Timestamp::from_secs(seconds).plus(Duration::from_nanos(nanos)))
}

/// Seconds since the epoch as a number; `None` if negative, not finite, or too far.
pub(super) fn epoch(seconds: f64) -> Option<Timestamp> {
    let fits = seconds.is_finite() && (0.0..=SECONDS_MAX as f64).contains(&seconds);
    fits.then(|| Timestamp::ZERO.plus(Duration::from_secs_f64(seconds)))
}

/// Nanoseconds of `.123`, and what follows.
fn fraction(rest: &[u8]) -> Option<(u64, &[u8])> {
    let Some(digits) = rest.strip_prefix(b".") else { return Some((0, rest)) };
    let len = digits.iter().position(|b| !b.is_ascii_digit()).unwrap_or(digits.len());
    if len == 0 {
        return None;
    }
    let nanos = (0..9).fold(0, |n, i| n * 10 + digits[..len].get(i).map_or(0, |d| u64::from(d - b'0')));
    Some((nanos, &digits[len..]))
}

/// Days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: u64, month: u64, day: u64) -> u64 {
    // Years from March on, so that the leap day ends them.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    year * 365 + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t1_moments_are_read_as_rfc_3339_writes_them() {
        for (text, us) in [
            ("1970-01-01T00:00:00Z", Some(0)),
            ("2026-11-29T13:00:00Z", Some(1_795_957_200_000_000)),
            ("2026-11-29t13:00:00.25z", Some(1_795_957_200_250_000)),
            ("2026-11-29 14:30:00+01:30", Some(1_795_957_200_000_000)),
            ("2026-11-29T08:00:00-05:00", Some(1_795_957_200_000_000)),
            ("2026-11-29T13:00:00.0000001Z", Some(1_795_957_200_000_001)),
            ("2024-02-29T00:00:00Z", Some(1_709_164_800_000_000)),
            ("2000-03-01T00:00:00Z", Some(951_868_800_000_000)),
            ("9999-12-31T23:59:59Z", Some(253_402_300_799_000_000)),
            ("1985-06-30T23:59:60Z", Some(489_024_000_000_000)),
            ("1970-01-01T00:00:00+01:00", None),
            ("2023-02-29T00:00:00Z", None),
            ("2026-13-01T00:00:00Z", None),
            ("2026-11-29T13:00:00", None),
            ("2026-11-29", None),
            ("2026-11-29T13:00Z", None),
            ("2026-11-29T24:00:00Z", None),
            ("2026-11-29T13:00:00.Z", None),
            ("2026-11-29T13:00:00+0100", None),
            ("2026-11-29T13:00:00+01:00 ", None),
            ("2026-11-29T13:00:00é", None),
            ("٢٠٢٦-11-29T13:00:00Z", None),
            ("", None),
        ] {
            assert_eq!(rfc3339(text).map(Timestamp::as_micros), us, "{text}");
        }
    }

    #[test]
    fn t1_what_is_written_is_read_again() {
        for seconds in (0..SECONDS_MAX).step_by(86_400 * 97 + 12_345).chain([SECONDS_MAX]) {
            let at = Timestamp::from_secs(seconds);
            assert_eq!(rfc3339(&crate::record::rfc3339(at)), Some(at));
        }
    }

    #[test]
    fn t1_a_number_is_seconds_and_milliseconds_are_noticed() {
        for (seconds, us) in [
            (0.0, Some(0)),
            (1.5, Some(1_500_000)),
            (1_795_957_200.0, Some(1_795_957_200_000_000)),
            (1_795_957_200_000.0, None),
            (-1.0, None),
            (f64::NAN, None),
            (f64::INFINITY, None),
        ] {
            assert_eq!(epoch(seconds).map(Timestamp::as_micros), us, "{seconds}");
        }
    }
}
