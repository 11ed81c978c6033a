//! What came of an attempt: the first column of the verdict table.

use std::time::Duration;

use crate::{
    gate::Told,
    hint::{Kind, Reading, ScopeHint, WaitSource},
};

/// What came of one attempt on the wire.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Outcome {
    /// The server served the request: 2xx, 3xx, complete (V4).
    Success,
    /// The server refused it for a limit: the scope pauses.
    Refused(Refusal),
    /// 500, 502, 504 and their like, without a hint.
    Overloaded,
    /// Denied as unwanted: 403, 451, or a challenge page.
    Blocked {
        /// A challenge to be solved by a person.
        challenge: bool,
    },
    /// 401 to credentials of ours.
    Unauthorised,
    /// Gone or wrong: other 4xx, 401 without credentials, 5xx that no repetition mends.
    Rejected,
    /// The server left it unread: a refused stream, a connection that was closing. Certainly not processed, and nobody's
    /// fault; too many at once, most likely.
    NotTaken,
    /// The exit failed, or turned us away: the origin has no part in it (E1).
    Exit {
        /// What it did.
        fault: ExitFault,
        /// Whether the server may have acted on it all the same (V2): only an exit that was to forward a request without
        /// a tunnel, and said nothing, leaves that open.
        processed: Processed,
    },
    /// No whole answer came.
    Fault {
        /// Whether the server may have acted on it (V2).
        processed: Processed,
        /// Whether another try can end otherwise; a certificate error is no glitch (V1).
        passing: bool,
    },
}

impl Outcome {
    /// An exit that cannot be reached, or broke off before the request was on its way.
    pub const EXIT_BROKEN: Outcome = Outcome::Exit { fault: ExitFault::Broken, processed: Processed::No };
    /// An exit that does not know us: 407, or a SOCKS login that was turned down.
    pub const EXIT_REJECTS_US: Outcome =
        Outcome::Exit { fault: ExitFault::Rejected, processed: Processed::No };
    /// No answer, or no whole one, to a request that was sent, and the origin's fault as far as anybody can tell.
    pub const NO_ANSWER: Outcome = Outcome::Fault { processed: Processed::Unknown, passing: true };
}

/// What a refusal said.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Refusal {
    /// The least wait from receipt; zero when the server's own time is over.
    pub wait: Option<Duration>,
    /// Where the wait is from.
    pub from: Option<WaitSource>,
    /// What the limit counts, where the server or its documentation names it.
    pub named: Option<ScopeHint>,
    /// What kind of limit.
    pub kind: Kind,
    /// Whether this request may be sent again after the wait; the server's explicit order, else the kind's rule.
    pub may_retry: bool,
}

/// What an exit did instead of carrying a request to its origin.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExitFault {
    /// It could not be reached, broke off before the request was on its way, answered with an error of its own other
    /// than those below, or does not speak its protocol.
    Broken,
    /// It said nothing until the time was over, or closed the connection without a word after it had the request: its own
    /// fault, or that of what lies behind it.
    Silent,
    /// It does not know us: 407, or a user name and password that a SOCKS server turned down.
    Rejected,
    /// It limits us: 429 or 503 of its own.
    Limited {
        /// The wait that it told.
        wait: Option<Duration>,
    },
    /// It could not reach the origin: 502 or 504 to CONNECT, a SOCKS reply 1 or 3 to 6 (RFC 1928 section 6).
    NoWay,
    /// It may not, by its own rules, go to that origin: another 4xx to CONNECT, a SOCKS reply 2.
    Forbidden,
}

impl ExitFault {
    /// A short name that does not change, for records and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ExitFault::Broken => "exit-broken",
            ExitFault::Silent => "exit-silent",
            ExitFault::Rejected => "exit-rejects-us",
            ExitFault::Limited { .. } => "exit-limited",
            ExitFault::NoWay => "exit-cannot-reach-origin",
            ExitFault::Forbidden => "exit-forbids-origin",
        }
    }

    /// Whether the origin may have acted on a request that the exit answered so in its place (V2).
    ///
    /// ```
    /// use forbear_core::outcome::{ExitFault, Processed};
    /// assert_eq!(ExitFault::NoWay.processed(), Processed::No);
    /// assert_eq!(ExitFault::Silent.processed(), Processed::Unknown, "it had passed the request on");
    /// ```
    #[must_use]
    pub fn processed(self) -> Processed {
        match self {
            ExitFault::Silent => Processed::Unknown,
            ExitFault::Broken
            | ExitFault::Rejected
            | ExitFault::Limited { .. }
            | ExitFault::NoWay
            | ExitFault::Forbidden => Processed::No,
        }
    }
}

/// Whether a server may have acted on a request that got no answer.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Processed {
    /// Certainly not: it was never sent, or the protocol says so (RFC 9113 section 8.7).
    No,
    /// Nobody knows.
    Unknown,
}

impl Refusal {
    /// What the gate needs of it.
    #[must_use]
    pub fn told(&self) -> Told {
        let named = self.named.is_some_and(|named| named != ScopeHint::Service);
        Told {
            wait: self.wait,
            may_be_one_items: self.may_be_tested() && !named,
            overload: self.kind == Kind::Overload,
            rest: Duration::ZERO,
        }
    }

    /// Whether its wait is an instruction, and neither a quota's nor a block's: only such a one is tested early (P7).
    #[must_use]
    pub fn may_be_tested(&self) -> bool {
        self.from == Some(WaitSource::Instruction) && !matches!(self.kind, Kind::Quota | Kind::Blocked)
    }
}

/// Reads an answer that came whole. `credentials` says whether it was asked for with credentials of ours.
#[must_use]
pub fn of_response(status: u16, reading: &Reading, credentials: bool) -> Outcome {
    let refused = || {
        Outcome::Refused(Refusal {
            wait: reading.wait,
            from: reading.wait_from,
            named: reading.scope_hint,
            kind: reading.kind,
            may_retry: reading.should_retry.unwrap_or(true),
        })
    };
    match reading.kind {
        Kind::Challenge => return Outcome::Blocked { challenge: true },
        Kind::Auth if status == 401 && credentials => return Outcome::Unauthorised,
        Kind::Auth | Kind::ProxyAuth => return Outcome::Rejected,
        _ => {}
    }
    match status {
        429 | 503 | 529 => refused(),
        // A served response that merely announces an empty budget closes the scope (H4), and its item is done: nothing is
        // said about trying again. One with a throttling code in its body says so.
        100..=399 if reading.should_retry.is_none() => Outcome::Success,
        _ if reading.limited && reading.kind != Kind::None => refused(),
        100..=399 => Outcome::Success,
        403 | 418 if reading.limited => refused(),
        403 | 451 => Outcome::Blocked { challenge: false },
        400..=499 => Outcome::Rejected,
        // Not implemented, version not supported, loop detected, not extended, captive portal: they stay as they are.
        501 | 505 | 506 | 508 | 510 | 511 => Outcome::Rejected,
        _ if reading.limited => refused(),
        _ => Outcome::Overloaded,
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, HeaderValue};

    use super::*;
    use crate::{
        hint::{Response, read},
        time::Timestamp,
    };

    #[test]
    fn h4_a_served_response_with_an_empty_budget_is_a_success() {
        for (status, remaining, refused) in
            [(200, "0", false), (304, "0", false), (200, "7", false), (429, "0", true), (403, "0", true)]
        {
            let mut headers = HeaderMap::new();
            headers.insert("x-ratelimit-limit", HeaderValue::from_static("60"));
            headers.insert("x-ratelimit-remaining", HeaderValue::from_static(remaining));
            headers.insert("x-ratelimit-reset", HeaderValue::from_static("30"));
            let response = Response { status, headers: &headers, body: None };
            let reading = read(&response, None, Timestamp::from_secs(1_795_957_200));
            assert_eq!(reading.limited, remaining == "0", "{status} {remaining}");
            let outcome = of_response(status, &reading, false);
            assert_eq!(matches!(outcome, Outcome::Refused(_)), refused, "{status} {remaining}: {outcome:?}");
        }
        // A throttling code in the body of a 200, as several services send it.
        let marked =
            Reading { limited: true, kind: Kind::RateLimit, should_retry: Some(true), ..Reading::default() };
        assert!(matches!(of_response(200, &marked, false), Outcome::Refused(_)));
    }
}
