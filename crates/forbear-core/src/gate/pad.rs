//! What a scope adds to told times beside its policy's pad, since its server's told times were too short (P5).
//!
//! Servers round down, write the time before they queue the answer, or count on another clock than the one that they tell.
//! A probe that is refused right after its told time shows by how much at least.

use std::time::Duration;

use super::{Cause, Gate, Sent};
use crate::{
    policy::{Pad, ScopePolicy},
    time::Timestamp,
};

/// A pad that grows by refused probes, and shrinks after many good ones.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Learned {
    /// In milliseconds; zero where the policy's pad has been enough so far.
    pub(super) ms: u16,
    /// Probes in a row that were admitted right after it.
    pub(super) good: u8,
}

impl Learned {
    /// What is added to `told`: the policy's pad, or what was learned where that is more.
    fn over(self, policy: &Pad, told: Duration) -> Duration {
        let pad = policy.over(told);
        if self.ms == 0 { pad } else { pad.max(self.value().min(most(told))) }
    }

    /// What was learned; none where the policy's pad has been enough.
    fn value(self) -> Duration {
        Duration::from_millis(u64::from(self.ms))
    }

    /// A probe that left `late` after the told time was refused. `missing` is by how much the told time was too short by
    /// the server's new word, and whether that word was finer than a second; none where it was told nothing.
    fn too_short(&mut self, policy: &Pad, told: Duration, late: Duration, missing: Option<(Duration, bool)>) {
        let now = self.over(policy, told);
        let guess = (now * 2).max(late + late / 2).max(FIRST);
        let next = match missing {
            Some((missing, true)) => missing,
            // Whole seconds are rounded, so it is no more than that.
            Some((missing, false)) => guess.min(missing),
            None => guess,
        };
        let next = next.min(most(told)).max(now).as_millis();
        self.ms = u16::try_from(next).unwrap_or(u16::MAX);
        self.good = 0;
    }

    /// A probe that left right after a told time was admitted.
    fn was_enough(&mut self, policy: &Pad) {
        if self.ms == 0 {
            return;
        }
        self.good += 1;
        if self.good >= GOOD {
            self.good = 0;
            self.ms -= self.ms.div_ceil(8);
            if self.value() <= policy.fixed {
                self.ms = 0;
            }
        }
    }
}

impl Gate {
    /// What is added to a told time.
    pub(super) fn pad(&self, policy: &ScopePolicy, told: Duration) -> Duration {
        self.probe.pad.over(&policy.pad, told)
    }

    /// The probe that was `sent` has been refused, and told to wait for `wait` from `now` on.
    pub(super) fn pad_was_short(
        &mut self,
        policy: &ScopePolicy,
        sent: Sent,
        wait: Option<Duration>,
        now: Timestamp,
    ) {
        let Some((told, late)) = self.right_after_told(sent) else { return };
        let missing = wait.map(|wait| (late + now.since(sent.at) + wait, wait.subsec_nanos() > 0));
        self.probe.pad.too_short(&policy.pad, told, late, missing);
    }

    /// The probe that was `sent` has been admitted.
    pub(super) fn pad_was_enough(&mut self, policy: &ScopePolicy, sent: Sent) {
        if self.right_after_told(sent).is_some() {
            self.probe.pad.was_enough(&policy.pad);
        }
    }

    /// Of a probe that left so soon after a told time that its answer says whether that was long enough: the told time, and
    /// how long after it the probe left.
    fn right_after_told(&self, sent: Sent) -> Option<(Duration, Duration)> {
        let told_until = self.told_until();
        if self.probe.early || !matches!(self.cause, Cause::Told | Cause::Budget) || sent.at < told_until {
            return None;
        }
        let (told, late) = (told_until.since(self.closed_at), sent.at.since(told_until));
        (late <= most(told)).then_some((told, late))
    }
}

/// The most that is learned for a told time: longer than that it was not rounded, but wrong, and B3's pauses are for that.
/// A probe that leaves later than this says nothing about the pad.
fn most(told: Duration) -> Duration {
    (told / 4).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// The first step, where the policy adds nothing.
const FIRST: Duration = Duration::from_millis(50);
/// So many good probes in a row make the pad shorter by an eighth: one that is too short then costs one refusal in a few
/// hundred pauses.
const GOOD: u8 = 64;
