//! What the server says is left: of requests, and of what they cost (H4, L1, C1).

use super::{Budget, Cause, Change, Gate, Sent, incident::chance};
use crate::{
    cost::{CostBudget, RequestBudget},
    policy::ScopePolicy,
    time::Timestamp,
};

impl Gate {
    /// A budget's numbers from a response to a request that was sent as `sent` (H4, L1): what is left until when, and the
    /// starts a second that they come to. A budget with nothing left closes the scope before anything is refused.
    pub fn budget(
        &mut self,
        policy: &ScopePolicy,
        sent: Sent,
        budget: Budget,
        now: Timestamp,
        roll: f64,
    ) -> Change {
        if let Some(rate) = budget.rate {
            self.stated(rate, budget.window, budget.left.is_some(), now);
        }
        let (Some(left), Some(resets)) = (budget.left, budget.resets_in) else { return Change::None };
        let resets = now.plus(resets);
        if resets <= now {
            return Change::None;
        }
        if left > 0 && budget.of_cost {
            let alone = self.in_flight.current() == 0;
            let mut known = self.clocks.budget();
            known.told(left, resets.since(now), alone, now);
            self.clocks.set_budget(known);
            return Change::None;
        }
        if left > 0 {
            let on_wire = u16::try_from(self.in_flight.current()).unwrap_or(u16::MAX);
            let left = u16::try_from(left).unwrap_or(PLENTY);
            let before = self.clocks.requests();
            let known = now < before.resets && before.left != PLENTY;
            // Answers to requests that were on the wire together come in any order: the lowest was written last.
            let lowest = if known { left.min(before.low) } else { left };
            let low = if on_wire > 0 { lowest } else { PLENTY };
            // What is on the wire was not counted yet when this answer was written, or not all of it.
            let left = if lowest == PLENTY { PLENTY } else { lowest.saturating_sub(on_wire) };
            let left = if known && on_wire > 0 { left.min(before.left) } else { left };
            self.clocks.set_requests(RequestBudget { left, low, resets });
            return Change::None;
        }
        let before = self.paused_until;
        let wait = resets.since(now);
        if !self.shut {
            if sent.at <= self.closed_at {
                return Change::None;
            }
            self.closed_at = now;
        }
        self.forget_requests();
        self.clocks.set_budget(CostBudget::default());
        let until = resets.plus(self.pad(policy, wait)).plus(chance(wait, policy.jitter, roll));
        self.close_told(resets, until, Cause::Budget);
        if self.paused_until > before { Change::Closed { incident: false } } else { Change::None }
    }

    /// Corrects the pace once the real cost of a start is known (C1).
    pub fn correct_cost(&mut self, policy: &ScopePolicy, now: Timestamp, estimated: u32, real: u32) {
        policy.rates.correct(&mut self.clocks, now, estimated, real);
        self.change_cost_budget(|budget| budget.correct(estimated, real));
    }

    /// When the budget of requests is refilled, where it is used up until then.
    pub(super) fn used_up_until(&self, now: Timestamp) -> Option<Timestamp> {
        let budget = self.clocks.requests();
        (budget.left == 0 && now < budget.resets).then_some(budget.resets)
    }

    /// What is left of the requests is no longer known.
    pub(super) fn forget_requests(&mut self) {
        self.clocks.set_requests(RequestBudget { left: PLENTY, ..self.clocks.requests() });
    }

    /// What is left of a budget of cost, where one is known.
    pub(super) fn change_cost_budget(&mut self, change: impl FnOnce(&mut CostBudget)) {
        let mut budget = self.clocks.budget();
        if budget != CostBudget::default() {
            change(&mut budget);
            self.clocks.set_budget(budget);
        }
    }
}

/// Unknown, or more than needs to be counted.
const PLENTY: u16 = RequestBudget::UNKNOWN.left;
