//! The connection that pages are read from, and claims from it.
//!
//! Two locks, always taken in this order: the reader's, then `inner` of what is shared. Whoever claims holds the reader from
//! its look at the lane's cursor until the items are marked as held; the writer takes it after a commit before it forgets
//! items. So an item is never read from before a commit and claimed after it.

use std::path::{Path, PathBuf};

use parking_lot::{Mutex, MutexGuard};
use rusqlite::{Connection, OpenFlags, params};

use super::{gates, schema};
use crate::queue::{
    error::QueueError,
    gates::GateRecord,
    item::{Counters, Extras, Item, Lane, LaneId, Lease, Seq},
    ledger::{micros, timestamp},
    shared::Shared,
};

/// Pages of a job's file, for those who claim.
pub(crate) struct Pages {
    path: PathBuf,
    reader: Mutex<Reader>,
}

impl Pages {
    pub(crate) fn open(path: &Path) -> Result<Pages, QueueError> {
        Ok(Pages { path: path.to_owned(), reader: Mutex::new(Reader::open(path)?) })
    }

    /// Keeps claims out while it is held.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Reader> {
        self.reader.lock()
    }

    /// Claims up to `max` items of a lane.
    pub(crate) fn claim(&self, shared: &Shared, lane: LaneId, max: usize) -> Result<Vec<Item>, QueueError> {
        let mut claimed = Vec::new();
        let mut reader = self.reader.lock();
        let mut cursor = {
            let mut inner = shared.inner.lock();
            inner.refuse()?;
            while claimed.len() < max {
                let Some(mut item) = inner.lanes.get_mut(&lane).and_then(|l| l.returned.pop_front()) else {
                    break;
                };
                inner.lease(shared.run(), &mut item, true);
                claimed.push(item);
            }
            inner.lanes.get(&lane).and_then(|l| l.cursor)
        };
        while claimed.len() < max {
            let page = reader.page(&self.path, shared.run(), lane, cursor, max - claimed.len())?;
            let Some(last) = page.last() else { break };
            cursor = Some((last.rank, last.item.lease.seq));
            let mut inner = shared.inner.lock();
            for mut row in page {
                if !inner.held.contains_key(&row.item.lease.seq) {
                    inner.lease(shared.run(), &mut row.item, row.has_progress);
                    claimed.push(row.item);
                }
            }
            if let Some(state) = inner.lanes.get_mut(&lane) {
                state.cursor = cursor;
            }
        }
        if !claimed.is_empty() {
            shared.leases_changed(&mut shared.inner.lock());
        }
        Ok(claimed)
    }

    /// Lanes after `after` that have something to claim.
    pub(crate) fn ready_lanes(
        &self,
        shared: &Shared,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<Vec<Lane>, QueueError> {
        let mut lanes = Vec::new();
        let mut at = after.map_or(i64::MIN, |lane| lane.0);
        let reader = self.reader.lock();
        shared.inner.lock().refuse()?;
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        let error = |source| schema::classify(&self.path, source);
        // One read transaction for the page: beginning one costs more than a seek.
        let page = db.unchecked_transaction().map_err(error)?;
        while lanes.len() < limit {
            let Some(row) = next_lane(&page, at).map_err(error)? else { break };
            let lane = Self::claimable(shared, row);
            at = lane.id.0;
            if lane.pending > 0 {
                lanes.push(lane);
            }
        }
        page.commit().map_err(error)?;
        Ok(lanes)
    }

    pub(crate) fn lane(&self, shared: &Shared, id: LaneId) -> Result<Option<Lane>, QueueError> {
        let reader = self.reader.lock();
        shared.inner.lock().refuse()?;
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        let row = lane(db, id).map_err(|source| schema::classify(&self.path, source))?;
        Ok(row.map(|row| Self::claimable(shared, row)))
    }

    /// A lane of the table, less what is in hand.
    fn claimable(shared: &Shared, (id, key, waiting): (LaneId, String, u64)) -> Lane {
        let out = shared.inner.lock().lanes.get(&id).map_or(0, |l| l.held - l.returned.len() as u64);
        Lane { id, key: key.into(), pending: waiting.saturating_sub(out) }
    }

    pub(crate) fn load_gate(&self, shared: &Shared, key: &str) -> Result<Option<GateRecord>, QueueError> {
        let reader = self.reader.lock();
        {
            let inner = shared.inner.lock();
            inner.refuse()?;
            if let Some(gate) = inner.gates.get(key) {
                return Ok(gate.clone());
            }
        }
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        gates::load(db, key).map_err(|source| schema::classify(&self.path, source))
    }

    pub(crate) fn load_gates(
        &self,
        shared: &Shared,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GateRecord>, QueueError> {
        let reader = self.reader.lock();
        shared.inner.lock().refuse()?;
        let db = reader.db.as_ref().ok_or(QueueError::Closed)?;
        gates::page(db, after, limit).map_err(|source| schema::classify(&self.path, source))
    }
}

/// The connection itself. Readers and the writer do not wait for each other in WAL mode.
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
    pub(crate) fn open(path: &Path) -> Result<Reader, QueueError> {
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
        path: &Path,
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
