//! Limits that punish: they wrap another rule and make its refusals cost more.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Budget, Refusal, Rule};

/// After a refusal everything is refused for `pause`; each knock within starts a time of its own, `early`.
#[derive(Debug)]
pub(crate) struct Penalty {
    inner: Box<dyn Rule>,
    pause: Duration,
    early: Duration,
    until: Duration,
}

impl Penalty {
    pub(crate) fn new(inner: Box<dyn Rule>, pause: Duration, early: Duration) -> Penalty {
        Penalty { inner, pause, early, until: Duration::ZERO }
    }
}

impl Rule for Penalty {
    fn weigh(&mut self, cost: u32) {
        self.inner.weigh(cost);
    }

    fn test(&mut self, now: Duration) -> bool {
        self.until <= now && self.inner.test(now)
    }

    fn take(&mut self, now: Duration) {
        self.inner.take(now);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        let (pause, inner) = match self.until <= now {
            true => (self.pause, self.inner.refuse(now).wait),
            false => (self.early, Duration::ZERO),
        };
        self.until = now + pause;
        Refusal::after(pause.max(inner))
    }

    fn depart(&mut self) {
        self.inner.depart();
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        closed_until(self.inner.budget(now), now, self.until)
    }
}

/// So many refusals within a time, and the client is out for `term`: with 403, and without a word on how long.
#[derive(Debug)]
pub(crate) struct Ban {
    inner: Box<dyn Rule>,
    strikes: u32,
    within: Duration,
    term: Duration,
    recent: VecDeque<Duration>,
    until: Duration,
}

impl Ban {
    pub(crate) fn new(inner: Box<dyn Rule>, strikes: u32, within: Duration, term: Duration) -> Ban {
        Ban { inner, strikes, within, term, recent: VecDeque::new(), until: Duration::ZERO }
    }
}

impl Rule for Ban {
    fn weigh(&mut self, cost: u32) {
        self.inner.weigh(cost);
    }

    fn test(&mut self, now: Duration) -> bool {
        self.until <= now && self.inner.test(now)
    }

    fn take(&mut self, now: Duration) {
        self.inner.take(now);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        if now < self.until {
            return Refusal { status: Some(403), wait: self.until - now, silent: true };
        }
        while self.recent.front().is_some_and(|at| *at + self.within <= now) {
            self.recent.pop_front();
        }
        self.recent.push_back(now);
        let refusal = self.inner.refuse(now);
        if self.recent.len() < self.strikes as usize {
            return refusal;
        }
        // The last strike still gets the ordinary answer: the ban shows only in the next one.
        self.recent.clear();
        self.until = now + self.term;
        refusal
    }

    fn depart(&mut self) {
        self.inner.depart();
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        closed_until(self.inner.budget(now), now, self.until)
    }
}

/// A budget that nobody can use before `until`.
fn closed_until(budget: Option<Budget>, now: Duration, until: Duration) -> Option<Budget> {
    let closed = until.saturating_sub(now);
    budget.map(|budget| match closed.is_zero() {
        true => budget,
        false => Budget { remaining: 0, reset: budget.reset.max(closed), ..budget },
    })
}
