//! A worker: takes the next item that may start, sends it, and acts on what came back.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use forbear_core::{
    attempt::{Ask, News},
    gate::{Cause, Change, Gate, Snapshot},
    hint::Reading,
    outcome::Outcome,
    scope::ScopeKey,
    time::Timestamp,
    verdict::{History, Verdict, Way, verdict},
};
use forbear_store::{
    gate::{GateRecord, GateStore, Refused, StoreError},
    queue::{self, Ending, Finish, Until},
};

use super::{
    Shared,
    events::{Event, seconds},
    exchange::{Attempt, is_idempotent, said},
    front::{Hop, LaneKey, Work},
    route::{HostStats, LaneParts, Route},
};
use crate::{
    bodies::Place,
    client::Target,
    permit::{self, Admission, Answer},
    record::{self, BodyField, ItemId, Record},
};

/// What a worker has in its hands.
pub(super) struct Started<G: GateStore> {
    lane: LaneKey,
    work: Box<Work>,
    route: Arc<Route>,
    admission: Admission<G>,
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
    /// Works until the run stops.
    pub(super) async fn work(self: Arc<Self>) {
        while let Some(started) = self.next().await {
            self.attempt(started).await;
        }
    }

    /// Waits for an item that may start now. `None` when nothing is to be started any more.
    async fn next(&self) -> Option<Started<G>> {
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
            let ask = Ask {
                cost: work.item.request.cost.unwrap_or(1),
                first: work.tries == 0 && work.hop.is_none(),
            };
            match permit::acquire(&self.gates, &route.scopes, ask).await {
                Ok(Answer::Admitted(admission)) => {
                    if turn {
                        self.pass_turn(lane);
                    }
                    return Some(Started { lane, work, route, admission });
                }
                Ok(Answer::Wait { until, cause, .. }) => self.defer(lane, work, until, cause, changes),
                Ok(Answer::Full { scope }) => {
                    let mut front = self.front.lock();
                    front.busy -= 1;
                    if front.changes == changes {
                        front.frontier.block(lane, work, &route.scopes[scope].key);
                    } else {
                        front.frontier.defer(lane, work, now); // somebody came back meanwhile
                    }
                }
                Err(error) => self.without_store(lane, work, &error, now),
            }
        }
    }

    /// What there is to do, if anything.
    fn look(&self, now: Timestamp) -> Look {
        let mut front = self.front.lock();
        if let Some(lane) = front.frontier.next_load() {
            return Look::Load(lane);
        }
        let Some((lane, work)) = front.frontier.next(now) else {
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
        let works =
            items.into_iter().map(|item| Box::new(Work { item, hop: None, refused_at: None, tries: 0 }));
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

    async fn attempt(&self, started: Started<G>) {
        let Started { lane, mut work, route, admission } = started;
        let sent_at = admission.at();
        HostStats::add(&route.stats.sent, 1);
        if admission.is_probe() {
            HostStats::add(&route.stats.probes, 1);
        }
        if let Some(refused_at) = work.refused_at.take() {
            work.item.counters.waited += sent_at.since(refused_at);
        }
        work.item.counters.started_at.get_or_insert_with(wall_now);
        work.tries += 1;

        // Whoever may not be sent twice is told of if the run ends under it; the others go back by themselves.
        let once = !is_idempotent(&work.item.request);
        if once {
            self.once.lock().insert(work.item.lease.seq(), work.item.clone());
        }
        let (mut attempt, reading, outcome) = if admission.is_probe() {
            self.exchange_as_probe(&work, &route, &admission).await
        } else {
            self.exchange(&work, &route, admission.permit()).await
        };
        if once {
            self.once.lock().remove(&work.item.lease.seq());
        }
        HostStats::add(&route.stats.bytes, attempt.bytes);
        match &outcome {
            Outcome::Refused(_) => HostStats::add(&route.stats.refused, 1),
            Outcome::Overloaded | Outcome::Fault { .. } | Outcome::NotTaken => {
                HostStats::add(&route.stats.faults, 1);
            }
            _ => {}
        }
        let number = work.item.lease.seq().0;
        let roll = fastrand::f64();
        let keep = |news: &News, gates: &[Gate], now: Timestamp| match news.change {
            Change::None | Change::ProbeFree => None,
            Change::Closed { .. } | Change::Reopened => {
                gates.get(news.scope).map(|gate| (gate.snapshot(), now))
            }
        };
        let reported = admission.report(&outcome, reading.as_ref(), number, roll, keep).await;
        let (granted, now) = match reported {
            Ok((news, kept)) => {
                attempt.stopped = news.account_stopped.then(|| route.scopes[news.scope].key.clone());
                self.tell(&news, kept, &work, &route, reading.as_ref());
                (news.retry_granted, self.gates.now())
            }
            Err(error) => {
                self.warn_once(error.to_string());
                (true, self.gates.now())
            }
        };
        // The slot is free: whoever waits for it may have it, while this result is being written.
        let history = history(&work, attempt.stopped.is_some());
        if matches!(outcome, Outcome::Refused(_)) {
            work.refused_at = Some(now);
            work.item.counters.refusals += 1;
            work.item.counters.limited += 1;
        }
        if let Some(next) = attempt.next.take() {
            self.follow(lane, work, &route, next);
            return;
        }
        let verdict = verdict(&outcome, &history, &self.routes.item, granted, roll);
        let said = attempt.error.clone().or_else(|| reading.as_ref().map(said));
        self.settle(lane, work, &route, attempt, verdict, now, said).await;
    }

    /// Acts on the verdict.
    #[allow(clippy::too_many_arguments, reason = "one place where an attempt ends, called once")]
    async fn settle(
        &self,
        lane: LaneKey,
        mut work: Box<Work>,
        route: &Route,
        attempt: Attempt,
        verdict: Verdict,
        now: Timestamp,
        said: Option<String>,
    ) {
        let said = said.unwrap_or_default();
        let park = |work: Box<Work>, until: Until, reason: String| {
            self.finished(lane, route);
            let counters = work.item.counters.clone();
            if let Err(error) = self.job.park(work.item.lease, until, reason, counters) {
                self.stop_for(&error);
            }
        };
        match verdict {
            Verdict::Retry { after } => {
                work.item.counters.attempts += u32::from(!matches!(after, Duration::ZERO));
                work.item.counters.error = Some(said);
                self.hold(lane, work, route, now.plus(after));
            }
            Verdict::Elsewhere { after } => {
                work.item.counters.error = Some(said);
                self.hold(lane, work, route, now.plus(after));
            }
            Verdict::Hold { told } => {
                work.item.counters.error = Some(said);
                self.hold(lane, work, route, now.plus(told));
            }
            Verdict::Park { wait, told } => {
                match work.refused_at {
                    None => work.item.counters.attempts += 1,
                    // What it will have waited when it is claimed again: nobody has it in hand until then.
                    Some(_) => work.item.counters.waited += wait,
                }
                work.item.counters.error = Some(said.clone());
                let reason = format!("limited, told to wait {} ({said})", seconds(told));
                park(work, Until::Time(wall_now().plus(wait)), reason);
            }
            Verdict::ParkForNextRun => {
                let reason = format!("refused {} times in this run ({said})", work.item.counters.refusals);
                park(work, Until::NextRun, reason);
            }
            Verdict::ParkForCredentials => {
                let scope = attempt.stopped.map(|scope| scope.to_string()).unwrap_or_default();
                park(work, Until::Credentials(scope), format!("credentials refused ({said})"));
            }
            Verdict::Done => self.finish(lane, work, route, attempt, Ending::Done, None).await,
            Verdict::Fail(reason) => {
                let words = reason.as_str().to_owned();
                work.item.counters.error = Some(said.clone());
                self.finish(lane, work, route, attempt, Ending::Failed, Some((words, said))).await;
            }
            Verdict::Unknown => {
                let words = NOBODY_KNOWS.to_owned();
                work.item.counters.error = Some(said.clone());
                self.finish(lane, work, route, attempt, Ending::Unknown, Some((words, said))).await;
            }
        }
    }

    /// Keeps an item in hand. Where too many are kept, it is parked instead: everything is bounded (C4).
    fn hold(&self, lane: LaneKey, work: Box<Work>, route: &Route, at: Timestamp) {
        let full = self.front.lock().frontier.held() >= HELD_MAX;
        if full {
            self.finished(lane, route);
            let until = Until::Time(wall_now().plus(at.since(self.gates.now())));
            let counters = work.counters_at(at);
            let parked = self.job.park(work.item.lease, until, "many items wait", counters);
            if let Err(error) = parked {
                self.stop_for(&error);
            }
            return;
        }
        let mut front = self.front.lock();
        front.frontier.hold(lane, work, at);
        drop(front);
        self.finished(lane, route);
        self.timer.arm(self.instant(at));
    }

    /// The request is off the wire, and its item out of the worker's hands or on the way to the job.
    fn finished(&self, lane: LaneKey, route: &Route) {
        let mut front = self.front.lock();
        front.busy -= 1;
        front.changes += 1;
        front.frontier.finished(lane, route.scopes.iter().map(|scope| &scope.key));
        if front.busy == 0 && front.frontier.at_hand() == 0 {
            self.ended.notify_one(); // the last of what is at hand: the run may be over
        }
    }

    async fn finish(
        &self,
        lane: LaneKey,
        mut work: Box<Work>,
        route: &Route,
        attempt: Attempt,
        ending: Ending,
        words: Option<(String, String)>,
    ) {
        self.finished(lane, route);
        let counter = if ending == Ending::Done { &route.stats.done } else { &route.stats.failed };
        HostStats::add(counter, 1);
        work.item.counters.attempts += 1; // the last one, however it ended
        let item = &work.item;
        let (reason, error) = words.unzip();
        let (file, shown, memory) = match attempt.body.map(|stored| stored.place) {
            Some(Place::File { file, shown }) => (Some(file), Some(shown), None),
            Some(Place::Memory(bytes)) => (None, None, Some(bytes)),
            Some(Place::Nowhere) | None => (None, None, None),
        };
        let url = item.request.url.as_str();
        let final_url = work.hop.as_ref().map(|hop| hop.target.as_str());
        let mut line = Vec::new();
        Record {
            status: attempt.status,
            attempts: item.counters.attempts,
            limited: item.counters.limited,
            waited: item.counters.waited,
            exit: Some("direct"),
            final_url,
            headers: attempt.status.is_some().then_some(&attempt.headers),
            bytes: attempt.status.is_some().then_some(attempt.bytes),
            body: match (&shown, &memory) {
                (Some(shown), _) => BodyField::File(shown),
                (None, Some(bytes)) => BodyField::Inline(bytes),
                (None, None) => BodyField::Absent,
            },
            error: error.as_deref(),
            reason: reason.as_deref(),
            started_at: item.counters.started_at,
            finished_at: Some(wall_now()),
            ..Record::new(ItemId::of(item.lease.seq(), item.id.as_deref()), url, ending.into())
        }
        .write(&self.redactor, &mut line);
        let finish =
            Finish { lease: item.lease, ending, record: line, body: file, counters: item.counters.clone() };
        match self.job.finish(finish).await {
            Ok(()) => {}
            Err(queue::QueueError::StaleLease) => {
                self.warn_once("a result came too late, and was dropped".into())
            }
            Err(error) => self.stop_for(&error),
        }
    }

    /// Ends items that were cut off on the wire and must not be sent twice.
    pub(super) async fn give_up(&self, items: impl Iterator<Item = queue::Item>) {
        for mut item in items {
            item.counters.attempts += 1;
            let mut line = Vec::new();
            Record {
                attempts: item.counters.attempts,
                limited: item.counters.limited,
                waited: item.counters.waited,
                exit: Some("direct"),
                error: Some("the run ended while it was on the wire"),
                reason: Some(NOBODY_KNOWS),
                started_at: item.counters.started_at,
                finished_at: Some(wall_now()),
                ..Record::new(
                    ItemId::of(item.lease.seq(), item.id.as_deref()),
                    item.request.url.as_str(),
                    Ending::Unknown.into(),
                )
            }
            .write(&self.redactor, &mut line);
            let (lease, counters) = (item.lease, item.counters);
            let finish = Finish { lease, ending: Ending::Unknown, record: line, body: None, counters };
            if let Err(error) = self.job.finish(finish).await {
                return self.stop_for(&error);
            }
        }
    }

    /// Puts the item into the lane of the redirect's target: the hop passes the gate like any request (S4).
    fn follow(&self, lane: LaneKey, mut work: Box<Work>, route: &Route, hop: Hop) {
        let account = self.account(&work, Some(&hop));
        let endpoint = self.routes.endpoint(&hop.target, None);
        let parts = LaneParts {
            origin: hop.target.origin(),
            account: account.as_deref(),
            endpoint: endpoint.as_deref(),
        };
        let text = parts.text();
        work.hop = Some(hop);
        {
            let mut front = self.front.lock();
            let target = front.hop_lane(&text, || self.routes.route(LaneParts::parse(&text)));
            front.frontier.put(target, work);
        }
        self.finished(lane, route);
    }

    /// Whoever the request's credentials belong to, at the item's own URL or at the target of a redirect.
    fn account(&self, work: &Work, hop: Option<&Hop>) -> Option<String> {
        let item = &work.item.request;
        let headers = if hop.is_some_and(|hop| hop.abroad) { &[][..] } else { &item.headers[..] };
        let url = hop.map_or(item.url.as_str(), |hop| hop.target.as_str());
        let of_host = match hop {
            Some(hop) => self.routes.headers(hop.target.origin()),
            None => Target::parse(url).map(|target| self.routes.headers(target.origin())).unwrap_or_default(),
        };
        self.accounts.of(item.account.as_deref(), url, headers, &of_host)
    }

    /// [`Shared::exchange`], with signs of life for the lease (B1).
    async fn exchange_as_probe(
        &self,
        work: &Work,
        route: &Route,
        admission: &Admission<G>,
    ) -> (Attempt, Option<Reading>, Outcome) {
        let exchange = self.exchange(work, route, admission.permit());
        tokio::pin!(exchange);
        loop {
            match tokio::time::timeout(self.settings.probe_lease / 3, &mut exchange).await {
                Ok(done) => return done,
                Err(_still_on_the_wire) => {
                    if let Err(error) = admission.renew().await {
                        self.warn_once(error.to_string());
                    }
                }
            }
        }
    }

    /// Keeps what a scope has become, and tells whoever watches.
    fn tell(
        &self,
        news: &News,
        kept: Option<(Snapshot, Timestamp)>,
        work: &Work,
        route: &Route,
        reading: Option<&Reading>,
    ) {
        if news.wakes {
            let keys: Vec<ScopeKey> = route.scopes.iter().map(|scope| scope.key.clone()).collect();
            let mut front = self.front.lock();
            front.wake(&keys);
            if front.idle > 0 {
                self.idle.notify_one();
            }
        }
        let Some((gate, now)) = kept else { return };
        let scope = &route.scopes[news.scope].key;
        let until = gate.shut.then(|| wall_now().plus(gate.paused_until.since(now)));
        let refused = (gate.cause == Cause::Credentials).then(|| Refused {
            origin: work.origin().unwrap_or_default(),
            configured: self.accounts.configured(&route.headers),
        });
        let record = queue::GateRecord {
            key: scope.to_string(),
            version: GateRecord::VERSION,
            record: GateRecord::encode_with(&gate, now, refused),
            until,
        };
        if let Err(error) = self.job.save_gate(record) {
            self.stop_for(&error);
        }
        match news.change {
            Change::Closed { incident } => {
                if incident {
                    HostStats::add(&route.stats.pauses, 1);
                }
                let endless = gate.paused_until == Timestamp::MAX;
                let wait = gate.paused_until.since(now);
                // Asked for first, so that whoever is told holds nobody up, however slow the telling is.
                let waiting = self.front.lock().waiting_for(scope);
                (self.events)(Event::Paused {
                    scope: scope.to_string(),
                    cause: gate.cause,
                    wait: (!endless).then_some(wait),
                    until: until.map(record::rfc3339).unwrap_or_default(),
                    waiting,
                    said: reading.map(said).unwrap_or_default(),
                    incident,
                });
            }
            Change::Reopened => (self.events)(Event::Reopened { scope: scope.to_string() }),
            Change::None | Change::ProbeFree => {}
        }
    }
}

fn history(work: &Work, account_stopped: bool) -> History {
    let counters = &work.item.counters;
    History {
        failures: counters.attempts,
        refusals: counters.refusals,
        tries: work.tries - 1,
        idempotent: is_idempotent(&work.item.request),
        account_stopped,
        way: Way::Direct,
    }
}

/// The wall clock, for records and parked items (T1).
pub(super) fn wall_now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

/// The reason of an outcome that is unknown.
const NOBODY_KNOWS: &str = "sent, and nobody knows whether it was done; not repeated";
/// Items at hand of all lanes together, about.
const AT_HAND_MAX: usize = 32 * 1024;
/// The smallest and the largest page of a lane.
const PAGE: (usize, usize) = (8, 512);
/// Items that are kept in hand for a time of their own.
const HELD_MAX: usize = 100_000;
