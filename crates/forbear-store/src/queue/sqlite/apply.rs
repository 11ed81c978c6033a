//! A group's changes as SQL, in one transaction. Nothing here decides; it moves numbers between tables and counts.

use std::sync::Arc;

use forbear_core::time::Timestamp;
use hashbrown::HashMap;
use rusqlite::{CachedStatement, Connection, params};

use super::{
    reader::write_counters,
    schema::{PARKED_UNTIL_CREDENTIALS, PARKED_UNTIL_NEXT_RUN, PARKED_UNTIL_TIME, save_tally},
};
use crate::queue::{
    item::{Batch, Counters, Ending, Extras, LaneId, NewItem, Seq, Until},
    ledger::{Place, Tally, ending_code, micros},
    shared::rank,
};

/// What a lane's counts change by in a group.
#[derive(Clone, Copy, Default)]
struct LaneChange {
    pending: i64,
    parked: i64,
    done: i64,
    failed: i64,
}

/// Lane numbers by key, so that most lines need no look-up. Bounded: a run over many hosts uses most of them once.
#[derive(Default)]
pub(crate) struct LaneNumbers(HashMap<Arc<str>, LaneId>);

const LANE_NUMBERS_MAX: usize = 16_384;

impl LaneNumbers {
    /// After a rollback: numbers given in it are not in the file.
    pub(crate) fn forget(&mut self) {
        self.0.clear();
    }
}

/// The end of an item, with its record's place in the output.
pub(crate) struct Ended<'a> {
    pub(crate) place: Place,
    pub(crate) ending: Ending,
    /// Offset and length; `None` in a stream.
    pub(crate) record: Option<(u64, u64)>,
    pub(crate) counters: &'a Counters,
    pub(crate) has_progress: bool,
    pub(crate) shown: bool,
}

/// One transaction's worth of changes. The caller begins and commits.
pub(crate) struct Changes<'a> {
    db: &'a Connection,
    run: u64,
    pub(crate) tally: Tally,
    lanes: HashMap<LaneId, LaneChange>,
    numbers: &'a mut LaneNumbers,
}

impl<'a> Changes<'a> {
    pub(crate) fn new(db: &'a Connection, tally: Tally, numbers: &'a mut LaneNumbers) -> Changes<'a> {
        Changes { db, run: tally.run, tally, lanes: HashMap::new(), numbers }
    }

    /// Adds a batch of input, of which the job has nothing yet. Gives the places of new pending items.
    pub(crate) fn import(&mut self, batch: &Batch) -> rusqlite::Result<Vec<Place>> {
        let db = self.db;
        let mut statements = ImportStatements {
            item: db.prepare_cached(
                "INSERT INTO items(seq, lane, url, id, extras, body) VALUES(?1, ?2, ?3, ?4, ?5, ?6)",
            )?,
            waiting: db.prepare_cached("INSERT INTO waiting(lane, rank, seq) VALUES(?1, ?2, ?3)")?,
        };
        let mut places = Vec::with_capacity(batch.items.len());
        for item in &batch.items {
            self.import_one(&mut statements, item, &mut places)?;
        }
        // In the order of the index, neighbours go to one page.
        places.sort_unstable_by_key(|p: &Place| (p.lane, p.rank, p.seq));
        for p in &places {
            statements.waiting.execute(params![p.lane.0, p.rank, p.seq.0.cast_signed()])?;
        }
        if batch.position.line >= self.tally.position.line {
            self.tally.position = batch.position;
        }
        self.tally.end = batch.end;
        Ok(places)
    }

    fn import_one(
        &mut self,
        statements: &mut ImportStatements<'_>,
        item: &NewItem,
        places: &mut Vec<Place>,
    ) -> rusqlite::Result<()> {
        let lane = self.lane(&item.lane)?;
        let request = &item.request;
        let extras = Extras::encode(request);
        let seq = item.seq.0.cast_signed();
        statements.item.execute(params![seq, lane.0, request.url, item.id, extras, request.body])?;
        self.tally.imported += 1;
        let place = Place { seq: item.seq, lane, rank: rank(request), token: 0 };
        match item.not_before {
            Some(due) => self.insert_parked(place, &Until::Time(due), "not before")?,
            None => {
                self.tally.pending += 1;
                self.lanes.entry(lane).or_default().pending += 1;
                places.push(place);
            }
        }
        Ok(())
    }

    /// A line that is no item: it stands among the failed ones. Its record is kept, for nothing else could make it again.
    pub(crate) fn import_bad(
        &mut self,
        seq: Seq,
        text: &[u8],
        record: Option<(u64, u64)>,
    ) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("INSERT INTO items(seq, lane, body) VALUES(?1, 0, ?2)")?
            .execute(params![seq.0.cast_signed(), text])?;
        self.tally.imported += 1;
        self.tally.failed += 1;
        self.insert_ended(seq, Ending::Failed, record)
    }

    /// Ends a pending item.
    pub(crate) fn end(&mut self, ended: &Ended<'_>) -> rusqlite::Result<()> {
        let Ended { place, ending, .. } = *ended;
        self.delete_waiting(place)?;
        self.insert_ended(place.seq, ending, ended.record)?;
        let lane = self.lanes.entry(place.lane).or_default();
        match ending {
            Ending::Done => {
                self.tally.done += 1;
                lane.done += 1;
            }
            Ending::Failed => {
                self.tally.failed += 1;
                lane.failed += 1;
            }
            Ending::Unknown => {
                self.tally.unknown += 1;
                lane.failed += 1;
            }
        }
        if ended.shown {
            self.hide_leased(place.seq)?;
        }
        match ending {
            Ending::Done if !ended.has_progress => Ok(()),
            Ending::Done => {
                self.db
                    .prepare_cached("DELETE FROM progress WHERE seq = ?1")?
                    .execute([place.seq.0.cast_signed()])?;
                Ok(())
            }
            Ending::Failed | Ending::Unknown => write_counters(self.db, place.seq, self.run, ended.counters),
        }
    }

    /// Parks a pending item.
    pub(crate) fn park(
        &mut self,
        place: Place,
        until: &Until,
        reason: &str,
        counters: &Counters,
    ) -> rusqlite::Result<()> {
        self.delete_waiting(place)?;
        self.insert_parked(place, until, reason)?;
        write_counters(self.db, place.seq, self.run, counters)
    }

    /// Makes items pending whose time has come, the longest due first.
    pub(crate) fn wake_due(&mut self, now: Timestamp, limit: usize) -> rusqlite::Result<Vec<Place>> {
        let places = self.places(
            "SELECT p.seq, i.lane, p.rank FROM parked p CROSS JOIN items i ON i.seq = p.seq
             WHERE p.kind = 0 AND p.due <= ?1 ORDER BY p.due LIMIT ?2",
            params![micros(now), i64::try_from(limit).unwrap_or(i64::MAX)],
        )?;
        self.unpark(&places)?;
        Ok(places)
    }

    /// Makes items pending that waited for other credentials of `account`.
    pub(crate) fn wake_account(&mut self, account: &str) -> rusqlite::Result<Vec<Place>> {
        let places = self.places(
            "SELECT p.seq, i.lane, p.rank FROM parked p CROSS JOIN items i ON i.seq = p.seq
             WHERE p.kind = 2 AND p.account = ?1",
            [account],
        )?;
        self.unpark(&places)?;
        Ok(places)
    }

    /// Makes items pending that waited for this run.
    pub(crate) fn wake_next_run(&mut self) -> rusqlite::Result<()> {
        let places = self.places(
            "SELECT p.seq, i.lane, p.rank FROM parked p CROSS JOIN items i ON i.seq = p.seq WHERE p.kind = ?1",
            [PARKED_UNTIL_NEXT_RUN],
        )?;
        self.unpark(&places)
    }

    /// Makes ended items pending again; their records, if any, no longer count.
    pub(crate) fn reopen(&mut self, places: &[(Place, Ending)]) -> rusqlite::Result<()> {
        for (place, ending) in places {
            let seq = place.seq.0.cast_signed();
            self.db.prepare_cached("DELETE FROM ended WHERE seq = ?1")?.execute([seq])?;
            self.db.prepare_cached("DELETE FROM progress WHERE seq = ?1")?.execute([seq])?;
            let lane = self.lanes.entry(place.lane).or_default();
            match ending {
                Ending::Done => {
                    self.tally.done -= 1;
                    lane.done -= 1;
                }
                Ending::Failed => {
                    self.tally.failed -= 1;
                    lane.failed -= 1;
                }
                Ending::Unknown => {
                    self.tally.unknown -= 1;
                    lane.failed -= 1;
                }
            }
            self.insert_waiting(*place)?;
        }
        Ok(())
    }

    /// Takes a parked item back to pending, without waking anybody: for an end that is found in the output.
    pub(crate) fn unpark(&mut self, places: &[Place]) -> rusqlite::Result<()> {
        for place in places {
            self.db
                .prepare_cached("DELETE FROM parked WHERE seq = ?1")?
                .execute([place.seq.0.cast_signed()])?;
            self.tally.parked -= 1;
            self.lanes.entry(place.lane).or_default().parked -= 1;
            self.insert_waiting(*place)?;
        }
        Ok(())
    }

    pub(crate) fn show_leased(&mut self, seq: Seq) -> rusqlite::Result<()> {
        self.db.prepare_cached("INSERT OR REPLACE INTO leased VALUES(?1)")?.execute([seq.0.cast_signed()])?;
        Ok(())
    }

    pub(crate) fn hide_leased(&mut self, seq: Seq) -> rusqlite::Result<()> {
        self.db.prepare_cached("DELETE FROM leased WHERE seq = ?1")?.execute([seq.0.cast_signed()])?;
        Ok(())
    }

    /// Writes the lanes' counts and the totals; gives the totals.
    pub(crate) fn save(self) -> rusqlite::Result<Tally> {
        let mut statement = self.db.prepare_cached(
            "UPDATE lanes SET pending = pending + ?2, parked = parked + ?3, done = done + ?4, failed = failed + ?5
             WHERE lane = ?1",
        )?;
        let mut lanes: Vec<_> = self.lanes.into_iter().collect();
        lanes.sort_unstable_by_key(|(lane, _)| *lane);
        for (lane, change) in lanes {
            statement.execute(params![lane.0, change.pending, change.parked, change.done, change.failed])?;
        }
        save_tally(self.db, &self.tally)?;
        Ok(self.tally)
    }

    /// Places from a query that gives line, lane and rank.
    pub(crate) fn places(&self, sql: &str, params: impl rusqlite::Params) -> rusqlite::Result<Vec<Place>> {
        self.db.prepare_cached(sql)?.query_map(params, read_place)?.collect()
    }

    fn lane(&mut self, key: &Arc<str>) -> rusqlite::Result<LaneId> {
        if let Some(id) = self.numbers.0.get(key) {
            return Ok(*id);
        }
        let added = self
            .db
            .prepare_cached("INSERT INTO lanes(key) VALUES(?1) ON CONFLICT(key) DO NOTHING")?
            .execute([&**key])?;
        let id = if added == 1 {
            self.db.last_insert_rowid()
        } else {
            self.db
                .prepare_cached("SELECT lane FROM lanes WHERE key = ?1")?
                .query_row([&**key], |row| row.get(0))?
        };
        if self.numbers.0.len() >= LANE_NUMBERS_MAX {
            self.numbers.0.clear();
        }
        self.numbers.0.insert(Arc::clone(key), LaneId(id));
        Ok(LaneId(id))
    }

    fn insert_waiting(&mut self, place: Place) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("INSERT INTO waiting(lane, rank, seq) VALUES(?1, ?2, ?3)")?
            .execute(params![place.lane.0, place.rank, place.seq.0.cast_signed()])?;
        self.tally.pending += 1;
        self.lanes.entry(place.lane).or_default().pending += 1;
        Ok(())
    }

    fn delete_waiting(&mut self, place: Place) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("DELETE FROM waiting WHERE lane = ?1 AND rank = ?2 AND seq = ?3")?
            .execute(params![place.lane.0, place.rank, place.seq.0.cast_signed()])?;
        self.tally.pending -= 1;
        self.lanes.entry(place.lane).or_default().pending -= 1;
        Ok(())
    }

    fn insert_parked(&mut self, place: Place, until: &Until, reason: &str) -> rusqlite::Result<()> {
        let (kind, due, account) = match until {
            Until::Time(at) => (PARKED_UNTIL_TIME, Some(micros(*at)), None),
            Until::NextRun => (PARKED_UNTIL_NEXT_RUN, None, None),
            Until::Credentials(account) => (PARKED_UNTIL_CREDENTIALS, None, Some(account)),
        };
        self.db
            .prepare_cached(
                "INSERT INTO parked(seq, rank, kind, due, account, reason) VALUES(?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![place.seq.0.cast_signed(), place.rank, kind, due, account, reason])?;
        self.tally.parked += 1;
        self.lanes.entry(place.lane).or_default().parked += 1;
        Ok(())
    }

    fn insert_ended(&mut self, seq: Seq, ending: Ending, record: Option<(u64, u64)>) -> rusqlite::Result<()> {
        self.db
            .prepare_cached("INSERT INTO ended(seq, ending, offset, length) VALUES(?1, ?2, ?3, ?4)")?
            .execute(params![
                seq.0.cast_signed(),
                ending_code(ending),
                record.map(|r| r.0.cast_signed()),
                record.map(|r| r.1.cast_signed())
            ])?;
        Ok(())
    }
}

struct ImportStatements<'a> {
    item: CachedStatement<'a>,
    waiting: CachedStatement<'a>,
}

pub(crate) fn read_place(row: &rusqlite::Row<'_>) -> rusqlite::Result<Place> {
    Ok(Place {
        seq: Seq(row.get::<_, i64>(0)?.cast_unsigned()),
        lane: LaneId(row.get(1)?),
        rank: row.get(2)?,
        token: 0,
    })
}
