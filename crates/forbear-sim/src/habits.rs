//! What others do, to compare with: retry loops of each worker for itself, two well-known rate controllers, and an oracle
//! that knows the limit.

mod board;

use std::time::Duration;

use forbear_core::time::Timestamp;

use crate::{
    client::{Client, Go, Reply},
    scenario::{TrueKind, Truth},
    world::EPOCH,
};

pub use board::Board;

/// When a worker that was refused tries again, for itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Retry {
    /// After the same time, always.
    Every(Duration),
    /// After twice the time of the last try, whatever was told.
    Doubling {
        /// The first wait.
        base: Duration,
    },
    /// Full jitter between nothing and `base * 2^attempt`, at most `cap`; a told wait is obeyed first.
    FullJitter {
        /// The first ceiling.
        base: Duration,
        /// The last one.
        cap: Duration,
    },
}

/// Workers that know nothing of each other.
#[derive(Clone, Debug)]
pub struct Alone {
    retry: Retry,
    attempts: Vec<u32>,
}

impl Alone {
    /// So many `workers`, each with this retry.
    #[must_use]
    pub fn new(retry: Retry, workers: u32) -> Alone {
        Alone { retry, attempts: vec![0; workers as usize] }
    }
}

impl Client for Alone {
    type Ticket = ();
    const SHARED: bool = false;
    const FORBEARS: bool = false;

    fn ask(&mut self, _worker: u32, _now: Timestamp) -> Go<()> {
        Go::Send(())
    }

    fn answered(&mut self, worker: u32, (): (), reply: &Reply, now: Timestamp, roll: f64) -> Timestamp {
        let Some(attempt) = self.attempts.get_mut(worker as usize) else { return now };
        if !reply.refused {
            *attempt = 0;
            return now;
        }
        let wait = match self.retry {
            Retry::Every(wait) => wait,
            Retry::Doubling { base } => base.saturating_mul(2u32.saturating_pow(*attempt)),
            Retry::FullJitter { base, cap } => {
                let ceiling = base.saturating_mul(2u32.saturating_pow(*attempt)).min(cap);
                reply.told.unwrap_or_default() + ceiling.mul_f64(roll)
            }
        };
        *attempt += 1;
        now.plus(wait)
    }
}

/// Additive increase, multiplicative decrease of a shared start rate: 1/s more each second, 0.7 of it after a refusal, once
/// for all that was on the wire.
#[derive(Clone, Copy, Debug)]
pub struct Aimd {
    rate: f64,
    next: Timestamp,
    grown: Timestamp,
    cut: Timestamp,
}

impl Aimd {
    /// From one a second.
    #[must_use]
    pub fn new() -> Aimd {
        Aimd { rate: 1.0, next: EPOCH, grown: EPOCH, cut: Timestamp::ZERO }
    }
}

impl Default for Aimd {
    fn default() -> Aimd {
        Aimd::new()
    }
}

impl Client for Aimd {
    type Ticket = Timestamp;
    const FORBEARS: bool = false;

    fn ask(&mut self, _worker: u32, now: Timestamp) -> Go<Timestamp> {
        if now < self.next {
            return Go::At(self.next);
        }
        self.rate += now.since(self.grown).as_secs_f64();
        self.grown = now;
        self.next = now.plus(Duration::from_secs_f64(1.0 / self.rate));
        Go::Send(now)
    }

    fn answered(&mut self, _: u32, sent: Timestamp, reply: &Reply, now: Timestamp, _: f64) -> Timestamp {
        if reply.refused && sent > self.cut {
            (self.rate, self.cut) = ((self.rate * 0.7).max(0.1), now);
        }
        now
    }

    fn pace(&self) -> Option<f64> {
        Some(self.rate)
    }
}

/// The adaptive retry mode of the AWS SDKs: a token bucket whose rate follows CUBIC, from the first refusal on.
/// Constants and rules as in `smithy-rs`, `client_rate_limiter.rs`.
#[derive(Clone, Copy, Debug)]
pub struct Cubic {
    on: bool,
    fill: f64,
    capacity: f64,
    tokens: f64,
    refilled: Timestamp,
    last_max: f64,
    throttled: Timestamp,
    measured: f64,
    half_second: u64,
    count: f64,
}

impl Cubic {
    /// Unlimited until the first refusal.
    #[must_use]
    pub fn new() -> Cubic {
        Cubic {
            on: false,
            fill: 0.0,
            capacity: 0.0,
            tokens: 0.0,
            refilled: EPOCH,
            last_max: 0.0,
            throttled: EPOCH,
            measured: 0.0,
            half_second: 0,
            count: 0.0,
        }
    }

    fn refill(&mut self, now: Timestamp) {
        let flown = self.fill * now.since(self.refilled).as_secs_f64();
        (self.tokens, self.refilled) = ((self.tokens + flown).min(self.capacity), now);
    }

    fn measure(&mut self, now: Timestamp) {
        self.count += 1.0;
        let half = now.as_micros() / 500_000;
        if half > self.half_second {
            let elapsed = (half - self.half_second).min(1000) as f64 / 2.0;
            self.measured = 0.8 * self.count / elapsed + 0.2 * self.measured;
            (self.half_second, self.count) = (half, 0.0);
        }
    }
}

impl Default for Cubic {
    fn default() -> Cubic {
        Cubic::new()
    }
}

impl Client for Cubic {
    type Ticket = ();
    const FORBEARS: bool = false;

    fn ask(&mut self, _worker: u32, now: Timestamp) -> Go<()> {
        if self.on {
            self.refill(now);
            if self.tokens < 1.0 {
                return Go::At(now.plus(Duration::from_secs_f64((1.0 - self.tokens) / self.fill)));
            }
            self.tokens -= 1.0;
        }
        Go::Send(())
    }

    fn answered(&mut self, _: u32, (): (), reply: &Reply, now: Timestamp, _: f64) -> Timestamp {
        self.measure(now);
        let rate = if reply.refused {
            let rate = if self.on { self.measured.min(self.fill) } else { self.measured };
            (self.last_max, self.throttled, self.on) = (rate, now, true);
            rate * 0.7
        } else {
            let k = (self.last_max * 0.3 / 0.4).cbrt();
            0.4 * (now.since(self.throttled).as_secs_f64() - k).powi(3) + self.last_max
        };
        if self.on {
            self.refill(now);
            let rate = rate.min(2.0 * self.measured);
            (self.fill, self.capacity) = (rate.max(0.5), rate.max(1.0));
            self.tokens = self.tokens.min(self.capacity);
        }
        now
    }

    fn pace(&self) -> Option<f64> {
        self.on.then_some(self.fill)
    }
}

/// Knows the limit, and keeps to it evenly.
#[derive(Clone, Debug)]
pub struct Oracle {
    truth: Truth,
    next: Timestamp,
    on_wire: f64,
}

impl Oracle {
    /// Before this limit.
    #[must_use]
    pub fn new(truth: Truth) -> Oracle {
        Oracle { truth, next: EPOCH, on_wire: 0.0 }
    }
}

impl Client for Oracle {
    type Ticket = ();
    /// It goes by the limit alone: a refusal, where others share it, changes nothing.
    const FORBEARS: bool = false;

    fn ask(&mut self, _worker: u32, now: Timestamp) -> Go<()> {
        if self.truth.kind == TrueKind::Concurrency {
            if self.on_wire >= self.truth.number {
                return Go::Full;
            }
        } else {
            if now < self.next {
                return Go::At(self.next);
            }
            let (at, tick) = (now.since(EPOCH), Duration::from_millis(1));
            let mut rate = self.truth.allowed(at, at + tick) / tick.as_secs_f64();
            if self.truth.kind == TrueKind::Sliding {
                // A counter rounds up: of two weighted counts one request more than a whole number is one too many.
                rate *= ((self.truth.number - 1.0) / self.truth.number).max(0.5);
            }
            // Never a microsecond early: the limiter's clock and ours round differently.
            self.next = now.plus(Duration::from_secs_f64(1.0 / rate) + Duration::from_micros(1));
        }
        self.on_wire += 1.0;
        Go::Send(())
    }

    fn answered(&mut self, _: u32, (): (), _: &Reply, now: Timestamp, _: f64) -> Timestamp {
        self.on_wire -= 1.0;
        now
    }
}
