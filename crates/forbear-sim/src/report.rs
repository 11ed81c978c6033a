//! What a run came to.

use std::{collections::VecDeque, time::Duration};

use crate::scenario::{Scenario, Work};

/// Counts over a stretch of a run, by the moment at which the limiter saw a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Let through.
    pub served: u64,
    /// Turned away by a limit.
    pub refused: u64,
    /// What the oracle would have got through.
    pub optimum: f64,
}

impl Tally {
    /// Served as a share of what the oracle gets.
    #[must_use]
    pub fn used(&self) -> f64 {
        if self.optimum > 0.0 { self.served as f64 / self.optimum } else { 1.0 }
    }

    /// Refused as a share of all that the limiter saw.
    #[must_use]
    pub fn refused_share(&self) -> f64 {
        self.refused as f64 / (self.served + self.refused).max(1) as f64
    }

    /// At least 95 % used, at most 1 % refused.
    #[must_use]
    pub fn meets_targets(&self) -> bool {
        self.used() >= 0.95 && self.refused_share() <= 0.01
    }
}

/// Refusals that came together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Spike {
    /// So many within a tenth of a second.
    pub refused: u32,
    /// So many others were on the wire when the first of them was met.
    pub in_flight: u32,
}

impl Spike {
    fn beyond(self) -> u32 {
        self.refused.saturating_sub(self.in_flight)
    }
}

/// A run in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The whole of it.
    pub whole: Tally,
    /// Without its first quarter.
    pub late: Tally,
    /// Requests sent.
    pub sent: u64,
    /// Pages that were got.
    pub done: u64,
    /// Neither served nor refused.
    pub faults: u64,
    /// The most that was sent in one tenth of a second.
    pub herd: u32,
    /// When it ended: the last page of a job, else the end of the run.
    pub took: Duration,
    /// Starts a second that the client held to be allowed in the end, where it had an opinion.
    pub pace: Option<f64>,
    /// How long nothing but a probe could start; none for a client without a gate.
    pub paused: Option<Duration>,
    /// Requests that were on the wire in the end.
    pub on_wire: u32,
    /// Requests that were on the wire when the first refusal was heard.
    pub first_flight: u32,
    /// Of the refusals within a tenth of a second after a reopening, the most beyond what was on the wire at the first of them.
    pub spike: Spike,
    /// How often everything was shut with 403.
    pub bans: u32,
    pub(crate) last_served: Duration,
    first_heard: Option<Duration>,
    reopened: bool,
    /// The last refusals, each with how many others were on the wire.
    refusals: VecDeque<(Duration, u32)>,
    banned: bool,
    quarter: Duration,
    tenth: (u64, u32),
}

impl Report {
    pub(crate) fn new(run_for: Duration) -> Report {
        Report {
            whole: Tally::default(),
            late: Tally::default(),
            sent: 0,
            done: 0,
            faults: 0,
            herd: 0,
            took: Duration::ZERO,
            pace: None,
            paused: None,
            on_wire: 0,
            first_flight: 0,
            spike: Spike::default(),
            bans: 0,
            first_heard: None,
            reopened: false,
            refusals: VecDeque::new(),
            banned: false,
            last_served: Duration::ZERO,
            quarter: run_for / 4,
            tenth: (0, 0),
        }
    }

    /// Requests beyond one a page.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.sent.saturating_sub(self.done + u64::from(self.on_wire))
    }

    /// Requests sent for each page that was got (V3).
    #[must_use]
    pub fn multiplier(&self) -> Option<f64> {
        (self.done > 0).then(|| self.sent as f64 / self.done as f64)
    }

    pub(crate) fn sent(&mut self, since: Duration) {
        self.sent += 1;
        let tenth = since.as_millis() as u64 / 100;
        self.tenth = if tenth == self.tenth.0 { (tenth, self.tenth.1 + 1) } else { (tenth, 1) };
        self.herd = self.herd.max(self.tenth.1);
    }

    pub(crate) fn arrived(&mut self, since: Duration, served: bool, refused: bool) {
        let stretches = [Some(&mut self.whole), (since >= self.quarter).then_some(&mut self.late)];
        for tally in stretches.into_iter().flatten() {
            tally.served += u64::from(served);
            tally.refused += u64::from(refused);
        }
    }

    /// A request that was sent at `sent` met the limiter at `since`, with so many others on the wire.
    pub(crate) fn judged(
        &mut self,
        sent: Duration,
        since: Duration,
        refused: bool,
        status: u16,
        others: u32,
    ) {
        let out = status == 403;
        self.bans += u32::from(out && !self.banned);
        self.banned = out;
        if !refused {
            self.reopened |= self.first_heard.is_some_and(|heard| sent > heard);
            return;
        }
        if !self.reopened {
            return;
        }
        self.refusals.push_back((since, others));
        while self.refusals.front().is_some_and(|(at, _)| *at + Duration::from_millis(100) <= since) {
            self.refusals.pop_front();
        }
        let in_flight = self.refusals.front().map_or(0, |first| first.1);
        let spike = Spike { refused: self.refusals.len() as u32, in_flight };
        if (spike.beyond(), spike.refused) > (self.spike.beyond(), self.spike.refused) {
            self.spike = spike;
        }
    }

    /// A refusal is heard, with so many others on the wire.
    pub(crate) fn heard(&mut self, since: Duration, others: u32) {
        if self.first_heard.is_none() {
            (self.first_heard, self.first_flight) = (Some(since), others);
        }
    }

    pub(crate) fn answered(&mut self, since: Duration, refused: bool, status: u16) {
        if status < 400 {
            self.done += 1;
            self.last_served = since;
        } else if !refused {
            self.faults += 1;
            self.done += 1; // for the simulation a page with an error is done with
        }
    }

    pub(crate) fn end(&mut self, scenario: &Scenario, took: Duration, pace: Option<f64>) {
        let took = if scenario.work == Work::Endless { scenario.run_for } else { took };
        self.took = took;
        self.pace = pace;
        self.whole.optimum = scenario.truth.allowed(Duration::ZERO, took);
        self.late.optimum = scenario.truth.allowed(self.quarter, took);
        if let Work::Stream(rate) = scenario.work {
            let demand = |from: Duration| rate * (took.saturating_sub(from)).as_secs_f64();
            self.whole.optimum = self.whole.optimum.min(demand(Duration::ZERO));
            self.late.optimum = self.late.optimum.min(demand(self.quarter));
        }
    }
}
