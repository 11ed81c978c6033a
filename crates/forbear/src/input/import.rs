//! Reading an input into a job, in a thread of its own, beside the fetching (J3).

use std::{
    fs::{self, File},
    io::{self, Read, Seek as _, SeekFrom},
    mem,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::SystemTime,
};

use forbear_core::time::Timestamp;
use forbear_store::queue::{
    BadLine, Batch, Ending, InputChange, InputEnd, InputIdentity, InputPosition, Job, NewItem, QueueError,
    Seq,
};
use tokio::sync::watch;

use super::{
    error::{ImportError, LineError},
    lanes::Lanes,
    line::{BadInput, Line, parse_line},
    read::{Lines, Next},
};
use crate::{
    client::Target,
    config::Settings,
    record::{ItemId, Record},
    secrets::Redactor,
};

/// The first batch: so few that the first request can start at once (J3).
const FIRST_BATCH_ITEMS: usize = 64;
/// Later ones. Each is a transaction; more in one gain nothing.
const BATCH_ITEMS: usize = 4096;
/// And of no more bytes than this: three of them are in memory at once.
const BATCH_BYTES: usize = 4 << 20;

/// Where an input comes from.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Source {
    /// Standard input. A resumed job reads it from its beginning, and skips what it has.
    Stdin,
    /// A file, or something that reads like one.
    File(PathBuf),
}

impl Source {
    /// Whether there is something to read, before anything is made for it. A pipe is not opened.
    ///
    /// # Errors
    /// A file that is missing, or may not be read; a directory.
    pub fn look(&self) -> Result<(), ImportError> {
        let Source::File(path) = self else { return Ok(()) };
        let io = |source| ImportError::Io { path: path.clone(), source };
        let meta = fs::metadata(path).map_err(io)?;
        if meta.is_dir() {
            return Err(ImportError::Directory { path: path.clone() });
        }
        if meta.is_file() { File::open(path).map(drop).map_err(io) } else { Ok(()) }
    }

    /// Refuses a file that is not what a job was made from.
    ///
    /// # Errors
    /// [`ImportError::OtherInput`], or when the file cannot be read.
    pub fn compare(&self, known: Option<InputIdentity>) -> Result<(), ImportError> {
        let (Source::File(path), Some(was)) = (self, known) else { return Ok(()) };
        let io = |source| ImportError::Io { path: path.clone(), source };
        if fs::metadata(path).map_err(io)?.is_file()
            && was.compare(path).map_err(io)? == InputChange::Different
        {
            return Err(other(path, Some(&was)));
        }
        Ok(())
    }

    /// As on the command line: `-` is standard input.
    #[must_use]
    pub fn named(name: impl Into<PathBuf>) -> Source {
        let path = name.into();
        if path == Path::new("-") { Source::Stdin } else { Source::File(path) }
    }

    /// As on the command line.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Source::Stdin => Path::new("-"),
            Source::File(path) => path,
        }
    }
}

/// Something that happened while reading.
#[derive(Clone, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ImportEvent {
    /// A line is no item. It is kept as a failed one.
    BadLine {
        /// Which, from 1.
        line: u64,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// The input has more than when the job read it last: the new lines are added.
    Grown {
        /// The input.
        path: PathBuf,
    },
    /// The last line had no end when it was read, and has one now, further off: what was added to it is read as a line of
    /// its own.
    LineWasTorn {
        /// Which, from 1.
        line: u64,
    },
    /// Standard input ends before the place up to which an earlier run has read. Nothing is added.
    Shorter {
        /// The lines that the job has.
        lines: u64,
    },
}

/// Where events go. Called from the importer's thread, in order.
pub type ImportEvents = Arc<dyn Fn(ImportEvent) + Send + Sync>;

/// How an import ended.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Imported {
    /// The input is in, all of it.
    All,
    /// It was stopped, or the job was closed. The next run goes on from there.
    Stopped,
}

/// How far an import has come, to be read at any time.
#[derive(Debug, Default)]
pub struct ImportProgress {
    lines: AtomicU64,
    items: AtomicU64,
    bad: AtomicU64,
    bytes: AtomicU64,
    total: AtomicU64,
}

impl ImportProgress {
    /// Lines read, those of earlier runs included.
    #[must_use]
    pub fn lines(&self) -> u64 {
        self.lines.load(Relaxed)
    }

    /// Items that this run has added.
    #[must_use]
    pub fn items(&self) -> u64 {
        self.items.load(Relaxed)
    }

    /// Lines of this run that are none.
    #[must_use]
    pub fn bad(&self) -> u64 {
        self.bad.load(Relaxed)
    }

    /// Bytes read, those of earlier runs included.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Relaxed)
    }

    /// Bytes in all, where the input has a size.
    #[must_use]
    pub fn total_bytes(&self) -> Option<u64> {
        Some(self.total.load(Relaxed)).filter(|total| *total > 0)
    }

    fn at(&self, position: InputPosition) {
        self.lines.store(position.line, Relaxed);
        self.bytes.store(position.offset, Relaxed);
    }
}

/// An import under way.
///
/// Dropped, it stops as by [`stop`](Importer::stop).
#[derive(Debug)]
pub struct Importer {
    progress: Arc<ImportProgress>,
    stop: Arc<AtomicBool>,
    end: watch::Receiver<Option<Result<Imported, Arc<ImportError>>>>,
}

impl Importer {
    /// Begins to read `source` into `job`, from where an earlier run has stopped.
    ///
    /// `lane_of` gives the key of an item's lane from its target, its account and its endpoint: the names that the item
    /// gives, else the hash of its credentials and the endpoint that the configuration finds. It is asked once for each
    /// combination, not for each item.
    ///
    /// Reads the beginning of a file; call it where blocking is allowed.
    ///
    /// # Errors
    /// When a file cannot be read, or is not what the job was made from. What is found out later comes from
    /// [`finished`](Importer::finished).
    pub fn start<F>(
        job: Arc<Job>,
        source: &Source,
        settings: Arc<Settings>,
        events: ImportEvents,
        lane_of: F,
    ) -> Result<Importer, ImportError>
    where
        F: Fn(&Target, Option<&str>, Option<&str>) -> Arc<str> + Send + 'static,
    {
        let progress = Arc::new(ImportProgress::default());
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, end) = watch::channel(None);
        let redactor = Redactor::new(&settings.secrets);
        let lanes = Lanes::new(settings, job.account_key(), lane_of);
        let reader = Reader {
            path: source.path().to_owned(),
            progress: Arc::clone(&progress),
            stop: Arc::clone(&stop),
            batch: Batch::default(),
            batch_bytes: 0,
            batch_items_max: FIRST_BATCH_ITEMS,
            job,
            events,
            lanes,
            redactor,
        };
        progress.at(reader.job.position());
        let input = reader.open(source)?;
        std::thread::Builder::new()
            .name("forbear-import".into())
            .spawn(move || {
                let result = match input {
                    Input::File(lines) => reader.run(lines),
                    Input::Stream(source) => reader.run_stream(&source),
                };
                // A job that is closed is not the input's fault.
                let result = match result {
                    Err(ImportError::Job(QueueError::Closed | QueueError::NotTheImporter)) => {
                        Ok(Imported::Stopped)
                    }
                    other => other.map_err(Arc::new),
                };
                sender.send_replace(Some(result));
            })
            .map_err(|error| ImportError::Io { path: source.path().to_owned(), source: error })?;
        Ok(Importer { progress, stop, end })
    }

    /// How far it has come.
    #[must_use]
    pub fn progress(&self) -> &Arc<ImportProgress> {
        &self.progress
    }

    /// Asks it to stop after the line at hand. One that waits for standard input stays until the process ends, which does
    /// no harm.
    pub fn stop(&self) {
        self.stop.store(true, Relaxed);
    }

    /// How it ended, if it has.
    #[must_use]
    pub fn ended(&self) -> Option<Result<Imported, Arc<ImportError>>> {
        self.end.borrow().clone()
    }

    /// Waits for its end. All batches are handed to the job then, but not all are durable yet.
    ///
    /// # Errors
    /// Why the input could not be read to its end. What was read is in the job.
    ///
    /// # Cancel safety
    /// Changes nothing; may be asked again, also after the end.
    pub async fn finished(&self) -> Result<Imported, Arc<ImportError>> {
        let mut end = self.end.clone();
        match end.wait_for(Option::is_some).await {
            Ok(result) => result.clone().unwrap_or_else(|| Err(Arc::new(ImportError::Died))),
            Err(_) => Err(Arc::new(ImportError::Died)),
        }
    }
}

impl Drop for Importer {
    fn drop(&mut self) {
        self.stop();
    }
}

enum Input {
    /// It stands where the job goes on.
    File(Lines<File>),
    /// Not opened yet: a pipe by name waits there for its writer.
    Stream(Source),
}

struct Reader<F> {
    path: PathBuf,
    progress: Arc<ImportProgress>,
    stop: Arc<AtomicBool>,
    batch: Batch,
    batch_bytes: usize,
    batch_items_max: usize,
    job: Arc<Job>,
    events: ImportEvents,
    lanes: Lanes<F>,
    redactor: Redactor,
}

impl<F> Reader<F>
where
    F: Fn(&Target, Option<&str>, Option<&str>) -> Arc<str>,
{
    /// Opens the source, compares it with what the job was made from, and goes to the place.
    fn open(&self, source: &Source) -> Result<Input, ImportError> {
        let stream = || Ok(Input::Stream(source.clone()));
        let Source::File(path) = source else { return stream() };
        let meta = fs::metadata(path).map_err(|error| self.io(error))?;
        if meta.is_dir() {
            return Err(ImportError::Directory { path: path.clone() });
        }
        // A pipe is not opened twice: its writer would see the first look end, and leave.
        if !meta.is_file() {
            return stream();
        }
        let mut file = File::open(path).map_err(|error| self.io(error))?;
        self.progress.total.store(meta.len(), Relaxed);
        let known = self.job.input();
        let change = match &known {
            Some(was) => was.compare(path).map_err(|error| self.io(error))?,
            None => InputChange::Grown,
        };
        if change == InputChange::Different {
            return Err(self.other(known.as_ref()));
        }
        if change == InputChange::Grown {
            self.job.set_input(InputIdentity::of(path).map_err(|error| self.io(error))?)?;
            if known.is_some() {
                (self.events)(ImportEvent::Grown { path: path.clone() });
            }
        }
        let position = self.job.position();
        if position.offset > meta.len() {
            // It had grown while it was read, and has been cut since.
            return Err(self.other(known.as_ref()));
        }
        let torn = position.offset > 0 && {
            let mut last = [0];
            file.seek(SeekFrom::Start(position.offset - 1)).map_err(|error| self.io(error))?;
            file.read_exact(&mut last).map_err(|error| self.io(error))?;
            last != *b"\n"
        };
        let mut lines = Lines::new(file, position);
        if torn {
            self.mend(&mut lines)?;
        }
        begin(&self.path, &mut lines)?;
        Ok(Input::File(lines))
    }

    /// The last line had no end when it was read. If that is all that was added, it is its end.
    fn mend<R: Read>(&self, lines: &mut Lines<R>) -> Result<(), ImportError> {
        let head = lines.peek().map_err(|error| self.io(error))?;
        let end = if head.starts_with(b"\n") {
            1
        } else if head.starts_with(b"\r\n") {
            2
        } else {
            if !head.is_empty() {
                (self.events)(ImportEvent::LineWasTorn { line: lines.position().line });
            }
            0
        };
        lines.skip(end);
        Ok(())
    }

    /// Compares a stream with what the job was made from, and skips what the job has.
    fn run_stream(mut self, source: &Source) -> Result<Imported, ImportError> {
        /// So much of the beginning is compared, if it comes in one piece.
        const HEAD_BYTES: usize = 64 << 10;
        let mut stream: Box<dyn Read> = match source {
            Source::Stdin => Box::new(io::stdin()),
            Source::File(path) => Box::new(File::open(path).map_err(|error| self.io(error))?),
        };
        let position = self.job.position();
        let head_len = match self.job.input() {
            Some(was) if was.size > 0 || was.modified_us > 0 => return Err(self.other(Some(&was))),
            Some(was) => Some(was.head_len),
            None => None,
        };
        let mut head = vec![0; head_len.map_or(HEAD_BYTES, |len| usize::try_from(len).unwrap_or(HEAD_BYTES))];
        let mut have = 0;
        while have < head.len() {
            let n = match stream.read(&mut head[have..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.map_err(|error| self.io(error))?,
            };
            have += n;
            // A first look takes what there is; a later one needs as much as the first.
            if n == 0 || head_len.is_none() {
                break;
            }
        }
        head.truncate(have);
        let digest = blake3::hash(&head);
        let identity = InputIdentity {
            path: self.path.to_string_lossy().into_owned(),
            size: 0,
            modified_us: 0,
            head_len: have as u64,
            head_hash: digest.as_bytes().iter().take(8).fold(0, |n, byte| n << 8 | u64::from(*byte)),
        };
        let known = self.job.input();
        match known {
            None if have > 0 => self.job.set_input(identity)?,
            None => {}
            Some(_) if have == 0 => {
                // Nothing came: what the job has is what there is to do.
                if position.line > 0 {
                    (self.events)(ImportEvent::Shorter { lines: position.line });
                }
                return self.end(position);
            }
            Some(was) if (was.head_len, was.head_hash) != (identity.head_len, identity.head_hash) => {
                return Err(self.other(Some(&was)));
            }
            Some(_) => {}
        }
        let mut whole = io::Cursor::new(head).chain(stream);
        let skipped = io::copy(&mut whole.by_ref().take(position.offset), &mut io::sink());
        if skipped.map_err(|error| self.io(error))? < position.offset {
            (self.events)(ImportEvent::Shorter { lines: position.line });
            return self.end(position);
        }
        let mut lines = Lines::new(whole, position);
        begin(&self.path, &mut lines)?;
        self.run(lines)
    }

    fn run<R: Read>(mut self, mut lines: Lines<R>) -> Result<Imported, ImportError> {
        let is_file = self.progress.total_bytes().is_some();
        loop {
            if self.stop.load(Relaxed) {
                // What is in the batch was read; the position behind it goes along.
                self.flush(lines.position(), InputEnd::More)?;
                return Ok(Imported::Stopped);
            }
            // Nobody waits for a batch to be full while the writer of a pipe thinks.
            let waits = !is_file && !self.is_empty() && !lines.at_hand();
            if waits || self.is_full() {
                self.flush(lines.position(), InputEnd::More)?;
            }
            let line = lines.position().line + 1;
            let next = lines.next().map_err(|source| ImportError::Io { path: self.path.clone(), source })?;
            match next {
                Next::Line(text) => self.take(line, text),
                Next::TooLong { json } => {
                    self.refuse(line, &BadInput::new(LineError::TooLong { json }, None))
                }
                Next::End => return self.end(lines.position()),
            }
            self.progress.at(lines.position());
        }
    }

    fn take(&mut self, line: u64, text: &[u8]) {
        let seq = Seq(line);
        if let Some((lane, request)) = self.lanes.plain(text) {
            return self.add(text.len(), NewItem { seq, id: None, lane, request, not_before: None });
        }
        match parse_line(text) {
            Line::Nothing => {}
            Line::Bad(bad) => self.refuse(line, &bad),
            Line::Item(item) => {
                let lane = self.lanes.of(&item);
                let not_before = item.not_before.filter(|at| *at > now());
                let item = NewItem { seq, id: item.id, lane, request: item.request, not_before };
                self.add(text.len(), item);
            }
        }
    }

    fn add(&mut self, bytes: usize, item: NewItem) {
        self.batch.items.push(item);
        self.batch_bytes += bytes;
        self.progress.items.fetch_add(1, Relaxed);
    }

    fn refuse(&mut self, line: u64, bad: &BadInput) {
        let why = bad.error.to_string();
        let url = bad.shown_url(&self.redactor);
        let error = format!("line {line}: {why}");
        let record = Record {
            error: Some(&error),
            reason: Some("bad input"),
            finished_at: Some(now()),
            // The line's number and not an id of its own: the queue knows it again by that.
            ..Record::new(ItemId::Line(line), url.as_deref(), Ending::Failed.into())
        };
        let mut bytes = Vec::new();
        record.write(&self.redactor, &mut bytes);
        self.batch_bytes += bytes.len();
        self.batch.bad.push(BadLine { seq: Seq(line), record: bytes });
        self.progress.bad.fetch_add(1, Relaxed);
        (self.events)(ImportEvent::BadLine { line, why });
    }

    fn is_empty(&self) -> bool {
        self.batch.items.is_empty() && self.batch.bad.is_empty()
    }

    fn is_full(&self) -> bool {
        self.batch.items.len() + self.batch.bad.len() >= self.batch_items_max
            || self.batch_bytes >= BATCH_BYTES
    }

    fn end(&mut self, position: InputPosition) -> Result<Imported, ImportError> {
        self.progress.at(position);
        self.flush(position, InputEnd::Reached)?;
        Ok(Imported::All)
    }

    fn flush(&mut self, position: InputPosition, end: InputEnd) -> Result<(), ImportError> {
        let mut batch = mem::take(&mut self.batch);
        (batch.position, batch.end) = (position, end);
        self.batch_bytes = 0;
        self.batch_items_max = (self.batch_items_max * 4).min(BATCH_ITEMS);
        Ok(self.job.import(batch)?)
    }

    fn io(&self, source: io::Error) -> ImportError {
        ImportError::Io { path: self.path.clone(), source }
    }

    fn other(&self, was: Option<&InputIdentity>) -> ImportError {
        other(&self.path, was)
    }
}

fn other(path: &Path, was: Option<&InputIdentity>) -> ImportError {
    let was = was.map_or_else(String::new, |was| match was.path.as_str() {
        "-" => "standard input".to_owned(),
        path => path.to_owned(),
    });
    ImportError::OtherInput { path: path.to_owned(), was }
}

/// At the very beginning: a mark of UTF-8 is left out, and what is no text at all is refused.
fn begin<R: Read>(path: &Path, lines: &mut Lines<R>) -> Result<(), ImportError> {
    if lines.position().offset > 0 {
        return Ok(());
    }
    let head = lines.peek().map_err(|source| ImportError::Io { path: path.to_owned(), source })?;
    if head.starts_with(b"\xff\xfe") || head.starts_with(b"\xfe\xff") {
        return Err(ImportError::Utf16 { path: path.to_owned() });
    }
    // gzip, zstd, xz, bzip2, zip.
    let compressed: [&[u8]; 5] = [b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0", b"BZh", b"PK\x03\x04"];
    if compressed.iter().any(|magic| head.starts_with(magic)) {
        return Err(ImportError::Compressed { path: path.to_owned() });
    }
    if head.starts_with(b"\xef\xbb\xbf") {
        lines.skip(3);
    }
    Ok(())
}

/// Reads a whole input line by line, for a look at it without a job. `take` gets the number of each line, from 1.
///
/// Blocks until the input has ended.
///
/// # Errors
/// When it cannot be read.
pub fn scan(source: &Source, mut take: impl FnMut(u64, Line)) -> Result<(), ImportError> {
    let path = source.path();
    let io = |source| ImportError::Io { path: path.to_owned(), source };
    let reader: Box<dyn Read> = match source {
        Source::Stdin => Box::new(io::stdin()),
        Source::File(path) if path.is_dir() => return Err(ImportError::Directory { path: path.clone() }),
        Source::File(path) => Box::new(File::open(path).map_err(io)?),
    };
    let mut lines = Lines::new(reader, InputPosition::default());
    begin(path, &mut lines)?;
    loop {
        let line = lines.position().line + 1;
        match lines.next().map_err(io)? {
            Next::Line(text) => take(line, parse_line(text)),
            Next::TooLong { json } => take(line, Line::Bad(BadInput::new(LineError::TooLong { json }, None))),
            Next::End => return Ok(()),
        }
    }
}

fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    Timestamp::ZERO.plus(since)
}
