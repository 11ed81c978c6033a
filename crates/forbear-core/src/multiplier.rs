//! The retry multiplier: requests sent for each item that ended, and what it does to the concurrency of a whole run (V3).

use std::time::Duration;

use crate::time::Timestamp;

/// Watches one run. 1.05 to 1.2 is healthy; a fleet that sends twice what it gets done is most of its own overload.
///
/// ```
/// use forbear_core::{multiplier::RetryMultiplier, time::Timestamp};
/// use std::time::Duration;
///
/// let (mut multiplier, start) = (RetryMultiplier::default(), Timestamp::from_secs(1_000));
/// for _ in 0..400 { multiplier.sent(start); }
/// for _ in 0..200 { multiplier.ended(); }
/// assert_eq!(multiplier.value(), Some(2.0));
/// assert_eq!(multiplier.share(), 1.0);
/// multiplier.sent(start.plus(Duration::from_secs(300)));
/// assert_eq!(multiplier.share(), 0.7, "over 1.5 in a window of five minutes: fewer at once");
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryMultiplier {
    /// When the present window began, and what was counted in it.
    began: Timestamp,
    sent: u64,
    ended: u64,
    /// The value of the last whole window.
    last: Option<f64>,
    share: f64,
}

impl Default for RetryMultiplier {
    fn default() -> RetryMultiplier {
        RetryMultiplier { began: Timestamp::ZERO, sent: 0, ended: 0, last: None, share: 1.0 }
    }
}

impl RetryMultiplier {
    /// A request is sent. True when a window has ended with it, so that [`RetryMultiplier::share`] may have changed.
    pub fn sent(&mut self, now: Timestamp) -> bool {
        if self.began == Timestamp::ZERO {
            self.began = now;
        }
        let over = self.sent >= ATTEMPTS && now.since(self.began) >= WINDOW;
        if over {
            let value = self.now();
            if value > TOO_MANY {
                self.share = (self.share * CUT).max(LEAST);
            } else if value < FEW {
                self.share = (self.share + BACK).min(1.0);
            }
            (self.last, self.began, self.sent, self.ended) = (Some(value), now, 0, 0);
        }
        self.sent += 1;
        over
    }

    /// An item has ended, done or failed.
    pub fn ended(&mut self) {
        self.ended += 1;
    }

    /// Requests for each item that ended: of the present window once it has 200 attempts, else of the last one.
    #[must_use]
    pub fn value(&self) -> Option<f64> {
        if self.sent >= ATTEMPTS { Some(self.now()) } else { self.last }
    }

    /// The share of its concurrency that the run may use, above 0 and up to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.share
    }

    fn now(&self) -> f64 {
        self.sent as f64 / self.ended.max(1) as f64
    }
}

/// V3: the window, its least number of attempts, and the bounds of the multiplier.
const WINDOW: Duration = Duration::from_secs(300);
const ATTEMPTS: u64 = 200;
const TOO_MANY: f64 = 1.5;
const FEW: f64 = 1.2;
/// What a window over the bound leaves of the concurrency, and what one under it gives back of the whole.
const CUT: f64 = 0.7;
const BACK: f64 = 0.1;
/// A run that gets nothing done at all still asks now and then.
const LEAST: f64 = 0.01;

#[cfg(test)]
mod tests {
    use super::*;

    /// Windows of five minutes with so many attempts for each hundred items.
    fn shares(attempts: &[u32]) -> Vec<f64> {
        let (mut multiplier, mut now) = (RetryMultiplier::default(), Timestamp::from_secs(1_000));
        let mut shares = Vec::new();
        for attempts in attempts {
            for _ in 0..*attempts * 3 {
                multiplier.sent(now);
            }
            for _ in 0..300 {
                multiplier.ended();
            }
            now = now.plus(WINDOW);
            multiplier.sent(now);
            shares.push((multiplier.share() * 1000.0).round() / 1000.0);
        }
        shares
    }

    #[test]
    fn v3_over_a_half_more_the_run_slows_down_and_comes_back_by_tenths() {
        assert_eq!(shares(&[160, 200, 130, 110, 110, 110]), [0.7, 0.49, 0.49, 0.59, 0.69, 0.79]);
        assert_eq!(shares(&[100; 12]).last(), Some(&1.0));
        assert_eq!(shares(&[900; 40]).last(), Some(&LEAST));
    }

    #[test]
    fn v3_a_few_attempts_say_nothing() {
        let (mut multiplier, start) = (RetryMultiplier::default(), Timestamp::from_secs(1_000));
        for n in 0..199 {
            multiplier.sent(start.plus(Duration::from_secs(60 * n)));
        }
        assert_eq!((multiplier.value(), multiplier.share()), (None, 1.0));
        multiplier.sent(start.plus(Duration::from_secs(60 * 199)));
        assert_eq!(multiplier.value(), Some(200.0));
    }
}
