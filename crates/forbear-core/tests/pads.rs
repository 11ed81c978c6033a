//! Pads that are learned (P5): servers whose told times are too short, in virtual time.

use std::time::Duration;

use forbear_core::{
    gate::{Budget, Check, Gate, State, Told},
    policy::{Pad, ScopePolicy},
    time::Timestamp,
};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);
/// From start to answer.
const LATENCY: Duration = Duration::from_millis(20);

/// How a server that is shut for `left` more tells it.
#[derive(Clone, Copy, Debug)]
enum Tells {
    /// Whole seconds, rounded down; zero says nothing.
    RoundsDown,
    /// So much too little, in milliseconds.
    Short(u64),
    /// Whole seconds, rounded up, but so much before the end.
    Early(u64),
    /// The truth.
    True,
}

impl Tells {
    fn wait(self, left: Duration) -> Option<Duration> {
        let wait = match self {
            Tells::RoundsDown => Duration::from_secs(left.as_secs()),
            Tells::Short(ms) => left.saturating_sub(MS * ms as u32),
            Tells::Early(ms) => {
                let left = left.saturating_sub(MS * ms as u32);
                Duration::from_secs(left.as_secs() + u64::from(left.subsec_nanos() > 0))
            }
            Tells::True => left,
        };
        (!wait.is_zero()).then_some(wait)
    }
}

/// A scope and its server through one incident: refused once, then probed until it opens. How many probes were refused.
struct World {
    policy: ScopePolicy,
    gate: Gate,
    now: Timestamp,
    roll: f64,
}

impl World {
    fn new(policy: ScopePolicy) -> World {
        World { gate: Gate::new(&policy), policy, now: Timestamp::from_secs(1_700_000_000), roll: 0.37 }
    }

    fn roll(&mut self) -> f64 {
        self.roll = (self.roll * 97.0 + 0.11).fract();
        self.roll
    }

    fn incident(&mut self, tells: Tells, shut: Duration) -> usize {
        // Quiet between the incidents, so that the backoff is forgiven and does not hide a pad; and no pace, so that the
        // probe does not wait for a slot instead.
        self.now = self.now.plus(400 * S);
        self.gate = Gate::from_state(&State { rate: None, ..self.gate.to_state() });
        let (mut refused, mut ends) = (0, None);
        loop {
            match self.gate.check(&self.policy, self.now, 1) {
                Check::Wait { until, .. } => self.now = until,
                Check::Full => panic!("nothing is on the wire"),
                Check::Admit | Check::Probe => {
                    let sent = self.gate.take(&self.policy, self.now, 1);
                    let arrives = self.now.plus(LATENCY / 2);
                    self.now = self.now.plus(LATENCY);
                    let end = *ends.get_or_insert(arrives.plus(shut));
                    if arrives >= end {
                        let _ = self.gate.succeeded(&self.policy, sent, self.now);
                        return refused;
                    }
                    refused += usize::from(sent.fence.is_probe());
                    let told = Told { wait: tells.wait(end.since(arrives)), ..Told::nothing() };
                    let roll = self.roll();
                    let _ = self.gate.refused(&self.policy, sent, told, self.now, roll);
                }
            }
        }
    }
}

#[test]
fn p5_a_probe_that_was_refused_right_after_the_told_time_makes_the_pad_longer() {
    for (tells, shut, at_most) in [
        (Tells::True, 10 * S, 0),
        (Tells::Short(300), 10 * S, 3), // the second told time is too short for the same reason, and zero
        (Tells::Short(30), 10 * S, 0),  // the policy's pad is enough
        (Tells::Short(700), 10 * S, 4),
        (Tells::Early(300), 2 * S + 200 * MS, 3),
        (Tells::Early(900), 3 * S + 800 * MS, 5),
        (Tells::RoundsDown, 2 * S + 300 * MS, 4),
        (Tells::RoundsDown, 30 * S + 950 * MS, 5),
        (Tells::RoundsDown, 3 * S, 0),
    ] {
        let mut world = World::new(ScopePolicy { jitter: 0.0, ..ScopePolicy::default() });
        let refused: Vec<usize> = (0..40).map(|_| world.incident(tells, shut)).collect();
        let incidents = refused.iter().filter(|n| **n > 0).count();
        assert!(incidents <= at_most, "{tells:?} {shut:?}: {refused:?}");
        assert!(refused[8..].iter().all(|n| *n == 0), "{tells:?} {shut:?}: it has learned: {refused:?}");
        let pad = world.gate.snapshot().pad_ms;
        assert_eq!(pad > 0, at_most > 0, "{tells:?} {shut:?}: {pad} ms");
    }
}

#[test]
fn p5_a_pad_shrinks_slowly_and_costs_next_to_nothing() {
    let mut world = World::new(ScopePolicy { jitter: 0.0, ..ScopePolicy::default() });
    let refused: usize = (0..2000).map(|_| world.incident(Tells::Short(300), 10 * S)).sum();
    assert!((1..=20).contains(&refused), "{refused} of 2000");
    // The server is mended: what is not needed any more goes away.
    let before = world.gate.snapshot().pad_ms;
    (0..2000).for_each(|_| assert_eq!(world.incident(Tells::True, 10 * S), 0));
    assert!(before >= 250 && world.gate.snapshot().pad_ms == 0, "{before} ms before");
}

#[test]
fn p5_a_longer_pad_of_the_policy_is_left_as_it_is() {
    let pad = Pad { factor: 1.25, fixed: Duration::ZERO };
    let mut world = World::new(ScopePolicy { pad, jitter: 0.0, ..ScopePolicy::default() });
    assert_eq!((0..40).map(|_| world.incident(Tells::Short(900), 10 * S)).sum::<usize>(), 0);
    assert_eq!(world.gate.snapshot().pad_ms, 0, "a quarter was enough");
}

#[test]
fn p5_a_server_that_is_merely_wrong_makes_no_long_pad() {
    // Told a second, again and again, for a minute: that is what the backoff is for.
    let mut world = World::new(ScopePolicy::default());
    let refused: Vec<usize> = (0..20)
        .map(|_| {
            let mut tells = 0;
            for _ in 0..3 {
                tells += world.incident(Tells::Short(59_000), 60 * S);
            }
            tells
        })
        .collect();
    let pad = world.gate.snapshot().pad_ms;
    assert!(pad <= 1000, "{pad} ms on a told second; {refused:?}");
}

#[test]
fn p5_what_is_no_answer_to_a_told_time_teaches_nothing() {
    let policy = ScopePolicy { jitter: 0.0, ..ScopePolicy::default() };
    let t = Timestamp::from_secs(1_700_000_000);
    let told = |s: u64| Told::wait(Duration::from_secs(s));
    let shut = |told: Told| {
        let mut gate = Gate::new(&policy);
        let sent = gate.take(&policy, t, 1);
        let _ = gate.refused(&policy, sent, told, t, 0.0);
        gate
    };
    let pad = |gate: &Gate| gate.snapshot().pad_ms;

    // Long after the told time.
    let mut gate = shut(told(10));
    let sent = gate.take(&policy, t.plus(60 * S), 1);
    let _ = gate.refused(&policy, sent, told(10), t.plus(60 * S), 0.0);
    assert_eq!(pad(&gate), 0, "a minute later is another limit");
    // Nothing was told.
    let mut gate = shut(Told::nothing());
    let Check::Wait { until, .. } = gate.check(&policy, t, 1) else { panic!("it is shut") };
    let sent = gate.take(&policy, until, 1);
    let _ = gate.refused(&policy, sent, told(10), until, 0.0);
    assert_eq!(pad(&gate), 0, "a guess was too short, and no told time");
    // The server broke down.
    let mut gate = shut(told(10));
    let sent = gate.take(&policy, t.plus(10 * S + 50 * MS), 1);
    let _ = gate.overloaded(&policy, sent, t.plus(11 * S), 0.0);
    assert_eq!(pad(&gate), 0, "an error is no limit");
    // P7: the probe before the told time is over.
    let mut gate = shut(Told { may_be_one_items: true, ..told(600) });
    let sent = gate.take(&policy, t.plus(60 * S), 1);
    let _ = gate.refused(&policy, sent, told(540), t.plus(60 * S), 0.0);
    assert_eq!(pad(&gate), 0, "nobody said that it would pass");
    // A budget's reset is a told time as well (H4).
    let mut gate = Gate::new(&policy);
    let sent = gate.take(&policy, t, 1);
    let _ = gate.succeeded(&policy, sent, t);
    let _ = gate.budget(
        &policy,
        sent,
        Budget { left: Some(0), resets_in: Some(10 * S), ..Budget::default() },
        t,
        0.0,
    );
    let at = t.plus(10 * S + 50 * MS);
    let sent = gate.take(&policy, at, 1);
    let _ = gate.refused(&policy, sent, told(1), at.plus(MS), 0.0);
    assert_eq!(pad(&gate), 100, "it was not over");
    let kept = Gate::restore(&policy, &gate.snapshot(), at.plus(S));
    assert_eq!(pad(&kept), 100, "and it is kept over a restart");
    assert_eq!(pad(&Gate::from_state(&gate.to_state())), 100, "and between processes");
}
