//! Connections at rest, and those that are shared.
//!
//! The lock is held for a hash look-up and a push or pop; sockets are opened and closed outside it.

use std::collections::HashMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::h1::H1;
use super::h2::H2;
use super::way::{ExitSession, Way};

/// What two requests must have in common to share a connection: the origin, and the exit's session where there is one.
/// Connections belong to one exit session and die with it (E4).
#[derive(Clone, Debug)]
pub(super) struct PoolKey {
    session: Option<Arc<ExitSession>>,
    origin: Bytes,
}

impl PoolKey {
    pub(super) fn new(way: &Way, origin: Bytes) -> PoolKey {
        PoolKey { session: way.session().cloned(), origin }
    }

    /// Nothing of it is to be kept. Only to be asked under the pool's lock.
    fn is_left(&self) -> bool {
        self.session.as_ref().is_some_and(|session| session.is_left())
    }
}

/// Bounds of the pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolLimits {
    pub(super) idle_per_origin_max: usize,
    pub(super) idle_max: usize,
    pub(super) idle_timeout: Duration,
}

/// All connections of one client that a further request may use.
#[derive(Debug)]
pub(super) struct Pool {
    limits: PoolLimits,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    direct: Slots,
    exits: HashMap<u64, OfExit, foldhash::fast::RandomState>,
    slots: usize,
    idle: usize,
    shared: usize,
    sweeping: bool,
}

/// By origin.
type Slots = HashMap<Bytes, Slot, foldhash::fast::RandomState>;

/// What is known of one exit session. It is here from its first connection until it is gone or left, so that a connection
/// that is in use when it is left can be told not to come back.
#[derive(Debug)]
struct OfExit {
    session: Weak<ExitSession>,
    slots: Slots,
}

/// What is known of one origin. It outlives its last connection by the idle time-out, so that a busy origin, whose
/// connections are all in use, is not forgotten.
#[derive(Debug)]
struct Slot {
    idle: Vec<Idle>, // the last one back is the first one out: the rest may grow old and go
    shared: Option<H2>,
    /// It was seen to speak HTTP/1.1 only, so nobody need wait for anybody's handshake.
    h1_only: bool,
    turn: Arc<Turn>,
    touched: Instant,
}

/// Whose turn it is to open a connection that others may be able to share.
#[derive(Debug, Default)]
pub(super) struct Turn {
    /// Held by whoever opens it.
    pub(super) lock: tokio::sync::Mutex<()>,
    /// They have come through the exit: who waits too long waits for the origin.
    pub(super) through: AtomicBool,
}

#[derive(Debug)]
struct Idle {
    connection: Box<H1>,
    since: Instant,
}

/// A connection for a request.
pub(super) enum Found {
    H1(Box<H1>),
    H2(H2),
}

/// Origins that are remembered; beyond it, those go that have no connection. Each takes some 200 bytes.
const SLOTS_MAX: usize = 16 * 1024;

impl Pool {
    pub(super) fn new(limits: PoolLimits) -> Pool {
        Pool { limits, state: Mutex::default() }
    }

    /// An idle connection that is young enough, or the shared one.
    pub(super) fn take(&self, key: &PoolKey) -> Option<Found> {
        let mut expired = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        let slot = state.find(key)?;
        if let Some(shared) = &slot.shared {
            slot.touched = Instant::now();
            return Some(Found::H2(shared.clone()));
        }
        let newest = slot.idle.pop()?;
        let taken = if newest.since.elapsed() < self.limits.idle_timeout {
            Some(Found::H1(newest.connection))
        } else {
            expired.append(&mut slot.idle);
            None
        };
        state.idle -= 1 + expired.len();
        drop(state);
        taken
    }

    /// Keeps a connection that can serve another request; closes the oldest where there are too many.
    pub(super) fn put(self: &Arc<Pool>, key: PoolKey, connection: Box<H1>) {
        let mut surplus = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        let now = Instant::now();
        if key.is_left() {
            surplus.push(Idle { connection, since: now });
            return;
        }
        let slot = state.slot(&key);
        slot.touched = now;
        slot.idle.push(Idle { connection, since: now });
        if slot.idle.len() > self.limits.idle_per_origin_max {
            surplus.push(slot.idle.remove(0));
        }
        state.idle = state.idle + 1 - surplus.len();
        if state.idle > self.limits.idle_max {
            state.drop_oldest(self.limits.idle_max * 3 / 4, &mut surplus);
        }
        self.start_sweeping(&mut state);
    }

    /// Whose turn it is to open a connection to an origin that may speak HTTP/2: one at a time, the others wait for the
    /// lock and look again. `None` where everybody needs a connection of their own anyway.
    pub(super) fn turn(self: &Arc<Pool>, key: &PoolKey) -> Option<Arc<Turn>> {
        let mut state = self.state.lock();
        if key.is_left() {
            return None;
        }
        let slot = state.slot(key);
        let turn = (!slot.h1_only).then(|| Arc::clone(&slot.turn));
        self.start_sweeping(&mut state);
        turn
    }

    /// Remembers what an origin speaks: the connection to share, or `None` for HTTP/1.1.
    pub(super) fn learn(&self, key: &PoolKey, shared: Option<H2>) {
        let mut gone = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        if key.is_left() {
            return;
        }
        let slot = state.slot(key);
        slot.touched = Instant::now();
        slot.h1_only = shared.is_none();
        let added = usize::from(shared.is_some());
        gone.extend(std::mem::replace(&mut slot.shared, shared));
        state.shared = state.shared + added - gone.len();
        if state.shared > self.limits.idle_max {
            state.drop_longest_unasked(self.limits.idle_max * 3 / 4, &mut gone);
        }
        drop(state);
    }

    /// Gives no more requests to a shared connection. What is under way on it goes on.
    pub(super) fn forget(&self, key: &PoolKey, dead: &H2) {
        let mut state = self.state.lock();
        let gone = state.find(key).and_then(|slot| slot.shared.take_if(|shared| shared.is_same(dead)));
        state.shared -= usize::from(gone.is_some());
        drop(state);
    }

    /// Takes note of an exit session of which connections will be in use.
    pub(super) fn meet(self: &Arc<Pool>, session: &Arc<ExitSession>) {
        let mut state = self.state.lock();
        state.of_exit(session);
        self.start_sweeping(&mut state);
    }

    /// Closes what is kept of an exit session, and keeps nothing more of it. What is under way goes on.
    pub(super) fn leave(&self, session: u64) {
        let mut state = self.state.lock();
        let Some(left) = state.exits.remove(&session) else { return };
        if let Some(session) = left.session.upgrade() {
            session.leave();
        }
        state.slots -= left.slots.len();
        state.idle -= left.slots.values().map(|slot| slot.idle.len()).sum::<usize>();
        state.shared -= left.slots.values().filter(|slot| slot.shared.is_some()).count();
        drop(state);
    }

    fn start_sweeping(self: &Arc<Pool>, state: &mut State) {
        if !state.sweeping {
            state.sweeping = true;
            tokio::spawn(sweep(Arc::downgrade(self), self.limits.idle_timeout));
        }
    }

    /// Closes and forgets what has expired; tells whether there is anything left to come back for.
    fn expire(&self) -> bool {
        let mut expired = Vec::new(); // dropped after the lock
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        let idle_timeout = self.limits.idle_timeout;
        state.retain(|idle| idle.since.elapsed() < idle_timeout, &mut expired);
        // A turn that somebody holds or waits for keeps its slot, or two would take turns beside each other.
        state.forget_slots(|slot| slot.touched.elapsed() >= idle_timeout && slot.is_unused(), &mut gone);
        state.exits.retain(|_, exit| !exit.slots.is_empty() || exit.session.strong_count() > 0);
        state.sweeping = !(state.direct.is_empty() && state.exits.is_empty());
        state.sweeping
    }
}

impl Slot {
    fn new() -> Slot {
        Slot { idle: Vec::new(), shared: None, h1_only: false, turn: Arc::default(), touched: Instant::now() }
    }

    /// Nothing at rest, and nobody on the way to a connection.
    fn is_unused(&self) -> bool {
        self.idle.is_empty() && Arc::strong_count(&self.turn) == 1
    }
}

impl State {
    fn find(&mut self, key: &PoolKey) -> Option<&mut Slot> {
        match &key.session {
            None => self.direct.get_mut(&key.origin),
            Some(session) => self.exits.get_mut(&session.id())?.slots.get_mut(&key.origin),
        }
    }

    /// The slot, a new one if need be.
    fn slot(&mut self, key: &PoolKey) -> &mut Slot {
        if self.find(key).is_none() {
            if self.slots >= SLOTS_MAX {
                self.forget_slots(|slot| slot.shared.is_none() && slot.is_unused(), &mut Vec::new());
            }
            self.slots += 1;
        }
        let slots = match &key.session {
            None => &mut self.direct,
            Some(session) => &mut self.of_exit(session).slots,
        };
        slots.entry(key.origin.clone()).or_insert_with(Slot::new)
    }

    fn of_exit(&mut self, session: &Arc<ExitSession>) -> &mut OfExit {
        let new = || OfExit { session: Arc::downgrade(session), slots: Slots::default() };
        self.exits.entry(session.id()).or_insert_with(new)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Slots> {
        std::iter::once(&mut self.direct).chain(self.exits.values_mut().map(|exit| &mut exit.slots))
    }

    /// Down to about `keep` connections. A quarter goes at a time, so the sort is rare.
    fn drop_oldest(&mut self, keep: usize, dropped: &mut Vec<Idle>) {
        let ages = self.all().flat_map(|slots| slots.values()).flat_map(|slot| &slot.idle);
        let Some(cut) = youngest(keep, ages.map(|idle| idle.since).collect()) else { return };
        self.retain(|idle| idle.since >= cut, dropped);
    }

    /// The same for shared connections. One that is in use goes on until its streams have ended.
    fn drop_longest_unasked(&mut self, keep: usize, dropped: &mut Vec<H2>) {
        let shared = self.all().flat_map(|slots| slots.values()).filter(|slot| slot.shared.is_some());
        let Some(cut) = youngest(keep, shared.map(|slot| slot.touched).collect()) else { return };
        for slot in self.all().flat_map(|slots| slots.values_mut()) {
            dropped.extend(slot.shared.take_if(|_| slot.touched < cut));
        }
        self.shared =
            self.all().flat_map(|slots| slots.values()).filter(|slot| slot.shared.is_some()).count();
    }

    fn retain(&mut self, keep: impl Fn(&Idle) -> bool, dropped: &mut Vec<Idle>) {
        for slot in self.all().flat_map(|slots| slots.values_mut()) {
            dropped.extend(slot.idle.extract_if(.., |idle| !keep(idle)));
        }
        self.idle = self.all().flat_map(|slots| slots.values()).map(|slot| slot.idle.len()).sum();
    }

    fn forget_slots(&mut self, which: impl Fn(&Slot) -> bool, gone: &mut Vec<Slot>) {
        for slots in self.all() {
            gone.extend(slots.extract_if(|_, slot| which(slot)).map(|(_, slot)| slot));
        }
        self.slots = self.all().map(|slots| slots.len()).sum();
        self.shared -= gone.iter().filter(|slot| slot.shared.is_some()).count();
    }
}

/// The moment from which on there are about `keep`.
fn youngest(keep: usize, mut since: Vec<Instant>) -> Option<Instant> {
    since.sort_unstable();
    since.get(since.len().saturating_sub(keep)).copied()
}

/// Closes idle connections in time. It lives while there are any, and not longer than the pool.
async fn sweep(pool: Weak<Pool>, idle_timeout: Duration) {
    loop {
        tokio::time::sleep(idle_timeout / 2 + Duration::from_millis(10)).await;
        if !pool.upgrade().is_some_and(|pool| pool.expire()) {
            return;
        }
    }
}
