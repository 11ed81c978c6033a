//! A fleet learns a limit that nobody tells, as one process does (L5).

use std::time::Duration;

use forbear_core::policy::ScopePolicy;
use forbear_sim::{Gated, Latency, Scenario, TrueKind, Truth, Work};
use forbear_zoo::Tide;

use super::{
    MS, Ran,
    plan::{Plan, Trouble},
    play,
    together::plan,
};

const S: Duration = Duration::from_secs(1);
const LASTS: Duration = Duration::from_secs(600);

struct Case {
    spec: &'static str,
    kind: TrueKind,
    rate: f64,
}

const CASES: [Case; 3] = [
    Case { spec: "token-bucket:rate=20/s,burst=10", kind: TrueKind::Bucket, rate: 20.0 },
    Case { spec: "fixed-window:limit=100/10s", kind: TrueKind::Fixed, rate: 10.0 },
    Case { spec: "sliding-log:limit=100/10s", kind: TrueKind::Sliding, rate: 10.0 },
];

/// What came of a run: what was used of the limit after the first quarter, and in the whole, and the share that was refused.
#[derive(Clone, Copy, Debug)]
#[allow(dead_code, reason = "printed")]
struct Came {
    late: f64,
    whole: f64,
    refused: f64,
    late_refused: f64,
    shares: (usize, usize),
}

fn fleet(case: &Case, members: usize, seed: u64, troubles: Vec<(Duration, Trouble)>) -> Ran {
    let workers = workers(members);
    let pages = (case.rate * 700.0) as u32 + 1000;
    let round_trip = round_trip(seed);
    play(&Plan { troubles, lasts: LASTS, seed, round_trip, ..plan(case.spec, members, workers, pages) })
        .unwrap()
}

fn came(case: &Case, ran: &Ran, members: usize) -> Came {
    let quarter = LASTS / 4;
    let used = |from: Duration, until: Duration| {
        let (starts, refused) = (ran.starts(from, until), ran.refused(from, until));
        (starts - refused) as f64 / (case.rate * (until - from).as_secs_f64())
    };
    let share = |from: Duration| ran.refused(from, LASTS) as f64 / ran.starts(from, LASTS).max(1) as f64;
    let mut shares = vec![0; members];
    ran.log.iter().for_each(|(_, member)| shares[*member] += 1);
    Came {
        late: used(quarter, LASTS),
        whole: used(Duration::ZERO, LASTS),
        refused: share(Duration::ZERO),
        late_refused: share(quarter),
        shares: (*shares.iter().min().unwrap(), *shares.iter().max().unwrap()),
    }
}

fn workers(members: usize) -> u32 {
    if members > 6 { 2 } else { 4 }
}

fn round_trip(seed: u64) -> Duration {
    (10 + 5 * (seed as u32 % 11)) * MS
}

/// One process with its learner at hand, before the same limiter.
fn alone(case: &Case, workers: u32, seed: u64) -> (f64, f64) {
    let scenario = Scenario {
        spec: case.spec.parse().unwrap(),
        truth: Truth { kind: case.kind, rate: case.rate, number: 0.0, window: None, tide: Tide::default() },
        nodes: 1,
        others: 0.0,
        latency: Latency { round_trip: round_trip(seed), service: 40 * MS, spread: 0.0 },
        workers,
        work: Work::Endless,
        run_for: LASTS,
        crashes: Vec::new(),
        seed,
    };
    let report = forbear_sim::run(&scenario, &mut Gated::new(ScopePolicy::default(), workers)).unwrap();
    (report.late.used(), report.whole.refused_share())
}

/// Plays a case and prints what it came to; beside it what one process comes to.
fn compare(case: &Case, members: usize, seed: u64) -> (Came, f64) {
    let (one, one_refused) = alone(case, workers(members) * members as u32, seed);
    let ran = fleet(case, members, seed, Vec::new());
    let came = came(case, &ran, members);
    let trips = ran.round_trips as f64 / ran.log.len() as f64;
    eprintln!(
        "{} {members} members, seed {seed}: {came:?}, {trips:.1} trips a start; one process: {one:.3}, {one_refused:.4}",
        case.spec
    );
    (came, one)
}

fn holds(case: &Case, members: usize, seed: u64) {
    let (came, one) = compare(case, members, seed);
    // What one process does not reach in ten minutes, a fleet does not either.
    assert!(came.late >= (one - 0.05).min(0.95), "{came:?}, and one process {one}");
    assert!(came.refused <= 0.01, "{came:?}");
    assert!(came.shares.1 <= 2 * came.shares.0, "{came:?}");
}

#[test]
fn l5_a_fleet_learns_a_hidden_bucket() {
    holds(&CASES[0], 4, 7);
}

#[test]
fn l5_a_fleet_learns_a_hidden_window() {
    holds(&CASES[1], 12, 8);
}

#[test]
fn l5_a_fleet_learns_a_hidden_window_that_slides() {
    holds(&CASES[2], 4, 8);
}

/// In a campaign every case, and the figures of each.
#[test]
fn l5_campaign_fleets_learn_hidden_limits() {
    let Some(rounds) = super::number("FORBEAR_ROUNDS") else { return };
    for case in &CASES {
        for members in [4, 12] {
            let all: Vec<_> = (7..7 + rounds).map(|seed| compare(case, members, seed)).collect();
            let mean = |of: fn(&(Came, f64)) -> f64| all.iter().map(of).sum::<f64>() / rounds.max(1) as f64;
            let (fleet, one) = (mean(|(came, _)| came.late), mean(|(_, one)| *one));
            eprintln!("{} {members} members: {fleet:.3}, and one process {one:.3}, of the limit", case.spec);
            assert!(all.iter().all(|(came, _)| came.refused <= 0.01));
        }
    }
}

/// The one that learns is killed: the next one has its place when the lease is over, and goes on from what was kept.
#[test]
fn l5_another_learns_on_where_the_owner_was_killed() {
    let case = &CASES[0];
    let ran = fleet(case, 4, 7, vec![(300 * S, Trouble::KillTheOwner)]);
    let [(_, after)] = ran.took_over[..] else { panic!("{:?}", ran.took_over) };
    assert!(after <= OWNERS_LEASE + S, "{after:?}");
    let used = |from: Duration| (ran.starts(from, from + 60 * S) as f64) / (60.0 * case.rate);
    let (before, then) = (used(230 * S), used(305 * S));
    assert!(then >= 0.9 * before && before > 0.9, "{then} after {before}");
    assert!(came(case, &ran, 4).refused <= 0.01);
}

/// Without a sign of life its place is free after so long.
const OWNERS_LEASE: Duration = Duration::from_secs(2);
