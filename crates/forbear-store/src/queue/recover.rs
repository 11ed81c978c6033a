//! Setting the output right before a run: what was written and not acknowledged is matched or cut (J1, J4).

use std::{
    borrow::Cow,
    fs::File,
    io::{self, BufRead, BufReader, Seek, SeekFrom},
    os::unix::fs::FileExt,
    path::Path,
};

use serde::Deserialize;

use super::{
    error::{Event, QueueError},
    item::{Ending, Seq},
    ledger::{Acked, Acknowledged, Found, OutputEnd, Owner},
    output::OutputFile,
};

/// What the reconciliation needs to know of the job.
pub(crate) struct Recovery<'a> {
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
    /// Brings file and tables into agreement. Afterwards the file ends where `acks` says.
    pub(crate) fn reconcile(&mut self, acks: &mut dyn Acknowledged) -> Result<(), QueueError> {
        let mut size = self.file(|f| f.metadata())?.len();
        let end = acks.end();
        if end.at > 0 {
            if size + 1 == end.at && self.last_record_is(&end, 1)? {
                self.file(|f| f.write_all_at(b"\n", size))?;
                size += 1;
                (self.tell)(Event::NewlineRestored { out: self.out.path.clone() });
            }
            if size < end.at {
                size = self.shortened(acks, size)?;
            } else if !self.last_record_is(&end, 0)? {
                return Err(self.replaced());
            }
        }
        if size > acks.end().at {
            self.tail(acks)?;
        }
        self.out.end = acks.end().at;
        Ok(())
    }

    /// Whether the last acknowledged record stands where it should, but for its last `missing` bytes (a newline).
    fn last_record_is(&self, t: &OutputEnd, missing: u64) -> Result<bool, QueueError> {
        let Some(at) = t.at.checked_sub(t.last_len) else { return Ok(false) };
        let mut bytes = vec![0; usize::try_from(t.last_len - missing.min(t.last_len)).unwrap_or(0)];
        match self.out.file.read_exact_at(&mut bytes, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(source) => return Err(self.io(source)),
        }
        let end: &[u8] = if missing == 0 { b"" } else { b"\n" };
        Ok(t.is_after(&bytes, end))
    }

    /// The file is shorter than what was acknowledged. If it is the beginning of what was written, the items behind
    /// the end are done again; if it is not, nothing is touched. Gives the file's new size.
    fn shortened(&mut self, acks: &mut dyn Acknowledged, size: u64) -> Result<u64, QueueError> {
        if size == 0 {
            let (path, out) = (self.job.to_owned(), self.out.path.clone());
            return Err(QueueError::OutputGone { path, out, records: acks.records()? });
        }
        let Some(Acked { seq, id, offset, length }) = acks.last_within(size)? else {
            return Err(self.replaced());
        };
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
        let behind = acks.behind(size)?;
        self.file(|f| f.set_len(end))?;
        acks.reopen(&behind.items)?;
        acks.set_end(OutputEnd::after(&bytes, end));
        (self.tell)(Event::RecordsLost {
            out: self.out.path.clone(),
            items: (behind.items.len() + behind.bad.len()) as u64,
        });
        self.write_bad_again(acks, &behind.bad)?;
        Ok(acks.end().at)
    }

    fn write_bad_again(
        &mut self,
        acks: &mut dyn Acknowledged,
        bad: &[(Seq, Vec<u8>)],
    ) -> Result<(), QueueError> {
        for (seq, record) in bad {
            let at = acks.end().at;
            self.file(|f| f.write_all_at(record, at))?;
            acks.moved(*seq, at, record.len() as u64)?;
            acks.set_end(OutputEnd::after(record, at + record.len() as u64));
        }
        self.file(|f| f.sync_data())
    }

    /// What stands after the acknowledged end: whole records of unfinished items are kept, a torn end is cut.
    fn tail(&mut self, acks: &mut dyn Acknowledged) -> Result<(), QueueError> {
        let start = acks.end().at;
        let mut lines = self.read_tail(start)?;
        let owners = acks.owners(&lines.found)?;
        let known = acks.last_line();
        let mut kept = 0;
        for (found, owner) in lines.found.iter().zip(owners) {
            if matches!(owner, Owner::Others) {
                // This and what follows: what was in flight is done again, by whoever has it.
                (lines.whole_to, lines.bare_last, lines.foreign_at) = (found.at, false, None);
                break;
            }
            let Owner::Open(place, parked) = owner else {
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
            acks.keep(found, place, parked)?;
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
            acks.set_end(OutputEnd::after(&bytes, end));
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
pub(crate) fn plain_id(stored: &str) -> Cow<'_, str> {
    let quoted = stored.starts_with('"').then(|| serde_json::from_str(stored).ok()).flatten();
    quoted.map_or(Cow::Borrowed(stored), Cow::Owned)
}

/// Ids are compared as text: the input may write `7` and the record `"7"`.
pub(crate) fn id_text(id: &serde_json::Value) -> String {
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
