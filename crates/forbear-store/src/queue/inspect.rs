//! Looking at a job from outside, also while another process runs it; and making failed items pending again.

use std::path::PathBuf;

use forbear_core::time::Timestamp;

use super::{
    address::JobAddress,
    error::QueueError,
    exits::ExitRow,
    gates::GateRecord,
    input::InputIdentity,
    item::{Counters, Ending, InputPosition, LaneId, Request, Seq, Until},
    job::Counts,
    postgres::inspect::{self as postgres, PgFile},
    sqlite::inspect::{self as sqlite, SqliteFile},
};

/// A job, open for looking only.
pub struct JobFile(Inner);

enum Inner {
    Sqlite(SqliteFile),
    Postgres(Box<PgFile>),
}

/// The short answer: instant for any size of job, for totals are kept, not counted.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Summary {
    /// How many items stand where.
    pub counts: Counts,
    /// Whether a process runs it, and which, where that can be told.
    pub running: Running,
    /// Runs so far.
    pub runs: u64,
    /// When it was made.
    pub created: Timestamp,
    /// The version that made it.
    pub made_by: String,
    /// Its output, relative to the job's directory where it lies below that; `-` for standard output.
    pub output: String,
    /// What it was made from.
    pub input: Option<InputIdentity>,
    /// How far that has been read.
    pub position: InputPosition,
    /// When the first item that is parked until a time is due.
    pub next_due: Option<Timestamp>,
    /// Items parked until the next run.
    pub next_run: u64,
    /// Accounts without good credentials, with the number of items that wait for them: the first hundred.
    pub accounts: Vec<(String, u64)>,
}

/// Whether a process runs a job.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Running {
    /// None does.
    No,
    /// This one does; `None` where it could not be told.
    By(Option<u32>),
}

/// Where an item stands.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum State {
    /// May be claimed.
    Pending,
    /// Waits; with the reason in words.
    Parked(Until, String),
    /// A run has it in hand.
    Leased,
    /// Has ended; with offset and length of its record, unless that went into a stream.
    Ended(Ending, Option<(u64, u64)>),
}

/// Which items are wanted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Which {
    /// All.
    #[default]
    All,
    /// Those that may be claimed.
    Pending,
    /// Those that wait.
    Parked,
    /// Those in hand.
    Leased,
    /// Those done.
    Done,
    /// Those failed or of unknown outcome.
    Failed,
}

/// An item as it stands.
#[derive(Clone, Debug)]
pub struct Listed {
    /// Its line.
    pub seq: Seq,
    /// The input's own id, or `None` for the line number.
    pub id: Option<String>,
    /// The key of its lane; `None` for a line that is no item.
    pub lane: Option<String>,
    /// What is sent for it, *with its secrets* and without its body, for a page of those may not fit into memory; `None`
    /// for a line that is no item.
    pub request: Option<Request>,
    /// Where it stands.
    pub state: State,
    /// The output that has its record, where a job has several and this one is on this machine.
    pub output: Option<PathBuf>,
    /// What has happened to it; all zero once it is done.
    pub counters: Counters,
}

/// A lane and where its items stand.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct LaneCounts {
    /// Its number, to go on from.
    pub id: LaneId,
    /// Its key.
    pub key: String,
    /// May be claimed, or are in hand.
    pub pending: u64,
    /// Wait.
    pub parked: u64,
    /// Done.
    pub done: u64,
    /// Failed or of unknown outcome.
    pub failed: u64,
}

/// Which ended items may be tried again.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retry {
    /// Those that failed.
    Failed,
    /// Those of unknown outcome too: what they asked for may then be done twice.
    FailedAndUnknown,
}

impl JobFile {
    /// Opens the job at `path` for looking. Nothing is locked, changed or repaired.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub fn open(address: impl Into<JobAddress>) -> Result<JobFile, QueueError> {
        Ok(JobFile(match address.into() {
            JobAddress::File(path) => Inner::Sqlite(SqliteFile::open(&path)?),
            JobAddress::Postgres { queue, name } => Inner::Postgres(Box::new(PgFile::open(&queue, &name)?)),
        }))
    }

    /// The short answer.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn summary(&self) -> Result<Summary, QueueError> {
        match &self.0 {
            Inner::Sqlite(file) => file.summary(),
            Inner::Postgres(file) => file.summary(),
        }
    }

    /// Up to `limit` items after line `after`, by line. The pending ones are found by reading past the others; the rest
    /// are found at once.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self, which: Which, after: Seq, limit: usize) -> Result<Vec<Listed>, QueueError> {
        match &self.0 {
            Inner::Sqlite(file) => file.list(which, after, limit),
            Inner::Postgres(file) => file.list(which, after, limit),
        }
    }

    /// Up to `limit` lanes after `after`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn lanes(&self, after: Option<LaneId>, limit: usize) -> Result<Vec<LaneCounts>, QueueError> {
        match &self.0 {
            Inner::Sqlite(file) => file.lanes(after, limit),
            Inner::Postgres(file) => file.lanes(after, limit),
        }
    }

    /// Up to `limit` saved gates with a key after `after`.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn gates(&self, after: &str, limit: usize) -> Result<Vec<GateRecord>, QueueError> {
        match &self.0 {
            Inner::Sqlite(file) => file.gates(after, limit),
            Inner::Postgres(file) => file.gates(after, limit),
        }
    }

    /// What went through each exit, over all runs, the busiest first; at most 100,000. Of a run that goes on, as it was
    /// some seconds ago.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn exits(&self) -> Result<Vec<ExitRow>, QueueError> {
        match &self.0 {
            Inner::Sqlite(file) => file.exits(),
            Inner::Postgres(file) => file.exits(),
        }
    }

    /// Counts everything again and compares with the totals that are kept: `true` if all agrees, every item stands in
    /// exactly one place, and SQLite finds the file whole. Reads all of it.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn is_consistent(&self) -> Result<bool, QueueError> {
        match &self.0 {
            Inner::Sqlite(file) => file.is_consistent(),
            Inner::Postgres(file) => file.is_consistent(),
        }
    }
}

impl std::fmt::Debug for JobFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let at = match &self.0 {
            Inner::Sqlite(file) => file.path.display().to_string(),
            Inner::Postgres(file) => file.shown(),
        };
        f.debug_struct("JobFile").field("at", &at).finish_non_exhaustive()
    }
}

/// Makes failed items pending again, with all their attempts; gives their number. Their old records stay in the output,
/// before the new ones. Lines that are no items stay failed.
///
/// Refused while a run holds the job: it keeps totals in memory, and would not see them.
///
/// # Errors
/// See [`QueueError`].
pub fn retry(address: impl Into<JobAddress>, what: Retry) -> Result<u64, QueueError> {
    match address.into() {
        JobAddress::File(path) => sqlite::retry(&path, what),
        JobAddress::Postgres { queue, name } => postgres::retry(&queue, &name, what),
    }
}

/// Makes parked items pending, whatever they wait for; gives their number. Attempts that they have used up stay so.
///
/// Somebody's decision, for a wait may have been told by the server (P2); the pauses of scopes still hold, except of those
/// that wait for credentials: nothing else would ever try the same ones again. Refused while a run holds the job, as
/// [`retry`] is.
///
/// # Errors
/// See [`QueueError`].
pub fn unpark(address: impl Into<JobAddress>) -> Result<u64, QueueError> {
    match address.into() {
        JobAddress::File(path) => sqlite::unpark(&path),
        JobAddress::Postgres { queue, name } => postgres::unpark(&queue, &name),
    }
}
