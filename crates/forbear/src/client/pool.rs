//! Connections at rest.
//!
//! The lock is held for a hash look-up and a push or pop; sockets are opened and closed outside it.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::h1::H1;

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

/// All idle connections of one client.
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

#[derive(Debug, Default)]
struct Slot {
    idle: Vec<Idle>, // the last one back is the first one out: the rest may grow old and go
}

#[derive(Debug)]
struct Idle {
    connection: Box<H1>,
    since: Instant,
}

impl Pool {
    pub(super) fn new(limits: PoolLimits) -> Pool {
        Pool { limits, state: Mutex::default() }
    }

    /// An idle connection that is young enough.
    pub(super) fn take(&self, key: &PoolKey) -> Option<Box<H1>> {
        let mut expired = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        let slot = state.slots.get_mut(key)?;
        let newest = slot.idle.pop()?;
        let taken = if newest.since.elapsed() < self.limits.idle_timeout {
            Some(newest.connection)
        } else {
            expired.append(&mut slot.idle);
            None
        };
        let gone = 1 + expired.len();
        if slot.idle.is_empty() {
            state.slots.remove(key);
        }
        state.idle -= gone;
        drop(state);
        taken
    }

    /// Keeps a connection that can serve another request; closes the oldest where there are too many.
    pub(super) fn put(self: &Arc<Pool>, key: PoolKey, connection: Box<H1>) {
        let mut surplus = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        let slot = state.slots.entry(key).or_default();
        slot.idle.push(Idle { connection, since: Instant::now() });
        if slot.idle.len() > self.limits.idle_per_origin_max {
            surplus.push(slot.idle.remove(0));
        }
        state.idle += 1 - surplus.len();
        if state.idle > self.limits.idle_max {
            state.drop_oldest(self.limits.idle_max * 3 / 4, &mut surplus);
        }
        let start = !state.sweeping && state.idle > 0;
        state.sweeping |= start;
        drop(state);
        if start {
            tokio::spawn(sweep(Arc::downgrade(self), self.limits.idle_timeout));
        }
    }

    /// Closes what has expired; tells whether there is anything left to come back for.
    fn expire(&self) -> bool {
        let mut expired = Vec::new(); // dropped after the lock
        let mut state = self.state.lock();
        state.retain(|idle| idle.since.elapsed() < self.limits.idle_timeout, &mut expired);
        state.sweeping = state.idle > 0;
        state.sweeping
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
        self.slots.retain(|_, slot| {
            dropped.extend(slot.idle.extract_if(.., |idle| !keep(idle)));
            !slot.idle.is_empty()
        });
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
