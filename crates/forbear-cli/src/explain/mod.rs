//! `forbear explain`: what a response says about limits, and what would be done.

mod head;
mod jsonl;

use std::{
    io,
    time::{SystemTime, UNIX_EPOCH},
};

use forbear_core::{
    hint::value::{Clock, Unit, When, read},
    time::Timestamp,
};

use crate::{
    args::ExplainArgs,
    exit::{Exit, Failure, written},
};

/// Explains one response to people, or many to a program.
///
/// # Errors
/// A response that cannot be read, and a configuration that cannot be used.
pub(crate) fn run(args: &ExplainArgs) -> Result<Exit, Failure> {
    if args.jsonl {
        return written(jsonl::answer_all(io::stdin().lock(), &mut io::stdout().lock()));
    }
    Err(Failure::internal("not yet"))
}

/// The real clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Reads a moment as RFC 3339 writes it, with its zone.
fn instant(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let is_date_time = bytes.get(4) == Some(&b'-') && matches!(bytes.get(10), Some(b'T' | b't' | b' '));
    let has_zone = matches!(bytes.last(), Some(b'Z' | b'z'))
        || bytes.get(11..)?.iter().any(|b| matches!(b, b'+' | b'-'));
    if !is_date_time || !has_zone {
        return None;
    }
    match read(bytes, Unit::Seconds, &Clock::local(Timestamp::ZERO))?.when {
        When::At(at) => Some(at),
        When::Delay(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_rfc_3339_writes_them() {
        for (text, expected) in [
            ("2026-11-29T13:00:00Z", Some(1_795_957_200_000_000)),
            ("2026-11-29T13:00:00.5Z", Some(1_795_957_200_500_000)),
            ("2026-11-29T14:00:00+01:00", Some(1_795_957_200_000_000)),
            ("2026-11-29", None),
            ("2026-11-29T13:00:00", None),
            ("120", None),
            ("Sun, 29 Nov 2026 13:00:00 GMT", None),
            ("", None),
        ] {
            assert_eq!(instant(text).map(Timestamp::as_micros), expected, "{text}");
        }
    }
}
