//! `forbear job export`: every item as a record, in the order of the input.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

use forbear::{
    record::{ItemId, Outcome, Record, write_listed},
    secrets::Redactor,
};
use forbear_store::queue::{
    Ending, JobAddress,
    inspect::{Listed, State, Which},
};

use super::{Pages, failure, open, output, redactor};
use crate::{
    exit::{Exit, Failure, written},
    shell::say,
};

pub(super) fn run(job: &JobAddress, config: Option<&Path>) -> Result<Exit, Failure> {
    let file = open(job)?;
    let summary = file.summary().map_err(|e| failure(job, &e))?;
    let redactor = redactor(job, config, &summary)?;
    let path = output(job, &summary);
    let of = PathBuf::from(&path);
    let mut export = Export {
        redactor,
        records: HashMap::new(),
        of,
        is_file: job.file().is_some(),
        missing: 0,
        streamed: 0,
    };
    let mut pages = Pages::new(&file, Which::All);
    let mut out = BufWriter::with_capacity(1 << 18, io::stdout().lock());
    let mut line = Vec::new();
    loop {
        let page = pages.next().map_err(|e| failure(job, &e))?;
        if page.is_empty() {
            break;
        }
        for item in page {
            line.clear();
            if let Err(error) = out.write_all(export.record(&item, &mut line)) {
                return written(Err(error));
            }
        }
    }
    let exit = written(out.flush())?;
    if export.streamed > 0 {
        say(format_args!(
            "{} records went into a stream: of these items only the ends are known",
            export.streamed
        ));
    }
    if export.missing > 0 {
        let (n, path) = (export.missing, path.display());
        return Err(Failure::usage(format!(
            "{path} is missing or was changed: {n} records are not where the job put them, and their items were \
             exported without what was fetched; put the file back"
        )));
    }
    Ok(exit)
}

struct Export {
    redactor: Redactor,
    /// Outputs by their paths: a job in a database has one for each process.
    records: HashMap<PathBuf, Records>,
    /// The only one of a job in a file.
    of: PathBuf,
    is_file: bool,
    missing: u64,
    streamed: u64,
}

impl Export {
    /// The item's record, newline included; in `line` if it is not the output's own.
    fn record<'a>(&'a mut self, item: &Listed, line: &'a mut Vec<u8>) -> &'a [u8] {
        let (ending, place) = match &item.state {
            State::Ended(ending, place) => (*ending, *place),
            _ => {
                write_listed(item, &self.redactor, line);
                return line;
            }
        };
        let Some((offset, length)) = place else {
            self.streamed += 1;
            least(item, ending, "its record went into a stream", &self.redactor, line);
            return line;
        };
        // One on another machine has no path here.
        let path = if self.is_file { Some(&self.of) } else { item.output.as_ref() };
        if let Some(path) = path {
            let records = self.records.entry(path.clone()).or_insert_with(|| Records::open(path));
            if records.holds(offset, length) {
                return records.get(offset, length);
            }
        }
        self.missing += 1;
        let reason = "its record is not where the job put it";
        least(item, ending, reason, &self.redactor, line);
        line
    }
}

/// What the job itself knows of an item that has ended.
fn least(item: &Listed, ending: Ending, reason: &str, redactor: &Redactor, line: &mut Vec<u8>) {
    let c = &item.counters;
    let record = Record {
        attempts: c.attempts,
        limited: c.limited,
        waited: c.waited,
        error: c.error.as_deref(),
        reason: Some(reason),
        started_at: c.started_at,
        ..Record::new(
            ItemId::of(item.seq, item.id.as_deref()),
            item.request.as_ref().map(|request| request.url.as_str()),
            Outcome::from(ending),
        )
    };
    record.write(redactor, line);
}

/// The output, read at any place, with a window that grows while records follow each other.
struct Records {
    file: Option<File>,
    start: u64,
    window: Vec<u8>,
    ahead: u64,
}

impl Records {
    /// None is there if it cannot be opened, or is no file: a pipe would wait for a writer.
    fn open(path: &Path) -> Records {
        let file = std::fs::metadata(path).is_ok_and(|meta| meta.is_file()).then(|| File::open(path).ok());
        Records { file: file.flatten(), start: 0, window: Vec::new(), ahead: 0 }
    }

    /// Reads the record into the window, unless it is there; whether it is a record.
    fn holds(&mut self, offset: u64, length: u64) -> bool {
        if !self.has(offset, length) && self.load(offset, length).is_err() {
            self.window.clear();
        }
        self.has(offset, length) && {
            let record = self.get(offset, length);
            record.starts_with(b"{") && record.iter().position(|b| *b == b'\n') == Some(record.len() - 1)
        }
    }

    fn get(&self, offset: u64, length: u64) -> &[u8] {
        let from = usize::try_from(offset - self.start).unwrap_or(usize::MAX);
        &self.window[from..][..usize::try_from(length).unwrap_or(usize::MAX)]
    }

    fn has(&self, offset: u64, length: u64) -> bool {
        let end = self.start + self.window.len() as u64;
        length > 0 && offset >= self.start && offset.checked_add(length).is_some_and(|last| last <= end)
    }

    fn load(&mut self, offset: u64, length: u64) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotFound.into()) };
        let end = self.start + self.window.len() as u64;
        let follows = offset >= self.start && offset <= end && !self.window.is_empty();
        self.ahead = if follows { (self.ahead * 2).clamp(AHEAD_MIN, AHEAD_MAX) } else { 0 };
        self.window.clear();
        self.start = offset;
        file.seek(SeekFrom::Start(offset))?;
        file.take(length.max(self.ahead)).read_to_end(&mut self.window)?;
        Ok(())
    }
}

/// What is read at once while records follow each other. Where items ended in another order than the input's, as with
/// hundreds of hosts, the next one lies far away, and nothing is read ahead.
const AHEAD_MIN: u64 = 4 << 10;
const AHEAD_MAX: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_found_in_any_order_and_others_are_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out.jsonl");
        let lines: Vec<String> =
            (0..5000).map(|n| format!("{{\"id\":{n},\"pad\":\"{}\"}}\n", "x".repeat(n % 97))).collect();
        std::fs::write(&path, lines.concat()).unwrap();
        let mut places = Vec::new();
        let mut at = 0;
        for line in &lines {
            places.push((at, line.len() as u64));
            at += line.len() as u64;
        }
        let mut records = Records::open(&path);
        let order = (0..5000).chain((0..5000).rev()).chain((0..5000).map(|n| n * 1999 % 5000));
        for n in order {
            let (offset, length) = places[n];
            assert!(records.holds(offset, length));
            assert_eq!(records.get(offset, length), lines[n].as_bytes());
        }
        for (offset, length) in [
            (1, 20),                        // within a line
            (0, places[0].1 + places[1].1), // two lines
            (0, places[0].1 - 1),           // without its end
            (at - 5, 6),                    // beyond the end
            (u64::MAX, 2),
            (0, 0),
        ] {
            assert!(!records.holds(offset, length), "{offset} {length}");
        }
        assert!(!Records::open(&dir.path().join("none")).holds(0, 10));
        assert!(!Records::open(dir.path()).holds(0, 10), "a directory");
    }
}
