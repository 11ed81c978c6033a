//! Whose limit it is (L6): fleets with several accounts, endpoints and exits before limits that count by one of them, in
//! virtual time. What is believed in the end is set against what was true. Most of them are paced to one or two requests on the
//! wire, where nothing can be found out.
//!
//! `cargo test -p forbear-sim --test evidence -- --nocapture` prints the table.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    net::{IpAddr, Ipv4Addr},
    sync::Arc,
    time::Duration,
};

use forbear_core::{
    attempt::{self, Ask, Decision, Finding, Grant},
    evidence::{Evidence, Part, Who},
    gate::Gate,
    hint,
    outcome::{self, Outcome},
    policy::{BoundScope, ScopePolicy},
    scope::{Parts, Role, ScopeKey, ScopePlan},
    time::Timestamp,
};
use forbear_zoo::{Answer, Facts, Hint, Limiter, Origin, Rate, Scope, Spec, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue};

const EPOCH: u64 = 1_700_000_000;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn share(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn among(&mut self, from: u64, to: u64) -> u64 {
        from + self.next() % (to - from + 1)
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.among(0, all.len() as u64 - 1) as usize]
    }

    /// Evenly over the orders of magnitude.
    fn spread(&mut self, from: f64, to: f64) -> f64 {
        from * (to / from).powf(self.share())
    }
}

/// What is fetched, by whom and by which ways, and the limit before it.
struct World {
    truth: Option<Part>,
    /// Only the first value of the part has a limit.
    one_only: bool,
    origin: Origin,
    lanes: Vec<Lane>,
    exits: usize,
    workers: usize,
    latency: f64,
    dice: Dice,
    spec: String,
}

struct Lane {
    account: usize,
    endpoint: usize,
    left: u32,
    /// By exit.
    scopes: Vec<Arc<[BoundScope]>>,
}

fn limit(dice: &mut Dice, truth: Option<Part>) -> Spec {
    let count = dice.spread(5.0, 100.0) as u32;
    let window = Duration::from_secs(dice.one_of(&[1, 5, 10, 30, 60]));
    let rate = Rate::new((dice.spread(5.0, 100.0) * 10.0) as u32, Duration::from_secs(10)).unwrap();
    let spec = match dice.among(0, 4) {
        0 => Spec::token_bucket(rate, count),
        1 => Spec::gcra(rate, count),
        2 => Spec::fixed_window(count * 2, window),
        3 => Spec::sliding_log(count * 2, window),
        _ => Spec::sliding_counter(count * 2, window),
    };
    let spec = if dice.share() < 0.5 { spec.hint(Hint::Seconds) } else { spec };
    match truth {
        None => spec,
        Some(Part::Account) => spec.scope(Scope::Account),
        Some(Part::Endpoint) => spec.scope(Scope::Endpoint),
        Some(Part::Exit) => spec.scope(Scope::Client),
    }
}

fn world(seed: u64, truth: Option<Part>) -> World {
    let mut dice = Dice(seed);
    let spec = limit(&mut dice, truth);
    // What is limited has several values, and not all ask for as much: else nothing tells one from all.
    let mut several = |part: Part| match truth {
        Some(truth) if truth == part => dice.among(2, 4) as usize,
        _ => dice.among(1, 3) as usize,
    };
    let (accounts, endpoints) = (several(Part::Account), several(Part::Endpoint));
    let exits = if truth == Some(Part::Exit) { several(Part::Exit) } else { several(Part::Exit).min(2) };
    let policy = Arc::new(ScopePolicy { concurrency_max: 64, ..ScopePolicy::default() });
    let beside = Arc::new(ScopePolicy::clone(&policy).beside(Role::Planned));
    let mut lanes = Vec::new();
    for account in 0..accounts {
        for endpoint in 0..endpoints {
            let scopes = (0..exits).map(|exit| {
                let (account, endpoint) = (format!("a{account}"), format!("e{endpoint}"));
                let exit = (exits > 1).then(|| format!("http://p{exit}:1"));
                let parts = Parts {
                    origin: "http://h:80",
                    account: Some(&account),
                    endpoint: Some(&endpoint),
                    group: None,
                    exit: exit.as_deref(),
                };
                let scopes = ScopePlan::default().scopes(&parts).into_iter().enumerate().map(|(i, scope)| {
                    let policy = if i == 0 { policy.clone() } else { beside.clone() };
                    BoundScope { key: scope.key, by: scope.by, role: scope.role, policy }
                });
                scopes.collect()
            });
            let scopes = scopes.collect();
            lanes.push(Lane { account, endpoint, left: dice.spread(60.0, 800.0) as u32, scopes });
        }
    }
    let text = spec.to_string();
    let latency = dice.spread(0.05, 1.0);
    let workers = dice.one_of(&[8, 16, 32, 64]);
    World {
        truth,
        one_only: false,
        origin: spec.build(Duration::from_secs(EPOCH)),
        lanes,
        exits,
        workers,
        latency,
        dice,
        spec: text,
    }
}

struct Request {
    lane: usize,
    exit: usize,
    grant: Grant,
    answer: Option<Answer>,
}

/// What became of a run.
#[derive(Debug)]
struct Seen {
    narrowed: Option<Part>,
    /// Requests until the first narrowing.
    found_after: Option<u32>,
    flips: u32,
    sent: u32,
    refused: u32,
    /// First refusals of one value, since the last of which another was served: what can tell them apart.
    telling: u32,
}

fn head(answer: &Answer) -> HeaderMap {
    let fields = answer.headers.iter().filter_map(|(name, value)| {
        Some((HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_str(value).ok()?))
    });
    fields.collect()
}

impl World {
    /// Which value of what is limited a request has.
    fn value(&self, lane: &Lane, exit: usize) -> usize {
        match self.truth {
            Some(Part::Account) => lane.account,
            Some(Part::Endpoint) => lane.endpoint,
            Some(Part::Exit) => exit,
            None => 0,
        }
    }

    fn run(mut self) -> Seen {
        let start = Timestamp::from_secs(EPOCH);
        let mut evidence = Evidence::default();
        let mut gates: HashMap<ScopeKey, Gate> = HashMap::new();
        let mut events: BinaryHeap<Reverse<(Timestamp, u64)>> = BinaryHeap::new();
        let mut wire: HashMap<u64, Request> = HashMap::new();
        let (mut idle, mut turn, mut number, mut now) = (self.workers, 0, 0u64, start);
        let mut seen = Seen { narrowed: None, found_after: None, flips: 0, sent: 0, refused: 0, telling: 0 };
        // The values that were served since something was refused, as bits.
        let (mut closed, mut served_since) = (Timestamp::ZERO, 0u64);
        let end = start.plus(Duration::from_secs(1800));
        while now < end && seen.sent < 2500 {
            // Whoever is idle takes what may start, lanes in turn.
            let mut next: Option<Timestamp> = None;
            let mut tried = 0;
            while idle > 0 && tried < self.lanes.len() {
                turn = (turn + 1) % self.lanes.len();
                tried += 1;
                if self.lanes[turn].left == 0 {
                    continue;
                }
                let exit = self.dice.among(0, self.exits as u64 - 1) as usize;
                let scopes = self.lanes[turn].scopes[exit].clone();
                let mut held = take(&gates, &scopes);
                match attempt::acquire(&mut held, &scopes, Ask::default(), now) {
                    Decision::Admit(grant) => {
                        put(&mut gates, &scopes, held);
                        (idle, tried, number) = (idle - 1, 0, number + 1);
                        seen.sent += 1;
                        self.lanes[turn].left -= 1;
                        wire.insert(number, Request { lane: turn, exit, grant, answer: None });
                        let there = self.latency * (0.3 + 0.4 * self.dice.share());
                        events.push(Reverse((now.plus(Duration::from_secs_f64(there)), number)));
                    }
                    Decision::Wait { until, .. } => next = Some(next.map_or(until, |n| n.min(until))),
                    Decision::Full { .. } => {}
                }
            }
            if self.lanes.iter().all(|lane| lane.left == 0) && wire.is_empty() {
                break;
            }
            match (events.peek(), next) {
                (Some(Reverse((at, _))), Some(next)) if next < *at => {
                    now = next;
                    continue;
                }
                (None, Some(next)) => {
                    now = next;
                    continue;
                }
                (None, None) => panic!("nothing is due: {}", self.spec),
                _ => {}
            }
            let Reverse((when, id)) = events.pop().unwrap();
            now = when;
            let request = wire.get_mut(&id).unwrap();
            if request.answer.is_none() {
                let lane = &self.lanes[request.lane];
                let path = format!("/e{}/{id}", lane.endpoint);
                let client = IpAddr::V4(Ipv4Addr::new(10, 0, 0, request.exit as u8));
                let account = format!("Bearer {}", lane.account);
                let facts = Facts::get(&path).account(&account).client(client);
                let value = self.value(lane, request.exit);
                // Plans differ: what is limited for one is free for the others.
                let free = self.one_only && value > 0;
                request.answer =
                    Some(if free { Answer::ok() } else { self.origin.arrive(now.since(start), &facts) });
                let back = self.latency * (0.3 + 0.4 * self.dice.share());
                events.push(Reverse((now.plus(Duration::from_secs_f64(back)), id)));
                continue;
            }
            let Request { lane, exit, grant, answer } = wire.remove(&id).unwrap();
            idle += 1;
            let answer = answer.unwrap();
            let headers = head(&answer);
            let response = hint::Response { status: answer.status, headers: &headers, body: None };
            let reading = hint::read(&response, None, now);
            let outcome = outcome::of_response(answer.status, &reading, false);
            let value = self.value(&self.lanes[lane], exit);
            let scopes = self.lanes[lane].scopes[exit].clone();
            let who = Who::of(&scopes);
            let narrowed = evidence.narrowed();
            let finding = Finding {
                outcome: &outcome,
                reading: Some(&reading),
                item: id,
                roll: self.dice.share(),
                exit: None,
                narrowed,
            };
            let mut held = take(&gates, &scopes);
            let news = attempt::report(&mut held, &scopes, &grant, &finding, now);
            let until = held[news.scope].pause_at(now).map_or(now, |(until, _)| until);
            for gate in &mut held {
                if let Some(study) = gate.study() {
                    gate.studied(study.run(), now);
                }
            }
            put(&mut gates, &scopes, held);
            match outcome {
                Outcome::Refused(_) => {
                    assert!(answer.verdict == Verdict::Refused);
                    seen.refused += 1;
                    if grant.at() > closed {
                        seen.telling += u32::from(served_since & !(1 << value) != 0);
                        (closed, served_since) = (now, 0);
                    }
                    self.lanes[lane].left += 1;
                    evidence.refused(&who, grant.at(), narrowed, until, now);
                }
                _ => {
                    evidence.served(&who, grant.at(), now);
                    if grant.at() > closed {
                        served_since |= 1 << value;
                    }
                }
            }
            let narrowed = evidence.narrowed();
            if narrowed != seen.narrowed {
                seen.flips += 1;
                seen.narrowed = narrowed;
                if narrowed.is_some() && seen.found_after.is_none() {
                    seen.found_after = Some(seen.sent);
                }
            }
        }
        seen
    }
}

fn take(gates: &HashMap<ScopeKey, Gate>, scopes: &[BoundScope]) -> Vec<Gate> {
    scopes
        .iter()
        .map(|scope| gates.get(&scope.key).cloned().unwrap_or_else(|| Gate::new(&scope.policy)))
        .collect()
}

fn put(gates: &mut HashMap<ScopeKey, Gate>, scopes: &[BoundScope], held: Vec<Gate>) {
    gates.extend(scopes.iter().map(|scope| scope.key.clone()).zip(held));
}

const TRUTHS: [(&str, Option<Part>); 4] = [
    ("origin", None),
    ("account", Some(Part::Account)),
    ("endpoint", Some(Part::Endpoint)),
    ("exit", Some(Part::Exit)),
];
/// Worlds for each truth, in a round.
const WORLDS: u64 = 10;
/// First refusals that can tell one value from another, from which on there is evidence enough.
const ENOUGH: u32 = 6;

/// `./test --campaign l6_what N` plays N rounds.
#[test]
fn l6_what_is_found_is_right_in_95_of_100_worlds() {
    let rounds: u64 = std::env::var("FORBEAR_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut said = format!(
        "{:10}{:>8}{:>8}{:>8}{:>8}{:>10}{:>10}{:>14}{:>8}\n",
        "truth", "limits", "worlds", "found", "right", "enough", "of these", "requests p50", "flips"
    );
    let (mut found_all, mut right_all, mut enough_all, mut of_these_all) = (0, 0, 0, 0);
    for (name, truth) in TRUTHS {
        for one_only in [false, true] {
            if truth.is_none() && one_only {
                continue; // everyone is one
            }
            let (mut found, mut right, mut after, mut flips) = (0, 0, Vec::new(), 0);
            let (mut enough, mut of_these) = (0, 0);
            for n in 0..WORLDS * rounds {
                let seed = 0x5eed_0000 + n * 7919 + truth.map_or(0, |part| part as u64 + 1) * 104_729;
                let world = World { one_only, ..world(seed, truth) };
                let spec = world.spec.clone();
                let seen = world.run();
                flips += seen.flips;
                after.extend(seen.found_after);
                let is_found = u32::from(seen.narrowed.is_some());
                found += is_found;
                right += u32::from(seen.narrowed.is_some() && seen.narrowed == truth);
                if seen.telling >= ENOUGH {
                    (enough, of_these) = (enough + 1, of_these + is_found);
                }
                if seen.narrowed.is_some() && seen.narrowed != truth {
                    eprintln!("wrong: seed {seed:#x}, {name}, {spec}: {seen:?}");
                }
            }
            after.sort_unstable();
            let middle = after.get(after.len() / 2).map_or("-".to_owned(), u32::to_string);
            let (which, worlds) = (if one_only { "one" } else { "each" }, WORLDS * rounds);
            said += &format!(
                "{name:10}{which:>8}{worlds:8}{found:8}{right:8}{enough:10}{of_these:10}{middle:>14}{flips:8}\n"
            );
            (found_all, right_all) = (found_all + found, right_all + right);
            if one_only {
                (enough_all, of_these_all) = (enough_all + enough, of_these_all + of_these);
            }
        }
    }
    eprintln!("{said}");
    let share = f64::from(right_all) / f64::from(found_all.max(1));
    let known = f64::from(of_these_all) / f64::from(enough_all.max(1));
    eprintln!("right in {:.1} % of {found_all} findings", share * 100.0);
    eprintln!("of {enough_all} worlds with one limit and evidence enough {:.1} % are found", known * 100.0);
    assert!(share >= 0.95, "right in {share:.3} of {found_all}");
    assert!(known >= 0.7, "{of_these_all} of {enough_all}");
}
