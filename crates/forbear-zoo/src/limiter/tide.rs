//! A token bucket whose rate changes with time: by steps, as after a new plan, or in waves, as when others share the limit.

use std::time::Duration;

use super::{Budget, Refusal, Rule};

/// How a rate moves: a wave around its mean, steps that stay, or both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tide {
    /// Share of the mean that a sine goes up and down by, and its period.
    pub(crate) wave: Option<(f64, Duration)>,
    /// From when on the rate is how many times its first value; in the order of time.
    pub(crate) steps: Vec<(Duration, f64)>,
}

impl Tide {
    /// With a sine of this share of the rate, once every `period`.
    #[must_use]
    pub fn wave(self, share: f64, period: Duration) -> Tide {
        Tide { wave: Some((share, period)), ..self }
    }

    /// With a rate that is `factor` times the first one from `at` on, until the next step.
    #[must_use]
    pub fn step(mut self, at: Duration, factor: f64) -> Tide {
        self.steps.push((at, factor));
        self.steps.sort_by_key(|(at, _)| *at);
        self
    }

    /// Whether nothing moves.
    #[must_use]
    pub fn is_still(&self) -> bool {
        self.wave.is_none() && self.steps.is_empty()
    }

    /// Seconds at the first rate that come to the same as the time from `from` to `to`.
    #[must_use]
    pub fn between(&self, from: Duration, to: Duration) -> f64 {
        if to <= from {
            return 0.0;
        }
        let mut sum = 0.0;
        let (mut at, mut factor) = (from, 1.0);
        for (start, next) in &self.steps {
            if *start > at && *start < to {
                sum += factor * self.wave_between(at, *start);
                at = *start;
            }
            if *start < to {
                factor = *next;
            }
        }
        sum + factor * self.wave_between(at, to)
    }

    fn wave_between(&self, from: Duration, to: Duration) -> f64 {
        let (from, to) = (from.as_secs_f64(), to.as_secs_f64());
        let Some((share, period)) = self.wave else { return to - from };
        let turn = std::f64::consts::TAU / period.as_secs_f64();
        (to - from) + share / turn * ((turn * from).cos() - (turn * to).cos())
    }
}

/// A bucket that fills by the tide.
#[derive(Clone, Debug)]
pub(crate) struct TidalBucket {
    hertz: f64,
    burst: f64,
    tide: Tide,
    tokens: f64,
    at: Duration,
    rejected_count: bool,
}

impl TidalBucket {
    pub(crate) fn new(hertz: f64, burst: u32, tide: Tide, rejected_count: bool) -> TidalBucket {
        let burst = f64::from(burst);
        TidalBucket { hertz, burst, tide, tokens: burst, at: Duration::ZERO, rejected_count }
    }

    fn flow(&mut self, now: Duration) {
        if now > self.at {
            let flown = self.hertz * self.tide.between(self.at, now);
            self.tokens = (self.tokens + flown).min(self.burst);
            self.at = now;
        }
    }

    /// At the present rate: nobody can promise the future one.
    fn until(&self, tokens: f64) -> Duration {
        let now = self.hertz * self.tide.between(self.at, self.at + Duration::from_millis(1)) * 1000.0;
        Duration::from_secs_f64(((tokens - self.tokens) / now.max(1e-6)).clamp(0.0, 86_400.0))
    }
}

impl Rule for TidalBucket {
    fn test(&mut self, now: Duration) -> bool {
        self.flow(now);
        self.tokens >= 1.0 - 1e-6 // a token is whole when it is due, whatever the last bit says
    }

    fn take(&mut self, now: Duration) {
        self.flow(now);
        self.tokens -= 1.0;
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        self.flow(now);
        if self.rejected_count {
            self.tokens = (self.tokens - 1.0).max(-self.burst);
        }
        Refusal::after(self.until(1.0))
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        self.flow(now);
        Some(Budget {
            limit: self.burst as u64,
            remaining: self.tokens.max(0.0) as u64,
            reset: self.until(self.burst),
            window: Duration::from_secs_f64(self.burst / self.hertz),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_tide_adds_up() {
        let steps = Tide { wave: None, steps: vec![(10 * S, 0.5), (20 * S, 3.0)] };
        assert_eq!(steps.between(Duration::ZERO, 10 * S), 10.0);
        assert_eq!(steps.between(5 * S, 25 * S), 5.0 + 5.0 + 15.0);
        assert_eq!(steps.between(30 * S, 31 * S), 3.0);
        assert_eq!(steps.between(31 * S, 30 * S), 0.0);
        let wave = Tide { wave: Some((0.5, 100 * S)), steps: vec![] };
        assert!((wave.between(Duration::ZERO, 100 * S) - 100.0).abs() < 1e-9, "a whole wave is the mean");
        assert!(wave.between(20 * S, 30 * S) > 14.5, "the crest");
        assert!(wave.between(70 * S, 80 * S) < 5.5, "the trough");
    }

    #[test]
    fn a_bucket_follows_its_tide() {
        let mut bucket = TidalBucket::new(10.0, 1, Tide { wave: None, steps: vec![(100 * S, 0.2)] }, false);
        let mut served = |from: u32, to: u32| {
            let ticks = (from * 100..to * 100).map(|n| Duration::from_millis(u64::from(n) * 10));
            ticks
                .filter(|at| {
                    bucket.test(*at) && {
                        bucket.take(*at);
                        true
                    }
                })
                .count()
        };
        assert!((990..=1001).contains(&served(0, 100)));
        assert!((195..=201).contains(&served(100, 200)));
    }
}
