//! One run at a time: a lock file beside the job (J4).
//!
//! Not a lock on the job itself: SQLite keeps POSIX locks there, and closing any other handle on that file drops them.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io::{Read, Seek, Write},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::queue::error::QueueError;

/// The right to run a job. The lock ends with the process, however it ends; the file goes when the run closes.
#[derive(Debug)]
pub(crate) struct JobLock {
    file: File,
    path: PathBuf,
}

/// Somebody who only looks (`forbear job show`) may hold the lock for a moment; a run holds it for good.
const TRIES: u32 = 10;

impl JobLock {
    /// Takes the lock of the job at `job`, or says who has it.
    #[expect(clippy::disallowed_methods, reason = "blocking by nature, and called before anything else runs")]
    pub(crate) fn take(job: &Path) -> Result<JobLock, QueueError> {
        let path = lock_path(job);
        let io = |source| QueueError::Io { path: path.clone(), source };
        for round in 0.. {
            let mut file = open(&path).map_err(io)?;
            match file.try_lock() {
                // Whoever closed last may have removed the name between our open and our lock: then it is a lock on
                // nothing that the next one would not see.
                Ok(()) if same_file(&file, &path) => {
                    file.set_len(0).map_err(io)?;
                    file.rewind().map_err(io)?;
                    write!(file, "{}", std::process::id()).map_err(io)?;
                    return Ok(JobLock { file, path });
                }
                Ok(()) => {}
                Err(TryLockError::WouldBlock) if round < TRIES => {
                    std::thread::sleep(Duration::from_millis(20))
                }
                Err(TryLockError::WouldBlock) => {
                    return Err(QueueError::InUse { path: job.to_owned(), pid: read_pid(&mut file) });
                }
                Err(TryLockError::Error(source)) => return Err(io(source)),
            }
        }
        unreachable!("the loop ends by returning")
    }

    /// Gives the lock back and removes its file.
    pub(crate) fn release(self) {
        // While we still hold it: see `take` for those who opened it already.
        let _ = std::fs::remove_file(&self.path);
        let _ = self.file.unlock();
    }
}

/// Who runs the job at `job`: `None` if nobody, else the process where it can be told.
pub(crate) fn holder(job: &Path) -> Option<Option<u32>> {
    let mut file = OpenOptions::new().read(true).open(lock_path(job)).ok()?;
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => Some(read_pid(&mut file)),
        _ => None,
    }
}

fn lock_path(job: &Path) -> PathBuf {
    let mut name = job.as_os_str().to_owned();
    name.push("-lock");
    PathBuf::from(name)
}

fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

fn read_pid(file: &mut File) -> Option<u32> {
    let mut text = String::new();
    file.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

#[cfg(unix)]
fn same_file(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let (Ok(ours), Ok(theirs)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    ours.ino() == theirs.ino() && ours.dev() == theirs.dev()
}

#[cfg(not(unix))]
fn same_file(_file: &File, path: &Path) -> bool {
    path.exists()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j4_a_second_run_is_refused_by_name() {
        let dir = tempfile::tempdir().expect("a directory");
        let job = dir.path().join("a.job");
        let lock = JobLock::take(&job).expect("free");
        assert_eq!(holder(&job), Some(Some(std::process::id())));
        let refused = JobLock::take(&job).expect_err("taken");
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        lock.release();
        assert_eq!(holder(&job), None);
        JobLock::take(&job).expect("free again").release();
    }
}
