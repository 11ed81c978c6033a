//! One compare-and-set under way. It is carried out by a task of its own, so that whoever asked may be dropped at any
//! moment: a start that nobody waits for any more is given back, and what was reported stays reported.

use std::{ops::Range, sync::Arc};

use forbear_core::{gate::State, scope::ScopeKey};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    Inner,
    entry::Slots,
    link::{Link, Write},
    record::Record,
};

/// What is to become of several scopes at once.
pub(super) struct Flight {
    pub(super) parts: Vec<Part>,
    /// What lies in one place is written at once, one place after the other.
    pub(super) legs: Vec<Leg>,
    /// Others wait for it.
    pub(super) tell: bool,
    /// How often the store had been lost when it was asked.
    pub(super) losses: u64,
    /// How far this member's time was ahead of the store's when it was written down.
    pub(super) ahead_us: i64,
    progress: Mutex<Progress>,
    done: Notify,
}

/// The parts of a flight that lie in one place.
pub(super) struct Leg {
    pub(super) parts: Range<usize>,
    /// What the store is told of each.
    pub(super) writes: Vec<Write>,
}

/// What is to become of one scope.
pub(super) struct Part {
    pub(super) key: ScopeKey,
    pub(super) before: State,
    pub(super) after: State,
    /// None: it is nobody else's, or only compared.
    pub(super) record: Option<(Record, Option<Slots>)>,
    pub(super) private: bool,
    /// Where it lies, after how many of the flight lie there.
    pub(super) place: (usize, String),
}

impl Part {
    /// A part that leaves the scope as it is.
    pub(super) fn still(key: ScopeKey, state: State, private: bool) -> Part {
        Part { key, after: state.clone(), before: state, record: None, private, place: Default::default() }
    }
}

impl Part {
    /// Whether it begins a pause, or makes one longer.
    pub(super) fn shuts(&self) -> bool {
        let (before, after) = (&self.before, &self.after);
        after.shut && (!before.shut || after.paused_until > before.paused_until)
    }
}

/// How a flight ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Landing {
    /// All is written, as it was meant.
    Written,
    /// Nothing is, and more is known: the step must be run again.
    Again,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Progress {
    Flying,
    Landed(Landing),
    /// Nobody waits for it.
    Abandoned,
}

impl Flight {
    pub(super) fn new(
        parts: Vec<Part>,
        legs: Vec<Leg>,
        tell: bool,
        (losses, ahead_us): (u64, i64),
    ) -> Flight {
        let (progress, done) = (Mutex::new(Progress::Flying), Notify::new());
        Flight { parts, legs, tell, losses, ahead_us, progress, done }
    }

    /// It has landed; false if nobody is there to hear it.
    pub(super) fn land(&self, landing: Landing) -> bool {
        let mut progress = self.progress.lock();
        let heard = *progress == Progress::Flying;
        if heard {
            *progress = Progress::Landed(landing);
        }
        drop(progress);
        self.done.notify_one();
        heard
    }
}

/// Puts what lies in one place side by side, and last where most of it lies: what lies elsewhere is reserved first (S1). Scopes
/// of this process alone lie nowhere, and come before all.
pub(super) fn by_place(parts: &mut [Part], place: impl Fn(&str) -> String) {
    if parts.iter().filter(|part| !part.private).count() < 2 {
        parts.sort_by_key(|part| !part.private);
        return;
    }
    let places: Vec<String> = parts.iter().map(|part| place(part.key.as_str())).collect();
    let count = |place: &String| places.iter().filter(|other| *other == place).count();
    for (part, at) in parts.iter_mut().zip(&places) {
        part.place = (count(at), at.clone());
    }
    parts.sort_by(|a, b| (!a.private, &a.place).cmp(&(!b.private, &b.place)));
}

/// Whether a request starts with these changes.
pub(super) fn starts(parts: &[Part]) -> bool {
    parts.iter().any(|part| part.after.in_flight > part.before.in_flight)
}

/// Waits for a flight. Dropped before it is heard, it settles what came of it.
pub(super) struct Passenger<L: Link> {
    inner: Arc<Inner<L>>,
    flight: Arc<Flight>,
    heard: bool,
}

impl<L: Link> Passenger<L> {
    pub(super) fn new(inner: &Arc<Inner<L>>, flight: Arc<Flight>) -> Passenger<L> {
        Passenger { inner: inner.clone(), flight, heard: false }
    }

    pub(super) async fn landing(mut self) -> Landing {
        loop {
            if let Progress::Landed(landing) = *self.flight.progress.lock() {
                self.heard = true;
                return landing;
            }
            self.flight.done.notified().await;
        }
    }
}

impl<L: Link> Drop for Passenger<L> {
    fn drop(&mut self) {
        if self.heard {
            return;
        }
        let progress = std::mem::replace(&mut *self.flight.progress.lock(), Progress::Abandoned);
        if let Progress::Landed(landing) = progress {
            self.inner.settle(&self.flight.parts, landing);
        }
    }
}

/// Waits for another flight of the same scope. Dropped meanwhile, what it was to report is reported all the same.
pub(super) struct Standby<L: Link> {
    inner: Arc<Inner<L>>,
    parts: Vec<Part>,
}

impl<L: Link> Standby<L> {
    pub(super) fn new(inner: &Arc<Inner<L>>, parts: Vec<Part>) -> Standby<L> {
        Standby { inner: inner.clone(), parts }
    }

    /// Its turn has come: the step is run again.
    pub(super) fn board(mut self) {
        self.parts.clear();
    }
}

impl<L: Link> Drop for Standby<L> {
    fn drop(&mut self) {
        if !self.parts.is_empty() && !starts(&self.parts) {
            self.inner.settle(&self.parts, Landing::Again);
        }
    }
}
