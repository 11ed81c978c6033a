//! `forbear fetch`: every item of a job, each request through the gate, each result durable before it counts.
//!
//! Workers take what may start, the supervisor here feeds them lanes and knows when the run is over. The life of one
//! request is told in `ARCHITECTURE.md`.

mod cookies;
mod events;
mod evidence;
mod exchange;
mod exits;
mod feed;
mod front;
mod gates;
mod next;
mod plan;
mod route;
mod run;
mod shared;
mod summary;
mod supervisor;
mod timer;
mod worker;

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use forbear_store::{
    gate::{AnyGates, StoreError},
    queue::{JobAddress, OutputTarget, QueueError},
};
use tokio::sync::Notify;

pub(crate) use self::route::{Route, Routes};
use self::shared::Shared;
pub use self::{
    events::{Event, Events, by_evidence},
    gates::StoreLosses,
    plan::{Plan, PlannedHost, plan},
    route::{HostStats, LaneParts, origin_scopes},
    run::Run,
    summary::{Broken, End, ExitCount, HostRow, Summary},
};
use crate::{
    bodies::BodyError,
    config::Settings,
    input::{ImportError, Source},
};

/// What a run is told.
#[derive(Debug)]
pub struct FetchOptions {
    /// How to fetch.
    pub settings: Settings,
    /// The job: a file, or a name in a queue that several processes share.
    pub job: JobAddress,
    /// Where records go.
    pub output: OutputTarget,
    /// Where items come from; none goes on with what the job has.
    pub input: Option<Source>,
    /// Where bodies go.
    pub bodies: KeepBodies,
}

/// Where bodies go.
#[derive(Clone, Debug, Default)]
pub enum KeepBodies {
    /// Into the records.
    #[default]
    Inline,
    /// Into files of this directory.
    Dir(PathBuf),
    /// Nowhere: they are counted only.
    None,
}

/// Why a run could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The job.
    #[error(transparent)]
    Job(#[from] QueueError),
    /// The input.
    #[error(transparent)]
    Input(#[from] ImportError),
    /// The gate store: a run does not begin without it.
    #[error("{}", no_gate(place, source))]
    Gate {
        /// Its address, without a password.
        place: String,
        /// What went wrong.
        source: StoreError,
    },
    /// The place for bodies.
    #[error(transparent)]
    Bodies(#[from] BodyError),
    /// Neither an input, nor a job to go on with.
    #[error("{job} does not exist, and there is no INPUT to make it from")]
    NothingGiven {
        /// Where a job was looked for.
        job: JobAddress,
    },
    /// The job and its records cannot be one file.
    #[error("{job} cannot be the job and its output; give another --job")]
    OneFile {
        /// Both.
        job: JobAddress,
    },
    /// A setting that the client cannot use.
    #[error("the user agent has characters that no header may have")]
    UserAgent,
    /// No thread could be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// Asks a run to stop (J6). Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    inner: Arc<StopInner>,
}

#[derive(Debug, Default)]
struct StopInner {
    asked: AtomicBool,
    changed: Notify,
}

impl Stop {
    /// Starts nothing more; what is in flight has two seconds to finish, then the run saves and ends.
    pub fn ask(&self) {
        self.inner.asked.store(true, Ordering::Release);
        self.inner.changed.notify_one();
    }

    fn is_asked(&self) -> bool {
        self.inner.asked.load(Ordering::Acquire)
    }
}

/// A run in progress: numbers for whoever shows them.
pub struct Watch {
    shared: Arc<Shared<AnyGates>>,
    started: Instant,
}

/// The numbers of a run, at one moment.
#[derive(Clone, Debug)]
pub struct Progress {
    /// How many items stand where.
    pub counts: forbear_store::queue::Counts,
    /// Requests on the wire or being written.
    pub in_flight: usize,
    /// Items in hand for a time of their own.
    pub held: usize,
    /// Since the run began.
    pub elapsed: Duration,
    /// Of each origin.
    pub hosts: Vec<HostRow>,
    /// Of the exits; none without any.
    pub exits: Option<ExitCount>,
    /// The shared gate store is lost, and this process goes on alone with its share (F1).
    pub gate_lost: bool,
    /// Share of the input that has been read, where its size is known.
    pub input_share: Option<f64>,
}

impl Watch {
    /// The present numbers.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let (busy, held) = {
            let front = self.shared.front.lock();
            (front.busy, front.frontier.held())
        };
        Progress {
            counts: self.shared.job.counts(),
            in_flight: busy,
            held,
            elapsed: self.started.elapsed(),
            hosts: summary::rows(&self.shared),
            exits: summary::exit_count(&self.shared),
            gate_lost: self.shared.gates.is_alone(),
            input_share: self.shared.importer.lock().as_ref().and_then(|importer| {
                let progress = importer.progress();
                Some(progress.bytes() as f64 / progress.total_bytes()? as f64)
            }),
        }
    }
}

/// What to say where the gate store is not there.
fn no_gate(place: &str, source: &StoreError) -> String {
    match source {
        StoreError::Unreachable(why) => format!(
            "cannot reach the gate store {place}: {why}; start it or correct the address, or use --gate memory to go on \
             with gates of this process alone"
        ),
        other => format!("{place}: {other}"),
    }
}
