//! What the database knows of an output, for setting that right. All of it in the transaction with which a run begins.

use hashbrown::{HashMap, HashSet};
use tokio::runtime::Handle;
use tokio_postgres::Error;

use super::{
    apply::{LaneChange, code, lane_number, place, save_lanes, write_counters},
    connect::{Db, Server},
};
use crate::queue::{
    error::QueueError,
    item::{Counters, Ending, Seq},
    ledger::{Acked, Acknowledged, Behind, Found, OutputEnd, Owner, Place, ending_from},
    recover::plain_id,
};

/// Runs on a thread of its own, which may wait.
pub(crate) struct Acks<'a> {
    pub(crate) db: &'a Db,
    pub(crate) server: &'a Server,
    pub(crate) handle: &'a Handle,
    pub(crate) output: i32,
    /// Members that wrote this output before. Its lock is ours, so they are dead.
    pub(crate) former: Vec<i64>,
    pub(crate) run: i64,
    pub(crate) last_line: u64,
    pub(crate) end: OutputEnd,
    pub(crate) lanes: HashMap<i32, LaneChange>,
}

impl Acks<'_> {
    fn wait<T>(&self, work: impl Future<Output = Result<T, Error>>) -> Result<T, QueueError> {
        self.handle.block_on(work).map_err(|source| self.server.error(source))
    }

    /// Writes the counts that have changed, and where the output ends.
    pub(crate) fn save(&self) -> Result<(), QueueError> {
        self.wait(async {
            save_lanes(self.db, self.output, &self.lanes).await?;
            let sql = "UPDATE outputs SET out_end = $2, last_len = $3, last_hash = $4 WHERE output = $1";
            let (at, length, hash) = (self.end.at, self.end.last_len, self.end.last_hash);
            self.db
                .execute(sql, &[&self.output, &at.cast_signed(), &length.cast_signed(), &hash.cast_signed()])
                .await
        })
        .map(drop)
    }

    async fn total(&self, ending: Ending, by: i64) -> Result<(), Error> {
        let sql = match ending {
            Ending::Done => "UPDATE outputs SET done = done + $2 WHERE output = $1",
            Ending::Failed => "UPDATE outputs SET failed = failed + $2 WHERE output = $1",
            Ending::Unknown => "UPDATE outputs SET unknown = unknown + $2 WHERE output = $1",
        };
        self.db.execute(sql, &[&self.output, &by]).await.map(drop)
    }
}

impl Acknowledged for Acks<'_> {
    fn end(&self) -> OutputEnd {
        self.end
    }

    fn set_end(&mut self, end: OutputEnd) {
        self.end = end;
    }

    fn last_line(&self) -> u64 {
        self.last_line
    }

    fn records(&mut self) -> Result<u64, QueueError> {
        let sql = "SELECT count(*) FROM ended WHERE output = $1 AND place IS NOT NULL";
        let row = self.wait(self.db.one(sql, &[&self.output]))?;
        Ok(row.get::<_, i64>(0).cast_unsigned())
    }

    fn last_within(&mut self, limit: u64) -> Result<Option<Acked>, QueueError> {
        let sql = "SELECT e.seq, e.place, e.length, i.id FROM ended e JOIN items i ON i.seq = e.seq
                   WHERE e.output = $1 AND e.place + e.length <= $2 ORDER BY e.place DESC LIMIT 1";
        let row = self.wait(self.db.maybe(sql, &[&self.output, &limit.cast_signed()]))?;
        Ok(row.map(|row| {
            let number = |i: usize| row.get::<_, i64>(i).cast_unsigned();
            Acked { seq: number(0), offset: number(1), length: number(2), id: row.get(3) }
        }))
    }

    fn behind(&mut self, limit: u64) -> Result<Behind, QueueError> {
        let sql = "SELECT e.seq, i.lane, i.rank, e.ending, CASE WHEN i.lane IS NULL THEN i.request END
                   FROM ended e JOIN items i ON i.seq = e.seq
                   WHERE e.output = $1 AND e.place + e.length > $2 ORDER BY e.seq";
        let rows = self.wait(self.db.query(sql, &[&self.output, &limit.cast_signed()]))?;
        let mut behind = Behind::default();
        for row in &rows {
            match row.get::<_, Option<Vec<u8>>>(4) {
                Some(record) => behind.bad.push((Seq(row.get::<_, i64>(0).cast_unsigned()), record)),
                None => behind.items.push((place(row), ending_from(row.get::<_, i16>(3).into()))),
            }
        }
        Ok(behind)
    }

    fn reopen(&mut self, items: &[(Place, Ending)]) -> Result<(), QueueError> {
        for (place, ending) in items {
            self.lanes.entry(lane_number(place.lane)).or_default().add(LaneChange::ended(*ending, -1));
            let seq = place.seq.0.cast_signed();
            self.wait(async {
                self.db.execute("DELETE FROM progress WHERE seq = $1", &[&seq]).await?;
                self.db
                    .execute(
                        "WITH gone AS (DELETE FROM ended WHERE seq = $1 RETURNING seq)
                         INSERT INTO waiting(lane, rank, seq)
                         SELECT i.lane, i.rank, i.seq FROM items i JOIN gone g ON g.seq = i.seq",
                        &[&seq],
                    )
                    .await?;
                self.total(*ending, -1).await
            })?;
        }
        Ok(())
    }

    fn moved(&mut self, seq: Seq, at: u64, length: u64) -> Result<(), QueueError> {
        let sql = "UPDATE ended SET place = $2, length = $3 WHERE seq = $1";
        let (seq, at, length) = (seq.0.cast_signed(), at.cast_signed(), length.cast_signed());
        self.wait(self.db.execute(sql, &[&seq, &at, &length])).map(drop)
    }

    /// An item of a found record is ours while a member that wrote here has its lease. Once that is over somebody else may
    /// have the item, or have had it: then the record is not to count.
    fn owners(&mut self, found: &[Found]) -> Result<Vec<Owner>, QueueError> {
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let sql = "SELECT l.seq, l.lane, l.rank, i.id FROM leased l JOIN items i ON i.seq = l.seq
                   WHERE l.member = ANY($1) ORDER BY l.seq DESC";
        let rows = self.wait(self.db.query(sql, &[&self.former]))?;
        let mut open: HashMap<String, Vec<Place>> = HashMap::new();
        for row in &rows {
            let id = row.get::<_, Option<&str>>(3);
            let id = id.map_or_else(|| row.get::<_, i64>(0).to_string(), |id| plain_id(id).into_owned());
            open.entry(id).or_default().push(place(row));
        }
        let mut owners = Vec::with_capacity(found.len());
        for record in found {
            owners.push(match open.get_mut(&record.id).and_then(Vec::pop) {
                Some(place) => Owner::Open(place, false),
                None => Owner::Nobody,
            });
        }
        let strange: Vec<&str> = found
            .iter()
            .zip(&owners)
            .filter(|(_, owner)| matches!(owner, Owner::Nobody))
            .map(|(record, _)| record.id.as_str())
            .collect();
        if !strange.is_empty() {
            let known = self.known(&strange)?;
            for (owner, record) in owners.iter_mut().zip(found) {
                if matches!(owner, Owner::Nobody) && known.contains(&record.id) {
                    *owner = Owner::Others;
                }
            }
        }
        Ok(owners)
    }

    fn keep(&mut self, found: &Found, place: Place, _parked: bool) -> Result<(), QueueError> {
        self.lanes.entry(lane_number(place.lane)).or_default().add(LaneChange::ended(found.ending, 1));
        let seq = place.seq.0.cast_signed();
        self.wait(async {
            self.db.execute("DELETE FROM leased WHERE seq = $1", &[&seq]).await?;
            self.db
                .execute(
                    "INSERT INTO ended(seq, ending, output, place, length) VALUES ($1, $2, $3, $4, $5)",
                    &[
                        &seq,
                        &code(found.ending),
                        &self.output,
                        &found.at.cast_signed(),
                        &found.length.cast_signed(),
                    ],
                )
                .await?;
            if found.ending == Ending::Done {
                self.db.execute("DELETE FROM progress WHERE seq = $1", &[&seq]).await?;
            } else {
                let counters = Counters { error: found.error.clone(), ..Counters::default() };
                write_counters(self.db, place.seq, self.run, &counters).await?;
            }
            self.total(found.ending, 1).await
        })
    }
}

impl Acks<'_> {
    /// Which of these ids the job knows at all.
    fn known(&self, ids: &[&str]) -> Result<HashSet<String>, QueueError> {
        let numbers: Vec<i64> = ids.iter().filter_map(|id| id.parse().ok()).collect();
        // As they are, and as a string that could be taken for another form.
        let mut texts: Vec<String> = ids.iter().map(|id| (*id).to_owned()).collect();
        texts.extend(ids.iter().filter_map(|id| serde_json::to_string(id).ok()));
        let sql = "SELECT coalesce(id, seq::text) FROM items WHERE seq = ANY($1) AND id IS NULL
                   UNION ALL SELECT id FROM items WHERE id = ANY($2)";
        let rows = self.wait(self.db.query(sql, &[&numbers, &texts]))?;
        Ok(rows.iter().map(|row| plain_id(row.get(0)).into_owned()).collect())
    }
}
