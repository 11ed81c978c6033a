//! The limiters. Each is a pure state machine: time and requests come in, verdicts come out.

use std::fmt;
use std::time::Duration;

use crate::answer::{Answer, Facts};

pub(crate) mod bucket;
pub(crate) mod concurrency;
pub(crate) mod punish;
pub(crate) mod tide;
pub(crate) mod trouble;
pub(crate) mod window;

/// Whatever stands before a service and answers for it. [`Origin`](crate::Origin) is the one that a
/// [`Spec`](crate::Spec) describes; a closure is one too, for a scripted test.
///
/// Times are counted from the start of the server and never go back.
///
/// ```
/// use forbear_zoo::{Answer, Facts, Limiter};
/// use std::time::Duration;
///
/// let mut hits = 0;
/// let mut third_time_lucky = move |_now: Duration, _request: &Facts<'_>| {
///     hits += 1;
///     if hits < 3 { Answer::refused(429).retry_after(Duration::from_secs(1)) } else { Answer::ok() }
/// };
/// assert_eq!(third_time_lucky.arrive(Duration::ZERO, &Facts::get("/")).status, 429);
/// ```
pub trait Limiter: Send {
    /// A request arrives.
    fn arrive(&mut self, now: Duration, request: &Facts<'_>) -> Answer;

    /// The last byte of the answer is about to be sent, or the connection is gone. Called once for each arrival, with the same
    /// request and the answer that was given.
    fn depart(&mut self, now: Duration, request: &Facts<'_>, answer: &Answer) {
        let _ = (now, request, answer); // most limiters count arrivals only
    }
}

impl<F: FnMut(Duration, &Facts<'_>) -> Answer + Send> Limiter for F {
    fn arrive(&mut self, now: Duration, request: &Facts<'_>) -> Answer {
        self(now, request)
    }
}

/// One counter of one rule. The origin tests every rule of a request first and takes from all or from none.
pub(crate) trait Rule: Send + fmt::Debug {
    /// Says what the request that is asked about next costs; most rules count requests, whatever they cost.
    fn weigh(&mut self, cost: u32) {
        let _ = cost;
    }

    /// Would a request at `now` be let through? Changes no count.
    fn test(&mut self, now: Duration) -> bool;

    /// Counts a request that is let through; [`Rule::test`] has just said yes.
    fn take(&mut self, now: Duration);

    /// Counts a request that this rule turned away, and says how; [`Rule::test`] has just said no.
    fn refuse(&mut self, now: Duration) -> Refusal;

    /// A request that was let through has been answered.
    fn depart(&mut self) {}

    /// What is left at `now`, for the rules that have a budget.
    fn budget(&mut self, now: Duration) -> Option<Budget> {
        let _ = now;
        None
    }
}

/// How a rule turns a request away.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Refusal {
    /// The status, where the rule insists on one.
    pub(crate) status: Option<u16>,
    /// Until the rule would let this request through, if it came alone.
    pub(crate) wait: Duration,
    /// A ban does not say when it ends.
    pub(crate) silent: bool,
}

impl Refusal {
    pub(crate) fn after(wait: Duration) -> Refusal {
        Refusal { status: None, wait, silent: false }
    }
}

/// A budget as servers publish it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Budget {
    /// The most that one window, or one burst, holds.
    pub(crate) limit: u64,
    /// How many more would be let through right now.
    pub(crate) remaining: u64,
    /// Until all of `limit` is there again.
    pub(crate) reset: Duration,
    /// The length of the window, or the time that an empty bucket takes to fill.
    pub(crate) window: Duration,
}
