//! What looking for more may cost (L3), and how often it can therefore be done.

/// Refusals are paid from successes, and lost time from time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Budget {
    /// Refusals that may still be met.
    balance: f64,
    /// Refusals of a usual incident.
    refusals: f64,
    /// Seconds of work that a usual incident loses.
    lost: f64,
}

impl Budget {
    pub(super) fn new() -> Budget {
        Budget { balance: GRANT, refusals: 1.5, lost: 1.0 }
    }

    pub(super) fn accepted(&mut self) {
        self.balance = (self.balance + REFUSED_SHARE).min(SAVED);
    }

    pub(super) fn refused(&mut self) {
        self.balance = (self.balance - 1.0).max(-DEBT).min(self.balance);
    }

    /// It was on the wire when the limit was met for the first time. What is granted is partly for that, and what is beyond
    /// that part nobody pays for: growth would stop for long for what could not be known.
    pub(super) fn unavoidable(&mut self) {
        self.balance = (self.balance - 1.0).max(KEPT).min(self.balance);
    }

    /// Nothing is left: no upward step before some successes.
    pub(super) fn is_spent(&self) -> bool {
        self.balance <= 0.0
    }

    /// What an incident has cost.
    pub(super) fn incident(&mut self, refusals: f64, lost: f64) {
        self.refusals += 0.4 * (refusals - self.refusals);
        self.lost += 0.4 * (lost.max(0.0) - self.lost);
    }

    /// The least time between two incidents of our own making, in seconds. `share` of the budget for lost time may be used.
    pub(super) fn period(&self, rate: f64, round_trip: f64, recovery: f64, share: f64) -> f64 {
        (self.refusals / (REFUSED_SHARE * rate))
            .max(self.lost / (LOST_SHARE * share))
            .max(20.0 * round_trip)
            .max(60.0 / rate)
            .max(2.0 * recovery)
    }
}

/// The share of successes that may be met as refusals; less than 1 % leaves room for what nobody can avoid.
const REFUSED_SHARE: f64 = 0.007;
/// The share of time that pauses for exploring may take.
const LOST_SHARE: f64 = 0.012;
/// What was on the wire with the first refusal was not ours to avoid: a debt of hundreds would stop all growth for good.
const DEBT: f64 = 4.0;
/// What a new scope may spend before its first success, and the most that it can save up.
const GRANT: f64 = 9.0;
/// What is left of it, whatever was on the wire at the first refusal of all.
const KEPT: f64 = 5.0;
const SAVED: f64 = 60.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l3_what_nobody_could_avoid_stops_no_growth() {
        let mut budget = Budget::new();
        (0..50).for_each(|_| budget.unavoidable());
        assert!(!budget.is_spent(), "fifty on the wire at the first refusal of all");
        (0..6).for_each(|_| budget.refused());
        assert!(budget.is_spent(), "what comes after it is paid from what is left");
        budget.unavoidable();
        assert!(budget.is_spent(), "and nothing is given back");
        (0..50).for_each(|_| budget.refused());
        let successes = (1..10_000).find(|_| {
            budget.accepted();
            !budget.is_spent()
        });
        assert!(successes.is_some_and(|n| (500..700).contains(&n)), "{successes:?}");
    }
}
