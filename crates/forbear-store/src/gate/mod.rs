//! Gate stores: where the state of scopes lives. A store knows no rule, it only moves state.

mod any;
mod clock;
mod desk;
mod evidence;
mod file;
mod memory;
mod record;
mod redis;
mod shared;
#[cfg(feature = "simulated")]
mod simulated;

use std::{collections::HashMap, future::Future, io};

use forbear_core::{gate::Gate, policy::BoundScope, scope::ScopeKey, time::Timestamp};

#[cfg(feature = "simulated")]
pub use self::simulated::{Drift, SimGates, SimStore, Weather};
pub use self::{
    any::{AnyGates, GateAddress, RedisAddress},
    clock::Clock,
    desk::GateDesk,
    evidence::EvidenceRecord,
    file::FileGates,
    memory::MemoryGates,
    record::{GateRecord, RecordError, Refused},
    redis::RedisGates,
    shared::{SharedChange, SharedCounts, SharedEvent, SharedMember, SharedOptions, SharedScope},
};

/// Where the gates of scopes live, for one process or for a fleet.
///
/// One method moves all state. Every rule runs inside `step`, on the gates of all scopes of a request together, so a
/// shared store is a compare-and-set over several records and holds no rule of its own.
pub trait GateStore: Send + Sync + 'static {
    /// Runs `step` on the gates of `scopes` together, atomically, at the store's own `now`. A scope that is new gets an
    /// open gate. `step` may run more than once (a conflicting write), so it must be pure.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there is no room for a new scope; [`StoreError::Unreachable`] when the store is gone.
    ///
    /// # Cancel safety
    /// A dropped future has run `step` to its effect, or not at all.
    fn update<R: Send>(
        &self,
        scopes: &[BoundScope],
        step: impl FnMut(&mut [Gate], Timestamp) -> R + Send,
    ) -> impl Future<Output = Result<R, StoreError>> + Send;

    /// Puts a gate in as it was kept elsewhere; of two pauses the longer one wins (P2).
    ///
    /// # Errors
    /// As [`GateStore::update`].
    fn restore(&self, scope: &BoundScope, gate: Gate) -> impl Future<Output = Result<(), StoreError>> + Send;

    /// The store's present moment.
    fn now(&self) -> Timestamp;

    /// Notes how much waits here for each scope, and nothing for those that are not named: where processes share the store,
    /// whoever looks from outside sees it. It changes no gate.
    fn note_waiting(&self, _waiting: &HashMap<ScopeKey, u32>) {}
}

/// Why a gate store did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// It cannot be reached.
    #[error("cannot reach the gate store")]
    Unreachable(#[source] io::Error),
    /// The address is none of a store.
    #[error("this is no address of a gate store; one looks like redis://HOST:PORT")]
    Address,
    /// Others change the scope faster than it can be changed.
    #[error("gave up on a gate after {attempts} writes that came too late")]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// What the store has of a scope cannot be used.
    #[error("{0}")]
    Record(Box<dyn std::error::Error + Send + Sync>),
    /// It holds as many scopes as it may, and none of them is idle.
    #[error(
        "the gate store holds {scopes} scopes, none of them idle; try again when some requests have come back"
    )]
    Full {
        /// How many it holds.
        scopes: usize,
    },
}

impl StoreError {
    fn record(fault: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Record(Box::new(fault))
    }
}

impl From<shared::LinkError> for StoreError {
    fn from(error: shared::LinkError) -> StoreError {
        StoreError::Unreachable(match error {
            shared::LinkError::Io(error) => error,
            other => io::Error::other(other.to_string()),
        })
    }
}
