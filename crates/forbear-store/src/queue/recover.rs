//! Setting the output right before a run: what was written and not acknowledged is matched or cut (J1, J4).

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

use hashbrown::HashMap;
use rusqlite::{Connection, OptionalExtension, params};
use serde::Deserialize;

use super::{
    apply::{Changes, Ended, Place, ending_from},
    error::{Event, QueueError},
    item::{Counters, Ending, Seq},
    output::{OutputFile, hash, hash_more},
    schema::{Tally, classify},
};

/// What the reconciliation needs to know of the job.
pub(crate) struct Recovery<'a> {
    pub(crate) db: &'a Connection,
    pub(crate) job: &'a Path,
    pub(crate) out: &'a mut OutputFile,
    pub(crate) tell: &'a dyn Fn(Event),
}

/// The part of a record that tells whose it is.
#[derive(Deserialize)]
struct Tail {
    id: serde_json::Value,
    outcome: Option<String>,
    error: Option<String>,
}

/// A whole record found after the acknowledged end.
struct Found {
    id: String,
    ending: Ending,
    error: Option<String>,
    at: u64,
    length: u64,
}

/// What reading the tail came to.
struct TailLines {
    found: Vec<Found>,
    /// Up to here the lines are whole; what follows is torn.
    whole_to: u64,
    /// The last record lacks its newline only.
    bare_last: bool,
    /// A whole line that is no record: not ours.
    foreign_at: Option<u64>,
}

impl Recovery<'_> {
    /// Brings file and tables into agreement. Afterwards the file ends where `changes.tally` says.
    pub(crate) fn reconcile(&mut self, changes: &mut Changes<'_>) -> Result<(), QueueError> {
        let mut size = self.file(|f| f.metadata())?.len();
        let t = changes.tally;
        if t.out_end > 0 {
            if size + 1 == t.out_end && self.last_record_is(&t, 1)? {
                self.file(|f| f.write_all_at(b"\n", size))?;
                size += 1;
                (self.tell)(Event::NewlineRestored { out: self.out.path.clone() });
            }
            if size < t.out_end {
                size = self.shortened(changes, size)?;
            } else if !self.last_record_is(&t, 0)? {
                return Err(self.replaced());
            }
        }
        if size > changes.tally.out_end {
            self.tail(changes)?;
        }
        self.out.end = changes.tally.out_end;
        Ok(())
    }

    /// Whether the last acknowledged record stands where it should, but for its last `missing` bytes (a newline).
    fn last_record_is(&self, t: &Tally, missing: u64) -> Result<bool, QueueError> {
        let Some(at) = t.out_end.checked_sub(t.last_len) else { return Ok(false) };
        let mut bytes = vec![0; usize::try_from(t.last_len - missing.min(t.last_len)).unwrap_or(0)];
        match self.out.file.read_exact_at(&mut bytes, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(source) => return Err(self.io(source)),
        }
        let end: &[u8] = if missing == 0 { b"" } else { b"\n" };
        Ok(hash_more(hash(&bytes), end) == t.last_hash)
    }

    /// The file is shorter than what was acknowledged. If it is the beginning of what was written, the items behind
    /// the end are done again; if it is not, nothing is touched. Gives the file's new size.
    fn shortened(&mut self, changes: &mut Changes<'_>, size: u64) -> Result<u64, QueueError> {
        let db = |source| classify(self.job, source);
        let limit = size.cast_signed();
        let records: i64 = self
            .db
            .query_row("SELECT count(*) FROM ended WHERE offset IS NOT NULL", [], |row| row.get(0))
            .map_err(db)?;
        if size == 0 {
            let (path, out) = (self.job.to_owned(), self.out.path.clone());
            return Err(QueueError::OutputGone { path, out, records: records.cast_unsigned() });
        }
        let last = self
            .db
            .query_row(
                "SELECT e.seq, e.offset, e.length, i.id FROM ended e JOIN items i ON i.seq = e.seq
                 WHERE e.offset + e.length <= ?1 ORDER BY e.offset DESC LIMIT 1",
                [limit],
                |row| {
                    let number = |i| row.get::<_, i64>(i).map(i64::cast_unsigned);
                    Ok((number(0)?, number(1)?, number(2)?, row.get::<_, Option<String>>(3)?))
                },
            )
            .optional()
            .map_err(db)?;
        let Some((seq, offset, length, id)) = last else { return Err(self.replaced()) };
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        self.file(|f| f.read_exact_at(&mut bytes, offset))?;
        let ours = bytes.ends_with(b"\n")
            && serde_json::from_slice::<Tail>(&bytes).is_ok_and(|tail| match &id {
                Some(id) => id_text(&tail.id) == plain_id(id),
                None => id_text(&tail.id) == seq.to_string(),
            });
        if !ours {
            return Err(self.replaced());
        }
        let end = offset + length;
        let (again, bad) = self.lost(limit).map_err(db)?;
        self.file(|f| f.set_len(end))?;
        changes.reopen(&again).map_err(db)?;
        changes.tally.out_end = end;
        changes.tally.last_len = length;
        changes.tally.last_hash = hash(&bytes);
        (self.tell)(Event::RecordsLost {
            out: self.out.path.clone(),
            items: (again.len() + bad.len()) as u64,
        });
        self.write_bad_again(changes, &bad)?;
        Ok(changes.tally.out_end)
    }

    /// Items whose records lie behind `limit`, and bad lines with their kept records.
    #[allow(clippy::type_complexity)]
    fn lost(&self, limit: i64) -> rusqlite::Result<(Vec<(Place, Ending)>, Vec<(Seq, Vec<u8>)>)> {
        let again = self
            .db
            .prepare(
                "SELECT e.seq, i.lane, -coalesce(json_extract(i.extras, '$.p'), 0), e.ending
                 FROM ended e JOIN items i ON i.seq = e.seq
                 WHERE e.offset + e.length > ?1 AND i.url IS NOT NULL",
            )?
            .query_map([limit], |row| Ok((super::apply::read_place(row)?, ending_from(row.get(3)?))))?
            .collect::<rusqlite::Result<_>>()?;
        let bad = self
            .db
            .prepare(
                "SELECT e.seq, i.body FROM ended e JOIN items i ON i.seq = e.seq
                 WHERE e.offset + e.length > ?1 AND i.url IS NULL ORDER BY e.seq",
            )?
            .query_map([limit], |row| Ok((Seq(row.get::<_, i64>(0)?.cast_unsigned()), row.get(1)?)))?
            .collect::<rusqlite::Result<_>>()?;
        Ok((again, bad))
    }

    fn write_bad_again(
        &mut self,
        changes: &mut Changes<'_>,
        bad: &[(Seq, Vec<u8>)],
    ) -> Result<(), QueueError> {
        for (seq, record) in bad {
            let at = changes.tally.out_end;
            self.file(|f| f.write_all_at(record, at))?;
            self.db
                .prepare_cached("UPDATE ended SET offset = ?2, length = ?3 WHERE seq = ?1")
                .and_then(|mut s| {
                    s.execute(params![seq.0.cast_signed(), at.cast_signed(), record.len() as i64])
                })
                .map_err(|source| classify(self.job, source))?;
            changes.tally.out_end = at + record.len() as u64;
            changes.tally.last_len = record.len() as u64;
            changes.tally.last_hash = hash(record);
        }
        self.file(|f| f.sync_data())
    }

    /// What stands after the acknowledged end: whole records of unfinished items are kept, a torn end is cut.
    fn tail(&mut self, changes: &mut Changes<'_>) -> Result<(), QueueError> {
        let start = changes.tally.out_end;
        let mut lines = self.read_tail(start)?;
        let places = self.unfinished(&lines.found).map_err(|source| classify(self.job, source))?;
        let known = changes.tally.position.line;
        let mut kept = 0;
        for (found, place) in lines.found.iter().zip(places) {
            let Some((place, parked)) = place else {
                // A bad line whose import was not committed: it will be imported, and written, again. Such lines are
                // the last of their group, so nothing but their like can follow.
                if found.id.parse::<u64>().is_ok_and(|line| line > known) {
                    lines.whole_to = found.at;
                    lines.bare_last = false;
                    lines.foreign_at = None;
                    break;
                }
                return Err(QueueError::OutputForeign { out: self.out.path.clone(), offset: found.at });
            };
            self.keep(changes, found, place, parked).map_err(|source| classify(self.job, source))?;
            kept += 1;
        }
        if let Some(offset) = lines.foreign_at {
            return Err(QueueError::OutputForeign { out: self.out.path.clone(), offset });
        }
        let size = self.file(|f| f.metadata())?.len();
        let mut end = lines.whole_to;
        self.file(|f| f.set_len(end))?;
        if lines.bare_last {
            self.file(|f| f.write_all_at(b"\n", end))?;
            end += 1;
        }
        self.file(|f| f.sync_data())?;
        if size > end {
            (self.tell)(Event::TailCut { out: self.out.path.clone(), bytes: size - end });
        }
        if let Some(last) = lines.found.iter().rev().find(|found| found.at < end) {
            let mut bytes = vec![0; usize::try_from(end - last.at).unwrap_or(0)];
            self.file(|f| f.read_exact_at(&mut bytes, last.at))?;
            changes.tally.out_end = end;
            changes.tally.last_len = bytes.len() as u64;
            changes.tally.last_hash = hash(&bytes);
        }
        if kept > 0 {
            (self.tell)(Event::TailKept { out: self.out.path.clone(), records: kept });
        }
        Ok(())
    }

    fn read_tail(&self, start: u64) -> Result<TailLines, QueueError> {
        let mut reader = BufReader::with_capacity(1 << 16, &self.out.file);
        reader.seek(SeekFrom::Start(start)).map_err(|source| self.io(source))?;
        let mut lines = TailLines { found: Vec::new(), whole_to: start, bare_last: false, foreign_at: None };
        let mut line = Vec::new();
        loop {
            line.clear();
            let length = reader.read_until(b'\n', &mut line).map_err(|source| self.io(source))? as u64;
            if length == 0 {
                return Ok(lines);
            }
            let whole = line.ends_with(b"\n");
            let Ok(tail) = serde_json::from_slice::<Tail>(&line) else {
                // A power cut leaves halves and zeros. Other text is somebody's.
                if whole && !line.starts_with(b"{") && !line.contains(&0) {
                    lines.foreign_at = Some(lines.whole_to);
                }
                return Ok(lines);
            };
            let ending = match tail.outcome.as_deref() {
                Some("done") => Ending::Done,
                Some("unknown") => Ending::Unknown,
                _ => Ending::Failed,
            };
            let length = if whole { length } else { length + 1 };
            let at = lines.whole_to;
            lines.found.push(Found { id: id_text(&tail.id), ending, error: tail.error, at, length });
            if !whole {
                lines.whole_to += length - 1;
                lines.bare_last = true;
                return Ok(lines);
            }
            lines.whole_to += length;
        }
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
                    by_line.query_row([line.cast_signed()], |row| {
                        Ok((super::apply::read_place(row)?, row.get(3)?))
                    })
                }
                .optional()?,
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
                places[index] = Some((super::apply::read_place(row)?, row.get(3)?));
                left -= 1;
            }
        }
        Ok(places)
    }

    fn keep(
        &self,
        changes: &mut Changes<'_>,
        found: &Found,
        place: Place,
        parked: bool,
    ) -> rusqlite::Result<()> {
        if parked {
            changes.unpark(&[place])?;
        }
        let counters = Counters { error: found.error.clone(), ..Counters::default() };
        changes.end(&Ended {
            place,
            ending: found.ending,
            record: Some((found.at, found.length)),
            counters: &counters,
            has_progress: true,
            shown: false,
        })
    }

    fn file<T>(&self, act: impl FnOnce(&File) -> io::Result<T>) -> Result<T, QueueError> {
        act(&self.out.file).map_err(|source| self.io(source))
    }

    fn io(&self, source: io::Error) -> QueueError {
        QueueError::Io { path: self.out.path.clone(), source }
    }

    fn replaced(&self) -> QueueError {
        QueueError::OutputReplaced { path: self.job.to_owned(), out: self.out.path.clone() }
    }
}

/// The id without the quotes of [`NewItem::id`](super::NewItem::id).
fn plain_id(stored: &str) -> Cow<'_, str> {
    let quoted = stored.starts_with('"').then(|| serde_json::from_str(stored).ok()).flatten();
    quoted.map_or(Cow::Borrowed(stored), Cow::Owned)
}

/// Ids are compared as text: the input may write `7` and the record `"7"`.
fn id_text(id: &serde_json::Value) -> String {
    match id {
        serde_json::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j1_an_id_is_known_again_in_its_record() {
        for (stored, written) in
            [("7", "7"), ("a", r#""a""#), (r#""7""#, r#""7""#), (r#""\"a""#, r#""\"a""#), (r#"""#, r#""\"""#)]
        {
            let written: serde_json::Value = serde_json::from_str(written).expect("JSON");
            assert_eq!(plain_id(stored), id_text(&written), "{stored}");
        }
    }
}
