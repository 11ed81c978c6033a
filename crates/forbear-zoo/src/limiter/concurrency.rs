//! A cap on requests in flight.

use std::time::Duration;

use super::{Budget, Refusal, Rule};

/// At most `max` requests at once, however fast they follow each other.
#[derive(Clone, Debug)]
pub(crate) struct Concurrency {
    max: u32,
    in_flight: u32,
    /// Nobody knows when a request will end, so such servers tell a fixed wait.
    guess: Duration,
}

impl Concurrency {
    pub(crate) fn new(max: u32, guess: Duration) -> Concurrency {
        Concurrency { max, in_flight: 0, guess }
    }
}

impl Rule for Concurrency {
    fn test(&mut self, _now: Duration) -> bool {
        self.in_flight < self.max
    }

    fn take(&mut self, _now: Duration) {
        self.in_flight += 1;
    }

    fn refuse(&mut self, _now: Duration) -> Refusal {
        Refusal::after(self.guess)
    }

    fn depart(&mut self) {
        self.in_flight = self.in_flight.saturating_sub(1);
    }

    fn budget(&mut self, _now: Duration) -> Option<Budget> {
        None // slots in use are no budget of a window; publishing them as one would mislead every reader
    }
}
