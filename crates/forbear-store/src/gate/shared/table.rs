//! The gates that a member has at hand.

use std::{collections::HashMap, sync::Arc};

use forbear_core::{
    gate::{Gate, State},
    policy::BoundScope,
    scope::{Role, ScopeKey},
    time::Timestamp,
};
use tokio::sync::futures::OwnedNotified;

use super::{SharedCounts, entry::Entry, flight::Part};
use crate::gate::StoreError;

/// Every gate that a member uses, and what it knows of its store.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) entries: HashMap<ScopeKey, Entry, foldhash::fast::RandomState>,
    /// Those that have something to tell, or to be reminded of.
    pub(super) active: Vec<ScopeKey>,
    /// Since when the store is gone.
    pub(super) alone: Option<Timestamp>,
    /// How often it was lost: what was asked before is answered too late.
    pub(super) losses: u64,
    sweep_at: usize,
    pub(super) counts: SharedCounts,
}

impl Table {
    pub(super) fn entry(
        &mut self,
        scope: &BoundScope,
        now: Timestamp,
        most: usize,
    ) -> Result<&mut Entry, StoreError> {
        if self.entries.len() >= self.sweep_at.max(SWEEP_FROM).min(most)
            && !self.entries.contains_key(&scope.key)
        {
            self.entries.retain(|_, entry| !entry.is_idle(now));
            self.sweep_at = self.entries.len().saturating_mul(2);
            if self.entries.len() >= most {
                return Err(StoreError::Full { scopes: self.entries.len() });
            }
        }
        let fresh = || Entry::new(&scope.policy, scope.role == Role::Run);
        let entry = self.entries.entry(scope.key.clone()).or_insert_with(fresh);
        if !Arc::ptr_eq(&entry.policy, &scope.policy) {
            entry.policy = scope.policy.clone();
        }
        Ok(entry)
    }

    /// The gates as they will be when a pause is written that this member was told, if there is one.
    pub(super) fn closing(&self, parts: &[Part], now: Timestamp) -> Option<Vec<Gate>> {
        let closing = |part: &Part| self.entries.get(&part.key)?.closing(&part.before, now);
        let closing: Vec<Option<State>> = parts.iter().map(closing).collect();
        let gates = || parts.iter().zip(&closing).map(|(part, shut)| shut.as_ref().unwrap_or(&part.before));
        closing.iter().any(Option::is_some).then(|| gates().map(Gate::from_state).collect())
    }

    /// Where to wait, if one of these scopes is being written.
    pub(super) fn flying(&self, parts: &[Part]) -> Option<OwnedNotified> {
        let shared = parts.iter().filter(|part| !part.private);
        let mut entries = shared.filter_map(|part| self.entries.get(&part.key));
        entries.find(|entry| entry.flying.is_some()).map(|entry| entry.landed.clone().notified_owned())
    }
}

/// A table with fewer scopes is not worth looking through.
const SWEEP_FROM: usize = 512;
