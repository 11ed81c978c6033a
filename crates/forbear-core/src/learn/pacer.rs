//! Start slots at the present pace, and what of a pause may be made up for afterwards.

/// When the next start is due.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Pacer {
    /// Starts a second.
    rate: f64,
    /// The next slot, in seconds of the learner's clock.
    next: f64,
    /// Starts that a pause has left over, still to be made up for.
    credit: f64,
}

impl Pacer {
    pub(super) fn new(rate: f64, now: f64) -> Pacer {
        Pacer { rate, next: now, credit: 0.0 }
    }

    pub(super) fn rate(&self) -> f64 {
        self.rate
    }

    pub(super) fn set_rate(&mut self, rate: f64) {
        self.rate = rate;
    }

    pub(super) fn next(&self) -> f64 {
        self.next
    }

    /// A start takes its slot.
    pub(super) fn take(&mut self, now: f64, cost: f64) {
        let mut gap = cost / self.rate;
        if self.credit > 0.0 {
            // Half as fast again: in twice the pause all of it is made up for, and what is on the wire stays small.
            gap /= CATCH_UP;
            self.credit -= cost * (1.0 - 1.0 / CATCH_UP);
        }
        // A worker that comes a little late to its slot moves none of those after it.
        self.next = self.next.max(now - 0.5 * gap) + gap;
    }

    /// From `now` on, with so many starts to make up for.
    pub(super) fn resume(&mut self, now: f64, credit: f64) {
        self.next = now + 1.0 / self.rate;
        self.credit = credit;
    }
}

const CATCH_UP: f64 = 1.5;
