//! Looking at a job's file, and changing it while nobody runs it.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags, TransactionBehavior, params};

use super::{
    apply::{Changes, LaneNumbers, read_place},
    exits, gates,
    ledger::{soonest_due, tune},
    lock::{self, JobLock},
    open::{self, Kind},
    reader::read_counters,
    schema::{self, PARKED_UNTIL_NEXT_RUN, PARKED_UNTIL_TIME, classify},
};
use crate::queue::{
    error::QueueError,
    exits::ExitRow,
    gates::GateRecord,
    inspect::{LaneCounts, Listed, Retry, Running, State, Summary, Which},
    item::{Extras, LaneId, Seq, Until},
    job::Counts,
    ledger::{ending_from, timestamp},
};

/// See [`JobFile`](crate::queue::inspect::JobFile).
pub(crate) struct SqliteFile {
    db: Connection,
    pub(crate) path: PathBuf,
}

const COLUMNS: &str = "SELECT i.seq, i.id, l.key, i.url, i.extras, NULL,
   p.kind, p.due, p.account, p.reason, x.seq IS NOT NULL, e.ending, e.offset, e.length,
   g.attempts, g.refusals, g.run, g.limited, g.waited_us, g.started, g.error";
const JOINS: &str = "LEFT JOIN lanes l ON l.lane = i.lane LEFT JOIN parked p ON p.seq = i.seq
   LEFT JOIN leased x ON x.seq = i.seq LEFT JOIN ended e ON e.seq = i.seq LEFT JOIN progress g ON g.seq = i.seq";

impl SqliteFile {
    pub(crate) fn open(path: &Path) -> Result<SqliteFile, QueueError> {
        let missing = || QueueError::NoSuchJob { path: path.to_owned() };
        match open::kind(path).map_err(|source| QueueError::Io { path: path.to_owned(), source })? {
            Kind::Missing | Kind::Empty => return Err(missing()),
            kind => open::refuse_foreign(path, kind)?,
        }
        let error = |source| classify(path, source);
        // Only a connection that could write takes SQLite's two helper files away again when it is the last.
        let open = |flags| Connection::open_with_flags(path, flags);
        let db = open(OpenFlags::SQLITE_OPEN_READ_WRITE)
            .or_else(|_| open(OpenFlags::SQLITE_OPEN_READ_ONLY))
            .map_err(error)?;
        schema::tune(&db, 4096).map_err(error)?;
        db.pragma_update(None, "query_only", true).map_err(error)?;
        if open::is_blank(&db).map_err(error)? {
            return Err(missing());
        }
        schema::check(&db, path)?;
        Ok(SqliteFile { db, path: path.to_owned() })
    }

    pub(crate) fn summary(&self) -> Result<Summary, QueueError> {
        let running = match lock::holder(&self.path) {
            None => Running::No,
            Some(pid) => Running::By(pid),
        };
        self.read(|db| {
            // One moment for all numbers.
            let tx = db.unchecked_transaction()?;
            let t = schema::load_tally(&tx)?;
            let number =
                |sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
            // Few: no more than a run has in hand. Rows of a run that was killed mean nothing.
            let leased = if running == Running::No { 0 } else { number("SELECT count(*) FROM leased")? };
            let accounts = tx
                .prepare("SELECT account, count(*) FROM parked WHERE kind = 2 GROUP BY account LIMIT 100")?
                .query_map([], |row| Ok((row.get(0)?, row.get::<_, i64>(1)?.cast_unsigned())))?
                .collect::<rusqlite::Result<_>>()?;
            let next_run =
                if t.parked == 0 { 0 } else { number("SELECT count(*) FROM parked WHERE kind = 1")? };
            Ok(Summary {
                counts: Counts {
                    imported: t.imported,
                    pending: t.pending.saturating_sub(leased),
                    parked: t.parked,
                    leased,
                    elsewhere: 0,
                    done: t.done,
                    failed: t.failed,
                    unknown: t.unknown,
                    input: t.end,
                },
                running,
                runs: t.run,
                created: timestamp(schema::meta::<i64>(&tx, "created")?.unwrap_or(0)),
                made_by: schema::meta(&tx, "made_by")?.unwrap_or_default(),
                output: schema::meta(&tx, "output")?.unwrap_or_default(),
                input: schema::meta::<String>(&tx, "input")?
                    .and_then(|text| serde_json::from_str(&text).ok()),
                position: t.position,
                next_due: soonest_due(&tx),
                next_run,
                accounts,
            })
        })
    }

    pub(crate) fn list(&self, which: Which, after: Seq, limit: usize) -> Result<Vec<Listed>, QueueError> {
        // As in the summary: what a killed run had in hand is pending.
        let running = lock::holder(&self.path).is_some();
        if which == Which::Leased && !running {
            return Ok(Vec::new());
        }
        // Each from the table that has few of them; pending ones are what is in none of the others.
        let from = match which {
            Which::All => "items i",
            Which::Pending => "items i",
            Which::Parked => "parked q CROSS JOIN items i ON i.seq = q.seq",
            Which::Leased => "leased q CROSS JOIN items i ON i.seq = q.seq",
            Which::Done | Which::Failed => "ended q CROSS JOIN items i ON i.seq = q.seq",
        };
        let key = if matches!(which, Which::All | Which::Pending) { "i.seq" } else { "q.seq" };
        let only = match which {
            Which::All | Which::Parked | Which::Leased => "",
            Which::Pending if running => "AND p.seq IS NULL AND x.seq IS NULL AND e.seq IS NULL",
            Which::Pending => "AND p.seq IS NULL AND e.seq IS NULL",
            Which::Done => "AND q.ending = 0",
            Which::Failed => "AND q.ending <> 0",
        };
        let sql = format!("{COLUMNS} FROM {from} {JOINS} WHERE {key} > ?1 {only} ORDER BY {key} LIMIT ?2");
        let rows = self.read(|db| {
            let run = schema::load_tally(db)?.run;
            db.prepare_cached(&sql)?
                .query_map(params![after.0.cast_signed(), limit as i64], |row| read_listed(row, run))?
                .collect::<rusqlite::Result<Vec<_>>>()
        })?;
        rows.into_iter()
            .map(|row| {
                let mut item =
                    row.ok_or_else(|| QueueError::Damaged { path: self.path.clone(), source: None })?;
                if item.state == State::Leased && !running {
                    item.state = State::Pending;
                }
                Ok(item)
            })
            .collect()
    }

    pub(crate) fn lanes(&self, after: Option<LaneId>, limit: usize) -> Result<Vec<LaneCounts>, QueueError> {
        self.read(|db| {
            db.prepare_cached(
                "SELECT lane, key, pending, parked, done, failed FROM lanes WHERE lane > ?1 ORDER BY lane LIMIT ?2",
            )?
            .query_map(params![after.map_or(i64::MIN, |l| l.0), limit as i64], |row| {
                let number = |i| row.get::<_, i64>(i).map(i64::cast_unsigned);
                Ok(LaneCounts {
                    id: LaneId(row.get(0)?),
                    key: row.get(1)?,
                    pending: number(2)?,
                    parked: number(3)?,
                    done: number(4)?,
                    failed: number(5)?,
                })
            })?
            .collect()
        })
    }

    pub(crate) fn gates(&self, after: &str, limit: usize) -> Result<Vec<GateRecord>, QueueError> {
        self.read(|db| gates::page(db, after, limit))
    }

    pub(crate) fn exits(&self) -> Result<Vec<ExitRow>, QueueError> {
        self.read(exits::all)
    }

    pub(crate) fn is_consistent(&self) -> Result<bool, QueueError> {
        self.read(|db| {
            let tx = db.unchecked_transaction()?;
            let t = schema::load_tally(&tx)?;
            let number = |sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0)).map(i64::cast_unsigned);
            let same = number("SELECT count(*) FROM items")? == t.imported
                && number("SELECT count(*) FROM waiting")? == t.pending
                && number("SELECT count(*) FROM parked")? == t.parked
                && number("SELECT count(*) FROM ended WHERE ending = 0")? == t.done
                && number("SELECT count(*) FROM ended WHERE ending = 1")? == t.failed
                && number("SELECT count(*) FROM ended WHERE ending = 2")? == t.unknown
                && t.imported == t.pending + t.parked + t.done + t.failed + t.unknown;
            let places = number(
                "SELECT count(*) FROM (SELECT seq FROM waiting UNION SELECT seq FROM parked UNION SELECT seq FROM ended)",
            )?;
            let lanes = number(
                "SELECT count(*) FROM lanes l WHERE
                   l.pending <> (SELECT count(*) FROM waiting w WHERE w.lane = l.lane)",
            )?;
            let whole: String = tx.query_row("PRAGMA quick_check", [], |row| row.get(0))?;
            Ok(same && places == t.imported && lanes == 0 && whole == "ok")
        })
    }

    fn read<T>(&self, act: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, QueueError> {
        act(&self.db).map_err(|source| classify(&self.path, source))
    }
}

pub(crate) fn retry(path: &Path, what: Retry) -> Result<u64, QueueError> {
    change(path, |tx, changes| reopen(tx, changes, what))
}

pub(crate) fn unpark(path: &Path) -> Result<u64, QueueError> {
    change(path, |tx, changes| {
        forget_refused_credentials(tx)?;
        let mut unparked = 0;
        loop {
            let page = changes.places(
                "SELECT p.seq, i.lane, p.rank FROM parked p CROSS JOIN items i ON i.seq = p.seq ORDER BY p.seq LIMIT ?1",
                [PAGE as i64],
            )?;
            if page.is_empty() {
                return Ok(unparked);
            }
            unparked += page.len() as u64;
            changes.unpark(&page)?;
        }
    })
}

fn forget_refused_credentials(tx: &Connection) -> rusqlite::Result<()> {
    let mut all = tx.prepare("SELECT key, record FROM gates")?;
    let stopped = all
        .query_map([], |row| Ok((row.get::<_, String>(0)?, row.get::<_, Vec<u8>>(1)?)))?
        .filter(|gate| {
            gate.as_ref().is_ok_and(|(_, record)| crate::gate::GateRecord::refused(record).is_some())
        })
        .map(|gate| gate.map(|(key, _)| key))
        .collect::<rusqlite::Result<Vec<String>>>()?;
    for key in stopped {
        tx.execute("DELETE FROM gates WHERE key = ?1", [key])?;
    }
    Ok(())
}

/// A page at a time: a job may have millions of failed items.
const PAGE: usize = 10_000;

/// Changes a job that nobody runs, in one transaction.
fn change(
    path: &Path,
    act: impl FnOnce(&Connection, &mut Changes<'_>) -> rusqlite::Result<u64>,
) -> Result<u64, QueueError> {
    SqliteFile::open(path)?;
    let lock = JobLock::take(path)?;
    let changed = change_locked(path, act).map_err(|source| classify(path, source));
    lock.release();
    changed
}

fn change_locked(
    path: &Path,
    act: impl FnOnce(&Connection, &mut Changes<'_>) -> rusqlite::Result<u64>,
) -> rusqlite::Result<u64> {
    let mut db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    tune(&db)?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut numbers = LaneNumbers::default();
    let mut changes = Changes::new(&tx, schema::load_tally(&tx)?, &mut numbers);
    let changed = act(&tx, &mut changes)?;
    changes.save()?;
    tx.commit()?;
    Ok(changed)
}

fn reopen(tx: &Connection, changes: &mut Changes<'_>, what: Retry) -> rusqlite::Result<u64> {
    let last_kind = if what == Retry::FailedAndUnknown { 2 } else { 1 };
    let (mut after, mut retried) = (0, 0);
    loop {
        let page: Vec<_> = tx
            .prepare_cached(
                "SELECT e.seq, i.lane, -coalesce(json_extract(i.extras, '$.p'), 0), e.ending
                 FROM ended e CROSS JOIN items i ON i.seq = e.seq
                 WHERE e.seq > ?1 AND e.ending BETWEEN 1 AND ?2 AND i.url IS NOT NULL ORDER BY e.seq LIMIT ?3",
            )?
            .query_map(params![after, last_kind, PAGE as i64], |row| {
                Ok((read_place(row)?, ending_from(row.get(3)?)))
            })?
            .collect::<rusqlite::Result<_>>()?;
        let Some((last, _)) = page.last() else { return Ok(retried) };
        after = last.seq.0.cast_signed();
        retried += page.len() as u64;
        changes.reopen(&page)?;
    }
}

/// `None` if the stored request cannot be read.
fn read_listed(row: &rusqlite::Row<'_>, run: u64) -> rusqlite::Result<Option<Listed>> {
    let url: Option<String> = row.get(3)?;
    let request = match url {
        None => None,
        Some(url) => match Extras::decode(url, row.get_ref(4)?.as_str_or_null()?, row.get(5)?) {
            Ok(request) => Some(request),
            Err(_) => return Ok(None),
        },
    };
    let ended: Option<i64> = row.get(11)?;
    let parked: Option<i64> = row.get(6)?;
    let state = if let Some(code) = ended {
        let number = |i| row.get::<_, Option<i64>>(i).map(|n| n.map(i64::cast_unsigned));
        State::Ended(ending_from(code), number(12)?.zip(number(13)?))
    } else if let Some(kind) = parked {
        let until = match kind {
            PARKED_UNTIL_TIME => Until::Time(timestamp(row.get(7)?)),
            PARKED_UNTIL_NEXT_RUN => Until::NextRun,
            _ => Until::Credentials(row.get::<_, Option<String>>(8)?.unwrap_or_default()),
        };
        State::Parked(until, row.get::<_, Option<String>>(9)?.unwrap_or_default())
    } else if row.get(10)? {
        State::Leased
    } else {
        State::Pending
    };
    Ok(Some(Listed {
        seq: Seq(row.get::<_, i64>(0)?.cast_unsigned()),
        id: row.get(1)?,
        lane: row.get(2)?,
        request,
        state,
        output: None,
        counters: read_counters(row, 14, run)?.0,
    }))
}
