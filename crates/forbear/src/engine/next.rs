//! Which item a worker takes up next, and by which exit it goes: asked of the frontier, the exits and the gates.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use forbear_core::{
    attempt::Ask,
    exit::{self, Pick},
    gate::Cause,
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
};
use forbear_store::gate::{GateStore, StoreError};

use super::{
    exits::{Out, Pool, waits_for_exits},
    front::{LaneKey, Work},
    route::Route,
    shared::Shared,
    worker::HELD_MAX,
};
use crate::{
    config::CostSettings,
    cost,
    exit::{Asker, ExitSecrets, Leave as LeaveByExit},
    permit::{self, Admission, Answer},
};

/// What a worker has in its hands.
pub(super) struct Started<G: GateStore> {
    pub(super) work: Box<Work>,
    pub(super) course: Course,
    pub(super) admission: Admission<G>,
}

/// The way that one request of an item takes.
pub(super) struct Course {
    pub(super) lane: LaneKey,
    pub(super) route: Arc<Route>,
    /// The scopes that admitted it: the route's, and its exit's.
    pub(super) scopes: Arc<[BoundScope]>,
    /// None for the direct way.
    pub(super) out: Option<Out>,
}

impl Course {
    /// Whether what its requests cost is of interest: where somebody has said a word about it.
    pub(super) fn shows_cost(&self, work: &Work) -> bool {
        work.item.request.cost.is_some() || self.route.cost != CostSettings::default()
    }

    /// What the record calls the way.
    pub(super) fn exit_name(&self) -> &str {
        self.out.as_ref().map_or(DIRECT, |out| out.pool.members.name(out.pick.exit))
    }

    /// The text without what only the exit may know (K1).
    pub(super) fn hide(&self, text: String) -> String {
        match &self.out {
            Some(out) => out.hide(text),
            None => text,
        }
    }

    /// What the record of an answer must not show (K1). An answer through TLS is the origin's to the last byte: the exit has
    /// seen nothing of it and added nothing, and what looks like its password is somebody's text.
    pub(super) fn secrets(&self) -> Option<&ExitSecrets> {
        let out = self.out.as_ref().filter(|_| !self.route.origin.starts_with("https://"))?;
        out.session.secrets.as_ref()
    }
}

/// Whether an item may start.
enum Leave<G: GateStore> {
    Go(Admission<G>, Arc<[BoundScope]>, Option<Out>),
    Wait {
        until: Timestamp,
        cause: Cause,
    },
    /// Until then, and this item alone: it waits for an exit of its own.
    Hold {
        until: Timestamp,
    },
    /// Until a request of this scope comes back, or until then.
    Full {
        scope: ScopeKey,
        or: Option<Timestamp>,
    },
}

/// A request of a route that goes by one of a pool's exits.
struct ByExit<'a, G> {
    shared: &'a Shared<G>,
    route: &'a Route,
    pool: &'a Pool,
}

impl<G: GateStore> Asker for ByExit<'_, G> {
    async fn scopes(&self, pick: &Pick) -> Arc<[BoundScope]> {
        let members = &self.pool.members;
        if let Some(known) = self.route.through(members, pick) {
            return known;
        }
        let scopes = self.shared.routes.through(self.route, members, pick);
        self.shared.restore(&scopes).await;
        self.route.keep(members, pick, scopes)
    }

    fn freed(&self, origins: Vec<Arc<str>>) {
        self.shared.call(origins);
    }
}

/// How many events there had been when a worker looked.
#[derive(Clone, Copy)]
struct Seen {
    changes: u64,
    wakes: u64,
}

/// What a worker finds when it looks for work.
enum Look {
    /// A lane wants its next page.
    Load(LaneKey),
    /// An item that may be asked for.
    Item { lane: LaneKey, work: Box<Work>, route: Option<Arc<Route>>, seen: Seen, turn: bool },
    /// Nothing: the worker counts as idle.
    Nothing,
}

impl<G: GateStore> Shared<G> {
    /// Waits for an item that may start now. `None` when nothing is to be started any more.
    pub(super) async fn next(&self) -> Option<Started<G>> {
        loop {
            // Made before the look: a call to all that comes after it is heard, however long the look takes.
            let called = self.idle.notified();
            if self.stopping.load(Ordering::Acquire) {
                self.idle.notify_one(); // and so on, until all have heard
                return None;
            }
            let now = self.gates.now();
            let (lane, work, route, seen, turn) = match self.look(now) {
                Look::Load(lane) => {
                    self.load(lane).await;
                    continue;
                }
                Look::Nothing => {
                    // It is counted as idle since the look, so whoever brings work leaves a permit to wake by.
                    called.await;
                    self.front.lock().idle -= 1;
                    continue;
                }
                Look::Item { lane, work, route, seen, turn } => (lane, work, route, seen, turn),
            };
            let Some(route) = route.filter(|_| self.job.is_current(work.item.lease)) else {
                self.give_back(lane, work); // an item that others have now is theirs
                continue;
            };
            if let Some(rate) = route.never(work.estimate) {
                let course = Course { lane, scopes: route.scopes.clone(), route, out: None };
                self.too_large(work, &course, rate).await;
                continue;
            }
            match self.may_leave(&work, &route, now).await {
                Ok(Leave::Go(admission, scopes, out)) => {
                    if turn {
                        self.pass_turn(lane);
                    }
                    return Some(Started { work, course: Course { lane, route, scopes, out }, admission });
                }
                Ok(Leave::Wait { until, cause }) => self.defer(lane, work, until, cause, seen),
                Ok(Leave::Hold { until }) => {
                    let mut front = self.front.lock();
                    front.busy -= 1;
                    let until = if front.wakes == seen.wakes { until } else { now }; // it may be its exit
                    if front.frontier.held() < HELD_MAX {
                        front.frontier.hold(lane, work, until);
                        front.frontier.finished(lane, []);
                    } else {
                        front.frontier.defer(lane, work, until);
                    }
                    self.timer.arm(self.instant(until));
                }
                Ok(Leave::Full { scope, or }) => {
                    let mut front = self.front.lock();
                    front.busy -= 1;
                    match or {
                        _ if front.changes != seen.changes => front.frontier.defer(lane, work, now), // somebody came back meanwhile
                        None => front.frontier.block(lane, work, &scope),
                        Some(until) => {
                            front.frontier.block_until(lane, work, &scope, until);
                            self.timer.arm(self.instant(until));
                        }
                    }
                }
                Err(error) => self.without_store(lane, work, &error, now),
            }
        }
    }

    /// Asks the gates of all scopes, and before them which exit it is to be.
    async fn may_leave(&self, work: &Work, route: &Route, now: Timestamp) -> Result<Leave<G>, StoreError> {
        let ask = Ask { cost: work.estimate, first: work.tries == 0 && work.hop.is_none() };
        let Some(pool) = &route.pool else {
            return Ok(match permit::acquire(&self.gates, &route.scopes, ask).await? {
                Answer::Admitted(admission) => Leave::Go(admission, route.scopes.clone(), None),
                Answer::Wait { until, cause, .. } => Leave::Wait { until, cause },
                Answer::Full { scope } => {
                    Leave::Full { scope: route.scopes[scope].key.clone(), or: self.ask_again() }
                }
            });
        };
        let wanted = exit::Ask { keep: work.keep, not: work.not, account: route.account };
        let own = pool.members.own(work.keep).is_some();
        let asker = ByExit { shared: self, route, pool };
        let leave = pool.members.acquire(&self.gates, &route.origin, (wanted, ask), now, &asker).await?;
        Ok(match leave {
            LeaveByExit::Go(admission, scopes, pick) => {
                let session = pool.session(&pick);
                Leave::Go(admission, scopes, Some(Out { pool: pool.clone(), pick, session }))
            }
            // Under `rotate = "never"` it is its own exit that it waits for: the others of its lane have theirs.
            LeaveByExit::Wait { until, .. } if own && until != Timestamp::MAX => Leave::Hold { until },
            LeaveByExit::Wait { until, cause } => Leave::Wait { until, cause },
            LeaveByExit::Full(scopes, scope) => {
                Leave::Full { scope: scopes[scope].key.clone(), or: self.ask_again() }
            }
            LeaveByExit::Busy { or } => Leave::Full { scope: route.waits_for_exits.clone(), or },
            LeaveByExit::None => Leave::Wait { until: Timestamp::MAX, cause: Cause::Pace },
        })
    }

    /// Lets lanes ask again that found the exit busy.
    pub(super) fn call(&self, origins: Vec<Arc<str>>) {
        if origins.is_empty() {
            return;
        }
        let mut front = self.front.lock();
        front.changes += 1;
        for origin in origins {
            front.frontier.freed(&waits_for_exits(&origin));
        }
        if front.idle > 0 {
            self.idle.notify_one();
        }
    }

    /// What there is to do, if anything.
    fn look(&self, now: Timestamp) -> Look {
        let mut front = self.front.lock();
        if let Some(lane) = front.frontier.next_load() {
            return Look::Load(lane);
        }
        let may_take = front.may_take(self.settings.workers.get());
        let Some((lane, work)) = may_take.then(|| front.frontier.next(now)).flatten() else {
            front.idle += 1;
            if let Some(at) = front.frontier.next_timer() {
                self.timer.arm(self.instant(at));
            }
            return Look::Nothing;
        };
        front.busy += 1;
        if front.idle > 0 && front.frontier.is_ready(now) {
            self.idle.notify_one(); // each one who finds work calls the next
        }
        let turn = front.frontier.has_turn(lane);
        let seen = Seen { changes: front.changes, wakes: front.wakes };
        Look::Item { lane, work, route: front.route(lane), seen, turn }
    }

    /// Lets the next lane ask that waits for a place in the same scope.
    fn pass_turn(&self, lane: LaneKey) {
        let mut front = self.front.lock();
        front.frontier.pass_turn(lane);
        if front.idle > 0 {
            self.idle.notify_one();
        }
    }

    fn defer(&self, lane: LaneKey, work: Box<Work>, until: Timestamp, cause: Cause, seen: Seen) {
        let mut front = self.front.lock();
        front.busy -= 1;
        // Only a change of state ends a pause early; a slot comes when it comes. Behind a wait for an exit is either.
        let news = front.wakes != seen.wakes || (cause != Cause::Pace && front.changes != seen.changes);
        front.frontier.defer(lane, work, if news { Timestamp::ZERO } else { until });
        if news {
            front.frontier.wake(lane);
        } else if until != Timestamp::MAX {
            self.timer.arm(self.instant(until));
        }
    }

    fn without_store(&self, lane: LaneKey, work: Box<Work>, error: &StoreError, now: Timestamp) {
        self.warn_once(error.to_string());
        let mut front = self.front.lock();
        front.busy -= 1;
        front.frontier.defer(lane, work, now.plus(Duration::from_secs(1)));
    }

    /// Reads a lane's next page. Claims take microseconds and never wait for a sync.
    async fn load(&self, lane: LaneKey) {
        let LaneKey::Stored(id) = lane else { return };
        let most = if self.job.is_shared() { SHARED_PAGE_MAX } else { PAGE.1 };
        let page = (AT_HAND_MAX / self.front.lock().frontier.lanes().max(1)).clamp(PAGE.0, most);
        let items = match self.job.claim(id, page).await {
            Ok(items) => items,
            Err(error) => {
                self.stop_for(&error);
                return;
            }
        };
        let more = items.len() == page;
        let route = self.front.lock().route(lane);
        let works: Vec<Box<Work>> = items
            .into_iter()
            .map(|item| {
                let estimate = match &route {
                    Some(route) => cost::estimate(&route.cost, &item.request, true),
                    None => item.request.cost.unwrap_or(1),
                };
                let (hop, refused_at, keep, not) = (None, None, None, None);
                Box::new(Work {
                    item,
                    hop,
                    refused_at,
                    tries: 0,
                    keep,
                    not,
                    blocked: 0,
                    estimate,
                    cost: estimate,
                })
            })
            .collect();
        let mut front = self.front.lock();
        front.frontier.set_low(page / 2);
        front.frontier.loaded(lane, works, more);
        if front.idle > 0 {
            self.idle.notify_one();
        }
    }

    /// Gives an item back to the job as it is.
    fn give_back(&self, lane: LaneKey, work: Box<Work>) {
        {
            let mut front = self.front.lock();
            front.busy -= 1;
            front.frontier.finished(lane, []);
        }
        self.taken(self.job.release(work.item));
    }
}

/// Items at hand of all lanes together, about.
const AT_HAND_MAX: usize = 32 * 1024;
/// The smallest and the largest page of a lane.
const PAGE: (usize, usize) = (8, 512);
/// Where other processes may work on the job: what one has in hand waits for it alone, and a slow one must not keep work from
/// those that have none.
const SHARED_PAGE_MAX: usize = 64;
/// The name of the way without an exit.
const DIRECT: &str = "direct";
