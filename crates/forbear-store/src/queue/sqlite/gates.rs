//! Gates in the file.

use rusqlite::{Connection, OptionalExtension, params};

use crate::queue::{
    gates::GateRecord,
    ledger::{micros, timestamp},
};

pub(crate) fn save(db: &Connection, gate: &GateRecord) -> rusqlite::Result<()> {
    db.prepare_cached("INSERT OR REPLACE INTO gates(key, version, until, record) VALUES(?1, ?2, ?3, ?4)")?
        .execute(params![gate.key, gate.version, gate.until.map(micros), gate.record])?;
    Ok(())
}

pub(crate) fn delete(db: &Connection, key: &str) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM gates WHERE key = ?1")?.execute([key])?;
    Ok(())
}

pub(crate) fn load(db: &Connection, key: &str) -> rusqlite::Result<Option<GateRecord>> {
    db.prepare_cached("SELECT key, version, until, record FROM gates WHERE key = ?1")?
        .query_row([key], read)
        .optional()
}

/// Up to `limit` gates with a key after `after`.
pub(crate) fn page(db: &Connection, after: &str, limit: usize) -> rusqlite::Result<Vec<GateRecord>> {
    db.prepare_cached("SELECT key, version, until, record FROM gates WHERE key > ?1 ORDER BY key LIMIT ?2")?
        .query_map(params![after, limit as i64], read)?
        .collect()
}

fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<GateRecord> {
    Ok(GateRecord {
        key: row.get(0)?,
        version: row.get(1)?,
        until: row.get::<_, Option<i64>>(2)?.map(timestamp),
        record: row.get(3)?,
    })
}
