//! What all parts of one process share of its place in the database: connection for reading, membership, clock.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, SystemTime},
};

use forbear_core::time::Timestamp;
use tokio_postgres::{Error, Row};

use super::{
    connect::{Db, Server},
    failure::is_lost,
    seal::Seal,
};
use crate::queue::{
    error::{Event, Events, QueueError},
    item::{InputEnd, InputPosition},
    ledger::{OutputEnd, Tally, micros, timestamp},
};

/// Between two tries to reach a server that is gone.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(3);
/// Two clocks that are as near to each other as this, and as half of the way to the server, are one: nothing that is parked
/// is worth more.
const SAME_CLOCK: Duration = Duration::from_millis(20);

pub(crate) struct Link {
    pub(crate) server: Server,
    pub(crate) schema: String,
    pub(crate) seal: Seal,
    pub(crate) events: Events,
    pub(crate) lease: Duration,
    /// Which member this process is. Another number after its lease was lost.
    pub(crate) member: AtomicI64,
    pub(crate) output: i32,
    /// The run of the job, which all its members share.
    pub(crate) run: AtomicU64,
    /// Somebody has found less than was asked for.
    pub(crate) hungry: AtomicBool,
    /// Read by each claim on its way: whoever writes knows that none is.
    pub(crate) claims: tokio::sync::RwLock<()>,
    /// The answer of a claim was lost with the connection: it may have been made all the same.
    pub(crate) unheard: AtomicBool,
    /// The server's clock less this machine's, in microseconds.
    skew_us: AtomicI64,
    lost: AtomicBool,
    reading: tokio::sync::Mutex<Option<Arc<Db>>>,
}

/// What opening has found out.
pub(crate) struct Joined {
    pub(crate) member: i64,
    pub(crate) output: i32,
    pub(crate) run: u64,
    pub(crate) skew_us: i64,
}

impl Link {
    pub(crate) fn new(
        server: Server,
        schema: String,
        seal: Seal,
        events: Events,
        lease: Duration,
        joined: &Joined,
    ) -> Link {
        Link {
            server,
            schema,
            seal,
            events,
            lease,
            member: AtomicI64::new(joined.member),
            output: joined.output,
            run: AtomicU64::new(joined.run),
            hungry: AtomicBool::new(false),
            claims: tokio::sync::RwLock::new(()),
            unheard: AtomicBool::new(false),
            skew_us: AtomicI64::new(joined.skew_us),
            lost: AtomicBool::new(false),
            reading: tokio::sync::Mutex::new(None),
        }
    }

    pub(crate) fn member(&self) -> i64 {
        self.member.load(Relaxed)
    }

    /// The connection that is read by; a new one where it is gone.
    pub(crate) async fn db(&self) -> Result<Arc<Db>, Error> {
        let mut reading = self.reading.lock().await;
        match &*reading {
            Some(db) if !db.is_closed() => Ok(db.clone()),
            _ => {
                let db = Arc::new(self.server.connect(Some(&self.schema)).await?);
                *reading = Some(db.clone());
                Ok(db)
            }
        }
    }

    /// A connection for the writer, once the server is there; gives up when it is asked to.
    pub(crate) async fn connect(&self) -> Result<Db, Error> {
        self.server.connect(Some(&self.schema)).await
    }

    /// Says that the server is gone, once.
    pub(crate) fn is_lost(&self, error: &Error) -> bool {
        let lost = is_lost(error);
        if lost {
            tracing::debug!(%error, "the queue's server is lost");
            if !self.lost.swap(true, Relaxed) {
                (self.events)(Event::QueueLost { at: self.server.shown().clone() });
            }
        }
        lost
    }

    /// Says that it is there again, once.
    pub(crate) fn is_back(&self) {
        if self.lost.swap(false, Relaxed) {
            (self.events)(Event::QueueBack { at: self.server.shown().clone() });
        }
    }

    pub(crate) fn error(&self, source: Error) -> QueueError {
        self.server.error(source)
    }

    /// A moment of this machine's wall clock on the server's.
    pub(crate) fn server_time(&self, at: Timestamp) -> i64 {
        micros(at).saturating_add(self.skew_us.load(Relaxed))
    }

    /// And back.
    pub(crate) fn local_time(&self, us: i64) -> Timestamp {
        timestamp(if us == i64::MAX { us } else { us.saturating_sub(self.skew_us.load(Relaxed)) })
    }

    /// Compares the clocks.
    pub(crate) async fn compare_clocks(&self, db: &Db) -> Result<(), Error> {
        self.skew_us.store(skew(db).await?, Relaxed);
        Ok(())
    }

    /// Totals of the whole job, as this process sees them.
    pub(crate) async fn tally(&self, db: &Db) -> Result<Tally, Error> {
        tally(db, self.member(), self.output).await
    }
}

/// The server's clock less ours, or zero where that cannot be told from zero.
pub(crate) async fn skew(db: &Db) -> Result<i64, Error> {
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let before = now();
    let row = db.one("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", &[]).await?;
    let after = now();
    let half = after.saturating_sub(before) / 2;
    let ours = i64::try_from((before + half).as_micros()).unwrap_or(i64::MAX);
    let skew = row.get::<_, i64>(0).saturating_sub(ours);
    let sure = Duration::from_micros(skew.unsigned_abs()) > half + SAME_CLOCK;
    Ok(if sure { skew } else { 0 })
}

pub(crate) async fn tally(db: &Db, member: i64, output: i32) -> Result<Tally, Error> {
    let row = db
        .one(
            "SELECT j.run, t.imported, t.parked, t.done, t.failed, t.unknown,
               (SELECT coalesce(sum(m.held), 0)::bigint FROM members m WHERE m.member <> $1),
               o.out_end, o.last_len, o.last_hash, j.input_offset, j.input_line, j.input_end,
               j.importer <> $1 AND EXISTS (SELECT FROM members m WHERE m.member = j.importer)
             FROM job j, outputs o, (
               SELECT sum(imported)::bigint AS imported, sum(parked)::bigint AS parked, sum(done)::bigint AS done,
                 sum(failed)::bigint AS failed, sum(unknown)::bigint AS unknown FROM outputs) t
             WHERE o.output = $2",
            &[&member, &output],
        )
        .await?;
    Ok(read_tally(&row))
}

fn read_tally(row: &Row) -> Tally {
    let number = |i: usize| u64::try_from(row.get::<_, i64>(i)).unwrap_or(0);
    let (imported, parked, done, failed, unknown) = (number(1), number(2), number(3), number(4), number(5));
    let open = imported.saturating_sub(parked + done + failed + unknown);
    let elsewhere = number(6).min(open);
    Tally {
        run: number(0),
        imported,
        pending: open - elsewhere,
        elsewhere,
        parked,
        done,
        failed,
        unknown,
        out: OutputEnd {
            at: number(7),
            last_len: number(8),
            last_hash: row.get::<_, i64>(9).cast_unsigned(),
        },
        position: InputPosition { offset: number(10), line: number(11) },
        end: if row.get(12) { InputEnd::Reached } else { InputEnd::More },
        fed_elsewhere: row.get::<_, Option<bool>>(13) == Some(true),
    }
}

/// Pauses between tries.
pub(crate) struct Backoff(Duration);

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff(RETRY_FIRST)
    }

    pub(crate) fn next(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (self.0 * 2).min(RETRY_MAX);
        pause
    }

    pub(crate) fn reset(&mut self) {
        self.0 = RETRY_FIRST;
    }
}
