//! What a member of a fleet is told, and what it tells.

use std::{sync::Arc, time::Duration};

use forbear_core::scope::ScopeKey;

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
    /// Another member closed or opened a scope, or gave back what others wait for: who waits may ask again.
    Changed {
        /// Which.
        scope: ScopeKey,
    },
    /// A scope's record is of no use, so this member leaves it as it is.
    Unreadable {
        /// Which.
        scope: ScopeKey,
        /// Why.
        why: String,
    },
}

/// What a member has done, for whoever measures it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct SharedCounts {
    /// Times that the store was asked.
    pub round_trips: u64,
    /// Of these, times that it knew better.
    pub conflicts: u64,
}
