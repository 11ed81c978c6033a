//! Exits in the file.

use rusqlite::{Connection, OptionalExtension, params};

use crate::queue::exits::{EXITS_MAX, ExitRow};

/// Adds what is new to what the file has. The table is made when it is first needed: a version that does not know of it
/// reads past it, so the format's number stays.
pub(crate) fn add(db: &Connection, changes: &[ExitRow]) -> rusqlite::Result<()> {
    db.execute_batch(
        "CREATE TABLE IF NOT EXISTS exits(
           name TEXT PRIMARY KEY, state TEXT NOT NULL, requests INTEGER NOT NULL, done INTEGER NOT NULL,
           refused INTEGER NOT NULL, blocked INTEGER NOT NULL, faults INTEGER NOT NULL, bytes INTEGER NOT NULL,
           cost REAL) WITHOUT ROWID",
    )?;
    let mut known: i64 = db.query_row("SELECT count(*) FROM exits", [], |row| row.get(0))?;
    let mut update = db.prepare_cached(
        "UPDATE exits SET state = ?2, requests = requests + ?3, done = done + ?4, refused = refused + ?5,
           blocked = blocked + ?6, faults = faults + ?7, bytes = bytes + ?8,
           cost = coalesce(cost + ?9, cost, ?9) WHERE name = ?1",
    )?;
    let mut insert = db.prepare_cached(
        "INSERT INTO exits(name, state, requests, done, refused, blocked, faults, bytes, cost)
         VALUES(?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
    )?;
    let n = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for row in changes {
        let values = params![
            row.name,
            row.state,
            n(row.requests),
            n(row.done),
            n(row.refused),
            n(row.blocked),
            n(row.faults),
            n(row.bytes),
            row.cost,
        ];
        if update.execute(values)? == 0 && known < EXITS_MAX as i64 {
            insert.execute(values)?;
            known += 1;
        }
    }
    Ok(())
}

/// What the file has: the busiest first; nothing where no run has used exits.
pub(crate) fn all(db: &Connection) -> rusqlite::Result<Vec<ExitRow>> {
    let table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'exits'";
    if db.query_row(table, [], |_| Ok(())).optional()?.is_none() {
        return Ok(Vec::new());
    }
    db.prepare_cached(
        "SELECT name, state, requests, done, refused, blocked, faults, bytes, cost FROM exits
         ORDER BY requests DESC, name LIMIT ?1",
    )?
    .query_map([EXITS_MAX as i64], |row| {
        let number = |i| row.get::<_, i64>(i).map(|n| u64::try_from(n).unwrap_or(0));
        Ok(ExitRow {
            name: row.get(0)?,
            state: row.get(1)?,
            requests: number(2)?,
            done: number(3)?,
            refused: number(4)?,
            blocked: number(5)?,
            faults: number(6)?,
            bytes: number(7)?,
            cost: row.get(8)?,
        })
    })?
    .collect()
}
