//! The gate store of a run: who is woken by what it calls out, and what is said of it (F1).

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use forbear_core::{
    gate::{Gate, Snapshot},
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
};
use forbear_store::{
    gate::{AnyGates, GateAddress, GateRecord, GateStore, SharedChange, SharedEvent, SharedOptions},
    queue,
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    FetchError,
    events::{Event, Events},
    shared::Shared,
    worker::wall_now,
};
use crate::record;

/// The store that a run was told to use.
pub(super) struct Opened {
    pub(super) gates: Arc<AnyGates>,
    pub(super) calls: Arc<Calls>,
    /// By which the whole fleet names accounts, where there is a fleet.
    pub(super) account_key: Option<[u8; 32]>,
}

/// What the store has called out since somebody looked.
#[derive(Debug, Default)]
pub(super) struct Calls {
    /// For each scope that this member uses, at most one that closed it, to be said, and one that wakes: of two the later one counts.
    changed: Mutex<HashMap<ScopeKey, [Option<SharedChange>; 2]>>,
    called: Notify,
    losses: AtomicU64,
    alone_ms: AtomicU64,
}

/// How often, and for how long in all, a run was without its shared gate store.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct StoreLosses {
    /// How often it was lost.
    pub times: u64,
    /// For how long, the present loss not counted.
    pub alone: Duration,
}

/// Opens the store at `address`; what it says later goes to `events`.
pub(super) async fn open(address: &GateAddress, events: &Events) -> Result<Opened, FetchError> {
    let calls = Arc::new(Calls::default());
    let (heard, told, place) = (calls.clone(), events.clone(), address.to_string());
    let options = SharedOptions {
        events: Arc::new(move |event| heard.hear(event, &place, &told)),
        ..SharedOptions::default()
    };
    let lost = |source| FetchError::Gate { place: address.to_string(), source };
    let gates = address.open(options).await.map_err(lost)?;
    let account_key = gates.account_key().await.map_err(lost)?;
    Ok(Opened { gates: Arc::new(gates), calls, account_key })
}

impl Calls {
    fn hear(&self, event: SharedEvent, place: &str, events: &Events) {
        match event {
            SharedEvent::Changed { scope, change } => {
                let wakes = usize::from(!matches!(change, SharedChange::Closed { .. }));
                let mut changed = self.changed.lock();
                let place = &mut changed.entry(scope).or_default()[wakes];
                // Who is called since a scope opened is called for a place as well.
                if (*place, change) != (Some(SharedChange::Opened), SharedChange::Freed) {
                    *place = Some(change);
                }
                self.called.notify_one();
            }
            SharedEvent::Lost { why } => {
                self.losses.fetch_add(1, Relaxed);
                events(Event::GateLost { place: place.to_owned(), why });
            }
            SharedEvent::Back { after } => {
                self.alone_ms.fetch_add(u64::try_from(after.as_millis()).unwrap_or(u64::MAX), Relaxed);
                events(Event::GateBack { place: place.to_owned(), after });
            }
            SharedEvent::Evicts { policy } => events(Event::Warning(format!(
                "the gate store {place} throws keys away when its memory is full ({policy}): pauses may be lost; \
                 set its maxmemory-policy to noeviction"
            ))),
            SharedEvent::Unreadable { scope, why } => events(Event::Warning(format!(
                "{why}: {scope} is left alone there, and paced here with this process's share"
            ))),
            _ => {}
        }
    }

    pub(super) fn losses(&self) -> StoreLosses {
        let alone = Duration::from_millis(self.alone_ms.load(Relaxed));
        StoreLosses { times: self.losses.load(Relaxed), alone }
    }
}

impl<G: GateStore> Shared<G> {
    /// Wakes whoever waits for what other members change, for as long as the run lasts, and tells what waits here.
    pub(super) async fn answer_calls(self: Arc<Self>) {
        loop {
            if tokio::time::timeout(TELL_WAITING, self.calls.called.notified()).await.is_err() {
                let waiting = self.front.lock().waiting_by_scope();
                self.gates.note_waiting(&waiting);
                continue;
            }
            let changed = std::mem::take(&mut *self.calls.changed.lock());
            let mut closed = Vec::new();
            {
                let mut front = self.front.lock();
                let mut opened = Vec::new();
                let changes = changed.into_iter().flat_map(|(scope, changes)| {
                    changes.into_iter().flatten().map(move |change| (scope.clone(), change))
                });
                for (scope, change) in changes {
                    match change {
                        SharedChange::Freed => front.freed(&scope),
                        SharedChange::Opened => opened.push(scope),
                        SharedChange::Closed { cause, until } => {
                            let waiting = front.waiting_for(&scope);
                            closed.push((scope, cause, until, waiting));
                        }
                    }
                }
                if !opened.is_empty() {
                    front.wake_for(&opened);
                }
                if front.idle > 0 {
                    self.idle.notify_one();
                }
            }
            for (scope, cause, until, waiting) in closed {
                let wait = until.since(self.gates.now());
                let endless = until == Timestamp::MAX;
                (self.events)(Event::Paused {
                    scope: scope.to_string(),
                    cause,
                    wait: (!endless).then_some(wait),
                    until: if endless { String::new() } else { record::rfc3339(wall_now().plus(wait)) },
                    waiting,
                    said: "told by another process".to_owned(),
                    whose: None,
                    incident: true,
                });
            }
        }
    }

    /// When to ask again for a place on the wire that others hold: a call may be lost, and a process may die with its places.
    pub(super) fn ask_again(&self) -> Option<Timestamp> {
        self.shared_gates.then(|| self.gates.now().plus(ASK_AGAIN))
    }

    /// Opens a scope whose credentials have changed since it was shut.
    pub(super) async fn reopen(&self, scope: BoundScope) {
        let open = |gates: &mut [Gate], now| {
            if gates[0].has_bad_credentials() {
                gates[0].clear(now);
            }
        };
        if let Err(error) = self.gates.update(&[scope], open).await {
            self.warn_once(error.to_string());
        }
    }
}

impl<G: GateStore> Shared<G> {
    /// A gate as it is after the search for what explains an incident, which runs once the step that ended it is over. Of a
    /// store that others share the step's own word has to do.
    pub(super) async fn as_studied(&self, scope: &BoundScope) -> Option<(Snapshot, Timestamp)> {
        if self.shared_gates {
            return None;
        }
        let look = |gates: &mut [Gate], now| (gates[0].snapshot(), now);
        self.gates.update(std::slice::from_ref(scope), look).await.ok()
    }
}

impl Shared<AnyGates> {
    /// Keeps what the run has learned of scopes that are open: of a closed one it is kept since it closed. An exit's are kept
    /// as they change, for a gateway has too many.
    pub(super) fn save_learned(&self) {
        let AnyGates::Memory(gates) = &*self.gates else { return };
        let learned = gates.collect(|key, gate, now| {
            let known = gate.belief().is_some_and(|b| b.evidence.incidents > 0 || b.evidence.stated);
            let kept = gate.snapshot();
            (known && !kept.shut && !key.is_by_exit())
                .then(|| (key.to_string(), GateRecord::encode(&kept, now)))
        });
        for (key, record) in learned {
            let record = queue::GateRecord { key, version: GateRecord::VERSION, record, until: None };
            // An error is the job's, and the job says it when it closes.
            let _ = self.job.save_gate_soon(record);
        }
    }
}

/// How often others are told what waits here, while nothing happens that must be heard.
const TELL_WAITING: Duration = Duration::from_secs(1);
/// Without a call.
const ASK_AGAIN: Duration = Duration::from_secs(1);
