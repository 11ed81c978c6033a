//! The key by which all members name accounts (S2, K1): kept with the store, made by whoever comes first.

use std::io;

use super::{
    Inner,
    link::{Link, LinkError, Write},
    record::KEPT_MAX,
};

impl<L: Link> Inner<L> {
    /// The store's key; made if it has none.
    pub(super) async fn account_key(&self) -> Result<[u8; 32], LinkError> {
        let own = self.secret.get().copied().map_or_else(fresh, Ok)?;
        // What the store is believed to have; nothing, until it says otherwise.
        let mut there = Vec::new();
        for _ in 0..TRIES {
            // A key that is there is written again: so it has its whole time before it.
            let key = <[u8; 32]>::try_from(there.as_slice()).unwrap_or(own);
            let write = Write { key: KEY.to_owned(), expect: there, value: key.to_vec(), keep: KEPT_MAX };
            match self.swap(&[write], false).await?.found {
                None => return Ok(*self.secret.get_or_init(|| key)),
                Some(mut found) => there = found.pop().flatten().unwrap_or_default(),
            }
        }
        Err(LinkError::Io(io::Error::other(format!("its key of accounts, {KEY}, cannot be set"))))
    }
}

/// SQLite's generator is seeded by the operating system.
fn fresh() -> Result<[u8; 32], LinkError> {
    let made = rusqlite::Connection::open_in_memory()
        .and_then(|db| db.query_row("SELECT randomblob(32)", [], |row| row.get::<_, [u8; 32]>(0)));
    made.map_err(|error| LinkError::Io(io::Error::other(error)))
}

/// Somebody else may be first a few times, not so often.
const TRIES: u32 = 64;
/// No scope is called so.
pub(super) const KEY: &str = "account-key";
