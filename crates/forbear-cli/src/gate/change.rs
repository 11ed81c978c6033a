//! `forbear gate pause|resume|clear`: an operator's hand on a scope, seen at once by every process.

use std::time::Duration;

use forbear::{client::Target, config::parse_duration};
use forbear_core::{
    gate::{Cause, Gate},
    scope::ScopeKey,
    time::Timestamp,
};

use super::{Place, cause_word, find, no_such, wall};
use crate::{
    exit::{Exit, Failure},
    shell::say,
    words,
};

/// What is done to a scope.
pub(super) enum What {
    /// Nothing starts for so long.
    Pause(Duration),
    /// Its pause is over: one request tests.
    Resume,
    /// It opens without a test.
    Clear,
}

/// The time of a pause, in the words of the configuration.
pub(super) fn pause_of(text: &str) -> Result<Duration, Failure> {
    let time = parse_duration(text).map_err(|error| Failure::usage(format!("TIME: {error}")))?;
    if time.is_zero() {
        return Err(Failure::usage(
            "TIME: a pause must be longer than nothing; `forbear gate resume` ends one",
        ));
    }
    Ok(time)
}

pub(super) async fn run(place: &Place, name: &str, what: What) -> Result<Exit, Failure> {
    let Place::Shared { desk, .. } = place else { return Err(of_a_job(place)) };
    let found = match (find(place, name).await?, &what) {
        (Some(found), _) => found,
        (None, What::Pause(_)) => whole(name).ok_or_else(|| no_such(name))?,
        (None, _) => return Err(no_such(name)),
    };
    let mut before = None;
    let step = |gate: &mut Gate, now: Timestamp| {
        before = gate.pause_at(now);
        match what {
            What::Pause(time) => gate.pause(now.plus(time), now),
            What::Resume => gate.resume(now),
            What::Clear => gate.clear(now),
        }
    };
    let scope =
        desk.change(&ScopeKey::from_text(&found), step).await.map_err(|error| place.failure(&error))?;
    match (what, scope.pause()) {
        (What::Pause(_), Some((until, Cause::Operator))) => say(format_args!(
            "{found} is paused by hand until {}, for every process that uses this store",
            moment(until, scope.now)
        )),
        (What::Pause(_), Some((until, cause))) => say(format_args!(
            "{found} stays paused ({}) until {}: a pause is never made shorter by another one",
            cause_word(cause),
            moment(until, scope.now)
        )),
        (What::Resume, _) if before.is_some() => {
            say(format_args!(
                "the pause of {found} is over: one request tests it, and the others follow if it passes"
            ));
        }
        (What::Clear, _) if before.is_some() => say(format_args!("{found} is open, without a test")),
        _ => say(format_args!("{found} was not paused")),
    }
    Ok(Exit::Done)
}

fn moment(at: Timestamp, now: Timestamp) -> String {
    if at == Timestamp::MAX { "its credentials change".to_owned() } else { words::moment(wall(at, now)) }
}

/// The scope of an origin that no process has used yet, or another whole name.
fn whole(name: &str) -> Option<String> {
    if name.starts_with("group=") || name.starts_with("account=") {
        return Some(name.to_owned());
    }
    let (origin, rest) = name.split_once(' ').map_or((name, None), |(origin, rest)| (origin, Some(rest)));
    let target = Target::parse(origin).ok()?;
    Some(rest.map_or_else(|| target.origin().to_owned(), |rest| format!("{} {rest}", target.origin())))
}

fn of_a_job(place: &Place) -> Failure {
    let Place::Job { path, .. } = place else { return Failure::usage(String::new()) };
    Failure::usage(format!(
        "{} is the job of a run with its gates in memory: nobody else can change those. `forbear gate list` and `show` read what \
         it has kept of them; a run with --gate FILE or --gate redis://HOST can be paused and resumed from outside",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p2_a_host_can_be_paused_before_anybody_uses_it() {
        for (name, expected) in [
            ("https://API.example.com", Some("https://api.example.com")),
            ("http://h:8080 account=a", Some("http://h:8080 account=a")),
            ("group=shop", Some("group=shop")),
            ("account=a", Some("account=a")),
            ("api.example.com", None),
            ("", None),
        ] {
            assert_eq!(whole(name).as_deref(), expected, "{name}");
        }
    }

    #[test]
    fn a_pause_has_a_time() {
        assert_eq!(pause_of("10m").ok(), Some(Duration::from_secs(600)));
        for text in ["0s", "", "ten", "10"] {
            assert!(pause_of(text).is_err(), "{text}");
        }
    }
}
