//! Where a job is: a file, or a name in a PostgreSQL.

use std::{
    convert::Infallible,
    fmt,
    path::{Path, PathBuf},
    str::FromStr,
};

use super::{
    error::QueueError,
    postgres::{connect, seal},
};

/// Where jobs are kept: a file, or `postgres://...`.
///
/// It may have a password in it, and shows none.
///
/// ```
/// use forbear_store::queue::QueueAddress;
/// let address: QueueAddress = "postgres://fleet:hunter2@db.example:5433/jobs?sslmode=require".parse().unwrap();
/// assert_eq!(address.to_string(), "postgres://db.example:5433/jobs");
/// assert!(matches!("a.job".parse(), Ok(QueueAddress::File(_))));
/// ```
#[derive(Clone, Eq, PartialEq)]
pub enum QueueAddress {
    /// One job, in this file.
    File(PathBuf),
    /// Jobs by their names, for any number of processes and machines.
    Postgres(PostgresAddress),
}

/// The URL of a PostgreSQL, which may have a password in it.
#[derive(Clone, Eq, PartialEq)]
pub struct PostgresAddress {
    pub(crate) url: String,
    pub(crate) key: Option<[u8; 32]>,
}

/// One job.
///
/// ```
/// use forbear_store::queue::JobAddress;
/// assert_eq!(JobAddress::from("a.job").to_string(), "a.job");
/// ```
#[derive(Clone, Eq, PartialEq)]
pub enum JobAddress {
    /// In this file, which one process runs at a time.
    File(PathBuf),
    /// By this name in a PostgreSQL.
    Postgres {
        /// The database.
        queue: PostgresAddress,
        /// The job's name.
        name: String,
    },
}

impl FromStr for QueueAddress {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<QueueAddress, Infallible> {
        Ok(match text.split_once("://") {
            // Others are refused where they are opened: as the name of a file, a mistyped URL would be on disk.
            Some(_) => QueueAddress::Postgres(PostgresAddress { url: text.to_owned(), key: None }),
            None => QueueAddress::File(text.into()),
        })
    }
}

impl QueueAddress {
    /// Whether there is a kind of queue with such an address; nothing is opened.
    #[must_use]
    pub fn is_of_a_queue(&self) -> bool {
        match self {
            QueueAddress::File(_) => true,
            QueueAddress::Postgres(postgres) => connect::is_address(&postgres.url),
        }
    }
}

impl PostgresAddress {
    /// With a key for its requests, 32 bytes as base64 or hexadecimal. Without, that of `FORBEAR_KEY` is taken.
    ///
    /// # Errors
    /// [`QueueError::KeyForm`] for what is no such key.
    pub fn with_key(mut self, key: &str) -> Result<PostgresAddress, QueueError> {
        self.key = Some(seal::parse_key(key).ok_or(QueueError::KeyForm)?);
        Ok(self)
    }

    /// The key that counts.
    pub(crate) fn key(&self) -> Result<[u8; 32], QueueError> {
        self.key.map_or_else(seal::key_from_environment, Ok)
    }

    /// The job of this name there.
    #[must_use]
    pub fn job(&self, name: impl Into<String>) -> JobAddress {
        JobAddress::Postgres { queue: self.clone(), name: name.into() }
    }
}

impl JobAddress {
    /// Its file, where it is one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            JobAddress::File(path) => Some(path),
            JobAddress::Postgres { .. } => None,
        }
    }

    /// Its name in the texts of errors and events.
    pub(crate) fn shown(&self) -> PathBuf {
        match self {
            JobAddress::File(path) => path.clone(),
            JobAddress::Postgres { .. } => PathBuf::from(self.to_string()),
        }
    }
}

impl fmt::Display for QueueAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            QueueAddress::File(path) => write!(f, "{}", path.display()),
            QueueAddress::Postgres(url) => fmt::Display::fmt(url, f),
        }
    }
}

impl fmt::Display for PostgresAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.url.split_once("://").unwrap_or(("", ""));
        // What is not plainly a host, after the one `@` or without any, may be a piece of a password.
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        match place.rsplit_once('@') {
            Some((user, host)) if !user.contains('@') && !query.contains('@') => {
                write!(f, "{scheme}://{host}")
            }
            None if !query.contains('@') => write!(f, "{scheme}://{place}"),
            _ => write!(f, "{scheme}://***"),
        }
    }
}

impl fmt::Display for JobAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            JobAddress::File(path) => write!(f, "{}", path.display()),
            JobAddress::Postgres { queue, name } => write!(f, "job {name} at {queue}"),
        }
    }
}

macro_rules! debug_as_shown {
    ($($kind:ident)*) => {
        $(impl fmt::Debug for $kind {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($kind), "({})"), self)
            }
        })*
    };
}
debug_as_shown!(QueueAddress PostgresAddress JobAddress);

impl From<PathBuf> for JobAddress {
    fn from(path: PathBuf) -> JobAddress {
        JobAddress::File(path)
    }
}

impl From<&PathBuf> for JobAddress {
    fn from(path: &PathBuf) -> JobAddress {
        JobAddress::File(path.clone())
    }
}

impl From<&Path> for JobAddress {
    fn from(path: &Path) -> JobAddress {
        JobAddress::File(path.to_owned())
    }
}

impl From<&str> for JobAddress {
    fn from(path: &str) -> JobAddress {
        JobAddress::File(path.into())
    }
}

impl From<&JobAddress> for JobAddress {
    fn from(address: &JobAddress) -> JobAddress {
        address.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_an_address_shows_no_password() {
        for (given, shown) in [
            ("postgres://h/db", "postgres://h/db"),
            ("postgres://u:s3cret@h:5433/db?sslmode=require&password=s3cret", "postgres://h:5433/db"),
            ("postgresql://u:s3cret@s3cret/@h/db", "postgresql://***"),
            ("postgres://u:s3cret?s3cret@h/db", "postgres://***"),
            ("postgres://s3cret@h", "postgres://h"),
        ] {
            let queue: QueueAddress = given.parse().expect("infallible");
            assert_eq!(queue.to_string(), shown);
            assert!(!format!("{queue:?}").contains("s3cret"), "{queue:?}");
            let QueueAddress::Postgres(queue) = queue else { panic!("a URL is no file") };
            assert_eq!(queue.job("a").to_string(), format!("job a at {shown}"));
        }
    }
}
