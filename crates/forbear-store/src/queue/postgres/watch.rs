//! What goes on beside the work: the lease is renewed, dead members are found, totals are read, and whoever wants work
//! hears that there is some.

use std::{
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use hashbrown::HashSet;
use tokio_postgres::Error;

use super::{
    connect::Db,
    ledger::{give_back, soonest},
    link::{Backoff, Link},
};
use crate::queue::{
    item::Seq,
    shared::{Command, Shared},
};

/// How often the totals are read.
const LOOK: Duration = Duration::from_millis(250);

/// Runs until the job is closed.
pub(crate) async fn watch(link: Arc<Link>, shared: Weak<Shared>) {
    let mut backoff = Backoff::new();
    let mut renewed = Instant::now();
    let mut last_held = 0;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(shared) = shared.upgrade() else { return };
        if shared.inner.lock().gone {
            return;
        }
        give_back_returned(&shared);
        let due = renewed.elapsed() >= link.lease / 3;
        match look(&link, &shared, due, &mut last_held).await {
            Ok(()) => {
                link.is_back();
                backoff.reset();
                if due {
                    renewed = Instant::now();
                }
            }
            Err(error) => {
                if !link.is_lost(&error) {
                    tracing::debug!(%error, "the queue could not be looked at");
                }
                drop(shared);
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }
}

async fn look(link: &Link, shared: &Arc<Shared>, due: bool, last_held: &mut i64) -> Result<(), Error> {
    let db = link.db().await?;
    let (held, commits) = {
        let inner = shared.inner.lock();
        (i64::try_from(inner.leased).unwrap_or(i64::MAX), inner.commits)
    };
    if due || held != *last_held {
        if !renew(&db, link, held).await? {
            // The writer is the one who joins again; it is told to look.
            let _ = shared.send(Command::Look, true);
        }
        *last_held = held;
    }
    if due {
        link.compare_clocks(&db).await?;
        reap(&db, link).await?;
    }
    if link.unheard.swap(false, Relaxed) || due {
        give_back_unheard(&db, link, shared).await.inspect_err(|_| link.unheard.store(true, Relaxed))?;
    }
    let tally = link.tally(&db).await?;
    let soonest = soonest(&db).await?.map(|us| link.local_time(us));
    let mut inner = shared.inner.lock();
    // What was committed meanwhile is newer.
    if inner.commits != commits {
        return Ok(());
    }
    inner.tally = tally;
    inner.set_soonest(soonest);
    let pending = tally.pending > inner.leased;
    drop(inner);
    if pending && link.hungry.swap(false, Relaxed) {
        shared.arrivals.send_modify(|n| *n += 1);
    }
    Ok(())
}

/// Makes the lease longer; false if there is none any more. A commit that goes on at this moment holds the row, and makes it
/// longer itself.
async fn renew(db: &Db, link: &Link, held: i64) -> Result<bool, Error> {
    let row = db
        .one(
            "WITH mine AS (
               UPDATE members SET until = now() + $2 * interval '1 second', held = $3
               WHERE member = (SELECT member FROM members WHERE member = $1 FOR NO KEY UPDATE SKIP LOCKED)
               RETURNING member)
             SELECT EXISTS (SELECT FROM mine) OR EXISTS (SELECT FROM members WHERE member = $1)",
            &[&link.member(), &link.lease.as_secs_f64(), &held],
        )
        .await?;
    Ok(row.get(0))
}

/// Ends members whose lease is over. A server that has just been started knows nothing of who is alive: everybody has the
/// length of a lease to be heard of again.
pub(crate) async fn reap(db: &Db, link: &Link) -> Result<(), Error> {
    let dead = "SELECT member FROM members
                WHERE until < now() AND member <> $1
                  AND pg_postmaster_start_time() + $2 * interval '1 second' < now()";
    let dead = db.query(dead, &[&link.member(), &link.lease.as_secs_f64()]).await?;
    for member in dead.iter().map(|row| row.get::<_, i64>(0)) {
        // On a connection of its own: a transaction is no place for the claims that go over the other.
        let db = link.connect().await?;
        db.transaction(async |db| {
            let sql = "SELECT member FROM members WHERE member = $1 AND until < now() FOR UPDATE SKIP LOCKED";
            if db.maybe(sql, &[&member]).await?.is_some() {
                let items = give_back(db, &[member]).await?;
                tracing::info!(
                    member,
                    items,
                    "a process has not been heard of, and its items are pending again"
                );
            }
            Ok::<_, Error>(())
        })
        .await?;
    }
    Ok(())
}

/// Gives back what stands as claimed by this process, and is not in its hands: the answer of its claim was lost. At once after a
/// connection was lost, and from time to time, for a server may end a claim long after its connection.
async fn give_back_unheard(db: &Db, link: &Link, shared: &Shared) -> Result<(), Error> {
    let _none_on_its_way = link.claims.write().await;
    let member = link.member();
    // What is in hand *before* the look: an item whose end becomes durable during it may be seen as claimed still.
    let held: HashSet<Seq> = shared.inner.lock().held.keys().copied().collect();
    let rows = db.query("SELECT seq FROM leased WHERE member = $1", &[&member]).await?;
    let mut unheard: Vec<i64> = rows.iter().map(|row| row.get(0)).collect();
    unheard.retain(|seq| !held.contains(&Seq(seq.cast_unsigned())));
    if unheard.is_empty() {
        return Ok(());
    }
    let back =
        "WITH back AS (DELETE FROM leased WHERE member = $1 AND seq = ANY($2) RETURNING lane, rank, seq)
                INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM back";
    let items = db.execute(back, &[&member, &unheard]).await?;
    tracing::info!(items, "claimed as the queue's server was lost, and pending again");
    link.hungry.store(true, Relaxed);
    Ok(())
}

/// What was given back and is not taken again at once is for everybody.
fn give_back_returned(shared: &Shared) {
    let mut inner = shared.inner.lock();
    let waiting: Vec<_> = inner.lanes.values_mut().flat_map(|lane| lane.returned.drain(..)).collect();
    if waiting.is_empty() || inner.refuse().is_err() {
        return;
    }
    inner.release_all(waiting.iter().map(|item| item.lease.seq()));
    shared.push(
        &mut inner,
        Command::Release(waiting.into_iter().map(|item| item.lease.seq()).collect()),
        false,
    );
}
