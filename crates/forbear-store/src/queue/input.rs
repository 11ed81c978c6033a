//! Which input a job was made from, so that another one is noticed.

use std::{
    fs::File,
    io::{self, Read},
    path::Path,
    time::UNIX_EPOCH,
};

use serde::{Deserialize, Serialize};

use super::output::{hash, hash_more};

/// How much of the beginning is hashed: enough to tell two lists apart, nothing to read again on a resume.
const HEAD_BYTES: u64 = 64 << 10;

/// What an input file looked like when it was first read.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub struct InputIdentity {
    /// Path as given, or `-`.
    pub path: String,
    /// Size in bytes; 0 where it has none (a pipe).
    pub size: u64,
    /// Time of the last change, microseconds since the epoch; 0 where it is not known.
    pub modified_us: u64,
    /// How many bytes `head_hash` covers.
    pub head_len: u64,
    /// Hash of the beginning.
    pub head_hash: u64,
}

/// How an input compares with the one that a job was made from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum InputChange {
    /// The same, as far as one look can tell.
    Same,
    /// The same beginning, and longer: what was added can still be imported.
    Grown,
    /// Another one, or shortened.
    Different,
}

impl InputIdentity {
    /// Looks at the file at `path`.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(path: &Path) -> io::Result<InputIdentity> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        let (head_len, head_hash) = if meta.is_file() { head(&file, HEAD_BYTES)? } else { (0, 0) };
        let modified = meta.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        Ok(InputIdentity {
            path: path.to_string_lossy().into_owned(),
            size: if meta.is_file() { meta.len() } else { 0 },
            modified_us: modified.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX)),
            head_len,
            head_hash,
        })
    }

    /// Compares with the file at `path`, wherever that lies now.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn compare(&self, path: &Path) -> io::Result<InputChange> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        if !meta.is_file() || meta.len() < self.size {
            return Ok(if self.size == 0 { InputChange::Same } else { InputChange::Different });
        }
        if head(&file, self.head_len)? != (self.head_len, self.head_hash) {
            return Ok(InputChange::Different);
        }
        Ok(if meta.len() > self.size { InputChange::Grown } else { InputChange::Same })
    }
}

fn head(file: &File, limit: u64) -> io::Result<(u64, u64)> {
    let mut bytes = Vec::new();
    file.take(limit).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64, hash_more(hash(&[]), &bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn j3_another_input_is_noticed_and_a_grown_one_is_not_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("urls.txt");
        std::fs::write(&path, "http://a/1\nhttp://a/2\n").expect("written");
        let first = InputIdentity::of(&path).expect("read");
        for (text, change) in [
            ("http://a/1\nhttp://a/2\n", InputChange::Same),
            ("http://a/1\nhttp://a/2\nhttp://a/3\n", InputChange::Grown),
            ("http://a/1\n", InputChange::Different),
            ("http://b/1\nhttp://b/2\n", InputChange::Different),
            ("", InputChange::Different),
        ] {
            std::fs::write(&path, text).expect("written");
            assert_eq!(first.compare(&path).expect("read"), change, "{text:?}");
        }
    }
}
