//! A worker: takes the next item that may start, sends it, and acts on what came back.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use forbear_core::{
    attempt::{Ask, News},
    gate::{Cause, Change, Gate, Snapshot},
    hint::{self, Kind, Reading},
    outcome::{self, Outcome, Processed, Refusal},
    scope::ScopeKey,
    time::Timestamp,
    verdict::{FailReason, History, Verdict, verdict},
};
use forbear_store::{
    gate::{GateRecord, GateStore, StoreError},
    queue::{self, Ending, Finish, Until},
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tokio::time::Instant;

use super::{
    Shared,
    events::{Event, seconds},
    front::{Hop, LaneKey, Work},
    route::{HostStats, LaneParts, Route},
};
use crate::{
    bodies::{Place, Stored},
    client::{self, FaultKind, Limits, Request, Response, Target},
    permit::{self, Admission, Answer, Permit},
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
    Item { lane: LaneKey, work: Box<Work>, route: Option<Arc<Route>>, changes: u64 },
    /// Nothing: the worker counts as idle.
    Nothing,
}

/// What one attempt came to, besides its outcome.
#[derive(Default)]
struct Attempt {
    status: Option<u16>,
    headers: HeaderMap,
    body: Option<Stored>,
    bytes: u64,
    error: Option<String>,
    /// A redirect that is to be followed.
    next: Option<Hop>,
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
            let woken = self.idle.notified();
            tokio::pin!(woken);
            woken.as_mut().enable();
            if self.stopping.load(Ordering::Acquire) {
                return None;
            }
            let now = self.gates.now();
            let (lane, work, route, changes) = match self.look(now) {
                Look::Load(lane) => {
                    self.load(lane).await;
                    continue;
                }
                Look::Nothing => {
                    woken.await;
                    self.front.lock().idle -= 1;
                    continue;
                }
                Look::Item { lane, work, route, changes } => (lane, work, route, changes),
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
                Ok(Answer::Admitted(admission)) => return Some(Started { lane, work, route, admission }),
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
        Look::Item { lane, work, route: front.route(lane), changes: front.changes }
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

        let mut cut = self.cut.subscribe();
        let (mut attempt, reading, outcome) = {
            let exchange = self.exchange(&work, &route, admission.permit());
            tokio::pin!(exchange);
            loop {
                let lease = async {
                    if !admission.is_probe() {
                        std::future::pending::<()>().await;
                    }
                    tokio::time::sleep(self.settings.probe_lease / 3).await;
                };
                tokio::select! {
                    biased;
                    done = &mut exchange => break done,
                    () = async { drop(cut.wait_for(|cut| *cut).await) } => break cut_off(),
                    () = lease => {
                        if let Err(error) = admission.renew().await {
                            self.warn_once(error.to_string());
                        }
                    }
                }
            }
        };
        let was_cut = attempt.error.as_deref() == Some(CUT);
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
                self.tell(&news, kept, &route, reading.as_ref());
                (news.retry_granted, self.gates.now())
            }
            Err(error) => {
                self.warn_once(error.to_string());
                (true, self.gates.now())
            }
        };
        // The slot is free: whoever waits for it may have it, while this result is being written.
        let history = history(&work);
        if matches!(outcome, Outcome::Refused(_)) {
            work.refused_at = Some(now);
            work.item.counters.refusals += 1;
            work.item.counters.limited += 1;
        }
        if let Some(next) = attempt.next.take() {
            self.follow(lane, work, &route, next);
            return;
        }
        let verdict = if was_cut && history.idempotent {
            None
        } else {
            Some(verdict(&outcome, &history, &self.routes.item, granted, roll))
        };
        let said = attempt.error.clone().or_else(|| reading.as_ref().map(said));
        self.settle(lane, work, &route, attempt, verdict, now, said).await;
    }

    /// Acts on the verdict; none means that the run ended under the request, and that it may be sent again.
    #[allow(clippy::too_many_arguments, reason = "one place where an attempt ends, called once")]
    async fn settle(
        &self,
        lane: LaneKey,
        mut work: Box<Work>,
        route: &Route,
        attempt: Attempt,
        verdict: Option<Verdict>,
        now: Timestamp,
        said: Option<String>,
    ) {
        let Some(verdict) = verdict else {
            self.finished(lane, route);
            if let Err(error) = self.job.release(work.item) {
                self.stop_for(&error);
            }
            return;
        };
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
            Verdict::Hold { told } => {
                work.item.counters.error = Some(said);
                self.hold(lane, work, route, now.plus(told));
            }
            Verdict::Park { wait, told } => {
                if work.refused_at.is_none() {
                    work.item.counters.attempts += 1;
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
                let account = self.account(&work, None).unwrap_or_default();
                park(work, Until::Credentials(account), format!("credentials refused ({said})"));
            }
            Verdict::Done => self.finish(lane, work, route, attempt, Ending::Done, None).await,
            Verdict::Fail(reason) => {
                let words = reason.as_str().to_owned();
                let counted = matches!(reason, FailReason::Attempts | FailReason::Permanent);
                work.item.counters.attempts += u32::from(counted);
                self.finish(lane, work, route, attempt, Ending::Failed, Some((words, said))).await;
            }
            Verdict::Unknown => {
                work.item.counters.attempts += 1;
                let words = "sent, and nobody knows whether it was done; not repeated".to_owned();
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
            let parked = self.job.park(work.item.lease, until, "many items wait", work.item.counters.clone());
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
    }

    async fn finish(
        &self,
        lane: LaneKey,
        work: Box<Work>,
        route: &Route,
        attempt: Attempt,
        ending: Ending,
        words: Option<(String, String)>,
    ) {
        self.finished(lane, route);
        let counter = if ending == Ending::Done { &route.stats.done } else { &route.stats.failed };
        HostStats::add(counter, 1);
        let item = &work.item;
        let (reason, error) = words.unzip();
        let answered =
            u32::from(attempt.status.is_some() && !matches!(reason.as_deref(), Some("out of attempts")));
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
            attempts: item.counters.attempts + answered,
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
            Ok(()) => self.ended.notify_one(),
            Err(queue::QueueError::StaleLease { .. }) => {
                self.warn_once("a result came too late, and was dropped".into())
            }
            Err(error) => self.stop_for(&error),
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

    /// One request and its answer, whole.
    async fn exchange(
        &self,
        work: &Work,
        route: &Route,
        permit: &Permit,
    ) -> (Attempt, Option<Reading>, Outcome) {
        let mut attempt = Attempt::default();
        let (request, credentials) = match self.request(work, route) {
            Ok(request) => request,
            Err(why) => {
                attempt.error = Some(why);
                return (attempt, None, PERMANENT);
            }
        };
        let (target, method) = (request.target.clone(), request.method.clone());
        let hop = if work.hop.is_some() { client::Hop::Redirect } else { client::Hop::First };
        let limits =
            Limits { body_max: self.settings.body_max, hop, ..Limits::within(self.settings.timeout) };
        let mut response = match self.client.send(permit, request, &limits).await {
            Ok(response) => response,
            Err(fault) => {
                let outcome = of_fault(&fault, is_idempotent(&work.item.request));
                attempt.error = Some(fault_words(&fault));
                return (attempt, None, outcome);
            }
        };
        attempt.status = Some(response.status.as_u16());
        self.cookies.store(&target, &response.headers);
        match redirect(&response, &target, &method, work.hop.as_ref()) {
            Ok(None) => {}
            Ok(Some(next)) => {
                let reading = self.read(&response, route, None);
                let outcome = outcome::of_response(response.status.as_u16(), &reading, credentials);
                response.body.discard(DISCARD_MAX).await;
                if matches!(outcome, Outcome::Success) {
                    attempt.next = Some(next);
                }
                return (attempt, Some(reading), outcome);
            }
            Err(why) => {
                attempt.error = Some(why);
                attempt.headers = std::mem::take(&mut response.headers);
                response.body.discard(DISCARD_MAX).await;
                return (attempt, None, Outcome::Rejected);
            }
        }
        self.take_body(work, route, response, attempt, credentials).await
    }

    /// Reads the body to its end, and says what the whole response comes to.
    async fn take_body(
        &self,
        work: &Work,
        route: &Route,
        mut response: Response,
        mut attempt: Attempt,
        credentials: bool,
    ) -> (Attempt, Option<Reading>, Outcome) {
        let status = response.status.as_u16();
        let looks_into_body = status >= 400 || route.profile.is_some_and(|p| p.reads_success_bodies());
        let head = self.read(&response, route, None);
        let refused_by_head = matches!(outcome::of_response(status, &head, credentials), Outcome::Refused(_));
        let mut sink =
            self.bodies.sink(work.item.lease.seq(), work.item.id.as_deref(), self.settings.body_max);
        let mut prefix = Vec::new();
        // What a refusal says beyond its head is worth a moment, not the whole time-out: the others wait for the news.
        let patience = refused_by_head.then(|| Instant::now() + REFUSAL_BODY);
        let fault = loop {
            let chunk = match patience {
                Some(until) => match tokio::time::timeout_at(until, response.body.chunk()).await {
                    Ok(chunk) => chunk,
                    Err(_) => break None,
                },
                None => response.body.chunk().await,
            };
            match chunk {
                None => break None,
                Some(Err(fault)) => break Some(fault),
                Some(Ok(bytes)) => {
                    if looks_into_body && prefix.len() < PREFIX_MAX {
                        prefix.extend_from_slice(&bytes[..bytes.len().min(PREFIX_MAX - prefix.len())]);
                    }
                    if refused_by_head && prefix.len() >= PREFIX_MAX {
                        break None;
                    }
                    if let Err(error) = sink.write(bytes).await {
                        attempt.error = Some(format!("the body cannot be kept: {error}"));
                        self.warn_once(format!("a body cannot be written: {error}"));
                        return (attempt, Some(head), RETRY_LATER);
                    }
                }
            }
        };
        attempt.bytes = response.body.decoded();
        let reading = if looks_into_body { self.read(&response, route, Some(&prefix)) } else { head };
        let outcome = match fault {
            Some(fault) if !refused_by_head => {
                attempt.error = Some(fault_words(&fault));
                of_fault(&fault, is_idempotent(&work.item.request))
            }
            _ => outcome::of_response(status, &reading, credentials),
        };
        attempt.headers = std::mem::take(&mut response.headers);
        let ends = !matches!(outcome, Outcome::Refused(_) | Outcome::Fault { .. } | Outcome::NotTaken);
        if ends {
            match sink.finish().await {
                Ok(stored) => attempt.body = Some(stored),
                Err(error) => {
                    attempt.error = Some(format!("the body cannot be kept: {error}"));
                    return (attempt, Some(reading), RETRY_LATER);
                }
            }
        }
        if attempt.error.is_none() && status >= 400 {
            let said = said(&reading);
            attempt.error = Some(if said.is_empty() {
                format!("status {status}")
            } else {
                format!("status {status}: {said}")
            });
        }
        (attempt, Some(reading), outcome)
    }

    fn read(&self, response: &Response, route: &Route, body: Option<&[u8]>) -> Reading {
        let response = hint::Response { status: response.status.as_u16(), headers: &response.headers, body };
        hint::read(&response, route.profile, wall_now())
    }

    /// The request as it goes out, and whether it carries credentials of ours.
    fn request(&self, work: &Work, route: &Route) -> Result<(Request, bool), String> {
        let item = &work.item.request;
        let hop = work.hop.as_ref();
        let target = match hop {
            Some(hop) => hop.target.clone(),
            None => Target::parse(&item.url).map_err(|error| error.to_string())?,
        };
        let as_get = hop.is_some_and(|hop| hop.as_get);
        let method = match item.method.as_deref() {
            Some(name) if !as_get => {
                Method::from_bytes(name.as_bytes()).map_err(|_| "the method is not one".to_owned())?
            }
            Some("HEAD") => Method::HEAD,
            _ => Method::GET,
        };
        let abroad = hop.is_some_and(|hop| hop.abroad);
        let mut headers = HeaderMap::with_capacity(item.headers.len() + route.headers.len());
        for (name, value) in &item.headers {
            let name = HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| format!("`{name}` is no header's name"))?;
            // K2: what is secret stays with the origin that the item was written for. RFC 9110 section 15.4 says what
            // describes a body that is not sent any more.
            let stays = abroad && (self.redactor.is_secret_header(&name) || name == header::COOKIE);
            if stays || (as_get && name.as_str().starts_with("content-")) {
                continue;
            }
            let mut bytes = HeaderValue::from_bytes(value.as_bytes())
                .map_err(|_| format!("the value of `{name}` has characters that no header may have"))?;
            bytes.set_sensitive(self.redactor.is_secret_header(&name));
            headers.append(name, bytes);
        }
        for header in &route.headers {
            if !headers.contains_key(&header.name) {
                headers.insert(header.name.clone(), header.to_value());
            }
        }
        self.cookies.add(&target, &mut headers);
        let secret = |name: &HeaderName| self.redactor.is_secret_header(name) && *name != header::COOKIE;
        let credentials = target.has_credentials() || headers.keys().any(secret);
        let body = if as_get { bytes::Bytes::new() } else { item.body.clone().unwrap_or_default().into() };
        Ok((Request { method, target, headers, body }, credentials))
    }

    /// Keeps what a scope has become, and tells whoever watches.
    fn tell(
        &self,
        news: &News,
        kept: Option<(Snapshot, Timestamp)>,
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
        let record = queue::GateRecord {
            key: scope.to_string(),
            version: GateRecord::VERSION,
            record: GateRecord::encode(&gate, now),
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
                (self.events)(Event::Paused {
                    scope: scope.to_string(),
                    cause: gate.cause,
                    wait: (!endless).then_some(wait),
                    until: until.map(record::rfc3339).unwrap_or_default(),
                    waiting: self.front.lock().waiting_for(scope),
                    said: reading.map(said).unwrap_or_default(),
                    incident,
                });
            }
            Change::Reopened => (self.events)(Event::Reopened { scope: scope.to_string() }),
            Change::None | Change::ProbeFree => {}
        }
    }
}

fn history(work: &Work) -> History {
    let counters = &work.item.counters;
    History {
        failures: counters.attempts,
        refusals: counters.refusals,
        tries: work.tries - 1,
        idempotent: is_idempotent(&work.item.request),
    }
}

/// An attempt that the end of the run cut off.
fn cut_off() -> (Attempt, Option<Reading>, Outcome) {
    let attempt = Attempt { error: Some(CUT.to_owned()), ..Attempt::default() };
    (attempt, None, Outcome::Fault { processed: Processed::Unknown, passing: true })
}

/// What a fault of the client comes to.
fn of_fault(fault: &client::Fault, idempotent: bool) -> Outcome {
    let processed = match fault.processed {
        client::Processed::No => Processed::No,
        client::Processed::Unknown => Processed::Unknown,
    };
    let passing = match fault.kind {
        FaultKind::EnhanceYourCalm => {
            return Outcome::Refused(Refusal {
                wait: None,
                from: None,
                named: None,
                kind: Kind::RateLimit,
                may_retry: true,
            });
        }
        // RFC 9113 section 8.7: the server has not looked at it.
        FaultKind::StreamRefused | FaultKind::GoneAway => return Outcome::NotTaken,
        // The connection was closed while it was idle, and the request met that: no fault of the server.
        _ if fault.stale_connection && (idempotent || processed == Processed::No) => {
            return Outcome::NotTaken;
        }
        FaultKind::Certificate
        | FaultKind::AddressForbidden { .. }
        | FaultKind::NoRoots
        | FaultKind::BodyTooLarge { .. }
        | FaultKind::RatioExceeded { .. }
        | FaultKind::UnsupportedProtocol => false,
        _ => true,
    };
    Outcome::Fault { processed, passing }
}

/// What a response said about a limit, in a line: the field that decided, else the reason.
fn said(reading: &Reading) -> String {
    let evidence = &reading.evidence;
    if evidence.field().is_empty() {
        evidence.reason().to_owned()
    } else {
        format!("{}: {}", evidence.field(), evidence.value())
    }
}

fn fault_words(fault: &client::Fault) -> String {
    let mut words = fault.to_string();
    let mut source = std::error::Error::source(fault);
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        if !words.contains(&cause_words) && words.len() < 300 {
            words.push_str(": ");
            words.push_str(&cause_words);
        }
        source = cause.source();
    }
    words
}

/// Where a response sends us, if anywhere; an error where it must not be followed.
fn redirect(
    response: &Response,
    from: &Target,
    method: &Method,
    earlier: Option<&Hop>,
) -> Result<Option<Hop>, String> {
    let as_get = match response.status {
        StatusCode::SEE_OTHER => *method != Method::HEAD,
        // RFC 9110 sections 15.4.2 and 15.4.3 allow what every browser does.
        StatusCode::MOVED_PERMANENTLY | StatusCode::FOUND => *method == Method::POST,
        StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT => false,
        _ => return Ok(None),
    };
    let Some(location) = response.headers.get(header::LOCATION) else { return Ok(None) };
    let count = earlier.map_or(0, |hop| hop.count) + 1;
    if count > REDIRECTS_MAX {
        return Err(format!("more than {REDIRECTS_MAX} redirects"));
    }
    let target = from
        .join(location.as_bytes())
        .map_err(|error| format!("redirect to a place that cannot be fetched: {error}"))?;
    let abroad = earlier.is_some_and(|hop| hop.abroad) || target.origin() != from.origin();
    Ok(Some(Hop { target, count, as_get: as_get || earlier.is_some_and(|hop| hop.as_get), abroad }))
}

/// Whether a request may be sent twice (RFC 9110 section 9.2.2), by its method, a key, or the input's word (V2).
fn is_idempotent(request: &queue::Request) -> bool {
    let method = request.method.as_deref().unwrap_or("GET");
    request.idempotent.unwrap_or_else(|| {
        matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
            || request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
    })
}

/// The wall clock, for records and parked items (T1).
pub(super) fn wall_now() -> Timestamp {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}

const PERMANENT: Outcome = Outcome::Fault { processed: Processed::No, passing: false };
const RETRY_LATER: Outcome = Outcome::Fault { processed: Processed::Unknown, passing: true };
/// The error of an attempt that the end of the run cut off.
const CUT: &str = "the run ended";
/// Redirects of one item (K4); the WHATWG Fetch standard allows 20, few sites need more than 3.
const REDIRECTS_MAX: u32 = 10;
/// So much of a body that nobody wants is read so that the connection can be used again.
const DISCARD_MAX: u64 = 64 * 1024;
/// So much of a body is searched for what it says about a limit.
const PREFIX_MAX: usize = 64 * 1024;
/// How long the body of a refusal is waited for.
const REFUSAL_BODY: Duration = Duration::from_secs(1);
/// Items at hand of all lanes together, about.
const AT_HAND_MAX: usize = 32 * 1024;
/// The smallest and the largest page of a lane.
const PAGE: (usize, usize) = (8, 512);
/// Items that are kept in hand for a time of their own.
const HELD_MAX: usize = 100_000;
