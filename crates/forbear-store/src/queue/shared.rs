//! What the callers and the writer share: the inbox, the leases, and where each lane's reading stands.
//!
//! Two locks, always taken in this order: `reader` (the connection that pages are read from), then `inner`. Whoever
//! claims holds `reader` from its look at the lane's cursor until the items are marked as held; the writer takes it
//! after a commit before it forgets items. So an item is never read from before a commit and claimed after it.

use std::{collections::VecDeque, path::PathBuf, sync::Arc};

use forbear_core::time::Timestamp;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, OpenFlags, params};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::{
    error::QueueError,
    exits::ExitRow,
    gates::{self, GateRecord},
    input::InputIdentity,
    item::{Batch, Counters, Extras, Finish, Item, Lane, LaneId, Lease, Request, Seq, Until},
    schema::{self, Tally, micros, timestamp},
};

pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) run: u64,
    pub(crate) reader: Mutex<Reader>,
    pub(crate) inner: Mutex<Inner>,
    /// Something for the writer.
    pub(crate) wake: Condvar,
    /// Room for an importer.
    pub(crate) room: Condvar,
    /// Memory that finished items may take until they are durable, in units of a KiB.
    pub(crate) capacity: Arc<Semaphore>,
    /// Items that became claimable, in total.
    pub(crate) arrivals: watch::Sender<u64>,
    /// Whether the writer has left and everything is closed.
    pub(crate) left: watch::Sender<bool>,
}

/// One thing for the writer to make durable.
pub(crate) enum Command {
    Import(Batch),
    /// The room that its record takes is given back when the command is dropped, which is after the commit.
    Finish {
        finish: Finish,
        _room: OwnedSemaphorePermit,
    },
    Park {
        seq: Seq,
        until: Until,
        reason: String,
        counters: Counters,
    },
    Progress {
        seq: Seq,
        counters: Counters,
    },
    Wake {
        now: Timestamp,
        limit: usize,
        reply: oneshot::Sender<Woken>,
    },
    Credentials {
        account: String,
        reply: oneshot::Sender<u64>,
    },
    Input(InputIdentity),
    /// What is new of each exit.
    Exits(Vec<ExitRow>),
    Flush(oneshot::Sender<()>),
}

/// Items that were parked and are pending now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Woken {
    /// How many.
    pub items: u64,
    /// Their lanes, each once.
    pub lanes: Vec<LaneId>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) inbox: Vec<Command>,
    pub(crate) imports: usize,
    /// Coalesced: only the last state of a gate is worth writing. `None` deletes.
    pub(crate) gates: HashMap<String, Option<GateRecord>>,
    /// The writer sleeps until it is woken; else it looks again by itself soon.
    pub(crate) idle: bool,
    /// Do not wait for a fuller group.
    pub(crate) urgent: bool,
    pub(crate) closing: bool,
    /// The writer has left; with the reason unless it was asked to.
    pub(crate) gone: bool,
    pub(crate) dead: Option<Arc<QueueError>>,
    pub(crate) held: HashMap<Seq, Held>,
    pub(crate) lanes: HashMap<LaneId, LaneState>,
    /// Claimed since the last commit: to be shown as leased if they still are at the next.
    pub(crate) fresh: Vec<Seq>,
    /// Released since: no longer to be shown.
    pub(crate) unlease: Vec<Seq>,
    /// As of the last commit.
    pub(crate) tally: Tally,
    /// Items out or ending.
    pub(crate) leased: u64,
    pub(crate) soonest: Option<Timestamp>,
    pub(crate) last_token: u64,
}

/// An item that must not be claimed from the table: it is out, or its end is not durable yet.
pub(crate) struct Held {
    pub(crate) lane: LaneId,
    pub(crate) rank: i64,
    pub(crate) token: u64,
    pub(crate) phase: Phase,
    /// Its row in `leased` is written.
    pub(crate) shown: bool,
    /// It has a row in `progress`.
    pub(crate) has_progress: bool,
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Somebody works on it.
    Out,
    /// Its end or parking is on the way to disk.
    Ending,
    /// Given back, kept in memory for the next claim.
    Returned,
}

/// Kept only while the lane has held items: without any, the table says all.
#[derive(Default)]
pub(crate) struct LaneState {
    /// Rank and line up to which the lane was read.
    pub(crate) cursor: Option<(i64, Seq)>,
    /// Entries in `held`.
    pub(crate) held: u64,
    /// Of these, returned ones.
    pub(crate) returned: VecDeque<Item>,
}

impl Inner {
    /// Why nothing more can be done, if so.
    pub(crate) fn refuse(&self) -> Result<(), QueueError> {
        match &self.dead {
            Some(why) => Err(QueueError::Stopped(Arc::clone(why))),
            None if self.closing || self.gone => Err(QueueError::Closed),
            None => Ok(()),
        }
    }

    /// The held item of a lease that is still good.
    pub(crate) fn leased(&mut self, run: u64, lease: Lease) -> Result<&mut Held, QueueError> {
        match self.held.get_mut(&lease.seq) {
            Some(held) if lease.run == run && held.token == lease.token && held.phase == Phase::Out => {
                Ok(held)
            }
            _ => Err(QueueError::StaleLease),
        }
    }

    /// Marks `item` as out and gives it a new lease.
    fn lease(&mut self, run: u64, item: &mut Item, has_progress: bool) {
        self.last_token += 1;
        item.lease = Lease { seq: item.lease.seq, run, token: self.last_token };
        self.leased += 1;
        self.fresh.push(item.lease.seq);
        match self.held.get_mut(&item.lease.seq) {
            Some(held) => {
                held.token = self.last_token;
                held.phase = Phase::Out;
            }
            None => {
                let token = self.last_token;
                let (lane, rank) = (item.lane, rank(&item.request));
                self.held.insert(
                    item.lease.seq,
                    Held { lane, rank, token, phase: Phase::Out, shown: false, has_progress },
                );
                self.lanes.entry(lane).or_default().held += 1;
            }
        }
    }

    /// Takes an item back into memory.
    pub(crate) fn give_back(&mut self, item: Item) {
        let Some(held) = self.held.get_mut(&item.lease.seq) else { return };
        held.phase = Phase::Returned;
        self.leased -= 1;
        if std::mem::take(&mut held.shown) {
            self.unlease.push(item.lease.seq);
        }
        self.lanes.entry(held.lane).or_default().returned.push_back(item);
    }

    /// Forgets an item whose end or parking is durable.
    pub(crate) fn forget(&mut self, seq: Seq) {
        let Some(held) = self.held.remove(&seq) else { return };
        self.leased -= 1;
        if let Some(lane) = self.lanes.get_mut(&held.lane) {
            lane.held -= 1;
            if lane.held == 0 {
                self.lanes.remove(&held.lane);
            }
        }
    }

    /// New items stand in `lane` from `first` on: its reading must not be past them.
    pub(crate) fn lower_cursor(&mut self, lane: LaneId, rank: i64, seq: Seq) {
        if let Some(state) = self.lanes.get_mut(&lane)
            && state.cursor.is_some_and(|cursor| cursor >= (rank, seq))
        {
            // One before it: the order is (rank, line), and lines are unique.
            state.cursor = Some((rank, Seq(seq.0.saturating_sub(1))));
        }
    }
}

impl Shared {
    /// Claims up to `max` items of a lane.
    pub(crate) fn claim(&self, lane: LaneId, max: usize) -> Result<Vec<Item>, QueueError> {
        let mut claimed = Vec::new();
        let mut reader = self.reader.lock();
        let mut cursor = {
            let mut inner = self.inner.lock();
            inner.refuse()?;
            while claimed.len() < max {
                let Some(mut item) = inner.lanes.get_mut(&lane).and_then(|l| l.returned.pop_front()) else {
                    break;
                };
                inner.lease(self.run, &mut item, true);
                claimed.push(item);
            }
            inner.lanes.get(&lane).and_then(|l| l.cursor)
        };
        while claimed.len() < max {
            let page = reader.page(&self.path, self.run, lane, cursor, max - claimed.len())?;
            let Some(last) = page.last() else { break };
            cursor = Some((last.rank, last.item.lease.seq));
            let mut inner = self.inner.lock();
            for mut row in page {
                if !inner.held.contains_key(&row.item.lease.seq) {
                    inner.lease(self.run, &mut row.item, row.has_progress);
                    claimed.push(row.item);
                }
            }
            if let Some(state) = inner.lanes.get_mut(&lane) {
                state.cursor = cursor;
            }
        }
        if !claimed.is_empty() {
            self.leases_changed(&mut self.inner.lock());
        }
        Ok(claimed)
    }

    /// Lanes after `after` that have something to claim.
    pub(crate) fn ready_lanes(&self, after: Option<LaneId>, limit: usize) -> Result<Vec<Lane>, QueueError> {
        let mut lanes = Vec::new();
        let mut at = after.map_or(i64::MIN, |lane| lane.0);
        let reader = self.reader.lock();
        self.inner.lock().refuse()?;
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        let error = |source| schema::classify(&self.path, source);
        // One read transaction for the page: beginning one costs more than a seek.
        let page = db.unchecked_transaction().map_err(error)?;
        while lanes.len() < limit {
            let Some(row) = next_lane(&page, at).map_err(error)? else { break };
            let lane = self.claimable(row);
            at = lane.id.0;
            if lane.pending > 0 {
                lanes.push(lane);
            }
        }
        page.commit().map_err(error)?;
        Ok(lanes)
    }

    pub(crate) fn lane(&self, id: LaneId) -> Result<Option<Lane>, QueueError> {
        let reader = self.reader.lock();
        self.inner.lock().refuse()?;
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        let row = lane(db, id).map_err(|source| schema::classify(&self.path, source))?;
        Ok(row.map(|row| self.claimable(row)))
    }

    /// A lane of the table, less what is in hand.
    fn claimable(&self, (id, key, waiting): (LaneId, String, u64)) -> Lane {
        let out = self.inner.lock().lanes.get(&id).map_or(0, |l| l.held - l.returned.len() as u64);
        Lane { id, key: key.into(), pending: waiting.saturating_sub(out) }
    }

    pub(crate) fn load_gate(&self, key: &str) -> Result<Option<GateRecord>, QueueError> {
        let reader = self.reader.lock();
        {
            let inner = self.inner.lock();
            inner.refuse()?;
            if let Some(gate) = inner.gates.get(key) {
                return Ok(gate.clone());
            }
        }
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        gates::load(db, key).map_err(|source| schema::classify(&self.path, source))
    }

    pub(crate) fn load_gates(&self, after: &str, limit: usize) -> Result<Vec<GateRecord>, QueueError> {
        let reader = self.reader.lock();
        self.inner.lock().refuse()?;
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        gates::page(db, after, limit).map_err(|source| schema::classify(&self.path, source))
    }

    /// Blocks an importer until its batch may queue: one being written and one waiting are enough to keep both busy.
    pub(crate) fn import(&self, batch: Batch) -> Result<(), QueueError> {
        let mut inner = self.inner.lock();
        inner.refuse()?;
        while inner.imports >= 2 {
            self.room.wait(&mut inner);
            inner.refuse()?;
        }
        inner.imports += 1;
        inner.inbox.push(Command::Import(batch));
        self.wake.notify_one();
        Ok(())
    }

    /// Hands the writer a command. `urgent` ones do not wait for company.
    pub(crate) fn send(&self, command: Command, urgent: bool) -> Result<(), QueueError> {
        let mut inner = self.inner.lock();
        inner.refuse()?;
        self.push(&mut inner, command, urgent);
        Ok(())
    }

    /// Leases are to be shown, but that is worth no hurry: a writer that is busy or has an eye open will see them.
    pub(crate) fn leases_changed(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.idle) {
            self.wake.notify_one();
        }
    }

    pub(crate) fn push(&self, inner: &mut Inner, command: Command, urgent: bool) {
        // A writer that gathers a group has its own deadline: only the first command, or a hurry, need wake it.
        if inner.inbox.is_empty() || urgent {
            self.wake.notify_one();
        }
        inner.inbox.push(command);
        inner.urgent |= urgent;
    }
}

/// The connection that pages are read from. Readers and the writer do not wait for each other in WAL mode.
pub(crate) struct Reader {
    /// `None` once the job is closed.
    db: Option<Connection>,
}

struct Row {
    rank: i64,
    has_progress: bool,
    item: Item,
}

/// Its pages are few and hot: the indexes' upper levels and one leaf for each lane in use.
const READER_CACHE_KIB: u32 = 4096;

impl Reader {
    pub(crate) fn open(path: &std::path::Path) -> Result<Reader, QueueError> {
        let open = || {
            let db = Connection::open_with_flags(
                path,
                OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX,
            )?;
            schema::tune(&db, READER_CACHE_KIB)?;
            Ok(Reader { db: Some(db) })
        };
        open().map_err(|source| schema::classify(path, source))
    }

    pub(crate) fn close(&mut self) {
        self.db = None;
    }

    fn page(
        &mut self,
        path: &std::path::Path,
        run: u64,
        lane: LaneId,
        cursor: Option<(i64, Seq)>,
        limit: usize,
    ) -> Result<Vec<Row>, QueueError> {
        let (rank, seq) = cursor.map_or((i64::MIN, 0), |(rank, seq)| (rank, seq.0.cast_signed()));
        let db = |source| schema::classify(path, source);
        let Some(open) = &self.db else { return Err(QueueError::Closed) };
        let mut statement = open
            .prepare_cached(
                "SELECT w.rank, w.seq, i.url, i.id, i.extras, i.body,
                   p.attempts, p.refusals, p.run, p.limited, p.waited_us, p.started, p.error
                 FROM waiting w CROSS JOIN items i ON i.seq = w.seq LEFT JOIN progress p ON p.seq = w.seq
                 WHERE w.lane = ?1 AND (w.rank, w.seq) > (?2, ?3) ORDER BY w.rank, w.seq LIMIT ?4",
            )
            .map_err(db)?;
        let mut rows = statement.query(params![lane.0, rank, seq, limit.min(1024) as i64]).map_err(db)?;
        let mut page = Vec::new();
        while let Some(row) = rows.next().map_err(db)? {
            let read = || -> rusqlite::Result<Option<Row>> {
                let url: String = row.get(2)?;
                let extras = row.get_ref(4)?.as_str_or_null()?;
                let Ok(request) = Extras::decode(url, extras, row.get(5)?) else { return Ok(None) };
                let (counters, has_progress) = read_counters(row, 6, run)?;
                let seq = Seq(row.get::<_, i64>(1)?.cast_unsigned());
                let lease = Lease { seq, run: 0, token: 0 };
                Ok(Some(Row {
                    rank: row.get(0)?,
                    has_progress,
                    item: Item { lease, lane, id: row.get(3)?, request, counters },
                }))
            };
            match read().map_err(db)? {
                Some(row) => page.push(row),
                None => return Err(QueueError::Damaged { path: path.to_owned(), source: None }),
            }
        }
        Ok(page)
    }
}

/// One seek for each lane, however many items it has.
fn next_lane(db: &Connection, after: i64) -> rusqlite::Result<Option<(LaneId, String, u64)>> {
    one_lane(
        db,
        "SELECT lane, key, pending FROM lanes
         WHERE lane = (SELECT lane FROM waiting WHERE lane > ?1 ORDER BY lane LIMIT 1)",
        after,
    )
}

fn lane(db: &Connection, id: LaneId) -> rusqlite::Result<Option<(LaneId, String, u64)>> {
    one_lane(db, "SELECT lane, key, pending FROM lanes WHERE lane = ?1", id.0)
}

fn one_lane(db: &Connection, sql: &str, number: i64) -> rusqlite::Result<Option<(LaneId, String, u64)>> {
    let mut statement = db.prepare_cached(sql)?;
    let mut rows = statement.query([number])?;
    let Some(row) = rows.next()? else { return Ok(None) };
    Ok(Some((LaneId(row.get(0)?), row.get(1)?, row.get::<_, i64>(2)?.cast_unsigned())))
}

/// Counters from seven columns beginning at `at`, and whether there were any.
pub(crate) fn read_counters(
    row: &rusqlite::Row<'_>,
    at: usize,
    run: u64,
) -> rusqlite::Result<(Counters, bool)> {
    let Some(attempts) = row.get::<_, Option<u32>>(at)? else { return Ok((Counters::default(), false)) };
    let same_run = row.get::<_, i64>(at + 2)?.cast_unsigned() == run;
    let counters = Counters {
        attempts,
        refusals: if same_run { row.get(at + 1)? } else { 0 },
        limited: row.get(at + 3)?,
        waited: std::time::Duration::from_micros(row.get::<_, i64>(at + 4)?.cast_unsigned()),
        started_at: row.get::<_, Option<i64>>(at + 5)?.map(timestamp),
        error: row.get(at + 6)?,
    };
    Ok((counters, true))
}

/// Writes counters as of `run`.
pub(crate) fn write_counters(db: &Connection, seq: Seq, run: u64, c: &Counters) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO progress VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?.execute(
        params![
            seq.0.cast_signed(),
            c.attempts,
            c.refusals,
            run.cast_signed(),
            c.limited,
            i64::try_from(c.waited.as_micros()).unwrap_or(i64::MAX),
            c.started_at.map(micros),
            c.error,
        ],
    )?;
    Ok(())
}

/// How a request ranks in its lane: higher priority first.
pub(crate) fn rank(request: &Request) -> i64 {
    -i64::from(request.priority)
}
