//! The engine's own gate, driven as the engine drives it: acquire, report, renew, and the answers read from their headers.

use std::sync::Arc;

use forbear_core::{
    attempt::{self, Ask, Decision, Finding, Grant},
    gate::Gate,
    hint, outcome,
    policy::{BoundScope, ScopePolicy},
    scope::{Role, ScopeKey},
    time::Timestamp,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::{
    client::{Client, Go, Reply},
    trace::Phase,
};

/// One fleet behind the gates of one origin's scopes.
#[derive(Clone, Debug)]
pub struct Gated {
    gates: Box<[Gate]>,
    scopes: Arc<[BoundScope]>,
    items: u64,
}

impl Gated {
    /// A fleet of so many `workers` that keeps to `policy`.
    #[must_use]
    pub fn new(policy: ScopePolicy, workers: u32) -> Gated {
        let policy = ScopePolicy { concurrency_max: workers, ..policy };
        let key = ScopeKey::from_text("https://origin.test:443");
        Gated::over([BoundScope { key, by: None, role: Role::Planned, policy: Arc::new(policy) }].into())
    }

    /// A fleet whose every request counts for all these scopes, the widest first.
    #[must_use]
    pub fn over(scopes: Arc<[BoundScope]>) -> Gated {
        Gated { gates: scopes.iter().map(|scope| Gate::new(&scope.policy)).collect(), scopes, items: 0 }
    }

    /// The gates, in the order of the scopes.
    #[must_use]
    pub fn gates(&self) -> &[Gate] {
        &self.gates
    }
}

impl Client for Gated {
    type Ticket = Grant;

    fn ask(&mut self, _worker: u32, now: Timestamp) -> Go<Grant> {
        match attempt::acquire(&mut self.gates, &self.scopes, Ask::default(), now) {
            Decision::Admit(grant) => Go::Send(grant),
            Decision::Wait { until, .. } => Go::At(until),
            Decision::Full { .. } => Go::Full,
        }
    }

    fn answered(&mut self, _: u32, grant: Grant, reply: &Reply, now: Timestamp, roll: f64) -> Timestamp {
        let headers = head(reply);
        let response = hint::Response { status: reply.status, headers: &headers, body: None };
        let reading = hint::read(&response, None, now);
        let outcome = outcome::of_response(reply.status, &reading, false);
        self.items += 1;
        let finding = Finding {
            outcome: &outcome,
            reading: Some(&reading),
            item: self.items,
            roll,
            exit: None,
            narrowed: None,
        };
        let _ = attempt::report(&mut self.gates, &self.scopes, &grant, &finding, now);
        if let Some(study) = self.gates[0].study() {
            self.gates[0].studied(study.run(), now);
        }
        now
    }

    fn crash(&mut self, now: Timestamp) {
        // P8: what a store keeps of a gate outlives the process, and nothing else does.
        for (gate, scope) in self.gates.iter_mut().zip(&*self.scopes) {
            *gate = Gate::restore(&scope.policy, &gate.snapshot(), now);
        }
    }

    fn phase(&self, now: Timestamp) -> Option<Phase> {
        // Of several scopes the most closed one decides.
        self.gates.iter().filter_map(|gate| Phase::by_name(gate.state(now))).max_by_key(|phase| *phase as u8)
    }

    fn pace(&self) -> Option<f64> {
        let rates = self.gates.iter().filter_map(Gate::learned_rate).map(f64::from);
        rates.min_by(f64::total_cmp)
    }
}

fn head(reply: &Reply) -> HeaderMap {
    let fields = reply.headers.iter().filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value).ok()?))
    });
    fields.collect()
}
