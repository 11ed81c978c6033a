//! A group's changes as SQL. Nothing here decides; it moves numbers between tables and counts.

use std::{pin::pin, sync::Arc};

use hashbrown::{HashMap, HashSet};
use tokio_postgres::{
    Error, Row,
    binary_copy::BinaryCopyInWriter,
    types::{ToSql, Type},
};

use super::{
    connect::Db,
    link::Link,
    schema::{PARKED_UNTIL_CREDENTIALS, PARKED_UNTIL_NEXT_RUN, PARKED_UNTIL_TIME},
};
use crate::queue::{
    error::QueueError,
    exits::{EXITS_MAX, ExitRow},
    gates::GateRecord,
    group::{Group, records},
    input::InputIdentity,
    item::{Batch, Counters, Ending, InputEnd, LaneId, Seq, Until},
    ledger::{OutputEnd, Place, ending_code, micros},
    shared::{Command, rank},
};

/// What a lane's counts change by in a group.
#[derive(Clone, Copy, Default)]
pub(crate) struct LaneChange {
    imported: i64,
    parked: i64,
    done: i64,
    failed: i64,
}

/// What the totals change by in a group.
#[derive(Clone, Copy, Default)]
struct Totals {
    imported: i64,
    parked: i64,
    done: i64,
    failed: i64,
    unknown: i64,
}

/// One transaction's worth of changes. The caller begins and commits.
pub(crate) struct Changes<'a> {
    db: &'a Db,
    link: &'a Link,
    numbers: &'a mut HashMap<Arc<str>, i32>,
    lanes: HashMap<i32, LaneChange>,
    totals: Totals,
}

/// Number, lane, rank, id and sealed request of an item.
type ItemRow = (i64, i32, i32, Option<String>, Vec<u8>);

/// Columns of `ended` for many items.
#[derive(Default)]
struct Ends {
    seqs: Vec<i64>,
    endings: Vec<i16>,
    places: Vec<Option<i64>>,
    lengths: Vec<Option<i64>>,
}

impl Ends {
    fn add(&mut self, seq: Seq, ending: Ending, record: Option<(u64, u64)>) {
        self.seqs.push(seq.0.cast_signed());
        self.endings.push(code(ending));
        self.places.push(record.map(|r| r.0.cast_signed()));
        self.lengths.push(record.map(|r| r.1.cast_signed()));
    }
}

impl<'a> Changes<'a> {
    pub(crate) fn new(db: &'a Db, link: &'a Link, numbers: &'a mut HashMap<Arc<str>, i32>) -> Changes<'a> {
        Changes { db, link, numbers, lanes: HashMap::new(), totals: Totals::default() }
    }

    /// All of a group. Afterwards only the commit is missing.
    pub(crate) async fn write(&mut self, group: &mut Group, start: Option<u64>) -> Result<(), QueueError> {
        let link = self.link;
        let error = |source| link.error(source);
        let mut offset = start;
        let mut next = |record: &[u8]| {
            let length = record.len() as u64;
            let at = offset?;
            offset = Some(at + length);
            Some((at, length))
        };
        let mut ends = Ends::default();
        let (mut counted, mut forgotten) = (Vec::new(), Vec::new());
        for plan in group.finishes.iter().filter(|plan| !plan.lost) {
            let Command::Finish { finish, .. } = &group.commands[plan.command] else { continue };
            ends.add(plan.place.seq, finish.ending, next(&finish.record));
            self.count_end(plan.place.lane, finish.ending);
            match finish.ending {
                Ending::Done if plan.has_progress => forgotten.push(plan.place.seq.0.cast_signed()),
                Ending::Done => {}
                Ending::Failed | Ending::Unknown => counted.push((plan.place.seq, &finish.counters)),
            }
        }
        self.end(&ends).await?;
        for (index, place) in &group.parks {
            let Command::Park { until, reason, counters, .. } = &group.commands[*index] else { continue };
            self.park(*place, until, reason).await.map_err(error)?;
            counted.push((place.seq, counters));
        }
        counted.extend(group.progress.iter().map(|(seq, counters)| (*seq, counters)));
        self.count(&counted, &forgotten).await.map_err(error)?;
        let released: Vec<Place> = group.releases.clone();
        self.release(&released).await.map_err(error)?;
        group.imported.clear();
        group.woken.clear();
        for (index, command) in group.commands.iter().enumerate() {
            match command {
                Command::Import(_) if group.no_imports => {}
                Command::Import(batch) => {
                    let mut bad = Ends::default();
                    for line in &batch.bad {
                        bad.add(line.seq, Ending::Failed, next(&line.record));
                    }
                    group.imported.extend(self.import(batch, &bad).await?);
                }
                Command::Wake { now, limit, .. } => {
                    let now = link.server_time(*now);
                    let limit = i64::try_from(*limit).unwrap_or(i64::MAX);
                    group.woken.push((index, self.wake(WAKE_DUE, &[&now, &limit]).await.map_err(error)?));
                }
                Command::Credentials { account, .. } => {
                    group.woken.push((index, self.wake(WAKE_ACCOUNT, &[account]).await.map_err(error)?));
                }
                Command::Input(identity) if !group.no_imports => self.input(identity).await.map_err(error)?,
                Command::Exits(new) => add_exits(self.db, new).await.map_err(error)?,
                _ => {}
            }
        }
        self.gates(&group.gates).await.map_err(error)?;
        let end = match (offset, records(group).last()) {
            (Some(end), Some(last)) => Some(OutputEnd::after(last, end)),
            _ => None,
        };
        self.save(end).await.map_err(error)
    }

    /// Ends items in hand. The lock on the member's row keeps their leases, so one that is missing is a mistake of ours.
    async fn end(&mut self, ends: &Ends) -> Result<(), QueueError> {
        if ends.seqs.is_empty() {
            return Ok(());
        }
        let (member, output) = (self.link.member(), self.link.output);
        let ended = self
            .db
            .execute(
                "WITH ends AS (
                   SELECT * FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bigint[])
                     AS e(seq, ending, place, length)),
                 gone AS (DELETE FROM leased WHERE seq = ANY($1) AND member = $5 RETURNING seq)
                 INSERT INTO ended(seq, ending, output, place, length)
                 SELECT e.seq, e.ending, $6, e.place, e.length FROM ends e WHERE e.seq IN (SELECT seq FROM gone)",
                &[&ends.seqs, &ends.endings, &ends.places, &ends.lengths, &member, &output],
            )
            .await
            .map_err(|source| self.link.error(source))?;
        if ended == ends.seqs.len() as u64 { Ok(()) } else { Err(QueueError::StaleLease) }
    }

    fn count_end(&mut self, lane: LaneId, ending: Ending) {
        let change = self.lanes.entry(lane_number(lane)).or_default();
        match ending {
            Ending::Done => {
                self.totals.done += 1;
                change.done += 1;
            }
            Ending::Failed => {
                self.totals.failed += 1;
                change.failed += 1;
            }
            Ending::Unknown => {
                self.totals.unknown += 1;
                change.failed += 1;
            }
        }
    }

    async fn park(&mut self, place: Place, until: &Until, reason: &str) -> Result<(), Error> {
        let (kind, due, account) = self.until(until);
        let member = self.link.member();
        self.db
            .execute(
                "WITH back AS (DELETE FROM leased WHERE seq = $1 AND member = $2 RETURNING seq, lane, rank)
                 INSERT INTO parked(seq, lane, rank, kind, due, account, reason)
                 SELECT seq, lane, rank, $3, $4, $5, $6 FROM back",
                &[&place.seq.0.cast_signed(), &member, &kind, &due, &account, &no_zeros(reason)],
            )
            .await?;
        self.totals.parked += 1;
        self.lanes.entry(lane_number(place.lane)).or_default().parked += 1;
        Ok(())
    }

    fn until(&self, until: &'a Until) -> (i16, Option<i64>, Option<&'a str>) {
        parked_as(self.link, until)
    }

    /// Writes counters as of this run, and takes away those of what is done.
    async fn count(&self, counted: &[(Seq, &Counters)], forgotten: &[i64]) -> Result<(), Error> {
        if !forgotten.is_empty() {
            self.db.execute("DELETE FROM progress WHERE seq = ANY($1)", &[&forgotten]).await?;
        }
        let run = self.link.run.load(std::sync::atomic::Ordering::Relaxed).cast_signed();
        for (seq, counters) in counted {
            write_counters(self.db, *seq, run, counters).await?;
        }
        Ok(())
    }

    /// Gives items in hand back as they are.
    async fn release(&self, places: &[Place]) -> Result<(), Error> {
        if places.is_empty() {
            return Ok(());
        }
        let seqs: Vec<i64> = places.iter().map(|place| place.seq.0.cast_signed()).collect();
        self.db
            .execute(
                "WITH back AS (DELETE FROM leased WHERE seq = ANY($1) AND member = $2 RETURNING lane, rank, seq)
                 INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM back",
                &[&seqs, &self.link.member()],
            )
            .await?;
        Ok(())
    }

    /// Adds a batch of input, of which the job has nothing yet. Gives the places of new pending items.
    async fn import(&mut self, batch: &Batch, bad: &Ends) -> Result<Vec<Place>, QueueError> {
        let link = self.link;
        let error = |source| link.error(source);
        let position = batch.position;
        let reached = batch.end == InputEnd::Reached;
        // The row of the job keeps a second importer out until the commit.
        let mine = self
            .db
            .execute(
                "UPDATE job SET input_end = $4, input_offset = CASE WHEN $3 >= input_line THEN $2 ELSE input_offset END,
                   input_line = greatest(input_line, $3), importer = CASE WHEN $4 THEN NULL ELSE importer END
                 WHERE importer = $1",
                &[&link.member(), &position.offset.cast_signed(), &position.line.cast_signed(), &reached],
            )
            .await
            .map_err(error)?;
        if mine == 0 {
            return Err(QueueError::NotTheImporter);
        }
        self.number_lanes(batch).await.map_err(error)?;
        let mut places = Vec::with_capacity(batch.items.len());
        let mut rows = Vec::with_capacity(batch.items.len());
        let mut parked = Vec::new();
        for item in &batch.items {
            let lane = self.numbers[&item.lane];
            let rank = short_rank(rank(&item.request));
            let seq = item.seq.0.cast_signed();
            rows.push((
                seq,
                lane,
                rank,
                item.id.as_deref().map(no_zeros),
                link.seal.request(seq, &item.request)?,
            ));
            let change = self.lanes.entry(lane).or_default();
            change.imported += 1;
            let place = Place { seq: item.seq, lane: LaneId(lane.into()), rank: rank.into(), token: 0 };
            match item.not_before {
                Some(due) => {
                    change.parked += 1;
                    parked.push((seq, lane, rank, link.server_time(due)));
                }
                None => places.push(place),
            }
        }
        self.totals.imported += (batch.items.len() + batch.bad.len()) as i64;
        self.totals.parked += parked.len() as i64;
        self.totals.failed += batch.bad.len() as i64;
        self.copy_items(rows).await.map_err(error)?;
        // In the order of the index, neighbours go to one page.
        places.sort_unstable_by_key(|p: &Place| (p.lane, p.rank, p.seq));
        self.copy_waiting(&places).await.map_err(error)?;
        for (seq, lane, rank, due) in parked {
            let sql = "INSERT INTO parked(seq, lane, rank, kind, due, reason) VALUES ($1, $2, $3, $4, $5, 'not before')";
            self.db.execute(sql, &[&seq, &lane, &rank, &PARKED_UNTIL_TIME, &due]).await.map_err(error)?;
        }
        self.import_bad(batch, bad).await.map_err(error)?;
        Ok(places)
    }

    async fn copy_items(&self, rows: Vec<ItemRow>) -> Result<(), Error> {
        if rows.is_empty() {
            return Ok(());
        }
        let sql = "COPY items(seq, lane, rank, id, request) FROM STDIN BINARY";
        let sink = self.db.client().copy_in(sql).await?;
        let types = [Type::INT8, Type::INT4, Type::INT4, Type::TEXT, Type::BYTEA];
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &types));
        for (seq, lane, rank, id, request) in &rows {
            writer.as_mut().write(&[seq, lane, rank, id, request]).await?;
        }
        writer.finish().await.map(drop)
    }

    async fn copy_waiting(&self, places: &[Place]) -> Result<(), Error> {
        if places.is_empty() {
            return Ok(());
        }
        let sink = self.db.client().copy_in("COPY waiting(lane, rank, seq) FROM STDIN BINARY").await?;
        let mut writer = pin!(BinaryCopyInWriter::new(sink, &[Type::INT4, Type::INT4, Type::INT8]));
        for place in places {
            let (lane, rank) = (lane_number(place.lane), short_rank(place.rank));
            writer.as_mut().write(&[&lane, &rank, &place.seq.0.cast_signed()]).await?;
        }
        writer.finish().await.map(drop)
    }

    /// Lines that are no items: they stand among the failed ones. Their records are kept, for nothing else could make them
    /// again.
    async fn import_bad(&self, batch: &Batch, bad: &Ends) -> Result<(), Error> {
        for line in &batch.bad {
            let sql = "INSERT INTO items(seq, rank, request) VALUES ($1, 0, $2)";
            self.db.execute(sql, &[&line.seq.0.cast_signed(), &line.record]).await?;
        }
        if !bad.seqs.is_empty() {
            self.db
                .execute(
                    "INSERT INTO ended(seq, ending, output, place, length)
                     SELECT e.seq, e.ending, $5, e.place, e.length
                     FROM unnest($1::bigint[], $2::smallint[], $3::bigint[], $4::bigint[]) AS e(seq, ending, place, length)",
                    &[&bad.seqs, &bad.endings, &bad.places, &bad.lengths, &self.link.output],
                )
                .await?;
        }
        Ok(())
    }

    /// Gives each lane of the batch its number.
    async fn number_lanes(&mut self, batch: &Batch) -> Result<(), Error> {
        let unknown: HashSet<&str> =
            batch.items.iter().filter(|i| !self.numbers.contains_key(&i.lane)).map(|i| &*i.lane).collect();
        if unknown.is_empty() {
            return Ok(());
        }
        let mut unknown: Vec<&str> = unknown.into_iter().collect();
        unknown.sort_unstable();
        let known = self.db.query("SELECT key, lane FROM lanes WHERE key = ANY($1)", &[&unknown]).await?;
        self.note(&known);
        unknown.retain(|key| !self.numbers.contains_key(*key));
        if !unknown.is_empty() {
            let sql = "INSERT INTO lanes(key) SELECT unnest($1::text[]) RETURNING key, lane";
            let new = self.db.query(sql, &[&unknown]).await?;
            self.note(&new);
        }
        Ok(())
    }

    fn note(&mut self, rows: &[Row]) {
        for row in rows {
            self.numbers.insert(Arc::from(row.get::<_, &str>(0)), row.get(1));
        }
    }

    async fn wake(&mut self, sql: &'static str, values: &[&(dyn ToSql + Sync)]) -> Result<Vec<Place>, Error> {
        let places: Vec<Place> = self.db.query(sql, values).await?.iter().map(place).collect();
        self.unparked(&places);
        Ok(places)
    }

    fn unparked(&mut self, places: &[Place]) {
        self.totals.parked -= places.len() as i64;
        for place in places {
            self.lanes.entry(lane_number(place.lane)).or_default().parked -= 1;
        }
    }

    async fn input(&self, identity: &InputIdentity) -> Result<(), Error> {
        let text = serde_json::to_string(identity).unwrap_or_default();
        let sql = "UPDATE job SET input = $2 WHERE importer = $1";
        self.db.execute(sql, &[&self.link.member(), &text]).await.map(drop)
    }

    /// Where several processes keep a gate, a longer pause is not shortened by another's news (P2); its own process, and
    /// anybody once it is over, may write what it likes.
    async fn gates(&self, gates: &[(String, Option<GateRecord>)]) -> Result<(), Error> {
        // In one order for all, so that two processes never wait for each other.
        let mut sorted: Vec<_> = gates.iter().collect();
        sorted.sort_unstable_by(|a, b| a.0.cmp(&b.0));
        for (key, gate) in sorted {
            let Some(gate) = gate else {
                self.db.execute("DELETE FROM gates WHERE key = $1", &[&key]).await?;
                continue;
            };
            let (version, until) = (i64::from(gate.version), gate.until.map(|at| self.link.server_time(at)));
            self.db
                .execute(
                    "INSERT INTO gates AS g (key, version, until, record, member) VALUES ($1, $2::bigint::int, $3, $4, $5)
                     ON CONFLICT (key) DO UPDATE SET version = excluded.version, until = excluded.until,
                       record = excluded.record, member = excluded.member
                     WHERE g.until IS NULL OR g.until <= coalesce(excluded.until, 0) OR g.member = excluded.member
                       OR g.until <= (extract(epoch FROM now()) * 1000000)::bigint
                       OR NOT EXISTS (SELECT FROM members m WHERE m.member = g.member)",
                    &[&gate.key, &version, &until, &gate.record, &self.link.member()],
                )
                .await?;
        }
        Ok(())
    }

    /// Writes the counts, the lease, and where the output ends.
    async fn save(&mut self, end: Option<OutputEnd>) -> Result<(), Error> {
        save_lanes(self.db, self.link.output, &self.lanes).await?;
        let t = self.totals;
        let output = self.link.output;
        self.db
            .execute(
                "UPDATE outputs SET imported = imported + $2, parked = parked + $3, done = done + $4, failed = failed + $5,
                   unknown = unknown + $6 WHERE output = $1",
                &[&output, &t.imported, &t.parked, &t.done, &t.failed, &t.unknown],
            )
            .await?;
        if let Some(end) = end {
            self.db
                .execute(
                    "UPDATE outputs SET out_end = $2, last_len = $3, last_hash = $4 WHERE output = $1",
                    &[
                        &output,
                        &end.at.cast_signed(),
                        &end.last_len.cast_signed(),
                        &end.last_hash.cast_signed(),
                    ],
                )
                .await?;
        }
        self.db
            .execute(
                "UPDATE members SET commits = commits + 1, until = now() + $2 * interval '1 second' WHERE member = $1",
                &[&self.link.member(), &self.link.lease.as_secs_f64()],
            )
            .await
            .map(drop)
    }
}

pub(crate) async fn save_lanes(db: &Db, output: i32, lanes: &HashMap<i32, LaneChange>) -> Result<(), Error> {
    if lanes.is_empty() {
        return Ok(());
    }
    let numbers: Vec<i32> = lanes.keys().copied().collect();
    let column = |of: fn(&LaneChange) -> i64| -> Vec<i64> { lanes.values().map(of).collect() };
    db.execute(
        "INSERT INTO lane_counts AS c (lane, output, imported, parked, done, failed)
         SELECT l.lane, $2, l.imported, l.parked, l.done, l.failed
         FROM unnest($1::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
           AS l(lane, imported, parked, done, failed) ORDER BY l.lane
         ON CONFLICT (lane, output) DO UPDATE SET imported = c.imported + excluded.imported,
           parked = c.parked + excluded.parked, done = c.done + excluded.done, failed = c.failed + excluded.failed",
        &[
            &numbers,
            &output,
            &column(|c| c.imported),
            &column(|c| c.parked),
            &column(|c| c.done),
            &column(|c| c.failed),
        ],
    )
    .await
    .map(drop)
}

impl LaneChange {
    pub(crate) fn ended(ending: Ending, by: i64) -> LaneChange {
        match ending {
            Ending::Done => LaneChange { done: by, ..LaneChange::default() },
            Ending::Failed | Ending::Unknown => LaneChange { failed: by, ..LaneChange::default() },
        }
    }

    pub(crate) fn add(&mut self, other: LaneChange) {
        self.imported += other.imported;
        self.parked += other.parked;
        self.done += other.done;
        self.failed += other.failed;
    }
}

/// Those whose time has come, the longest due first; each by one process.
const WAKE_DUE: &str = "
    WITH woken AS (
      DELETE FROM parked WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM parked WHERE kind = 0 AND due <= $1 ORDER BY due LIMIT $2 FOR UPDATE SKIP LOCKED))
      RETURNING seq, lane, rank),
    ready AS (INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM woken)
    SELECT seq, lane, rank FROM woken";

const WAKE_ACCOUNT: &str = "
    WITH woken AS (
      DELETE FROM parked WHERE ctid = ANY(ARRAY(
        SELECT ctid FROM parked WHERE kind = 2 AND account = $1 FOR UPDATE SKIP LOCKED))
      RETURNING seq, lane, rank),
    ready AS (INSERT INTO waiting(lane, rank, seq) SELECT lane, rank, seq FROM woken)
    SELECT seq, lane, rank FROM woken";

/// How a wait is stored.
pub(crate) fn parked_as<'u>(link: &Link, until: &'u Until) -> (i16, Option<i64>, Option<&'u str>) {
    match until {
        Until::Time(at) => (PARKED_UNTIL_TIME, Some(link.server_time(*at)), None),
        Until::NextRun => (PARKED_UNTIL_NEXT_RUN, None, None),
        Until::Credentials(account) => (PARKED_UNTIL_CREDENTIALS, None, Some(account)),
    }
}

/// Writes counters as of `run`.
pub(crate) async fn write_counters(db: &Db, seq: Seq, run: i64, c: &Counters) -> Result<(), Error> {
    let number = |n: u32| i32::try_from(n).unwrap_or(i32::MAX);
    let waited = i64::try_from(c.waited.as_micros()).unwrap_or(i64::MAX);
    db.execute(
        "INSERT INTO progress(seq, attempts, refusals, run, limited, waited_us, started, error)
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
         ON CONFLICT (seq) DO UPDATE SET attempts = excluded.attempts, refusals = excluded.refusals, run = excluded.run,
           limited = excluded.limited, waited_us = excluded.waited_us, started = excluded.started, error = excluded.error",
        &[
            &seq.0.cast_signed(),
            &number(c.attempts),
            &number(c.refusals),
            &run,
            &number(c.limited),
            &waited,
            &c.started_at.map(micros),
            &c.error.as_deref().map(no_zeros),
        ],
    )
    .await
    .map(drop)
}

/// Adds what is new to what the job has of each exit.
async fn add_exits(db: &Db, changes: &[ExitRow]) -> Result<(), Error> {
    let mut known: i64 = db.one("SELECT count(*) FROM exits", &[]).await?.get(0);
    let mut sorted: Vec<&ExitRow> = changes.iter().collect();
    sorted.sort_unstable_by(|a, b| a.name.cmp(&b.name));
    let n = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    for row in sorted {
        let values: [&(dyn ToSql + Sync); 9] = [
            &row.name,
            &row.state,
            &n(row.requests),
            &n(row.done),
            &n(row.refused),
            &n(row.blocked),
            &n(row.faults),
            &n(row.bytes),
            &row.cost,
        ];
        let update =
            "UPDATE exits SET state = $2, requests = requests + $3, done = done + $4, refused = refused + $5,
                        blocked = blocked + $6, faults = faults + $7, bytes = bytes + $8,
                        cost = coalesce(cost + $9, cost, $9) WHERE name = $1";
        if db.execute(update, &values).await? == 0 && known < EXITS_MAX as i64 {
            let insert =
                "INSERT INTO exits(name, state, requests, done, refused, blocked, faults, bytes, cost)
                          VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (name) DO NOTHING";
            if db.execute(insert, &values).await? == 0 {
                db.execute(update, &values).await?;
            }
            known += 1;
        }
    }
    Ok(())
}

/// A place from a row of line, lane and rank.
pub(crate) fn place(row: &Row) -> Place {
    Place {
        seq: Seq(row.get::<_, i64>(0).cast_unsigned()),
        lane: LaneId(row.get::<_, i32>(1).into()),
        rank: row.get::<_, i32>(2).into(),
        token: 0,
    }
}

pub(crate) fn lane_number(lane: LaneId) -> i32 {
    i32::try_from(lane.0).unwrap_or(i32::MAX)
}

/// The lowest priority of all does not fit by one, and shares its place with the next.
fn short_rank(rank: i64) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

pub(crate) fn code(ending: Ending) -> i16 {
    i16::try_from(ending_code(ending)).unwrap_or(0)
}

/// PostgreSQL's text has no zeros in it.
fn no_zeros(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}
