//! `forbear explain --scope`: what is believed of an origin's limits, and why.

use std::{
    io::{self, Write},
    time::Duration,
};

use forbear::{client::Target, engine::by_evidence, record::rfc3339};
use forbear_core::{
    evidence::{Evidence, NARROW_ODDS, Part, Tally},
    gate::Gate,
    learn::Belief,
    policy::ScopePolicy,
    time::Timestamp,
};
use forbear_store::{
    gate::{EvidenceRecord, GateRecord},
    queue::inspect::JobFile,
};
use serde_json::{Value, json};

use crate::{
    args::{ExplainArgs, GateAt, JobAt},
    exit::{Exit, Failure, written},
    gate::Place,
    job::{self, belief_json, due, plain},
    table::aligned,
    words,
};

/// What is kept of one scope.
struct Known {
    scope: String,
    gate: Result<Gate, String>,
    belief: Option<Belief>,
    /// The process of a fleet that learns of it.
    owner: Option<u64>,
    /// The moment on the clock that the gate goes by.
    now: Timestamp,
    /// How old that is.
    age: Option<Duration>,
}

/// All that is kept of an origin.
#[derive(Default)]
struct Found {
    scopes: Vec<Known>,
    /// What speaks for its limits being somebody's.
    evidence: Option<[Tally; Part::ALL.len()]>,
}

/// Prints it.
///
/// # Errors
/// No job and no store is named, it cannot be reached, or knows nothing of such a scope.
pub(super) async fn run(args: &ExplainArgs, name: &str) -> Result<Exit, Failure> {
    let names = names(name);
    let found = match &args.job {
        Some(job) => {
            let at = JobAt { job: job.clone(), queue: args.queue.clone() };
            let address = job::address(&at)?;
            let read = || {
                let file = JobFile::open(&address)?;
                of_job(&file, &names)
            };
            read().map_err(|error| job::failure(&address, &error))?
        }
        None => {
            let at = GateAt { gate: args.gate.clone(), config: args.config.clone() };
            of_place(&Place::open(&at).await?, &names).await?
        }
    };
    if found.scopes.is_empty() && found.evidence.is_none() {
        return Err(Failure::usage(format!(
            "nothing is known there of {}: a scope is kept from its first refusal on, or from when the server has said what \
             it allows; `forbear gate list` shows those that there are",
            plain(name)
        )));
    }
    let text = if args.json { format!("{:#}\n", found.json()) } else { found.text() };
    written(io::stdout().write_all(text.as_bytes()))
}

/// What may be meant: the origin of a URL, a host by either scheme, or a scope by its whole name.
fn names(given: &str) -> Vec<String> {
    let origin = |text: &str| Target::parse(text).ok().map(|target| target.origin().to_owned());
    let origins = match given.contains("://") {
        true => vec![origin(given)],
        false => ["https", "http"].map(|scheme| origin(&format!("{scheme}://{given}"))).to_vec(),
    };
    // The name of a scope has its parts behind the origin, and is no URL.
    let is_name = given.contains(' ') || !given.contains("://") && given.contains('=');
    let whole = is_name || origins.iter().all(Option::is_none);
    if whole { vec![given.to_owned()] } else { origins.into_iter().flatten().collect() }
}

fn is_of(key: &str, names: &[String]) -> bool {
    names.iter().any(|name| {
        key.strip_prefix(name.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    })
}

fn of_job(file: &JobFile, names: &[String]) -> Result<Found, forbear_store::queue::QueueError> {
    let (mut found, mut after) = (Found::default(), String::new());
    loop {
        let page = file.gates(&after, PAGE)?;
        let last = page.len() < PAGE;
        if let Some(gate) = page.last() {
            after.clone_from(&gate.key);
        }
        let now = super::now();
        for kept in page {
            if let Some(origin) = EvidenceRecord::origin(&kept.key) {
                if is_of(origin, names) {
                    found.evidence = EvidenceRecord::decode(&kept.record, now).ok();
                }
            } else if is_of(&kept.key, names) && found.scopes.len() < SCOPES {
                // Only what is known is wanted, and no policy changes that.
                let gate = GateRecord::decode(&kept.record, &ScopePolicy::default(), now);
                let (gate, age) = (gate.map_err(|error| error.to_string()), GateRecord::age(&kept.record));
                let belief = gate.as_ref().ok().and_then(Gate::belief);
                found.scopes.push(Known { scope: kept.key, gate, belief, owner: None, now, age });
            }
        }
        if last {
            return Ok(found);
        }
    }
}

async fn of_place(place: &Place, names: &[String]) -> Result<Found, Failure> {
    match place {
        Place::Job { file, path } => of_job(file, names).map_err(|error| job::failure(&path.into(), &error)),
        Place::Shared { desk, .. } => {
            let mut found = Found::default();
            let each = |scope: forbear_store::gate::SharedScope| {
                if is_of(scope.key.as_str(), names) && found.scopes.len() < SCOPES {
                    let (now, age) = (scope.now, Some(scope.now.since(scope.written)));
                    let (belief, owner) = (scope.belief, scope.owner);
                    let (scope, gate) = (scope.key.to_string(), scope.gate);
                    found.scopes.push(Known { scope, gate, belief, owner, now, age });
                }
            };
            desk.scopes(each).await.map_err(|error| place.failure(&error))?;
            found.scopes.sort_by(|a, b| a.scope.cmp(&b.scope));
            Ok(found)
        }
    }
}

impl Found {
    fn text(&self) -> String {
        let mut parts: Vec<String> = self.scopes.iter().map(|known| aligned(&known.lines())).collect();
        if let Some(tallies) = &self.evidence {
            parts.push(aligned(&whose(tallies)));
        }
        parts.join("\n")
    }

    fn json(&self) -> Value {
        json!({
            "scopes": self.scopes.iter().map(Known::json).collect::<Vec<_>>(),
            "whose": self.evidence.as_ref().map(|tallies| {
                let part = |(part, tally): (Part, &Tally)| json!({
                    "part": part.as_str(), "narrowed": tally.narrow, "odds": odds(tally),
                    "served_elsewhere": tally.served_elsewhere, "refused_here": tally.refused_here,
                    "refused_elsewhere": tally.refused_elsewhere, "given_up": tally.widened,
                });
                Part::ALL.into_iter().zip(tallies).map(part).collect::<Vec<_>>()
            }),
        })
    }
}

impl Known {
    fn lines(&self) -> Vec<Vec<String>> {
        let mut lines = Vec::new();
        let mut line = |word: &str, value: String| lines.push(vec![word.to_owned(), value]);
        line("scope", plain(&self.scope).into_owned());
        match &self.gate {
            Err(why) => line("record", why.clone()),
            Ok(gate) => self.facts(gate, &mut line),
        }
        if let Some(age) = self.age {
            line("as of", format!("{} ago", words::wait(whole(age))));
        }
        lines
    }

    fn facts(&self, gate: &Gate, line: &mut impl FnMut(&str, String)) {
        let kept = gate.snapshot();
        let state = gate.state(self.now);
        line(
            "state",
            match kept.shut {
                false => state.to_owned(),
                true if kept.paused_until == Timestamp::MAX => {
                    format!("{state} ({}), until it is changed", kept.cause.as_str())
                }
                true if kept.paused_until <= self.now => {
                    format!("{state} ({}); its time is over: a probe is next", kept.cause.as_str())
                }
                true => format!(
                    "{state} ({}) until {}",
                    kept.cause.as_str(),
                    words::moment(self.wall(kept.paused_until))
                ),
            },
        );
        if let Some(rate) = kept.rate {
            let bad = kept
                .bad_rate
                .map_or_else(String::new, |bad| format!("; was refused at {}", words::pace(f64::from(bad))));
            line("pace", format!("{}{bad}", words::pace(f64::from(rate))));
        }
        match self.belief() {
            None => line("believed", "nothing yet".to_owned()),
            Some(belief) => {
                line("believed", words::belief(&belief));
                for why in words::why(&belief, self.wall(belief.evidence.since)) {
                    line("", why);
                }
            }
        }
        if let Some(owner) = self.owner {
            line("learned by", format!("{owner:016x}"));
        }
        if kept.pad_ms > 0 {
            line("told times", format!("have been too short: {} ms are added", kept.pad_ms));
        }
        if kept.incidents > 0 {
            let last = match kept.last_refusal {
                Timestamp::ZERO => String::new(),
                at => format!(", the last at {}", words::moment(self.wall(at))),
            };
            line("incidents", format!("{}{last}", kept.incidents));
        }
    }

    fn belief(&self) -> Option<Belief> {
        self.belief.filter(|belief| belief.evidence.incidents > 0 || belief.evidence.stated)
    }

    /// A moment of the gate's clock on the wall clock.
    fn wall(&self, at: Timestamp) -> Timestamp {
        let wall = super::now();
        if at > self.now { wall.plus(at.since(self.now)) } else { wall.minus(self.now.since(at)) }
    }

    fn json(&self) -> Value {
        let gate = self.gate.as_ref().ok();
        let kept = gate.map(Gate::snapshot);
        let kept = kept.as_ref();
        let until = kept.filter(|kept| kept.shut && kept.paused_until != Timestamp::MAX);
        json!({
            "scope": self.scope,
            "state": gate.map(|gate| gate.state(self.now)),
            "cause": kept.filter(|kept| kept.shut).map(|kept| kept.cause.as_str()),
            "until": until.map(|kept| due(self.wall(kept.paused_until))),
            "pace_per_s": kept.and_then(|kept| kept.rate),
            "refused_at_per_s": kept.and_then(|kept| kept.bad_rate),
            "learned_by": self.owner.map(|owner| format!("{owner:016x}")),
            "believed": self.belief()
                .map(|belief| belief_json(&belief, &rfc3339(self.wall(belief.evidence.since)))),
            "learned_pad_s": kept.filter(|kept| kept.pad_ms > 0).map(|kept| f64::from(kept.pad_ms) / 1000.0),
            "incidents": kept.map(|kept| kept.incidents),
            "as_of": self.age.map(|age| rfc3339(super::now().minus(age))),
            "unreadable": self.gate.as_ref().err(),
        })
    }
}

/// Whose the limits are, or what speaks for it so far.
fn whose(tallies: &[Tally; Part::ALL.len()]) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    let mut line = |word: &str, value: String| lines.push(vec![word.to_owned(), value]);
    match Evidence::restore(*tallies).whose() {
        Some(whose) => {
            line("whose", format!("{}, since {}", by_evidence(&whose), words::moment(whose.since)))
        }
        None => line("whose", "everyone's, for all that is known".to_owned()),
    }
    for (part, tally) in Part::ALL.into_iter().zip(tallies) {
        let Tally { served_elsewhere, refused_here, refused_elsewhere, widened, .. } = tally;
        if *refused_here == 0 {
            continue;
        }
        let again = match widened {
            0 => String::new(),
            1 => "; it was found once, and was wrong".to_owned(),
            n => format!("; it was found {n} times, and was wrong"),
        };
        line(
            "",
            format!(
                "by {}: odds of {:.1} to 1 ({NARROW_ODDS:.0} or more are believed); while {refused_here} were refused, {served_elsewhere} \
                 were served elsewhere and {refused_elsewhere} refused{again}",
                part.as_str(),
                odds(tally),
            ),
        );
    }
    lines
}

fn odds(tally: &Tally) -> f64 {
    (f64::from(tally.score).exp() * 10.0).round() / 10.0
}

fn whole(time: Duration) -> Duration {
    Duration::from_secs(time.as_secs())
}

const PAGE: usize = 1000;
/// Scopes of one origin that are told of.
const SCOPES: usize = 100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s2_an_origin_is_found_by_url_host_or_name() {
        for (given, key, found) in [
            ("https://API.example.com/v1?x=1", "https://api.example.com", true),
            ("https://api.example.com", "https://api.example.com account=k1", true),
            ("api.example.com", "https://api.example.com", true),
            ("api.example.com", "http://api.example.com", true),
            ("api.example.com:8443", "https://api.example.com:8443", true),
            ("https://api.example.com", "https://api.example.com.evil", false),
            ("https://api.example.com account=k1", "https://api.example.com account=k1", true),
            ("https://api.example.com account=k1", "https://api.example.com", false),
            ("account=k1", "account=k1", true),
        ] {
            assert_eq!(is_of(key, &names(given)), found, "{given} {key}: {:?}", names(given));
        }
    }
}
