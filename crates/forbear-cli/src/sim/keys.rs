//! What is simulated, as it is said: the keys of a scenario's file, and the flags, which are the same.

use std::{path::Path, time::Duration};

use forbear::config::{Given, PlainFlag, PlainKey, read_plain};
use forbear_sim::{Latency, Scenario, Truth, Work};
use forbear_zoo::{Rate, Spec};

use super::{habit::Habit, replay::Replay};
use crate::{args::SimArgs, exit::Failure};

/// A simulation as it is said.
#[derive(Clone, Debug)]
pub(super) struct Said {
    limiter: Spec,
    /// Policies, by name or file.
    pub(super) policies: Vec<String>,
    /// Those names come from the scenario's file, so that paths count from there.
    from_file: bool,
    /// What others do, to compare with.
    pub(super) against: Vec<Habit>,
    /// The host whose settings hold.
    pub(super) host: String,
    workers: u32,
    latency: Duration,
    round_trip: Option<Duration>,
    spread: f64,
    pages: Option<u32>,
    stream: Option<f64>,
    run_for: Option<Duration>,
    /// Good ones, each with an address of its own.
    pub(super) exits: u32,
    nodes: u32,
    others: f64,
    crashes: Vec<Duration>,
    seed: u64,
    /// What a real run met.
    pub(super) replay: Option<Replay>,
}

impl Default for Said {
    fn default() -> Said {
        Said {
            limiter: Spec::token_bucket(Rate::per_second(10), 10).hint(forbear_zoo::Hint::Seconds),
            policies: Vec::new(),
            from_file: false,
            against: Vec::new(),
            host: "api.example.com".to_owned(),
            workers: 64,
            latency: Duration::from_millis(100),
            round_trip: None,
            spread: 0.3,
            pages: None,
            stream: None,
            run_for: None,
            exits: 0,
            nodes: 1,
            others: 0.0,
            crashes: Vec::new(),
            seed: 1,
            replay: None,
        }
    }
}

impl Said {
    /// By the scenario's file and the flags.
    ///
    /// # Errors
    /// All that is wrong with either, and what does not go together.
    pub(super) fn of(args: &SimArgs) -> Result<Said, Failure> {
        let mut said = Said::default();
        if let Some(log) = &args.replay {
            said.replay(Replay::read(log, args.host.as_deref())?, args)?;
        }
        read_plain(&mut said, KEYS, args.scenario.as_deref(), &flags(args))?;
        if said.from_file {
            let beside = args.scenario.as_deref().and_then(Path::parent);
            said.policies.iter_mut().for_each(|policy| *policy = from(beside, policy));
        }
        if said.policies.is_empty() && said.against.is_empty() {
            said.policies.push("polite".to_owned());
        }
        said.check()?;
        Ok(said)
    }

    /// Takes what a real run met for what is not said otherwise.
    fn replay(&mut self, replay: Replay, args: &SimArgs) -> Result<(), Failure> {
        match (&replay.limiter, &args.limiter, &args.scenario) {
            (Some(limiter), ..) => self.limiter = limiter.clone(),
            (None, Some(_), _) | (None, None, Some(_)) => {}
            (None, None, None) => {
                return Err(Failure::usage(
                    "--replay: nothing was refused, so the records do not show the limit; say it by --limiter",
                ));
            }
        }
        self.host.clone_from(&replay.host);
        self.pages = Some(replay.pages);
        self.latency = replay.latency.unwrap_or(self.latency);
        self.replay = Some(replay);
        Ok(())
    }

    fn check(&self) -> Result<(), Failure> {
        let wrong = |text: &str| Err(Failure::usage(text));
        if self.limiter.is_about_paths() {
            return wrong(
                "limiter: a rule about paths has no effect here, since all simulated requests are for one page; leave `match` and `sentence` out",
            );
        }
        if self.round_trip.is_some_and(|on_the_way| on_the_way > self.latency) {
            return wrong(
                "round_trip is a part of latency, so it cannot be longer; lower the one or raise the other",
            );
        }
        if self.stream.is_some() && self.pages.is_some() {
            return wrong("pages and stream say two things about the work; keep one of them");
        }
        if self.exits > 0 {
            let said = [
                (
                    self.stream.is_some() || (self.pages.is_none() && self.run_for.is_some()),
                    "work without a number of pages",
                ),
                (!self.against.is_empty(), "against"),
                (self.nodes > 1, "nodes"),
                (self.others > 0.0, "others"),
                (!self.crashes.is_empty(), "crashes"),
            ];
            if let Some((_, what)) = said.iter().find(|(is_said, _)| *is_said) {
                return Err(Failure::usage(format!(
                    "exits: not together with {what}; leave one of the two out"
                )));
            }
        }
        if let Some(late) = self.crashes.iter().find(|at| self.run_for.is_some_and(|end| **at > end)) {
            return Err(Failure::usage(format!("crashes: {late:?} is after the end of the run")));
        }
        Ok(())
    }

    /// As the simulator wants it. A job without an end of its own gets four times the best time, and ten minutes at least.
    pub(super) fn scenario(&self) -> Scenario {
        let round_trip = self.round_trip.unwrap_or(self.latency / 2);
        let latency = Latency { round_trip, service: self.latency - round_trip, spread: self.spread };
        let work = match (self.stream, self.pages, self.run_for) {
            (Some(rate), ..) => Work::Stream(rate),
            (None, Some(pages), _) => Work::Pages(pages),
            (None, None, Some(_)) => Work::Endless,
            (None, None, None) => Work::Pages(PAGES),
        };
        // A limiter that counts by address is one for each exit.
        let by_client = self.limiter.to_string().contains("scope=client");
        let nodes = if by_client { self.exits.max(self.nodes) } else { self.nodes };
        let mut scenario = Scenario {
            truth: Truth::of(&self.limiter, &latency, nodes, self.others),
            spec: self.limiter.clone(),
            nodes,
            others: self.others,
            latency,
            workers: self.workers,
            work,
            run_for: self.run_for.unwrap_or(LONGEST),
            crashes: self.crashes.clone(),
            seed: self.seed,
        };
        if self.run_for.is_none() {
            scenario.run_for = match work {
                Work::Pages(_) => scenario.optimum().time.saturating_mul(4).clamp(SHORTEST, LONGEST),
                _ => Duration::from_secs(3600),
            };
        }
        scenario
    }
}

/// A path in a file is meant from where the file stands.
fn from(beside: Option<&Path>, policy: &str) -> String {
    let is_path = policy.contains(['/', '\\']) || policy.ends_with(".toml");
    match beside.filter(|_| is_path) {
        Some(dir) => dir.join(policy).to_string_lossy().into_owned(),
        None => policy.to_owned(),
    }
}

/// The flags that set a key. Several of one key are one list.
fn flags(args: &SimArgs) -> Vec<PlainFlag> {
    let one = |value: &Option<String>| value.clone();
    let list = |values: &[String]| (!values.is_empty()).then(|| values.join(","));
    let all = [
        ("--limiter", "limiter", one(&args.limiter)),
        ("--policy", "policy", list(&args.policy)),
        ("--against", "against", list(&args.against)),
        ("--host", "host", one(&args.host)),
        ("--exits", "exits", one(&args.exits)),
        ("--workers", "workers", one(&args.workers)),
        ("--latency", "latency", one(&args.latency)),
        ("--pages", "pages", one(&args.pages)),
        ("--run-for", "run_for", one(&args.run_for)),
        ("--seed", "seed", one(&args.seed)),
    ];
    let given = |(flag, key, value): (_, _, Option<String>)| Some(PlainFlag { flag, key, value: value? });
    all.into_iter().filter_map(given).collect()
}

const KEYS: &[PlainKey<Said>] = &[
    PlainKey {
        name: "limiter",
        takes: "a name or a description, as `forbear demo --limiter list` shows them",
        set: |said, given| put(&mut said.limiter, limiter(&given.free_text()?)),
    },
    PlainKey {
        name: "policy",
        takes: "a list of names or files",
        set: |said, given| {
            said.from_file = matches!(given, Given::File(_));
            put(&mut said.policies, texts(given))
        },
    },
    PlainKey {
        name: "against",
        takes: "a list of habits: every-2s, jitter, aimd, cubic, oracle",
        set: |said, given| {
            let habits = texts(given)?.iter().map(|name| name.parse()).collect();
            put(&mut said.against, habits)
        },
    },
    PlainKey {
        name: "host",
        takes: "a host's name",
        set: |said, given| put(&mut said.host, given.free_text()),
    },
    PlainKey {
        name: "workers",
        takes: "a count from 1 to 1000000",
        set: |said, given| put(&mut said.workers, within(given, 1, 1_000_000)),
    },
    PlainKey {
        name: "latency",
        takes: "a time, like \"50ms\"",
        set: |said, given| put(&mut said.latency, given.some_duration("an answer takes time")),
    },
    PlainKey {
        name: "round_trip",
        takes: "a time, like \"20ms\": the part of the latency that is spent on the way",
        set: |said, given| put(&mut said.round_trip, given.duration().map(Some)),
    },
    PlainKey {
        name: "spread",
        takes: "a number from 0 to 3",
        set: |said, given| {
            let spread = given.float()?;
            let kept = (0.0..=3.0).contains(&spread).then_some(spread);
            put(&mut said.spread, kept.ok_or_else(|| "not from 0 to 3".to_owned()))
        },
    },
    PlainKey {
        name: "pages",
        takes: "a count from 1 to 100000000",
        set: |said, given| put(&mut said.pages, within(given, 1, 100_000_000).map(Some)),
    },
    PlainKey {
        name: "stream",
        takes: "a rate, like \"5/s\"",
        set: |said, given| put(&mut said.stream, rate(given).map(Some)),
    },
    PlainKey {
        name: "run_for",
        takes: "a time, like \"1h\"",
        set: |said, given| put(&mut said.run_for, given.some_duration("nothing would be sent").map(Some)),
    },
    PlainKey {
        name: "exits",
        takes: "a count from 0 to 10000",
        set: |said, given| put(&mut said.exits, within(given, 0, 10_000)),
    },
    PlainKey {
        name: "nodes",
        takes: "a count from 1 to 1000",
        set: |said, given| put(&mut said.nodes, within(given, 1, 1000)),
    },
    PlainKey {
        name: "others",
        takes: "a rate, like \"2/s\"",
        set: |said, given| put(&mut said.others, rate(given)),
    },
    PlainKey {
        name: "crashes",
        takes: "a list of times, like [\"30s\", \"2m\"]",
        set: |said, given| {
            let times = texts(given)?.iter().map(|text| Given::Flag(text).duration()).collect();
            put(&mut said.crashes, times)
        },
    },
    PlainKey {
        name: "seed",
        takes: "a whole number",
        set: |said, given| put(&mut said.seed, given.number("a whole number")),
    },
];

/// A limiter by its name or description, in the zoo's words.
fn limiter(text: &str) -> Result<Spec, String> {
    match Spec::example(text) {
        Some(spec) => Ok(spec),
        None => text.parse().map_err(|e: forbear_zoo::SpecError| e.to_string()),
    }
}

fn rate(given: Given<'_>) -> Result<f64, String> {
    given.free_text()?.parse::<Rate>().map(Rate::hertz).map_err(|e| e.to_string())
}

fn within(given: Given<'_>, least: u32, most: u32) -> Result<u32, String> {
    let n = given.number("a whole number")?;
    let n = u32::try_from(n).ok().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| format!("not from {least} to {most}"))
}

fn texts(given: Given<'_>) -> Result<Vec<String>, String> {
    let found: Vec<String> = given.texts()?.into_iter().map(str::to_owned).collect();
    if found.iter().any(String::is_empty) { Err("a name is missing".to_owned()) } else { Ok(found) }
}

fn put<T>(place: &mut T, found: Result<T, String>) -> Result<(), String> {
    *place = found?;
    Ok(())
}

const PAGES: u32 = 1000;
const SHORTEST: Duration = Duration::from_secs(600);
const LONGEST: Duration = Duration::from_secs(30 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_in_a_file_counts_from_the_file() {
        let dir = std::path::PathBuf::from("sims");
        for (policy, expected) in
            [("polite", "polite"), ("ours.toml", "sims/ours.toml"), ("/x/y.toml", "/x/y.toml")]
        {
            assert_eq!(from(Some(&dir), policy), expected);
        }
        assert_eq!(from(None, "ours.toml"), "ours.toml");
    }

    #[test]
    fn the_work_follows_from_what_was_said() {
        let said = Said { pages: Some(7), ..Said::default() };
        assert_eq!((said.scenario().work, said.scenario().run_for), (Work::Pages(7), SHORTEST));
        let hour = Some(Duration::from_secs(3600));
        assert_eq!(Said { run_for: hour, ..Said::default() }.scenario().work, Work::Endless);
        assert_eq!(Said { run_for: hour, pages: Some(7), ..Said::default() }.scenario().work, Work::Pages(7));
        assert_eq!(Said { stream: Some(2.0), ..Said::default() }.scenario().work, Work::Stream(2.0));
        let long = Said { pages: Some(100_000), ..Said::default() }.scenario();
        assert!(long.run_for > Duration::from_secs(39_000), "four times the best: {:?}", long.run_for);
    }
}
