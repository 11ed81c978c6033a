//! What a request costs of a limit: the estimate before, the real cost after, and a server's budget that counts it (C1, H4).

use std::time::Duration;

use crate::{
    outcome::{Outcome, Processed},
    time::Timestamp,
};

/// Why a number that a response tells is no cost.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotACost {
    /// Not a number at all.
    #[error("not a number")]
    NotANumber,
    /// Nothing costs less than nothing.
    #[error("negative")]
    Negative,
    /// More than any limit counts.
    #[error("more than any limit counts")]
    TooMuch,
}

/// The cost that a response tells, `factor` times its number, rounded up. Nothing that a server says becomes another cost
/// than the one it names: what cannot be one is refused, and the estimate stays.
///
/// ```
/// use forbear_core::cost::{NotACost, told};
/// assert_eq!(told(1234.0, 1.0), Ok(1234));
/// assert_eq!(told(1234.0, 0.001), Ok(2));
/// assert_eq!(told(f64::NAN, 1.0), Err(NotACost::NotANumber));
/// assert_eq!(told(1e300, 1.0), Err(NotACost::TooMuch));
/// ```
///
/// # Errors
/// Anything but a number from 0 to `u32::MAX`.
pub fn told(number: f64, factor: f64) -> Result<u32, NotACost> {
    let cost = (number * factor).ceil();
    match cost {
        _ if cost.is_nan() => Err(NotACost::NotANumber),
        _ if cost < 0.0 => Err(NotACost::Negative),
        _ if cost > f64::from(u32::MAX) => Err(NotACost::TooMuch),
        _ => Ok(cost as u32),
    }
}

/// What a request has really cost, once it has come back; none where the estimate stays.
///
/// What the response tells is so, whatever came of the request. Otherwise one that the server refused, or never looked at,
/// has cost no more than one: most servers count no refused request, and those that do count it as a request. One that was
/// served, or may have been, keeps its estimate.
#[must_use]
pub fn real(outcome: &Outcome, told: Option<u32>) -> Option<u32> {
    told.or(match outcome {
        Outcome::Refused(_) | Outcome::NotTaken => Some(1),
        Outcome::Exit { processed: Processed::No, .. } | Outcome::Fault { processed: Processed::No, .. } => {
            Some(1)
        }
        _ => None,
    })
}

/// What is left of a server's budget that counts requests, by its last word less what was started since.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct RequestBudget {
    /// All bits where it is unknown, or more than matters: nobody has as many on the wire.
    pub(crate) left: u16,
    /// The least that was told to be left since the wire was empty last.
    pub(crate) low: u16,
    /// When it is refilled.
    pub(crate) resets: Timestamp,
}

impl RequestBudget {
    /// Nothing is known.
    pub(crate) const UNKNOWN: RequestBudget =
        RequestBudget { left: u16::MAX, low: u16::MAX, resets: Timestamp::ZERO };
}

/// What is left of a server's budget that counts cost, by its last word less what was started since.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CostBudget {
    /// [`u32::MAX`] where it is unknown.
    pub left: u32,
    /// When it is refilled; what is left counts no longer then.
    pub resets: Timestamp,
}

impl Default for CostBudget {
    fn default() -> CostBudget {
        CostBudget { left: u32::MAX, resets: Timestamp::ZERO }
    }
}

impl CostBudget {
    /// Until when a request of this cost must wait, if it must.
    #[must_use]
    pub fn wait(&self, now: Timestamp, cost: u32) -> Option<Timestamp> {
        (self.is_known(now) && cost > self.left).then_some(self.resets)
    }

    /// A request of this cost starts.
    pub fn take(&mut self, cost: u32) {
        if self.left != u32::MAX {
            self.left = self.left.saturating_sub(cost);
        }
    }

    /// A response says what is left, and when it is refilled; `alone` if nothing else was on the wire when it was written.
    ///
    /// Answers to requests that were on the wire together come in any order, and what was on its way was not counted yet: so
    /// within a window the number only falls, until one comes back alone.
    pub fn told(&mut self, left: u32, resets_in: Duration, alone: bool, now: Timestamp) {
        let left = if self.is_known(now) && !alone { left.min(self.left) } else { left };
        *self = CostBudget { left: left.min(u32::MAX - 1), resets: now.plus(resets_in) };
    }

    /// A request cost less, or more, than was taken for it.
    pub fn correct(&mut self, estimated: u32, real: u32) {
        if self.left != u32::MAX {
            self.left = self.left.saturating_add(estimated).saturating_sub(real).min(u32::MAX - 1);
        }
    }

    fn is_known(&self, now: Timestamp) -> bool {
        self.left != u32::MAX && now < self.resets
    }
}
