//! A gate as a fleet shares it: versioned, in the store's own time, with the members that have requests on the wire.

use std::time::Duration;

use forbear_core::{
    gate::{Cause, Diary, Gate, Marks, State},
    learn::Kept,
    time::Timestamp,
};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{
    entry::MEMBER_FOR,
    lead::LEASE,
    pages::{Numbers, Pages, marks, moments_of, numbers},
};
use crate::gate::record::Learned;

/// The version of the records that this program writes.
///
/// Fields that are new get a default and no new version: an older reader leaves out what it does not know, and what an
/// older writer left out is the default. A change that an older reader would misunderstand gets a new version; a reader
/// that meets one keeps its hands off the record ([`RecordFault::Newer`]).
///
/// Version 2 has the diary and its owner (L5): a member that knows of neither would throw away what was learned, and let the pace
/// grow beside it.
const VERSION: u32 = 2;

/// One gate in a shared store.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Record {
    /// Which life of the key: chosen by whoever makes it, so that a store that has lost it is noticed.
    pub(super) lineage: u64,
    /// Grows with each write of one life.
    pub(super) revision: u64,
    /// Who wrote last.
    pub(super) writer: u64,
    /// When, in the store's time.
    pub(super) written: Timestamp,
    /// The gate, but for what is on the wire.
    pub(super) state: State,
    /// Who has requests on the wire, or had lately.
    pub(super) members: Vec<Member>,
    /// Who learns of it.
    pub(super) owner: Option<Lease>,
    /// What a learner had come to, and how far it had read the diary by then.
    pub(super) learned: Option<(Kept, Marks)>,
}

/// The right to learn of a scope, and to say how fast it goes.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Lease {
    pub(super) id: u64,
    /// Grows with each owner.
    #[serde(rename = "f")]
    pub(super) fence: u32,
    /// Without a sign of life it is free then.
    #[serde(rename = "t", with = "moment")]
    pub(super) until: Timestamp,
}

/// What one process holds of a scope.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Serialize)]
pub(super) struct Member {
    pub(super) id: u64,
    /// Places on the wire, in use or taken ahead.
    #[serde(rename = "n", default)]
    pub(super) places: u16,
    /// Items and callers that wait.
    #[serde(rename = "w", default, skip_serializing_if = "usual")]
    pub(super) waiting: u32,
    /// When they come back by themselves, unless it shows a sign of life.
    #[serde(rename = "t", with = "moment")]
    pub(super) until: Timestamp,
    /// It was told a rate of the scope, and may learn of it.
    #[serde(rename = "r", default, skip_serializing_if = "usual")]
    pub(super) rated: bool,
}

/// Why the value of a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordFault {
    #[error("a gate's record in the store cannot be read")]
    Malformed,
    #[error("a gate's record in the store has version {0}, and this program reads up to {VERSION}")]
    Newer(u32),
}

/// The head of a value, which is compared when it is replaced: 48 digits for life, revision and writer.
pub(super) const TAG: usize = 48;

impl Record {
    /// The first record of a scope that nobody uses yet.
    pub(super) fn of(gate: &Gate, lineage: u64, now: Timestamp) -> Record {
        Record {
            lineage,
            revision: 0,
            writer: 0,
            written: now,
            state: gate.to_state(),
            members: Vec::new(),
            owner: None,
            learned: None,
        }
    }

    /// The head of its value.
    pub(super) fn tag(&self) -> Vec<u8> {
        format!("{:016x}{:016x}{:016x}", self.lineage, self.revision, self.writer).into_bytes()
    }

    /// This record as a notice of its pause, for everybody to hear before it is written.
    pub(super) fn to_notice(&self) -> Record {
        Record { revision: 0, ..self.clone() }
    }

    /// Whether it is a notice: no record that was written has this revision.
    pub(super) fn is_notice(&self) -> bool {
        self.revision == 0
    }

    /// The value that a store keeps.
    pub(super) fn encode(&self) -> Vec<u8> {
        let sound = |kept: &Kept| kept.pace.is_finite() && kept.belief.rate.is_finite();
        let learned = self.learned.as_ref().filter(|(kept, _)| sound(kept));
        let learned = learned.map(|(kept, read)| (Learned::of(kept), numbers(read)));
        let body = BodyRef {
            v: VERSION,
            written: self.written,
            members: &self.members,
            state: &self.state,
            owner: self.owner,
            learned,
            diary: Pages::of(&self.state.diary),
        };
        let mut value = self.tag();
        // Writing numbers and short lists into memory cannot fail; an empty value would be read as malformed.
        if serde_json::to_writer(&mut value, &body).is_err() {
            value.clear();
        }
        value
    }

    /// Reads a value that may be anybody's.
    pub(super) fn decode(value: &[u8]) -> Result<Record, RecordFault> {
        #[derive(Deserialize)]
        struct Version {
            v: u32,
        }
        let (tag, body) = value.split_at_checked(TAG).ok_or(RecordFault::Malformed)?;
        let tag = str::from_utf8(tag).map_err(|_| RecordFault::Malformed)?;
        let number = |part: usize| {
            let digits = tag.get(part * 16..part * 16 + 16).ok_or(RecordFault::Malformed)?;
            u64::from_str_radix(digits, 16).map_err(|_| RecordFault::Malformed)
        };
        let Version { v } = serde_json::from_slice(body).map_err(|_| RecordFault::Malformed)?;
        if v > VERSION {
            return Err(RecordFault::Newer(v));
        }
        let mut body: Body = serde_json::from_slice(body).map_err(|_| RecordFault::Malformed)?;
        body.members.truncate(MEMBERS_MAX);
        let mut record = Record {
            lineage: number(0)?,
            revision: number(1)?,
            writer: number(2)?,
            written: body.written,
            state: State { diary: body.diary.open(), ..body.state },
            members: body.members,
            owner: body.owner,
            learned: body.learned.map(|(learned, read)| (learned.kept(Timestamp::from_micros), marks(read))),
        };
        // What is compared must be what would be written.
        if record.written > LATEST || record.revision == u64::MAX || record.tag() != tag.as_bytes() {
            return Err(RecordFault::Malformed);
        }
        record.bound();
        Ok(record)
    }

    /// What has happened was before it was written, and nobody's lease is longer than a lease.
    fn bound(&mut self) {
        let written = self.written;
        let state = &mut self.state;
        let events = state.diary.events.iter_mut().flat_map(moments_of);
        let past = [&mut state.closed_at, &mut state.opened_at].into_iter();
        past.chain(&mut state.diary.starts).chain(events).for_each(|at| *at = (*at).min(written));
        self.members.iter_mut().for_each(|member| member.until = member.until.min(written.plus(MEMBER_FOR)));
        self.owner.iter_mut().for_each(|owner| owner.until = owner.until.min(written.plus(LEASE)));
    }

    /// Who learns of it at `now`.
    pub(super) fn live_owner(&self, now: Timestamp) -> Option<&Lease> {
        self.owner.as_ref().filter(|owner| now < owner.until)
    }

    /// Places that others hold at `now`.
    pub(super) fn others(&self, me: u64, now: Timestamp) -> u16 {
        let live = self.members.iter().filter(|member| member.id != me && now < member.until);
        live.fold(0, |sum, member| sum.saturating_add(member.places))
    }

    /// Places that the store has for `me`.
    pub(super) fn held(&self, me: u64) -> u16 {
        self.members.iter().find(|member| member.id == me).map_or(0, |member| member.places)
    }

    /// How long the store keeps what it has for `me`.
    pub(super) fn left(&self, me: u64, now: Timestamp) -> Duration {
        self.members.iter().find(|member| member.id == me).map_or(Duration::ZERO, |m| m.until.since(now))
    }

    /// How many use the scope at `now`, `me` among them.
    pub(super) fn users(&self, me: u64, now: Timestamp) -> u32 {
        let others = self.members.iter().filter(|member| member.id != me && now < member.until).count();
        u32::try_from(others).unwrap_or(u32::MAX).saturating_add(1)
    }

    /// The place of `me` in the order of all who use the scope at `now`.
    pub(super) fn rank(&self, me: u64, now: Timestamp) -> u32 {
        let before = self.members.iter().filter(|member| member.id < me && now < member.until).count();
        u32::try_from(before).unwrap_or(u32::MAX)
    }

    /// Notes what `me` holds, and forgets whose time is over.
    pub(super) fn note(&mut self, me: Member, now: Timestamp) {
        self.members.retain(|member| member.id != me.id && now < member.until);
        if self.members.len() < MEMBERS_MAX {
            self.members.push(me);
        }
    }

    /// `me` uses the scope no more.
    pub(super) fn forget(&mut self, me: u64) {
        self.members.retain(|member| member.id != me);
    }

    /// Moves every moment from one clock to another that is ahead by `us`.
    pub(super) fn shift(&mut self, us: i64) {
        if us == 0 {
            return;
        }
        let s = &mut self.state;
        let moments = [
            &mut s.paused_until,
            &mut s.closed_at,
            &mut s.opened_at,
            &mut s.early_probe_at,
            &mut s.probe_until,
            &mut s.budget_resets,
            &mut s.cost_resets,
            &mut self.written,
        ];
        let diary = s.diary.starts.iter_mut().chain(s.diary.events.iter_mut().flat_map(moments_of));
        let learned = self.learned.iter_mut();
        let learned = learned.flat_map(|(kept, _)| [&mut kept.at, &mut kept.belief.evidence.since]);
        let leases = self.members.iter_mut().map(|member| &mut member.until);
        let leases = leases.chain(self.owner.iter_mut().map(|owner| &mut owner.until));
        for moment in moments.into_iter().chain(leases).chain(diary).chain(learned) {
            if *moment != Timestamp::ZERO && *moment != Timestamp::MAX {
                *moment = Timestamp::from_micros(moment.as_micros().saturating_add_signed(us));
            }
        }
        let seconds = i32::try_from(us / 1_000_000).unwrap_or(if us < 0 { i32::MIN } else { i32::MAX });
        // These are the last digits of a moment.
        let ms = us / 1000;
        if s.linear_ms != 0 {
            s.stepped_ms = s.stepped_ms.wrapping_add(ms as u32);
        }
        if s.last_cut_ms != 0 {
            s.last_cut_ms = s.last_cut_ms.wrapping_add(ms as u32);
        }
        s.cap_grown_ms = s.cap_grown_ms.wrapping_add(ms as u16);
        for second in [&mut s.last_refusal_s, &mut s.last_used_s, &mut s.retry_refilled_s] {
            if *second != 0 {
                *second = second.saturating_add_signed(seconds);
            }
        }
        for ns in s.clocks.iter_mut().chain([&mut s.slot_ns]) {
            if *ns != 0 {
                *ns = ns.saturating_add_signed(us.saturating_mul(1000));
            }
        }
    }

    /// How long the store must keep it: what is left of its pause, and until nobody would miss it.
    pub(super) fn keep(&self, now: Timestamp) -> Duration {
        let pause = if self.state.shut { self.state.paused_until.since(now) } else { Duration::ZERO };
        let slots = self.state.clocks.iter().chain([&self.state.slot_ns]);
        let slots = slots.map(|ns| Timestamp::from_micros(ns / 1000).since(now)).max().unwrap_or_default();
        (pause.max(slots) + KEPT).min(KEPT_MAX)
    }
}

/// No clock is right that shows the year 2200.
const LATEST: Timestamp = Timestamp::from_secs(7_258_118_400);
/// More processes on one scope than this share a member's place.
const MEMBERS_MAX: usize = 1024;
/// A gate that nobody uses is forgiven after ten minutes; later it is as good as a new one.
const KEPT: Duration = Duration::from_secs(15 * 60);
/// Longer no store keeps a key that nobody touches.
pub(super) const KEPT_MAX: Duration = Duration::from_secs(400 * 86_400);

#[derive(Serialize)]
struct BodyRef<'a> {
    v: u32,
    #[serde(rename = "t", with = "moment")]
    written: Timestamp,
    #[serde(rename = "m")]
    members: &'a [Member],
    #[serde(rename = "s", with = "Fields")]
    state: &'a State,
    #[serde(rename = "o", skip_serializing_if = "Option::is_none")]
    owner: Option<Lease>,
    #[serde(rename = "l", skip_serializing_if = "Option::is_none")]
    learned: Option<(Learned, Numbers)>,
    #[serde(rename = "d", skip_serializing_if = "usual")]
    diary: Pages,
}

#[derive(Deserialize)]
struct Body {
    #[serde(rename = "t", with = "moment")]
    written: Timestamp,
    #[serde(rename = "m", default)]
    members: Vec<Member>,
    #[serde(rename = "s", with = "Fields")]
    state: State,
    #[serde(rename = "o", default)]
    owner: Option<Lease>,
    #[serde(rename = "l", default)]
    learned: Option<(Learned, Numbers)>,
    #[serde(rename = "d", default)]
    diary: Pages,
}

/// The gate's part of the record. Each field that has its usual value is left out.
#[derive(Deserialize, Serialize)]
#[serde(remote = "State")]
struct Fields {
    #[serde(rename = "shut", default, skip_serializing_if = "usual")]
    shut: bool,
    #[serde(rename = "resumes", default, skip_serializing_if = "usual")]
    resumes: bool,
    #[serde(rename = "cause", default, with = "cause", skip_serializing_if = "usual")]
    cause: Cause,
    #[serde(rename = "level", default, skip_serializing_if = "usual")]
    level: u8,
    #[serde(rename = "cap_doubled", default, skip_serializing_if = "usual")]
    cap_doubled: u8,
    #[serde(rename = "incidents", default, skip_serializing_if = "usual")]
    incidents: u32,
    #[serde(rename = "until", default, with = "moment", skip_serializing_if = "usual")]
    paused_until: Timestamp,
    #[serde(rename = "beyond", default, skip_serializing_if = "usual")]
    beyond_told_ms: u32,
    #[serde(rename = "closed", default, with = "moment", skip_serializing_if = "usual")]
    closed_at: Timestamp,
    #[serde(rename = "opened", default, with = "moment", skip_serializing_if = "usual")]
    opened_at: Timestamp,
    #[serde(rename = "refusal_s", default, skip_serializing_if = "usual")]
    last_refusal_s: u32,
    #[serde(rename = "early", default, with = "moment", skip_serializing_if = "usual")]
    early_probe_at: Timestamp,
    #[serde(rename = "accepted", default, skip_serializing_if = "usual")]
    accepted: u32,
    #[serde(rename = "fence", default, skip_serializing_if = "usual")]
    probe_last: u32,
    #[serde(rename = "probe", default, skip_serializing_if = "usual")]
    probe_held: u32,
    #[serde(rename = "probe_until", default, with = "moment", skip_serializing_if = "usual")]
    probe_until: Timestamp,
    #[serde(rename = "probe_early", default, skip_serializing_if = "usual")]
    probe_early: bool,
    #[serde(rename = "blocked", default, skip_serializing_if = "usual")]
    blocked_in_row: u8,
    #[serde(rename = "overloads", default, skip_serializing_if = "usual")]
    overloads_in_row: u8,
    #[serde(rename = "unauth", default, skip_serializing_if = "usual")]
    unauthorised: u8,
    #[serde(rename = "unauth_item", default, skip_serializing_if = "usual")]
    unauthorised_item: u32,
    #[serde(rename = "row", default, skip_serializing_if = "usual")]
    circuit_refusals: u16,
    #[serde(rename = "row_incidents", default, skip_serializing_if = "usual")]
    circuit_incidents: u16,
    #[serde(rename = "rate", default, skip_serializing_if = "usual")]
    rate: Option<f32>,
    #[serde(rename = "bad_rate", default, skip_serializing_if = "usual")]
    bad_rate: Option<f32>,
    #[serde(rename = "linear_ms", default, skip_serializing_if = "usual")]
    linear_ms: u32,
    #[serde(rename = "goal", default, skip_serializing_if = "usual")]
    linear_goal: f32,
    #[serde(rename = "learns", default, skip_serializing_if = "usual")]
    linear_learns: bool,
    #[serde(rename = "slot", default, skip_serializing_if = "usual")]
    slot_ns: u64,
    #[serde(rename = "step_ms", default, skip_serializing_if = "usual")]
    stepped_ms: u32,
    #[serde(rename = "credit", default, skip_serializing_if = "usual")]
    credit: f32,
    #[serde(rename = "clocks", default, skip_serializing_if = "usual")]
    clocks: [u64; forbear_core::pace::MAX_RATES],
    #[serde(rename = "largest", default, skip_serializing_if = "usual")]
    largest_cost: u32,
    #[serde(rename = "cost_left", default = "all", skip_serializing_if = "is_all")]
    cost_left: u32,
    #[serde(rename = "cost_resets", default, with = "moment", skip_serializing_if = "usual")]
    cost_resets: Timestamp,
    // Counted by the members.
    #[serde(skip)]
    in_flight: u16,
    #[serde(rename = "cap", default)]
    cap: u16,
    #[serde(rename = "ceiling", default = "most", skip_serializing_if = "is_most")]
    cap_ceiling: u16,
    #[serde(rename = "good", default, skip_serializing_if = "usual")]
    cap_good: u16,
    #[serde(rename = "cap_n", default, skip_serializing_if = "usual")]
    cap_successes: u32,
    #[serde(rename = "patience", default, skip_serializing_if = "usual")]
    cap_patience: u8,
    #[serde(rename = "passed", default, skip_serializing_if = "usual")]
    cap_passed: bool,
    #[serde(rename = "cap_ms", default, skip_serializing_if = "usual")]
    cap_grown_ms: u16,
    #[serde(rename = "rtt_us", default, skip_serializing_if = "usual")]
    round_trip_us: u32,
    #[serde(rename = "stated_rate", default, skip_serializing_if = "usual")]
    stated_rate: f32,
    #[serde(rename = "left", default = "most", skip_serializing_if = "is_most")]
    budget_left: u16,
    #[serde(rename = "low", default = "most", skip_serializing_if = "is_most")]
    budget_low: u16,
    #[serde(rename = "resets", default, with = "moment", skip_serializing_if = "usual")]
    budget_resets: Timestamp,
    #[serde(rename = "cut_ms", default, skip_serializing_if = "usual")]
    last_cut_ms: u32,
    #[serde(rename = "retries", default, skip_serializing_if = "usual")]
    retry_tokens: f32,
    #[serde(rename = "retries_s", default, skip_serializing_if = "usual")]
    retry_refilled_s: u32,
    #[serde(rename = "used_s", default, skip_serializing_if = "usual")]
    last_used_s: u32,
    #[serde(rename = "wire", default = "most", skip_serializing_if = "is_most")]
    wire_cap: u16,
    // Apart, and in fewer bytes.
    #[serde(skip)]
    diary: Diary,
    #[serde(rename = "pad_ms", default, skip_serializing_if = "usual")]
    pad_ms: u16,
    #[serde(rename = "pad_good", default, skip_serializing_if = "usual")]
    pad_good: u8,
}

fn usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

fn most() -> u16 {
    u16::MAX
}

fn all() -> u32 {
    u32::MAX
}

fn is_all(value: &u32) -> bool {
    *value == u32::MAX
}

fn is_most(value: &u16) -> bool {
    *value == u16::MAX
}

/// Moments as microseconds.
mod moment {
    use super::{Deserialize, Deserializer, Serialize, Serializer, Timestamp};

    pub(super) fn serialize<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
        at.as_micros().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Timestamp, D::Error> {
        u64::deserialize(from).map(Timestamp::from_micros)
    }
}

/// Causes as words; one that is not known is one that can be shown.
mod cause {
    use super::{Cause, Deserialize, Deserializer, Serialize, Serializer};

    pub(super) fn serialize<S: Serializer>(cause: &Cause, to: S) -> Result<S::Ok, S::Error> {
        cause.as_str().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Cause, D::Error> {
        Ok(Cause::by_name(&String::deserialize(from)?).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use forbear_core::{
        gate::Told,
        learn::{Learner, Past},
        policy::ScopePolicy,
    };

    use super::*;

    fn record() -> Record {
        let (policy, now) = (ScopePolicy::default(), Timestamp::from_secs(1_000));
        let mut gate = Gate::new(&policy);
        let sent = gate.take(&policy, now, 1);
        let _ = gate.refused(&policy, sent, Told::wait(Duration::from_secs(60)), now, 0.5);
        let members = vec![Member {
            id: 7,
            places: 3,
            waiting: 0,
            until: now.plus(Duration::from_secs(10)),
            rated: true,
        }];
        let kept = Kept {
            at: now,
            pace: 4.0,
            limit: 5.0,
            cap: u32::MAX,
            belief: Learner::new(&Past::none(now, 4.0)).belief(),
        };
        Record {
            lineage: u64::MAX,
            revision: 5,
            writer: 7,
            written: now,
            state: gate.to_state(),
            members,
            owner: Some(Lease { id: 7, fence: 3, until: now.plus(Duration::from_secs(2)) }),
            learned: Some((kept, Marks { started: 1, ..Marks::default() })),
        }
    }

    #[test]
    fn s1_a_record_is_read_as_it_was_written() {
        let record = record();
        let value = record.encode();
        assert_eq!(Record::decode(&value).unwrap(), record);
        assert_eq!(value[..TAG], record.tag());
        assert!(value.len() < 700, "{} bytes", value.len());
        let mut open = Gate::new(&ScopePolicy::default()).to_state();
        open.in_flight = 0;
        let open = Record { state: open, ..record };
        assert_eq!(Record::decode(&open.encode()).unwrap(), open);
    }

    #[test]
    fn s1_older_and_newer_programs_share_one_store() {
        let record = record();
        let value = String::from_utf8(record.encode()).unwrap();
        let more = value.replacen("\"s\":{", "\"new\":[1],\"s\":{\"newer\":{\"x\":1},", 1);
        assert_eq!(Record::decode(more.as_bytes()).unwrap(), record, "an old reader leaves out what is new");
        let fewer = value.replacen("\"level\":", "\"other\":", 1).replacen("\"closed\":", "\"other2\":", 1);
        let read = Record::decode(fewer.as_bytes()).unwrap();
        assert_eq!(read.state.closed_at, Timestamp::ZERO, "what an old writer left out is the default");
        assert_eq!(read.state.paused_until, record.state.paused_until);
        let older = Record { owner: None, learned: None, ..record.clone() };
        let older = Record { state: State { diary: Diary::default(), ..older.state }, ..older };
        let first = String::from_utf8(older.encode()).unwrap().replacen("\"v\":2", "\"v\":1", 1);
        assert_eq!(Record::decode(first.as_bytes()).unwrap(), older, "before there was a diary");
        let newer = value.replacen("\"v\":2", "\"v\":3", 1);
        assert!(matches!(Record::decode(newer.as_bytes()), Err(RecordFault::Newer(3))));
    }

    #[test]
    fn k4_what_is_no_record_is_an_error() {
        let value = record().encode();
        for junk in [&b""[..], b"{}", &[0xff; 80], &value[..TAG], &value[..value.len() - 1], &value[1..]] {
            assert!(matches!(Record::decode(junk), Err(RecordFault::Malformed)));
        }
    }

    #[test]
    fn t1_a_clock_that_stepped_moves_every_moment() {
        let (before, mut after) = (record(), record());
        let left = |r: &Record| r.state.paused_until.since(r.written);
        after.shift(-600_000_000);
        assert_eq!(left(&before), left(&after));
        assert_eq!(before.written.since(after.written), Duration::from_secs(600));
        assert_eq!(after.state.early_probe_at, Timestamp::ZERO, "what never was stays so");
        after.shift(600_000_000);
        assert_eq!(after, before);
    }

    #[test]
    fn c2_a_dead_members_places_come_back() {
        let (mut record, now) = (record(), Timestamp::from_secs(1_000));
        assert_eq!((record.others(1, now), record.others(7, now), record.held(7)), (3, 0, 3));
        assert_eq!((record.users(1, now), record.rank(9, now)), (2, 1));
        let later = now.plus(Duration::from_secs(11));
        assert_eq!((record.others(1, later), record.users(1, later)), (0, 1));
        record.note(
            Member { id: 1, places: 2, waiting: 0, until: later.plus(Duration::from_secs(1)), rated: false },
            later,
        );
        assert_eq!(record.members.len(), 1, "whose time is over is forgotten");
    }

    #[test]
    fn f1_a_record_with_impossible_moments_is_bounded_or_refused() {
        let now = Timestamp::from_secs(1_000_000);
        let far = now.plus(Duration::from_secs(1_000_000));
        let mut record = Record::of(&Gate::new(&ScopePolicy::default()), 1, now);
        record.revision = 5;
        record.members = vec![Member { id: 7, places: u16::MAX, waiting: 0, until: far, rated: false }];
        record.owner = Some(Lease { id: 7, fence: 1, until: far });
        (record.state.closed_at, record.state.opened_at) = (far, far);
        record.state.diary.starts = vec![now, far];
        let read = Record::decode(&record.encode()).unwrap();
        assert_eq!(read.members[0].until, now.plus(MEMBER_FOR));
        assert_eq!(read.owner.unwrap().until, now.plus(LEASE));
        assert_eq!((read.state.closed_at, read.state.opened_at), (now, now));
        assert_eq!(read.state.diary.starts, [now, now]);
        for impossible in [
            Record { written: Timestamp::MAX, ..record.clone() },
            Record { written: Timestamp::from_micros(1 << 62), ..record.clone() },
            Record { revision: u64::MAX, ..record.clone() },
        ] {
            assert!(matches!(Record::decode(&impossible.encode()), Err(RecordFault::Malformed)));
        }
    }

    #[test]
    fn b4_a_way_up_by_time_goes_on_where_it_was_on_another_clock() {
        let (policy, now) = (ScopePolicy::default(), Timestamp::from_secs(1_000_000));
        let mut record = Record::of(&Gate::new(&policy), 1, now);
        let state = &mut record.state;
        (state.rate, state.linear_ms, state.linear_goal) = (Some(1.0), 10_000, 10.0);
        state.stepped_ms = (now.as_micros() / 1000) as u32;
        let rates = [0, 300_000_000, -300_000_000].map(|us| {
            let mut moved = record.clone();
            moved.shift(us);
            let mut gate = Gate::from_state(&moved.state);
            let _ = gate.take(&policy, moved.written.plus(Duration::from_millis(100)), 1);
            gate.to_state().rate
        });
        assert_eq!((rates[1], rates[2]), (rates[0], rates[0]));
        assert!(rates[0].is_some_and(|rate| rate < 2.0), "{rates:?}");
    }
}
