//! What is no quota: maintenance, a sentence on single URLs, brownout and plain faults.

use std::time::Duration;

use super::{Refusal, Rule};
use crate::rng::SplitMix64;

/// 503 for a span, once or again and again.
#[derive(Clone, Debug)]
pub(crate) struct Maintenance {
    from: Duration,
    span: Duration,
    every: Option<Duration>,
}

impl Maintenance {
    pub(crate) fn new(from: Duration, span: Duration, every: Option<Duration>) -> Maintenance {
        Maintenance { from, span, every }
    }

    /// What is left of a span that is on.
    fn left(&self, now: Duration) -> Option<Duration> {
        let since = now.checked_sub(self.from)?;
        let since = match self.every {
            Some(every) => Duration::from_nanos((since.as_nanos() % every.as_nanos()) as u64),
            None => since,
        };
        self.span.checked_sub(since).filter(|left| !left.is_zero())
    }
}

impl Rule for Maintenance {
    fn test(&mut self, now: Duration) -> bool {
        self.left(now).is_none()
    }

    fn take(&mut self, _now: Duration) {}

    fn refuse(&mut self, now: Duration) -> Refusal {
        Refusal { status: Some(503), ..Refusal::after(self.left(now).unwrap_or_default()) }
    }
}

/// Refuses from the first request on for `term`: one URL that is shut for a day among others that are not.
#[derive(Clone, Debug)]
pub(crate) struct Sentence {
    term: Duration,
    until: Option<Duration>,
}

impl Sentence {
    pub(crate) fn new(term: Duration) -> Sentence {
        Sentence { term, until: None }
    }
}

impl Rule for Sentence {
    fn test(&mut self, now: Duration) -> bool {
        self.until.is_some_and(|until| until <= now)
    }

    fn take(&mut self, _now: Duration) {}

    fn refuse(&mut self, now: Duration) -> Refusal {
        let until = *self.until.get_or_insert(now + self.term);
        Refusal::after(until - now)
    }
}

/// What a disturbance does to a request that every rule let through.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Effect {
    /// Takes this much longer.
    Slower(Duration),
    /// An error page, after this long.
    Error(u16, Duration),
    /// The connection is reset.
    Reset,
    /// Half a body.
    Truncated,
    /// Half a body, a long silence, the rest.
    Stall(Duration),
}

/// A service that works through a queue: latency is the queue, and what has waited too long fails.
#[derive(Clone, Debug)]
pub(crate) struct Brownout {
    /// Requests a second that it can work off.
    capacity: f64,
    base: Duration,
    /// From here on some fail; at twice as much, all.
    patience: Duration,
    backlog: f64,
    at: Duration,
    rng: SplitMix64,
}

impl Brownout {
    pub(crate) fn new(capacity: f64, base: Duration, patience: Duration, seed: u64) -> Brownout {
        Brownout {
            capacity,
            base,
            patience,
            backlog: 0.0,
            at: Duration::ZERO,
            rng: SplitMix64::new(seed ^ 0xb407),
        }
    }

    pub(crate) fn arrive(&mut self, now: Duration) -> Effect {
        let elapsed = now.saturating_sub(self.at).as_secs_f64();
        self.at = self.at.max(now);
        self.backlog = (self.backlog - elapsed * self.capacity).max(0.0);
        // Work is thrown away at the door once the queue is hopeless, so it recovers within seconds.
        let most = 4.0 * self.patience.as_secs_f64() * self.capacity;
        self.backlog = (self.backlog + 1.0).min(most.max(1.0));
        let queue = Duration::from_secs_f64((self.backlog - 1.0).max(0.0) / self.capacity);
        let patience = self.patience.as_secs_f64().max(1e-9);
        let failing = (queue.as_secs_f64() / patience - 1.0).clamp(0.0, 1.0);
        let roll = self.rng.next_f64();
        if roll >= failing {
            return Effect::Slower(self.base + queue);
        }
        let status = [500, 503, 504][(self.rng.next_u64() % 3) as usize];
        Effect::Error(status, self.base + queue.min(self.patience))
    }
}

/// The shares of requests that break, each way of breaking for itself; each in `[0, 1]`, and together no more than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shares {
    /// The connection is reset before any byte of an answer. Default none.
    pub reset: f64,
    /// 502. Default none.
    pub bad_gateway: f64,
    /// Half of the announced body, then the end of the connection. Default none.
    pub truncated: f64,
    /// Half of the body, then nothing for `stall`, then the rest. Default none.
    pub stalled: f64,
    /// How long a stalled body stands still. Default 30 s, which is most clients' time-out.
    pub stall: Duration,
}

impl Default for Shares {
    fn default() -> Shares {
        Shares { reset: 0.0, bad_gateway: 0.0, truncated: 0.0, stalled: 0.0, stall: Duration::from_secs(30) }
    }
}

/// Breaks requests by a schedule that only its seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Flaky {
    shares: Shares,
    rng: SplitMix64,
}

impl Flaky {
    pub(crate) fn new(shares: Shares, seed: u64) -> Flaky {
        Flaky { shares, rng: SplitMix64::new(seed ^ 0xf1a4) }
    }

    pub(crate) fn arrive(&mut self) -> Option<Effect> {
        let mut roll = self.rng.next_f64();
        let Shares { reset, bad_gateway, truncated, stalled, stall } = self.shares;
        for (share, effect) in [
            (reset, Effect::Reset),
            (bad_gateway, Effect::Error(502, Duration::ZERO)),
            (truncated, Effect::Truncated),
            (stalled, Effect::Stall(stall)),
        ] {
            if roll < share {
                return Some(effect);
            }
            roll -= share;
        }
        None
    }
}
