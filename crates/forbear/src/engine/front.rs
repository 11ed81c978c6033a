//! The frontier of a run with what the engine keeps beside it: which items are at hand, and by which route they go.

use std::{collections::HashMap, sync::Arc, time::Duration};

use forbear_core::{
    exit::{ExitId, Usable},
    frontier::Frontier,
    multiplier::RetryMultiplier,
    scope::ScopeKey,
    time::Timestamp,
};
use forbear_store::queue::{Counters, Item, LaneId};

use super::route::Route;
use crate::client::Target;

/// A lane of the job, or one that a redirect leads to.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub(super) enum LaneKey {
    Stored(LaneId),
    Hop(u64),
}

/// An item at hand, and where it stands.
#[derive(Debug)]
pub(super) struct Work {
    pub(super) item: Item,
    /// Where a redirect has led; none at the item's own URL.
    pub(super) hop: Option<Hop>,
    /// When it was refused last: the wait is counted from here.
    pub(super) refused_at: Option<Timestamp>,
    /// Requests sent for it in this run.
    pub(super) tries: u32,
    /// The exit by which a redirect came, which goes on by it.
    pub(super) keep: Option<ExitId>,
    /// The exit that failed it last.
    pub(super) not: Option<ExitId>,
    /// Exits that were told that it is unwanted.
    pub(super) blocked: u32,
    /// What its next request is taken to cost (C1).
    pub(super) estimate: u32,
    /// What its last one is taken to have cost, after its answer.
    pub(super) cost: u32,
}

impl Work {
    /// Its counters as they are at `due`, up to which it waits out of hand.
    pub(super) fn counters_at(&self, due: Timestamp) -> Counters {
        let mut counters = self.item.counters.clone();
        counters.waited += self.refused_at.map_or(Duration::ZERO, |refused_at| due.since(refused_at));
        counters
    }

    /// The origin of its next request.
    pub(super) fn origin(&self) -> Option<String> {
        match &self.hop {
            Some(hop) => Some(hop.target.origin().to_owned()),
            None => Target::parse(&self.item.request.url).ok().map(|target| target.origin().to_owned()),
        }
    }
}

/// The state of a chain of redirects.
#[derive(Clone, Debug)]
pub(super) struct Hop {
    pub(super) target: Target,
    /// How many redirects were followed.
    pub(super) count: u32,
    /// Method and body were dropped, as after a 303.
    pub(super) as_get: bool,
    /// It has left the item's origin, where the item's secrets stay (K2).
    pub(super) abroad: bool,
}

#[derive(Debug, Default)]
pub(super) struct Front {
    pub(super) frontier: Frontier<LaneKey, Box<Work>>,
    routes: HashMap<LaneKey, Arc<Route>>,
    hops: HashMap<String, u64>,
    last_hop: u64,
    /// Lanes that were put aside to make room, with the moment when their time comes.
    asleep: HashMap<LaneId, Timestamp>,
    /// Counts events that may let a waiting lane go: whoever decided on older news asks again.
    pub(super) changes: u64,
    /// Those of them that end a wait before its time.
    pub(super) wakes: u64,
    pub(super) idle: usize,
    /// Items in the hands of workers.
    pub(super) busy: usize,
    /// Requests for each item that ends, and what they leave of the run's concurrency (V3).
    pub(super) multiplier: RetryMultiplier,
}

impl Front {
    /// Whether another item may be taken in hand, of a run with so many workers (V3).
    pub(super) fn may_take(&self, workers: u32) -> bool {
        let share = self.multiplier.share();
        share >= 1.0 || (self.busy as f64) < (f64::from(workers) * share).max(1.0)
    }

    pub(super) fn route(&self, lane: LaneKey) -> Option<Arc<Route>> {
        self.routes.get(&lane).cloned()
    }

    /// Takes a lane of the job into the window. `route` is made only for a lane that is new to it.
    pub(super) fn open(&mut self, lane: LaneId, route: impl FnOnce() -> Route) {
        let key = LaneKey::Stored(lane);
        self.asleep.remove(&lane);
        self.routes.entry(key).or_insert_with(|| Arc::new(route()));
        self.frontier.open(key);
        self.tidy();
    }

    /// The lane of a redirect's target.
    pub(super) fn hop_lane(&mut self, text: &str, route: impl FnOnce() -> Route) -> LaneKey {
        self.tidy(); // redirects may lead to a host each, and no lane of the job is opened for them
        let number = match self.hops.get(text) {
            Some(number) => *number,
            None => {
                self.last_hop += 1;
                self.hops.insert(text.to_owned(), self.last_hop);
                self.last_hop
            }
        };
        let key = LaneKey::Hop(number);
        self.routes.entry(key).or_insert_with(|| Arc::new(route()));
        key
    }

    pub(super) fn is_open(&self, lane: LaneId) -> bool {
        self.frontier.has(LaneKey::Stored(lane))
    }

    pub(super) fn is_asleep(&self, lane: LaneId, now: Timestamp) -> bool {
        self.asleep.get(&lane).is_some_and(|until| *until > now)
    }

    /// Puts the lane aside that waits longest; its items are for the store.
    #[expect(clippy::vec_box, reason = "the frontier keeps them boxed, and gives them back as they are")]
    pub(super) fn make_room(&mut self, now: Timestamp) -> Option<(Vec<Box<Work>>, Timestamp)> {
        if self.asleep.len() >= ASLEEP_MAX {
            self.asleep.retain(|_, until| *until > now);
        }
        if self.asleep.len() >= ASLEEP_MAX {
            return None;
        }
        let (lane, works, until) = self.frontier.evict(now)?;
        self.routes.remove(&lane);
        if let LaneKey::Stored(lane) = lane {
            self.asleep.insert(lane, until);
        }
        Some((works, until))
    }

    /// Lanes that were put aside and whose time has come.
    pub(super) fn take_due(&mut self, now: Timestamp, max: usize) -> Vec<LaneId> {
        let due: Vec<LaneId> =
            self.asleep.iter().filter(|(_, until)| **until <= now).map(|(lane, _)| *lane).take(max).collect();
        for lane in &due {
            self.asleep.remove(lane);
        }
        due
    }

    /// When the first lane that was put aside is due.
    fn first_asleep(&self) -> Option<Timestamp> {
        self.asleep.values().min().copied()
    }

    /// When the next lane is due, at hand or put aside; none where nothing is due by itself.
    pub(super) fn next_timer(&mut self) -> Option<Timestamp> {
        let timers = self.frontier.next_timer().into_iter().chain(self.first_asleep());
        timers.filter(|at| *at != Timestamp::MAX).min()
    }

    /// A scope of a request to `origin` has opened, or may be probed by another: its lanes are asked again.
    pub(super) fn wake(&mut self, scopes: &[ScopeKey], origin: &str) {
        self.changes += 1;
        self.wakes += 1;
        let touched = |route: &Route| {
            *route.origin == *origin || route.scopes.iter().any(|scope| scopes.contains(&scope.key))
        };
        for (lane, route) in &self.routes {
            if touched(route) {
                self.frontier.wake(*lane);
            }
        }
    }

    /// Scopes have opened elsewhere, or may be probed: their lanes are asked again.
    pub(super) fn wake_for(&mut self, scopes: &[ScopeKey]) {
        if scopes.iter().any(ScopeKey::is_by_exit) {
            return self.wake_all(); // routes do not have the scopes of their exits
        }
        self.changes += 1;
        self.wakes += 1;
        for (lane, route) in &self.routes {
            if route.scopes.iter().any(|scope| scopes.contains(&scope.key)) {
                self.frontier.wake(*lane);
            }
        }
    }

    /// A request of a scope has come back, wherever it was sent from.
    pub(super) fn freed(&mut self, scope: &ScopeKey) {
        self.changes += 1;
        self.frontier.freed(scope);
    }

    /// Something that concerns lanes of all origins has changed.
    pub(super) fn wake_all(&mut self) {
        self.changes += 1;
        self.wakes += 1;
        for lane in self.routes.keys() {
            self.frontier.wake(*lane);
        }
    }

    /// Items at hand that wait for a scope.
    pub(super) fn waiting_for(&self, scope: &ScopeKey) -> usize {
        let lanes = self.routes.iter().filter(|(_, route)| route.scopes.iter().any(|s| s.key == *scope));
        lanes.filter_map(|(lane, _)| self.frontier.waiting(*lane)).map(|(items, _)| items).sum()
    }

    /// How many items at hand wait for each scope.
    pub(super) fn waiting_by_scope(&self) -> HashMap<ScopeKey, u32> {
        let mut waiting = HashMap::new();
        for (lane, route) in &self.routes {
            let items = self.frontier.waiting(*lane).map_or(0, |(items, _)| items);
            for scope in route.scopes.iter().filter(|_| items > 0) {
                let count: &mut u32 = waiting.entry(scope.key.clone()).or_default();
                *count = count.saturating_add(u32::try_from(items).unwrap_or(u32::MAX));
            }
        }
        waiting
    }

    /// Whether an item at hand waits for something else than an exit: it goes directly, or its exits can be used.
    pub(super) fn has_a_way(&self) -> bool {
        let usable = |route: &Route| match &route.pool {
            Some(pool) => pool.members.usable() == Usable::Yes,
            None => true,
        };
        let waits = |lane| self.frontier.waiting(lane).is_some_and(|(items, _)| items > 0);
        self.routes.iter().any(|(lane, route)| waits(*lane) && usable(route))
    }

    /// Forgets the routes of lanes that are done.
    fn tidy(&mut self) {
        if self.routes.len() > 2 * self.frontier.lanes() + 64 {
            let frontier = &self.frontier;
            self.routes.retain(|lane, _| frontier.has(*lane));
            let routes = &self.routes;
            self.hops.retain(|_, number| routes.contains_key(&LaneKey::Hop(*number)));
        }
    }
}

/// Lanes that may be put aside at once.
const ASLEEP_MAX: usize = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::Settings,
        engine::{
            exits::Pools,
            route::{LaneParts, Routes},
        },
    };

    #[test]
    fn j3_hosts_that_redirects_lead_to_are_forgotten() {
        let (mut front, routes) =
            (Front::default(), Routes::new(Arc::new(Settings::default()), Pools::Direct));
        for n in 0..10_000 {
            let origin = format!("http://h{n}");
            let parts = LaneParts { origin: &origin, account: None, endpoint: None };
            let lane = front.hop_lane(&parts.text(), || routes.route(parts));
            assert!(front.route(lane).is_some(), "the one at hand is kept");
        }
        assert!(front.routes.len() < 100 && front.hops.len() < 100, "{}", front.routes.len());
    }
}
