//! A job: opened by one run at a time, fed by an importer, emptied by workers.

use std::{
    sync::{Arc, Weak, atomic::AtomicU64},
    time::Duration,
};

use forbear_core::time::Timestamp;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{Semaphore, oneshot, watch};

use super::{
    address::JobAddress,
    error::{Events, QueueError},
    exits::{ExitRow, ToldExits},
    gates::GateRecord,
    input::InputIdentity,
    item::{Batch, Counters, Finish, InputEnd, InputPosition, Item, Lane, LaneId, Lease, Until},
    ledger::{Ledger, Tally},
    output::{Output, OutputTarget},
    pages::Pages,
    postgres,
    shared::{Command, Inner, Phase, Shared, Woken},
    sqlite,
    writer::Writer,
};

/// How a job is opened.
#[derive(Clone, Debug)]
pub struct JobOptions {
    /// Where records go. Part of the job: it cannot be resumed with another one.
    pub output: OutputTarget,
    /// Records that are finished but not durable yet may take this much memory, in KiB, each at least one. Default
    /// 16 MiB: with a commit in 50 ms, enough for 300,000 small records a second. One may always pass, however large.
    pub unsaved_kib_max: u32,
    /// The key by which a job that is made now names accounts; one that is there already keeps its own. Default: a key of
    /// its own.
    pub account_key: Option<[u8; 32]>,
    /// A process that is not heard of for so long loses what it has in hand to others. Of a queue that several processes share
    /// alone. Default 30 s: longer than a server's restart, and no time at all for a job.
    pub lease: Duration,
}

impl JobOptions {
    /// The usual options for `output`.
    #[must_use]
    pub fn new(output: OutputTarget) -> JobOptions {
        JobOptions { output, unsaved_kib_max: 16 << 10, account_key: None, lease: Duration::from_secs(30) }
    }
}

/// How many items stand where, at one moment.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Lines imported, bad ones among them. The sum of all others.
    pub imported: u64,
    /// May be claimed.
    pub pending: u64,
    /// Wait for a time or a condition.
    pub parked: u64,
    /// Claimed, or finished and not durable yet.
    pub leased: u64,
    /// Of these, those in the hands of other processes.
    pub elsewhere: u64,
    /// Done.
    pub done: u64,
    /// Failed, without those of unknown outcome.
    pub failed: u64,
    /// Of unknown outcome.
    pub unknown: u64,
    /// Whether the whole input is in.
    pub input: InputEnd,
}

impl Counts {
    /// Items that have not ended.
    #[must_use]
    pub fn open(&self) -> u64 {
        self.pending + self.parked + self.leased
    }
}

/// What opening a job gives.
pub(crate) struct Opened {
    pub(crate) ledger: Box<dyn Ledger>,
    pub(crate) pages: Pages,
    pub(crate) output: Output,
    pub(crate) tally: Tally,
    pub(crate) run: u64,
    pub(crate) soonest: Option<Timestamp>,
    pub(crate) input: Option<InputIdentity>,
    pub(crate) account_key: [u8; 32],
    /// Begins what goes on beside the work.
    pub(crate) watch: Option<Box<dyn FnOnce(Weak<Shared>) + Send>>,
}

/// A job that this process runs.
///
/// All methods take `&self`; share it in an [`Arc`]. Dropped without [`close`](Job::close) it saves what it was given,
/// in the background.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use forbear_store::queue::*;
/// # let dir = tempfile::tempdir().unwrap();
/// # let (path, out) = (dir.path().join("a.job"), dir.path().join("out.jsonl"));
/// let options = JobOptions::new(OutputTarget::File(out.clone()));
/// let job = Job::open(&path, options, std::sync::Arc::new(|event| eprintln!("{event}")))?;
/// let item = NewItem {
///     seq: Seq(1), id: None, lane: "http://h".into(), request: Request::get("http://h/"), not_before: None,
/// };
/// job.import(Batch {
///     items: vec![item], position: InputPosition { offset: 10, line: 1 }, end: InputEnd::Reached, ..Batch::default()
/// })?;
/// job.flush().await?;
/// for lane in job.ready_lanes(None, 100).await? {
///     for item in job.claim(lane.id, 10).await? {
///         let record = format!(r#"{{"id":{},"outcome":"done"}}"#, item.lease.seq().0);
///         job.finish(Finish {
///             lease: item.lease, ending: Ending::Done, record: record.into(), body: None, counters: item.counters,
///         }).await?;
///     }
/// }
/// assert_eq!(job.close().await?.done, 1);
/// # assert_eq!(std::fs::read_to_string(out).unwrap(), "{\"id\":1,\"outcome\":\"done\"}\n");
/// # Ok::<(), QueueError>(()) }).unwrap();
/// ```
pub struct Job {
    shared: Arc<Shared>,
    account_key: [u8; 32],
    unsaved_kib_max: u32,
    exits: Mutex<ToldExits>,
}

impl Job {
    /// Makes the job at `address`, or resumes it: takes its lock, sets its output right, and makes pending what the last
    /// run had in hand or parked until this one. A file's name is an address.
    ///
    /// A job in a database is joined, where others work on it: then what they have in hand stays theirs.
    ///
    /// Reads and writes files, and may wait for a server; call it where blocking is allowed.
    ///
    /// # Errors
    /// See [`QueueError`]. In doubt nothing is changed, and above all nothing started anew without a word (J4).
    pub fn open(
        address: impl Into<JobAddress>,
        options: JobOptions,
        events: Events,
    ) -> Result<Job, QueueError> {
        let address = address.into();
        let opened = match &address {
            JobAddress::File(path) => sqlite::open::open(path, &options, &*events)?,
            JobAddress::Postgres { queue, name } => postgres::open::open(queue, name, &options, &events)?,
        };
        let shows_leases = address.file().is_some();
        let inner = Inner { tally: opened.tally, soonest: opened.soonest, shows_leases, ..Inner::default() };
        let shared = Arc::new(Shared {
            path: address.shown(),
            run: AtomicU64::new(opened.run),
            pages: opened.pages,
            input: Mutex::new(opened.input),
            inner: Mutex::new(inner),
            wake: Condvar::new(),
            room: Condvar::new(),
            capacity: Arc::new(Semaphore::new(options.unsaved_kib_max.max(1) as usize)),
            arrivals: watch::Sender::new(0),
            left: watch::Sender::new(false),
        });
        let (output, ledger, tally) = (opened.output, opened.ledger, opened.tally);
        let writer = Writer { ledger, output, shared: Arc::clone(&shared), events, tally };
        std::thread::Builder::new()
            .name("forbear-job".into())
            .spawn(move || writer.run())
            .map_err(|source| QueueError::Io { path: address.shown(), source })?;
        if let Some(watch) = opened.watch {
            watch(Arc::downgrade(&shared));
        }
        let account_key = opened.account_key;
        let (unsaved_kib_max, exits) = (options.unsaved_kib_max.max(1), Mutex::default());
        Ok(Job { shared, account_key, unsaved_kib_max, exits })
    }

    /// The number of this run, from 1. Leases of earlier runs are refused.
    #[must_use]
    pub fn run(&self) -> u64 {
        self.shared.run()
    }

    /// The secret with which credentials become names of accounts (K1): chosen by chance when the job was made, the same
    /// in all its runs, so that a name means the same account after a restart and nothing to anybody else.
    #[must_use]
    pub fn account_key(&self) -> [u8; 32] {
        self.account_key
    }

    // ------------------------------------------------------------------------------------------------- the input

    /// What the job was made from, if that was set before it was opened.
    #[must_use]
    pub fn input(&self) -> Option<InputIdentity> {
        self.shared.input.lock().clone()
    }

    /// Whether this process may read the input into the job. Of several that work on one job one does; ask again later, for
    /// it may end. Where it is granted, [`input`](Job::input) and [`position`](Job::position) are those of this moment.
    ///
    /// Waits for a server where there is one; call it where blocking is allowed.
    ///
    /// # Errors
    /// When the job is closed or has stopped, or its server cannot be reached.
    pub fn may_import(&self) -> Result<bool, QueueError> {
        self.shared.pages.may_import(&self.shared)
    }

    /// Whether other processes may work on the job beside this one.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(self.shared.pages, Pages::Postgres(_))
    }

    /// Whether another process reads the input into the job at this moment, as far as is known.
    #[must_use]
    pub fn is_fed_elsewhere(&self) -> bool {
        self.shared.inner.lock().tally.fed_elsewhere
    }

    /// Sets what the job is made from.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    pub fn set_input(&self, identity: InputIdentity) -> Result<(), QueueError> {
        self.shared.send(Command::Input(identity), false)
    }

    /// Where to read on in the input.
    #[must_use]
    pub fn position(&self) -> InputPosition {
        self.shared.inner.lock().tally.position
    }

    /// Adds a part of the input, with the position behind it.
    ///
    /// *Blocks* while two batches wait already: for a thread that does nothing but import.
    ///
    /// # Errors
    /// When the job is closed or has stopped, or a bad line's record is not one line.
    pub fn import(&self, mut batch: Batch) -> Result<(), QueueError> {
        for bad in &mut batch.bad {
            end_line(&mut bad.record)?;
        }
        self.shared.import(batch)
    }

    // ------------------------------------------------------------------------------------------------- the work

    /// Lanes that have items to claim, by ascending number, from the one after `after`. Fewer than `limit` are the
    /// last; begin again at the first for those that got items since.
    ///
    /// # Errors
    /// When the job is closed or has stopped, or its file is damaged.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn ready_lanes(&self, after: Option<LaneId>, limit: usize) -> Result<Vec<Lane>, QueueError> {
        self.shared.pages.ready_lanes(&self.shared, after, limit).await
    }

    /// The lane of this number, also while it has nothing to claim: for one that [`wake_due`](Job::wake_due) named.
    ///
    /// # Errors
    /// When the job is closed or has stopped, or its file is damaged.
    ///
    /// # Cancel safety
    /// Changes nothing.
    pub async fn lane(&self, id: LaneId) -> Result<Option<Lane>, QueueError> {
        self.shared.pages.lane(&self.shared, id).await
    }

    /// Takes up to `max` items of a lane: those given back first, then by priority and line. Never waits for a sync;
    /// a page is read in tens of microseconds.
    ///
    /// # Errors
    /// When the job is closed or has stopped, or its file is damaged.
    ///
    /// # Cancel safety
    /// It does not yield: polled once, it is done.
    pub async fn claim(&self, lane: LaneId, max: usize) -> Result<Vec<Item>, QueueError> {
        self.shared.pages.claim(&self.shared, lane, max).await
    }

    /// Whether a lease is of this run, so that its item is worth a request: a process that was silent for too long has lost
    /// all of them to others.
    #[must_use]
    pub fn is_current(&self, lease: Lease) -> bool {
        lease.run == self.shared.run()
    }

    /// Ends an item. It is leased until its record is durable, within about 50 ms.
    ///
    /// Waits while too much is unsaved (see [`JobOptions::unsaved_kib_max`]), so also while the disk is full.
    ///
    /// # Errors
    /// [`QueueError::StaleLease`] if the lease is not good any more: the result must be dropped.
    /// [`QueueError::NotALine`] if the record has a line break within; the lease stays good.
    /// Else when the job is closed or has stopped.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing was handed over, and the lease is still good.
    pub async fn finish(&self, mut finish: Finish) -> Result<(), QueueError> {
        end_line(&mut finish.record)?;
        let kib = u32::try_from(finish.record.len() / 1024 + 1).unwrap_or(u32::MAX).min(self.unsaved_kib_max);
        let room = Arc::clone(&self.shared.capacity).acquire_many_owned(kib).await;
        let mut inner = self.shared.inner.lock();
        inner.refuse()?;
        let room = room.map_err(|_| QueueError::Closed)?;
        inner.leased(self.shared.run(), finish.lease)?.phase = Phase::Ending;
        self.shared.push(&mut inner, Command::Finish { finish, _room: room }, false);
        Ok(())
    }

    /// Puts an item back until a time or a condition, with the reason in words.
    ///
    /// # Errors
    /// [`QueueError::StaleLease`] if the lease is not good any more. Else when the job is closed or has stopped.
    pub fn park(
        &self,
        lease: Lease,
        until: Until,
        reason: impl Into<String>,
        counters: Counters,
    ) -> Result<(), QueueError> {
        let mut inner = self.shared.inner.lock();
        inner.refuse()?;
        inner.leased(self.shared.run(), lease)?.phase = Phase::Ending;
        if let Until::Time(at) = until {
            inner.soonest = Some(inner.soonest.map_or(at, |soonest| soonest.min(at)));
        }
        let command = Command::Park { seq: lease.seq, until, reason: reason.into(), counters };
        self.shared.push(&mut inner, command, false);
        Ok(())
    }

    /// Gives an item back as it is, counters included: it may be claimed at once.
    ///
    /// # Errors
    /// [`QueueError::StaleLease`] if the lease is not good any more. Else when the job is closed or has stopped.
    pub fn release(&self, item: Item) -> Result<(), QueueError> {
        let mut inner = self.shared.inner.lock();
        inner.refuse()?;
        let held = inner.leased(self.shared.run(), item.lease)?;
        if item.counters != Counters::default() {
            held.has_progress = true;
            let command = Command::Progress { seq: item.lease.seq, counters: item.counters.clone() };
            self.shared.push(&mut inner, command, false);
        }
        inner.give_back(item);
        self.shared.leases_changed(&mut inner);
        Ok(())
    }

    /// When the first of the items that are parked until a time is due (wall clock).
    #[must_use]
    pub fn next_due(&self) -> Option<Timestamp> {
        self.shared.inner.lock().soonest
    }

    /// Makes up to `limit` items pending whose time has come. Call it again while it gives `limit`.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the items may be pending all the same.
    pub async fn wake_due(&self, now: Timestamp, limit: usize) -> Result<Woken, QueueError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Command::Wake { now, limit, reply }, true)?;
        answer.await.map_err(|_| self.stopped())
    }

    /// Makes items pending that were parked until `account` had other credentials. Gives their number.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the items may be pending all the same.
    pub async fn credentials_changed(&self, account: impl Into<String>) -> Result<u64, QueueError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Command::Credentials { account: account.into(), reply }, true)?;
        answer.await.map_err(|_| self.stopped())
    }

    /// Changes whenever items became claimable other than by [`release`](Job::release): their number in this run.
    #[must_use]
    pub fn arrivals(&self) -> watch::Receiver<u64> {
        self.shared.arrivals.subscribe()
    }

    /// How many items stand where: one moment, so their sum never misses one on the move.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let inner = self.shared.inner.lock();
        let t = &inner.tally;
        // Of several processes each sees the others as they were a moment ago; the sum is right all the same (J5).
        let open = t.pending + t.elsewhere;
        let own = inner.leased.min(open);
        let elsewhere = t.elsewhere.min(open - own);
        Counts {
            imported: t.imported,
            pending: open - own - elsewhere,
            parked: t.parked,
            leased: own + elsewhere,
            elsewhere,
            done: t.done,
            failed: t.failed,
            unknown: t.unknown,
            input: t.end,
        }
    }

    // ------------------------------------------------------------------------------------------------- gates

    /// Saves a gate's state at once: for a pause or its end (P8). Not for each request's pace.
    ///
    /// Several of one key before a commit are one write.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    pub fn save_gate(&self, gate: GateRecord) -> Result<(), QueueError> {
        self.set_gate(gate.key.clone(), Some(gate), true)
    }

    /// Saves a gate's state with the next group that is written anyway: for what was learned (L5).
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    pub fn save_gate_soon(&self, gate: GateRecord) -> Result<(), QueueError> {
        self.set_gate(gate.key.clone(), Some(gate), false)
    }

    /// Forgets a gate.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    pub fn delete_gate(&self, key: &str) -> Result<(), QueueError> {
        self.set_gate(key.to_owned(), None, false)
    }

    /// The gate of this key. One that is being written at this moment may still be seen as it was before.
    ///
    /// # Errors
    /// When the job is closed or has stopped, or its file is damaged.
    pub fn load_gate(&self, key: &str) -> Result<Option<GateRecord>, QueueError> {
        self.shared.pages.load_gate(&self.shared, key)
    }

    /// Up to `limit` saved gates with a key after `after` (`""` for the first).
    ///
    /// # Errors
    /// When the job is closed or has stopped, or its file is damaged.
    pub fn load_gates(&self, after: &str, limit: usize) -> Result<Vec<GateRecord>, QueueError> {
        self.shared.pages.load_gates(&self.shared, after, limit)
    }

    fn set_gate(&self, key: String, gate: Option<GateRecord>, urgent: bool) -> Result<(), QueueError> {
        let mut inner = self.shared.inner.lock();
        inner.refuse()?;
        let gates: &mut HashMap<_, _> = &mut inner.gates;
        gates.insert(key, gate);
        inner.urgent |= urgent;
        self.shared.wake.notify_one();
        Ok(())
    }

    // ------------------------------------------------------------------------------------------------- exits

    /// Saves what this run has counted of its exits since it began, with the next group that is written anyway. The job
    /// has the sum of all runs, by name, and the last state; see [`JobFile::exits`](super::inspect::JobFile::exits).
    ///
    /// Cheap to call again: only what has changed is written. Names must differ. Of more than 100,000 exits the first
    /// are kept.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    pub fn save_exits(&self, rows: Vec<ExitRow>) -> Result<(), QueueError> {
        // Held until it is handed over: of two callers, the second sees what the first has told.
        let mut told = self.exits.lock();
        let changes = told.changes(rows);
        if changes.is_empty() {
            return Ok(());
        }
        self.shared.send(Command::Exits(changes), false)
    }

    // ------------------------------------------------------------------------------------------------- the end

    /// Waits until all that was handed over before is durable.
    ///
    /// # Errors
    /// When the job is closed or has stopped.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, it is written all the same.
    pub async fn flush(&self) -> Result<(), QueueError> {
        let (reply, answer) = oneshot::channel();
        self.shared.send(Command::Flush(reply), true)?;
        answer.await.map_err(|_| self.stopped())
    }

    /// Saves everything, gives the lock back and leaves one tidy file. What is still leased is pending for the next run.
    ///
    /// With a full disk it tries once more and then says so; with an output that nobody reads it waits: bound it by a
    /// time-out, for leaving now is as safe as a crash (J6).
    ///
    /// # Errors
    /// Why something could not be saved. What was not acknowledged is pending for the next run.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the job closes all the same.
    pub async fn close(&self) -> Result<Counts, QueueError> {
        self.ask_to_leave();
        let mut left = self.shared.left.subscribe();
        // The sender lives in `shared`, so this cannot fail.
        let _ = left.wait_for(|left| *left).await;
        let mut counts = self.counts();
        counts.pending += counts.leased - counts.elsewhere;
        counts.leased = counts.elsewhere;
        match &self.shared.inner.lock().dead {
            Some(why) => Err(QueueError::Stopped(Arc::clone(why))),
            None => Ok(counts),
        }
    }

    fn ask_to_leave(&self) {
        self.shared.inner.lock().closing = true;
        self.shared.wake.notify_all();
    }

    fn stopped(&self) -> QueueError {
        self.shared.inner.lock().refuse().err().unwrap_or(QueueError::Closed)
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.ask_to_leave();
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Job")
            .field("path", &self.shared.path)
            .field("run", &self.shared.run())
            .finish_non_exhaustive()
    }
}

/// Makes `record` end in its one newline.
fn end_line(record: &mut Vec<u8>) -> Result<(), QueueError> {
    if record.last() != Some(&b'\n') {
        record.push(b'\n');
    }
    if record[..record.len() - 1].contains(&b'\n') { Err(QueueError::NotALine) } else { Ok(()) }
}
