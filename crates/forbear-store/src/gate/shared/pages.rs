//! A diary as a record keeps it: of an open scope it is most of what is written, so it takes few bytes.

use std::time::Duration;

use forbear_core::{
    gate::{Diary, Event, Marks, Reader, What},
    learn::Refused,
    time::Timestamp,
};
use serde::{Deserialize, Serialize};

/// Counts, and when the last starts were: the first in microseconds, the others from the one before.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
pub(super) struct Pages {
    /// Started, accepted, on the wire with them, used microseconds.
    n: (u32, u32, u32, u64),
    #[serde(skip_serializing_if = "Vec::is_empty")]
    s: Vec<i64>,
    /// The last event's number.
    #[serde(skip_serializing_if = "usual")]
    e: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    v: Vec<Entry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    met: Option<u8>,
    #[serde(skip_serializing_if = "usual")]
    window_ms: u32,
    #[serde(skip_serializing_if = "usual")]
    wait_ms: u32,
}

/// One event.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(default)]
struct Entry {
    n: u32,
    /// When, in microseconds, and when the request of it started.
    t: u64,
    #[serde(skip_serializing_if = "usual")]
    s: u64,
    /// What: `first`, `straggler`, `probe`, `open`, `pace`, `slow`.
    k: String,
    #[serde(skip_serializing_if = "usual")]
    f: u32,
    /// Told, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    w: Option<u64>,
    /// Pace and limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    r: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    l: Option<f64>,
}

impl Pages {
    pub(super) fn of(diary: &Diary) -> Pages {
        let mut before = 0;
        let from_before = |at: &Timestamp| {
            let at = at.as_micros() as i64;
            at.wrapping_sub(std::mem::replace(&mut before, at))
        };
        Pages {
            n: (diary.started, diary.accepted, diary.on_wire, diary.used_us),
            s: diary.starts.iter().map(from_before).collect(),
            e: diary.number,
            v: diary.events.iter().map(Entry::of).collect(),
            met: diary.met.then_some(diary.failed_probes),
            window_ms: diary.window_ms,
            wait_ms: diary.first_wait_ms,
        }
    }

    pub(super) fn open(self) -> Diary {
        let mut at = 0i64;
        let mut moment = |from_before: i64| {
            at = at.wrapping_add(from_before);
            Timestamp::from_micros(at.max(0) as u64)
        };
        let (started, accepted, on_wire, used_us) = self.n;
        Diary {
            started,
            starts: self.s.into_iter().take(MOST).map(&mut moment).collect(),
            used_us,
            accepted,
            on_wire,
            number: self.e,
            // What a later program may have written, and nobody here understands, is left out.
            events: self.v.into_iter().take(MOST).filter_map(Entry::open).collect(),
            met: self.met.is_some(),
            failed_probes: self.met.unwrap_or(0),
            window_ms: self.window_ms,
            first_wait_ms: self.wait_ms,
            reader: Reader::Nobody,
        }
    }
}

impl Entry {
    fn of(event: &Event) -> Entry {
        let new = Entry { n: event.number, t: event.at.as_micros(), ..Entry::default() };
        match event.what {
            What::Refused { how, sent, in_flight, told } => {
                let k = match how {
                    Refused::First => "first",
                    Refused::Straggler => "straggler",
                    Refused::Probe => "probe",
                };
                let w = told.map(|told| u64::try_from(told.as_micros()).unwrap_or(u64::MAX));
                Entry { k: k.to_owned(), s: sent.as_micros(), f: in_flight, w, ..new }
            }
            What::Reopened { probe } => Entry { k: "open".to_owned(), s: probe.as_micros(), ..new },
            What::Interrupted { rate, limit } => new.pace("pace", rate, limit),
            What::Slowed { rate, limit } => new.pace("slow", rate, limit),
        }
    }

    fn pace(self, k: &str, rate: f64, limit: f64) -> Entry {
        let finite = |value: f64| value.is_finite().then_some(value);
        Entry { k: k.to_owned(), r: finite(rate), l: finite(limit), ..self }
    }

    fn open(self) -> Option<Event> {
        let refused = |how| What::Refused {
            how,
            sent: Timestamp::from_micros(self.s),
            in_flight: self.f.max(1),
            told: self.w.map(Duration::from_micros),
        };
        let (rate, limit) = (self.r.unwrap_or(f64::INFINITY), self.l.unwrap_or(f64::INFINITY));
        let what = match self.k.as_str() {
            "first" => refused(Refused::First),
            "straggler" => refused(Refused::Straggler),
            "probe" => refused(Refused::Probe),
            "open" => What::Reopened { probe: Timestamp::from_micros(self.s) },
            "pace" => What::Interrupted { rate, limit },
            "slow" => What::Slowed { rate, limit },
            _ => return None,
        };
        Some(Event { number: self.n, at: Timestamp::from_micros(self.t), what })
    }
}

/// The moments of an event.
pub(super) fn moments_of(event: &mut Event) -> impl Iterator<Item = &mut Timestamp> {
    let sent = match &mut event.what {
        What::Refused { sent, .. } | What::Reopened { probe: sent } => Some(sent),
        What::Interrupted { .. } | What::Slowed { .. } => None,
    };
    std::iter::once(&mut event.at).chain(sent)
}

/// How far a diary was read, as numbers.
pub(super) type Numbers = (u32, u64, u32, u32, u32);

pub(super) fn numbers(read: &Marks) -> Numbers {
    (read.started, read.used_us, read.accepted, read.on_wire, read.number)
}

pub(super) fn marks((started, used_us, accepted, on_wire, number): Numbers) -> Marks {
    Marks { started, used_us, accepted, on_wire, number }
}

fn usual<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// More than any gate keeps.
const MOST: usize = 128;
