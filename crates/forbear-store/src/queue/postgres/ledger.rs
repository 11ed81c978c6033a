//! A group as one transaction of PostgreSQL.
//!
//! The transaction begins before the records are written, with a lock on this process's row in `members`. While that is
//! held nobody can give its leases to others; if the row is gone, others have the items, and their records are not written.
//! The row counts the commits too: so a commit whose answer was lost with the connection is known again, and not repeated.

use std::{sync::Arc, time::Duration};

use forbear_core::time::Timestamp;
use hashbrown::HashMap;
use tokio_postgres::Error;

use super::{
    apply::Changes,
    connect::Db,
    link::{Backoff, Link},
};
use crate::queue::{
    error::QueueError,
    group::Group,
    ledger::{Ledger, Standing, Tally},
};

/// The longest that a leaving process waits for the server.
const LEAVE: Duration = Duration::from_secs(5);
/// What is kept of the lanes' numbers.
const LANES_MAX: usize = 65_536;

pub(crate) struct PgLedger {
    pub(crate) link: Arc<Link>,
    pub(crate) db: Option<Db>,
    /// Commits of this member so far.
    pub(crate) commits: i64,
    pub(crate) lanes: HashMap<Arc<str>, i32>,
    pub(crate) backoff: Backoff,
    pub(crate) soonest: Option<Timestamp>,
    pub(crate) open: bool,
}

impl PgLedger {
    pub(crate) fn new(link: Arc<Link>, db: Db, soonest: Option<Timestamp>) -> PgLedger {
        let (lanes, backoff) = (HashMap::new(), Backoff::new());
        PgLedger { link, db: Some(db), commits: 0, lanes, backoff, soonest, open: false }
    }

    fn wait<T>(&self, work: impl Future<Output = T>) -> T {
        self.link.server.handle().block_on(work)
    }

    /// Opens the transaction, and looks whether this process is still a member.
    fn try_begin(&mut self) -> Result<Standing, Error> {
        let link = self.link.clone();
        if self.db.as_ref().is_none_or(Db::is_closed) {
            self.db = Some(self.wait(link.connect())?);
            self.open = false;
        }
        let Some(db) = &self.db else { return Ok(Standing::Good) };
        let (open, commits) = (self.open, self.commits);
        let (standing, commits, open) = self.wait(async {
            if open {
                db.batch("ROLLBACK").await?;
            }
            db.batch("BEGIN").await?;
            let sql = "SELECT commits FROM members WHERE member = $1 FOR NO KEY UPDATE";
            let row = db.maybe(sql, &[&link.member()]).await?;
            match row.map(|row| row.get::<_, i64>(0)) {
                Some(there) if there == commits => Ok::<_, Error>((Standing::Good, commits, true)),
                Some(there) => {
                    let tally = link.tally(db).await?;
                    db.batch("ROLLBACK").await?;
                    Ok((Standing::Committed(tally), there, false))
                }
                None => {
                    db.batch("ROLLBACK").await?;
                    let member = join(db, link.output, link.lease).await?;
                    link.member.store(member, std::sync::atomic::Ordering::Relaxed);
                    Ok((Standing::Lost { run: member.cast_unsigned() }, 0, false))
                }
            }
        })?;
        (self.commits, self.open) = (commits, open);
        Ok(standing)
    }

    fn failed(&mut self, source: Error) -> QueueError {
        if self.link.is_lost(&source) {
            let pause = self.backoff.next();
            self.wait(async { tokio::time::sleep(pause).await });
        }
        self.link.error(source)
    }
}

impl Ledger for PgLedger {
    fn begin(&mut self) -> Result<Standing, QueueError> {
        match self.try_begin() {
            Ok(standing) => {
                self.backoff.reset();
                self.link.is_back();
                Ok(standing)
            }
            Err(source) => Err(self.failed(source)),
        }
    }

    fn before_records(&mut self) -> Result<(), QueueError> {
        Ok(()) // every commit is synced
    }

    fn commit(&mut self, group: &mut Group, start: Option<u64>) -> Result<Tally, QueueError> {
        let Some(db) = &self.db else { return Err(QueueError::Closed) };
        if self.lanes.len() > LANES_MAX {
            self.lanes.clear();
        }
        let mut lanes = std::mem::take(&mut self.lanes);
        let link = &self.link;
        let done = self.wait(async {
            let mut changes = Changes::new(db, link, &mut lanes);
            changes.write(group, start).await?;
            let tally = link.tally(db).await.map_err(|source| link.error(source))?;
            db.batch("COMMIT").await.map_err(|source| link.error(source))?;
            Ok::<_, QueueError>(tally)
        });
        match done {
            Ok(tally) => {
                self.lanes = lanes;
                self.commits += 1;
                self.open = false;
                Ok(tally)
            }
            Err(QueueError::Unreachable { source, .. }) => Err(self.failed(source)),
            Err(error) => Err(error),
        }
    }

    fn worth_another_try(&self, error: &QueueError, _tries: u32) -> bool {
        matches!(error, QueueError::Unreachable { .. })
    }

    fn soonest(&mut self) -> Option<Timestamp> {
        if let Some(db) = &self.db
            && let Ok(soonest) = self.wait(soonest(db))
        {
            self.soonest = soonest.map(|us| self.link.local_time(us));
        }
        self.soonest
    }

    fn leave(self: Box<Self>, tidily: bool) {
        let Some(db) = self.db.as_ref().filter(|_| tidily) else { return };
        let member = self.link.member();
        let leave = async {
            if self.open {
                db.batch("ROLLBACK").await?;
            }
            // With nobody else at work the totals are in order, and so are the statistics for whoever looks next.
            db.transaction(async |db| give_back(db, &[member]).await).await
        };
        let left = self.wait(async { tokio::time::timeout(LEAVE, leave).await });
        if !matches!(left, Ok(Ok(_))) {
            tracing::debug!("leases end by themselves");
        }
    }
}

/// Becomes a member of the job's run.
pub(crate) async fn join(db: &Db, output: i32, lease: Duration) -> Result<i64, Error> {
    let (host, pid) = (host_name(), i32::try_from(std::process::id()).unwrap_or(0));
    let sql = "INSERT INTO members(output, host, pid, until)
               VALUES ($1, $2, $3, now() + $4 * interval '1 second') RETURNING member";
    Ok(db.one(sql, &[&output, &host, &pid, &lease.as_secs_f64()]).await?.get(0))
}

/// Ends members: what they had in hand is pending again. In a transaction.
pub(crate) async fn give_back(db: &Db, members: &[i64]) -> Result<u64, Error> {
    // The row first: whoever commits or claims for this member waits, and then finds that it is none any more.
    db.execute("DELETE FROM members WHERE member = ANY($1)", &[&members]).await?;
    db.execute(
        "WITH back AS (DELETE FROM leased WHERE member = ANY($1) RETURNING lane, rank, seq)
         INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM back",
        &[&members],
    )
    .await
}

/// When the first of the items parked until a time is due, on the server's clock.
pub(crate) async fn soonest(db: &Db) -> Result<Option<i64>, Error> {
    Ok(db.one("SELECT min(due) FROM parked WHERE kind = 0", &[]).await?.get(0))
}

/// Which machine this is: its id where it has one, for names change and come twice.
pub(crate) fn host_name() -> String {
    let read = |path| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    let id = read("/etc/machine-id").filter(|id| !id.is_empty());
    id.or_else(|| read("/proc/sys/kernel/hostname")).unwrap_or_else(|| "localhost".to_owned())
}
