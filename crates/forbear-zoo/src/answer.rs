//! What a limiter is asked and what it says.

use std::borrow::Cow;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;

use crate::rng;

/// What a limiter may know about a request.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The method, as sent.
    pub method: &'a str,
    /// Path and query, as sent.
    pub path: &'a str,
    /// Who asks, if the request carried credentials.
    pub account: Option<Account>,
    /// The address that the connection came from.
    pub client: IpAddr,
}

impl<'a> Facts<'a> {
    /// A `GET` of `path` from 127.0.0.1 without credentials.
    #[must_use]
    pub fn get(path: &'a str) -> Facts<'a> {
        Facts { method: "GET", path, account: None, client: IpAddr::V4(Ipv4Addr::LOCALHOST) }
    }

    /// The same request on behalf of whoever owns `credential`.
    #[must_use]
    pub fn account(self, credential: &str) -> Facts<'a> {
        Facts { account: Some(Account::of(credential)), ..self }
    }

    /// The same request from another address.
    #[must_use]
    pub fn client(self, client: IpAddr) -> Facts<'a> {
        Facts { client, ..self }
    }

    /// What the request costs of a limit that counts that: `cost=N` in the query, else 1.
    #[must_use]
    pub fn cost(&self) -> u32 {
        let query = self.path.split_once('?').map_or("", |(_, query)| query);
        let cost = query.split('&').find_map(|pair| pair.strip_prefix("cost="));
        cost.and_then(|cost| cost.parse().ok()).unwrap_or(1)
    }

    /// The path without its query.
    #[must_use]
    pub fn bare_path(&self) -> &'a str {
        self.path.split_once('?').map_or(self.path, |(path, _)| path)
    }
}

/// An account: a hash of the credential, so that no log holds the credential itself.
#[derive(Clone, Copy, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Account(pub(crate) u64);

impl Account {
    /// The account behind a credential: the whole value of `Authorization` (`Bearer abc`), or of an API key header.
    #[must_use]
    pub fn of(credential: &str) -> Account {
        Account(rng::hash(credential.as_bytes()))
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({:016x})", self.0)
    }
}

/// One counter of a limiter: the rule and the key that it counts under. Requests share a limit if they share one of these.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ScopeId(pub u64);

/// What kind of answer it was.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The request was let through.
    Served,
    /// A limit refused it.
    Refused,
    /// Something broke that is no limit.
    Fault(Fault),
}

/// The ways to break that have nothing to do with a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fault {
    /// An error page with the answer's status and no hint: 500, 502, 504.
    ErrorPage,
    /// The connection is reset before any byte of an answer.
    Reset,
    /// Half of the announced body, then the end of the connection.
    Truncated,
    /// Half of the body, then nothing for this long, then the rest.
    Stall(Duration),
}

/// What a limiter says to one request.
#[derive(Clone, Debug)]
#[must_use]
pub struct Answer {
    /// Served, refused or broken.
    pub verdict: Verdict,
    /// The status line's code. A reset never shows it.
    pub status: u16,
    /// Headers that the limiter adds: its hints, and its `Date` when its clock is wrong.
    pub headers: Vec<(Cow<'static, str>, String)>,
    /// The body, where the limiter wants a particular one.
    pub body: Option<Bytes>,
    /// How long the answer is in the making.
    pub latency: Duration,
    /// The shortest wait that an honest reader takes from the headers, counted from the moment the answer is sent.
    /// On a served request: how long an exhausted budget says to stay away.
    pub told: Option<Duration>,
    /// When the limiter would truly admit this request again, if it can know.
    pub wait: Option<Duration>,
    /// Every counter that this request belongs to.
    pub scopes: Vec<ScopeId>,
    /// The counter that refused it.
    pub refused_by: Option<ScopeId>,
}

impl Answer {
    /// A plain 200.
    pub fn ok() -> Answer {
        Answer {
            verdict: Verdict::Served,
            status: 200,
            headers: Vec::new(),
            body: None,
            latency: Duration::ZERO,
            told: None,
            wait: None,
            scopes: vec![ScopeId(0)],
            refused_by: None,
        }
    }

    /// A refusal without a hint, by the one scope that a hand-written limiter has.
    pub fn refused(status: u16) -> Answer {
        Answer { verdict: Verdict::Refused, status, refused_by: Some(ScopeId(0)), ..Answer::ok() }
    }

    /// A fault; an [`Fault::ErrorPage`] is a 502 unless [`Answer::status`] is set to something else.
    pub fn fault(fault: Fault) -> Answer {
        let status = if fault == Fault::ErrorPage { 502 } else { 200 };
        Answer { verdict: Verdict::Fault(fault), status, ..Answer::ok() }
    }

    /// The same answer with `Retry-After` in whole seconds (rounded up, as a server must).
    pub fn retry_after(self, wait: Duration) -> Answer {
        let seconds = ceil_secs(wait);
        let mut answer = self.header("retry-after", seconds.to_string());
        answer.told = Some(Duration::from_secs(seconds));
        answer.wait = Some(wait);
        answer
    }

    /// The same answer with one more header.
    pub fn header(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<String>) -> Answer {
        self.headers.push((name.into(), value.into()));
        self
    }

    /// The same answer with this body.
    pub fn body(mut self, body: impl Into<Bytes>) -> Answer {
        self.body = Some(body.into());
        self
    }

    /// The same answer, this much later.
    pub fn after(mut self, latency: Duration) -> Answer {
        self.latency = latency;
        self
    }
}

/// Whole seconds, rounded up: a wait told too short would be a lie.
pub(crate) fn ceil_secs(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0))
}
