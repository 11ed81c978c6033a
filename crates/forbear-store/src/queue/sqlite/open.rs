//! Opening a job: what is there, whose it is, and what the last run left behind.

use std::{
    fs::{self, OpenOptions},
    io::{self, Read},
    path::Path,
    time::SystemTime,
};

use forbear_core::time::Timestamp;
use rusqlite::{Connection, TransactionBehavior};

use super::{
    acks::Acks,
    apply::{Changes, LaneNumbers},
    ledger::{self, SqliteLedger},
    lock::JobLock,
    reader::Pages,
    schema::{self, classify},
};
use crate::queue::{
    error::{Event, QueueError},
    job::{JobOptions, Opened},
    ledger::{Tally, micros},
    output::{Output, OutputTarget},
    pages,
    recover::Recovery,
};

/// What a file is before SQLite looks at it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Kind {
    Missing,
    Empty,
    Zeros,
    Sqlite,
    Other,
}

/// See [`Job::open`](crate::queue::Job::open).
pub(crate) fn open(path: &Path, options: &JobOptions, tell: &dyn Fn(Event)) -> Result<Opened, QueueError> {
    let lock = JobLock::take(path)?;
    match open_locked(path, options, tell) {
        Ok((db, output, tally, account_key)) => {
            let input = schema::meta::<String>(&db, "input").map_err(|source| classify(path, source))?;
            let input = input.and_then(|text| serde_json::from_str(&text).ok());
            let soonest = ledger::soonest_due(&db);
            let ledger = SqliteLedger {
                db,
                path: path.to_owned(),
                lock,
                numbers: LaneNumbers::default(),
                tally,
                synced: true,
                unsynced_imports: false,
            };
            let (ledger, pages) = (Box::new(ledger), pages::Pages::Sqlite(Pages::open(path)?));
            let run = tally.run;
            Ok(Opened { ledger, pages, output, tally, run, soonest, input, account_key, watch: None })
        }
        Err(error) => {
            lock.release();
            Err(error)
        }
    }
}

fn open_locked(
    path: &Path,
    options: &JobOptions,
    tell: &dyn Fn(Event),
) -> Result<(Connection, Output, Tally, [u8; 32]), QueueError> {
    let target = &options.output;
    let io = |source| QueueError::Io { path: path.to_owned(), source };
    let mut kind = kind(path).map_err(io)?;
    refuse_foreign(path, kind)?;
    if kind == Kind::Missing {
        refuse_occupied(path, target)?;
    }
    private(path).map_err(io)?;
    let db_error = |source| classify(path, source);
    let mut db = Connection::open(path).map_err(db_error)?;
    ledger::tune(&db).map_err(db_error)?;
    if kind == Kind::Sqlite && is_blank(&db).map_err(db_error)? {
        // A run that was killed while it made the file.
        kind = Kind::Empty;
    }
    let stored = target.stored(path).map_err(io)?;
    if kind == Kind::Sqlite {
        schema::check(&db, path)?;
        let was = schema::meta::<String>(&db, "output").map_err(db_error)?.unwrap_or_default();
        if was != stored {
            return Err(QueueError::OtherOutput { path: path.to_owned(), stored: was, given: stored });
        }
    } else {
        refuse_occupied(path, target)?;
        if kind == Kind::Empty {
            tell(Event::StartedOverEmpty { path: path.to_owned() });
        }
        create(&mut db, &stored).map_err(db_error)?;
    }
    let mut output = Output::open(target)?;
    if kind != Kind::Sqlite {
        // Else a power cut could leave a job whose output, full of synced records, has no name.
        sync_directory(path);
        sync_directory(output.path());
    }
    let tally = start_run(&mut db, path, &mut output, tell)?;
    let account_key = schema::account_key(&db, options.account_key).map_err(db_error)?;
    Ok((db, output, tally, account_key))
}

/// Begins a run: no lease of the last one is good, and the output ends where the job says.
fn start_run(
    db: &mut Connection,
    path: &Path,
    output: &mut Output,
    tell: &dyn Fn(Event),
) -> Result<Tally, QueueError> {
    let error = |source| classify(path, source);
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(error)?;
    let mut numbers = LaneNumbers::default();
    let mut tally = schema::load_tally(&tx).map_err(error)?;
    tally.run += 1;
    tx.execute("DELETE FROM leased", []).map_err(error)?;
    let mut changes = Changes::new(&tx, tally, &mut numbers);
    if let Output::File(out) = output {
        let mut acks = Acks { db: &tx, path, changes: &mut changes };
        Recovery { job: path, out, tell }.reconcile(&mut acks)?;
    }
    changes.wake_next_run().map_err(error)?;
    let tally = changes.save().map_err(error)?;
    tx.commit().map_err(error)?;
    Ok(tally)
}

fn create(db: &mut Connection, output: &str) -> rusqlite::Result<()> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let created = micros(Timestamp::ZERO.plus(now));
    schema::create(db, &[("created", &created), ("made_by", &env!("CARGO_PKG_VERSION")), ("output", &output)])
}

/// As well as the file system can: not all know how.
fn sync_directory(of: &Path) {
    let dir = match of.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        _ => Path::new("."),
    };
    if let Err(error) = fs::File::open(dir).and_then(|dir| dir.sync_all()) {
        tracing::debug!(%error, "directory not synced");
    }
}

/// Only a file that is a job, or nothing at all, may be opened.
pub(crate) fn refuse_foreign(path: &Path, kind: Kind) -> Result<(), QueueError> {
    match kind {
        Kind::Zeros => Err(QueueError::Zeros { path: path.to_owned() }),
        Kind::Other => Err(QueueError::NotAJob { path: path.to_owned() }),
        Kind::Missing | Kind::Empty | Kind::Sqlite => Ok(()),
    }
}

/// A new job must not add to what another one, or this one before it was lost, has written.
fn refuse_occupied(path: &Path, target: &OutputTarget) -> Result<(), QueueError> {
    let OutputTarget::File(out) = target else { return Ok(()) };
    match fs::metadata(out) {
        Ok(meta) if meta.is_file() && meta.len() > 0 => {
            Err(QueueError::OutputOccupied { path: path.to_owned(), out: out.clone() })
        }
        _ => Ok(()),
    }
}

pub(crate) fn kind(path: &Path) -> io::Result<Kind> {
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Kind::Missing),
        Err(error) => return Err(error),
    };
    let mut head = Vec::new();
    file.take(4096).read_to_end(&mut head)?;
    Ok(match head.as_slice() {
        [] => Kind::Empty,
        head if head.starts_with(b"SQLite format 3\0") => Kind::Sqlite,
        head if head.iter().all(|byte| *byte == 0) => Kind::Zeros,
        _ => Kind::Other,
    })
}

/// Whether the database has no tables and is nobody's.
pub(crate) fn is_blank(db: &Connection) -> rusqlite::Result<bool> {
    let tables: i64 = db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    let application: i64 = db.pragma_query_value(None, "application_id", |row| row.get(0))?;
    Ok(tables == 0 && application == 0)
}

/// Makes the file if need be, readable by its owner only (K1). SQLite gives its log the same mode.
fn private(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        options.mode(0o600);
        let file = options.open(path)?;
        if file.metadata()?.permissions().mode() & 0o077 != 0 {
            file.set_permissions(fs::Permissions::from_mode(0o600))?;
        }
    }
    #[cfg(not(unix))]
    options.open(path)?;
    Ok(())
}
