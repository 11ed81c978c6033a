//! How long a scope takes to let requests through again after a refusal that told no time.

/// What was seen of it. Times are in seconds from the last refusal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Recovery {
    /// The first wait that nobody told.
    least: f64,
    /// The wait that the next incident starts with, where that is known to be enough.
    quick: f64,
    /// Incidents in a row whose first probe was let through.
    firsts: u8,
    /// Of the last incident that took more than one probe: the longest gap that failed, and the one that did not.
    failed: f64,
    passed: f64,
    /// Incidents in a row whose gaps agree with these two.
    agreeing: u8,
    /// Of this incident.
    this_failed: f64,
    this_wait: f64,
    probes: u8,
    /// The longest time that an incident took, forgotten slowly.
    longest: f64,
    /// The longest time after the first refusal of an incident that a probe was refused.
    refused: f64,
}

impl Recovery {
    pub(super) fn new(least: f64) -> Recovery {
        Recovery {
            least,
            quick: least,
            firsts: 0,
            failed: 0.0,
            passed: 0.0,
            agreeing: 0,
            this_failed: 0.0,
            this_wait: 0.0,
            probes: 0,
            longest: 0.0,
            refused: 0.0,
        }
    }

    /// The wait after the first refusal of an incident.
    pub(super) fn first_wait(&mut self, floor: f64) -> f64 {
        (self.this_failed, self.probes) = (0.0, 0);
        self.this_wait = if self.is_penalty() { self.passed } else { self.quick.max(floor) };
        self.quick = self.quick.max(floor);
        self.this_wait
    }

    /// A probe after `gap` was refused, one of so many `refusals` of the incident: the wait from that refusal on.
    pub(super) fn next_wait(&mut self, gap: f64, predicted: f64, refusals: f64) -> f64 {
        self.probes = self.probes.saturating_add(1);
        self.this_failed = self.this_failed.max(gap);
        if predicted > 0.0 && predicted < self.passed && !self.is_penalty() {
            self.this_wait = predicted.max(self.quick);
            return self.this_wait;
        }
        let known = self.passed > gap * 1.5 && self.agreeing < 8;
        self.this_wait = if known {
            self.passed
        } else if self.passed > self.least && gap > 0.9 * self.passed {
            0.25 * self.passed // it was enough once, so little is missing
        } else if refusals > MANY && self.probes == 1 {
            HOPEFUL
        } else {
            (gap.max(self.this_wait) * 2.0).max(self.quick)
        };
        self.this_wait
    }

    /// A probe was refused, so long after the first refusal.
    pub(super) fn was_shut(&mut self, total: f64) {
        self.refused = self.refused.max(total);
    }

    /// What may be waited for at once of a wait that a window is thought to take: a limit that was never seen shut for long is
    /// not believed to be.
    pub(super) fn believed(&self, predicted: f64) -> f64 {
        predicted.min(BEYOND_SEEN * self.refused)
    }

    /// The probe after `gap` was let through, `total` after the first refusal.
    pub(super) fn passed(&mut self, gap: f64, total: f64) {
        self.longest = (self.longest * 0.9).max(total);
        if self.probes == 0 {
            self.firsts = self.firsts.saturating_add(1);
            if self.firsts >= 2 {
                self.quick *= 0.7;
            }
        } else {
            self.firsts = 0;
            self.quick = (self.quick * 3.0).min(self.least);
            let fits = self.this_failed < self.passed && gap > self.failed;
            self.agreeing = if fits { self.agreeing.saturating_add(1) } else { 0 };
            self.failed = if fits { self.failed.max(self.this_failed) } else { self.this_failed };
            self.passed = if fits { self.passed.min(gap) } else { gap };
        }
    }

    /// Twice in a row it let through again at once.
    pub(super) fn is_quick(&self) -> bool {
        self.firsts >= 2 && !self.is_penalty()
    }

    /// Each refusal starts the same time anew.
    pub(super) fn is_penalty(&self) -> bool {
        self.agreeing >= 1 && self.passed > self.least * 2.0
    }

    /// The longest time that an incident took, in seconds; forgotten slowly.
    pub(super) fn longest(&self) -> f64 {
        self.longest
    }
}

/// So many times as long as it was seen shut.
const BEYOND_SEEN: f64 = 3.0;
/// After so many refusals one more probe in vain trips the circuit (X1), for longer than most limits last: the second one waits
/// until it is likely to be let through, in seconds.
pub(super) const MANY: f64 = 22.0;
const HOPEFUL: f64 = 20.0;
/// And where so many are on the wire with the first refusal of all, within so many seconds, the first one waits for as long: longer
/// than the shortest windows last. For a longer one the wait begins as short as ever, or it is overslept.
pub(super) const PATIENT: f64 = 2.5;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l2_a_window_is_waited_for_only_where_the_limit_was_seen_shut() {
        let mut recovery = Recovery::new(1.0);
        assert_eq!(recovery.believed(55.0), 0.0, "it always let through again at once");
        recovery.was_shut(1.0);
        assert_eq!(recovery.believed(55.0), 3.0);
        recovery.was_shut(20.0);
        recovery.was_shut(2.0);
        assert_eq!(recovery.believed(55.0), 55.0, "a probe was refused after 20 s");
    }
}
