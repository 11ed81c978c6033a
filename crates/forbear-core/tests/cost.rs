//! Weighted cost through the gate: estimates, corrections, and a server's budgets of requests and of cost (C1, H4).

use std::{sync::Arc, time::Duration};

use forbear_core::{
    attempt::{self, Ask, Decision, Finding, Grant},
    cost,
    gate::{Cause, Gate},
    hint::{self, Reading, Response},
    outcome::{ExitFault, Outcome, Processed, Refusal, of_response},
    pace::RateList,
    policy::{BoundScope, ScopePolicy},
    scope::{Combination, Role, ScopeKey},
    time::Timestamp,
};
use http::{HeaderMap, HeaderName, HeaderValue};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// One scope and its gate, driven as the engine drives it.
struct World {
    gates: Vec<Gate>,
    scopes: Vec<BoundScope>,
    now: Timestamp,
}

impl World {
    fn new(rates: &[&str]) -> World {
        let policy = |rate: &&str| ScopePolicy {
            rates: rate.parse::<RateList>().map(Into::into).unwrap_or_default(),
            learn: false,
            concurrency_start: 64,
            jitter: 0.0,
            ..ScopePolicy::default()
        };
        let scopes: Vec<BoundScope> = rates
            .iter()
            .map(|rate| BoundScope {
                key: ScopeKey::run(),
                by: Some(Combination::ORIGIN),
                role: Role::Planned,
                policy: Arc::new(policy(rate)),
            })
            .collect();
        let gates = scopes.iter().map(|scope| Gate::new(&scope.policy)).collect();
        World { gates, scopes, now: Timestamp::from_secs(1_795_957_200) }
    }

    fn ask(&mut self, cost: u32) -> Decision {
        attempt::acquire(&mut self.gates, &self.scopes, Ask { cost, first: true }, self.now)
    }

    /// Starts at the earliest; how long it waited.
    fn start(&mut self, cost: u32) -> (Grant, Duration) {
        let began = self.now;
        loop {
            match self.ask(cost) {
                Decision::Admit(grant) => return (grant, self.now.since(began)),
                Decision::Wait { until, .. } => self.now = until,
                Decision::Full { .. } => panic!("nothing comes back meanwhile"),
            }
        }
    }

    /// The answer comes, with the real cost where it tells one.
    fn answer(&mut self, grant: &Grant, status: u16, headers: &[(&str, &str)], told: Option<u32>) {
        let reading = reading(status, headers);
        let outcome = of_response(status, &reading, false);
        if let Some(real) = cost::real(&outcome, told) {
            attempt::correct_cost(&mut self.gates, &self.scopes, grant, real, self.now);
        }
        let finding = Finding {
            outcome: &outcome,
            reading: Some(&reading),
            item: 1,
            roll: 0.0,
            exit: None,
            narrowed: None,
        };
        let _ = attempt::report(&mut self.gates, &self.scopes, grant, &finding, self.now);
    }
}

fn reading(status: u16, fields: &[(&str, &str)]) -> Reading {
    let mut headers = HeaderMap::new();
    for (name, value) in fields {
        let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
        headers.append(name, HeaderValue::from_str(value).unwrap());
    }
    hint::read(&Response { status, headers: &headers, body: None }, None, Timestamp::from_secs(1_795_957_200))
}

/// A minute's budgets as several services of language models tell them.
fn told<'a>(requests: &'a str, tokens: &'a str, reset: &'a str) -> [(&'static str, &'a str); 6] {
    [
        ("x-ratelimit-limit-requests", "60"),
        ("x-ratelimit-remaining-requests", requests),
        ("x-ratelimit-reset-requests", reset),
        ("x-ratelimit-limit-tokens", "10000"),
        ("x-ratelimit-remaining-tokens", tokens),
        ("x-ratelimit-reset-tokens", reset),
    ]
}

#[test]
fn h4_a_response_tells_of_requests_and_of_tokens() {
    for (requests, tokens, main_of_cost, left, beside) in [
        ("59", "300", true, 300.0, 59.0),
        ("2", "9000", false, 2.0, 9000.0),
        ("0", "9000", false, 0.0, 9000.0),
        ("59", "0", true, 0.0, 59.0),
    ] {
        let reading = reading(200, &told(requests, tokens, "20s"));
        let (main, other) = (reading.budget.unwrap(), reading.beside.unwrap());
        assert_eq!((main.of_cost, main.remaining, other.remaining), (main_of_cost, Some(left), Some(beside)));
        assert_eq!((other.of_cost, other.reset_after), (!main_of_cost, Some(20 * S)), "{requests} {tokens}");
    }
    let one = reading(200, &told("5", "9000", "20s")[..3]);
    assert_eq!((one.budget.unwrap().of_cost, one.beside), (false, None));
}

#[test]
fn h4_what_a_request_would_cost_is_more_than_is_left_so_it_waits_for_the_reset() {
    let mut world = World::new(&["none"]);
    let (first, _) = world.start(700);
    world.answer(&first, 200, &told("59", "300", "20s"), Some(700));
    let Decision::Wait { until, cause, .. } = world.ask(1000) else {
        panic!("300 are left, and 1000 asked for")
    };
    assert_eq!((until.since(world.now), cause), (20 * S + 50 * MS, Cause::Budget));
    // A cheaper one goes, and takes its part.
    let (cheap, waited) = world.start(200);
    assert_eq!(waited, Duration::ZERO);
    assert!(matches!(world.ask(150), Decision::Full { .. }), "its answer will say what is left");
    world.answer(&cheap, 200, &told("58", "100", "19s"), None);
    assert!(matches!(world.ask(150), Decision::Wait { .. }));
    assert!(matches!(world.ask(100), Decision::Admit(_)));
    world.now = until;
    assert!(matches!(world.ask(1000), Decision::Admit(_)), "the budget is a new one");
}

#[test]
fn h4_answers_that_overtake_each_other_tell_of_no_more_cost_than_is_left() {
    let mut world = World::new(&["none"]);
    let grants: Vec<Grant> = (0..3).map(|_| world.start(1000).0).collect();
    for (grant, left) in grants.iter().zip(["7000", "9000", "8000"]) {
        world.answer(grant, 200, &told("50", left, "30s"), None);
    }
    // The last came back alone: its word is taken as it is, and it says that no more than 8000 are left.
    assert!(matches!(world.ask(8001), Decision::Wait { .. }));
    let grants: Vec<Grant> = (0..2).map(|_| world.start(1000).0).collect();
    world.answer(&grants[0], 200, &told("50", "9500", "30s"), None);
    assert!(matches!(world.ask(6001), Decision::Full { .. }), "with another on the wire it only falls");
}

#[test]
fn h4_a_spent_budget_of_tokens_closes_the_scope() {
    let mut world = World::new(&["none"]);
    let (first, _) = world.start(700);
    world.answer(&first, 200, &told("59", "0", "20s"), None);
    let Decision::Wait { until, cause, .. } = world.ask(1) else { panic!("nothing is left") };
    assert_eq!((until.since(world.now), cause), (20 * S + 50 * MS, Cause::Budget));
}

#[test]
fn c1_several_budgets_of_several_scopes_are_tested_all_then_taken_all() {
    let mut world = World::new(&["20/s requests", "1000/s tokens burst 500, 100/min requests burst 50"]);
    assert_eq!(world.start(500).1, Duration::ZERO);
    let before = world.gates.clone();
    let Decision::Wait { scope, .. } = world.ask(500) else { panic!("the tokens are used up") };
    assert_eq!(scope, 1, "the tokens wait for longer than the requests");
    assert_eq!(world.gates, before, "what is not let pass takes nothing (S1)");
    assert_eq!(
        world.start(1).1,
        Duration::from_secs_f64(50.0 / 1000.0),
        "the other way round for a cheap one"
    );
}

#[test]
fn c1_a_real_cost_delays_the_next_start_or_lets_it_come_sooner() {
    // A burst of 100 of 1000 a second: 1 s / 901 a unit.
    let wait_after = |told: Option<u32>, status: u16| {
        let mut world = World::new(&["1000/s tokens burst 100"]);
        let (grant, _) = world.start(100);
        world.answer(&grant, status, &[], told);
        world.start(100).1.as_millis()
    };
    assert_eq!(wait_after(None, 200), 110, "the estimate stays");
    assert_eq!(wait_after(Some(150), 200), 169, "and the schedule reckons with 150 from now on");
    assert_eq!(wait_after(Some(20), 200), 22);
    assert_eq!(wait_after(Some(0), 200), 0, "and never more than the burst");
    assert_eq!(wait_after(None, 404), 110, "it was served, as far as anybody knows");
}

#[test]
fn c1_what_was_refused_or_not_taken_counts_as_one() {
    let refusal =
        Refusal { wait: None, from: None, named: None, kind: hint::Kind::RateLimit, may_retry: true };
    let exit = |processed| Outcome::Exit { fault: ExitFault::Broken, processed };
    let fault = |processed| Outcome::Fault { processed, passing: true };
    for (outcome, untold) in [
        (Outcome::Refused(refusal), Some(1)),
        (Outcome::NotTaken, Some(1)),
        (exit(Processed::No), Some(1)),
        (fault(Processed::No), Some(1)),
        (exit(Processed::Unknown), None),
        (fault(Processed::Unknown), None),
        (Outcome::Success, None),
        (Outcome::Rejected, None),
        (Outcome::Overloaded, None),
    ] {
        assert_eq!(cost::real(&outcome, None), untold, "{outcome:?}");
        assert_eq!(cost::real(&outcome, Some(77)), Some(77), "what is told is so: {outcome:?}");
    }
}

#[test]
fn c1_no_number_of_a_server_becomes_another_cost() {
    for (number, factor, cost) in [
        (0.0, 1.0, Some(0)),
        (17.0, 1.0, Some(17)),
        (17.2, 1.0, Some(18)),
        (17.0, 0.5, Some(9)),
        (4_294_967_295.0, 1.0, Some(u32::MAX)),
        (4_294_967_296.0, 1.0, None),
        (1e300, 1.0, None),
        (1e300, 1e300, None),
        (f64::INFINITY, 1.0, None),
        (-1.0, 1.0, None),
        (f64::NEG_INFINITY, 1.0, None),
        (f64::NAN, 1.0, None),
        (0.0, f64::INFINITY, None),
    ] {
        assert_eq!(cost::told(number, factor).ok(), cost, "{number} x {factor}");
    }
}

#[test]
fn c1_what_is_too_large_for_a_scope_is_found_before_it_waits() {
    let world = World::new(&["20/s requests", "1000/min tokens"]);
    assert!(attempt::never(&world.scopes, 1000).is_none());
    let (_, rate) = attempt::never(&world.scopes, 1001).unwrap();
    assert_eq!(rate.to_string(), "1000/min");
}

/// A server that counts by a sliding log, in virtual time: nothing it would refuse is sent, and it is used to 95 %.
#[test]
fn c1_two_budgets_are_kept_and_the_tighter_one_is_used() {
    for (requests, tokens, burst, tighter_is_tokens) in
        [(600u32, 60_000u32, 1600u32, true), (60, 600_000, 1600, false)]
    {
        let rate = format!("{requests}/min requests, {tokens}/min tokens burst {burst}");
        let mut world = World::new(&[&rate]);
        let first = world.now;
        let (mut log, mut seed) = (Vec::new(), 7u32);
        while world.now.since(first) < 600 * S {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (estimate, real) = (1500, 500 + (seed >> 22)); // 500 to 1523, and 1500 estimated
            let (grant, _) = world.start(estimate);
            log.push((world.now, real));
            world.now = world.now.plus(30 * MS);
            world.answer(&grant, 200, &[], Some(real));
        }
        let (mut most_requests, mut most_tokens) = (0, 0);
        for (i, (from, _)) in log.iter().enumerate() {
            let within = log[i..].iter().take_while(|(at, _)| at.since(*from) < 60 * S);
            most_requests = most_requests.max(within.clone().count());
            most_tokens = most_tokens.max(within.map(|(_, real)| *real).sum());
        }
        // One estimate fell short of its real cost by 23 at most: that much is known too late.
        assert!(
            most_requests <= requests as usize && most_tokens <= tokens + 23,
            "{most_requests} {most_tokens}"
        );
        let minutes = world.now.since(first).as_secs_f64() / 60.0;
        let sum: f64 = log.iter().map(|(_, real)| f64::from(*real)).sum();
        let used = match tighter_is_tokens {
            true => sum / minutes / f64::from(tokens),
            false => log.len() as f64 / minutes / f64::from(requests),
        };
        assert!(used >= 0.95, "{used:.3} of {rate}");
    }
}
