//! The output: a file whose end is known to the byte, or a stream of which nothing is known.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{self, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
};

use super::error::{QueueError, is_full};

/// Where records go.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum OutputTarget {
    /// A file, made if it is not there. A pipe or device of that name is a stream.
    File(PathBuf),
    /// Standard output: each record at least once, and nothing to look at after a crash.
    Stdout,
}

impl OutputTarget {
    /// How the target stands in the job: relative where it lies beside it, so that both can be moved together.
    pub(crate) fn stored(&self, job: &Path) -> io::Result<String> {
        let OutputTarget::File(path) = self else { return Ok("-".to_owned()) };
        let out = std::path::absolute(path)?;
        let job = std::path::absolute(job)?;
        let beside = job.parent().and_then(|dir| out.strip_prefix(dir).ok());
        Ok(beside.unwrap_or(&out).to_string_lossy().into_owned())
    }
}

/// Records are gathered up to here before they are written.
const CHUNK_BYTES: usize = 1 << 20;

pub(crate) enum Output {
    File(OutputFile),
    Stream(OutputStream),
}

impl Output {
    /// Opens the target. A file is locked against another job; a pipe is not opened before there is something to
    /// write, for that waits for its reader.
    pub(crate) fn open(target: &OutputTarget) -> Result<Output, QueueError> {
        let OutputTarget::File(path) = target else {
            return Ok(Output::Stream(OutputStream {
                sink: Some(Sink::Stdout),
                path: PathBuf::from("standard output"),
            }));
        };
        // A directory falls through to the error that opening it gives.
        if std::fs::metadata(path).is_ok_and(|meta| !meta.is_file() && !meta.is_dir()) {
            return Ok(Output::Stream(OutputStream { sink: None, path: path.clone() }));
        }
        let io = |source| QueueError::Io { path: path.clone(), source };
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(QueueError::OutputInUse { out: path.clone() }),
            // File systems without locks exist; the job's own lock still stands.
            Err(TryLockError::Error(error)) => tracing::debug!(%error, "no lock on the output"),
        }
        Ok(Output::File(OutputFile { file, path: path.clone(), end: 0, ahead: 0 }))
    }

    /// Name, for errors and events.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Output::File(out) => &out.path,
            Output::Stream(out) => &out.path,
        }
    }

    /// Writes `records` and makes them durable; gives the offset of the first, if it has one.
    ///
    /// On an error a file is as it was: no torn line is left. What went into a stream before the error is gone.
    pub(crate) fn append<'a>(
        &mut self,
        records: impl Iterator<Item = &'a [u8]>,
    ) -> Result<Option<u64>, QueueError> {
        match self {
            Output::File(out) => {
                let start = out.end;
                match out.append(records) {
                    Ok(_) if !out.is_in_place() => Err(QueueError::OutputTaken { out: out.path.clone() }),
                    Ok(end) => {
                        out.end = end;
                        Ok(Some(start))
                    }
                    Err(source) => {
                        // If even this fails, the next start cuts it.
                        let _ = out.file.set_len(start);
                        Err(QueueError::Io { path: out.path.clone(), source })
                    }
                }
            }
            Output::Stream(out) => out.append(records).map(|()| None),
        }
    }
}

/// A regular file, written at the offset where the acknowledged part ends.
pub(crate) struct OutputFile {
    pub(crate) file: File,
    pub(crate) path: PathBuf,
    pub(crate) end: u64,
    /// Bytes that already stand behind the end: see [`OutputFile::write_ahead`].
    ahead: u64,
}

impl OutputFile {
    /// Whether its name still leads to it: what is written to a deleted file is lost, and must not count as done.
    fn is_in_place(&self) -> bool {
        let place = |meta: std::fs::Metadata| (meta.dev(), meta.ino());
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(ours), Ok(named)) => place(ours) == place(named),
            (_, Err(error)) => error.kind() != io::ErrorKind::NotFound,
            (Err(_), _) => true,
        }
    }

    /// Writes the next records of the coming [`Output::append`] already, unsynced: should the process be killed meanwhile, the
    /// next start finds them. False if that cannot be done: then all are written again, and whoever appends hears of it.
    pub(crate) fn write_ahead(&mut self, records: &[u8]) -> bool {
        let wrote = self.file.write_all_at(records, self.end + self.ahead).is_ok();
        self.ahead = if wrote { self.ahead + records.len() as u64 } else { 0 };
        wrote
    }

    /// Cuts what stands behind `start`, or else behind the end, and was not acknowledged.
    pub(crate) fn cut(&mut self, start: Option<u64>) -> Result<(), QueueError> {
        self.end = start.unwrap_or(self.end);
        self.ahead = 0;
        let io = |source| QueueError::Io { path: self.path.clone(), source };
        self.file.set_len(self.end).map_err(io)
    }

    fn append<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) -> io::Result<u64> {
        let mut chunk = Vec::new();
        let mut at = self.end;
        let mut ahead = std::mem::take(&mut self.ahead); // once: after an error everything is written again
        for record in records {
            if let Some(left) = ahead.checked_sub(record.len() as u64) {
                (ahead, at) = (left, at + record.len() as u64);
                continue;
            }
            chunk.extend_from_slice(record);
            if chunk.len() >= CHUNK_BYTES {
                self.file.write_all_at(&chunk, at)?;
                at += chunk.len() as u64;
                chunk.clear();
            }
        }
        self.file.write_all_at(&chunk, at)?;
        at += chunk.len() as u64;
        if at > self.end {
            // Also after a failed try: a failed sync may have dropped pages, so everything is written again.
            self.file.sync_data()?;
        }
        Ok(at)
    }
}

/// Standard output, a pipe or a device.
pub(crate) struct OutputStream {
    sink: Option<Sink>,
    path: PathBuf,
}

enum Sink {
    Stdout,
    File(File),
}

impl OutputStream {
    fn append<'a>(&mut self, records: impl Iterator<Item = &'a [u8]>) -> Result<(), QueueError> {
        let mut chunk = Vec::new();
        for record in records {
            chunk.extend_from_slice(record);
            if chunk.len() >= CHUNK_BYTES {
                self.write(&chunk)?;
                chunk.clear();
            }
        }
        self.write(&chunk)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), QueueError> {
        if bytes.is_empty() {
            return Ok(());
        }
        let wrote = match &mut self.sink {
            Some(Sink::Stdout) => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Some(Sink::File(file)) => file.write_all(bytes),
            None => OpenOptions::new().write(true).open(&self.path).and_then(|mut file| {
                let wrote = file.write_all(bytes);
                self.sink = Some(Sink::File(file));
                wrote
            }),
        };
        wrote.map_err(|source| match source.kind() {
            io::ErrorKind::BrokenPipe => QueueError::OutputClosed,
            _ => QueueError::Io { path: self.path.clone(), source },
        })
    }
}

/// Whether writing again may help.
pub(crate) fn may_pass(error: &QueueError) -> bool {
    matches!(error, QueueError::Io { source, .. } if is_full(source))
}

/// FNV-1a, 64 bits: to know a record again, not to guard against anybody.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    hash_more(0xcbf2_9ce4_8422_2325, bytes)
}

/// The hash of what was hashed before and `bytes`.
pub(crate) fn hash_more(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0000_0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j1_what_was_written_ahead_is_not_written_twice() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        let mut output = Output::open(&OutputTarget::File(path.clone())).unwrap();
        let ahead = |output: &mut Output, records: &[u8]| match output {
            Output::File(out) => assert!(out.write_ahead(records)),
            Output::Stream(_) => unreachable!("it is a file"),
        };
        ahead(&mut output, b"1\n22\n");
        ahead(&mut output, b"3\n");
        assert_eq!(std::fs::read(&path).unwrap(), b"1\n22\n3\n", "there before anything is acknowledged");
        let start = output.append([&b"1\n"[..], b"22\n", b"3\n", b"44\n"].into_iter()).unwrap();
        assert_eq!(start, Some(0));
        let start = output.append([&b"5\n"[..]].into_iter()).unwrap();
        assert_eq!((start, std::fs::read(&path).unwrap()), (Some(10), b"1\n22\n3\n44\n5\n".to_vec()));
    }
}
