//! Opening a job: making it where it is new, joining its run, and what this output's last process left behind.

use std::{path::Path, time::Duration};

use hashbrown::HashMap;
use tokio_postgres::Error;

use super::{
    acks::Acks,
    connect::{Db, Server},
    ledger::{PgLedger, give_back, host_name, join, soonest},
    link::{Joined, Link, skew, tally},
    reader::Pages,
    schema::{self, CATALOGUE, MIGRATIONS, TABLES, VERSION},
    seal::Seal,
    watch,
};
use crate::queue::{
    address::{JobAddress, PostgresAddress},
    error::{Event, Events, QueueError},
    input::InputIdentity,
    job::{JobOptions, Opened},
    ledger::OutputEnd,
    output::{Output, OutputTarget},
    pages,
    recover::Recovery,
};

/// One maker at a time, of whatever job: "forbear" as a number.
const MAKING: i64 = 0x66_6f72_6265_6172;

/// See [`Job::open`](crate::queue::Job::open).
pub(crate) fn open(
    queue: &PostgresAddress,
    name: &str,
    options: &JobOptions,
    events: &Events,
) -> Result<Opened, QueueError> {
    let shown = JobAddress::Postgres { queue: queue.clone(), name: name.to_owned() }.shown();
    let key = queue.key()?;
    let server = Server::new(queue, shown)?;
    // A thread of its own: whoever opens a job may be in a runtime, and must not wait there.
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| Opening { server: &server, name, options, events }.run(&key));
        match opening.join() {
            Ok(opened) => opened,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

struct Opening<'a> {
    server: &'a Server,
    name: &'a str,
    options: &'a JobOptions,
    events: &'a Events,
}

/// What a job keeps of itself.
struct Kept {
    seal: Seal,
    account_key: [u8; 32],
    input: Option<InputIdentity>,
    is_new: bool,
}

impl Opening<'_> {
    fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, QueueError> {
        self.server.handle().block_on(work).map_err(|source| self.server.error(source))
    }

    fn run(&self, key: &[u8; 32]) -> Result<Opened, QueueError> {
        let first = self.wait(self.server.connect(None))?;
        let job = match self.wait(find(&first, self.name))? {
            Some(job) => job,
            None => self.make(&first, key)?,
        };
        drop(first);
        let schema = schema::name(job);
        let db = self.wait(self.server.connect(Some(&schema)))?;
        let kept = self.kept(&db, job, key)?;
        let mut output = Output::open(&self.options.output)?;
        let joined = self.join(&db, &mut output, kept.is_new)?;
        let (lease, events) = (self.options.lease, self.events.clone());
        let link =
            std::sync::Arc::new(Link::new(self.server.clone(), schema, kept.seal, events, lease, &joined));
        let (tally, due) =
            self.wait(async { Ok((tally(&db, joined.member, joined.output).await?, soonest(&db).await?)) })?;
        let soonest = due.map(|us| link.local_time(us));
        Ok(Opened {
            ledger: Box::new(PgLedger::new(link.clone(), db, soonest)),
            watch: Some(Box::new({
                let link = link.clone();
                move |shared| drop(link.server.handle().spawn(watch::watch(link.clone(), shared)))
            })),
            pages: pages::Pages::Postgres(Pages { link }),
            output,
            tally,
            run: joined.member.cast_unsigned(),
            soonest,
            input: kept.input,
            account_key: kept.account_key,
        })
    }

    /// Makes the job, unless somebody else just has.
    fn make(&self, db: &Db, key: &[u8; 32]) -> Result<i32, QueueError> {
        let new = Seal::for_new_job(key, self.options.account_key)?;
        let made = db.transaction(async |db| {
            db.execute("SELECT pg_advisory_xact_lock($1)", &[&MAKING]).await?;
            db.batch(CATALOGUE).await?;
            let found = db.maybe("SELECT job FROM forbear.jobs WHERE name = $1", &[&self.name]).await?;
            if let Some(row) = found {
                return Ok::<i32, Error>(row.get(0));
            }
            let insert = "INSERT INTO forbear.jobs(name, format) VALUES ($1, $2) RETURNING job";
            let job: i32 = db.one(insert, &[&self.name, &VERSION]).await?.get(0);
            let schema = schema::name(job);
            db.batch(&format!("CREATE SCHEMA {schema}; SET LOCAL search_path = {schema}; {TABLES}")).await?;
            let client = db.client();
            let insert = "INSERT INTO job(made_by, salt, key_check, account_key) VALUES ($1, $2, $3, $4)";
            let made_by = env!("CARGO_PKG_VERSION");
            client.execute(insert, &[&made_by, &new.salt, &new.check, &new.account_key]).await?;
            Ok(job)
        });
        self.wait(made)
    }

    /// Checks format and key, and migrates what is older.
    fn kept(&self, db: &Db, job: i32, key: &[u8; 32]) -> Result<Kept, QueueError> {
        let row = self.wait(async {
            let format: i32 = db.one("SELECT format FROM forbear.jobs WHERE job = $1", &[&job]).await?.get(0);
            if format < VERSION {
                migrate(db, job).await?;
            }
            let row = db.one("SELECT salt, key_check, account_key, input, run FROM job", &[]).await?;
            Ok((format, row))
        });
        let (format, row) = row?;
        if format > VERSION {
            return Err(QueueError::TooNew { path: self.server.shown().clone(), version: format.into() });
        }
        let seal = Seal::new(key, row.get(0))?;
        let other = || QueueError::OtherKey { at: self.server.shown().clone() };
        if !seal.opens(row.get(1)) {
            return Err(other());
        }
        let account_key = seal.account_key(row.get(2)).ok_or_else(other)?;
        let input = row.get::<_, Option<&str>>(3).and_then(|text| serde_json::from_str(text).ok());
        Ok(Kept { seal, account_key, input, is_new: row.get::<_, i64>(4) == 0 })
    }

    /// Becomes a member, with the output set right. All of it or nothing.
    fn join(&self, db: &Db, output: &mut Output, is_new: bool) -> Result<Joined, QueueError> {
        self.wait(db.batch("BEGIN"))?;
        let joined = self.join_in(db, output, is_new);
        match joined {
            Ok(joined) => {
                self.wait(db.batch("COMMIT"))?;
                Ok(joined)
            }
            Err(error) => {
                let _ = self.wait(db.batch("ROLLBACK"));
                Err(error)
            }
        }
    }

    fn join_in(&self, db: &Db, output: &mut Output, is_new: bool) -> Result<Joined, QueueError> {
        let skew_us = self.wait(skew(db))?;
        // Whoever joins waits for whoever does so at this moment: one of them begins the run.
        let job = self.wait(db.one("SELECT run, input_line FROM job FOR UPDATE", &[]))?;
        let mut run: i64 = job.get(0);
        let number = self.output(db, output, is_new)?;
        let row = "SELECT out_end, last_len, last_hash FROM outputs WHERE output = $1";
        let row = self.wait(db.one(row, &[&number]))?;
        let end = |i: usize| row.get::<_, i64>(i).cast_unsigned();
        // Waits for a commit of theirs that is under way: its connection ends with it.
        let former = "SELECT member FROM members WHERE output = $1 FOR UPDATE";
        let former = self.wait(db.query(former, &[&number]))?;
        let mut acks = Acks {
            db,
            server: self.server,
            handle: self.server.handle(),
            output: number,
            former: former.iter().map(|row| row.get(0)).collect(),
            run,
            last_line: job.get::<_, i64>(1).cast_unsigned(),
            end: OutputEnd { at: end(0), last_len: end(1), last_hash: end(2) },
            lanes: HashMap::new(),
        };
        if let Output::File(out) = output {
            let tell: &dyn Fn(Event) = &**self.events;
            Recovery { job: self.server.shown(), out, tell }.reconcile(&mut acks)?;
            acks.save()?;
        }
        let former = acks.former;
        let lease: Duration = self.options.lease;
        let member = self.wait(async {
            give_back(db, &former).await?;
            let dead = "SELECT member FROM members WHERE until < now()
                          AND pg_postmaster_start_time() + $1 * interval '1 second' < now()
                        FOR UPDATE SKIP LOCKED";
            let dead = db.query(dead, &[&lease.as_secs_f64()]).await?;
            let dead: Vec<i64> = dead.iter().map(|row| row.get(0)).collect();
            give_back(db, &dead).await?;
            let others: i64 = db.one("SELECT count(*) FROM members", &[]).await?.get(0);
            if others == 0 {
                // A run is what goes on while anybody is at work: whoever comes first begins the next one.
                run += 1;
                db.execute("UPDATE job SET run = $1", &[&run]).await?;
                wake_next_run(db, number).await?;
            }
            join(db, number, lease).await
        })?;
        Ok(Joined { member, output: number, run: run.cast_unsigned(), skew_us })
    }

    /// The number of the output: each file has one, by machine and path, and each stream is new.
    fn output(&self, db: &Db, output: &Output, is_new: bool) -> Result<i32, QueueError> {
        let host = host_name();
        let OutputTarget::File(given) = &self.options.output else {
            return self.new_output(db, &host, "-", true);
        };
        let Output::File(file) = output else {
            return self.new_output(db, &host, &given.to_string_lossy(), true);
        };
        let io = |source| QueueError::Io { path: given.clone(), source };
        let path = std::fs::canonicalize(given).map_err(io)?.to_string_lossy().into_owned();
        let sql = "SELECT output FROM outputs WHERE host = $1 AND path = $2 AND NOT is_stream FOR UPDATE";
        if let Some(row) = self.wait(db.maybe(sql, &[&host, &path]))? {
            return Ok(row.get(0));
        }
        if file.file.metadata().map_err(io)?.len() > 0 {
            let job = self.server.shown().clone();
            return Err(if is_new {
                QueueError::OutputOccupied { path: job, out: given.clone() }
            } else {
                QueueError::OutputOfNobody { at: job, out: given.clone() }
            });
        }
        sync_directory(Path::new(&path));
        self.new_output(db, &host, &path, false)
    }

    fn new_output(&self, db: &Db, host: &str, path: &str, is_stream: bool) -> Result<i32, QueueError> {
        let sql = "INSERT INTO outputs(host, path, is_stream) VALUES ($1, $2, $3) RETURNING output";
        Ok(self.wait(db.one(sql, &[&host, &path, &is_stream]))?.get(0))
    }
}

/// Brings the tables of an older format to this one, or leaves them as they were. Whoever is at work meanwhile goes on.
async fn migrate(db: &Db, job: i32) -> Result<(), Error> {
    db.transaction(async |db| {
        // Of two that open it one migrates, and the other finds it done.
        let format = "SELECT format FROM forbear.jobs WHERE job = $1 FOR UPDATE";
        let format: i32 = db.one(format, &[&job]).await?.get(0);
        for step in MIGRATIONS.iter().skip(usize::try_from(format - 1).unwrap_or(0)) {
            db.batch(step).await?;
        }
        let set = "UPDATE forbear.jobs SET format = greatest(format, $2) WHERE job = $1";
        db.execute(set, &[&job, &VERSION]).await.map(drop)
    })
    .await
}

/// The number of the job of this name, if there is one.
pub(crate) async fn find(db: &Db, name: &str) -> Result<Option<i32>, Error> {
    let there: bool = db.one("SELECT to_regclass('forbear.jobs') IS NOT NULL", &[]).await?.get(0);
    if !there {
        return Ok(None);
    }
    Ok(db.maybe("SELECT job FROM forbear.jobs WHERE name = $1", &[&name]).await?.map(|row| row.get(0)))
}

/// Makes items pending that waited for this run.
async fn wake_next_run(db: &Db, output: i32) -> Result<(), Error> {
    unpark(db, output, "kind = 1").await.map(drop)
}

/// Makes parked items pending: those of which `which` is true. Gives their number.
pub(crate) async fn unpark(db: &Db, output: i32, which: &str) -> Result<u64, Error> {
    let sql = format!(
        "WITH woken AS (DELETE FROM parked WHERE {which} RETURNING seq, lane, rank),
         ready AS (INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM woken),
         counts AS (
           INSERT INTO lane_counts AS c (lane, output, imported, parked, done, failed)
           SELECT lane, $1, 0, -count(*), 0, 0 FROM woken GROUP BY lane ORDER BY lane
           ON CONFLICT (lane, output) DO UPDATE SET parked = c.parked + excluded.parked),
         total AS (UPDATE outputs SET parked = parked - (SELECT count(*) FROM woken) WHERE output = $1)
         SELECT count(*) FROM woken"
    );
    let row = db.client().query_one(&sql, &[&output]).await?;
    Ok(row.get::<_, i64>(0).cast_unsigned())
}

/// As well as the file system can: not all know how.
fn sync_directory(of: &Path) {
    if let Some(dir) = of.parent()
        && let Err(error) = std::fs::File::open(dir).and_then(|dir| dir.sync_all())
    {
        tracing::debug!(%error, "directory not synced");
    }
}
