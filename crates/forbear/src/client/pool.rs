//! Connections at rest, and those that are shared.
//!
//! The lock is held for a hash look-up and a push or pop; sockets are opened and closed outside it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::h1::H1;
use super::h2::H2;

/// What two requests must have in common to share a connection.
///
/// Today that is the origin. An exit (with its credentials and session) belongs in here too, once there are exits:
/// connections belong to one exit and die with it (E4).
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub(super) struct PoolKey {
    origin: Bytes,
}

impl PoolKey {
    pub(super) fn new(origin: Bytes) -> PoolKey {
        PoolKey { origin }
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
    slots: HashMap<PoolKey, Slot, foldhash::fast::RandomState>,
    idle: usize,
    sweeping: bool,
}

/// What is known of one origin. It outlives its last connection by the idle time-out, so that a busy origin, whose
/// connections are all in use, is not forgotten.
#[derive(Debug)]
struct Slot {
    idle: Vec<Idle>, // the last one back is the first one out: the rest may grow old and go
    shared: Option<H2>,
    /// It was seen to speak HTTP/1.1 only, so nobody need wait for anybody's handshake.
    h1_only: bool,
    /// Held by whoever opens a connection that others may be able to share.
    turn: Arc<tokio::sync::Mutex<()>>,
    touched: Instant,
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

impl Pool {
    pub(super) fn new(limits: PoolLimits) -> Pool {
        Pool { limits, state: Mutex::default() }
    }

    /// An idle connection that is young enough, or the shared one.
    pub(super) fn take(&self, key: &PoolKey) -> Option<Found> {
        let mut expired = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(key)?;
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
        let slot = state.slots.entry(key).or_insert_with(Slot::new);
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
    pub(super) fn turn(self: &Arc<Pool>, key: &PoolKey) -> Option<Arc<tokio::sync::Mutex<()>>> {
        let mut state = self.state.lock();
        let slot = state.slots.entry(key.clone()).or_insert_with(Slot::new);
        let turn = (!slot.h1_only).then(|| Arc::clone(&slot.turn));
        self.start_sweeping(&mut state);
        turn
    }

    /// Remembers what an origin speaks: the connection to share, or `None` for HTTP/1.1.
    pub(super) fn learn(&self, key: &PoolKey, shared: Option<H2>) {
        let mut state = self.state.lock();
        let slot = state.slots.entry(key.clone()).or_insert_with(Slot::new);
        slot.touched = Instant::now();
        slot.h1_only = shared.is_none();
        slot.shared = shared;
    }

    /// Gives no more requests to a shared connection. What is under way on it goes on.
    pub(super) fn forget(&self, key: &PoolKey, dead: &H2) {
        let mut state = self.state.lock();
        if let Some(slot) = state.slots.get_mut(key) {
            slot.shared.take_if(|shared| shared.is_same(dead));
        }
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
        gone.extend(state.slots.extract_if(|_, slot| {
            // A turn that somebody holds or waits for keeps its slot, or two would take turns beside each other.
            slot.idle.is_empty()
                && slot.touched.elapsed() >= idle_timeout
                && Arc::strong_count(&slot.turn) == 1
        }));
        state.sweeping = !state.slots.is_empty();
        state.sweeping
    }
}

impl Slot {
    fn new() -> Slot {
        Slot { idle: Vec::new(), shared: None, h1_only: false, turn: Arc::default(), touched: Instant::now() }
    }
}

impl State {
    /// Down to about `keep` connections. A quarter goes at a time, so the sort is rare.
    fn drop_oldest(&mut self, keep: usize, dropped: &mut Vec<Idle>) {
        let mut ages: Vec<Instant> =
            self.slots.values().flat_map(|slot| &slot.idle).map(|idle| idle.since).collect();
        ages.sort_unstable();
        let Some(&cut) = ages.get(ages.len().saturating_sub(keep)) else { return };
        self.retain(|idle| idle.since >= cut, dropped);
    }

    fn retain(&mut self, keep: impl Fn(&Idle) -> bool, dropped: &mut Vec<Idle>) {
        for slot in self.slots.values_mut() {
            dropped.extend(slot.idle.extract_if(.., |idle| !keep(idle)));
        }
        self.idle = self.slots.values().map(|slot| slot.idle.len()).sum();
    }
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
