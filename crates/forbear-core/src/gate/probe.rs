//! The right to be the one request that tests a paused scope (B1).

use std::time::Duration;

use super::pad::Learned;
use crate::time::Timestamp;

/// Which probe a request is. Fences of a gate only grow, so a late answer on an old lease opens nothing.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Fence(pub(super) u32);

impl Fence {
    /// A request that probes nothing.
    pub const NONE: Fence = Fence(0);

    /// Whether the request is a probe.
    #[must_use]
    pub fn is_probe(self) -> bool {
        self != Fence::NONE
    }
}

/// The probe of a gate: who holds it, and until when without a sign of life.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Probe {
    pub(super) last: u32,
    pub(super) held: Fence,
    pub(super) until: Timestamp,
    /// It tests a told time over `pause_cap` before that time is over (P7).
    pub(super) early: bool,
    /// What probes have shown about told times (P5).
    pub(super) pad: Learned,
}

impl Probe {
    /// Takes the lease, from whomever held it before: its time was over, or nobody did.
    pub(super) fn claim(&mut self, now: Timestamp, lease: Duration, early: bool) -> Fence {
        self.last = self.last.wrapping_add(1).max(1);
        *self =
            Probe { last: self.last, held: Fence(self.last), until: now.plus(lease), early, pad: self.pad };
        self.held
    }

    /// A sign of life: the lease lasts from now on again.
    pub(super) fn renew(&mut self, fence: Fence, now: Timestamp, lease: Duration) -> bool {
        let held = self.is_held_by(fence);
        if held {
            self.until = self.until.max(now.plus(lease));
        }
        held
    }

    /// Gives the lease back; false if it is not the holder's any more.
    pub(super) fn release(&mut self, fence: Fence) -> bool {
        let held = self.is_held_by(fence);
        if held {
            self.held = Fence::NONE;
        }
        held
    }

    pub(super) fn is_held_by(&self, fence: Fence) -> bool {
        fence.is_probe() && self.held == fence
    }

    /// Nobody holds it.
    pub(super) fn reset(&mut self) {
        self.held = Fence::NONE;
    }

    /// Until when a live probe keeps everybody else out.
    pub(super) fn live_until(&self, now: Timestamp) -> Option<Timestamp> {
        (self.held.is_probe() && now < self.until).then_some(self.until)
    }
}
