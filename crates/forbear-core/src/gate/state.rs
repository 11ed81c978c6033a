//! A gate laid open, for stores that share it, and slots that are taken ahead or belong to somebody else.

use std::time::Duration;

use super::{
    Gate,
    diary::Diary,
    facts::Cause,
    mind::Mind,
    pad::Learned,
    probe::{Fence, Probe},
    ramp::{Form, Ramp},
};
use crate::{
    circuit::Circuit,
    cost::{CostBudget, RequestBudget},
    inflight::InFlight,
    pace::{Clocks, MAX_RATES},
    policy::ScopePolicy,
    time::Timestamp,
};

/// Everything that a [`Gate`] knows, as plain values.
///
/// A store that shares gates between processes has a record of its own for it. Values may come from anywhere:
/// [`Gate::from_state`] makes a gate that works of any of them.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the gate's own, documented there")]
pub struct State {
    pub shut: bool,
    pub resumes: bool,
    pub cause: Cause,
    pub level: u8,
    pub cap_doubled: u8,
    pub incidents: u32,
    pub paused_until: Timestamp,
    pub beyond_told_ms: u32,
    pub closed_at: Timestamp,
    pub opened_at: Timestamp,
    pub last_refusal_s: u32,
    pub early_probe_at: Timestamp,
    pub accepted: u32,
    pub probe_last: u32,
    pub probe_held: u32,
    pub probe_until: Timestamp,
    pub probe_early: bool,
    pub blocked_in_row: u8,
    pub overloads_in_row: u8,
    pub unauthorised: u8,
    pub unauthorised_item: u32,
    pub circuit_refusals: u16,
    pub circuit_incidents: u16,
    /// The pace of the ramp in starts a second; none while nothing meters the scope.
    pub rate: Option<f32>,
    pub bad_rate: Option<f32>,
    /// The pace grows by time, and over how long; zero where it does not.
    pub linear_ms: u32,
    /// Where that growth ends.
    pub linear_goal: f32,
    pub linear_learns: bool,
    /// The ramp's next slot, in nanoseconds.
    pub slot_ns: u64,
    pub stepped_ms: u32,
    /// Starts that a pause has left over.
    pub credit: f32,
    /// Where the scope stands on each configured rate, in nanoseconds.
    pub clocks: [u64; MAX_RATES],
    /// The most that a start has cost.
    pub largest_cost: u32,
    /// What is left of a budget of cost; all bits where it is unknown.
    pub cost_left: u32,
    pub cost_resets: Timestamp,
    /// Requests on the wire.
    pub in_flight: u16,
    pub cap: u16,
    pub cap_ceiling: u16,
    pub cap_good: u16,
    pub cap_successes: u32,
    pub cap_patience: u8,
    pub cap_passed: bool,
    pub cap_grown_ms: u16,
    pub round_trip_us: u32,
    pub stated_rate: f32,
    pub budget_left: u16,
    pub budget_low: u16,
    pub budget_resets: Timestamp,
    pub last_cut_ms: u32,
    pub retry_tokens: f32,
    pub retry_refilled_s: u32,
    pub last_used_s: u32,
    /// Requests on the wire at most, as the scope's owner has it; all bits where that is not what is limited.
    pub wire_cap: u16,
    /// For the scope's owner.
    pub diary: Diary,
    /// The pad that was learned (P5), and the good probes since it changed.
    pub pad_ms: u16,
    pub pad_good: u8,
}

impl Gate {
    /// Everything that it knows.
    #[must_use]
    pub fn to_state(&self) -> State {
        let (linear_ms, linear_goal, linear_learns) = match self.ramp.form {
            Form::Linear { over_ms, goal, learns } => (over_ms.max(1), goal, learns),
            _ => (0, 0.0, false),
        };
        let ((clocks, largest_cost), cost) = (self.clocks.parts(), self.clocks.budget());
        let requests = self.clocks.requests();
        State {
            shut: self.shut,
            resumes: self.resumes,
            cause: self.cause,
            level: self.level,
            cap_doubled: self.cap_doubled,
            incidents: self.incidents,
            paused_until: self.paused_until,
            beyond_told_ms: self.beyond_told_ms,
            closed_at: self.closed_at,
            opened_at: self.opened_at,
            last_refusal_s: self.last_refusal_s,
            early_probe_at: self.early_probe_at,
            accepted: self.accepted,
            probe_last: self.probe.last,
            probe_held: self.probe.held.0,
            probe_until: self.probe.until,
            probe_early: self.probe.early,
            blocked_in_row: self.blocked_in_row,
            overloads_in_row: self.overloads_in_row,
            unauthorised: self.unauthorised,
            unauthorised_item: self.unauthorised_item.into(),
            circuit_refusals: self.circuit.refusals,
            circuit_incidents: self.circuit.incidents,
            rate: self.ramp.rate(),
            bad_rate: self.ramp.bad(),
            linear_ms,
            linear_goal,
            linear_learns,
            slot_ns: self.ramp.next_ns,
            stepped_ms: self.ramp.began_ms,
            credit: self.ramp.credit,
            clocks,
            largest_cost,
            cost_left: cost.left,
            cost_resets: cost.resets,
            in_flight: self.in_flight.current,
            cap: self.in_flight.cap,
            cap_ceiling: self.in_flight.ceiling,
            cap_good: self.in_flight.good,
            cap_successes: self.in_flight.successes,
            cap_patience: self.in_flight.patience,
            cap_passed: self.in_flight.passed,
            cap_grown_ms: self.in_flight.grown_ms,
            round_trip_us: self.round_trip_us,
            stated_rate: self.stated_rate,
            budget_left: requests.left,
            budget_low: requests.low,
            budget_resets: requests.resets,
            last_cut_ms: self.last_cut_ms,
            retry_tokens: f32::from(self.retry_fifths) / f32::from(super::RETRY),
            retry_refilled_s: self.retry_refilled_s,
            last_used_s: self.last_used_s,
            wire_cap: self.wire_cap,
            diary: self.mind.diary().cloned().unwrap_or_default(),
            pad_ms: self.probe.pad.ms,
            pad_good: self.probe.pad.good,
        }
    }

    /// The gate that knows this. It has no learner, for nobody keeps it from step to step: it writes what one must know into its
    /// [`Diary`], and while nobody reads that its pace goes by the same steps. Values that no gate has become the nearest that one
    /// has.
    #[must_use]
    pub fn from_state(state: &State) -> Gate {
        let finite = |value: f32| if value.is_finite() { value.max(0.0) } else { 0.0 };
        let form = match state.linear_ms {
            0 => Form::Paced,
            over_ms => {
                let goal = finite(state.linear_goal).max(super::ramp::SLOWEST);
                Form::Linear { over_ms, goal, learns: state.linear_learns }
            }
        };
        let ramp = match state.rate {
            Some(rate) if rate.is_finite() => Ramp {
                rate: rate.max(super::ramp::SLOWEST),
                bad: state.bad_rate.filter(|bad| *bad > 0.0).unwrap_or(f32::INFINITY),
                form,
                next_ns: state.slot_ns,
                began_ms: state.stepped_ms,
                credit: finite(state.credit).min(1e6),
            },
            _ => Ramp::FREE,
        };
        let in_flight = InFlight {
            current: state.in_flight,
            cap: state.cap,
            ceiling: state.cap_ceiling,
            good: state.cap_good,
            successes: state.cap_successes,
            patience: state.cap_patience,
            passed: state.cap_passed,
            grown_ms: state.cap_grown_ms,
        };
        let mut clocks = Clocks::from_parts(state.clocks, state.largest_cost);
        clocks.set_budget(CostBudget { left: state.cost_left, resets: state.cost_resets });
        let (left, low, resets) = (state.budget_left, state.budget_low, state.budget_resets);
        clocks.set_requests(RequestBudget { left, low, resets });
        Gate {
            shut: state.shut,
            resumes: state.resumes,
            cause: state.cause,
            level: state.level,
            cap_doubled: state.cap_doubled,
            blocked_in_row: state.blocked_in_row,
            overloads_in_row: state.overloads_in_row,
            unauthorised: state.unauthorised,
            unauthorised_item: state.unauthorised_item as u16,
            incidents: state.incidents,
            circuit: Circuit { refusals: state.circuit_refusals, incidents: state.circuit_incidents },
            paused_until: state.paused_until,
            beyond_told_ms: state.beyond_told_ms,
            closed_at: state.closed_at,
            opened_at: state.opened_at,
            last_refusal_s: state.last_refusal_s,
            early_probe_at: state.early_probe_at,
            probe: Probe {
                last: state.probe_last,
                held: Fence(state.probe_held),
                until: state.probe_until,
                early: state.probe_early,
                pad: Learned { ms: state.pad_ms, good: state.pad_good },
            },
            ramp,
            clocks,
            in_flight: in_flight.sound(),
            wire_cap: state.wire_cap.max(1),
            mind: Mind::writes(state.diary.clone()),
            accepted: state.accepted,
            round_trip_us: state.round_trip_us,
            stated_rate: finite(state.stated_rate),
            last_cut_ms: state.last_cut_ms,
            retry_fifths: (finite(state.retry_tokens).min(f32::from(super::RETRY_MOST))
                * f32::from(super::RETRY))
            .round() as u16,
            retry_refilled_s: state.retry_refilled_s,
            last_used_s: state.last_used_s,
        }
    }

    /// Lets `starts` slots of every pace pass unused: they are somebody else's, or taken ahead.
    pub fn skip(&mut self, policy: &ScopePolicy, now: Timestamp, starts: f64) {
        policy.rates.skip(&mut self.clocks, now, starts);
        self.ramp.skip(now, starts);
    }

    /// Uses up what may start at once beside the pace.
    pub fn spend_burst(&mut self, policy: &ScopePolicy, now: Timestamp) {
        policy.rates.spend_burst(&mut self.clocks, now);
    }

    /// An operator ends the pause at `now`: one request tests, as after any other pause (P2's exception).
    pub fn resume(&mut self, now: Timestamp) {
        if self.shut {
            self.paused_until = self.paused_until.min(now);
            self.beyond_told_ms = 0;
            self.early_probe_at = Timestamp::ZERO;
        }
    }

    /// Whether it lets nothing through but a probe.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.shut
    }

    /// How many starts its paces allow in `time`; none where nothing paces it.
    #[must_use]
    pub fn slots_in(&self, policy: &ScopePolicy, time: Duration) -> Option<u32> {
        let ramp = self.ramp.rate().map(|rate| f64::from(rate) * time.as_secs_f64());
        let rates = policy.rates.starts_in(time);
        let fewest = match (ramp, rates) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b)?,
        };
        Some(fewest as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Check, Told};

    #[test]
    fn s1_a_gate_laid_open_and_put_together_is_the_same() {
        let policy = ScopePolicy {
            rates: "10/s".parse::<crate::pace::RateList>().unwrap().into(),
            ..ScopePolicy::default()
        };
        let (mut gate, mut now) = (Gate::new(&policy), Timestamp::from_secs(1_000));
        let again = |gate: &Gate| Gate::from_state(&gate.to_state()).to_state();
        assert_eq!(again(&gate), gate.to_state());
        for step in 0..200u32 {
            now = now.plus(Duration::from_millis(u64::from(step % 7) * 150));
            if let Check::Admit | Check::Probe = gate.check(&policy, now, 1) {
                let sent = gate.take(&policy, now, 1);
                assert_eq!(again(&gate), gate.to_state());
                let later = now.plus(Duration::from_millis(20));
                let told =
                    Told { wait: (step % 2 == 0).then_some(Duration::from_secs(1)), ..Told::nothing() };
                let _ = if step % 9 == 0 {
                    gate.refused(&policy, sent, told, later, 0.5)
                } else if step % 11 == 0 {
                    gate.overloaded(&policy, sent, later, 0.5)
                } else {
                    gate.succeeded(&policy, sent, later)
                };
                assert_eq!(again(&gate), gate.to_state(), "step {step}");
            }
        }
        assert!(gate.incidents() > 2 && gate.learned_rate().is_some(), "it has been through something");
    }

    #[test]
    fn k4_no_value_makes_a_gate_that_fails() {
        let policy = ScopePolicy::default();
        let mut state = Gate::new(&policy).to_state();
        let now = Timestamp::from_secs(1_000);
        for rate in [f32::NAN, f32::NEG_INFINITY, -1.0, 0.0, f32::MIN_POSITIVE, f32::MAX] {
            (state.rate, state.bad_rate, state.linear_goal) = (Some(rate), Some(rate), rate);
            (state.stated_rate, state.retry_tokens) = (rate, rate);
            (state.cap, state.cap_ceiling, state.cap_patience) = (0, 0, 255);
            for linear_ms in [0, 1, u32::MAX] {
                state.linear_ms = linear_ms;
                let mut gate = Gate::from_state(&state);
                let sent = gate.take(&policy, now, u32::MAX);
                let _ = gate.succeeded(&policy, sent, now.plus(Duration::from_secs(100)));
                let _ = gate.refused(&policy, sent, Told::nothing(), Timestamp::MAX, 0.9);
                assert!(gate.concurrency() >= 1);
            }
        }
    }

    #[test]
    fn c1_slots_that_are_skipped_are_waited_for() {
        let policy = ScopePolicy {
            rates: "10/s".parse::<crate::pace::RateList>().unwrap().into(),
            ..ScopePolicy::default()
        };
        let (mut gate, now) = (Gate::new(&policy), Timestamp::from_secs(1_000));
        assert_eq!(gate.slots_in(&policy, Duration::from_secs(2)), Some(20));
        gate.skip(&policy, now, 2.5);
        let Check::Wait { until, .. } = gate.check(&policy, now, 1) else { panic!("its slot is later") };
        assert_eq!(until.since(now), Duration::from_millis(250));
        let free = ScopePolicy { pace_start: f32::INFINITY, ..ScopePolicy::default() };
        assert_eq!(Gate::new(&free).slots_in(&free, Duration::from_secs(2)), None);
    }
}
