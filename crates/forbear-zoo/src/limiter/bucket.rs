//! Token bucket, and GCRA: the same limit kept as one timestamp.

use std::time::Duration;

use super::{Budget, Refusal, Rule};
use crate::spec::Rate;

/// Holds up to `burst` tokens; `rate` flow in; a request takes one.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    rate: Rate,
    burst: u32,
    /// Tokens times the nanoseconds of the rate's period: exact in integers. Negative while in debt.
    credit: i128,
    at: Duration,
    rejected_count: bool,
}

impl TokenBucket {
    pub(crate) fn new(rate: Rate, burst: u32, rejected_count: bool) -> TokenBucket {
        let credit = i128::from(burst) * rate.per_nanos();
        TokenBucket { rate, burst, credit, at: Duration::ZERO, rejected_count }
    }

    fn flow(&mut self, now: Duration) {
        let elapsed = now.saturating_sub(self.at).as_nanos() as i128;
        self.at = self.at.max(now);
        let full = i128::from(self.burst) * self.rate.per_nanos();
        self.credit = self.credit.saturating_add(elapsed * i128::from(self.rate.count())).min(full);
    }

    fn until(&self, credit: i128) -> Duration {
        let missing = (credit - self.credit).max(0);
        nanos(div_ceil(missing, i128::from(self.rate.count())))
    }
}

impl Rule for TokenBucket {
    fn test(&mut self, now: Duration) -> bool {
        self.flow(now);
        self.credit >= self.rate.per_nanos()
    }

    fn take(&mut self, now: Duration) {
        self.flow(now);
        self.credit -= self.rate.per_nanos();
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        self.flow(now);
        if self.rejected_count {
            // Debt goes as deep as the bucket is high, else a flood would close it for ever.
            let floor = -i128::from(self.burst) * self.rate.per_nanos();
            self.credit = (self.credit - self.rate.per_nanos()).max(floor);
        }
        Refusal::after(self.until(self.rate.per_nanos()))
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        self.flow(now);
        let full = i128::from(self.burst) * self.rate.per_nanos();
        Some(Budget {
            limit: u64::from(self.burst),
            remaining: (self.credit / self.rate.per_nanos()).max(0) as u64,
            reset: self.until(full),
            window: nanos(div_ceil(full, i128::from(self.rate.count()))),
        })
    }
}

/// The theoretical arrival time of the next request at the exact pace; a request may come up to `burst` intervals early.
#[derive(Clone, Debug)]
pub(crate) struct Gcra {
    interval: Duration,
    burst: u32,
    tat: Duration,
    rejected_count: bool,
}

impl Gcra {
    pub(crate) fn new(rate: Rate, burst: u32, rejected_count: bool) -> Gcra {
        let interval = nanos(div_ceil(rate.per_nanos(), i128::from(rate.count())));
        Gcra { interval, burst, tat: Duration::ZERO, rejected_count }
    }

    fn tolerance(&self) -> Duration {
        self.interval.saturating_mul(self.burst.saturating_sub(1))
    }
}

impl Rule for Gcra {
    fn test(&mut self, now: Duration) -> bool {
        self.tat <= now.saturating_add(self.tolerance())
    }

    fn take(&mut self, now: Duration) {
        self.tat = self.tat.max(now).saturating_add(self.interval);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        if self.rejected_count {
            // As deep as a bucket's debt: one burst.
            let deepest = now.saturating_add(self.interval.saturating_mul(self.burst.saturating_mul(2)));
            self.tat = self.tat.saturating_add(self.interval).min(deepest);
        }
        Refusal::after(self.tat.saturating_sub(now.saturating_add(self.tolerance())))
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        let window = self.interval.saturating_mul(self.burst);
        let reset = self.tat.saturating_sub(now);
        let free = window.saturating_sub(reset);
        let remaining = (free.as_nanos() / self.interval.as_nanos().max(1)) as u64;
        Some(Budget { limit: u64::from(self.burst), remaining, reset, window })
    }
}

fn div_ceil(value: i128, by: i128) -> i128 {
    (value + by - 1) / by
}

fn nanos(value: i128) -> Duration {
    Duration::from_nanos(u64::try_from(value.max(0)).unwrap_or(u64::MAX))
}
