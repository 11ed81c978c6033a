//! The gate against a model of two variables: until when it must be shut, and who probes.

use std::time::Duration;

use forbear_core::{
    gate::{Budget, Cause, Change, Check, Fence, Gate, Sent, Told},
    policy::ScopePolicy,
    time::Timestamp,
};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn exact() -> ScopePolicy {
    let pad = forbear_core::policy::Pad { factor: 1.0, fixed: Duration::ZERO };
    ScopePolicy { jitter: 0.0, pad, pace_start: f32::INFINITY, ..ScopePolicy::default() }
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_700_000_000)
}

/// A gate that has let `n` requests start at the same moment.
fn with_in_flight(policy: &ScopePolicy, n: u32, now: Timestamp) -> (Gate, Vec<Sent>) {
    let mut gate = Gate::new(&ScopePolicy { concurrency_start: n, ..policy.clone() });
    let sent = (0..n).map(|_| gate.take(policy, now, 1)).collect();
    (gate, sent)
}

/// What the gate's holder does after each step.
fn study(gate: &mut Gate, now: Timestamp) {
    if let Some(study) = gate.study() {
        gate.studied(study.run(), now);
    }
}

fn wait_of(gate: &Gate, policy: &ScopePolicy, now: Timestamp) -> Option<Duration> {
    match gate.check(policy, now, 1) {
        Check::Wait { until, .. } => Some(until.since(now)),
        _ => None,
    }
}

#[derive(Clone, Debug)]
enum Op {
    Wait(u64),
    Start,
    Succeed(usize),
    Refuse(usize, Option<u64>),
    NoAnswer(usize),
    Cancel(usize),
    Overload(usize),
    Budget(usize, u32, u64),
}

fn op() -> impl Strategy<Value = Op> {
    let who = 0usize..64;
    prop_oneof![
        4 => (0u64..40_000).prop_map(Op::Wait),
        6 => Just(Op::Start),
        3 => who.clone().prop_map(Op::Succeed),
        3 => (who.clone(), prop::option::of(0u64..200)).prop_map(|(i, w)| Op::Refuse(i, w)),
        1 => who.clone().prop_map(Op::NoAnswer),
        1 => who.clone().prop_map(Op::Cancel),
        1 => who.clone().prop_map(Op::Overload),
        1 => (who, 0u32..3, 1u64..100).prop_map(|(i, left, s)| Op::Budget(i, left, s)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// P1, P2, B1: nothing starts before the latest told deadline, one live probe at most, only its success opens, and
    /// whatever happens the gate lets something through again.
    #[test]
    fn p1_p2_b1_model(ops in prop::collection::vec(op(), 1..200)) {
        let policy = exact();
        let mut gate = Gate::new(&policy);
        let (mut now, mut wire) = (start(), Vec::<Sent>::new());
        let (mut must_wait, mut probe): (Timestamp, Option<(Fence, Timestamp)>) = (Timestamp::ZERO, None);
        for op in ops {
            let mut take_off = |i: usize| if wire.is_empty() { None } else { Some(wire.swap_remove(i % wire.len())) };
            match op {
                Op::Wait(ms) => now = now.plus(MS * ms as u32),
                Op::Start => match gate.check(&policy, now, 1) {
                    check @ (Check::Admit | Check::Probe) => {
                        prop_assert!(now >= must_wait, "started {:?} early", must_wait.since(now));
                        let sent = gate.take(&policy, now, 1);
                        prop_assert_eq!(sent.fence.is_probe(), check == Check::Probe);
                        if check == Check::Probe {
                            prop_assert!(probe.is_none_or(|(_, until)| until <= now), "two live probes");
                            probe = Some((sent.fence, now.plus(policy.probe_lease)));
                        }
                        wire.push(sent);
                    }
                    Check::Wait { until, .. } => prop_assert!(until > now, "a wait for the past"),
                    Check::Full => prop_assert!(!wire.is_empty(), "full with nothing on the wire"),
                },
                Op::Succeed(i) => if let Some(sent) = take_off(i) {
                    let change = gate.succeeded(&policy, sent, now);
                    let holder = probe.is_some_and(|(fence, _)| fence == sent.fence);
                    prop_assert!(change != Change::Reopened || holder, "opened by somebody else");
                    if holder { probe = None; }
                },
                Op::Refuse(i, told) => if let Some(sent) = take_off(i) {
                    let wait = told.map(Duration::from_secs);
                    let _ = gate.refused(&policy, sent, Told { wait, ..Told::nothing() }, now, 0.5);
                    must_wait = must_wait.max(now.plus(wait.unwrap_or_default()));
                    if probe.is_some_and(|(fence, _)| fence == sent.fence) { probe = None; }
                },
                Op::NoAnswer(i) | Op::Cancel(i) | Op::Overload(i) => if let Some(sent) = take_off(i) {
                    let _ = match op {
                        Op::NoAnswer(_) => gate.unanswered(&policy, sent, now),
                        Op::Cancel(_) => gate.give_back(sent),
                        _ => gate.overloaded(&policy, sent, now, 0.5),
                    };
                    if probe.is_some_and(|(fence, _)| fence == sent.fence) { probe = None; }
                },
                Op::Budget(i, left, s) => if let Some(sent) = take_off(i) {
                    let closes = left == 0 && sent.at > Timestamp::ZERO;
                    let _ = gate.succeeded(&policy, sent, now);
                    let budget = Budget { left: Some(left), resets_in: Some(S * s as u32), ..Budget::default() };
                    let change = gate.budget(&policy, sent, budget, now, 0.0);
                    if closes && change != Change::None { must_wait = must_wait.max(now.plus(S * s as u32)); }
                    if probe.is_some_and(|(fence, _)| fence == sent.fence) { probe = None; }
                },
            }
            prop_assert_eq!(gate.in_flight() as usize, wire.len());
            prop_assert!(gate.pause_at(now).is_none_or(|(until, _)| until >= must_wait.min(until)));
        }
        // Liveness: with everything back, asking at each told moment gets somebody through.
        for sent in wire.drain(..) { let _ = gate.give_back(sent); }
        for _ in 0..8 {
            match gate.check(&policy, now, 1) {
                Check::Wait { until, .. } => now = until,
                Check::Admit | Check::Probe => return Ok(()),
                Check::Full => prop_assert!(false, "full with nothing on the wire"),
            }
        }
        prop_assert!(false, "never lets anything through again");
    }
}

#[test]
fn p3_burst_in_flight_is_one_incident() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 30, t);
    let at = t.plus(50 * MS);
    let changes: Vec<Change> =
        sent.iter().map(|s| gate.refused(&policy, *s, Told::nothing(), at, 0.9)).collect();
    assert_eq!(changes.iter().filter(|c| **c == Change::Closed { incident: true }).count(), 1);
    assert_eq!(gate.incidents(), 1);
    assert_eq!(wait_of(&gate, &policy, at), Some(S), "the level is still the first");
}

#[test]
fn p3_a_straggler_extends_but_neither_raises_nor_ends_the_ramp() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 3, t);
    let _ = gate.refused(&policy, sent[0], Told::wait(2 * S), t.plus(MS), 0.0);
    let probe_at = t.plus(3 * S);
    let probe = gate.take(&policy, probe_at, 1);
    assert_eq!(gate.succeeded(&policy, probe, probe_at.plus(MS)), Change::Reopened);
    let rate = gate.learned_rate();
    assert_eq!(gate.refused(&policy, sent[1], Told::nothing(), probe_at.plus(2 * MS), 0.0), Change::None);
    assert_eq!(gate.state(probe_at.plus(3 * MS)), "ramping");
    let late = probe_at.plus(4 * MS);
    assert_eq!(
        gate.refused(&policy, sent[2], Told::wait(5 * S), late, 0.0),
        Change::Closed { incident: false }
    );
    assert_eq!((gate.incidents(), wait_of(&gate, &policy, late)), (1, Some(5 * S)));
    let probe = gate.take(&policy, late.plus(5 * S), 1);
    assert_eq!(gate.succeeded(&policy, probe, late.plus(6 * S)), Change::Reopened);
    assert_eq!(gate.learned_rate(), rate, "the way back goes on where it was");
}

#[test]
fn p1_pad_and_jitter_only_add() {
    let policy = ScopePolicy { jitter: 0.5, ..ScopePolicy::default() };
    for roll in [0.0, 0.5, 0.999] {
        let (mut gate, sent) = with_in_flight(&policy, 1, start());
        let _ = gate.refused(&policy, sent[0], Told::wait(10 * S), start(), roll);
        let wait = wait_of(&gate, &policy, start()).unwrap();
        assert!(wait >= 10 * S + policy.pad.fixed && wait <= 15 * S + policy.pad.fixed, "{wait:?}");
    }
}

#[test]
fn p2_a_shorter_hint_or_a_late_success_shortens_nothing() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 4, t);
    let _ = gate.refused(&policy, sent[0], Told::wait(20 * S), t, 0.0);
    let _ = gate.refused(&policy, sent[1], Told::wait(S), t, 0.0);
    let _ = gate.succeeded(&policy, sent[2], t.plus(S));
    let _ = gate.refused(&policy, sent[3], Told::wait(Duration::ZERO), t.plus(S), 0.0);
    assert_eq!(wait_of(&gate, &policy, t.plus(S)), Some(19 * S));
    let kept = gate.snapshot();
    let back = Gate::restore(&policy, &kept, t.plus(2 * S));
    assert_eq!(wait_of(&back, &policy, t.plus(2 * S)), Some(18 * S), "nor does a restart");
}

#[test]
fn p4_no_usable_hint_backs_off_and_is_forgiven() {
    let (policy, mut now) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let mut waits = Vec::new();
    for _ in 0..5 {
        let (Check::Admit | Check::Probe) = gate.check(&policy, now, 1) else { panic!("shut at {now:?}") };
        let sent = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, sent, Told::wait(Duration::ZERO), now, 0.999);
        let wait = wait_of(&gate, &policy, now).unwrap();
        waits.push(wait.as_secs_f64().round());
        now = now.plus(wait);
    }
    assert_eq!(waits, [1.0, 2.0, 4.0, 8.0, 16.0]);
    let probe = gate.take(&policy, now, 1);
    let _ = gate.succeeded(&policy, probe, now);
    now = now.plus(700 * S);
    let sent = gate.take(&policy, now, 1);
    let _ = gate.refused(&policy, sent, Told::nothing(), now, 0.999);
    assert_eq!(wait_of(&gate, &policy, now), Some(S));
}

#[test]
fn b3_refused_probes_raise_the_cap_up_to_pause_cap() {
    let (policy, mut now) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let mut longest = Duration::ZERO;
    for _ in 0..20 {
        let sent = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, sent, Told::nothing(), now, 0.999);
        let wait = wait_of(&gate, &policy, now).unwrap();
        longest = longest.max(wait);
        now = now.plus(wait);
    }
    assert!(longest > 4 * policy.backoff.cap() && longest <= policy.pause_cap, "{longest:?}");
}

#[test]
fn p7_one_other_item_tests_a_wait_over_the_cap_once() {
    let (policy, t) = (exact(), start());
    let long = Told { wait: Some(3000 * S), may_be_one_items: true, ..Told::nothing() };
    for admitted in [true, false] {
        let (mut gate, sent) = with_in_flight(&policy, 1, t);
        let _ = gate.refused(&policy, sent[0], long, t, 0.5);
        assert_eq!(wait_of(&gate, &policy, t), Some(S), "not before P4's own pause");
        let now = t.plus(S);
        assert_eq!(gate.check(&policy, now, 1), Check::Probe);
        let probe = gate.take(&policy, now, 1);
        if admitted {
            assert_eq!(gate.succeeded(&policy, probe, now), Change::Reopened);
            assert_eq!(gate.pause_at(now), None, "the limit was that item's");
        } else {
            let _ = gate.refused(&policy, probe, long, now, 0.5);
            let left = wait_of(&gate, &policy, now).unwrap();
            assert!(left >= 2999 * S, "shut for the full time, and no second test: {left:?}");
        }
    }
}

#[test]
fn p7_is_not_for_budgets_quotas_and_named_scopes() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 1, t);
    let _ = gate.refused(&policy, sent[0], Told::wait(3000 * S), t, 0.5);
    assert_eq!(wait_of(&gate, &policy, t), Some(3000 * S));
    let (mut gate, sent) = with_in_flight(&policy, 1, t);
    let _ = gate.succeeded(&policy, sent[0], t);
    let _ = gate.budget(
        &policy,
        sent[0],
        Budget { left: Some(0), resets_in: Some(3000 * S), ..Budget::default() },
        t,
        0.0,
    );
    assert_eq!(wait_of(&gate, &policy, t), Some(3000 * S));
}

#[test]
fn h4_an_empty_budget_closes_before_anything_is_refused() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 1, t);
    let _ = gate.succeeded(&policy, sent[0], t.plus(MS));
    let budget = Budget { left: Some(0), resets_in: Some(7 * S), rate: Some(2.0), ..Budget::default() };
    let change = gate.budget(&policy, sent[0], budget, t.plus(MS), 0.0);
    assert_eq!(change, Change::Closed { incident: false });
    assert_eq!(wait_of(&gate, &policy, t.plus(MS)), Some(7 * S));
    assert_eq!(gate.incidents(), 0);
    let probe_at = t.plus(8 * S);
    let probe = gate.take(&policy, probe_at, 1);
    let _ = gate.succeeded(&policy, probe, probe_at);
    let rate = gate.learned_rate().unwrap();
    assert!((1.8..2.0).contains(&rate), "slots at just under the stated pace: {rate}");
}

#[test]
fn l1_what_is_left_of_a_budget_bounds_what_is_sent() {
    let policy = exact();
    let mut gate = Gate::new(&ScopePolicy { concurrency_start: 64, ..policy.clone() });
    let t = start();
    let first = gate.take(&policy, t, 1);
    let _ = gate.succeeded(&policy, first, t);
    let _ = gate.budget(
        &policy,
        first,
        Budget { left: Some(5), resets_in: Some(60 * S), ..Budget::default() },
        t,
        0.0,
    );
    let mut started = 0;
    while gate.check(&policy, t.plus(MS), 1) == Check::Admit {
        let _ = gate.take(&policy, t.plus(MS), 1);
        started += 1;
    }
    assert_eq!(started, 5);
    assert_eq!(gate.check(&policy, t.plus(MS), 1), Check::Full, "the answers will say what is left");
}

#[test]
fn h4_answers_that_overtake_each_other_tell_no_more_than_the_last_one_written() {
    let policy = exact();
    let mut gate = Gate::new(&ScopePolicy { concurrency_start: 64, ..policy.clone() });
    let t = start();
    let sent: Vec<Sent> = (0..4).map(|_| gate.take(&policy, t, 1)).collect();
    for (sent, left) in sent.into_iter().zip([6, 8, 7, 9]) {
        let now = t.plus(MS);
        let _ = gate.succeeded(&policy, sent, now);
        let told = Budget { left: Some(left), resets_in: Some(60 * S), ..Budget::default() };
        let _ = gate.budget(&policy, sent, told, now, 0.0);
    }
    let mut started = 0;
    while gate.check(&policy, t.plus(2 * MS), 1) == Check::Admit {
        let _ = gate.take(&policy, t.plus(2 * MS), 1);
        started += 1;
    }
    assert_eq!(started, 6);
}

#[test]
fn b1_a_probes_lease_ends_unless_renewed_and_a_late_answer_opens_nothing() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 1, t);
    let _ = gate.refused(&policy, sent[0], Told::wait(S), t, 0.0);
    let first = gate.take(&policy, t.plus(S), 1);
    assert_eq!(wait_of(&gate, &policy, t.plus(2 * S)), Some(14 * S));
    assert!(gate.renew(&policy, first.fence, t.plus(10 * S)));
    assert_eq!(wait_of(&gate, &policy, t.plus(20 * S)), Some(5 * S));
    // The cap is one at a time after a pause, and the first is still on the wire: the lost one gives its place back.
    let mut lost = gate.clone();
    let _ = lost.give_back(Sent { fence: Fence::NONE, ..first });
    assert_eq!(lost.check(&policy, t.plus(26 * S), 1), Check::Probe);
    let second = lost.take(&policy, t.plus(26 * S), 1);
    assert!(!lost.renew(&policy, first.fence, t.plus(26 * S)), "the lease is another's");
    assert_ne!(lost.succeeded(&policy, first, t.plus(27 * S)), Change::Reopened);
    assert_eq!(lost.succeeded(&policy, second, t.plus(27 * S)), Change::Reopened);
}

#[test]
fn b3_no_answer_is_no_reopening_and_the_next_probe_is_soon() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 1, t);
    let _ = gate.refused(&policy, sent[0], Told::wait(S), t, 0.0);
    let probe = gate.take(&policy, t.plus(S), 1);
    assert_eq!(gate.unanswered(&policy, probe, t.plus(2 * S)), Change::ProbeFree);
    assert_eq!(wait_of(&gate, &policy, t.plus(2 * S)), Some(S));
    assert_eq!(gate.check(&policy, t.plus(3 * S), 1), Check::Probe);
}

#[test]
fn b4_no_two_starts_of_a_reopened_scope_share_a_moment() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 8, t);
    for s in &sent {
        let _ = gate.refused(&policy, *s, Told::wait(2 * S), t.plus(MS), 0.0);
    }
    let mut now = t.plus(3 * S);
    let mut starts = Vec::new();
    study(&mut gate, now);
    while starts.len() < 20 {
        match gate.check(&policy, now, 1) {
            Check::Admit | Check::Probe => {
                let s = gate.take(&policy, now, 1);
                starts.push(now);
                let _ = gate.succeeded(&policy, s, now.plus(MS));
                study(&mut gate, now.plus(MS));
            }
            Check::Wait { until, .. } => now = until,
            Check::Full => now = now.plus(MS),
        }
    }
    let gaps: Vec<Duration> = starts.windows(2).map(|w| w[1].since(w[0])).collect();
    assert!(gaps.iter().all(|gap| *gap > MS), "{gaps:?}");
    assert!(gaps[0] >= 400 * MS && gaps[18] < gaps[0], "it starts small and grows");
}

#[test]
fn b4_holds_where_the_pace_is_only_configured() {
    let policy = ScopePolicy { learn: false, ..exact() };
    let mut gate = Gate::new(&policy);
    let mut now = start();
    for _ in 0..100 {
        let s = gate.take(&policy, now, 1);
        now = now.plus(20 * MS);
        let _ = gate.succeeded(&policy, s, now);
    }
    let s = gate.take(&policy, now, 1);
    let _ = gate.refused(&policy, s, Told::wait(2 * S), now, 0.0);
    now = now.plus(2 * S);
    let probe = gate.take(&policy, now, 1);
    let _ = gate.succeeded(&policy, probe, now);
    assert!(matches!(gate.check(&policy, now, 1), Check::Wait { .. }), "slots, not a herd");
    now = now.plus(12 * S);
    let _ = gate.take(&policy, now, 1);
    assert_eq!(gate.learned_rate(), None, "and back to the configured rate alone");
}

#[test]
fn p7_a_limit_of_one_item_leaves_the_scope_as_it_was() {
    let (policy, t) = (exact(), start());
    let long = Told { wait: Some(3000 * S), may_be_one_items: true, ..Told::nothing() };
    let (mut gate, sent) = with_in_flight(&policy, 2, t);
    let _ = gate.succeeded(&policy, sent[1], t);
    let _ = gate.refused(&policy, sent[0], long, t, 0.5);
    let probe = gate.take(&policy, t.plus(S), 1);
    let _ = gate.succeeded(&policy, probe, t.plus(S));
    assert_eq!((gate.state(t.plus(S)), gate.learned_rate()), ("open", None));
}

#[test]
fn b4_overload_comes_back_from_a_tenth() {
    let (policy, t) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let mut now = t;
    for _ in 0..200 {
        let s = gate.take(&policy, now, 1);
        now = now.plus(10 * MS);
        let _ = gate.succeeded(&policy, s, now);
    }
    let s = gate.take(&policy, now, 1);
    let _ = gate.refused(&policy, s, Told { overload: true, ..Told::nothing() }, now, 0.0);
    now = now.plus(2 * S);
    let probe = gate.take(&policy, now, 1);
    let _ = gate.succeeded(&policy, probe, now);
    let rate = gate.learned_rate().unwrap();
    assert!((8.0..12.0).contains(&rate), "a tenth of 100/s: {rate}");
    let (up, first) = (now.plus(10 * S), wait_of(&gate, &policy, now).unwrap());
    assert!(first < 100 * MS, "no longer than a tenth of the pace comes to: {first:?}");
    let mut starts = 0;
    while let Some(wait) = wait_of(&gate, &policy, now)
        && now < up
    {
        now = now.plus(wait);
        let s = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, s, now);
        starts += 1;
    }
    assert!((500..600).contains(&starts), "55 % of 100/s over 10 s: {starts}");
    now = now.plus(5 * S);
    let _ = gate.take(&policy, now, 1);
    let rate = gate.learned_rate().expect("still metered");
    assert!((99.0..150.0).contains(&rate), "all of it after 10 s, and on from there: {rate}");
    assert!(wait_of(&gate, &policy, now).is_some(), "what waited meanwhile does not start at once");
}

#[test]
fn b4_a_limiter_that_calls_itself_overload_is_not_met_ever_more_slowly() {
    // A bucket of 5 and 10 a second, refusing with a 503 that says nothing.
    let (policy, t) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let (mut now, mut level, mut at) = (t, 0.0, t);
    let (mut done, mut refused) = (0, 0);
    while now < t.plus(300 * S) {
        match gate.check(&policy, now, 1) {
            Check::Wait { until, .. } => now = until,
            Check::Full => unreachable!("nothing is on the wire"),
            Check::Admit | Check::Probe => {
                let sent = gate.take(&policy, now, 1);
                now = now.plus(10 * MS);
                level = (level - 10.0 * now.since(at).as_secs_f64()).max(0.0);
                at = now;
                if level > 5.0 {
                    refused += 1;
                    let told = Told { overload: true, ..Told::nothing() };
                    let _ = gate.refused(&policy, sent, told, now, 0.5);
                } else {
                    level += 1.0;
                    done += 1;
                    let _ = gate.succeeded(&policy, sent, now);
                }
            }
        }
    }
    assert!(done > 1800, "of 3000 that it would let through: {done}, {refused} refused");
    assert!(refused <= 30, "{done} done, {refused} refused");
}

#[test]
fn l1_each_refusal_without_a_hint_makes_the_pace_slower() {
    let (policy, mut now) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let mut rates = Vec::new();
    for _ in 0..6 {
        let s = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, s, Told::nothing(), now, 0.0);
        now = now.plus(wait_of(&gate, &policy, now).unwrap());
        let probe = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, probe, now);
        study(&mut gate, now);
        rates.push(gate.learned_rate().unwrap());
        now = now.plus(wait_of(&gate, &policy, now).unwrap());
    }
    assert!((1.9..2.1).contains(&rates[0]), "next to nothing was accepted: {rates:?}");
    assert!(rates.windows(2).all(|w| w[1] < 0.7 * w[0]), "{rates:?}");
}

#[test]
fn b4_a_job_starts_small_and_doubles_until_nothing_holds_it() {
    let policy = ScopePolicy { concurrency_start: 64, ..exact() };
    let policy = ScopePolicy { pace_start: 8.0, ..policy };
    let (mut gate, mut now) = (Gate::new(&policy), start());
    let (mut starts, mut ten) = (0, Duration::ZERO);
    while gate.learned_rate().is_some() {
        match gate.check(&policy, now, 1) {
            Check::Wait { until, cause } => {
                assert_eq!(cause, Cause::Pace);
                now = until;
            }
            _ => {
                let s = gate.take(&policy, now, 1);
                let _ = gate.succeeded(&policy, s, now.plus(2 * MS));
                starts += 1;
                if starts == 10 {
                    ten = now.since(start());
                }
            }
        }
        assert!(now < start().plus(5 * S), "{starts} starts, {:?} a second", gate.learned_rate());
    }
    assert!(ten < 800 * MS, "ten pages: {ten:?}");
    assert!(now.since(start()) < 1500 * MS, "at full speed after {:?}, {starts} starts", now.since(start()));
}

#[test]
fn c1_a_configured_rate_is_a_ceiling_and_no_start_is_ramped() {
    let rates = "10/s".parse::<forbear_core::pace::RateList>().unwrap().into();
    let policy = ScopePolicy { rates, pace_start: 8.0, ..exact() };
    let (mut gate, mut now) = (Gate::new(&policy), start());
    let mut until = |gate: &mut Gate, n: u32| {
        let begun = now;
        for _ in 0..n {
            if let Some(wait) = wait_of(gate, &policy, now) {
                now = now.plus(wait);
            }
            let s = gate.take(&policy, now, 1);
            let _ = gate.succeeded(&policy, s, now.plus(MS));
        }
        now.since(begun)
    };
    assert_eq!(until(&mut gate, 51), 5 * S, "ten a second from the first on");
    assert_eq!(gate.learned_rate(), None);
    let refused_once = |gate: &mut Gate, now: Timestamp, told: Duration| {
        let s = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, s, Told::wait(told), now, 0.0);
        let now = now.plus(told);
        let probe = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, probe, now);
        study(gate, now);
        now
    };
    let _ = until(&mut gate, 1);
    now = refused_once(&mut gate, now, 4 * S);
    assert_eq!(
        gate.learned_rate(),
        Some(10.0),
        "once is no reason to know better than whoever configured it"
    );
    for _ in 0..50 {
        if let Some(wait) = wait_of(&gate, &policy, now) {
            now = now.plus(wait);
        }
        let s = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, s, now.plus(MS));
    }
    assert!(gate.learned_rate().is_some_and(|rate| rate <= 10.0), "a ceiling: {:?}", gate.learned_rate());
    now = refused_once(&mut gate, now, S);
    let rate = gate.learned_rate().unwrap();
    assert!((5.0..9.5).contains(&rate), "below the ceiling, by what was let through: {rate}");
    let mut gate = Gate::new(&policy);
    let s = gate.take(&policy, now, 1);
    let _ = gate.succeeded(&policy, s, now);
    let _ = refused_once(&mut gate, now.plus(S), 90 * S);
    assert!(gate.learned_rate().unwrap() < 5.0, "after a long pause it is not tried again as it is");
}

#[test]
fn l1_a_scope_has_a_learner_once_it_needs_one() {
    let policy = ScopePolicy { pace_start: 8.0, ..exact() };
    let (mut gate, mut now) = (Gate::new(&policy), start());
    for n in 0..40 {
        assert_eq!(gate.belief().is_some(), n > 32, "after {n} pages");
        now = now.plus(S);
        let s = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, s, now.plus(MS));
    }
    gate.rest(now.plus(30 * S));
    assert!(gate.belief().is_some(), "it is in use");
    let rate = gate.learned_rate();
    gate.rest(now.plus(90 * S));
    assert!(gate.belief().is_none(), "nobody uses it");
    assert_eq!(gate.learned_rate(), rate, "the pace stays");
}

#[test]
fn x1_the_circuit_is_a_pause_and_its_end_a_probe() {
    let (policy, mut now) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let mut tripped = None;
    for i in 0..40 {
        let s = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, s, Told::nothing(), now, 0.0);
        if gate.state(now) == "tripped" {
            tripped = Some(i + 1);
            break;
        }
        now = now.plus(wait_of(&gate, &policy, now).unwrap());
    }
    assert_eq!(tripped, Some(25));
    assert_eq!(wait_of(&gate, &policy, now), Some(600 * S));
    assert_eq!(gate.check(&policy, now.plus(600 * S), 1), Check::Probe);
}

#[test]
fn v3_retries_after_faults_have_a_budget() {
    let (policy, t) = (exact(), start());
    let mut gate = Gate::new(&policy);
    let _ = gate.take_retry(t);
    let granted = (0..1000).filter(|_| gate.take_retry(t)).count();
    assert!(granted <= 100, "a floor, not a flood: {granted}");
    (0..50).for_each(|_| gate.first_try());
    let paid = (0..1000).filter(|_| gate.take_retry(t)).count();
    assert!((9..=10).contains(&paid), "a fifth of the first tries: {paid}");
}

#[test]
fn credentials_refused_for_two_items_stop_the_account() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 4, t);
    assert_eq!(gate.unauthorised(&policy, sent[0], 1, t), Change::None);
    assert_eq!(gate.unauthorised(&policy, sent[1], 1, t), Change::None, "the same item again");
    let _ = gate.succeeded(&policy, sent[2], t);
    let s = gate.take(&policy, t.plus(S), 1);
    assert_eq!(gate.unauthorised(&policy, s, 2, t.plus(S)), Change::None, "a success was between");
    assert_eq!(gate.unauthorised(&policy, sent[3], 3, t.plus(S)), Change::Closed { incident: true });
    assert_eq!(gate.pause_at(t.plus(2 * S)), Some((Timestamp::MAX, Cause::Credentials)));
}

#[test]
fn blocked_pages_are_the_pages_until_there_are_five_in_a_row() {
    let (policy, t) = (exact(), start());
    let (mut gate, sent) = with_in_flight(&policy, 6, t);
    for (i, s) in sent[..5].iter().enumerate() {
        let change = gate.blocked(&policy, *s, false, t, 0.0);
        assert_eq!(change != Change::None, i == 4, "{i}");
    }
    assert_eq!(wait_of(&gate, &policy, t), Some(300 * S));
    let (mut gate, sent) = with_in_flight(&policy, 1, t);
    assert_ne!(gate.blocked(&policy, sent[0], true, t, 0.0), Change::None, "a challenge is about us");
}

/// A hundred thousand a second, and then a limit: nothing that is looked for is beyond what was seen.
#[test]
fn l4_a_limit_met_at_a_great_pace_is_looked_for() {
    let policy = ScopePolicy {
        pace_start: f32::INFINITY,
        concurrency_start: 60_000,
        concurrency_max: 60_000,
        ..ScopePolicy::default()
    };
    let (mut gate, mut now) = (Gate::new(&policy), Timestamp::from_secs(1_700_000_000));
    let soon = Duration::from_millis(1);
    for _ in 0..300_000 {
        now = now.plus(Duration::from_micros(10));
        let sent = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, sent, now.plus(soon));
    }
    for _ in 0..4 {
        let sent = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, sent, Told::wait(Duration::from_secs(1)), now.plus(soon), 0.5);
        now = now.plus(Duration::from_secs(3));
        let sent = gate.take(&policy, now, 1);
        let _ = gate.succeeded(&policy, sent, now.plus(soon));
        study(&mut gate, now.plus(2 * soon));
        assert!(gate.learned_rate().is_some_and(f32::is_finite));
    }
}
