//! How long things take on the way and at the server.

use std::time::Duration;

use forbear_zoo::SplitMix64;

/// The time from a start to its answer, as two parts: the way there and back, and the server's own time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Latency {
    /// There and back. A refusal takes no longer than this.
    pub round_trip: Duration,
    /// The mean of the server's own time for a request that it lets through.
    pub service: Duration,
    /// Its coefficient of variation, 0 for a constant. The distribution is lognormal, as measured latencies mostly are.
    pub spread: f64,
}

impl Latency {
    /// The mean time from a start to its answer.
    #[must_use]
    pub fn mean(&self) -> Duration {
        self.round_trip + self.service
    }

    /// One service time, by chance.
    #[must_use]
    pub fn sample(&self, chance: &mut SplitMix64) -> Duration {
        if self.spread <= 0.0 {
            return self.service;
        }
        let variance = (1.0 + self.spread * self.spread).ln();
        let factor = (variance.sqrt() * normal(chance) - variance / 2.0).exp();
        self.service.mul_f64(factor.min(50.0))
    }
}

/// A standard normal number (Box and Muller, 1958).
fn normal(chance: &mut SplitMix64) -> f64 {
    let radius = (-2.0 * (1.0 - chance.next_f64()).ln()).sqrt();
    radius * (std::f64::consts::TAU * chance.next_f64()).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn service_times_have_the_mean_and_the_spread_that_were_asked_for() {
        let latency =
            Latency { round_trip: Duration::ZERO, service: Duration::from_millis(100), spread: 0.5 };
        let mut chance = SplitMix64::new(1);
        let times: Vec<f64> = (0..100_000).map(|_| latency.sample(&mut chance).as_secs_f64()).collect();
        let mean = times.iter().sum::<f64>() / 1e5;
        let deviation = (times.iter().map(|t| (t - mean).powi(2)).sum::<f64>() / 1e5).sqrt();
        assert!((mean - 0.1).abs() < 0.001, "{mean}");
        assert!((deviation / mean - 0.5).abs() < 0.02, "{deviation}");
    }
}
