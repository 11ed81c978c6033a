//! Looking at a job in the database, and changing it, also while processes work on it.

use std::path::PathBuf;

use tokio_postgres::{Error, Row};

use super::{
    connect::{Db, Server},
    ledger::host_name,
    link::tally,
    open::{find, unpark as wake},
    reader::{GATES, gate, read_counters, running},
    schema::{self, PARKED_UNTIL_NEXT_RUN, PARKED_UNTIL_TIME, VERSION},
    seal::Seal,
};
use crate::queue::{
    address::{JobAddress, PostgresAddress},
    error::QueueError,
    exits::{EXITS_MAX, ExitRow},
    gates::GateRecord,
    inspect::{LaneCounts, Listed, Retry, State, Summary, Which},
    item::{LaneId, Seq, Until},
    job::Counts,
    ledger::{ending_from, timestamp},
};

/// See [`JobFile`](crate::queue::inspect::JobFile).
pub(crate) struct PgFile {
    server: Server,
    db: Db,
    job: i32,
    /// None without a key: then requests stay sealed.
    seal: Option<Seal>,
}

/// A page at a time: a job may have millions of failed items.
const PAGE: i64 = 10_000;

const COLUMNS: &str =
    "SELECT i.seq, i.id, l.key, i.request, p.kind, p.due, p.account, p.reason, x.seq IS NOT NULL,
   e.ending, e.place, e.length, g.attempts, g.refusals, g.run, g.limited, g.waited_us, g.started, g.error,
   o.path";
const JOINS: &str = "LEFT JOIN lanes l ON l.lane = i.lane LEFT JOIN parked p ON p.seq = i.seq
   LEFT JOIN leased x ON x.seq = i.seq LEFT JOIN ended e ON e.seq = i.seq LEFT JOIN progress g ON g.seq = i.seq
   LEFT JOIN outputs o ON o.output = e.output AND o.host = $3 AND NOT o.is_stream";

impl PgFile {
    pub(crate) fn open(queue: &PostgresAddress, name: &str) -> Result<PgFile, QueueError> {
        let shown = JobAddress::Postgres { queue: queue.clone(), name: name.to_owned() }.shown();
        let server = Server::new(queue, shown.clone())?;
        let key = match queue.key() {
            Err(QueueError::NoKey) => None,
            other => Some(other?),
        };
        let opened = server.block(|| async {
            let first = server.connect(None).await?;
            let Some(job) = find(&first, name).await? else { return Ok(None) };
            let db = server.connect(Some(&schema::name(job))).await?;
            let format = db.one("SELECT format FROM forbear.jobs WHERE job = $1", &[&job]).await?;
            let keys = db.one("SELECT salt, key_check FROM job", &[]).await?;
            Ok::<_, Error>(Some((db, job, format.get::<_, i32>(0), keys)))
        });
        let opened = opened.map_err(|source| server.error(source))?;
        let Some((db, job, format, keys)) = opened else {
            return Err(QueueError::NoSuchJob { path: PathBuf::from(format!("{name} at {queue}")) });
        };
        if format > VERSION {
            return Err(QueueError::TooNew { path: shown, version: format.into() });
        }
        let seal = match key {
            None => None,
            Some(key) => {
                let seal = Seal::new(&key, keys.get(0))?;
                if !seal.opens(keys.get(1)) {
                    return Err(QueueError::OtherKey { at: shown });
                }
                Some(seal)
            }
        };
        Ok(PgFile { server, db, job, seal })
    }

    fn read<T: Send>(&self, act: impl AsyncFnOnce(&Db) -> Result<T, Error> + Send) -> Result<T, QueueError> {
        self.server.block(|| act(&self.db)).map_err(|source| self.server.error(source))
    }

    pub(crate) fn summary(&self) -> Result<Summary, QueueError> {
        self.read(async |db| {
            // One moment for all numbers.
            db.batch("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            let summary = self.summary_in(db).await;
            db.batch("COMMIT").await?;
            summary
        })
    }

    async fn summary_in(&self, db: &Db) -> Result<Summary, Error> {
        let count =
            async |sql: &'static str| db.one(sql, &[]).await.map(|row| row.get::<_, i64>(0).cast_unsigned());
        let any: i32 = db.one("SELECT coalesce(min(output), 0) FROM outputs", &[]).await?.get(0);
        let none = "SELECT run, made_by, input FROM job";
        let job = db.one(none, &[]).await?;
        let t = if any == 0 { Default::default() } else { tally(db, 0, any).await? };
        let pids = db.query("SELECT pid FROM members WHERE until > now() ORDER BY member", &[]).await?;
        let pids: Vec<i32> = pids.iter().map(|row| row.get(0)).collect();
        let leased = count(
            "SELECT count(*) FROM leased l JOIN members m ON m.member = l.member WHERE m.until > now()",
        );
        let leased = leased.await?;
        let made = "SELECT (extract(epoch FROM made) * 1000000)::bigint FROM forbear.jobs WHERE job = $1";
        let outputs = "SELECT DISTINCT path FROM outputs ORDER BY path LIMIT 100";
        let outputs = db.query(outputs, &[]).await?;
        let accounts = "SELECT account, count(*) FROM parked WHERE kind = 2 GROUP BY account LIMIT 100";
        let accounts = db.query(accounts, &[]).await?;
        let due: Option<i64> = db.one("SELECT min(due) FROM parked WHERE kind = 0", &[]).await?.get(0);
        Ok(Summary {
            counts: Counts {
                imported: t.imported,
                pending: (t.pending + t.elsewhere).saturating_sub(leased),
                parked: t.parked,
                leased,
                elsewhere: 0,
                done: t.done,
                failed: t.failed,
                unknown: t.unknown,
                input: t.end,
            },
            running: running(&pids),
            runs: job.get::<_, i64>(0).cast_unsigned(),
            created: timestamp(db.one(made, &[&self.job]).await?.get(0)),
            made_by: job.get(1),
            output: outputs.iter().map(|row| row.get::<_, &str>(0)).collect::<Vec<_>>().join(", "),
            input: job.get::<_, Option<&str>>(2).and_then(|text| serde_json::from_str(text).ok()),
            position: t.position,
            next_due: due.map(timestamp),
            next_run: if t.parked == 0 {
                0
            } else {
                count("SELECT count(*) FROM parked WHERE kind = 1").await?
            },
            accounts: accounts.iter().map(|row| (row.get(0), row.get::<_, i64>(1).cast_unsigned())).collect(),
        })
    }

    pub(crate) fn list(&self, which: Which, after: Seq, limit: usize) -> Result<Vec<Listed>, QueueError> {
        let Some(seal) = &self.seal else { return Err(QueueError::NoKey) };
        // Each from the table that has few of them; pending ones are what is in none of the others.
        let from = match which {
            Which::All | Which::Pending => "items i",
            Which::Parked => "parked q JOIN items i ON i.seq = q.seq",
            Which::Leased => "leased q JOIN items i ON i.seq = q.seq",
            Which::Done | Which::Failed => "ended q JOIN items i ON i.seq = q.seq",
        };
        let key = if matches!(which, Which::All | Which::Pending) { "i.seq" } else { "q.seq" };
        let only = match which {
            Which::All | Which::Parked | Which::Leased => "",
            Which::Pending => "AND p.seq IS NULL AND x.seq IS NULL AND e.seq IS NULL",
            Which::Done => "AND q.ending = 0",
            Which::Failed => "AND q.ending <> 0",
        };
        let sql = format!("{COLUMNS} FROM {from} {JOINS} WHERE {key} > $1 {only} ORDER BY {key} LIMIT $2");
        let host = host_name();
        let (rows, run) = self.read(async |db| {
            let run = db.one("SELECT run FROM job", &[]).await?.get::<_, i64>(0).cast_unsigned();
            Ok((db.client().query(&sql, &[&after.0.cast_signed(), &(limit as i64), &host]).await?, run))
        })?;
        rows.iter().map(|row| self.listed(seal, row, run)).collect()
    }

    fn listed(&self, seal: &Seal, row: &Row, run: u64) -> Result<Listed, QueueError> {
        let seq: i64 = row.get(0);
        let lane: Option<String> = row.get(2);
        let request = match lane {
            None => None,
            Some(_) => {
                let damaged =
                    || QueueError::Sealed { at: self.server.shown().clone(), item: seq.cast_unsigned() };
                let mut request = seal.opened(seq, row.get(3)).ok_or_else(damaged)?;
                request.body = None;
                Some(request)
            }
        };
        let state = if let Some(code) = row.get::<_, Option<i16>>(9) {
            let number = |i: usize| row.get::<_, Option<i64>>(i).map(i64::cast_unsigned);
            State::Ended(ending_from(code.into()), number(10).zip(number(11)))
        } else if let Some(kind) = row.get::<_, Option<i16>>(4) {
            let until = match kind {
                PARKED_UNTIL_TIME => Until::Time(timestamp(row.get::<_, Option<i64>>(5).unwrap_or(0))),
                PARKED_UNTIL_NEXT_RUN => Until::NextRun,
                _ => Until::Credentials(row.get::<_, Option<String>>(6).unwrap_or_default()),
            };
            State::Parked(until, row.get::<_, Option<String>>(7).unwrap_or_default())
        } else if row.get(8) {
            State::Leased
        } else {
            State::Pending
        };
        let counters = read_counters(row, 12, run).0;
        let output = row.get::<_, Option<String>>(19).map(PathBuf::from);
        Ok(Listed { seq: Seq(seq.cast_unsigned()), id: row.get(1), lane, request, state, output, counters })
    }

    pub(crate) fn lanes(&self, after: Option<LaneId>, limit: usize) -> Result<Vec<LaneCounts>, QueueError> {
        let after = after.map_or(i32::MIN, |lane| i32::try_from(lane.0).unwrap_or(i32::MAX));
        let sql = "SELECT l.lane, l.key, c.imported, c.parked, c.done, c.failed
                   FROM (SELECT lane, key FROM lanes WHERE lane > $1 ORDER BY lane LIMIT $2) l, LATERAL (
                     SELECT coalesce(sum(imported), 0)::bigint AS imported, coalesce(sum(parked), 0)::bigint AS parked,
                       coalesce(sum(done), 0)::bigint AS done, coalesce(sum(failed), 0)::bigint AS failed
                     FROM lane_counts c WHERE c.lane = l.lane) c ORDER BY l.lane";
        let rows = self.read(async |db| db.query(sql, &[&after, &(limit as i64)]).await)?;
        let lane = |row: &Row| {
            let number = |i: usize| u64::try_from(row.get::<_, i64>(i)).unwrap_or(0);
            let (parked, done, failed) = (number(3), number(4), number(5));
            LaneCounts {
                id: LaneId(row.get::<_, i32>(0).into()),
                key: row.get(1),
                pending: number(2).saturating_sub(parked + done + failed),
                parked,
                done,
                failed,
            }
        };
        Ok(rows.iter().map(lane).collect())
    }

    pub(crate) fn gates(&self, after: &str, limit: usize) -> Result<Vec<GateRecord>, QueueError> {
        let rows = self.read(async |db| db.query(GATES, &[&after, &(limit as i64)]).await)?;
        Ok(rows.iter().map(|row| gate(row, timestamp)).collect())
    }

    pub(crate) fn exits(&self) -> Result<Vec<ExitRow>, QueueError> {
        let sql = "SELECT name, state, requests, done, refused, blocked, faults, bytes, cost FROM exits
                   ORDER BY requests DESC, name LIMIT $1";
        let rows = self.read(async |db| db.query(sql, &[&(EXITS_MAX as i64)]).await)?;
        let exit = |row: &Row| {
            let number = |i: usize| u64::try_from(row.get::<_, i64>(i)).unwrap_or(0);
            ExitRow {
                name: row.get(0),
                state: row.get(1),
                requests: number(2),
                done: number(3),
                refused: number(4),
                blocked: number(5),
                faults: number(6),
                bytes: number(7),
                cost: row.get(8),
            }
        };
        Ok(rows.iter().map(exit).collect())
    }

    pub(crate) fn is_consistent(&self) -> Result<bool, QueueError> {
        self.read(async |db| {
            // Everything is read, so here a scan is the right plan. One statement sees one moment.
            db.batch("SET enable_seqscan = on; SET enable_hashjoin = on; SET enable_mergejoin = on").await?;
            let row = db
                .one(
                    "WITH t AS (
                       SELECT sum(imported) AS imported, sum(parked) AS parked, sum(done) AS done, sum(failed) AS failed,
                         sum(unknown) AS unknown FROM outputs),
                     places AS (
                       SELECT seq, 'w' AS place FROM waiting UNION ALL SELECT seq, 'l' FROM leased
                       UNION ALL SELECT seq, 'p' FROM parked UNION ALL SELECT seq, 'e' FROM ended),
                     counted AS (
                       SELECT (SELECT count(*) FROM items) AS items, (SELECT count(*) FROM places) AS places,
                         (SELECT count(DISTINCT seq) FROM places) AS once,
                         (SELECT count(*) FROM places p JOIN items i ON i.seq = p.seq) AS known,
                         (SELECT count(*) FROM parked) AS parked,
                         (SELECT count(*) FROM ended WHERE ending = 0) AS done,
                         (SELECT count(*) FROM ended WHERE ending = 1) AS failed,
                         (SELECT count(*) FROM ended WHERE ending = 2) AS unknown)
                     SELECT coalesce(t.imported, 0) = c.items AND c.places = c.items AND c.once = c.items AND c.known = c.items
                       AND coalesce(t.parked, 0) = c.parked AND coalesce(t.done, 0) = c.done
                       AND coalesce(t.failed, 0) = c.failed AND coalesce(t.unknown, 0) = c.unknown
                     FROM t, counted c",
                    &[],
                )
                .await?;
            let lanes = db
                .one(
                    "SELECT count(*) FROM (
                       SELECT lane, sum(imported - parked - done - failed) AS open FROM lane_counts GROUP BY lane) c
                     FULL JOIN (
                       SELECT lane, count(*) AS open FROM (SELECT lane FROM waiting UNION ALL SELECT lane FROM leased) w
                       GROUP BY lane) w ON w.lane = c.lane
                     WHERE coalesce(c.open, 0) <> coalesce(w.open, 0)",
                    &[],
                )
                .await?;
            Ok(row.get::<_, bool>(0) && lanes.get::<_, i64>(0) == 0)
        })
    }

    pub(crate) fn shown(&self) -> String {
        self.server.shown().display().to_string()
    }
}

/// Each page is a transaction: a process that works on the job meets the items as they come.
pub(crate) fn retry(queue: &PostgresAddress, name: &str, what: Retry) -> Result<u64, QueueError> {
    let file = PgFile::open(queue, name)?;
    let last_kind: i16 = if what == Retry::FailedAndUnknown { 2 } else { 1 };
    file.read(async |db| {
        let (mut after, mut retried) = (0_i64, 0);
        loop {
            let row = db.one(REOPEN, &[&after, &last_kind, &PAGE]).await?;
            retried += row.get::<_, i64>(0).cast_unsigned();
            match row.get::<_, Option<i64>>(1) {
                Some(last) => after = last,
                None => return Ok(retried),
            }
        }
    })
}

const REOPEN: &str = "
    WITH page AS (
      SELECT seq FROM ended WHERE seq > $1 AND ending <> 0 AND ending <= $2 ORDER BY seq LIMIT $3 FOR UPDATE),
    again AS (
      DELETE FROM ended e USING page p, items i
      WHERE e.seq = p.seq AND i.seq = p.seq AND i.lane IS NOT NULL
      RETURNING e.seq, i.lane, i.rank, e.ending, e.output),
    ready AS (INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM again),
    forgotten AS (DELETE FROM progress g USING again a WHERE g.seq = a.seq),
    counts AS (
      INSERT INTO lane_counts AS c (lane, output, imported, parked, done, failed)
      SELECT lane, output, 0, 0, 0, -count(*) FROM again GROUP BY lane, output ORDER BY lane, output
      ON CONFLICT (lane, output) DO UPDATE SET failed = c.failed + excluded.failed),
    totals AS (
      UPDATE outputs o SET failed = o.failed - a.failed, unknown = o.unknown - a.unknown FROM (
        SELECT output, count(*) FILTER (WHERE ending = 1) AS failed, count(*) FILTER (WHERE ending = 2) AS unknown
        FROM again GROUP BY output) a
      WHERE a.output = o.output)
    SELECT (SELECT count(*) FROM again), (SELECT max(seq) FROM page)";

pub(crate) fn unpark(queue: &PostgresAddress, name: &str) -> Result<u64, QueueError> {
    let file = PgFile::open(queue, name)?;
    file.read(async |db| {
        db.transaction(async |db| {
            forget_refused_credentials(db).await?;
            let output = "SELECT output FROM outputs ORDER BY output LIMIT 1";
            let Some(output) = db.maybe(output, &[]).await? else { return Ok(0) };
            wake(db, output.get(0), "true").await
        })
        .await
    })
}

async fn forget_refused_credentials(db: &Db) -> Result<(), Error> {
    for row in db.query("SELECT key, record FROM gates", &[]).await? {
        if crate::gate::GateRecord::refused(row.get(1)).is_some() {
            db.execute("DELETE FROM gates WHERE key = $1", &[&row.get::<_, &str>(0)]).await?;
        }
    }
    Ok(())
}
