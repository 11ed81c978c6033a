//! What of a gate outlives the process (P8).

use super::{Cause, Gate, pad::Learned, probe::Probe, ramp::Ramp, seconds};
use crate::{learn::Kept, policy::ScopePolicy, time::Timestamp};

/// What of a gate outlives the process.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields are the gate's own, documented there")]
pub struct Snapshot {
    pub shut: bool,
    pub cause: Cause,
    pub level: u8,
    pub cap_doubled: u8,
    pub incidents: u32,
    pub paused_until: Timestamp,
    pub told_until: Timestamp,
    pub closed_at: Timestamp,
    pub last_refusal: Timestamp,
    pub early_probe_at: Timestamp,
    pub rate: Option<f32>,
    pub bad_rate: Option<f32>,
    /// The pad over told times that was learned (P5), in milliseconds; zero where the policy's has been enough.
    pub pad_ms: u16,
    /// What a learner has to keep (L5), where the scope has one.
    pub learned: Option<Kept>,
}

impl Gate {
    /// What outlives the process (P8).
    #[must_use]
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            shut: self.shut,
            cause: self.cause,
            level: self.level,
            cap_doubled: self.cap_doubled,
            incidents: self.incidents,
            paused_until: self.paused_until,
            told_until: self.told_until(),
            closed_at: self.closed_at,
            last_refusal: Timestamp::from_secs(u64::from(self.last_refusal_s)),
            early_probe_at: self.early_probe_at,
            rate: self.ramp.rate(),
            bad_rate: self.ramp.bad(),
            pad_ms: self.probe.pad.ms,
            learned: self.kept(),
        }
    }

    /// The gate as it was kept; nothing of it is on the wire. A pause is never shorter than it was (P2).
    #[must_use]
    pub fn restore(policy: &ScopePolicy, kept: &Snapshot, now: Timestamp) -> Gate {
        let new = Gate::new(policy);
        let mut gate = Gate {
            shut: kept.shut,
            cause: kept.cause,
            level: kept.level,
            cap_doubled: kept.cap_doubled,
            incidents: kept.incidents,
            paused_until: kept.paused_until,
            beyond_told_ms: u32::try_from(kept.paused_until.since(kept.told_until).as_millis()).unwrap_or(0),
            closed_at: kept.closed_at.min(now),
            last_refusal_s: seconds(kept.last_refusal.min(now)),
            early_probe_at: kept.early_probe_at,
            ramp: kept
                .rate
                .map_or(new.ramp, |rate| Ramp::paced(rate, kept.bad_rate.unwrap_or(f32::INFINITY))),
            probe: Probe { pad: Learned { ms: kept.pad_ms, good: 0 }, ..Probe::default() },
            ..new
        };
        gate.take_up(policy, kept.learned.as_ref(), now);
        gate
    }
}
