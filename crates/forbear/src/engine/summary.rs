//! How a run ended: counts, a row per host, and when the rest is due.

use std::{fmt, sync::atomic::Ordering, time::Duration};

use forbear_core::{exit::Tally, time::Timestamp};
use forbear_store::queue::{self, Counts};

use super::{gates::StoreLosses, shared::Shared};
use crate::exit::ExitRow;

/// Why a run ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum End {
    /// Every item has ended.
    Complete,
    /// The time of the run is over, or nothing is due before it would be.
    OutOfTime,
    /// Nothing is due for longer than `stall_after`.
    Stalled,
    /// What is left waits for the next run, or for new credentials.
    NothingDue,
    /// No exit can be used, and work is left (E5).
    NoExit,
    /// It was asked to stop.
    Interrupted,
    /// It cannot go on.
    Broken,
}

/// What keeps a run from going on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Broken {
    /// Whoever read the output has gone: they have seen enough.
    OutputClosed,
    /// The input cannot be read on, or is another one than the job's.
    Input(String),
    /// The job.
    Job(String),
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::OutputClosed => f.write_str("the output was closed by its reader"),
            Broken::Input(why) | Broken::Job(why) => f.write_str(why),
        }
    }
}

/// What was seen of one origin.
#[derive(Clone, Debug)]
pub struct HostRow {
    /// The origin.
    pub origin: String,
    /// Requests sent.
    pub sent: u64,
    /// Items done.
    pub done: u64,
    /// Items failed.
    pub failed: u64,
    /// Requests refused.
    pub refused: u64,
    /// Requests that failed otherwise, by no fault of their exit.
    pub faults: u64,
    /// Bytes of body, decoded.
    pub bytes: u64,
    /// Incidents.
    pub pauses: u64,
    /// Probes sent.
    pub probes: u64,
    /// What the requests have cost: the real cost where a response told it, else the estimate (C1).
    pub cost: u64,
}

/// How many exits there are.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ExitCount {
    /// Those that neither fail nor are out.
    pub usable: usize,
    /// All of them.
    pub all: usize,
}

/// The end of a run.
#[derive(Clone, Debug)]
pub struct Summary {
    /// How many items stand where.
    pub counts: Counts,
    /// Why it ended.
    pub end: End,
    /// Why it could not go on.
    pub broken: Option<Broken>,
    /// When the first of what is left is due, on the wall clock.
    pub resume_at: Option<Timestamp>,
    /// How long it took.
    pub elapsed: Duration,
    /// A row for each origin, the busiest first.
    pub hosts: Vec<HostRow>,
    /// A row for each exit, in the order of the list. Empty where none were given.
    pub exits: Vec<ExitRow>,
    /// Work is left, and no exit could be used at the end (E5).
    pub no_exit: bool,
    /// How often the shared gate store was lost (F1).
    pub gate_losses: StoreLosses,
}

impl Summary {
    /// Requests sent per item that ended, of this run: 1.05 to 1.2 is healthy (V3). None before anything ended.
    #[must_use]
    pub fn retry_multiplier(&self) -> Option<f64> {
        let sent: u64 = self.hosts.iter().map(|host| host.sent).sum();
        let ended: u64 = self.hosts.iter().map(|host| host.done + host.failed).sum();
        (ended > 0).then(|| sent as f64 / ended as f64)
    }
}

pub(super) fn rows<G>(shared: &Shared<G>) -> Vec<HostRow> {
    let mut rows: Vec<HostRow> = shared
        .routes
        .all_stats()
        .into_iter()
        .map(|(origin, stats)| HostRow {
            origin: origin.to_string(),
            sent: stats.sent.load(Ordering::Relaxed),
            done: stats.done.load(Ordering::Relaxed),
            failed: stats.failed.load(Ordering::Relaxed),
            refused: stats.refused.load(Ordering::Relaxed),
            faults: stats.faults.load(Ordering::Relaxed),
            bytes: stats.bytes.load(Ordering::Relaxed),
            pauses: stats.pauses.load(Ordering::Relaxed),
            probes: stats.probes.load(Ordering::Relaxed),
            cost: stats.cost.load(Ordering::Relaxed),
        })
        .collect();
    rows.sort_by(|a, b| b.sent.cmp(&a.sent).then_with(|| a.origin.cmp(&b.origin)));
    rows
}

/// How many exits can be used; none where none were given.
pub(super) fn exit_count<G>(shared: &Shared<G>) -> Option<ExitCount> {
    let counts = shared.routes.pools().iter().map(|pool| pool.count());
    counts.reduce(|a, b| ExitCount { usable: a.usable + b.usable, all: a.all + b.all })
}

/// Keeps with the job what went through each exit.
pub(super) fn save_exits<G>(shared: &Shared<G>) {
    let rows = exit_rows(shared).iter().map(queue::ExitRow::from).collect();
    // An error is the job's, and whoever hands it an item meets it.
    let _ = shared.job.save_exits(rows);
}

fn exit_rows<G>(shared: &Shared<G>) -> Vec<ExitRow> {
    shared.routes.pools().iter().flat_map(|pool| pool.rows()).collect()
}

impl From<&ExitRow> for queue::ExitRow {
    fn from(row: &ExitRow) -> queue::ExitRow {
        let Tally { requests, done, refused, blocked, faults, bytes } = row.tally;
        let (name, state) = (row.name.clone(), row.state.to_owned());
        queue::ExitRow { name, state, requests, done, refused, blocked, faults, bytes, cost: row.cost }
    }
}

pub(super) fn of<G>(
    shared: &Shared<G>,
    counts: Counts,
    end: End,
    broken: Option<Broken>,
    resume_at: Option<Timestamp>,
    elapsed: Duration,
) -> Summary {
    let no_exit = counts.open() > 0 && shared.routes.pools().unusable().is_some();
    Summary {
        counts,
        end,
        broken,
        resume_at,
        elapsed,
        hosts: rows(shared),
        exits: exit_rows(shared),
        no_exit,
        gate_losses: shared.calls.losses(),
    }
}
