//! A group as one transaction of SQLite.

use std::{fs::File, path::PathBuf};

use forbear_core::time::Timestamp;
use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior};

use super::{
    apply::{Changes, Ended, LaneNumbers},
    exits, gates,
    lock::JobLock,
    reader::write_counters,
    schema,
};
use crate::queue::{
    error::QueueError,
    group::{Group, records},
    ledger::{Ledger, OutputEnd, Tally, timestamp},
    shared::Command,
};

/// Tries after an I/O error of the database that is not said to be a full disk.
const IO_TRIES: u32 = 5;
/// SQLite's page cache for the writer: upper levels of every tree, and the hot leaves of a few hundred lanes.
const WRITER_CACHE_KIB: u32 = 16 << 10;
/// Pages in the write-ahead log before they are copied into the file: 16 MiB, so that a page written in many groups is
/// copied once.
const CHECKPOINT_PAGES: u32 = 4096;

/// The writing connection, and the lock that makes it the only one.
pub(crate) struct SqliteLedger {
    pub(crate) db: Connection,
    pub(crate) path: PathBuf,
    pub(crate) lock: JobLock,
    pub(crate) numbers: LaneNumbers,
    pub(crate) tally: Tally,
    /// Whether the connection syncs its commits now.
    pub(crate) synced: bool,
    /// Imports are committed and not synced yet.
    pub(crate) unsynced_imports: bool,
}

/// Settings of the writing connection.
pub(crate) fn tune(db: &Connection) -> rusqlite::Result<()> {
    schema::tune(db, WRITER_CACHE_KIB)?;
    db.execute_batch(&format!(
        "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES};
         PRAGMA journal_size_limit = {};",
        64 << 20
    ))
}

impl Ledger for SqliteLedger {
    fn before_records(&mut self) -> Result<(), QueueError> {
        if self.unsynced_imports { self.sync_log() } else { Ok(()) }
    }

    fn commit(&mut self, group: &mut Group, start: Option<u64>) -> Result<Tally, QueueError> {
        match self.write(group, start) {
            Ok(tally) => {
                self.tally = tally;
                Ok(tally)
            }
            Err(source) => {
                self.numbers.forget();
                Err(schema::classify(&self.path, source))
            }
        }
    }

    fn worth_another_try(&self, error: &QueueError, tries: u32) -> bool {
        let QueueError::Database { source, .. } = error else { return false };
        match source.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => true,
            // A quota or a size limit, as SQLite reports it. A broken disk looks the same, and is waited for too.
            Some(ErrorCode::SystemIoFailure) if is_write_error(source) => true,
            Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseBusy) => tries < IO_TRIES,
            _ => false,
        }
    }

    fn soonest(&mut self) -> Option<Timestamp> {
        soonest_due(&self.db)
    }

    fn leave(self: Box<Self>, tidily: bool) {
        let SqliteLedger { db, lock, .. } = *self;
        if tidily && let Err(error) = db.execute("DELETE FROM leased", []) {
            tracing::debug!(%error, "leases stay shown until the next run");
        }
        // The last connection copies the log into the file and removes it.
        drop(db);
        lock.release();
    }
}

impl SqliteLedger {
    /// Makes durable what was committed so far.
    fn sync_log(&mut self) -> Result<(), QueueError> {
        let mut path = self.path.clone().into_os_string();
        path.push("-wal");
        let path = PathBuf::from(path);
        File::open(&path)
            .and_then(|log| log.sync_data())
            .map_err(|source| QueueError::Io { path, source })?;
        self.unsynced_imports = false;
        Ok(())
    }

    fn write(&mut self, group: &mut Group, start: Option<u64>) -> rusqlite::Result<Tally> {
        use Command::{Exits, Finish, Import, Progress};
        let may_wait = |c: &Command| matches!(c, Finish { .. } | Progress { .. } | Import(_) | Exits(_));
        let sync = !group.gates.is_empty() || group.closing || !group.commands.iter().all(may_wait);
        if sync != self.synced {
            self.db.execute_batch(if sync {
                "PRAGMA synchronous = FULL"
            } else {
                "PRAGMA synchronous = NORMAL"
            })?;
            self.synced = sync;
        }
        let tx = self.db.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let mut changes = Changes::new(&tx, self.tally, &mut self.numbers);
        let mut offset = start;
        let mut next = |record: &[u8]| {
            let length = record.len() as u64;
            let at = offset?;
            offset = Some(at + length);
            Some((at, length))
        };
        for plan in group.finishes.iter().filter(|plan| !plan.lost) {
            let Command::Finish { finish, .. } = &group.commands[plan.command] else { continue };
            changes.end(&Ended {
                place: plan.place,
                ending: finish.ending,
                record: next(&finish.record),
                counters: &finish.counters,
                has_progress: plan.has_progress,
                shown: plan.shown,
            })?;
        }
        for (index, place) in &group.parks {
            let Command::Park { until, reason, counters, .. } = &group.commands[*index] else { continue };
            changes.park(*place, until, reason, counters)?;
        }
        for (seq, counters) in &group.progress {
            write_counters(&tx, *seq, self.tally.run, counters)?;
        }
        group.imported.clear();
        group.woken.clear();
        for (index, command) in group.commands.iter().enumerate() {
            match command {
                Command::Import(batch) => {
                    group.imported.extend(changes.import(batch)?);
                    for bad in &batch.bad {
                        changes.import_bad(bad.seq, &bad.record, next(&bad.record))?;
                    }
                }
                Command::Wake { now, limit, .. } => {
                    group.woken.push((index, changes.wake_due(*now, *limit)?))
                }
                Command::Credentials { account, .. } => {
                    group.woken.push((index, changes.wake_account(account)?))
                }
                Command::Input(identity) => {
                    let text = serde_json::to_string(identity).expect("strings and numbers always make JSON");
                    schema::set_meta(&tx, "input", &text)?;
                }
                Exits(new) => exits::add(&tx, new)?,
                _ => {}
            }
        }
        for seq in &group.hide {
            changes.hide_leased(*seq)?;
        }
        for seq in &group.show {
            changes.show_leased(*seq)?;
        }
        for (key, gate) in &group.gates {
            match gate {
                Some(gate) => gates::save(&tx, gate)?,
                None => gates::delete(&tx, key)?,
            }
        }
        if let (Some(end), Some(last)) = (offset, records(group).last()) {
            changes.tally.out = OutputEnd::after(last, end);
        }
        let tally = changes.save()?;
        tx.commit()?;
        if sync {
            self.unsynced_imports = false;
        } else {
            self.unsynced_imports |= group.commands.iter().any(|c| matches!(c, Import(_)));
        }
        Ok(tally)
    }
}

fn is_write_error(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|e| e.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE)
}

/// When the first of the items parked until a time is due.
pub(crate) fn soonest_due(db: &Connection) -> Option<Timestamp> {
    db.prepare_cached("SELECT min(due) FROM parked WHERE kind = 0")
        .and_then(|mut s| s.query_row([], |row| row.get::<_, Option<i64>>(0)).optional())
        .ok()
        .flatten()
        .flatten()
        .map(timestamp)
}
