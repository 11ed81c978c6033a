//! What a database does for a job: keeps where each item stands, and answers those who write and set right. What is the
//! same for all of them is in the writer and in the recovery, and knows no SQL.

use forbear_core::time::Timestamp;

use super::{
    error::QueueError,
    group::Group,
    item::{Ending, InputEnd, InputPosition, LaneId, Seq},
    output::{hash, hash_more},
};

/// How many items stand where, and how far input and output have come. Written with every commit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Tally {
    pub(crate) run: u64,
    pub(crate) imported: u64,
    /// Neither parked nor ended, those in this process's hands among them.
    pub(crate) pending: u64,
    /// In the hands of other processes.
    pub(crate) elsewhere: u64,
    pub(crate) parked: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) unknown: u64,
    pub(crate) out: OutputEnd,
    pub(crate) position: InputPosition,
    pub(crate) end: InputEnd,
    /// Another process reads the input.
    pub(crate) fed_elsewhere: bool,
}

/// Where an output ends as far as it is acknowledged.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct OutputEnd {
    pub(crate) at: u64,
    /// Length and hash of the last record before it, to know the file again.
    pub(crate) last_len: u64,
    pub(crate) last_hash: u64,
}

impl OutputEnd {
    /// Behind `record`, which ends at `at`.
    pub(crate) fn after(record: &[u8], at: u64) -> OutputEnd {
        OutputEnd { at, last_len: record.len() as u64, last_hash: hash(record) }
    }

    /// Whether these bytes, with `end` behind them, are the last record.
    pub(crate) fn is_after(&self, bytes: &[u8], end: &[u8]) -> bool {
        hash_more(hash(bytes), end) == self.last_hash
    }
}

/// Where an item stood that is to be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    pub(crate) seq: Seq,
    pub(crate) lane: LaneId,
    pub(crate) rank: i64,
    /// Of the lease under which it is moved; 0 where there is none.
    pub(crate) token: u64,
}

/// The writer's side of a database. Called by the writer's thread alone; it may block.
pub(crate) trait Ledger: Send {
    /// Called before a group's records are written: whether what this process has in hand is still its own. It stays so until
    /// the commit.
    fn begin(&mut self) -> Result<Standing, QueueError> {
        Ok(Standing::Good)
    }

    /// Makes durable what a record must not be older than.
    fn before_records(&mut self) -> Result<(), QueueError>;

    /// Writes a group whose records are durable in the output, the first of them at `start` where the output has places,
    /// and says how many items stand where. It may be tried again after an error.
    fn commit(&mut self, group: &mut Group, start: Option<u64>) -> Result<Tally, QueueError>;

    /// Whether a group may be tried again after this error, the `tries`th.
    fn worth_another_try(&self, error: &QueueError, tries: u32) -> bool;

    /// When the first of the items that are parked until a time is due.
    fn soonest(&mut self) -> Option<Timestamp>;

    /// The run is over: tidily, or it could not go on.
    fn leave(self: Box<Self>, tidily: bool);
}

/// How a process stands when it is about to write.
#[derive(Debug)]
pub(crate) enum Standing {
    /// Its leases are good.
    Good,
    /// The group is committed already: the answer of the last try was lost, not the commit.
    Committed(Tally),
    /// It was not heard of for too long. Others have its items; new leases carry this number.
    Lost {
        /// For [`Shared::run`](super::shared::Shared::run).
        run: u64,
    },
}

/// What a database tells and is told while an output is set right.
pub(crate) trait Acknowledged {
    /// Where the output ends.
    fn end(&self) -> OutputEnd;
    /// It ends there now.
    fn set_end(&mut self, end: OutputEnd);
    /// The last line whose import is committed.
    fn last_line(&self) -> u64;
    /// How many records the output should have.
    fn records(&mut self) -> Result<u64, QueueError>;
    /// The last record that lies within the first `limit` bytes.
    fn last_within(&mut self, limit: u64) -> Result<Option<Acked>, QueueError>;
    /// Records that lie behind `limit`: of items, and of lines that are none.
    fn behind(&mut self, limit: u64) -> Result<Behind, QueueError>;
    /// Makes ended items pending again.
    fn reopen(&mut self, items: &[(Place, Ending)]) -> Result<(), QueueError>;
    /// A bad line's record stands elsewhere now.
    fn moved(&mut self, seq: Seq, at: u64, length: u64) -> Result<(), QueueError>;
    /// Whose the records are that were found behind the end.
    fn owners(&mut self, found: &[Found]) -> Result<Vec<Owner>, QueueError>;
    /// Ends an item as its record says.
    fn keep(&mut self, found: &Found, place: Place, parked: bool) -> Result<(), QueueError>;
}

/// A record that was acknowledged.
pub(crate) struct Acked {
    pub(crate) seq: u64,
    pub(crate) id: Option<String>,
    pub(crate) offset: u64,
    pub(crate) length: u64,
}

/// Records that are gone from an output.
#[derive(Default)]
pub(crate) struct Behind {
    pub(crate) items: Vec<(Place, Ending)>,
    /// With their kept records.
    pub(crate) bad: Vec<(Seq, Vec<u8>)>,
}

/// A whole record found after the acknowledged end.
pub(crate) struct Found {
    pub(crate) id: String,
    pub(crate) ending: Ending,
    pub(crate) error: Option<String>,
    pub(crate) at: u64,
    pub(crate) length: u64,
}

/// Whose a found record is.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Owner {
    /// An item that has not ended, and may be parked.
    Open(Place, bool),
    /// An item that somebody else has, or has ended: the record does not count.
    Others,
    /// Nobody's that is known here.
    Nobody,
}

/// How an ending is stored. Zero takes no space in SQLite, and most items end well.
pub(crate) fn ending_code(ending: Ending) -> i64 {
    match ending {
        Ending::Done => 0,
        Ending::Failed => 1,
        Ending::Unknown => 2,
    }
}

pub(crate) fn ending_from(code: i64) -> Ending {
    match code {
        0 => Ending::Done,
        1 => Ending::Failed,
        _ => Ending::Unknown,
    }
}

/// Microseconds as stored: too late to hold is the latest that can be held (H3).
pub(crate) fn micros(at: Timestamp) -> i64 {
    i64::try_from(at.as_micros()).unwrap_or(i64::MAX)
}

/// The same back.
pub(crate) fn timestamp(us: i64) -> Timestamp {
    Timestamp::from_micros(u64::try_from(us).unwrap_or(0))
}
