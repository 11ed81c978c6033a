//! What a member of a fleet is told, and what it tells.

use std::{sync::Arc, time::Duration};

use forbear_core::{
    gate::{Cause, State},
    scope::ScopeKey,
    time::Timestamp,
};

/// How a member uses a shared store.
#[derive(Clone)]
pub struct SharedOptions {
    /// At most so many scopes that are not idle (default one million).
    pub scopes_max: usize,
    /// A store that does not answer for so long is lost (default 1 s). Nobody waits longer than once.
    pub patience: Duration,
    /// Hears what happens; called from any thread, for a moment only.
    pub events: Arc<dyn Fn(SharedEvent) + Send + Sync>,
}

impl Default for SharedOptions {
    fn default() -> SharedOptions {
        SharedOptions { scopes_max: 1_000_000, patience: Duration::from_secs(1), events: Arc::new(|_| ()) }
    }
}

impl std::fmt::Debug for SharedOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SharedOptions")
            .field("scopes_max", &self.scopes_max)
            .field("patience", &self.patience)
            .finish_non_exhaustive()
    }
}

/// What happens to a shared store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum SharedEvent {
    /// It is gone: this member goes on alone, with its share of every pace (F1).
    Lost {
        /// Why, without anything secret.
        why: String,
    },
    /// It is back, and has what this member remembers.
    Back {
        /// How long it was gone.
        after: Duration,
    },
    /// Another member changed a scope.
    Changed {
        /// Which.
        scope: ScopeKey,
        /// What it means for who waits.
        change: SharedChange,
    },
    /// It may throw away what it keeps whenever its room is full: pauses and learned paces among it.
    Evicts {
        /// What its operator calls that.
        policy: String,
    },
    /// A scope's record is of no use, so this member leaves it as it is.
    Unreadable {
        /// Which.
        scope: ScopeKey,
        /// Why.
        why: String,
    },
}

/// What another member's change means for who waits.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SharedChange {
    /// The scope is closed, or stays closed for longer.
    Closed {
        /// Why.
        cause: Cause,
        /// Until when, in the store's time.
        until: Timestamp,
    },
    /// It opened, or somebody else may probe it: who waits may ask again.
    Opened,
    /// A request has come back: who waits for a place on the wire may ask again.
    Freed,
}

impl SharedChange {
    /// What has become of a scope that was shut, or not, until then.
    pub(super) fn since((shut, until): (bool, Timestamp), now: &State) -> SharedChange {
        if now.shut && (!shut || now.paused_until > until.plus(WORTH_SAYING)) {
            SharedChange::Closed { cause: now.cause, until: now.paused_until }
        } else if shut {
            SharedChange::Opened
        } else {
            SharedChange::Freed
        }
    }
}

/// A pause that grows by less is the same one.
const WORTH_SAYING: Duration = Duration::from_secs(1);

/// What a member has done, for whoever measures it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SharedCounts {
    /// Times that the store was asked.
    pub round_trips: u64,
    /// Of these, times that it knew better.
    pub conflicts: u64,
}
