//! Whole fleets: several sites, exits, items of a job, faults on the wire, crashes; the core's machines put together as the
//! engine puts them together.
//!
//! A [`Fleet`] describes the world, [`run()`] plays it and gives a [`Summary`]. What decides is the core's: the frontier which
//! item is next, the exits by which way it goes, the gates whether it may, the verdict what becomes of it. What is promised
//! is watched at each step: P1, P7, B1, C1, C2, V2, E5, J5, and in the end that it ends. [`Fleet::draw`] makes one at random.
//!
//! ```
//! use forbear_sim::fleet::{self, Fleet, Site};
//!
//! let spec = "token-bucket:rate=5/s,burst=5,hint=seconds".parse()?;
//! let fleet = Fleet { sites: vec![Site::new(spec, 40)], ..Fleet::default() };
//! let summary = fleet::run(&fleet)?;
//! assert_eq!((summary.done, summary.lost()), (40, 0));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod draw;
mod items;
mod observe;
mod run;
mod scopes;
mod send;
mod watch;
mod wire;

use std::time::Duration;

use forbear_core::{
    exit::{ExitPolicy, Tally},
    outcome::Outcome,
    pace::RateList,
    policy::{ItemPolicy, ScopePolicy},
    scope::Combination,
    verdict::Verdict,
};
use forbear_zoo::Spec;

use crate::net::Latency;

pub use observe::observe;
pub use run::{run, run_seen};

/// A fleet, what it has to do, and what goes wrong.
#[derive(Clone, Debug)]
pub struct Fleet {
    /// What it fetches from.
    pub sites: Vec<Site>,
    /// The ways out; none: everything goes directly.
    pub exits: Vec<Exit>,
    /// Requests on the wire at once, at most (default 16).
    pub workers: u32,
    /// The retry multiplier steers the concurrency of all (V3; default yes).
    pub steered: bool,
    /// One attempt, all of it (default 30 s).
    pub timeout: Duration,
    /// What limits count (default: the origin).
    pub scope: Vec<Combination>,
    /// How scopes are treated; its concurrency is that of an origin's own scope.
    pub policy: ScopePolicy,
    /// The configured rates of an origin's own scope, whatever `policy` has.
    pub rates: Option<RateList>,
    /// How an item is treated.
    pub item: ItemPolicy,
    /// How exits are chosen.
    pub by_exit: ExitPolicy,
    /// What happens on the way to a site.
    pub wire: Wire,
    /// Moments at which the process is killed, each with the time until it is started again.
    pub crashes: Vec<(Duration, Duration)>,
    /// How far our wall clock is ahead of everybody else's, in milliseconds; behind, if negative.
    pub clock_ahead_ms: i64,
    /// The share of items that must not be sent twice.
    pub once: f64,
    /// By then everything must have ended (default 24 h).
    pub run_for: Duration,
    /// The seed of all chance.
    pub seed: u64,
}

impl Default for Fleet {
    fn default() -> Fleet {
        Fleet {
            sites: Vec::new(),
            exits: Vec::new(),
            workers: 16,
            steered: true,
            timeout: Duration::from_secs(30),
            scope: vec![Combination::ORIGIN],
            policy: ScopePolicy::default(),
            rates: None,
            item: ItemPolicy::default(),
            by_exit: ExitPolicy::default(),
            wire: Wire::default(),
            crashes: Vec::new(),
            clock_ahead_ms: 0,
            once: 0.0,
            run_for: Duration::from_secs(86_400),
            seed: 1,
        }
    }
}

/// An origin with its limiter, and what is to be fetched there.
#[derive(Clone, Debug)]
pub struct Site {
    /// Its limiter, as the zoo's real servers have it.
    pub spec: Spec,
    /// How long things take.
    pub latency: Latency,
    /// Items.
    pub pages: u32,
}

impl Site {
    /// A site 20 ms away, which takes 30 ms for a page.
    #[must_use]
    pub fn new(spec: Spec, pages: u32) -> Site {
        let latency = Latency {
            round_trip: Duration::from_millis(20),
            service: Duration::from_millis(30),
            spread: 0.3,
        };
        Site { spec, latency, pages }
    }
}

/// A way out, and what is wrong with it.
#[derive(Clone, Debug, PartialEq)]
pub enum Exit {
    /// Nothing.
    Good,
    /// Each request takes so much longer, both ways together.
    Slow(Duration),
    /// It cannot be reached.
    Dead,
    /// It can be reached, and says nothing.
    Silent,
    /// 407 to everything.
    RejectsUs,
    /// It has a limiter of its own.
    Limits(Spec),
    /// One site refuses everything that comes by it, with 429.
    Burnt {
        /// Which, by its place.
        site: u32,
    },
    /// One site answers 403 to everything that comes by it.
    Unwanted {
        /// Which.
        site: u32,
    },
    /// It finds no way to one site: 502 to CONNECT.
    NoWay {
        /// Which.
        site: u32,
    },
    /// It cannot be reached for a while.
    Down {
        /// From then,
        from: Duration,
        /// for so long.
        span: Duration,
    },
}

/// What happens on the way to a site, as shares of all requests.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Wire {
    /// There is no connection: certainly not processed.
    pub refused: f64,
    /// The connection is reset once the request is sent: nobody knows whether it was processed.
    pub reset: f64,
    /// The answer never comes.
    pub lost: f64,
    /// The server leaves it unread, and says so.
    pub not_taken: f64,
}

/// A request that has come back, for whoever wants to see each.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// When it was sent, since the start of the run.
    pub sent: Duration,
    /// When its answer came, or the time was over.
    pub back: Duration,
    /// Which item.
    pub item: u32,
    /// Which site.
    pub site: u32,
    /// By which exit.
    pub exit: Option<u32>,
    /// It probed a scope.
    pub probe: bool,
    /// What came of it, with its exit heard.
    pub outcome: Outcome,
    /// What becomes of the item.
    pub verdict: Verdict,
    /// Until when the scope is shut that it fell on, where it is.
    pub shut_until: Option<Duration>,
}

/// What a run came to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Summary {
    /// Items in.
    pub items: u32,
    /// Items done.
    pub done: u32,
    /// Items failed for good.
    pub failed: u32,
    /// Items of which nobody knows whether they were done.
    pub unknown: u32,
    /// Items put off until the next run.
    pub put_off: u32,
    /// Requests sent.
    pub sent: u64,
    /// Requests refused by a limit.
    pub refused: u64,
    /// Requests that failed otherwise.
    pub faults: u64,
    /// Probes.
    pub probes: u64,
    /// Until the last item ended.
    pub took: Duration,
    /// Requests for each item that ended, over windows of five minutes: the highest, and the last (V3).
    pub multiplier: (f64, f64),
    /// What went through each exit.
    pub exits: Vec<Tally>,
}

impl Summary {
    /// Items that nobody can account for.
    #[must_use]
    pub fn lost(&self) -> u32 {
        self.items - self.done - self.failed - self.unknown - self.put_off
    }
}
