//! Claims and pages, over a connection of their own.

use std::sync::{Arc, atomic::Ordering::Relaxed};
use std::time::Duration;

use forbear_core::time::Timestamp;
use tokio::sync::oneshot;
use tokio_postgres::{Error, Row};

use super::link::Link;
use crate::queue::{
    error::QueueError,
    gates::GateRecord,
    inspect::Running,
    item::{Counters, Item, Lane, LaneId, Lease, Seq},
    ledger::timestamp,
    shared::{Inner, Shared},
};

/// While the server is gone, whoever asks for work waits so long and hears that there is none now.
const PATIENCE: Duration = Duration::from_millis(300);
/// Items of a lane are counted up to here where many lanes are listed.
const COUNTED_MAX: i64 = 100;

/// Pages of a job in the database, for those who claim.
pub(crate) struct Pages {
    pub(crate) link: Arc<Link>,
}

/// Takes the first items of a lane that nobody else is taking at this moment, unless this process is no member any more. By
/// their places in the table, so that no plan depends on what the statistics say of it.
const CLAIM: &str = "
    WITH me AS MATERIALIZED (SELECT member FROM members WHERE member = $3 FOR KEY SHARE),
    taken AS (
      DELETE FROM waiting WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM waiting WHERE lane = $1 AND EXISTS (SELECT FROM me) ORDER BY rank, seq LIMIT $2
        FOR UPDATE SKIP LOCKED))
      RETURNING seq, lane, rank),
    hold AS (INSERT INTO leased(seq, member, lane, rank) SELECT seq, $3, lane, rank FROM taken)
    SELECT t.seq, i.id, i.request, g.attempts, g.refusals, g.run, g.limited, g.waited_us, g.started, g.error
    FROM taken t JOIN items i ON i.seq = t.seq LEFT JOIN progress g ON g.seq = t.seq ORDER BY t.rank, t.seq";

/// One seek for each lane, however many items it has.
const READY: &str = "
    WITH RECURSIVE ready(lane) AS (
      (SELECT lane FROM waiting WHERE lane > $1 ORDER BY lane LIMIT 1)
      UNION ALL
      SELECT (SELECT w.lane FROM waiting w WHERE w.lane > r.lane ORDER BY w.lane LIMIT 1)
      FROM ready r WHERE r.lane IS NOT NULL)
    SELECT r.lane, n.key, (SELECT count(*) FROM (SELECT FROM waiting w WHERE w.lane = r.lane LIMIT $3) c)
    FROM ready r JOIN lanes n ON n.lane = r.lane LIMIT $2";

const LANE: &str = "
    SELECT n.lane, n.key, (SELECT count(*) FROM (SELECT FROM waiting w WHERE w.lane = n.lane LIMIT $2) c)
    FROM lanes n WHERE n.lane = $1";

impl Pages {
    /// Claims up to `max` items of a lane. It is done in a task of its own: a caller that goes away leaves no item behind.
    pub(crate) async fn claim(
        &self,
        shared: &Arc<Shared>,
        lane: LaneId,
        max: usize,
    ) -> Result<Vec<Item>, QueueError> {
        let (link, shared) = (self.link.clone(), shared.clone());
        let (answer, mut claimed) = oneshot::channel();
        self.link.server.handle().spawn(async move {
            let items = claim(&link, &shared, lane, max).await;
            if let Err(Ok(items)) = answer.send(items) {
                let mut inner = shared.inner.lock();
                items.into_iter().for_each(|item| inner.give_back(item));
            }
        });
        (&mut claimed).await.map_err(|_| QueueError::Closed)?
    }

    pub(crate) async fn ready_lanes(
        &self,
        shared: &Shared,
        after: Option<LaneId>,
        limit: usize,
    ) -> Result<Vec<Lane>, QueueError> {
        shared.inner.lock().refuse()?;
        let from = after.map_or(i32::MIN, |lane| i32::try_from(lane.0).unwrap_or(i32::MAX));
        let rows = self.rows(move |link| async move {
            let db = link.db().await?;
            db.query(READY, &[&from, &(limit as i64), &COUNTED_MAX]).await
        });
        let mut lanes: Vec<Lane> = rows.await?.iter().map(lane).collect();
        if lanes.len() < limit {
            self.link.hungry.store(true, Relaxed);
        }
        // What was given back and is still kept here can be had again, too.
        let returned: Vec<(LaneId, u64)> = {
            let inner = shared.inner.lock();
            let kept = inner
                .lanes
                .iter()
                .filter(|(id, lane)| after.is_none_or(|a| **id > a) && !lane.returned.is_empty());
            kept.map(|(id, lane)| (*id, lane.returned.len() as u64)).collect()
        };
        for (id, n) in returned {
            match lanes.iter_mut().find(|lane| lane.id == id) {
                Some(lane) => lane.pending += n,
                None => lanes.extend(self.lane(shared, id).await?),
            }
        }
        lanes.sort_unstable_by_key(|lane| lane.id);
        lanes.truncate(limit);
        Ok(lanes)
    }

    pub(crate) async fn lane(&self, shared: &Shared, id: LaneId) -> Result<Option<Lane>, QueueError> {
        shared.inner.lock().refuse()?;
        let number = i32::try_from(id.0).unwrap_or(i32::MAX);
        let rows = self.rows(move |link| async move {
            let db = link.db().await?;
            db.query(LANE, &[&number, &COUNTED_MAX]).await
        });
        let mut lane = rows.await?.first().map(lane);
        if let Some(lane) = &mut lane {
            lane.pending += shared.inner.lock().lanes.get(&id).map_or(0, |kept| kept.returned.len() as u64);
        }
        Ok(lane)
    }

    /// Rows of a statement that only reads. None while the server is gone: whoever asks hears of what there is when it is
    /// back.
    async fn rows<W: Future<Output = Result<Vec<Row>, Error>> + Send + 'static>(
        &self,
        work: impl FnOnce(Arc<Link>) -> W,
    ) -> Result<Vec<Row>, QueueError> {
        let rows = self.link.server.handle().spawn(work(self.link.clone())).await;
        match rows.map_err(|_| QueueError::Closed)? {
            Ok(rows) => Ok(rows),
            Err(source) => absent(&self.link, source).await.map(|()| Vec::new()),
        }
    }

    pub(crate) fn load_gate(&self, shared: &Shared, key: &str) -> Result<Option<GateRecord>, QueueError> {
        {
            let inner = shared.inner.lock();
            inner.refuse()?;
            if let Some(gate) = inner.gates.get(key) {
                return Ok(gate.clone());
            }
        }
        let sql = "SELECT key, version, until, record FROM gates WHERE key = $1";
        let row = self.link.server.block(|| async {
            let db = self.link.db().await?;
            db.maybe(sql, &[&key]).await
        });
        let row = row.map_err(|source| self.link.error(source))?;
        Ok(row.map(|row| gate(&row, |us| self.link.local_time(us))))
    }

    pub(crate) fn load_gates(
        &self,
        shared: &Shared,
        after: &str,
        limit: usize,
    ) -> Result<Vec<GateRecord>, QueueError> {
        shared.inner.lock().refuse()?;
        let rows = self.link.server.block(|| async {
            let db = self.link.db().await?;
            db.query(GATES, &[&after, &(limit as i64)]).await
        });
        let rows = rows.map_err(|source| self.link.error(source))?;
        Ok(rows.iter().map(|row| gate(row, |us| self.link.local_time(us))).collect())
    }

    /// Takes the right to import, if nobody else has it: one process reads the input, whoever joined waits for its end.
    pub(crate) fn may_import(&self, shared: &Shared) -> Result<bool, QueueError> {
        shared.inner.lock().refuse()?;
        let link = &self.link;
        let taken = link.server.block(|| async {
            let db = link.db().await?;
            let row = db.maybe(IMPORTER, &[&link.member()]).await?;
            let tally = link.tally(&db).await?;
            Ok::<_, Error>((row.map(|row| row.get::<_, Option<String>>(0)), tally))
        });
        let (row, tally) = taken.map_err(|source| link.error(source))?;
        let mut inner = shared.inner.lock();
        inner.tally = tally;
        inner.imports_refused = row.is_none();
        let Some(input) = row else { return Ok(false) };
        drop(inner);
        *shared.input.lock() = input.and_then(|text| serde_json::from_str(&text).ok());
        Ok(true)
    }
}

pub(crate) const GATES: &str = "SELECT key, version, until, record FROM gates WHERE key COLLATE \"C\" > $1 ORDER BY key COLLATE \"C\" LIMIT $2";

const IMPORTER: &str = "
    UPDATE job SET importer = $1
    WHERE EXISTS (SELECT FROM members WHERE member = $1)
      AND (importer IS NULL OR importer = $1 OR NOT EXISTS (SELECT FROM members WHERE member = importer))
    RETURNING input";

async fn claim(link: &Link, shared: &Arc<Shared>, lane: LaneId, max: usize) -> Result<Vec<Item>, QueueError> {
    let mut claimed = Vec::new();
    let _on_its_way = link.claims.read().await;
    let run = {
        let mut inner = shared.inner.lock();
        inner.refuse()?;
        let run = shared.run();
        take_returned(&mut inner, run, lane, max, &mut claimed);
        run
    };
    let left = (max - claimed.len()).min(1024);
    if left == 0 {
        return Ok(claimed);
    }
    let number = i32::try_from(lane.0).unwrap_or(i32::MAX);
    let rows = match link.db().await {
        Ok(db) => db.query(CLAIM, &[&number, &(left as i64), &run.cast_signed()]).await,
        Err(error) => Err(error),
    };
    let rows = match rows {
        Ok(rows) => rows,
        Err(source) => {
            link.unheard.store(true, Relaxed);
            absent(link, source).await?;
            return Ok(claimed);
        }
    };
    if rows.len() < left {
        link.hungry.store(true, Relaxed);
    }
    let job_run = link.run.load(Relaxed);
    let mut items = Vec::with_capacity(rows.len());
    for row in &rows {
        items.push(item(link, row, lane, job_run)?);
    }
    let mut inner = shared.inner.lock();
    // Lost meanwhile, or left: others have them, or will at once.
    if shared.run() != run || inner.gone {
        return Ok(claimed);
    }
    for (mut item, has_progress) in items {
        inner.lease(run, &mut item, has_progress);
        claimed.push(item);
    }
    Ok(claimed)
}

fn take_returned(inner: &mut Inner, run: u64, lane: LaneId, max: usize, claimed: &mut Vec<Item>) {
    while claimed.len() < max {
        let Some(mut item) = inner.lanes.get_mut(&lane).and_then(|l| l.returned.pop_front()) else { return };
        inner.lease(run, &mut item, true);
        claimed.push(item);
    }
}

/// A server that is gone is waited for a little; every other error is one.
async fn absent(link: &Link, source: Error) -> Result<(), QueueError> {
    if !link.is_lost(&source) {
        return Err(link.error(source));
    }
    link.hungry.store(true, Relaxed);
    let _ = link.server.handle().spawn(async { tokio::time::sleep(PATIENCE).await }).await;
    Ok(())
}

fn item(link: &Link, row: &Row, lane: LaneId, run: u64) -> Result<(Item, bool), QueueError> {
    let seq = row.get::<_, i64>(0);
    let damaged = || QueueError::Sealed { at: link.server.shown().clone(), item: seq.cast_unsigned() };
    let request = link.seal.opened(seq, row.get(2)).ok_or_else(damaged)?;
    let (counters, has_progress) = read_counters(row, 3, run);
    let lease = Lease { seq: Seq(seq.cast_unsigned()), run: 0, token: 0 };
    Ok((Item { lease, lane, id: row.get(1), request, counters }, has_progress))
}

fn lane(row: &Row) -> Lane {
    Lane {
        id: LaneId(row.get::<_, i32>(0).into()),
        key: row.get::<_, &str>(1).into(),
        pending: row.get::<_, i64>(2).cast_unsigned(),
    }
}

pub(crate) fn gate(row: &Row, moment: impl Fn(i64) -> Timestamp) -> GateRecord {
    GateRecord {
        key: row.get(0),
        version: row.get::<_, i32>(1).cast_unsigned(),
        record: row.get(3),
        until: row.get::<_, Option<i64>>(2).map(moment),
    }
}

/// Counters from seven columns beginning at `at`, and whether there were any.
pub(crate) fn read_counters(row: &Row, at: usize, run: u64) -> (Counters, bool) {
    let Some(attempts) = row.get::<_, Option<i32>>(at) else { return (Counters::default(), false) };
    let number = |i: usize| row.get::<_, i32>(at + i).cast_unsigned();
    let same_run = row.get::<_, i64>(at + 2).cast_unsigned() == run;
    let counters = Counters {
        attempts: attempts.cast_unsigned(),
        refusals: if same_run { number(1) } else { 0 },
        limited: number(3),
        waited: Duration::from_micros(row.get::<_, i64>(at + 4).cast_unsigned()),
        started_at: row.get::<_, Option<i64>>(at + 5).map(timestamp),
        error: row.get(at + 6),
    };
    (counters, true)
}

/// Whether processes run a job: the number of one where there is just one.
pub(crate) fn running(pids: &[i32]) -> Running {
    match pids {
        [] => Running::No,
        [pid] => Running::By(u32::try_from(*pid).ok()),
        _ => Running::By(None),
    }
}
