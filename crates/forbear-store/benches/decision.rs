//! What one decision costs, beside `governor`'s keyed limiter in the same run; one line of JSON for each figure.
//!
//! Both look a key up among the same number of keys. `governor` is asked for one cell; forbear is asked for a permit and
//! told the outcome, which is two steps on the gate. Rounds take turns, and the median of each is compared.

use std::{
    hint::black_box,
    num::NonZeroU32,
    sync::{Arc, Barrier},
    thread,
    time::{Duration, Instant},
};

use forbear_core::{
    attempt::{self, Ask, Decision, Finding},
    outcome::Outcome,
    policy::{BoundScope, ScopePolicy},
    scope::ScopeKey,
};
use forbear_store::gate::MemoryGates;
use governor::{Quota, RateLimiter};

const ROUNDS: usize = 15;
const KEYS: usize = 1_000;
const MILLION: usize = 1_000_000;

fn main() {
    // `cargo test --benches` runs it too: once through, quickly.
    let quick = !std::env::args().any(|arg| arg == "--bench");
    let ops: u32 = if quick { 1_000 } else { 500_000 };
    let rounds = if quick { 3 } else { ROUNDS };

    // A scope that nothing paces, as every one is once it has shown that nothing needs to.
    let policy = ScopePolicy { concurrency_start: 64, pace_start: f32::INFINITY, ..ScopePolicy::default() };
    let policy = Arc::new(policy);
    let scopes: Vec<BoundScope> = (0..KEYS).map(|i| scope(&policy, i)).collect();
    let gates = Arc::new(MemoryGates::default());
    scopes.iter().for_each(|scope| permit_and_report(&gates, std::slice::from_ref(scope)));
    let one = std::slice::from_ref(&scopes[KEYS / 2]);

    let quota = Quota::per_second(NonZeroU32::MAX).allow_burst(NonZeroU32::MAX);
    let limiter = RateLimiter::keyed(quota);
    let names: Vec<String> = scopes.iter().map(|scope| scope.key.to_string()).collect();
    names.iter().for_each(|name| drop(limiter.check_key(name)));

    let (mut ours, mut theirs, mut two, mut apart) = (vec![], vec![], vec![], vec![]);
    for _ in 0..rounds {
        theirs.push(per_op(ops, || drop(black_box(limiter.check_key(&names[KEYS / 2])))));
        ours.push(per_op(ops, || permit_and_report(&gates, one)));
        two.push(two_threads(&gates, one, one, ops));
        apart.push(two_threads(&gates, one, std::slice::from_ref(&scopes[1]), ops));
    }
    // Each round is a pair: what slows the machine down slows both.
    let ratio = |a: &[f64], b: &[f64]| median(&sorted(a.iter().zip(b).map(|(a, b)| a / b).collect()));
    let (beside, one_scope, two_scopes) = (ratio(&ours, &theirs), ratio(&ours, &two), ratio(&ours, &apart));
    let (ours, theirs) = (sorted(ours), sorted(theirs));
    figure(
        "governor check_key, one key",
        format!("{:.0} ns", median(&theirs)),
        spread(&theirs),
        "peer",
        true,
    );
    figure("permit and report, one scope", format!("{:.0} ns", median(&ours)), spread(&ours), "", true);
    figure("the same beside governor", format!("{beside:.2}x"), String::new(), "at most 3x", beside <= 3.0);
    // Two threads together, in operations a second, beside one alone.
    for (what, times, figures) in [("one scope", one_scope, two), ("two scopes", two_scopes, apart)] {
        let what = format!("two threads on {what}, total beside one thread");
        figure(&what, format!("{times:.2}x"), spread(&sorted(figures)), "at least 1x", times >= 0.97);
    }

    let count = if quick { 10_000 } else { MILLION };
    million(&policy, count);
}

fn scope(policy: &Arc<ScopePolicy>, i: usize) -> BoundScope {
    let key = ScopeKey::from_text(&format!("https://host-{i}.example"));
    let by = Some(forbear_core::scope::Combination::ORIGIN);
    BoundScope { key, by, role: forbear_core::scope::Role::Planned, policy: policy.clone() }
}

fn permit_and_report(gates: &MemoryGates, scopes: &[BoundScope]) {
    let decision = gates.with(scopes, |gates, now| attempt::acquire(gates, scopes, Ask::default(), now));
    let Ok(Decision::Admit(grant)) = decision else { return };
    let finding =
        Finding { outcome: &Outcome::Success, reading: None, item: 1, roll: 0.5, exit: None, narrowed: None };
    let news = gates.with(scopes, |gates, now| attempt::report(gates, scopes, &grant, &finding, now));
    let _ = black_box(news.is_ok());
}

/// Nanoseconds.
fn per_op(ops: u32, mut op: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..ops).for_each(|_| op());
    start.elapsed().as_nanos() as f64 / f64::from(ops)
}

/// Nanoseconds an operation of two threads together.
fn two_threads(gates: &Arc<MemoryGates>, a: &[BoundScope], b: &[BoundScope], ops: u32) -> f64 {
    let ready = Arc::new(Barrier::new(2));
    let threads: Vec<_> = [a, b]
        .map(|scopes| {
            let (gates, ready, scopes) = (gates.clone(), ready.clone(), scopes.to_vec());
            thread::spawn(move || {
                ready.wait();
                let start = Instant::now();
                (0..ops).for_each(|_| permit_and_report(&gates, &scopes));
                start.elapsed()
            })
        })
        .into();
    let longest = threads.into_iter().map(|t| t.join().unwrap_or(Duration::MAX)).max().unwrap_or_default();
    longest.as_nanos() as f64 / f64::from(2 * ops)
}

/// Memory of many scopes in use, and whether those that nobody uses go away.
fn million(policy: &Arc<ScopePolicy>, count: usize) {
    let scopes: Vec<BoundScope> = (0..count).map(|i| scope(policy, i)).collect();
    let gates = MemoryGates::default();
    let before = resident();
    for scope in &scopes {
        permit_and_report(&gates, std::slice::from_ref(scope));
    }
    let each = resident().saturating_sub(before) as f64 / count as f64;
    figure(
        &format!("memory of {count} scopes, each without its key's text"),
        format!("{each:.0} bytes"),
        String::new(),
        "at most 256",
        each <= 256.0,
    );
    let unused = MemoryGates::default();
    for scope in &scopes {
        let _ = unused.with(std::slice::from_ref(scope), |_, _| ());
    }
    unused.sweep();
    figure("idle scopes left after a sweep", unused.len().to_string(), String::new(), "0", unused.is_empty());
}

/// Bytes of memory in use, by the kernel's count.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}

fn sorted(mut figures: Vec<f64>) -> Vec<f64> {
    figures.sort_by(f64::total_cmp);
    figures
}

fn median(sorted: &[f64]) -> f64 {
    sorted[sorted.len() / 2]
}

fn spread(sorted: &[f64]) -> String {
    format!("{:.0} to {:.0} ns", sorted[0], sorted[sorted.len() - 1])
}

#[allow(clippy::print_stdout, reason = "the figures are what this program is for")]
fn figure(what: &str, value: String, spread: String, budget: &str, kept: bool) {
    let verdict = match (budget, kept) {
        ("" | "peer", _) => "",
        (_, true) => "kept",
        (_, false) => "missed",
    };
    println!(
        r#"{{"what":"{what}","value":"{value}","spread":"{spread}","budget":"{budget}","verdict":"{verdict}"}}"#
    );
}
