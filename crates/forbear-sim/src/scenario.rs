//! What is simulated: an origin with its limiter, a fleet, its work, and what goes wrong.

use std::time::Duration;

use forbear_zoo::{Spec, Tide};

use crate::net::Latency;

/// A fleet before an origin.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Its limiter, as the zoo's real servers have it.
    pub spec: Spec,
    /// What that limiter allows, for the oracle.
    pub truth: Truth,
    /// So many nodes share the origin's work by chance, each with a limiter of its own.
    pub nodes: u32,
    /// Requests a second that others send, by chance, under the same limit.
    pub others: f64,
    /// How long things take.
    pub latency: Latency,
    /// Workers, each with at most one request on the wire.
    pub workers: u32,
    /// What they have to do.
    pub work: Work,
    /// The end of the run.
    pub run_for: Duration,
    /// The client's process dies at these moments.
    pub crashes: Vec<Duration>,
    /// The seed of all chance.
    pub seed: u64,
}

/// What a fleet has to do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Work {
    /// There is always more.
    Endless,
    /// So many pages, all there from the start.
    Pages(u32),
    /// So many pages a second, evenly: less than the limit, and the client is its own bottleneck.
    Stream(f64),
}

/// The kinds of limiter that the learner tells apart, and their true numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    /// Its kind.
    pub kind: TrueKind,
    /// Starts a second that it allows in the long run.
    pub rate: f64,
    /// The most that it allows at once: a bucket's burst, a window's limit, or the requests on the wire.
    pub number: f64,
    /// The length of its window; none for other kinds.
    pub window: Option<Duration>,
    /// How its rate moves.
    pub tide: Tide,
}

/// A kind of limiter.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum TrueKind {
    /// Token bucket or GCRA.
    Bucket,
    /// Fixed window.
    Fixed,
    /// Sliding log or sliding counter.
    Sliding,
    /// A cap on requests on the wire.
    Concurrency,
    /// A rate whose refusals start a time of refusals, anew with each.
    Penalty,
}

impl Truth {
    /// What the limiter lets through from `from` to `to`, without a burst that it starts with: the oracle's work.
    #[must_use]
    pub fn allowed(&self, from: Duration, to: Duration) -> f64 {
        self.rate * self.tide.between(from, to)
    }
}
