//! Moments and times for people.

use std::time::Duration;

use forbear::config::show_duration;
use forbear_core::{
    learn::{Belief, Kind},
    time::Timestamp,
};

/// `2026-11-29 13:02:00 UTC`, rounded up to the next second: nothing starts before it (T2).
pub(crate) fn moment(at: Timestamp) -> String {
    let seconds = at.as_micros().div_ceil(1_000_000);
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// A time to wait, rounded up: to milliseconds below a minute, else to seconds.
pub(crate) fn wait(time: Duration) -> String {
    let step = if time < Duration::from_secs(60) { 1_000_000 } else { 1_000_000_000 };
    let rounded = time.as_nanos().div_ceil(step).saturating_mul(step);
    let rounded = u64::try_from(rounded / 1_000_000_000)
        .map_or(Duration::MAX, |s| Duration::new(s, (rounded % 1_000_000_000) as u32));
    show_duration(rounded)
}

/// Year, month and day of a day counted from 1970-01-01, in the Gregorian calendar. Years are counted from March, so that
/// the leap day is the last of its year and months have a regular length.
fn date(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468; // from 0000-03-01
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (era * 400 + year_of_era + u64::from(month <= 2), month, day)
}

/// Starts a second, or in a longer time where that is easier to read.
pub(crate) fn pace(per_second: f64) -> String {
    match per_second {
        r if r >= 100.0 => format!("{r:.0}/s"),
        r if r >= 0.1 => format!("{r:.1}/s"),
        r => format!("{:.1}/min", r * 60.0),
    }
}

/// What is believed of a limit, and why.
pub(crate) fn belief(belief: &Belief) -> String {
    let (number, rate) = (belief.number, pace(belief.rate));
    let window = belief.window.map_or_else(|| "some time".to_owned(), wait);
    let what = match belief.kind {
        Some(Kind::Bucket) if number == 0.0 => format!("token bucket, {rate}"),
        Some(Kind::Bucket) => format!("token bucket of {number:.0}, {rate}"),
        Some(Kind::FixedWindow) => format!("fixed window of {number:.0} in {window}"),
        Some(Kind::SlidingWindow) if number == 0.0 => format!("sliding window of {window}, {rate}"),
        Some(Kind::SlidingWindow) => format!("sliding window of {number:.0} in {window}"),
        Some(Kind::Concurrency) if number == 0.0 => "a limit of requests at once".to_owned(),
        Some(Kind::Concurrency) => format!("at most {number:.0} requests at once"),
        Some(Kind::Penalty) => format!("{rate}, and a penalty of {window} for more"),
        None if belief.evidence.stated && number > 0.0 => {
            format!("{number:.0} in {window}, by the server's own word")
        }
        None if belief.evidence.stated => format!("{rate}, by the server's own word"),
        None => format!("about {rate}, of no known kind"),
    };
    let sure = match belief.kind {
        Some(_) => format!(", {:.0} % sure", belief.confidence * 100.0),
        None => String::new(),
    };
    let from = match belief.evidence.incidents {
        0 => String::new(),
        1 => ", from 1 refusal".to_owned(),
        n => format!(", from {n} refusals"),
    };
    format!("{what}{sure}{from}")
}

/// What that is founded on, in a few lines. The evidence counts `since` a moment of the wall clock.
pub(crate) fn why(belief: &Belief, since: Timestamp) -> Vec<String> {
    let evidence = &belief.evidence;
    let mut lines = Vec::new();
    if evidence.incidents > 0 {
        let times =
            if evidence.incidents == 1 { "once".to_owned() } else { format!("{} times", evidence.incidents) };
        let explained = match evidence.explained {
            0 => String::new(),
            1 => ", and this explains the last of them".to_owned(),
            n => format!(", and this explains the last {n} of them"),
        };
        lines.push(format!("since {} the limit was met {times}{explained}", moment(since)));
        lines.push(format!(
            "{} requests were refused meanwhile, {} let through",
            evidence.refused, evidence.accepted
        ));
    }
    if evidence.stated {
        lines.push("the server says what it allows".to_owned());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn t2_moments_are_rounded_up() {
        for (us, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (1, "1970-01-01 00:00:01 UTC"),
            (951_782_400_000_000, "2000-02-29 00:00:00 UTC"),
            (1_795_957_200_000_000, "2026-11-29 13:00:00 UTC"),
            (1_798_761_599_000_001, "2027-01-01 00:00:00 UTC"),
            (4_107_542_400_000_000, "2100-03-01 00:00:00 UTC"),
            (253_402_300_799_000_000, "9999-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(moment(Timestamp::from_micros(us)), expected);
        }
        assert!(moment(Timestamp::MAX).ends_with(" UTC"), "even the furthest");
    }

    #[test]
    fn t2_waits_are_rounded_up() {
        for (time, expected) in [
            (Duration::ZERO, "0s"),
            (Duration::from_micros(1), "1ms"),
            (Duration::from_millis(1500), "1s500ms"),
            (Duration::from_millis(120_050), "2m1s"),
            (Duration::from_secs(86_400), "1d"),
        ] {
            assert_eq!(wait(time), expected);
        }
        assert!(!wait(Duration::MAX).is_empty());
    }
}
