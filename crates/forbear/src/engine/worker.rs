//! A worker: takes the next item that may start, sends it, and acts on what came back.

use std::sync::Arc;

use forbear_core::{
    attempt::{Finding, News},
    cost,
    evidence::Whose,
    exit::ExitChange,
    gate::{Cause, Change, Gate, Snapshot},
    hint::Reading,
    outcome::Outcome,
    pace::Rate,
    scope::ScopeKey,
    time::Timestamp,
    verdict::{History, Verdict, Way, verdict},
};
use forbear_store::{
    gate::{GateRecord, GateStore, Refused},
    queue::{self, Ending, Finish, Until},
};

use super::{
    events::{Event, seconds},
    exchange::{Attempt, is_idempotent, said},
    exits::Out,
    front::{Hop, Work},
    next::{Course, Started},
    route::{HostStats, LaneParts},
    shared::Shared,
};
use crate::{
    bodies::Place,
    client::Target,
    cost::estimate,
    permit::Admission,
    record::{self, BodyField, ItemId, Record},
};

impl<G: GateStore> Shared<G> {
    /// Works until the run stops.
    pub(super) async fn work(self: Arc<Self>) {
        while let Some(started) = self.next().await {
            self.attempt(started).await;
        }
    }

    async fn attempt(&self, started: Started<G>) {
        let Started { mut work, course, admission } = started;
        let Course { route, scopes, out, .. } = &course;
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
            self.exchange_as_probe(&work, &course, &admission).await
        } else {
            self.exchange(&work, &course, admission.permit()).await
        };
        if once {
            self.once.lock().remove(&work.item.lease.seq());
        }
        HostStats::add(&route.stats.bytes, attempt.bytes);
        // A proxy may repeat what it was told, in a page or a header: nobody is told that (K1).
        attempt.error = attempt.error.map(|error| course.hide(error));
        let read = reading.as_ref().map(|reading| course.hide(said(reading)));
        let roll = fastrand::f64();
        let judged = out.as_ref().map(|out| {
            let judged =
                out.pool.members.judge(&out.pick, &outcome, attempt.received, self.gates.now(), roll);
            self.hear(out, judged.change, attempt.error.as_deref());
            judged
        });
        let outcome = judged.as_ref().map_or(outcome, |judged| judged.outcome);
        match &outcome {
            Outcome::Refused(_) => HostStats::add(&route.stats.refused, 1),
            // An exit's own fault stands in the exit's row (E1).
            Outcome::Overloaded | Outcome::Fault { .. } | Outcome::NotTaken => {
                HostStats::add(&route.stats.faults, 1);
            }
            _ => {}
        }
        let suspect = route.suspect(&course.scopes);
        let number = work.item.lease.seq().0;
        let finding = Finding {
            outcome: &outcome,
            reading: reading.as_ref(),
            item: number,
            roll,
            exit: judged.as_ref().map(|judged| judged.through),
            narrowed: suspect.part,
        };
        let keep = |news: &News, gates: &[Gate], now: Timestamp| match news.change {
            Change::None | Change::ProbeFree => None,
            Change::Closed { .. } | Change::Reopened => {
                gates.get(news.scope).map(|gate| (gate.snapshot(), now))
            }
        };
        let (mut way, mut left) = (Way::Direct, judged.as_ref().is_some_and(|judged| judged.left));
        let real = cost::real(&outcome, attempt.told_cost);
        work.cost = real.unwrap_or(work.estimate);
        HostStats::add(&route.stats.cost, u64::from(work.cost));
        let reported = admission.report(&finding, real, keep).await;
        let (granted, now) = match reported {
            Ok((news, mut kept)) => {
                if news.change == Change::Reopened {
                    kept = self.as_studied(&scopes[news.scope]).await.or(kept);
                }
                attempt.stopped = news.account_stopped.then(|| scopes[news.scope].key.clone());
                if let (Some(out), Some(judged)) = (out, &judged) {
                    let shut = kept.as_ref().map(|(gate, _)| gate.paused_until);
                    let settled =
                        out.pool.members.settle(&out.pick, judged, &news, scopes, shut, work.blocked);
                    (way, left) = (settled.way, settled.left);
                }
                let until = kept.as_ref().filter(|(gate, _)| gate.shut).map(|(gate, _)| gate.paused_until);
                let whose = self.weigh(route, &suspect, sent_at, (&outcome, reading.as_ref()), until);
                self.tell(&news, kept, &work, &course, (read.as_deref(), whose));
                (news.retry_granted, self.gates.now())
            }
            Err(error) => {
                self.warn_once(error.to_string());
                (true, self.gates.now())
            }
        };
        if let (Some(out), Some(judged)) = (out, judged) {
            if left {
                out.pool.leave(out);
            }
            let (not, keep) = out.pool.members.wishes(&out.pick, &judged);
            (work.not, work.keep) = (not, keep.or(work.keep));
            self.call(judged.freed);
        }
        // The slot is free: whoever waits for it may have it, while this result is being written.
        let history = history(&work, attempt.stopped.is_some(), way);
        match outcome {
            Outcome::Refused(_) => {
                work.refused_at = Some(now);
                work.item.counters.refusals += 1;
                work.item.counters.limited += 1;
            }
            Outcome::Blocked { .. } => work.blocked += 1,
            _ => {}
        }
        if let Some(next) = attempt.next.take() {
            (work.keep, work.not) = (out.as_ref().map(|out| out.pick.exit), None);
            self.follow(work, &course, next);
            return;
        }
        let verdict = verdict(&outcome, &history, &self.routes.item, granted, roll);
        work.item.counters.attempts += u32::from(verdict.counts(&outcome));
        let said = attempt.error.clone().or(read);
        self.settle(work, &course, attempt, verdict, now, said).await;
    }

    /// What happened to an exit, for whoever watches.
    fn hear(&self, out: &Out, change: ExitChange, said: Option<&str>) {
        let name = out.pool.members.name(out.pick.exit);
        let said = said.unwrap_or_default();
        let event = match change {
            ExitChange::None => return,
            ExitChange::Failed { until } => {
                let wait = until.since(self.gates.now());
                Event::ExitFails { name: name.to_string(), wait, said: said.to_owned() }
            }
            // Said once, until it serves: a list may have a hundred dead ones, and each is tried every minute.
            ExitChange::StillFails { until } => {
                let wait = until.since(self.gates.now());
                tracing::debug!(exit = &**name, ?wait, "still fails");
                return;
            }
            ExitChange::Out => Event::ExitOut { name: name.to_string(), said: said.to_owned() },
            ExitChange::Recovered => Event::ExitServes { name: name.to_string() },
        };
        (self.events)(event);
        if out.pool.members.concerns_all(change) {
            let mut front = self.front.lock();
            front.wake_all();
            self.idle.notify_one();
        }
    }

    /// Acts on the verdict.
    async fn settle(
        &self,
        mut work: Box<Work>,
        course: &Course,
        attempt: Attempt,
        verdict: Verdict,
        now: Timestamp,
        said: Option<String>,
    ) {
        let said = said.unwrap_or_default();
        let park = |work: Box<Work>, until: Until, reason: String| {
            self.finished(course, Fate::Again);
            let counters = work.item.counters.clone();
            self.taken(self.job.park(work.item.lease, until, reason, counters));
        };
        match verdict {
            Verdict::Retry { after } => {
                work.item.counters.error = Some(said);
                self.hold(work, course, now.plus(after));
            }
            Verdict::Elsewhere { after } => {
                work.item.counters.error = Some(said);
                self.hold(work, course, now.plus(after));
            }
            Verdict::Hold { told } => {
                work.item.counters.error = Some(said);
                self.hold(work, course, now.plus(told));
            }
            Verdict::Park { wait, told } => {
                if work.refused_at.is_some() {
                    // What it will have waited when it is claimed again: nobody has it in hand until then.
                    work.item.counters.waited += wait;
                }
                work.item.counters.error = Some(said.clone());
                let reason = match work.refused_at {
                    Some(_) => format!("limited, told to wait {} ({said})", seconds(told)),
                    None => format!("too many retries at once, put off for {} ({said})", seconds(told)), // V3
                };
                park(work, Until::Time(wall_now().plus(wait)), reason);
            }
            Verdict::ParkForNextRun => {
                let reason = match work.item.counters.refusals {
                    0 => format!("not carried by any exit in {} tries of this run ({said})", work.tries),
                    refusals => format!("refused {refusals} times in this run ({said})"),
                };
                park(work, Until::NextRun, reason);
            }
            Verdict::ParkForCredentials => {
                let scope = attempt.stopped.map(|scope| scope.to_string()).unwrap_or_default();
                park(work, Until::Credentials(scope), format!("credentials refused ({said})"));
            }
            Verdict::Done => self.finish(work, course, attempt, Ending::Done, None).await,
            Verdict::Fail(reason) => {
                let words = reason.as_str().to_owned();
                work.item.counters.error = Some(said.clone());
                self.finish(work, course, attempt, Ending::Failed, Some((words, said))).await;
            }
            Verdict::Unknown => {
                let words = NOBODY_KNOWS.to_owned();
                work.item.counters.error = Some(said.clone());
                self.finish(work, course, attempt, Ending::Unknown, Some((words, said))).await;
            }
        }
    }

    /// Keeps an item in hand. Where too many are kept, it is parked instead: everything is bounded (C4).
    fn hold(&self, work: Box<Work>, course: &Course, at: Timestamp) {
        let full = self.front.lock().frontier.held() >= HELD_MAX;
        if full {
            self.finished(course, Fate::Again);
            let until = Until::Time(wall_now().plus(at.since(self.gates.now())));
            let counters = work.counters_at(at);
            self.taken(self.job.park(work.item.lease, until, "many items wait", counters));
            return;
        }
        let mut front = self.front.lock();
        front.frontier.hold(course.lane, work, at);
        drop(front);
        self.finished(course, Fate::Again);
        self.timer.arm(self.instant(at));
    }

    /// The request is off the wire, and its item out of the worker's hands or on the way to the job.
    fn finished(&self, course: &Course, fate: Fate) {
        let now = self.gates.now();
        let mut front = self.front.lock();
        front.busy -= 1;
        let before = front.multiplier.share();
        match fate {
            Fate::Hop => {} // every item of the site may have one, and nothing failed
            Fate::Again => _ = front.multiplier.sent(now),
            Fate::Ended => {
                front.multiplier.sent(now);
                front.multiplier.ended();
            }
        }
        let changed = front.multiplier.share() != before;
        front.changes += 1;
        front.frontier.finished(course.lane, course.scopes.iter().map(|scope| &scope.key));
        if course.out.is_some() {
            front.frontier.freed(&course.route.waits_for_exits);
        }
        if front.busy == 0 && front.frontier.at_hand() == 0 {
            self.ended.notify_one(); // the last of what is at hand: the run may be over
        }
        if changed {
            let (value, share) = (front.multiplier.value().unwrap_or(1.0), front.multiplier.share());
            drop(front);
            self.idle.notify_waiters();
            (self.events)(Event::Multiplier { value, share });
        }
    }

    async fn finish(
        &self,
        work: Box<Work>,
        course: &Course,
        attempt: Attempt,
        ending: Ending,
        words: Option<(String, String)>,
    ) {
        self.finished(course, Fate::Ended);
        let stats = &course.route.stats;
        let counter = if ending == Ending::Done { &stats.done } else { &stats.failed };
        HostStats::add(counter, 1);
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
            exit: (work.tries > 0).then(|| course.exit_name()),
            cost: course.shows_cost(&work).then_some(work.cost),
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
            exit_secrets: course.secrets(),
            ..Record::new(ItemId::of(item.lease.seq(), item.id.as_deref()), url, ending.into())
        }
        .write(&self.redactor, &mut line);
        let finish =
            Finish { lease: item.lease, ending, record: line, body: file, counters: item.counters.clone() };
        self.taken(self.job.finish(finish).await);
    }

    /// Ends an item that no wait would ever let start (C1).
    pub(super) async fn too_large(&self, mut work: Box<Work>, course: &Course, rate: Rate) {
        let said =
            format!("it is taken to cost {}, and `{rate}` allows {} in all", work.estimate, rate.count());
        work.item.counters.error = Some(said.clone());
        let words = Some(("costs more than a configured rate ever allows".to_owned(), said));
        work.cost = work.estimate;
        self.finish(work, course, Attempt::default(), Ending::Failed, words).await;
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
            self.taken(self.job.finish(finish).await);
        }
    }

    /// Puts the item into the lane of the redirect's target: the hop passes the gate like any request (S4).
    fn follow(&self, mut work: Box<Work>, course: &Course, hop: Hop) {
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
            if let Some(route) = front.route(target) {
                let with_body = work.hop.as_ref().is_none_or(|hop| !hop.as_get);
                work.estimate = estimate(&route.cost, &work.item.request, with_body);
            }
            front.frontier.put(target, work);
        }
        self.finished(course, Fate::Hop);
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
        course: &Course,
        admission: &Admission<G>,
    ) -> (Attempt, Option<Reading>, Outcome) {
        let exchange = self.exchange(work, course, admission.permit());
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
        course: &Course,
        (said, whose): (Option<&str>, Option<Whose>),
    ) {
        let Course { route, scopes, out, .. } = course;
        if news.wakes() {
            let keys: Vec<ScopeKey> = scopes.iter().map(|scope| scope.key.clone()).collect();
            let mut front = self.front.lock();
            // An exit serves lanes of all origins, which do not have its scope.
            let by = |i: usize| scopes[i].by.filter(|by| by.exit && !by.origin);
            if (0..scopes.len()).any(|i| news.wakes_at(i) && by(i).is_some()) {
                front.wake_all()
            } else {
                front.wake(&keys, &route.origin)
            }
            if front.idle > 0 {
                self.idle.notify_one();
            }
        }
        let Some((gate, now)) = kept else { return };
        let scope = &scopes[news.scope].key;
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
        let by_exit = scopes[news.scope].by.is_some_and(|by| by.exit);
        let passing = by_exit && out.as_ref().is_some_and(|out| out.pool.members.is_gateway(&out.pick));
        if !passing && let Err(error) = self.job.save_gate(record) {
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
                    said: said.unwrap_or_default().to_owned(),
                    whose,
                    incident,
                });
            }
            Change::Reopened => (self.events)(Event::Reopened { scope: scope.to_string() }),
            Change::None | Change::ProbeFree => {}
        }
    }
}

/// What becomes of the item of a request that has come back.
enum Fate {
    /// It goes on where a redirect leads.
    Hop,
    /// It will be sent again, some time.
    Again,
    /// It has ended.
    Ended,
}

fn history(work: &Work, account_stopped: bool, way: Way) -> History {
    let counters = &work.item.counters;
    History {
        failures: counters.attempts,
        refusals: counters.refusals,
        tries: work.tries - 1,
        idempotent: is_idempotent(&work.item.request),
        account_stopped,
        way,
    }
}

/// The wall clock, for records and parked items (T1).
pub(super) fn wall_now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

/// The reason of an outcome that is unknown.
const NOBODY_KNOWS: &str = "sent, and nobody knows whether it was done; not repeated";
/// Items that are kept in hand for a time of their own.
pub(super) const HELD_MAX: usize = 100_000;
