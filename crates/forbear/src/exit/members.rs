//! Exits that stand in for one another: the core's machine, with names and credentials, and how a request gets one of them.
//!
//! Nothing here belongs to one HTTP client, so the engine and [`ExitPool`](super::ExitPool) run the same code.

use std::{collections::HashMap, future::Future, sync::Arc};

use forbear_core::{
    attempt::{self, News},
    exit::{
        Ask, Choice, ExitChange, ExitId, ExitPolicy, Exits, Judged, Pick, Rotate, Settled, Tally, Traits,
        Usable,
    },
    gate::Cause,
    outcome::Outcome,
    policy::BoundScope,
    time::Timestamp,
};
use forbear_store::gate::{GateStore, StoreError};
use parking_lot::Mutex;

use super::{Entry, ExitUrl};
use crate::permit::{self, Admission, Answer};

/// What exits of one run are called: no credentials, and no two alike.
#[derive(Default)]
pub(crate) struct Names(HashMap<String, u32>);

impl Names {
    /// Two that share host and port are two (S2): the second of them is named as the second.
    fn of(&mut self, url: &ExitUrl) -> Arc<str> {
        let name = url.name();
        let nth = self.0.entry(name.clone()).or_insert(0);
        *nth += 1;
        if *nth == 1 { name.into() } else { format!("{name}#{nth}").into() }
    }
}

/// Exits that stand in for one another.
pub(crate) struct Members {
    machine: Mutex<Exits>,
    entries: Vec<Entry>,
    /// What records and scopes call them.
    names: Vec<Arc<str>>,
    rotate: Rotate,
    /// Chance: what session tokens are made of.
    seed: [u8; 32],
}

/// A row of the table of exits.
#[derive(Clone, Debug)]
pub struct ExitRow {
    /// The exit's name, without credentials.
    pub name: String,
    /// Its present state: `ok`, `unproven`, `failing` or `out`.
    pub state: &'static str,
    /// What went through it.
    pub tally: Tally,
    /// What that cost, where a price is known.
    pub cost: Option<f64>,
}

/// Whoever asks for an exit: knows the scopes of a request, and whom to call.
pub(crate) trait Asker: Sync {
    /// The scopes of the request if it goes by this exit.
    fn scopes(&self, pick: &Pick) -> impl Future<Output = Arc<[BoundScope]>> + Send;

    /// At these origins somebody may ask again who found an exit busy.
    fn freed(&self, origins: Vec<Arc<str>>);
}

/// Whether a request may start, and by which exit.
pub(crate) enum Leave<G: GateStore> {
    Go(Admission<G>, Arc<[BoundScope]>, Pick),
    Wait {
        until: Timestamp,
        cause: Cause,
    },
    /// Until a request of this scope, the index of these, comes back.
    Full(Arc<[BoundScope]>, usize),
    /// Until an exit is free, or `or`.
    Busy {
        or: Option<Timestamp>,
    },
    /// Each exit has turned us away (E5).
    None,
}

impl Members {
    /// `names` are those of the run: scopes go by them.
    pub(crate) fn new(entries: Vec<Entry>, policy: ExitPolicy, names: &mut Names) -> Members {
        let traits = entries.iter().map(traits);
        let rotate = policy.rotate;
        let machine = Mutex::new(Exits::new(policy, traits, fastrand::u64(..)));
        let names = entries.iter().map(|entry| names.of(&entry.url)).collect();
        Members { machine, entries, names, rotate, seed: std::array::from_fn(|_| fastrand::u8(..)) }
    }

    /// Asks the exits, and for each that one may ask the gates of all scopes, until one lets the request go (E2).
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing is taken: the exit that was being asked is given back.
    pub(crate) async fn acquire<G: GateStore>(
        &self,
        gates: &Arc<G>,
        origin: &str,
        (wanted, ask): (Ask, attempt::Ask),
        now: Timestamp,
        asker: &impl Asker,
    ) -> Result<Leave<G>, StoreError> {
        // Each turn either ends it or puts an exit aside, so it ends when none is left; the bound is for the others' sake.
        for _ in 0..ASKED_MAX {
            let pick = match self.machine.lock().choose(origin, wanted, now) {
                Choice::Use(pick) => pick,
                Choice::Wait { until } => return Ok(Leave::Wait { until, cause: Cause::Pace }),
                Choice::Busy { or } => return Ok(Leave::Busy { or }),
                Choice::None => return Ok(Leave::None),
            };
            let asking = Asking { members: self, asker, pick: Some(pick) };
            let scopes = asker.scopes(asking.pick()).await;
            let by_exit = |scope: usize| scopes[scope].by.is_some_and(|by| by.exit);
            match permit::acquire(gates, &scopes, ask).await? {
                Answer::Admitted(admission) => return Ok(Leave::Go(admission, scopes, asking.take())),
                Answer::Wait { until, scope, .. } if by_exit(scope) => {
                    let pick = asking.take();
                    let freed = self.machine.lock().put_off(&pick, until);
                    asker.freed(freed);
                }
                Answer::Full { scope } if by_exit(scope) => {
                    let pick = asking.take();
                    let freed = self.machine.lock().full(&pick);
                    asker.freed(freed);
                }
                Answer::Wait { until, cause, .. } => return Ok(Leave::Wait { until, cause }),
                Answer::Full { scope } => return Ok(Leave::Full(scopes, scope)),
            }
        }
        Ok(Leave::Wait { until: now, cause: Cause::Pace })
    }

    /// What the exits make of an attempt, before its gates hear of it.
    pub(crate) fn judge(
        &self,
        pick: &Pick,
        outcome: &Outcome,
        bytes: u64,
        now: Timestamp,
        roll: f64,
    ) -> Judged {
        self.machine.lock().judge(pick, outcome, bytes, now, roll)
    }

    /// What follows for exit and item from what the gates made of the report ([`Exits::settle`]).
    pub(crate) fn settle(
        &self,
        pick: &Pick,
        judged: &Judged,
        news: &News,
        scopes: &[BoundScope],
        shut_until: Option<Timestamp>,
        blocked_before: u32,
    ) -> Settled {
        self.machine.lock().settle(pick, judged, news, scopes, shut_until, blocked_before)
    }

    /// The exit that the item had rather not again, and the one that it waits for.
    pub(crate) fn wishes(&self, pick: &Pick, judged: &Judged) -> (Option<ExitId>, Option<ExitId>) {
        (judged.others.then_some(pick.exit), (self.rotate == Rotate::Never).then_some(pick.exit))
    }

    /// The exit that an item waits for, whatever others there are: without rotation that by which it went before.
    pub(crate) fn own(&self, keep: Option<ExitId>) -> Option<ExitId> {
        keep.filter(|_| self.rotate == Rotate::Never)
    }

    /// The request is not sent after all. Names the origins at which somebody may ask again.
    pub(crate) fn undo(&self, pick: &Pick) -> Vec<Arc<str>> {
        self.machine.lock().undo(pick)
    }

    /// The same for a probe: whoever was told to wait for it may ask at once.
    pub(crate) fn undo_probe(&self, pick: &Pick) {
        let mut machine = self.machine.lock();
        machine.recall_everywhere(pick.exit);
        let _all_are_called = machine.undo(pick);
    }

    /// Whether requests to all origins are to be asked for again: an exit serves again, or there is none left to wait for.
    pub(crate) fn concerns_all(&self, change: ExitChange) -> bool {
        change == ExitChange::Recovered || (change == ExitChange::Out && self.usable() == Usable::Out)
    }

    pub(crate) fn usable(&self) -> Usable {
        self.machine.lock().usable()
    }

    /// How many are neither failing nor out.
    pub(crate) fn usable_count(&self) -> usize {
        self.machine.lock().usable_count()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn name(&self, exit: ExitId) -> &Arc<str> {
        &self.names[exit.0 as usize]
    }

    /// The exit with the token of its session in its user name, if that has a place for one (E4).
    pub(crate) fn url(&self, pick: &Pick) -> ExitUrl {
        let url = &self.entries[pick.exit.0 as usize].url;
        if url.has_session() { url.with_session(&self.token(pick)) } else { url.clone() }
    }

    /// What counts as one address: an exit, or a session of a gateway (E4).
    pub(crate) fn address(&self, pick: &Pick) -> (ExitId, u64) {
        (pick.exit, if self.is_gateway(pick) { pick.session } else { 0 })
    }

    /// What the exit is called in scopes: a session of a gateway is an address of its own (E4).
    pub(crate) fn scope_name(&self, pick: &Pick) -> String {
        let name = self.name(pick.exit);
        if self.is_gateway(pick) { format!("{name}~{}", pick.session) } else { name.to_string() }
    }

    /// A row for each exit, in the order of the list.
    pub(crate) fn rows(&self) -> Vec<ExitRow> {
        let machine = self.machine.lock();
        let rows = self.names.iter().zip(&self.entries).zip(0..).map(|((name, entry), n)| {
            let tally = machine.tally(ExitId(n));
            let (per_request, per_gb) = (entry.price_per_request, entry.price_per_gb);
            let cost = (per_request.is_some() || per_gb.is_some()).then(|| tally.cost(&traits(entry)));
            ExitRow { name: name.to_string(), state: machine.state(ExitId(n)), tally, cost }
        });
        rows.collect()
    }

    /// Behind it there is another address for each session, and none of them is met again by a later run.
    pub(crate) fn is_gateway(&self, pick: &Pick) -> bool {
        self.entries[pick.exit.0 as usize].gateway
    }

    /// Letters and digits that no two sessions share, and that nobody can guess.
    fn token(&self, pick: &Pick) -> String {
        let mut hash = blake3::Hasher::new_keyed(&self.seed);
        hash.update(&pick.exit.0.to_le_bytes());
        hash.update(&pick.session.to_le_bytes());
        hash.finalize().to_hex()[..TOKEN_LEN].to_owned()
    }
}

fn traits(entry: &Entry) -> Traits {
    Traits {
        gateway: entry.gateway,
        price_per_request: entry.price_per_request.unwrap_or(0.0),
        price_per_byte: entry.price_per_gb.unwrap_or(0.0) / 1e9,
    }
}

/// An exit that is being asked; dropped, it is given back.
struct Asking<'a, A: Asker> {
    members: &'a Members,
    asker: &'a A,
    pick: Option<Pick>,
}

impl<A: Asker> Asking<'_, A> {
    fn pick(&self) -> &Pick {
        self.pick.as_ref().unwrap_or_else(|| unreachable!("it is taken at the end"))
    }

    fn take(mut self) -> Pick {
        self.pick.take().unwrap_or_else(|| unreachable!("it is taken once"))
    }
}

impl<A: Asker> Drop for Asking<'_, A> {
    fn drop(&mut self) {
        if let Some(pick) = self.pick.take() {
            self.asker.freed(self.members.machine.lock().turn_down(&pick));
        }
    }
}

/// Exits that are asked in a row for one request; then others have their turn.
const ASKED_MAX: usize = 64;
/// Sixty-four bits: sellers of exits take 8 to 16 characters.
const TOKEN_LEN: usize = 16;
