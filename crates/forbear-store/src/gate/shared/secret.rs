//! The key by which all members name accounts (S2, K1): kept with the store, made by whoever comes first.

use std::io;

use super::{
    Inner,
    keep::NOBODYS,
    link::{Link, LinkError, Write},
    record::KEPT_MAX,
};

impl<L: Link> Inner<L> {
    /// The store's key; made if it has none.
    pub(super) async fn account_key(&self) -> Result<[u8; 32], LinkError> {
        loop {
            let look =
                Write { key: KEY.to_owned(), expect: NOBODYS.to_vec(), value: Vec::new(), keep: KEPT_MAX };
            let found = self.swap(&[look], false).await?.found.and_then(|mut all| all.pop()).flatten();
            let (expect, key) = match found {
                // Written again, it has its whole time before it.
                Some(value) => match <[u8; 32]>::try_from(value.as_slice()) {
                    Ok(key) => (value, key),
                    Err(_) => (value, self.secret.get().copied().map_or_else(fresh, Ok)?),
                },
                None => (Vec::new(), self.secret.get().copied().map_or_else(fresh, Ok)?),
            };
            let write = Write { key: KEY.to_owned(), expect, value: key.to_vec(), keep: KEPT_MAX };
            if self.swap(&[write], false).await?.found.is_none() {
                return Ok(*self.secret.get_or_init(|| key));
            }
        }
    }
}

/// SQLite's generator is seeded by the operating system.
fn fresh() -> Result<[u8; 32], LinkError> {
    let made = rusqlite::Connection::open_in_memory()
        .and_then(|db| db.query_row("SELECT randomblob(32)", [], |row| row.get::<_, [u8; 32]>(0)));
    made.map_err(|error| LinkError::Io(io::Error::other(error)))
}

/// No scope is called so.
pub(super) const KEY: &str = "account-key";
