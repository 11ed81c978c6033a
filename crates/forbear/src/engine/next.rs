//! Which item a worker takes up next, and by which exit it goes: asked of the frontier, the exits and the gates.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use forbear_core::{
    attempt::Ask,
    exit::{self, Choice},
    gate::Cause,
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
};
use forbear_store::gate::{GateStore, StoreError};

use super::{
    Shared,
    exits::{Out, waits_for_exits},
    front::{LaneKey, Work},
    route::Route,
};
use crate::{
    client::Way,
    exit::ExitSecrets,
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
    /// What the record calls the way.
    pub(super) fn exit_name(&self) -> &str {
        self.out.as_ref().map_or(DIRECT, |out| out.pool.name(out.pick.exit))
    }

    /// What the exit alone may know.
    pub(super) fn secrets(&self) -> Option<ExitSecrets> {
        match &self.out.as_ref()?.session.way {
            Way::Direct => None,
            Way::Exit(session) => ExitSecrets::of(session.exit()),
        }
    }
}

/// Whether an item may start.
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made; a box would be an allocation a request"
)]
enum Leave<G: GateStore> {
    Go(Admission<G>, Arc<[BoundScope]>, Option<Out>),
    Wait {
        until: Timestamp,
        cause: Cause,
    },
    /// Until a request of this scope comes back.
    Full(ScopeKey),
}

/// What a worker finds when it looks for work.
enum Look {
    /// A lane wants its next page.
    Load(LaneKey),
    /// An item that may be asked for.
    Item { lane: LaneKey, work: Box<Work>, route: Option<Arc<Route>>, changes: u64, turn: bool },
    /// Nothing: the worker counts as idle.
    Nothing,
}

impl<G: GateStore> Shared<G> {
    /// Waits for an item that may start now. `None` when nothing is to be started any more.
    pub(super) async fn next(&self) -> Option<Started<G>> {
        loop {
            if self.stopping.load(Ordering::Acquire) {
                self.idle.notify_one(); // and so on, until all have heard
                return None;
            }
            let now = self.gates.now();
            let (lane, work, route, changes, turn) = match self.look(now) {
                Look::Load(lane) => {
                    self.load(lane).await;
                    continue;
                }
                Look::Nothing => {
                    // It is counted as idle since the look, so whoever brings work leaves a permit to wake by.
                    self.idle.notified().await;
                    self.front.lock().idle -= 1;
                    continue;
                }
                Look::Item { lane, work, route, changes, turn } => (lane, work, route, changes, turn),
            };
            let Some(route) = route else {
                self.give_back(lane, work);
                continue;
            };
            match self.may_leave(&work, &route, now).await {
                Ok(Leave::Go(admission, scopes, out)) => {
                    if turn {
                        self.pass_turn(lane);
                    }
                    return Some(Started { work, course: Course { lane, route, scopes, out }, admission });
                }
                Ok(Leave::Wait { until, cause }) => self.defer(lane, work, until, cause, changes),
                Ok(Leave::Full(scope)) => {
                    let mut front = self.front.lock();
                    front.busy -= 1;
                    if front.changes == changes {
                        front.frontier.block(lane, work, &scope);
                    } else {
                        front.frontier.defer(lane, work, now); // somebody came back meanwhile
                    }
                }
                Err(error) => self.without_store(lane, work, &error, now),
            }
        }
    }

    /// Asks the gates of all scopes, and before them which exit it is to be.
    async fn may_leave(&self, work: &Work, route: &Route, now: Timestamp) -> Result<Leave<G>, StoreError> {
        let ask =
            Ask { cost: work.item.request.cost.unwrap_or(1), first: work.tries == 0 && work.hop.is_none() };
        let Some(pool) = &route.pool else {
            return Ok(match permit::acquire(&self.gates, &route.scopes, ask).await? {
                Answer::Admitted(admission) => Leave::Go(admission, route.scopes.clone(), None),
                Answer::Wait { until, cause, .. } => Leave::Wait { until, cause },
                Answer::Full { scope } => Leave::Full(route.scopes[scope].key.clone()),
            });
        };
        let wanted = exit::Ask { keep: work.keep, not: work.not, account: route.account };
        // Each turn either ends it or puts an exit aside, so it ends when none is left; the bound is for the others' sake.
        for _ in 0..EXITS_ASKED_MAX {
            let pick = match pool.choose(&route.origin, wanted, now) {
                Choice::Use(pick) => pick,
                Choice::Wait { until } => return Ok(Leave::Wait { until, cause: Cause::Pace }),
                // Whoever comes back calls; but a time that is near enough needs no call.
                Choice::Busy { or: Some(or) } if or.since(now) < SOON => {
                    return Ok(Leave::Wait { until: or, cause: Cause::Pace });
                }
                Choice::Busy { .. } => return Ok(Leave::Full(route.waits_for_exits.clone())),
                Choice::None => return Ok(Leave::Wait { until: Timestamp::MAX, cause: Cause::Pace }),
            };
            let (scopes, fresh) = self.routes.through(route, pool, &pick);
            if fresh {
                self.restore(&scopes).await;
            }
            let by_exit = |scope: usize| scopes[scope].by.is_some_and(|by| by.exit);
            match permit::acquire(&self.gates, &scopes, ask).await {
                Ok(Answer::Admitted(admission)) => {
                    let session = pool.session(&pick);
                    return Ok(Leave::Go(admission, scopes, Some(Out { pool: pool.clone(), pick, session })));
                }
                Ok(Answer::Wait { until, scope, .. }) if by_exit(scope) => {
                    self.call(pool.put_off(&pick, until));
                }
                Ok(Answer::Full { scope }) if by_exit(scope) => self.call(pool.full(&pick)),
                Ok(Answer::Wait { until, cause, .. }) => {
                    self.call(pool.undo(&pick));
                    return Ok(Leave::Wait { until, cause });
                }
                Ok(Answer::Full { scope }) => {
                    self.call(pool.undo(&pick));
                    return Ok(Leave::Full(scopes[scope].key.clone()));
                }
                Err(error) => {
                    self.call(pool.undo(&pick));
                    return Err(error);
                }
            }
        }
        Ok(Leave::Wait { until: now, cause: Cause::Pace })
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
        Look::Item { lane, work, route: front.route(lane), changes: front.changes, turn }
    }

    /// Lets the next lane ask that waits for a place in the same scope.
    fn pass_turn(&self, lane: LaneKey) {
        let mut front = self.front.lock();
        front.frontier.pass_turn(lane);
        if front.idle > 0 {
            self.idle.notify_one();
        }
    }

    fn defer(&self, lane: LaneKey, work: Box<Work>, until: Timestamp, cause: Cause, changes: u64) {
        let mut front = self.front.lock();
        front.busy -= 1;
        // Only a change of state ends a pause early; a slot comes when it comes.
        let news = cause != Cause::Pace && front.changes != changes;
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
        let page = (AT_HAND_MAX / self.front.lock().frontier.lanes().max(1)).clamp(PAGE.0, PAGE.1);
        let items = match self.job.claim(id, page).await {
            Ok(items) => items,
            Err(error) => {
                self.stop_for(&error);
                return;
            }
        };
        let more = items.len() == page;
        let works = items.into_iter().map(|item| {
            Box::new(Work { item, hop: None, refused_at: None, tries: 0, keep: None, not: None, blocked: 0 })
        });
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
        if let Err(error) = self.job.release(work.item) {
            self.stop_for(&error);
        }
    }
}

/// Items at hand of all lanes together, about.
const AT_HAND_MAX: usize = 32 * 1024;
/// The smallest and the largest page of a lane.
const PAGE: (usize, usize) = (8, 512);
/// The name of the way without an exit.
const DIRECT: &str = "direct";
/// Exits that are asked in a row for one request; then others have their turn.
const EXITS_ASKED_MAX: usize = 64;
/// A wait that is shorter than this is waited for by the clock alone.
const SOON: Duration = Duration::from_secs(1);
