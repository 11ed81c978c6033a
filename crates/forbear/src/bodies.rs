//! Where bodies go: into the record, into files, or nowhere.

use std::{
    fs::{self, File},
    io::{self, Write as _},
    path::{Path, PathBuf},
    sync::Arc,
};

use bytes::{Bytes, BytesMut};
use forbear_store::queue::{BodyFile, Seq};

use crate::record::ItemId;

/// Bytes are gathered up to here before they go into a file: one hop to a thread that may block for each.
const CHUNK_BYTES: usize = 256 << 10;
/// Longer file names are cut and told apart by a hash. Most file systems end at 255 bytes, and a suffix may follow.
const NAME_BYTES_MAX: usize = 150;

/// What to do with bodies (`--bodies`).
#[derive(Clone, Debug, Default)]
pub enum Bodies {
    /// Into the record.
    #[default]
    Inline,
    /// Into files of a directory, `ab/cd/ID`.
    Dir(BodyDir),
    /// Count and drop them.
    None,
}

/// A directory of bodies, in which one job writes and others may have written.
///
/// A file is named after its item's id, in two levels of directories by the id's hash. What is there already is never
/// overwritten: a body whose name is taken is called `ID~JOB-LINE`. So is every body of a job that shares the directory
/// with the one that used it first.
#[derive(Clone, Debug)]
pub struct BodyDir {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    /// `.tmp/JOB` below it: here bodies grow.
    aside: PathBuf,
    /// Tells this job's files from another's.
    job: String,
    /// This job was the first here: plain names are its own.
    first: bool,
}

/// Why a body could not be kept.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BodyError {
    /// It has more bytes than are allowed.
    #[error("the body is too large: {size} bytes or more, the limit is {limit}")]
    TooLarge {
        /// What is allowed, in bytes.
        limit: u64,
        /// What had come when it was too much.
        size: u64,
    },
    /// The file could not be made or written.
    #[error("cannot write {}", path.display())]
    Io {
        /// The file, or its directory.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A body that was received, as it goes into the record and to the queue.
#[derive(Debug)]
pub struct Stored {
    /// Its length.
    pub bytes: u64,
    /// Where it is.
    pub place: Place,
}

/// Where a received body is.
#[derive(Debug)]
pub enum Place {
    /// Nowhere: it was not to be kept, or an empty one that was to be a file.
    Nowhere,
    /// In memory, to go into the record.
    Memory(Bytes),
    /// In a file beside its place: the queue syncs and renames it.
    File {
        /// Where it is and where it belongs, for [`Finish::body`](forbear_store::queue::Finish::body).
        file: BodyFile,
        /// The name for the record's `body_file`: the directory as it was given, and the path in it.
        shown: String,
    },
}

impl BodyDir {
    /// Makes the directory ready, and removes what a run of this job that was killed has left half done. `job_key` is
    /// [`Job::account_key`](forbear_store::queue::Job::account_key): other jobs may use the directory at the same time.
    ///
    /// Reads and writes files; call it where blocking is allowed, while the job is open and before the first sink.
    ///
    /// # Errors
    /// When the directory cannot be made or written.
    pub fn open(path: impl Into<PathBuf>, job_key: &[u8; 32]) -> Result<BodyDir, BodyError> {
        let path = path.into();
        let job = blake3::keyed_hash(job_key, b"bodies").to_hex()[..8].to_owned();
        let aside = path.join(".tmp").join(&job);
        let made = fs::remove_dir_all(&aside)
            .or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
            .and_then(|()| fs::create_dir_all(&aside))
            .and_then(|()| is_first(&path.join(".tmp").join("first"), &job));
        match made {
            Ok(first) => Ok(BodyDir { inner: Arc::new(Inner { path, aside, job, first }) }),
            Err(source) => Err(BodyError::Io { path: aside, source }),
        }
    }

    /// The directory as it was given.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.inner.path
    }
}

impl Bodies {
    /// A place for one attempt's body of at most `body_max` bytes, decoded.
    #[must_use]
    pub fn sink(&self, seq: Seq, id: Option<&str>, body_max: u64) -> Sink {
        let keep = match self {
            Bodies::Inline => Keep::Memory(BytesMut::new()),
            Bodies::Dir(dir) => Keep::File(Box::new(FileSink {
                dir: Arc::clone(&dir.inner),
                seq,
                id: ItemId::of(seq, id).text().into_owned(),
                gathered: BytesMut::new(),
                file: None,
            })),
            Bodies::None => Keep::Nothing,
        };
        Sink { keep, only: None, bytes: 0, body_max }
    }
}

/// Takes in one body, piece by piece. Dropped before its end, it leaves nothing behind.
#[derive(Debug)]
pub struct Sink {
    keep: Keep,
    /// The only piece so far: most bodies are one, and need not be copied.
    only: Option<Bytes>,
    bytes: u64,
    body_max: u64,
}

#[derive(Debug)]
enum Keep {
    Nothing,
    Memory(BytesMut),
    File(Box<FileSink>),
}

impl Sink {
    /// Adds a piece.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`] once the pieces are more than allowed; and when the file cannot be written, as on a full
    /// disk. Nothing more can come of the sink then.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the sink must be dropped too: nobody can say what the file holds.
    pub async fn write(&mut self, piece: Bytes) -> Result<(), BodyError> {
        self.bytes = self.bytes.saturating_add(piece.len() as u64);
        if self.bytes > self.body_max {
            return Err(BodyError::TooLarge { limit: self.body_max, size: self.bytes });
        }
        match &mut self.keep {
            Keep::Nothing => {}
            Keep::Memory(gathered) => match self.only.take() {
                None if gathered.is_empty() => self.only = Some(piece),
                first => {
                    gathered.extend_from_slice(first.as_deref().unwrap_or_default());
                    gathered.extend_from_slice(&piece);
                }
            },
            Keep::File(sink) => {
                sink.gathered.extend_from_slice(&piece);
                if sink.gathered.len() >= CHUNK_BYTES {
                    sink.flush().await?;
                }
            }
        }
        Ok(())
    }

    /// How many bytes have come.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Ends the body. A file is written and closed, but not synced: the queue does that for many at once.
    ///
    /// # Errors
    /// When the file cannot be written.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, a file may stay aside until the next run removes it.
    pub async fn finish(self) -> Result<Stored, BodyError> {
        let place = match self.keep {
            Keep::Nothing => Place::Nowhere,
            Keep::Memory(gathered) => Place::Memory(self.only.unwrap_or_else(|| gathered.freeze())),
            Keep::File(_) if self.bytes == 0 => Place::Nowhere,
            Keep::File(sink) => sink.finish().await?,
        };
        Ok(Stored { bytes: self.bytes, place })
    }
}

#[derive(Debug)]
struct FileSink {
    dir: Arc<Inner>,
    seq: Seq,
    id: String,
    gathered: BytesMut,
    file: Option<Growing>,
}

/// A file aside, removed unless it is kept.
#[derive(Debug)]
struct Growing {
    file: File,
    /// The place that it is for, and whether that may be taken.
    body: Option<BodyFile>,
    shown: String,
}

impl Drop for Growing {
    fn drop(&mut self) {
        if let Some(body) = self.body.take() {
            // If it cannot be removed now, the next run does it.
            let _ = fs::remove_file(body.aside);
        }
    }
}

impl FileSink {
    async fn flush(&mut self) -> Result<(), BodyError> {
        let gathered = self.gathered.split().freeze();
        let growing = self.file.take();
        let (dir, seq, id) = (Arc::clone(&self.dir), self.seq, self.id.clone());
        self.file = Some(
            blocking(move || {
                let mut growing = match growing {
                    Some(growing) => growing,
                    None => dir.create(seq, &id)?,
                };
                match growing.file.write_all(&gathered) {
                    Ok(()) => Ok(growing),
                    Err(source) => Err(BodyError::Io { path: dir.aside.clone(), source }),
                }
            })
            .await?,
        );
        Ok(())
    }

    async fn finish(mut self) -> Result<Place, BodyError> {
        if !self.gathered.is_empty() {
            self.flush().await?;
        }
        let mut growing = self.file.take();
        let body = growing.as_mut().and_then(|growing| growing.body.take());
        let shown = growing.as_mut().map(|growing| std::mem::take(&mut growing.shown)).unwrap_or_default();
        Ok(body.map_or(Place::Nowhere, |file| Place::File { file, shown }))
    }
}

impl Inner {
    /// Takes a name that nobody has, and begins the file. Blocks.
    fn create(&self, seq: Seq, id: &str) -> Result<Growing, BodyError> {
        let hash = blake3::hash(id.as_bytes()).to_hex();
        let shard: PathBuf = [&hash[..2], &hash[2..4]].iter().collect();
        let io = |path: &Path| {
            let path = path.to_owned();
            move |source| BodyError::Io { path, source }
        };
        let place = self.path.join(&shard);
        fs::create_dir_all(&place).map_err(io(&place))?;
        let plain = file_name(id);
        let own = format!("{plain}~{}-{}", self.job, seq.0);
        // The file aside is the claim on the plain name. It is made before the look at the place: an equal id that had
        // the claim until now is in its place by then.
        let claim = self.aside.join(&hash[..32]);
        let claimed = match self.first.then(|| File::create_new(&claim)).transpose() {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => None,
            Err(source) => return Err(io(&claim)(source)),
        };
        let (name, aside, file) = match claimed {
            Some(file) if !place.join(&plain).exists() => (plain, claim, file),
            claimed => {
                if claimed.is_some() {
                    // If it cannot be removed, later bodies of this id have the longer name too.
                    let _ = fs::remove_file(&claim);
                }
                let aside = self.aside.join(format!("{}-{}", &hash[..32], seq.0));
                let file = File::create(&aside).map_err(io(&aside))?;
                (own, aside, file)
            }
        };
        let path = place.join(name);
        let shown = path.to_string_lossy().into_owned();
        Ok(Growing { file, body: Some(BodyFile { aside, path }), shown })
    }
}

/// Whether `job` was the first to use the directory with this mark.
fn is_first(mark: &Path, job: &str) -> io::Result<bool> {
    match File::create_new(mark) {
        Ok(mut file) => file.write_all(job.as_bytes()).map(|()| true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(fs::read(mark)? == job.as_bytes()),
        Err(error) => Err(error),
    }
}

/// The id as a file's name: letters, digits, `.`, `_` and `-` as they are, all else as `%XX`, and no dot in front.
fn file_name(id: &str) -> String {
    let mut name = String::with_capacity(id.len());
    for (index, byte) in id.bytes().enumerate() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => name.push(char::from(byte)),
            b'.' if index > 0 => name.push('.'),
            _ => {
                const HEX: &[u8; 16] = b"0123456789ABCDEF";
                name.push('%');
                name.push(char::from(HEX[usize::from(byte >> 4)]));
                name.push(char::from(HEX[usize::from(byte & 15)]));
            }
        }
    }
    if name.len() > NAME_BYTES_MAX {
        name.truncate(NAME_BYTES_MAX);
        name.push('~');
        name.push_str(&blake3::hash(id.as_bytes()).to_hex()[..16]);
    }
    if name.is_empty() { "%".to_owned() } else { name }
}

async fn blocking<T: Send + 'static>(
    act: impl FnOnce() -> Result<T, BodyError> + Send + 'static,
) -> Result<T, BodyError> {
    match tokio::task::spawn_blocking(act).await {
        Ok(result) => result,
        Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
        Err(error) => Err(BodyError::Io { path: PathBuf::new(), source: io::Error::other(error) }),
    }
}
