//! What the server says is left: of requests, and of what they cost (H4, L1, C1).

use super::{Budget, Cause, Change, Gate, Sent, incident::chance};
use crate::{cost::CostBudget, policy::ScopePolicy, time::Timestamp};

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
            self.stated(rate, budget.window, budget.left.is_some());
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
            let known = now < self.budget_resets && self.budget_left != PLENTY;
            // Answers to requests that were on the wire together come in any order: the lowest was written last.
            let lowest = if known { left.min(self.budget_low) } else { left };
            self.budget_low = if on_wire > 0 { lowest } else { PLENTY };
            // What is on the wire was not counted yet when this answer was written, or not all of it.
            let left = if lowest == PLENTY { PLENTY } else { lowest.saturating_sub(on_wire) };
            self.budget_left = if known && on_wire > 0 { left.min(self.budget_left) } else { left };
            self.budget_resets = resets;
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
        self.budget_left = PLENTY;
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

    /// What is left of a budget of cost, where one is known.
    pub(super) fn change_cost_budget(&mut self, change: impl FnOnce(&mut CostBudget)) {
        let mut budget = self.clocks.budget();
        if budget != CostBudget::default() {
            change(&mut budget);
            self.clocks.set_budget(budget);
        }
    }
}

/// No budget that is larger needs to be counted: nobody has as many on the wire.
pub(super) const PLENTY: u16 = u16::MAX;
