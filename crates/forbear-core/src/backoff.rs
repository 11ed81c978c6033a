//! How long to wait when nobody said (P4), and between tries after faults.

use std::time::Duration;

/// The shape of the jitter.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Jitter {
    /// Uniform between zero and the capped exponential; the first wait is `base` (AWS Architecture Blog, "Exponential
    /// Backoff and Jitter": fewest calls of all forms).
    #[default]
    Full,
    /// Uniform between `base` and three times the previous wait.
    Decorrelated,
    /// The capped exponential times 0.5 to 1.5.
    Equal,
    /// The capped exponential, and up to half of it on top.
    Half,
    /// None: the capped exponential itself (`jitter = 0`).
    Off,
}

/// A capped exponential with jitter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Backoff {
    base: Duration,
    cap: Duration,
    jitter: Jitter,
}

/// Why a backoff cannot be built.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BackoffError {
    /// Without a base every wait would be none.
    #[error("backoff_base must be longer than nothing")]
    ZeroBase,
    /// The cap would shorten the very first wait.
    #[error("backoff_cap ({cap:?}) must not be shorter than backoff_base ({base:?})")]
    CapBelowBase {
        /// The base given.
        base: Duration,
        /// The cap given.
        cap: Duration,
    },
}

impl Backoff {
    /// Waits from `base`, doubling up to `cap`.
    ///
    /// # Errors
    /// A base of zero, or a cap below it.
    pub fn new(base: Duration, cap: Duration, jitter: Jitter) -> Result<Backoff, BackoffError> {
        if base.is_zero() {
            return Err(BackoffError::ZeroBase);
        }
        if cap < base {
            return Err(BackoffError::CapBelowBase { base, cap });
        }
        Ok(Backoff { base, cap, jitter })
    }

    /// The shortest wait.
    #[must_use]
    pub fn base(&self) -> Duration {
        self.base
    }

    /// The longest wait before jitter adds to it.
    #[must_use]
    pub fn cap(&self) -> Duration {
        self.cap
    }

    /// The wait after `earlier` waits, never below `base` (P4). `cap` replaces the configured one where a refused probe
    /// has raised it (B3); `roll` is in `[0, 1)`.
    #[must_use]
    pub fn wait(&self, earlier: u32, cap: Duration, roll: f64) -> Duration {
        let ceiling = self.base.saturating_mul(2u32.saturating_pow(earlier.min(31))).min(cap.max(self.base));
        let wait = match self.jitter {
            Jitter::Full => self.base + (ceiling - self.base).mul_f64(roll),
            // Without the previous wait at hand its mean stands for it: the form's memory is the level itself.
            Jitter::Decorrelated => {
                let previous =
                    self.base.saturating_mul(2u32.saturating_pow(earlier.saturating_sub(1).min(31)));
                let high =
                    if earlier == 0 { self.base } else { previous.saturating_mul(3).min(cap.max(self.base)) };
                self.base + high.saturating_sub(self.base).mul_f64(roll)
            }
            Jitter::Equal => ceiling.mul_f64(0.5 + roll),
            Jitter::Half | Jitter::Off => self.spread(ceiling, roll),
        };
        wait.max(self.base)
    }

    /// `wait` with the chance of this form that only adds.
    #[must_use]
    pub fn spread(&self, wait: Duration, roll: f64) -> Duration {
        if self.jitter == Jitter::Half { wait.mul_f64(1.0 + roll / 2.0) } else { wait }
    }

    /// [`Backoff::wait`] under the configured cap.
    #[must_use]
    pub fn delay(&self, earlier: u32, roll: f64) -> Duration {
        self.wait(earlier, self.cap, roll)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn p4_capped_exponential_never_below_base() {
        for jitter in [Jitter::Full, Jitter::Decorrelated, Jitter::Equal, Jitter::Half, Jitter::Off] {
            let b = Backoff::new(S, 60 * S, jitter).unwrap();
            for level in [0, 1, 2, 5, 10, 31, u32::MAX] {
                for roll in [0.0, 0.3, 0.999_999] {
                    let wait = b.delay(level, roll);
                    assert!(wait >= S && wait <= 90 * S, "{jitter:?} {level} {roll}: {wait:?}");
                }
            }
        }
        let b = Backoff::new(S, 60 * S, Jitter::Full).unwrap();
        assert_eq!(b.delay(0, 0.9), S, "the first wait is the base");
        assert_eq!(b.delay(3, 0.0), S, "full jitter reaches down to the base");
        assert!(b.delay(3, 0.999) > 7 * S);
        assert!(b.wait(20, 300 * S, 0.999) > 290 * S, "a raised cap is used");
    }

    #[test]
    fn p4_an_impossible_backoff_cannot_be_built() {
        assert_eq!(Backoff::new(Duration::ZERO, S, Jitter::Full), Err(BackoffError::ZeroBase));
        assert!(matches!(Backoff::new(2 * S, S, Jitter::Full), Err(BackoffError::CapBelowBase { .. })));
    }
}
