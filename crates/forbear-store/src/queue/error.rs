//! What can go wrong with a job, and what it says while it runs.

use std::{fmt, io, path::PathBuf, sync::Arc};

use super::postgres::failure::remedy;

/// Why a job cannot be opened, or cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// Another process runs this job.
    #[error("{} is in use by {}; wait for it, or give another --job", path.display(), Owner(*pid))]
    InUse {
        /// The job.
        path: PathBuf,
        /// The process, where it could be told.
        pid: Option<u32>,
    },
    /// The file is something else.
    #[error("{} is not a forbear job; give another --job", path.display())]
    NotAJob {
        /// The file.
        path: PathBuf,
    },
    /// The file holds nothing but zeros, as after a power cut on some file systems.
    #[error("{} is damaged: it holds only zeros; restore it from a copy, or move it and its output away to start anew", path.display())]
    Zeros {
        /// The job.
        path: PathBuf,
    },
    /// The job is empty or missing, yet its output has records.
    #[error("{} has records, but its job {} is empty or missing; restore the job, or move the output away to start anew", out.display(), path.display())]
    OutputOccupied {
        /// The job.
        path: PathBuf,
        /// The output.
        out: PathBuf,
    },
    /// SQLite finds the file damaged.
    #[error("{} is damaged; restore it from a copy, or try `sqlite3 {} .recover`", path.display(), path.display())]
    Damaged {
        /// The job.
        path: PathBuf,
        /// What SQLite said.
        #[source]
        source: Option<rusqlite::Error>,
    },
    /// Written by a newer forbear.
    #[error("{} was written by a newer forbear (format {version}); use that one, or a later one", path.display())]
    TooNew {
        /// The job.
        path: PathBuf,
        /// Its format.
        version: i64,
    },
    /// There is no such job.
    #[error("there is no job {}", path.display())]
    NoSuchJob {
        /// The job.
        path: PathBuf,
    },
    /// The job belongs to another output.
    #[error("{} writes to {stored}, not to {given}; give the same -o, or another --job", path.display())]
    OtherOutput {
        /// The job.
        path: PathBuf,
        /// The output it was made with.
        stored: String,
        /// The output asked for.
        given: String,
    },
    /// The output is held by another job.
    #[error("{} is in use by another job", out.display())]
    OutputInUse {
        /// The output.
        out: PathBuf,
    },
    /// The output file is empty or missing though records were acknowledged.
    #[error("{} is empty or missing, though the job {} has put {records} records there; put it back, or move the job away to start anew", out.display(), path.display())]
    OutputGone {
        /// The job.
        path: PathBuf,
        /// The output.
        out: PathBuf,
        /// How many it held.
        records: u64,
    },
    /// The output file was moved, replaced or deleted by somebody while records were written to it.
    #[error("{} was moved or deleted while this run wrote to it; put it back, or move the job away to start anew", out.display())]
    OutputTaken {
        /// The output.
        out: PathBuf,
    },
    /// The output file is not the one that the job wrote.
    #[error("{} is not the file that the job {} wrote; put that back, or move both away to start anew", out.display(), path.display())]
    OutputReplaced {
        /// The job.
        path: PathBuf,
        /// The output.
        out: PathBuf,
    },
    /// Something that is not ours follows the last record.
    #[error("{} has lines after byte {offset} that its job did not write; move them elsewhere", out.display())]
    OutputForeign {
        /// The output.
        out: PathBuf,
        /// Where they begin.
        offset: u64,
    },
    /// The lease is over: already answered, or of an older run.
    #[error("this item is no longer leased here")]
    StaleLease,
    /// The record is not one line.
    #[error("a record must be one line")]
    NotALine,
    /// Whoever read the output has closed it.
    #[error("the output was closed by its reader")]
    OutputClosed,
    /// The job was closed.
    #[error("the job is closed")]
    Closed,
    /// A file could not be read or written.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The database refused.
    #[error("cannot use the job's database {}", path.display())]
    Database {
        /// The job.
        path: PathBuf,
        /// Why.
        #[source]
        source: rusqlite::Error,
    },
    /// The queue's address is none that is known.
    #[error("{} is no address of a queue: give a file, or postgres://USER@HOST:PORT/DATABASE", at.display())]
    Address {
        /// The job.
        at: PathBuf,
    },
    /// The server of the queue does not answer, or does not let us in.
    #[error("cannot reach {} ({host}){}", at.display(), Remedy(source))]
    Unreachable {
        /// The job.
        at: PathBuf,
        /// Host and port.
        host: String,
        /// Why.
        #[source]
        source: tokio_postgres::Error,
    },
    /// The server of the queue refused.
    #[error("cannot use {}{}", at.display(), Remedy(source))]
    Postgres {
        /// The job.
        at: PathBuf,
        /// Why.
        #[source]
        source: tokio_postgres::Error,
    },
    /// There is no key to seal requests with.
    #[error(
        "a queue in PostgreSQL needs FORBEAR_KEY, with which requests are sealed: make one by `openssl rand -base64 32`, and give the same to each process"
    )]
    NoKey,
    /// The key has another form.
    #[error("FORBEAR_KEY must be 32 bytes, as base64 or hexadecimal: make one by `openssl rand -base64 32`")]
    KeyForm,
    /// The cryptography refused.
    #[error("the system gives no randomness, so nothing can be sealed")]
    Key,
    /// The job was made with another key.
    #[error("{} was made with another FORBEAR_KEY", at.display())]
    OtherKey {
        /// The job.
        at: PathBuf,
    },
    /// A sealed request does not open.
    #[error("{} is damaged: the request of item {item} does not open", at.display())]
    Sealed {
        /// The job.
        at: PathBuf,
        /// Its number.
        item: u64,
    },
    /// The output has something in it, and no process of this job has written it.
    #[error("{} is not empty, and {} did not write it; give another -o", out.display(), at.display())]
    OutputOfNobody {
        /// The job.
        at: PathBuf,
        /// The output.
        out: PathBuf,
    },
    /// Another process imports.
    #[error("another process reads the input of this job")]
    NotTheImporter,
    /// The job stopped earlier for this reason.
    #[error(transparent)]
    Stopped(Arc<QueueError>),
}

impl QueueError {
    /// Whether the database of the queue cannot be reached.
    #[must_use]
    pub fn is_unreachable(&self) -> bool {
        match self {
            QueueError::Unreachable { .. } => true,
            QueueError::Stopped(inner) => inner.is_unreachable(),
            _ => false,
        }
    }

    /// Whether the process is not at fault but the disk is full (or a size limit is reached).
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        match self {
            QueueError::Io { source, .. } => is_full(source),
            QueueError::Database { source, .. } => {
                matches!(source.sqlite_error_code(), Some(rusqlite::ErrorCode::DiskFull))
            }
            QueueError::Stopped(inner) => inner.is_disk_full(),
            _ => false,
        }
    }
}

/// Out of space, over quota, or over the size that this process may write.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

/// What to do about it, where that can be said.
struct Remedy<'a>(&'a tokio_postgres::Error);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match remedy(self.0) {
            Some(words) => write!(f, "; {words}"),
            None => Ok(()),
        }
    }
}

struct Owner(Option<u32>);

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process {pid}"),
            None => f.write_str("another process"),
        }
    }
}

/// Something that happened to the job and that somebody should be told.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The job file was empty, and so was the output: nothing is lost, and it starts anew.
    StartedOverEmpty {
        /// The job.
        path: PathBuf,
    },
    /// The last record had lost its newline; it has it again.
    NewlineRestored {
        /// The output.
        out: PathBuf,
    },
    /// Records after the last acknowledged one were whole and known: kept, not to be fetched again.
    TailKept {
        /// The output.
        out: PathBuf,
        /// How many.
        records: u64,
    },
    /// A torn end was cut off.
    TailCut {
        /// The output.
        out: PathBuf,
        /// How many bytes.
        bytes: u64,
    },
    /// The output had been shortened: these records are gone, and their items pending again.
    RecordsLost {
        /// The output.
        out: PathBuf,
        /// How many.
        items: u64,
    },
    /// No space. Nothing is lost; it is tried again until there is some.
    DiskFull {
        /// The file that could not grow.
        path: PathBuf,
    },
    /// There is space again.
    DiskHasRoom {
        /// The file.
        path: PathBuf,
    },
    /// A body could not be made durable, so its item is pending again.
    BodyLost {
        /// The body's file.
        path: PathBuf,
    },
    /// The server of the queue is gone. Nothing is lost; it is tried again until it is there.
    QueueLost {
        /// The job.
        at: PathBuf,
    },
    /// The server of the queue is there again.
    QueueBack {
        /// The job.
        at: PathBuf,
    },
    /// This process was not heard of for the length of a lease, and others have its items.
    LeasesLost {
        /// How many.
        items: u64,
    },
    /// The job cannot go on. What was not acknowledged stays pending.
    Stopped {
        /// Why, in words.
        why: String,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::StartedOverEmpty { path } => {
                write!(f, "{} was empty, and nothing had been written: starting anew", path.display())
            }
            Event::NewlineRestored { out } => {
                write!(f, "{}: the last record had lost its newline; restored", out.display())
            }
            Event::TailKept { out, records } => {
                write!(f, "{}: kept {records} records written just before the last run ended", out.display())
            }
            Event::TailCut { out, bytes } => write!(f, "{}: cut {bytes} bytes of a torn end", out.display()),
            Event::RecordsLost { out, items } => {
                write!(
                    f,
                    "{} was shortened: {items} records are gone, their items will be done again",
                    out.display()
                )
            }
            Event::DiskFull { path } => {
                write!(f, "no space left for {}; waiting for some, nothing is lost", path.display())
            }
            Event::DiskHasRoom { path } => write!(f, "there is space for {} again", path.display()),
            Event::BodyLost { path } => {
                write!(f, "{} could not be saved; its item will be done again", path.display())
            }
            Event::QueueLost { at } => {
                write!(f, "{} cannot be reached; waiting for it, nothing is lost", at.display())
            }
            Event::QueueBack { at } => write!(f, "{} is there again", at.display()),
            Event::LeasesLost { items } => {
                write!(
                    f,
                    "this process was silent for too long: {items} items in its hands were given to others"
                )
            }
            Event::Stopped { why } => write!(f, "the job cannot go on: {why}"),
        }
    }
}

/// Where events go. Called from the job's own thread: it must be quick.
pub type Events = Arc<dyn Fn(Event) + Send + Sync>;
