//! Whichever gate store was asked for.

use std::{collections::HashMap, convert::Infallible, fmt, path::PathBuf, str::FromStr};

use forbear_core::{gate::Gate, policy::BoundScope, scope::ScopeKey, time::Timestamp};

use super::{FileGates, GateStore, MemoryGates, RedisGates, SharedOptions, StoreError, redis};

/// Where the gates of a fleet are: `memory`, `redis://...`, `rediss://...`, or else a file.
///
/// It may have a password in it, and shows none.
///
/// ```
/// use forbear_store::gate::GateAddress;
/// let address: GateAddress = "redis://fleet:hunter2@gates.example:6379/1".parse().unwrap();
/// assert_eq!(address.to_string(), "redis://***@gates.example:6379/1");
/// assert!(matches!("memory".parse(), Ok(GateAddress::Memory)));
/// ```
#[derive(Clone, Default, Eq, PartialEq)]
pub enum GateAddress {
    /// This process alone.
    #[default]
    Memory,
    /// The processes of this machine that name the same file.
    File(PathBuf),
    /// Every process that uses the same Redis.
    Redis(RedisAddress),
}

/// The URL of a Redis, which may have a password in it.
#[derive(Clone, Eq, PartialEq)]
pub struct RedisAddress(String);

impl FromStr for GateAddress {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<GateAddress, Infallible> {
        let scheme = text.split_once("://").map(|(scheme, _)| scheme.to_ascii_lowercase());
        Ok(match scheme.as_deref() {
            None if text == "memory" => GateAddress::Memory,
            // Others are refused where they are opened: as the name of a file, a mistyped URL would be on disk.
            Some(_) => GateAddress::Redis(RedisAddress(text.to_owned())),
            None => GateAddress::File(text.into()),
        })
    }
}

impl GateAddress {
    /// Opens the store that is there.
    ///
    /// # Errors
    /// [`StoreError::Address`] for an address of no kind of store; [`StoreError::Unreachable`] if it does not answer.
    pub async fn open(&self, options: SharedOptions) -> Result<AnyGates, StoreError> {
        Ok(match self {
            GateAddress::Memory => AnyGates::Memory(MemoryGates::default()),
            GateAddress::File(path) => AnyGates::File(FileGates::open(path, options).await?),
            GateAddress::Redis(url) => AnyGates::Redis(RedisGates::connect(&url.0, options).await?),
        })
    }
}

impl GateAddress {
    /// Whether several processes can share what is there.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !matches!(self, GateAddress::Memory)
    }

    /// Whether there is a kind of store with such addresses; nothing is asked.
    #[must_use]
    pub fn is_of_a_store(&self) -> bool {
        match self {
            GateAddress::Memory => true,
            GateAddress::File(path) => !path.as_os_str().is_empty(),
            GateAddress::Redis(url) => redis::is_url(&url.0),
        }
    }
}

impl RedisAddress {
    /// With its password, for the connection and for nothing else.
    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GateAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GateAddress::Memory => f.write_str("memory"),
            GateAddress::File(path) => write!(f, "{}", path.display()),
            GateAddress::Redis(url) => fmt::Display::fmt(url, f),
        }
    }
}

impl fmt::Debug for GateAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GateAddress({self})")
    }
}

impl fmt::Display for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("", &self.0));
        // What is before the last `@` may be a password with anything in it; what follows a `?` as well.
        let (secret, place) = rest.rsplit_once('@').map_or(("", rest), |(_, place)| ("***@", place));
        let place = place.split(['?', '#']).next().unwrap_or_default();
        write!(f, "{scheme}://{secret}{place}")
    }
}

impl fmt::Debug for RedisAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RedisAddress({self})")
    }
}

/// A gate store of any kind.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a run has one")]
pub enum AnyGates {
    /// In the memory of this process.
    Memory(MemoryGates),
    /// In a file.
    File(FileGates),
    /// In Redis.
    Redis(RedisGates),
}

impl AnyGates {
    /// The key by which all members of a fleet name accounts (K1); none where there is no fleet.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] where the store does not answer.
    pub async fn account_key(&self) -> Result<Option<[u8; 32]>, StoreError> {
        match self {
            AnyGates::Memory(_) => Ok(None),
            AnyGates::File(gates) => gates.account_key().await.map(Some),
            AnyGates::Redis(gates) => gates.account_key().await.map(Some),
        }
    }

    /// Gives back what this member holds of a shared store, for the end of a process; what is not taken within `time` comes
    /// back by itself some seconds later.
    pub async fn leave(&self, time: std::time::Duration) {
        match self {
            AnyGates::Memory(_) => {}
            AnyGates::File(gates) => gates.leave(time).await,
            AnyGates::Redis(gates) => gates.leave(time).await,
        }
    }

    /// Whether other processes may change its gates.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        !matches!(self, AnyGates::Memory(_))
    }

    /// Whether a shared store is lost, and this member goes on alone.
    #[must_use]
    pub fn is_alone(&self) -> bool {
        match self {
            AnyGates::Memory(_) => false,
            AnyGates::File(gates) => gates.is_alone(),
            AnyGates::Redis(gates) => gates.is_alone(),
        }
    }
}

impl GateStore for AnyGates {
    async fn update<R: Send>(
        &self,
        scopes: &[BoundScope],
        step: impl FnMut(&mut [Gate], Timestamp) -> R + Send,
    ) -> Result<R, StoreError> {
        match self {
            AnyGates::Memory(gates) => gates.with(scopes, step),
            AnyGates::File(gates) => gates.update(scopes, step).await,
            AnyGates::Redis(gates) => gates.update(scopes, step).await,
        }
    }

    async fn restore(&self, scope: &BoundScope, gate: Gate) -> Result<(), StoreError> {
        match self {
            AnyGates::Memory(gates) => gates.restore(scope, gate).await,
            AnyGates::File(gates) => gates.restore(scope, gate).await,
            AnyGates::Redis(gates) => gates.restore(scope, gate).await,
        }
    }

    fn now(&self) -> Timestamp {
        match self {
            AnyGates::Memory(gates) => gates.now(),
            AnyGates::File(gates) => gates.now(),
            AnyGates::Redis(gates) => gates.now(),
        }
    }

    fn note_waiting(&self, waiting: &HashMap<ScopeKey, u32>) {
        match self {
            AnyGates::Memory(gates) => gates.note_waiting(waiting),
            AnyGates::File(gates) => gates.note_waiting(waiting),
            AnyGates::Redis(gates) => gates.note_waiting(waiting),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_an_address_is_shown_without_its_password() {
        for (text, shown) in [
            ("memory", "memory"),
            ("gates.db", "gates.db"),
            ("/var/lib/forbear/gates", "/var/lib/forbear/gates"),
            ("redis://h", "redis://h"),
            ("rediss://:hunter2@h:1", "rediss://***@h:1"),
            ("REDIS://u:hunter2@hunter2@h", "REDIS://***@h"),
            ("redis://h?password=hunter2", "redis://h"),
            ("http://u:hunter2@h", "http://***@h"),
        ] {
            let address: GateAddress = text.parse().unwrap();
            assert_eq!(address.to_string(), shown);
            assert!(!format!("{address:?}").contains("hunter2"));
        }
    }

    #[tokio::test]
    async fn f1_what_is_no_store_is_no_file_either() {
        for text in ["http://h", "redis+tls://h", "postgres://u:hunter2@h/db"] {
            let address: GateAddress = text.parse().unwrap();
            let error = address.open(SharedOptions::default()).await.unwrap_err();
            assert!(matches!(error, StoreError::Address), "{text}: {error}");
        }
        let address = GateAddress::Memory.open(SharedOptions::default()).await.unwrap();
        assert!(matches!(address, AnyGates::Memory(_)) && !address.is_alone());
    }
}
