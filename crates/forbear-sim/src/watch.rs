//! What a client has promised, checked at every step.

use std::time::Duration;

use forbear_core::time::Timestamp;

use crate::{client::Reply, scenario::Work};

/// A promise of the contract that was broken.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("after {at:?}: {what}")]
pub struct Violation {
    /// Since the start of the run.
    pub at: Duration,
    /// What was promised, and what happened.
    pub what: String,
}

impl Violation {
    /// Whether all that is wrong is that the run came to its end before the work did.
    #[must_use]
    pub fn is_about_progress(&self) -> bool {
        self.what.starts_with(PROGRESS) || self.what.starts_with(ENDLESS)
    }
}

const PROGRESS: &str = "it does not get on";
/// Of a fleet that had work left.
pub(crate) const ENDLESS: &str = "it does not end";

/// Watches one client before one limit.
#[derive(Debug)]
pub(crate) struct Watch {
    on: bool,
    epoch: Timestamp,
    /// Until when the server told us to stay away.
    told_until: Timestamp,
    /// When the client heard that it must stop, until something sent later was served.
    closed_at: Option<Timestamp>,
    /// Sent since then and not answered.
    probes: u32,
    doubt: Doubt,
}

/// Whether a told time is too long to be believed for all (P7).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Doubt {
    None,
    /// One request may test it, some time after it was first heard.
    Since(Timestamp),
    Tested,
}

impl Watch {
    pub(crate) fn new(on: bool, epoch: Timestamp) -> Watch {
        Watch { on, epoch, told_until: Timestamp::ZERO, closed_at: None, probes: 0, doubt: Doubt::None }
    }

    fn broken(&self, what: String, now: Timestamp) -> Violation {
        Violation { at: now.since(self.epoch), what }
    }

    pub(crate) fn sends(&mut self, now: Timestamp) -> Result<(), Violation> {
        if !self.on {
            return Ok(());
        }
        let doubts = matches!(self.doubt, Doubt::Since(heard) if now.since(heard) >= LEAST_PAUSE);
        if now < self.told_until && doubts {
            self.doubt = Doubt::Tested;
        } else if now < self.told_until {
            let early = self.told_until.since(now);
            return Err(self.broken(format!("P1: a request was sent {early:?} before the told time"), now));
        }
        if self.closed_at.is_some() {
            self.probes += 1;
            if self.probes > 1 {
                return Err(self.broken("B1: a second request was sent while one probed".to_owned(), now));
            }
        }
        Ok(())
    }

    pub(crate) fn answered(&mut self, sent: Timestamp, reply: &Reply, now: Timestamp) {
        if let Some(told) = reply.told.filter(|_| reply.refused) {
            self.told_until = self.told_until.max(now.plus(told));
            if told > LONG && self.closed_at.is_none() {
                self.doubt = Doubt::Since(now);
            }
        }
        let probe = self.closed_at.is_some_and(|closed| sent > closed);
        self.probes = self.probes.saturating_sub(u32::from(probe));
        if reply.refused {
            self.closed_at = Some(now);
        } else if probe {
            self.closed_at = None;
            if std::mem::replace(&mut self.doubt, Doubt::None) == Doubt::Tested {
                self.told_until = now; // the limit was that one page's
            }
        }
    }

    pub(crate) fn crashed(&mut self) {
        self.probes = 0; // its lease runs out, and nobody can tell it from a lost one
    }

    pub(crate) fn nothing_lost(&self, pages: u64, accounted: u64, now: Timestamp) -> Result<(), Violation> {
        if pages == accounted {
            return Ok(());
        }
        Err(self.broken(format!("J5: {pages} pages in, {accounted} accounted for"), now))
    }

    pub(crate) fn ends(
        &self,
        work: &Work,
        done: bool,
        last_served: Duration,
        took: Duration,
    ) -> Result<(), Violation> {
        let silent = took.saturating_sub(last_served);
        let stuck = match work {
            Work::Pages(_) => !done,
            _ => silent > LONGEST_SILENCE,
        };
        if self.on && stuck {
            let at = Timestamp::ZERO.plus(took).since(Timestamp::ZERO);
            let what = format!("{PROGRESS}: nothing was served for {silent:?}");
            return Err(Violation { at, what });
        }
        Ok(())
    }
}

/// What is told beyond this is tested once by another item, after so long at least (P7: the default policy's `pause_cap` and
/// `backoff_base`).
const LONG: Duration = Duration::from_secs(300);
const LEAST_PAUSE: Duration = Duration::from_secs(1);
/// Longer than every pause in the instance sets, with the probes that are needed to find its end.
const LONGEST_SILENCE: Duration = Duration::from_secs(1800);
