//! What a response says about limits (H1-H5).
//!
//! [`read`] takes the head of a response, and a prefix of its body where one was read, and returns one [`Reading`]. A
//! response is read as a whole: an instruction beats the reset of an exhausted budget, of different instructions the
//! longest counts, of one instruction at two precisions the finer, and what cannot be read is absent.
//!
//! What a service calls its things is data, not code: a [`Profile`] is a table of its headers, codes and sentences.
//! Without a profile the general rules apply, which know every common name and form.

mod body;
mod date;
mod envelope;
mod evidence;
mod fields;
mod gather;
mod profile;
mod services;
pub mod value;
mod weigh;

use std::time::Duration;

use http::HeaderMap;

pub use evidence::{Evidence, VALUE_MAX};
pub use fields::{INSTRUCTIONS, ROLES, Role};
pub use profile::Profile;
pub use value::TOO_LONG;

use crate::time::Timestamp;
use gather::Gathered;
use profile::Verdict;

/// A response, as far as it matters here.
#[derive(Clone, Copy, Debug)]
pub struct Response<'a> {
    /// The status code.
    pub status: u16,
    /// All header fields, as received.
    pub headers: &'a HeaderMap,
    /// A prefix of the decoded body; `None` if it was not read. No more than 64 KiB of it are looked at.
    pub body: Option<&'a [u8]>,
}

/// Everything that a response says about limits, read as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// The gate of this scope must close on this response.
    pub limited: bool,
    /// The least time from receipt that the server asked for, without jitter, pad or cap; at most [`TOO_LONG`].
    /// `None`: not told, or not readable. Zero: the told time is already over, which is no leave to come at once.
    pub wait: Option<Duration>,
    /// Where [`Reading::wait`] comes from.
    pub wait_from: Option<WaitSource>,
    /// The budget that binds: the exhausted one with the longest reset, else the one nearest to its end.
    pub budget: Option<Budget>,
    /// The budget nearest to its end of those that count something else: where [`Reading::budget`] counts requests, one of
    /// tokens, and the other way round.
    pub beside: Option<Budget>,
    /// Whose limit it is, as far as the response or the service's profile says.
    pub scope_hint: Option<ScopeHint>,
    /// Whether *this request* may be sent again after the wait. `None`: it was served, or nothing is known.
    pub should_retry: Option<bool>,
    /// What kind of refusal this is.
    pub kind: Kind,
    /// What decided, for records and people (H5).
    pub evidence: Evidence,
}

/// Where a wait comes from. Only an instruction may be tested early by another item (P7).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WaitSource {
    /// `Retry-After` and its kin, in a header or the body: when to come back.
    Instruction,
    /// The reset of a budget with nothing left: when a counter is refilled.
    Reset,
}

/// A counter that a server keeps, as far as the response tells of it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// How many there are in a window. Fractions occur (0.0167 requests a second).
    pub limit: Option<f64>,
    /// How many are left.
    pub remaining: Option<f64>,
    /// The length of the window. Never a wait.
    pub window: Option<Duration>,
    /// Time from receipt to the refill, also where something is left.
    pub reset_after: Option<Duration>,
    /// It counts what requests cost, by its name: tokens, points, bytes. One that does not say counts requests.
    pub of_cost: bool,
}

/// What one limit counts, in the words of the server.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ScopeHint {
    /// A key, token, tenant or user.
    Account,
    /// A client id, over all its users.
    App,
    /// A route, method, bucket or resource.
    Endpoint,
    /// Everything of this credential.
    Global,
    /// The address that requests come from.
    Ip,
    /// The backend, whoever asks.
    Service,
}

impl ScopeHint {
    /// The word for records and the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            ScopeHint::Account => "account",
            ScopeHint::App => "app",
            ScopeHint::Endpoint => "endpoint",
            ScopeHint::Global => "global",
            ScopeHint::Ip => "ip",
            ScopeHint::Service => "service",
        }
    }
}

/// The kind of a refusal.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum Kind {
    /// Too many in a time.
    RateLimit,
    /// Too many at a time.
    Concurrency,
    /// The allowance of a day, a month or a purse is spent.
    Quota,
    /// The backend cannot keep up, whoever asks.
    Overload,
    /// Denied as unwanted.
    Blocked,
    /// A puzzle for people or their browsers.
    Challenge,
    /// The origin wants other credentials.
    Auth,
    /// The proxy wants other credentials.
    ProxyAuth,
    /// Nothing of the sort.
    #[default]
    None,
}

impl Kind {
    /// The word for records and the command line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::RateLimit => "rate_limit",
            Kind::Concurrency => "concurrency",
            Kind::Quota => "quota",
            Kind::Overload => "overload",
            Kind::Blocked => "blocked",
            Kind::Challenge => "challenge",
            Kind::Auth => "auth",
            Kind::ProxyAuth => "proxy_auth",
            Kind::None => "none",
        }
    }
}

/// Reads what a response says about limits.
///
/// `now` is the client's own clock at receipt; it is used where the response has no readable `Date`. Nothing that a
/// server sends makes this panic, and a response without limit headers costs no allocation.
#[must_use]
pub fn read(response: &Response<'_>, profile: Option<&Profile>, now: Timestamp) -> Reading {
    let mut seen = Gathered::from_headers(response.headers, profile, now);
    let status = seen.status_of_grpc(response.status).unwrap_or(response.status);
    if let Some(kind) = status_that_no_wait_cures(status, seen.challenged) {
        let should_retry = Some(seen.should_retry.unwrap_or(false));
        return Reading { kind, should_retry, evidence: Evidence::of_status(kind), ..Reading::default() };
    }
    if profile.is_none() && status < 400 && seen.is_silent() {
        return Reading::default();
    }
    let verdict = seen.read_body(response, status, profile);
    seen.settle();
    decide(status, &seen, &verdict, profile)
}

/// Refusals that another time does not change, whatever else is said.
fn status_that_no_wait_cures(status: u16, challenged: bool) -> Option<Kind> {
    match status {
        407 => Some(Kind::ProxyAuth),
        401 | 511 => Some(Kind::Auth),
        _ if challenged => Some(Kind::Challenge),
        _ => None,
    }
}

/// The precedence of H2, on everything that was gathered.
fn decide(status: u16, seen: &Gathered<'_>, verdict: &Verdict, profile: Option<&Profile>) -> Reading {
    let any_left = profile.is_some_and(|p| p.any_left);
    let binding = if verdict.no_budget { None } else { seen.binding(any_left) };
    let marked =
        matches!(verdict.marked, Some(Kind::RateLimit | Kind::Concurrency | Kind::Quota | Kind::Overload));
    let cleared = verdict.marked.is_some() && !marked && verdict.marked != Some(Kind::Blocked);

    // A status that refuses makes an instruction one for the scope; on a served response it is about one resource.
    let always = matches!(status, 429 | 503 | 529);
    let refuses = always || marked || matches!(status, 403 | 418 | 500..=599);
    let reset = seen.reset(refuses, any_left);
    let spent = seen.is_spent(any_left);
    // Where a spent budget has no reset, even an instruction for one resource is better than a guess.
    let listens = refuses || verdict.marked == Some(Kind::Blocked) || (spent && reset.is_none());
    let order = seen.order(listens);

    let wait = match (order, reset) {
        // Zero beside an empty budget is rounding or skew.
        (Some(order), Some(reset)) if order.wait.time.is_zero() && !reset.is_zero() => {
            Some((reset, WaitSource::Reset))
        }
        (Some(order), _) => Some((order.wait.time, WaitSource::Instruction)),
        (None, Some(reset)) => Some((reset, WaitSource::Reset)),
        (None, None) => None,
    };
    let held = order.is_some_and(|o| o.hold && !o.wait.time.is_zero());
    let limited =
        !cleared && (always || marked || spent || verdict.spent || held || (refuses && order.is_some()));
    let limited = match verdict.marked {
        Some(Kind::Blocked) => wait.is_some() || status == 429,
        _ => limited,
    };

    let known = binding.and_then(|f| profile?.dimension(&f.key, f.name));
    let family = binding.filter(|f| f.is_exhausted());
    let dimension = known.filter(|_| family.is_some());
    // A profile's finer word for the kind beats the code that marked the response.
    let kind = match verdict.kind.filter(|_| limited).or(verdict.marked) {
        Some(kind) => kind,
        None if !limited => Kind::None,
        None => match dimension.and_then(|d| d.kind) {
            Some(kind) => kind,
            None if seen.connections_full || (refuses && family.is_some_and(|f| f.concurrent)) => {
                Kind::Concurrency
            }
            // Another 5xx that no instruction made a refusal is held for its spent budget alone.
            None if status >= 500 && (always || order.is_some()) => Kind::Overload,
            None => Kind::RateLimit,
        },
    };
    let told = wait.is_some();
    let should_retry = seen.should_retry.or(match kind {
        _ if limited && !refuses && verdict.marked.is_none() => None,
        Kind::RateLimit | Kind::Concurrency | Kind::Overload => Some(true),
        Kind::Quota | Kind::Blocked => Some(told && limited),
        Kind::Challenge | Kind::Auth | Kind::ProxyAuth => Some(false),
        Kind::None => None,
    });
    let scope_hint = if limited {
        verdict.scope.or(dimension.and_then(|d| d.scope)).or(seen.scope).or_else(|| match kind {
            Kind::Overload if matches!(status, 503 | 529) && seen.grpc.is_none() => Some(ScopeHint::Service),
            _ => profile.and_then(|p| p.scope),
        })
    } else {
        None
    };
    let mut budget = binding.map(|f| f.budget(known, seen.reset_of(f)));
    let beside = binding.and_then(|f| seen.beside(f)).map(|f| {
        let known = profile.and_then(|p| p.dimension(&f.key, f.name));
        f.budget(known, seen.reset_of(f))
    });
    if let Some(limit) = verdict.limit {
        budget.get_or_insert_default().limit = Some(limit);
    }
    if let Some(window) = verdict.window {
        budget.get_or_insert_default().window = Some(window);
    }
    let (wait, wait_from) = wait.filter(|_| limited).unzip();
    let evidence = seen.evidence(status, wait_from, order, binding, verdict, limited);
    Reading { limited, wait, wait_from, budget, beside, scope_hint, should_retry, kind, evidence }
}
