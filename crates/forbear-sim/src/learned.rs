//! The learner behind a pause and a probe of its own.

use std::time::Duration;

use forbear_core::{
    learn::{Learner, Past, Refused},
    time::Timestamp,
};

use crate::{
    client::{Client, Go, Reply},
    trace::Phase,
    world::EPOCH,
};

/// One fleet that learns one limit.
#[derive(Clone, Debug)]
pub struct Learned {
    learner: Learner,
    /// The next slot, the last start, and starts that a pause has left over.
    next: f64,
    last: f64,
    credit: f64,
    on_wire: u32,
    shut: bool,
    closed_at: Timestamp,
    paused_until: Timestamp,
    probing: bool,
}

/// What a request was when it started.
#[derive(Clone, Copy, Debug)]
pub struct Ticket {
    at: Timestamp,
    in_flight: u32,
    probe: bool,
}

impl Learned {
    /// A fleet that knows nothing.
    #[must_use]
    pub fn new() -> Learned {
        Learned {
            learner: Learner::new(&Past::none(EPOCH, 2.0)),
            next: 0.0,
            last: 0.0,
            credit: 0.0,
            on_wire: 0,
            shut: false,
            closed_at: Timestamp::ZERO,
            paused_until: Timestamp::ZERO,
            probing: false,
        }
    }

    /// A start takes its slot.
    fn take(&mut self, now: f64) {
        let used = (now - self.last).clamp(0.0, 2.0 / self.learner.rate());
        let at = EPOCH.plus(Duration::from_secs_f64(now));
        self.learner.started(at, 1, Duration::from_secs_f64(used));
        let mut gap = 1.0 / self.learner.rate();
        if self.credit > 0.0 {
            (gap, self.credit) = (gap / 1.5, self.credit - (1.0 - 1.0 / 1.5));
        }
        (self.next, self.last) = (self.next.max(now - 0.5 * gap) + gap, now);
    }

    fn resume(&mut self, now: f64, credit: f64) {
        (self.next, self.last, self.credit) = (now + 1.0 / self.learner.rate(), now, credit);
    }

    /// What it has learned.
    #[must_use]
    pub fn learner(&self) -> &Learner {
        &self.learner
    }
}

impl Default for Learned {
    fn default() -> Learned {
        Learned::new()
    }
}

impl Client for Learned {
    type Ticket = Ticket;

    fn ask(&mut self, _worker: u32, now: Timestamp) -> Go<Ticket> {
        let probe = self.shut;
        if self.shut {
            if now < self.paused_until {
                return Go::At(self.paused_until);
            }
            if self.probing {
                return Go::Full;
            }
            self.probing = true;
            self.learner.probed(now);
        } else {
            let next = EPOCH.plus(Duration::from_secs_f64(self.next));
            if now < next {
                return Go::At(next);
            }
            if self.on_wire >= self.learner.cap() {
                return Go::Full;
            }
            self.take(now.since(EPOCH).as_secs_f64());
        }
        self.on_wire += 1;
        Go::Send(Ticket { at: now, in_flight: self.on_wire, probe })
    }

    fn answered(&mut self, _: u32, ticket: Ticket, reply: &Reply, now: Timestamp, roll: f64) -> Timestamp {
        self.on_wire -= 1;
        self.probing &= !ticket.probe;
        if !reply.refused {
            if ticket.probe {
                self.shut = false;
                let mut credit = self.learner.reopened(ticket.at, now);
                if let Some(study) = self.learner.study() {
                    credit = self.learner.studied(study.run()).unwrap_or(credit);
                }
                self.resume(now.since(EPOCH).as_secs_f64(), credit);
            } else {
                self.learner.accepted(ticket.at, ticket.in_flight, now);
            }
            return now;
        }
        let how = match (self.shut, ticket.probe) {
            (_, true) => Refused::Probe,
            (false, _) if ticket.at > self.closed_at => Refused::First,
            _ => Refused::Straggler,
        };
        let advised = self.learner.refused(ticket.at, ticket.in_flight, reply.told, how, now);
        if how == Refused::First {
            (self.shut, self.closed_at) = (true, now);
        }
        let wait = match reply.told {
            Some(told) => told.mul_f64(1.0 + 0.1 * roll) + Duration::from_millis(50),
            None => advised,
        };
        self.paused_until = self.paused_until.max(now.plus(wait));
        now
    }

    fn phase(&self, now: Timestamp) -> Option<Phase> {
        Some(match (self.shut, self.probing) {
            (false, _) => Phase::Open,
            (true, true) if now >= self.paused_until => Phase::Probing,
            (true, _) => Phase::Paused,
        })
    }

    fn pace(&self) -> Option<f64> {
        Some(self.learner.rate())
    }
}
