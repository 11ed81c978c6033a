//! A rate in words: `5/s`, `5/15s`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// So many requests per time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rate {
    count: u32,
    per: Duration,
}

/// Why a rate could not be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RateError {
    /// It has no `/`, or what stands beside it is no number and no time.
    #[error("a rate is written like 5/s or 5/15s")]
    Form,
    /// Nothing per time, or something per no time.
    #[error("a rate is more than nothing per a time that is not zero")]
    Zero,
}

impl Rate {
    /// `count` requests per `per`.
    ///
    /// # Errors
    /// If either is zero.
    pub fn new(count: u32, per: Duration) -> Result<Rate, RateError> {
        match count == 0 || per.is_zero() {
            true => Err(RateError::Zero),
            false => Ok(Rate { count, per }),
        }
    }

    /// `count` requests per second.
    ///
    /// # Panics
    /// If `count` is zero.
    #[must_use]
    pub fn per_second(count: u32) -> Rate {
        assert!(count > 0, "a rate is more than nothing");
        Rate { count, per: Duration::from_secs(1) }
    }

    pub(crate) fn count(self) -> u32 {
        self.count
    }

    pub(crate) fn per(self) -> Duration {
        self.per
    }

    pub(crate) fn per_nanos(self) -> i128 {
        self.per.as_nanos() as i128
    }

    /// Requests a second.
    #[must_use]
    pub fn hertz(self) -> f64 {
        f64::from(self.count) / self.per.as_secs_f64()
    }
}

impl FromStr for Rate {
    type Err = RateError;

    fn from_str(text: &str) -> Result<Rate, RateError> {
        let (count, per) = text.split_once('/').ok_or(RateError::Form)?;
        let count = count.trim().parse().map_err(|_| RateError::Form)?;
        let per = per.trim();
        let per = match per.starts_with(|c: char| c.is_ascii_digit()) {
            true => parse_duration(per),
            false => parse_duration(&format!("1{per}")),
        };
        Rate::new(count, per.ok_or(RateError::Form)?)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.per == Duration::from_secs(1) {
            true => write!(f, "{}/s", self.count),
            false => write!(f, "{}/{}", self.count, show_duration(self.per)),
        }
    }
}

/// `1500ms`, `30s`, `5m`, `2h`, `1d`; a bare `0` needs no unit.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    Some(Duration::from_millis(number.checked_mul(millis)?))
}

/// The shortest form that [`parse_duration`] reads back as the same time (which holds whole milliseconds).
pub(crate) fn show_duration(time: Duration) -> String {
    let millis = time.as_millis();
    match millis {
        0 => "0".to_owned(),
        _ if millis.is_multiple_of(86_400_000) => format!("{}d", millis / 86_400_000),
        _ if millis.is_multiple_of(3_600_000) => format!("{}h", millis / 3_600_000),
        _ if millis.is_multiple_of(1_000) => format!("{}s", millis / 1_000),
        _ => format!("{millis}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_in_words() {
        for (text, count, millis) in
            [("5/s", 5, 1_000), ("5/15s", 5, 15_000), ("100/m", 100, 60_000), ("1/250ms", 1, 250)]
        {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate, Rate::new(count, Duration::from_millis(millis)).unwrap(), "{text}");
            assert_eq!(rate.to_string().parse(), Ok(rate), "{text}");
        }
    }

    #[test]
    fn what_is_no_rate() {
        for (text, error) in [
            ("5", RateError::Form),
            ("five/s", RateError::Form),
            ("5/x", RateError::Form),
            ("5/", RateError::Form),
            ("-5/s", RateError::Form),
            ("0/s", RateError::Zero),
            ("5/0s", RateError::Zero),
            ("5/99999999999999999999s", RateError::Form),
        ] {
            assert_eq!(text.parse::<Rate>(), Err(error), "{text}");
        }
    }

    #[test]
    fn durations_read_back() {
        for millis in [0, 1, 250, 1_000, 1_500, 60_000, 90_000, 3_600_000, 86_400_000, 172_800_000] {
            let time = Duration::from_millis(millis);
            assert_eq!(parse_duration(&show_duration(time)), Some(time));
        }
    }
}
