//! What the file knows of its output, for setting that right.

use std::path::Path;

use hashbrown::HashMap;
use rusqlite::{Connection, OptionalExtension, params};

use super::{
    apply::{Changes, Ended, read_place},
    schema::classify,
};
use crate::queue::{
    error::QueueError,
    item::{Counters, Ending, Seq},
    ledger::{Acked, Acknowledged, Behind, Found, OutputEnd, Owner, Place, ending_from},
    recover::plain_id,
};

/// The transaction with which a run begins.
pub(crate) struct Acks<'a, 'c> {
    pub(crate) db: &'a Connection,
    pub(crate) path: &'a Path,
    pub(crate) changes: &'a mut Changes<'c>,
}

impl Acknowledged for Acks<'_, '_> {
    fn end(&self) -> OutputEnd {
        self.changes.tally.out
    }

    fn set_end(&mut self, end: OutputEnd) {
        self.changes.tally.out = end;
    }

    fn last_line(&self) -> u64 {
        self.changes.tally.position.line
    }

    fn records(&mut self) -> Result<u64, QueueError> {
        let sql = "SELECT count(*) FROM ended WHERE offset IS NOT NULL";
        let records = self.db.query_row(sql, [], |row| row.get::<_, i64>(0));
        records.map(i64::cast_unsigned).map_err(|source| classify(self.path, source))
    }

    fn last_within(&mut self, limit: u64) -> Result<Option<Acked>, QueueError> {
        self.db
            .query_row(
                "SELECT e.seq, e.offset, e.length, i.id FROM ended e JOIN items i ON i.seq = e.seq
                 WHERE e.offset + e.length <= ?1 ORDER BY e.offset DESC LIMIT 1",
                [limit.cast_signed()],
                |row| {
                    let number = |i| row.get::<_, i64>(i).map(i64::cast_unsigned);
                    Ok(Acked { seq: number(0)?, offset: number(1)?, length: number(2)?, id: row.get(3)? })
                },
            )
            .optional()
            .map_err(|source| classify(self.path, source))
    }

    fn behind(&mut self, limit: u64) -> Result<Behind, QueueError> {
        self.lost(limit.cast_signed()).map_err(|source| classify(self.path, source))
    }

    fn reopen(&mut self, items: &[(Place, Ending)]) -> Result<(), QueueError> {
        self.changes.reopen(items).map_err(|source| classify(self.path, source))
    }

    fn moved(&mut self, seq: Seq, at: u64, length: u64) -> Result<(), QueueError> {
        self.db
            .prepare_cached("UPDATE ended SET offset = ?2, length = ?3 WHERE seq = ?1")
            .and_then(|mut s| s.execute(params![seq.0.cast_signed(), at.cast_signed(), length.cast_signed()]))
            .map(drop)
            .map_err(|source| classify(self.path, source))
    }

    fn owners(&mut self, found: &[Found]) -> Result<Vec<Owner>, QueueError> {
        let places = self.unfinished(found).map_err(|source| classify(self.path, source))?;
        let owner = |place: Option<(Place, bool)>| {
            place.map_or(Owner::Nobody, |(place, parked)| Owner::Open(place, parked))
        };
        Ok(places.into_iter().map(owner).collect())
    }

    fn keep(&mut self, found: &Found, place: Place, parked: bool) -> Result<(), QueueError> {
        self.kept(found, place, parked).map_err(|source| classify(self.path, source))
    }
}

impl Acks<'_, '_> {
    /// Items whose records lie behind `limit`, and bad lines with their kept records.
    fn lost(&self, limit: i64) -> rusqlite::Result<Behind> {
        let items = self
            .db
            .prepare(
                "SELECT e.seq, i.lane, -coalesce(json_extract(i.extras, '$.p'), 0), e.ending
                 FROM ended e JOIN items i ON i.seq = e.seq
                 WHERE e.offset + e.length > ?1 AND i.url IS NOT NULL",
            )?
            .query_map([limit], |row| Ok((read_place(row)?, ending_from(row.get(3)?))))?
            .collect::<rusqlite::Result<_>>()?;
        let bad = self
            .db
            .prepare(
                "SELECT e.seq, i.body FROM ended e JOIN items i ON i.seq = e.seq
                 WHERE e.offset + e.length > ?1 AND i.url IS NULL ORDER BY e.seq",
            )?
            .query_map([limit], |row| Ok((Seq(row.get::<_, i64>(0)?.cast_unsigned()), row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        Ok(Behind { items, bad })
    }

    /// For each record its item, if it is known and unfinished, and whether that is parked.
    fn unfinished(&self, found: &[Found]) -> rusqlite::Result<Vec<Option<(Place, bool)>>> {
        let mut places: Vec<Option<(Place, bool)>> = vec![None; found.len()];
        let mut by_line = self.db.prepare(
            "SELECT i.seq, i.lane, -coalesce(json_extract(i.extras, '$.p'), 0), p.seq IS NOT NULL
             FROM items i LEFT JOIN ended e ON e.seq = i.seq LEFT JOIN parked p ON p.seq = i.seq
             WHERE i.seq = ?1 AND i.id IS NULL AND i.url IS NOT NULL AND e.seq IS NULL",
        )?;
        let mut open: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut used: hashbrown::HashSet<u64> = hashbrown::HashSet::new();
        for (index, record) in found.iter().enumerate() {
            let line = record.id.parse::<u64>().ok().filter(|line| !used.contains(line));
            let place = match line {
                Some(line) => {
                    { by_line.query_row([line.cast_signed()], |row| Ok((read_place(row)?, row.get(3)?))) }
                        .optional()?
                }
                None => None,
            };
            match place {
                Some(place) => {
                    used.insert(place.0.seq.0);
                    places[index] = Some(place);
                }
                None => open.entry(&record.id).or_default().push(index),
            }
        }
        if open.is_empty() {
            return Ok(places);
        }
        // Ids are not indexed: that would slow every import for the sake of one look after a crash.
        for indices in open.values_mut() {
            indices.reverse();
        }
        let mut left: usize = open.values().map(Vec::len).sum();
        let mut all = self.db.prepare(
            "SELECT i.seq, i.lane, -coalesce(json_extract(i.extras, '$.p'), 0), p.seq IS NOT NULL, i.id
             FROM items i LEFT JOIN ended e ON e.seq = i.seq LEFT JOIN parked p ON p.seq = i.seq
             WHERE i.id IS NOT NULL AND i.url IS NOT NULL AND e.seq IS NULL ORDER BY i.seq",
        )?;
        let mut rows = all.query([])?;
        while left > 0
            && let Some(row) = rows.next()?
        {
            if let Some(index) = open.get_mut(&*plain_id(row.get_ref(4)?.as_str()?)).and_then(Vec::pop) {
                places[index] = Some((read_place(row)?, row.get(3)?));
                left -= 1;
            }
        }
        Ok(places)
    }

    fn kept(&mut self, found: &Found, place: Place, parked: bool) -> rusqlite::Result<()> {
        if parked {
            self.changes.unpark(&[place])?;
        }
        let counters = Counters { error: found.error.clone(), ..Counters::default() };
        self.changes.end(&Ended {
            place,
            ending: found.ending,
            record: Some((found.at, found.length)),
            counters: &counters,
            has_progress: true,
            shown: false,
        })
    }
}
