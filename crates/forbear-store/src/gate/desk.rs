//! The scopes of a gate store that several processes share, for an operator: looked at and changed while it is in use.

use std::time::Duration;

use forbear_core::{gate::Gate, scope::ScopeKey, time::Timestamp};

use super::{
    GateAddress, SharedScope, StoreError,
    file::{self, FileLink},
    redis::{self, RedisLink},
    shared::Desk,
};

/// A shared store as it is seen from outside. It joins no fleet: looking takes nobody's share.
///
/// ```no_run
/// # async fn example() -> Result<(), forbear_store::gate::StoreError> {
/// use forbear_store::gate::{GateAddress, GateDesk};
/// let address: GateAddress = "redis://127.0.0.1".parse().unwrap();
/// let desk = GateDesk::open(&address).await?;
/// desk.scopes(|scope| println!("{} {}", scope.key, scope.state())).await?;
/// # Ok(())
/// # }
/// ```
pub struct GateDesk(Kind);

#[allow(clippy::large_enum_variant, reason = "a command has one")]
enum Kind {
    File(Desk<FileLink>),
    Redis(Desk<RedisLink>),
}

impl GateDesk {
    /// The store at `address`, which must be there already.
    ///
    /// # Errors
    /// [`StoreError::Address`] where no other process can see it (`memory`) or it is no address;
    /// [`StoreError::Unreachable`] where it does not answer, or is no file of gates.
    pub async fn open(address: &GateAddress) -> Result<GateDesk, StoreError> {
        Ok(GateDesk(match address {
            GateAddress::Memory => return Err(StoreError::Address),
            GateAddress::File(path) => Kind::File(Desk::new(file::outside(path)?, PATIENCE)),
            GateAddress::Redis(url) => {
                Kind::Redis(Desk::new(redis::outside(url.expose(), PATIENCE).await?, PATIENCE))
            }
        }))
    }

    /// Shows `each` scope, in no order; one that is changed meanwhile may come twice.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`].
    pub async fn scopes(&self, each: impl FnMut(SharedScope) + Send) -> Result<(), StoreError> {
        match &self.0 {
            Kind::File(desk) => desk.scopes(each).await,
            Kind::Redis(desk) => desk.scopes(each).await,
        }
    }

    /// One scope; none if the store has none of this name.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`].
    pub async fn scope(&self, key: &ScopeKey) -> Result<Option<SharedScope>, StoreError> {
        match &self.0 {
            Kind::File(desk) => desk.scope(key).await,
            Kind::Redis(desk) => desk.scope(key).await,
        }
    }

    /// Runs `step` on a scope's gate, and calls every member. It may run more than once, when somebody else was faster.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`]; [`StoreError::Contended`] where others are always faster; [`StoreError::Record`] where
    /// the scope's record cannot be read: it is left alone.
    ///
    /// # Cancel safety
    /// A dropped future has changed the scope, or not.
    pub async fn change(
        &self,
        key: &ScopeKey,
        step: impl FnMut(&mut Gate, Timestamp) + Send,
    ) -> Result<SharedScope, StoreError> {
        match &self.0 {
            Kind::File(desk) => desk.change(key, step).await,
            Kind::Redis(desk) => desk.change(key, step).await,
        }
    }
}

impl std::fmt::Debug for GateDesk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GateDesk").finish_non_exhaustive()
    }
}

/// A store that does not answer for so long is not there.
const PATIENCE: Duration = Duration::from_secs(5);
