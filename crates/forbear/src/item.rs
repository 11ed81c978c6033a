//! An item in the hands of a program with an HTTP client of its own, and an answer as that client has it.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use forbear_core::{
    attempt::Ask,
    exit::ExitId,
    outcome::Outcome,
    verdict::{History, Verdict},
};
use http::HeaderMap;

/// One item: make one for each, and take it along from try to try.
///
/// ```
/// use forbear::gate::Item;
/// let page = Item::new();
/// let order = Item::new().not_twice().account("team-7").cost(3);
/// assert_eq!((page.tries(), order.tries()), (0, 0));
/// ```
#[derive(Clone, Debug)]
pub struct Item {
    pub(crate) history: History,
    pub(crate) account: Option<Arc<str>>,
    pub(crate) cost: u32,
    pub(crate) not: Option<ExitId>,
    pub(crate) keep: Option<ExitId>,
    pub(crate) endpoint: Option<Arc<str>>,
    pub(crate) blocked: u32,
    pub(crate) number: u64,
}

impl Default for Item {
    fn default() -> Item {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Item {
            history: History { idempotent: true, ..History::default() },
            account: None,
            endpoint: None,
            cost: 1,
            not: None,
            keep: None,
            blocked: 0,
            number: LAST.fetch_add(1, Ordering::Relaxed),
        }
    }
}

impl Item {
    /// One that may be sent twice, as every `GET` may (RFC 9110 section 9.2.2).
    #[must_use]
    pub fn new() -> Item {
        Item::default()
    }

    /// It must not be sent twice where nobody knows whether it was done (V2): a `POST` without an idempotency key.
    #[must_use]
    pub fn not_twice(mut self) -> Item {
        self.history.idempotent = false;
        self
    }

    /// It carries credentials of this account. A name that may be shown: scopes have it, so it is never the credential (K1).
    #[must_use]
    pub fn account(mut self, name: &str) -> Item {
        self.account = Some(name.into());
        self
    }

    /// It goes to this endpoint, as the policy names it. Without one the gate looks at the path.
    #[must_use]
    pub fn endpoint(mut self, name: &str) -> Item {
        self.endpoint = Some(name.into());
        self
    }

    /// What one request counts for on every rate (C1). Default 1.
    #[must_use]
    pub fn cost(mut self, cost: u32) -> Item {
        self.cost = cost;
        self
    }

    /// Requests sent for it so far.
    #[must_use]
    pub fn tries(&self) -> u32 {
        self.history.tries
    }

    pub(crate) fn ask(&self) -> Ask {
        Ask { cost: self.cost, first: self.history.tries == 0 }
    }

    /// Takes in what came of a request; `redirected` if it only led to another one.
    pub(crate) fn note(&mut self, outcome: &Outcome, verdict: Verdict, redirected: bool) {
        self.history.tries += 1;
        self.history.failures += u32::from(!redirected && verdict.counts(outcome));
        self.history.refusals += u32::from(matches!(outcome, Outcome::Refused(_)));
        self.blocked += u32::from(matches!(outcome, Outcome::Blocked { .. }));
    }
}

/// An answer, as the client has it.
///
/// ```
/// use forbear::gate::Received;
/// let headers = http::HeaderMap::new();
/// let _page = Received { body: Some(b"<html>"), bytes: 6, ..Received::new(200, &headers) };
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The status.
    pub status: u16,
    /// All fields of the head.
    pub headers: &'a HeaderMap,
    /// The body's beginning, decoded: some services tell their limits there. 64 KiB are plenty; none where it was not read.
    pub body: Option<&'a [u8]>,
    /// Length of the body, for the table and for prices by the gigabyte.
    pub bytes: u64,
    /// It came through a tunnel (`CONNECT`, SOCKS), where only the origin answers. Without one, as when an HTTP proxy
    /// forwards a request for `http://`, an answer may be the exit's own, and is read as that where it bears its mark (E1).
    pub tunnel: bool,
    /// What the request has really cost, where the answer says so (C1). Default none: the estimate stays.
    pub cost: Option<u32>,
}

impl<'a> Received<'a> {
    /// An answer without a body, through a tunnel.
    #[must_use]
    pub fn new(status: u16, headers: &'a HeaderMap) -> Received<'a> {
        Received { status, headers, body: None, bytes: 0, tunnel: true, cost: None }
    }
}
