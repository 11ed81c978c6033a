//! What the learner says it knows (L4).

use std::time::Duration;

use super::{Learner, name::Named, wire::State};
use crate::time::Timestamp;

/// A kind of limit.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Kind {
    /// A token bucket, or GCRA: the same limit.
    Bucket,
    /// A window that begins anew, all at once.
    FixedWindow,
    /// A window that slides: a log of requests, or two weighted counters.
    SlidingWindow,
    /// A cap on requests in flight.
    Concurrency,
    /// Each refusal starts a time of refusals.
    Penalty,
}

impl Kind {
    /// The word for people and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Bucket => "token bucket",
            Kind::FixedWindow => "fixed window",
            Kind::SlidingWindow => "sliding window",
            Kind::Concurrency => "concurrency",
            Kind::Penalty => "penalty",
        }
    }

    /// The kind with this word.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Kind> {
        let all = [Kind::Bucket, Kind::FixedWindow, Kind::SlidingWindow, Kind::Concurrency, Kind::Penalty];
        all.into_iter().find(|kind| kind.as_str() == name)
    }
}

/// What a belief is founded on.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// Since when.
    pub since: Timestamp,
    /// How often the limit was met.
    pub incidents: u32,
    /// How many of the last of these it explains.
    pub explained: u32,
    /// Requests that were refused, and that were let through.
    pub refused: u32,
    /// See `refused`.
    pub accepted: u32,
    /// The server has told a number.
    pub stated: bool,
}

/// What a scope's limit is believed to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Belief {
    /// Its kind, where only one explains what was seen.
    pub kind: Option<Kind>,
    /// How far that can be trusted, from 0 to 1.
    pub confidence: f64,
    /// Starts a second that it allows.
    pub rate: f64,
    /// The most at once: a burst, a window's limit, or requests in flight; zero where it is not known.
    pub number: f64,
    /// The length of its window, or of its time of refusals.
    pub window: Option<Duration>,
    /// Why.
    pub evidence: Evidence,
}

impl Learner {
    /// What is believed of the limit. After a restart it is what was believed before, until there is new evidence.
    #[must_use]
    pub fn belief(&self) -> Belief {
        let found = self.found();
        let belief = self.prior.filter(|_| found.kind.is_none() && self.model.incidents < 3).unwrap_or(found);
        let (explained, stated) = (self.model.explained(), self.stated.is_finite());
        Belief { evidence: Evidence { explained, stated, ..self.evidence }, ..belief }
    }

    fn found(&self) -> Belief {
        let rate = if self.climb.limit.is_finite() { self.climb.limit } else { self.rate };
        let evidence = Evidence::default();
        let unknown = match self.stated_window {
            Some(window) if self.stated.is_finite() => {
                let (rate, number) = (self.stated, (self.stated * window.as_secs_f64()).round());
                Belief { kind: None, confidence: 0.0, rate, number, window: Some(window), evidence }
            }
            _ => Belief { kind: None, confidence: 0.0, rate, number: 0.0, window: None, evidence },
        };
        if self.wire.state == State::On {
            let (cap, seconds) = (f64::from(self.wire.cap), self.round_trip.max(1e-6));
            let rate = cap / seconds;
            return Belief {
                kind: Some(Kind::Concurrency),
                confidence: 0.9,
                rate,
                number: cap,
                window: None,
                evidence,
            };
        }
        if let Some(cap) = self.crowd.cap() {
            let (kind, number) = (Some(Kind::Concurrency), f64::from(cap));
            return Belief { kind, confidence: 0.8, rate, number, window: None, evidence };
        }
        // A cap looks like a bucket of one.
        let doubtful = |named: &&Named| named.kind == Kind::Bucket && self.crowd.is_suspect();
        if let Some(named) = self.model.named.as_ref().filter(|named| !doubtful(named)) {
            let window = (named.window > 0.0).then(|| Duration::from_secs_f64(named.window));
            // Odds of twice what comes next are no certainty yet.
            let confidence = 1.0 - 0.5 * (-named.ahead / 8.0).exp();
            let (kind, rate, number) = (Some(named.kind), named.rate, named.number);
            return Belief { kind, confidence, rate, number, window, evidence };
        }
        if let Some(known) = &self.model.known {
            let window = Some(Duration::from_secs_f64(known.window));
            return Belief { rate: known.rate, number: known.number.floor(), window, ..unknown };
        }
        unknown
    }
}
