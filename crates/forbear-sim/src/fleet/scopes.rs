//! The gates of a fleet, and which of them a request has: put together as the engine's routes do.

use std::{collections::HashMap, sync::Arc};

use forbear_core::{
    gate::{Gate, Snapshot},
    pace::Rates,
    policy::{BoundScope, ScopePolicy},
    scope::{Parts, Role, ScopeKey, ScopePlan, origins_own},
    time::Timestamp,
};

use super::{Fleet, items::ON_DISK};

/// All gates of a process, and what of them is on disk.
#[derive(Debug, Default)]
pub(super) struct Gates {
    gates: HashMap<ScopeKey, Gate>,
    kept: HashMap<ScopeKey, Vec<(Timestamp, Snapshot)>>,
    policies: HashMap<ScopeKey, Arc<ScopePolicy>>,
}

impl Gates {
    /// Runs `step` on the gates of the scopes together, and then what their learners look for, as a store does.
    pub(super) fn with<R>(
        &mut self,
        scopes: &[BoundScope],
        now: Timestamp,
        step: impl FnOnce(&mut [Gate]) -> R,
    ) -> R {
        let mut gates: Vec<Gate> = Vec::with_capacity(scopes.len());
        for scope in scopes {
            gates.push(self.gates.remove(&scope.key).unwrap_or_else(|| Gate::new(&scope.policy)));
        }
        let result = step(&mut gates);
        for (scope, mut gate) in scopes.iter().zip(gates) {
            if let Some(study) = gate.study() {
                gate.studied(study.run(), now);
            }
            self.gates.insert(scope.key.clone(), gate);
        }
        result
    }

    /// A pause began or ended: it is to be on disk (P8).
    pub(super) fn keep(&mut self, scope: &BoundScope, snapshot: Snapshot, now: Timestamp) {
        self.policies.insert(scope.key.clone(), scope.policy.clone());
        let kept = self.kept.entry(scope.key.clone()).or_default();
        let old = kept.iter().rposition(|(at, _)| now.since(*at) >= ON_DISK).unwrap_or(0);
        kept.drain(..old);
        kept.push((now, snapshot));
    }

    /// Another process takes up what the last one kept.
    pub(super) fn crash(&mut self, now: Timestamp) {
        self.gates.clear();
        for (key, kept) in &mut self.kept {
            kept.retain(|(at, _)| now.since(*at) >= ON_DISK);
            if let (Some((_, snapshot)), Some(policy)) = (kept.last(), self.policies.get(key)) {
                self.gates.insert(key.clone(), Gate::restore(policy, snapshot, now));
            }
        }
    }
}

/// The scopes of the requests to each site, by each exit.
#[derive(Debug)]
pub(super) struct Routes {
    plan: ScopePlan,
    own: Arc<ScopePolicy>,
    beside: Arc<ScopePolicy>,
    exits: Arc<ScopePolicy>,
    known: HashMap<(u32, Option<u32>), Arc<[BoundScope]>>,
}

impl Routes {
    pub(super) fn new(fleet: &Fleet) -> Routes {
        let (rates, none) = (fleet.rates.map(Rates::from).unwrap_or_default(), Rates::default());
        let own = ScopePolicy { rates, ..fleet.policy.clone() };
        let beside = ScopePolicy { rates: none, concurrency_max: fleet.workers, ..fleet.policy.clone() };
        Routes {
            plan: ScopePlan::new(fleet.scope.clone()),
            own: Arc::new(own),
            exits: Arc::new(beside.clone().beside(Role::Exit)),
            beside: Arc::new(beside.beside(Role::Behind)),
            known: HashMap::new(),
        }
    }

    pub(super) fn scopes(&mut self, site: u32, exit: Option<u32>) -> Arc<[BoundScope]> {
        if let Some(known) = self.known.get(&(site, exit)) {
            return known.clone();
        }
        let (origin, name) = (origin_of(site), exit.map(|exit| format!("http://exit{exit}.test:8080")));
        let parts = Parts { origin: &origin, exit: name.as_deref(), ..Parts::default() };
        let scopes = self.plan.scopes(&parts);
        let own = origins_own(&scopes);
        let bound: Arc<[BoundScope]> = scopes
            .into_iter()
            .enumerate()
            .map(|(i, scope)| {
                let policy = match scope.role {
                    _ if own == Some(i) => &self.own,
                    Role::Exit => &self.exits,
                    _ => &self.beside,
                };
                BoundScope { key: scope.key, by: scope.by, role: scope.role, policy: policy.clone() }
            })
            .collect();
        self.known.insert((site, exit), bound.clone());
        bound
    }
}

/// What a site is called.
pub(super) fn origin_of(site: u32) -> String {
    format!("https://site{site}.test:443")
}
