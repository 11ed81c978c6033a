//! The tables of a job, and the one row of totals.
//!
//! An item's request is written once, at import, and never touched again: its state is *where its number stands*
//! (`waiting`, `parked`, `ended`; none of these for long in more than one place, and never in two at a commit). So an
//! acknowledgement dirties only pages that are dense with numbers, not one page of URLs for each item, and the table of
//! requests stays packed.

use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, config::DbConfig, params};

use crate::queue::{
    error::QueueError,
    item::{InputEnd, InputPosition},
    ledger::{OutputEnd, Tally},
};

/// "forb", so that a job can be told from any other SQLite file.
pub(crate) const APPLICATION_ID: i64 = 0x666f_7262;
/// The format written here. Older ones are migrated when opened, newer ones refused.
pub(crate) const VERSION: i64 = 1;

/// Kinds in `parked`.
pub(crate) const PARKED_UNTIL_TIME: i64 = 0;
pub(crate) const PARKED_UNTIL_NEXT_RUN: i64 = 1;
pub(crate) const PARKED_UNTIL_CREDENTIALS: i64 = 2;

const TABLES: &str = "
CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tally(
  id INTEGER PRIMARY KEY CHECK(id = 1),
  run INTEGER NOT NULL, imported INTEGER NOT NULL, pending INTEGER NOT NULL, parked INTEGER NOT NULL,
  done INTEGER NOT NULL, failed INTEGER NOT NULL, unknown INTEGER NOT NULL,
  out_end INTEGER NOT NULL, last_len INTEGER NOT NULL, last_hash INTEGER NOT NULL,
  input_offset INTEGER NOT NULL, input_line INTEGER NOT NULL, input_end INTEGER NOT NULL);
CREATE TABLE lanes(
  lane INTEGER PRIMARY KEY, key TEXT NOT NULL,
  pending INTEGER NOT NULL DEFAULT 0, parked INTEGER NOT NULL DEFAULT 0,
  done INTEGER NOT NULL DEFAULT 0, failed INTEGER NOT NULL DEFAULT 0);
CREATE UNIQUE INDEX lanes_by_key ON lanes(key);
CREATE TABLE items(seq INTEGER PRIMARY KEY, lane INTEGER NOT NULL, url TEXT, id TEXT, extras TEXT, body BLOB);
CREATE TABLE waiting(lane INTEGER, rank INTEGER, seq INTEGER, PRIMARY KEY(lane, rank, seq)) WITHOUT ROWID;
CREATE TABLE parked(
  seq INTEGER PRIMARY KEY, rank INTEGER NOT NULL, kind INTEGER NOT NULL, due INTEGER, account TEXT, reason TEXT);
CREATE INDEX parked_due ON parked(due) WHERE kind = 0;
CREATE INDEX parked_account ON parked(account) WHERE kind = 2;
CREATE TABLE progress(
  seq INTEGER PRIMARY KEY, attempts INTEGER NOT NULL, refusals INTEGER NOT NULL, run INTEGER NOT NULL,
  limited INTEGER NOT NULL, waited_us INTEGER NOT NULL, started INTEGER, error TEXT);
CREATE TABLE ended(seq INTEGER PRIMARY KEY, ending INTEGER NOT NULL, offset INTEGER, length INTEGER);
CREATE TABLE leased(seq INTEGER PRIMARY KEY);
CREATE TABLE gates(key TEXT PRIMARY KEY, version INTEGER NOT NULL, until INTEGER, record BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO tally VALUES(1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);
";

/// Makes the tables in a new file, with `meta`: all of it or nothing, whenever the process dies.
pub(crate) fn create(db: &mut Connection, meta: &[(&str, &dyn rusqlite::ToSql)]) -> rusqlite::Result<()> {
    // Before the first table: 4 KiB pages suit both the dense number tables and short URLs.
    db.execute_batch("PRAGMA page_size = 4096; PRAGMA journal_mode = WAL;")?;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    tx.execute_batch(&format!(
        "{TABLES} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {VERSION};"
    ))?;
    for (key, value) in meta {
        set_meta(&tx, key, value)?;
    }
    tx.commit()
}

/// Settings that hold for a connection, not for the file. `cache_kib` bounds its memory.
pub(crate) fn tune(db: &Connection, cache_kib: u32) -> rusqlite::Result<()> {
    db.busy_timeout(std::time::Duration::from_secs(10))?;
    db.set_prepared_statement_cache_capacity(64);
    // Else each statement is compiled anew whenever a bound value might make another plan better. There is one plan.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.execute_batch(&format!("PRAGMA cache_size = -{cache_kib}; PRAGMA temp_store = MEMORY;"))
}

/// Whether this is a job, and one of a format that can be read here.
pub(crate) fn check(db: &Connection, path: &Path) -> Result<(), QueueError> {
    let number = |pragma| db.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let application = number("application_id").map_err(|source| classify(path, source))?;
    let version = number("user_version").map_err(|source| classify(path, source))?;
    if application != APPLICATION_ID || version < 1 {
        return Err(QueueError::NotAJob { path: path.to_owned() });
    }
    if version > VERSION {
        return Err(QueueError::TooNew { path: path.to_owned(), version });
    }
    // The place for migrations: while `version < VERSION`, one step each, in a transaction with the new user_version.
    Ok(())
}

/// An SQLite error as one of ours: damage is told apart, for it needs another answer.
pub(crate) fn classify(path: &Path, source: rusqlite::Error) -> QueueError {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    let path = path.to_owned();
    match source.sqlite_error_code() {
        Some(DatabaseCorrupt | NotADatabase) => QueueError::Damaged { path, source: Some(source) },
        _ => QueueError::Database { path, source },
    }
}

/// The row of totals.
pub(crate) fn load_tally(db: &Connection) -> rusqlite::Result<Tally> {
    db.query_row(
        "SELECT run, imported, pending, parked, done, failed, unknown, out_end, last_len, last_hash, input_offset,
           input_line, input_end FROM tally WHERE id = 1",
        [],
        |row| {
            let number = |i| row.get::<_, i64>(i).map(i64::cast_unsigned);
            Ok(Tally {
                run: number(0)?,
                imported: number(1)?,
                pending: number(2)?,
                parked: number(3)?,
                done: number(4)?,
                failed: number(5)?,
                unknown: number(6)?,
                elsewhere: 0,
                fed_elsewhere: false,
                out: OutputEnd { at: number(7)?, last_len: number(8)?, last_hash: number(9)? },
                position: InputPosition { offset: number(10)?, line: number(11)? },
                end: if number(12)? == 0 { InputEnd::More } else { InputEnd::Reached },
            })
        },
    )
}

/// Writes the row of totals.
pub(crate) fn save_tally(db: &Connection, tally: &Tally) -> rusqlite::Result<()> {
    let t = tally;
    let n = u64::cast_signed;
    db.prepare_cached(
        "UPDATE tally SET run=?1, imported=?2, pending=?3, parked=?4, done=?5, failed=?6, unknown=?7, out_end=?8,
           last_len=?9, last_hash=?10, input_offset=?11, input_line=?12, input_end=?13",
    )?
    .execute(params![
        n(t.run),
        n(t.imported),
        n(t.pending),
        n(t.parked),
        n(t.done),
        n(t.failed),
        n(t.unknown),
        n(t.out.at),
        n(t.out.last_len),
        n(t.out.last_hash),
        n(t.position.offset),
        n(t.position.line),
        i64::from(t.end == InputEnd::Reached),
    ])?;
    Ok(())
}

/// A value of `meta`.
pub(crate) fn meta<T: rusqlite::types::FromSql>(db: &Connection, key: &str) -> rusqlite::Result<Option<T>> {
    db.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0)).optional()
}

/// Sets a value of `meta`.
pub(crate) fn set_meta(db: &Connection, key: &str, value: &dyn rusqlite::ToSql) -> rusqlite::Result<()> {
    db.execute("INSERT OR REPLACE INTO meta VALUES(?1, ?2)", params![key, value])?;
    Ok(())
}

/// The job's secret: `given`, or its own, settled the first time it is asked for. SQLite's generator is seeded by the
/// operating system.
pub(crate) fn account_key(db: &Connection, given: Option<[u8; 32]>) -> rusqlite::Result<[u8; 32]> {
    db.execute("INSERT OR IGNORE INTO meta VALUES('account_key', coalesce(?1, randomblob(32)))", [given])?;
    db.query_row("SELECT value FROM meta WHERE key = 'account_key'", [], |row| row.get(0))
}
