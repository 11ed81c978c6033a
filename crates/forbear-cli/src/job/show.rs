//! `forbear job show`: the short answer, for any size of job.

use std::{
    io::{self, Write},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forbear::{
    engine::{LaneParts, by_evidence},
    record::rfc3339,
};
use forbear_core::{
    evidence::{Evidence, Whose},
    learn::{Belief, Kind},
    policy::ScopePolicy,
    time::Timestamp,
};
use forbear_store::{
    gate::{EvidenceRecord, GateRecord},
    queue::{
        ExitRow, InputEnd, JobAddress, QueueError,
        inspect::{JobFile, LaneCounts, Running, Summary},
    },
};
use serde_json::{Value, json};

use super::{WENT_BY_EXITS, failure, open, output, plain, resume};
use crate::{
    exit::{Exit, Failure, written},
    table::{self, aligned},
    words,
};

/// Everything that is shown, read at about one moment.
struct Shown<'a> {
    job: &'a JobAddress,
    summary: Summary,
    pauses: Pauses,
    limits: Vec<Limits>,
    lanes: Lanes,
    exits: Vec<ExitRow>,
    now: Timestamp,
}

/// The scopes that were kept as closed.
struct Pauses {
    rows: Vec<Pause>,
    /// What is believed of the limits of scopes, closed or not.
    beliefs: Vec<Believed>,
    /// There are more, or more were not looked at.
    more: bool,
}

struct Believed {
    scope: String,
    belief: Belief,
    rate: Option<f32>,
}

struct Pause {
    scope: String,
    cause: &'static str,
    /// None: until its credentials change.
    until: Option<Timestamp>,
    told: Option<Timestamp>,
    rate: Option<f32>,
    /// What is added to told times since they were too short (P5).
    pad: Option<Duration>,
    incidents: u32,
}

/// Whose the limits of an origin are, where evidence says so (L6).
struct Limits {
    origin: String,
    whose: Whose,
}

/// The lanes with the most items.
struct Lanes {
    rows: Vec<LaneCounts>,
    others: u64,
    /// There are lanes that were not looked at.
    more: bool,
}

pub(super) fn run(job: &JobAddress, as_json: bool) -> Result<Exit, Failure> {
    let file = open(job)?;
    let now = now();
    let read = || -> Result<Shown<'_>, QueueError> {
        let (summary, lanes) = (file.summary()?, lanes(&file)?);
        let (pauses, limits) = gates(&file, now)?;
        Ok(Shown { job, summary, pauses, limits, lanes, exits: file.exits()?, now })
    };
    let shown = read().map_err(|e| failure(job, &e))?;
    let text = if as_json { format!("{:#}\n", shown.json()) } else { shown.text() };
    written(io::stdout().write_all(text.as_bytes()))
}

fn gates(file: &JobFile, now: Timestamp) -> Result<(Pauses, Vec<Limits>), QueueError> {
    let (mut pauses, mut limits) =
        (Pauses { rows: Vec::new(), beliefs: Vec::new(), more: false }, Vec::new());
    let (mut after, mut seen) = (String::new(), 0);
    loop {
        let page = file.gates(&after, GATES_PAGE)?;
        let last = page.len() < GATES_PAGE;
        seen += page.len();
        if let Some(gate) = page.last() {
            after.clone_from(&gate.key);
        }
        let room = BELIEFS.saturating_sub(pauses.beliefs.len());
        pauses
            .beliefs
            .extend(page.iter().filter_map(|kept| believed(&kept.key, &kept.record, now)).take(room));
        for kept in page {
            if let Some(origin) = EvidenceRecord::origin(&kept.key) {
                limits.extend(self::limits(origin, &kept.record, now).filter(|_| limits.len() < LIMITS));
            } else if kept.until.is_none() {
                // An open gate has no end of a pause.
            } else if pauses.rows.len() == PAUSES {
                pauses.more = true;
            } else {
                pauses.rows.push(pause(kept.key, &kept.record, kept.until, now));
            }
        }
        if last || seen >= GATES {
            pauses.more |= !last;
            return Ok((pauses, limits));
        }
    }
}

fn limits(origin: &str, record: &[u8], now: Timestamp) -> Option<Limits> {
    match EvidenceRecord::decode(record, now) {
        Ok(tallies) => {
            let whose = Evidence::restore(tallies).whose()?;
            Some(Limits { origin: origin.to_owned(), whose })
        }
        Err(error) => {
            tracing::info!(origin, %error, "kept evidence");
            None
        }
    }
}

fn pause(key: String, record: &[u8], until: Option<Timestamp>, now: Timestamp) -> Pause {
    // Only moments and numbers are wanted, and no policy changes those.
    match GateRecord::decode(record, &ScopePolicy::default(), now) {
        Ok(gate) => {
            let kept = gate.snapshot();
            let told = Some(kept.told_until).filter(|at| *at > Timestamp::ZERO && *at <= kept.paused_until);
            Pause {
                scope: key,
                cause: kept.cause.as_str(),
                until: Some(kept.paused_until).filter(|at| *at != Timestamp::MAX),
                told: told.filter(|at| *at != Timestamp::MAX),
                rate: kept.rate,
                pad: (kept.pad_ms > 0).then(|| Duration::from_millis(u64::from(kept.pad_ms))),
                incidents: kept.incidents,
            }
        }
        // Of a later version, say. Until when it is closed stands beside it.
        Err(error) => {
            tracing::info!(scope = key, %error, "a kept gate");
            Pause { scope: key, cause: "unreadable", until, told: None, rate: None, pad: None, incidents: 0 }
        }
    }
}

fn believed(key: &str, record: &[u8], now: Timestamp) -> Option<Believed> {
    let gate = GateRecord::decode(record, &ScopePolicy::default(), now).ok()?;
    let belief = gate.belief().filter(|belief| belief.evidence.incidents > 0 || belief.evidence.stated)?;
    Some(Believed { scope: key.to_owned(), belief, rate: gate.learned_rate() })
}

fn lanes(file: &JobFile) -> Result<Lanes, QueueError> {
    let mut lanes = Lanes { rows: Vec::new(), others: 0, more: false };
    let (mut after, mut seen) = (None, 0);
    loop {
        let page = file.lanes(after, LANES_PAGE)?;
        let last = page.len() < LANES_PAGE;
        after = page.last().map(|lane| lane.id);
        seen += page.len();
        lanes.rows.extend(page);
        lanes.rows.sort_by_key(|lane| std::cmp::Reverse(items(lane)));
        lanes.rows.truncate(LANES_SHOWN);
        if last || seen >= LANES {
            lanes.others = (seen - lanes.rows.len()) as u64;
            lanes.more = !last;
            return Ok(lanes);
        }
    }
}

fn items(lane: &LaneCounts) -> u64 {
    lane.pending + lane.parked + lane.done + lane.failed
}

impl Shown<'_> {
    fn text(&self) -> String {
        let s = &self.summary;
        let c = &s.counts;
        let by = match s.running {
            Running::No => "no process runs it".to_owned(),
            Running::By(Some(pid)) => format!("process {pid} runs it"),
            Running::By(None) if self.job.file().is_none() => "several processes run it".to_owned(),
            Running::By(None) => "a process runs it".to_owned(),
        };
        let runs = if s.runs == 1 { "1 run".to_owned() } else { format!("{} runs", s.runs) };
        let mut text = format!(
            "job     {}, made {} by forbear {}; {runs}, {by}\n",
            self.job,
            words::moment(Timestamp::from_secs(s.created.as_micros() / 1_000_000)),
            plain(&s.made_by)
        );
        text += &format!("input   {}\n", self.input());
        text += &match s.output.as_str() {
            "-" => "output  standard output\n\n".to_owned(),
            _ => format!("output  {}\n\n", plain(&output(self.job, s).to_string_lossy())),
        };
        let states = [
            ("pending", c.pending),
            ("parked", c.parked),
            ("leased", c.leased),
            ("done", c.done),
            ("failed", c.failed),
            ("unknown", c.unknown),
            ("in all", c.imported),
        ];
        let rows = states.map(|(word, n)| vec![word.to_owned(), n.to_string()]);
        text += &aligned(&rows);
        let mut parts = vec![self.waits()];
        if !self.pauses.rows.is_empty() {
            parts.push(self.pauses_table());
        }
        parts.push(self.beliefs());
        if !self.limits.is_empty() {
            parts.push(self.limits_lines());
        }
        if !self.lanes.rows.is_empty() {
            parts.push(self.lanes_table());
        }
        if !self.exits.is_empty() {
            parts.push(self.exits_table());
        }
        if s.running == Running::No && (c.open() > 0 || c.input == InputEnd::More) {
            let note = if self.exits.is_empty() { String::new() } else { format!("{WENT_BY_EXITS}\n") };
            parts.push(format!("go on with: {}\n{note}", resume(self.job, s)));
        }
        for part in parts.iter().filter(|part| !part.is_empty()) {
            text += &format!("\n{part}");
        }
        text
    }

    fn input(&self) -> String {
        let s = &self.summary;
        let line = s.position.line;
        let whole = s.counts.input == InputEnd::Reached;
        let Some(input) = &s.input else {
            return if line == 0 { "none yet".to_owned() } else { format!("read to line {line}") };
        };
        let name = if input.path == "-" { "standard input" } else { &input.path };
        let share = match (whole, input.size) {
            (true, _) => format!("read to its end, {line} lines"),
            (false, 0) => format!("read to line {line}, not to its end"),
            (false, size) => {
                let share = s.position.offset as f64 / size as f64 * 100.0;
                format!("read to line {line}, {:.1} % of it", share.min(100.0))
            }
        };
        format!("{}, {share}", plain(name))
    }

    /// What parked items wait for, in words.
    fn waits(&self) -> String {
        let s = &self.summary;
        let mut text = String::new();
        if let Some(due) = s.next_due {
            let wait = due.since(self.now);
            text += &if wait.is_zero() {
                format!("the first parked item has been due since {}\n", words::moment(due))
            } else {
                format!(
                    "the first parked item is due at {}, in {}\n",
                    words::moment(due),
                    words::wait(whole(wait))
                )
            };
        }
        if s.next_run > 0 {
            text += &format!("{} parked until the next run\n", s.next_run);
        }
        for (account, n) in &s.accounts {
            text += &format!("{n} parked until account {} has other credentials\n", plain(account));
        }
        text
    }

    fn pauses_table(&self) -> String {
        let mut rows = vec![
            ["paused scope", "cause", "until", "told until", "pace", "pad", "incidents"]
                .map(str::to_owned)
                .to_vec(),
        ];
        rows.extend(self.pauses.rows.iter().map(|pause| {
            let until = match pause.until {
                None => "its credentials change".to_owned(),
                Some(at) if at <= self.now => "over: a probe is next".to_owned(),
                Some(at) => words::moment(at),
            };
            vec![
                plain(&pause.scope).into_owned(),
                pause.cause.to_owned(),
                until,
                pause.told.map_or_else(|| "-".to_owned(), words::moment),
                pause.rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.1}/s")),
                pause.pad.map_or_else(|| "-".to_owned(), |pad| format!("{} ms", pad.as_millis())),
                pause.incidents.to_string(),
            ]
        }));
        let mut text = aligned(&rows);
        if self.pauses.more {
            text += "and more\n";
        }
        text
    }

    /// What is believed of limits, a line a scope.
    fn beliefs(&self) -> String {
        let line = |it: &Believed| {
            let pace =
                it.rate.map_or(String::new(), |rate| format!("; pace {}", words::pace(f64::from(rate))));
            format!("{} believed: {}{pace}\n", plain(&it.scope), words::belief(&it.belief))
        };
        self.pauses.beliefs.iter().map(line).collect()
    }

    fn limits_lines(&self) -> String {
        let line = |limits: &Limits| {
            let since = words::moment(limits.whose.since);
            format!("{}: {}, since {since}\n", plain(&limits.origin), by_evidence(&limits.whose))
        };
        self.limits.iter().map(line).collect()
    }

    fn lanes_table(&self) -> String {
        let mut rows = vec![["host", "pending", "parked", "done", "failed"].map(str::to_owned).to_vec()];
        rows.extend(self.lanes.rows.iter().map(|lane| {
            let mut row = vec![plain(&lane_name(&lane.key)).into_owned()];
            row.extend([lane.pending, lane.parked, lane.done, lane.failed].map(|n| n.to_string()));
            row
        }));
        let mut text = aligned(&rows);
        let others = self.lanes.others;
        match (others, self.lanes.more) {
            (0, false) => {}
            (1, false) => text += "and 1 more host\n",
            (n, false) => text += &format!("and {n} more hosts\n"),
            (_, true) => text += &format!("of the first {LANES} hosts; there are more\n"),
        }
        text
    }

    fn exits_table(&self) -> String {
        let rows = self.exits.iter().map(|exit| {
            let (name, state) = (plain(&exit.name).into_owned(), plain(&exit.state).into_owned());
            ExitRow { name, state, ..exit.clone() }
        });
        table::exits(rows.collect())
    }

    fn json(&self) -> Value {
        let s = &self.summary;
        let c = &s.counts;
        let (running, pid) = match s.running {
            Running::No => (false, None),
            Running::By(pid) => (true, pid),
        };
        let input = s.input.as_ref().map(|input| {
            json!({
                "path": input.path,
                "size": input.size,
                "read_bytes": s.position.offset,
                "read_lines": s.position.line,
                "complete": c.input == InputEnd::Reached,
            })
        });
        json!({
            "job": self.job.to_string(),
            "running": running,
            "pid": pid,
            "runs": s.runs,
            "created": rfc3339(s.created),
            "made_by": s.made_by,
            "input": input,
            "output": output(self.job, s).to_string_lossy(),
            "items": c.imported,
            "counts": {
                "pending": c.pending, "parked": c.parked, "leased": c.leased,
                "done": c.done, "failed": c.failed, "unknown": c.unknown,
            },
            "next_due": s.next_due.map(due),
            "parked_until_next_run": s.next_run,
            "parked_for_credentials":
                s.accounts.iter().map(|(account, n)| json!({"account": account, "items": n})).collect::<Vec<_>>(),
            "paused": self.pauses.rows.iter().map(|pause| json!({
                "scope": pause.scope,
                "cause": pause.cause,
                "until": pause.until.map(due),
                "told_until": pause.told.map(due),
                "pace_per_s": pause.rate,
                "learned_pad_s": pause.pad.map(|pad| pad.as_secs_f64()),
                "incidents": pause.incidents,
            })).collect::<Vec<_>>(),
            "believed": self.pauses.beliefs.iter().map(|it| {
                let mut belief = belief_json(&it.belief, &rfc3339(it.belief.evidence.since));
                belief["scope"] = json!(it.scope);
                belief["pace_per_s"] = json!(it.rate.map(|rate| thousandths(f64::from(rate))));
                belief
            }).collect::<Vec<_>>(),
            "limits": self.limits.iter().map(|limits| json!({
                "origin": limits.origin,
                "by": limits.whose.part.as_str(),
                "served_elsewhere": limits.whose.served_elsewhere,
                "refused_here": limits.whose.refused_here,
                "refused_elsewhere": limits.whose.refused_elsewhere,
                "since": rfc3339(limits.whose.since),
            })).collect::<Vec<_>>(),
            "hosts": self.lanes.rows.iter().map(|lane| {
                let parts = LaneParts::parse(&lane.key);
                json!({
                    "host": parts.origin, "account": parts.account, "endpoint": parts.endpoint,
                    "pending": lane.pending, "parked": lane.parked, "done": lane.done, "failed": lane.failed,
                })
            }).collect::<Vec<_>>(),
            "exits": self.exits.iter().map(|exit| json!({
                "exit": exit.name, "state": exit.state,
                "requests": exit.requests, "done": exit.done, "refused": exit.refused,
                "blocked": exit.blocked, "faults": exit.faults, "bytes": exit.bytes,
                "cost": exit.cost.map(|cost| (cost * 1e6).round() / 1e6),
            })).collect::<Vec<_>>(),
            "resume": resume(self.job, s),
        })
    }
}

/// What is believed of a limit, and why.
pub(crate) fn belief_json(belief: &Belief, since: &str) -> Value {
    json!({
        "kind": belief.kind.map(Kind::as_str),
        "confidence": thousandths(belief.confidence),
        "rate_per_s": thousandths(belief.rate),
        "number": (belief.number > 0.0).then_some(belief.number),
        "window_s": belief.window.map(|window| thousandths(window.as_secs_f64())),
        "incidents": belief.evidence.incidents,
        "explained": belief.evidence.explained,
        "refused": belief.evidence.refused,
        "accepted": belief.evidence.accepted,
        "stated": belief.evidence.stated,
        "since": since,
    })
}

/// `http://h`, with account and endpoint where they are counted apart.
fn lane_name(key: &str) -> String {
    let parts = LaneParts::parse(key);
    let mut name = parts.origin.to_owned();
    for (word, part) in [("account", parts.account), ("endpoint", parts.endpoint)] {
        if let Some(part) = part {
            name += &format!(" {word}={part}");
        }
    }
    name
}

/// A deadline: rounded up, for nothing starts before it (T2).
pub(crate) fn due(at: Timestamp) -> String {
    rfc3339(at.plus(Duration::from_micros(999)))
}

fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn whole(wait: Duration) -> Duration {
    Duration::from_secs(wait.as_secs() + u64::from(wait.subsec_nanos() > 0))
}

fn now() -> Timestamp {
    Timestamp::ZERO.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Paused scopes that are shown.
const PAUSES: usize = 20;
/// Scopes of which it is said what is believed.
const BELIEFS: usize = 20;
/// Origins whose limits are shown.
const LIMITS: usize = 20;
/// Gates and lanes that are looked at: more would not be instant.
const GATES: usize = 50_000;
const GATES_PAGE: usize = 1000;
const LANES: usize = 200_000;
const LANES_PAGE: usize = 1000;
const LANES_SHOWN: usize = 20;
