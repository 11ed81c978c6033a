//! A gate as it is kept outside the process: versioned, and on two clocks so that it can be read after a restart.

use std::time::Duration;

use forbear_core::{
    gate::{Cause, Gate, Snapshot},
    learn::{Belief, Evidence, Kept, Kind},
    policy::ScopePolicy,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

use super::clock::{boot_now, wall_now};

/// The version of the records that this program writes. A reader takes this version and older ones; a newer one is an
/// error that names it, and the file is left as it is.
const VERSION: u32 = 1;

/// One gate, as a store keeps it (P8).
///
/// Deadlines are on the clock of the process that wrote them. `written` is the same moment on that clock, on the wall
/// clock and, with the boot's id, on the boot clock; what has passed since is read from the boot clock while the id
/// matches, else from the wall clock (T1).
#[derive(Debug, Deserialize, Serialize)]
pub struct GateRecord {
    version: u32,
    written: Written,
    shut: bool,
    cause: String,
    level: u8,
    cap_doubled: u8,
    incidents: u32,
    paused_until_us: u64,
    told_until_us: u64,
    closed_at_us: u64,
    last_refusal_us: u64,
    early_probe_at_us: u64,
    rate: Option<f32>,
    bad_rate: Option<f32>,
    /// Since 0.2; an older writer had none, and an older reader leaves it out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pad_ms: u16,
    /// What was learned; an older writer had none, and an older reader leaves it out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    learned: Option<Learned>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<Refused>,
}

/// What a learner keeps (L5).
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
pub(super) struct Learned {
    at_us: u64,
    pace: f64,
    /// None: it was never refused.
    limit: Option<f64>,
    cap: Option<u32>,
    kind: Option<String>,
    confidence: f64,
    rate: f64,
    number: f64,
    window_us: Option<u64>,
    since_us: u64,
    incidents: u32,
    explained: u32,
    refused: u32,
    accepted: u32,
    stated: bool,
}

impl Learned {
    pub(super) fn of(kept: &Kept) -> Learned {
        let Belief { kind, confidence, rate, number, window, evidence } = kept.belief;
        Learned {
            at_us: kept.at.as_micros(),
            pace: kept.pace,
            limit: kept.limit.is_finite().then_some(kept.limit),
            cap: (kept.cap != u32::MAX).then_some(kept.cap),
            kind: kind.map(|kind| kind.as_str().to_owned()),
            confidence,
            rate,
            number,
            window_us: window.map(|window| u64::try_from(window.as_micros()).unwrap_or(u64::MAX)),
            since_us: evidence.since.as_micros(),
            incidents: evidence.incidents,
            explained: evidence.explained,
            refused: evidence.refused,
            accepted: evidence.accepted,
            stated: evidence.stated,
        }
    }

    pub(super) fn kept(&self, here: impl Fn(u64) -> Timestamp) -> Kept {
        let evidence = Evidence {
            since: here(self.since_us),
            incidents: self.incidents,
            explained: self.explained,
            refused: self.refused,
            accepted: self.accepted,
            stated: self.stated,
        };
        let belief = Belief {
            kind: self.kind.as_deref().and_then(Kind::by_name),
            confidence: self.confidence.clamp(0.0, 1.0),
            rate: self.rate,
            number: self.number,
            window: self.window_us.map(Duration::from_micros),
            evidence,
        };
        Kept {
            at: here(self.at_us),
            pace: self.pace,
            limit: self.limit.unwrap_or(f64::INFINITY),
            cap: self.cap.unwrap_or(u32::MAX),
            belief,
        }
    }
}

/// The credentials for which a scope was shut until there are others: enough to know that they have changed, and
/// nothing to learn them from (K1).
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub struct Refused {
    /// The origin that refused them.
    pub origin: String,
    /// A keyed hash of what the configuration adds to requests there; an item's own credentials never change.
    pub configured: String,
}

#[derive(Debug, Deserialize, Serialize)]
struct Written {
    clock_us: u64,
    wall_us: u64,
    boot: Option<(String, u64)>,
}

fn is_zero(value: &u16) -> bool {
    *value == 0
}

/// Why a kept gate cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// It is no record.
    #[error("the record of a gate cannot be read")]
    Malformed(#[source] serde_json::Error),
    /// It was written by a later version of the program.
    #[error("the record of a gate has version {0}, and this program reads up to {VERSION}")]
    Newer(u32),
}

impl GateRecord {
    /// The version of the records that this program writes.
    pub const VERSION: u32 = VERSION;

    /// Encodes what of a gate outlives the process, as it is at `now` on the process's clock.
    #[must_use]
    pub fn encode(gate: &Snapshot, now: Timestamp) -> Vec<u8> {
        GateRecord::encode_with(gate, now, None)
    }

    /// [`GateRecord::encode`] with what [`GateRecord::refused`] gives back.
    #[must_use]
    pub fn encode_with(gate: &Snapshot, now: Timestamp, refused: Option<Refused>) -> Vec<u8> {
        let boot = boot_now().map(|(id, up)| (id, u64::try_from(up.as_micros()).unwrap_or(u64::MAX)));
        let record = GateRecord {
            version: VERSION,
            written: Written { clock_us: now.as_micros(), wall_us: wall_now().as_micros(), boot },
            shut: gate.shut,
            cause: gate.cause.as_str().to_owned(),
            level: gate.level,
            cap_doubled: gate.cap_doubled,
            incidents: gate.incidents,
            paused_until_us: gate.paused_until.as_micros(),
            told_until_us: gate.told_until.as_micros(),
            closed_at_us: gate.closed_at.as_micros(),
            last_refusal_us: gate.last_refusal.as_micros(),
            early_probe_at_us: gate.early_probe_at.as_micros(),
            rate: gate.rate,
            bad_rate: gate.bad_rate,
            pad_ms: gate.pad_ms,
            learned: gate.learned.as_ref().map(Learned::of),
            refused,
        };
        serde_json::to_vec(&record).unwrap_or_default()
    }

    /// The credentials for which the scope was shut, of a record that says so; none for any other, or one that cannot be
    /// read.
    #[must_use]
    pub fn refused(bytes: &[u8]) -> Option<Refused> {
        let record: GateRecord = serde_json::from_slice(bytes).ok()?;
        let stopped = record.shut && Cause::by_name(&record.cause) == Some(Cause::Credentials);
        stopped.then(|| record.refused.unwrap_or_default())
    }

    /// How long ago it was written; none for what cannot be read.
    #[must_use]
    pub fn age(bytes: &[u8]) -> Option<Duration> {
        let record: GateRecord = serde_json::from_slice(bytes).ok()?;
        Some(record.written.elapsed())
    }

    /// Decodes a kept gate, its moments moved to the clock of this process, at `now`.
    ///
    /// # Errors
    /// Junk, and records of a newer version.
    pub fn decode(bytes: &[u8], policy: &ScopePolicy, now: Timestamp) -> Result<Gate, RecordError> {
        #[derive(Deserialize)]
        struct Version {
            version: u32,
        }
        let Version { version } = serde_json::from_slice(bytes).map_err(RecordError::Malformed)?;
        if version > VERSION {
            return Err(RecordError::Newer(version));
        }
        let record: GateRecord = serde_json::from_slice(bytes).map_err(RecordError::Malformed)?;
        Ok(record.restore(policy, record.written.elapsed(), now))
    }

    fn restore(&self, policy: &ScopePolicy, elapsed: Duration, now: Timestamp) -> Gate {
        let then = Timestamp::from_micros(self.written.clock_us).plus(elapsed); // the old clock's present moment
        let here = |us: u64| {
            let at = Timestamp::from_micros(us);
            match at {
                Timestamp::ZERO | Timestamp::MAX => at,
                at if at >= then => now.plus(at.since(then)),
                at => now.minus(then.since(at)),
            }
        };
        let kept = Snapshot {
            shut: self.shut,
            cause: Cause::by_name(&self.cause).unwrap_or_default(),
            level: self.level,
            cap_doubled: self.cap_doubled,
            incidents: self.incidents,
            paused_until: here(self.paused_until_us),
            told_until: here(self.told_until_us),
            closed_at: here(self.closed_at_us),
            last_refusal: here(self.last_refusal_us),
            early_probe_at: here(self.early_probe_at_us),
            rate: self.rate,
            bad_rate: self.bad_rate,
            pad_ms: self.pad_ms,
            learned: self.learned.as_ref().map(|learned| learned.kept(here)),
        };
        Gate::restore(policy, &kept, now)
    }
}

impl Written {
    /// What has passed since; a clock that went backwards has stood still.
    fn elapsed(&self) -> Duration {
        if let (Some((id, then)), Some((now_id, now))) = (&self.boot, boot_now())
            && *id == now_id
        {
            return now.saturating_sub(Duration::from_micros(*then));
        }
        wall_now().since(Timestamp::from_micros(self.wall_us))
    }
}

#[cfg(test)]
mod tests {
    use forbear_core::gate::Told;

    use super::*;

    fn paused(seconds: u64, now: Timestamp) -> Gate {
        let policy = ScopePolicy { jitter: 0.0, ..ScopePolicy::default() };
        let mut gate = Gate::new(&policy);
        let sent = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, sent, Told::wait(Duration::from_secs(seconds)), now, 0.0);
        gate
    }

    #[test]
    fn p8_a_kept_pause_goes_on_for_what_is_left_of_it() {
        let (policy, then) = (ScopePolicy::default(), Timestamp::from_secs(1_000));
        let gate = paused(60, then);
        let bytes = GateRecord::encode(&gate.snapshot(), then.plus(Duration::from_secs(10)));
        let now = Timestamp::from_secs(900_000);
        let back = GateRecord::decode(&bytes, &policy, now).unwrap();
        let left = back.pause_at(now).unwrap().0.since(now).as_secs_f64();
        assert!((49.0..50.2).contains(&left), "{left}");
    }

    #[test]
    fn l5_what_was_learned_is_kept_and_older_records_are_read() {
        let (policy, then) = (ScopePolicy::default(), Timestamp::from_secs(1_000));
        let mut kept = paused(60, then).snapshot();
        let learned = kept.learned.as_mut().expect("a refusal makes a learner");
        (learned.pace, learned.limit) = (40.0, 42.0);
        learned.belief.kind = Some(Kind::FixedWindow);
        (learned.belief.number, learned.belief.window) = (2400.0, Some(Duration::from_secs(60)));
        let bytes = GateRecord::encode(&kept, then);
        let back = GateRecord::decode(&bytes, &policy, then).unwrap();
        let belief = back.belief().unwrap();
        assert_eq!((belief.kind, belief.number), (Some(Kind::FixedWindow), 2400.0));
        assert_eq!(back.learned_rate(), Some(40.0));
        let mut older: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
        older.as_object_mut().unwrap().remove("learned");
        let older = GateRecord::decode(older.to_string().as_bytes(), &policy, then).unwrap();
        assert_eq!((older.belief(), older.learned_rate()), (None, kept.rate));
    }

    #[test]
    fn t1_a_clock_that_went_backwards_shortens_no_pause() {
        let then = Timestamp::from_secs(1_000);
        let bytes = GateRecord::encode(&paused(60, then).snapshot(), then);
        let mut record: GateRecord = serde_json::from_slice(&bytes).unwrap();
        record.written.boot = None;
        record.written.wall_us = wall_now().plus(Duration::from_secs(3600)).as_micros();
        assert_eq!(record.written.elapsed(), Duration::ZERO);
        record.written.boot = Some(("another boot".into(), 0));
        record.written.wall_us = wall_now().minus(Duration::from_secs(40)).as_micros();
        let elapsed = record.written.elapsed().as_secs();
        assert!((40..43).contains(&elapsed), "another boot: by the wall clock, {elapsed} s");
    }

    #[test]
    fn j2_a_record_tells_which_credentials_were_refused() {
        let (policy, now) = (ScopePolicy::default(), Timestamp::from_secs(1_000));
        let mut gate = Gate::new(&policy);
        let refused = Refused { origin: "http://h".into(), configured: "~1".into() };
        let bytes = |gate: &Gate| GateRecord::encode_with(&gate.snapshot(), now, Some(refused.clone()));
        assert_eq!(GateRecord::refused(&bytes(&gate)), None, "it is open");
        for item in [1, 2] {
            let sent = gate.take(&policy, now, 1);
            let _ = gate.unauthorised(&policy, sent, item, now);
        }
        assert_eq!(GateRecord::refused(&bytes(&gate)), Some(refused.clone()));
        let without = GateRecord::encode(&gate.snapshot(), now);
        assert_eq!(GateRecord::refused(&without), Some(Refused::default()), "of whatever credentials");
        assert!(GateRecord::decode(&bytes(&gate), &policy, now).unwrap().has_bad_credentials());
        assert_eq!(GateRecord::refused(b"junk"), None);
    }

    #[test]
    fn p8_junk_and_newer_records_are_errors() {
        let (policy, now) = (ScopePolicy::default(), Timestamp::from_secs(1));
        for junk in [&b""[..], b"\0\0\0", b"{}", b"{\"version\":1}"] {
            assert!(matches!(GateRecord::decode(junk, &policy, now), Err(RecordError::Malformed(_))));
        }
        let newer = GateRecord::decode(b"{\"version\":2}", &policy, now);
        assert!(matches!(newer, Err(RecordError::Newer(2))));
    }
}
