//! What of a learner outlives its process (L5).

use super::{Belief, Learner, Past, SLOWEST, State};
use crate::time::Timestamp;

/// What was learned of a scope, small enough to be kept with it. The past that it was learned from is not kept: after a restart
/// the limit is met once before its kind is known again.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Kept {
    /// When that was.
    pub at: Timestamp,
    /// Starts a second.
    pub pace: f64,
    /// The pace at which it was refused; infinite where it never was.
    pub limit: f64,
    /// The most on the wire; [`u32::MAX`] where that is not what is limited.
    pub cap: u32,
    /// What was believed.
    pub belief: Belief,
}

impl Learner {
    /// What is to be kept.
    #[must_use]
    pub fn kept(&self, now: Timestamp) -> Kept {
        if self.due.is_some() {
            let mut learner = self.clone();
            learner.conclude(); // whoever reads it cannot wait for what is still looked for
            return learner.kept(now);
        }
        let capped = self.wire.state == State::On;
        let pace = if capped { f64::from(self.wire.cap) / self.round_trip.max(1e-3) } else { self.rate };
        let cap = if capped { self.wire.cap } else { u32::MAX };
        Kept { at: now, pace, limit: self.climb.limit, cap, belief: self.belief() }
    }

    /// A learner that goes on from what was kept. The older that is, the lower it begins: at once at the pace that it had, after
    /// a day at half of it; and it climbs to the old limit by the usual steps, so a limit that has fallen is met from below.
    #[must_use]
    pub fn restore(kept: &Kept, past: &Past) -> Learner {
        let mut learner = Learner::new(past);
        if !(kept.pace.is_finite() && kept.pace > 0.0 && kept.limit > 0.0) {
            return learner; // nobody can learn from such a thing
        }
        let days = past.until.since(kept.at).as_secs_f64() / 86_400.0;
        let trust = (1.0 - 0.5 * days).max(0.5);
        learner.model.opening.forget(); // the limit has counted before
        learner.rate = (kept.pace * trust).max(SLOWEST);
        learner.evidence = kept.belief.evidence;
        learner.prior = Some(Belief { confidence: kept.belief.confidence * trust, ..kept.belief });
        if kept.limit.is_finite() {
            learner.climb.set(learner.rate, kept.limit, learner.settle.margin());
        }
        if kept.cap != u32::MAX {
            // Tried anew, for it is all that the pace came from.
            learner.wire.try_cap(kept.cap.saturating_add(1), kept.pace, 0.0, 0.0);
        }
        learner
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::learn::{Evidence, Kind};

    fn believed(since: Timestamp) -> Belief {
        Belief {
            kind: Some(Kind::FixedWindow),
            confidence: 0.9,
            rate: 40.0,
            number: 2400.0,
            window: Some(Duration::from_secs(60)),
            evidence: Evidence { since, incidents: 4, refused: 6, accepted: 9000, ..Evidence::default() },
        }
    }

    #[test]
    fn l5_what_was_learned_survives_and_ages() {
        let now = Timestamp::from_secs(1_000_000);
        let kept = Kept { at: now, pace: 40.0, limit: 42.0, cap: u32::MAX, belief: believed(now) };
        let after = |hours: u64| Past::none(now.plus(Duration::from_secs(3600 * hours)), 2.0);
        let begins = |hours: u64| Learner::restore(&kept, &after(hours)).rate();
        assert_eq!(begins(0), 40.0, "nothing is lost by a restart");
        assert!(begins(12) < begins(1) && begins(1) < begins(0));
        assert_eq!(begins(24), 20.0);
        assert_eq!(begins(24 * 365), 20.0, "half of it is still better than nothing known");
        let again = Learner::restore(&kept, &Past::none(now, 2.0)).kept(now);
        assert_eq!((again.pace, again.limit, again.cap), (40.0, 42.0, u32::MAX));
        let (kind, number) = (again.belief.kind, again.belief.number);
        assert_eq!((kind, number), (Some(Kind::FixedWindow), 2400.0), "and what was believed is still said");
    }

    #[test]
    fn l5_what_cannot_be_is_not_believed() {
        let now = Timestamp::from_secs(1_000_000);
        for (pace, limit) in [(f64::NAN, 1.0), (-1.0, 1.0), (0.0, 1.0), (f64::INFINITY, 1.0), (1.0, f64::NAN)]
        {
            let kept = Kept { at: now, pace, limit, cap: u32::MAX, belief: believed(now) };
            let past = Past::none(now, 2.0);
            assert_eq!(Learner::restore(&kept, &past), Learner::new(&past), "{pace} {limit}");
        }
    }
}
