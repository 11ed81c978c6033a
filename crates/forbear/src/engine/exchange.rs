//! One request and its answer, whole: what goes out, what comes back, and what it comes to.

use std::time::Duration;

use forbear_core::{
    exit::Answerer,
    hint::{self, Kind, Reading},
    outcome::{self, Outcome, Processed, Refusal},
    scope::ScopeKey,
};
use forbear_store::{gate::GateStore, queue};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use tokio::time::Instant;

use super::{
    cookies::Cookies,
    front::{Hop, Work},
    next::Course,
    route::Route,
    shared::Shared,
    worker::wall_now,
};
use crate::{
    bodies::Stored,
    client::{self, FaultKind, Limits, Request, Response, Target, Way},
    cost::Meter,
    permit::Permit,
};

/// What one attempt came to, besides its outcome.
#[derive(Default)]
pub(super) struct Attempt {
    pub(super) status: Option<u16>,
    pub(super) headers: HeaderMap,
    pub(super) body: Option<Stored>,
    pub(super) bytes: u64,
    /// Bytes of body as they came: what is paid for.
    pub(super) received: u64,
    pub(super) error: Option<String>,
    /// What the response says that the request has cost, by the rules of `[cost]` (C1).
    pub(super) told_cost: Option<u32>,
    /// A redirect that is to be followed.
    pub(super) next: Option<Hop>,
    /// The scope that stays shut until it has other credentials, if they were refused and it has come to that.
    pub(super) stopped: Option<ScopeKey>,
}

impl<G: GateStore> Shared<G> {
    /// One request and its answer, whole.
    pub(super) async fn exchange(
        &self,
        work: &Work,
        course: &Course,
        permit: &Permit,
    ) -> (Attempt, Option<Reading>, Outcome) {
        let mut attempt = Attempt::default();
        let route = &*course.route;
        let session = course.out.as_ref().map(|out| &*out.session);
        let cookies = session.map_or(&self.cookies, |session| &*session.cookies);
        let way = session.map_or(&Way::Direct, |session| &session.way);
        let credentials = route.has_account;
        let request = match self.request(work, route, cookies) {
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
        let mut response = match self.client.send(permit, request, way, &limits).await {
            Ok(response) => response,
            Err(fault) => {
                let outcome = of_fault(&fault, is_idempotent(&work.item.request));
                attempt.error = Some(fault_words(&fault));
                return (attempt, None, outcome);
            }
        };
        if let Answerer::Exit(fault) = response.answered_by {
            attempt.error =
                Some(format!("{}: status {} of the exit itself", fault.as_str(), response.status.as_u16()));
            response.body.discard(DISCARD_MAX).await;
            return (attempt, None, Outcome::Exit { fault, processed: fault.processed() });
        }
        attempt.status = Some(response.status.as_u16());
        cookies.store(&target, &response.headers);
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
        let mut meter = Meter::new(&route.cost, &response.headers);
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
                    if let Some(meter) = &mut meter {
                        meter.piece(&bytes);
                    }
                    if let Err(error) = sink.write(bytes).await {
                        attempt.error = Some(format!("the body cannot be kept: {error}"));
                        self.warn_once(format!("a body cannot be written: {error}"));
                        return (attempt, Some(head), RETRY_LATER);
                    }
                }
            }
        };
        (attempt.bytes, attempt.received) = (response.body.decoded(), response.body.received());
        match meter.filter(|_| fault.is_none()).map(Meter::read) {
            Some(Ok(cost)) => attempt.told_cost = Some(cost),
            Some(Err(why)) if status < 400 => {
                self.say_once(format!("{}: no cost in a response, so estimates stay: {why}", route.origin));
            }
            _ => {}
        }
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

    /// The request as it goes out.
    fn request(&self, work: &Work, route: &Route, cookies: &Cookies) -> Result<Request, String> {
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
        cookies.add(&target, &mut headers);
        let body = if as_get { bytes::Bytes::new() } else { item.body.clone().unwrap_or_default().into() };
        Ok(Request { method, target, headers, body })
    }
}

/// What a fault of the client comes to.
fn of_fault(fault: &client::Fault, idempotent: bool) -> Outcome {
    let processed = match fault.processed {
        client::Processed::No => Processed::No,
        client::Processed::Unknown => Processed::Unknown,
    };
    if let Some(fault) = fault.exit {
        return Outcome::Exit { fault, processed };
    }
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
pub(super) fn said(reading: &Reading) -> String {
    let evidence = &reading.evidence;
    if evidence.field().is_empty() {
        evidence.reason().to_owned()
    } else {
        format!("{}: {}", evidence.field(), evidence.value())
    }
}

fn fault_words(fault: &client::Fault) -> String {
    let mut words = fault.to_string();
    let kind = fault.kind.to_string();
    let mut source = std::error::Error::source(fault);
    while let Some(cause) = source {
        let cause_words = cause.to_string();
        // The system often says the same, and more: "connection refused" and "Connection refused (os error 111)".
        let same = cause_words.get(..kind.len()).is_some_and(|begins| begins.eq_ignore_ascii_case(&kind));
        if same && words.ends_with(&kind) {
            words.push_str(&cause_words[kind.len()..]);
        } else if !words.contains(&cause_words) && words.len() < 300 {
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
pub(super) fn is_idempotent(request: &queue::Request) -> bool {
    let method = request.method.as_deref().unwrap_or("GET");
    request.idempotent.unwrap_or_else(|| {
        matches!(method, "GET" | "HEAD" | "PUT" | "DELETE" | "OPTIONS" | "TRACE")
            || request.headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("idempotency-key"))
    })
}

const PERMANENT: Outcome = Outcome::Fault { processed: Processed::No, passing: false };
const RETRY_LATER: Outcome = Outcome::Fault { processed: Processed::Unknown, passing: true };
/// Redirects of one item (K4); the WHATWG Fetch standard allows 20, few sites need more than 3.
const REDIRECTS_MAX: u32 = 10;
/// So much of a body that nobody wants is read so that the connection can be used again.
const DISCARD_MAX: u64 = 64 * 1024;
/// So much of a body is searched for what it says about a limit.
const PREFIX_MAX: usize = 64 * 1024;
/// How long the body of a refusal is waited for.
const REFUSAL_BODY: Duration = Duration::from_secs(1);
