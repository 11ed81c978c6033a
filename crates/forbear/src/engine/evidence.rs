//! Whose the limits of an origin are (L6): what comes back is weighed, what is found is said and kept with the job.

use std::collections::HashMap;

use forbear_core::{
    evidence::{Evidence, PARTS, Part, Tally, Who, Whose},
    hint::Reading,
    outcome::Outcome,
    policy::BoundScope,
    time::Timestamp,
};
use forbear_store::{
    gate::{EvidenceRecord, GateStore},
    queue,
};

use super::{events::Event, route::Route, shared::Shared};

/// Whose a request is, and what a refusal of it falls on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Suspect {
    who: Who,
    /// Where evidence has narrowed it.
    pub(crate) part: Option<Part>,
}

/// What is known of an origin's limits after one more answer.
pub(crate) struct Weighed {
    /// What they were by before.
    pub(crate) was: Option<Part>,
    /// Whose they are now, and why; none: everyone's, as far as is known.
    pub(crate) whose: Option<Whose>,
    tallies: [Tally; PARTS],
}

impl Weighed {
    /// Whether something else is believed now.
    pub(crate) fn is_news(&self) -> bool {
        self.was != self.whose.map(|whose| whose.part)
    }
}

impl Route {
    /// Whom a refusal of a request with these `scopes` will be about, as far as is known now.
    pub(crate) fn suspect(&self, scopes: &[BoundScope]) -> Suspect {
        let Some(evidence) = &self.evidence else { return Suspect::default() };
        let who = Who::of(scopes);
        if who.is_anybody() {
            return Suspect::default();
        }
        Suspect { who, part: evidence.lock().narrowed().filter(|part| who.has(*part)) }
    }

    /// What has been weighed so far.
    #[cfg(test)]
    pub(crate) fn weighed(&self) -> Option<Evidence> {
        self.evidence.as_ref().map(|evidence| evidence.lock().clone())
    }

    /// Takes in what came of a request that was `sent`. What it fell on stays shut `until` then, where it was refused.
    pub(crate) fn weigh(
        &self,
        suspect: &Suspect,
        (sent, now): (Timestamp, Timestamp),
        (outcome, reading): (&Outcome, Option<&Reading>),
        until: Option<Timestamp>,
    ) -> Option<Weighed> {
        let evidence = self.evidence.as_ref().filter(|_| !suspect.who.is_anybody())?;
        let mut evidence = evidence.lock();
        let was = evidence.narrowed();
        match outcome {
            Outcome::Success | Outcome::Rejected => evidence.served(&suspect.who, sent, now),
            // Where the server says whose limit it is, nothing is to be found out.
            Outcome::Refused(_) if reading.is_none_or(|reading| reading.scope_hint.is_none()) => {
                evidence.refused(&suspect.who, sent, suspect.part, until.unwrap_or(now), now);
            }
            _ => return None,
        }
        Some(Weighed { was, whose: evidence.whose(), tallies: evidence.tallies() })
    }
}

impl<G: GateStore> Shared<G> {
    /// Takes in what came of a request, keeps what is known, and says what is new ([`Route::weigh`]).
    pub(super) fn weigh(
        &self,
        route: &Route,
        suspect: &Suspect,
        sent: Timestamp,
        came: (&Outcome, Option<&Reading>),
        until: Option<Timestamp>,
    ) -> Option<Whose> {
        let now = self.gates.now();
        let weighed = route.weigh(suspect, (sent, now), came, until)?;
        if weighed.is_news() || until.is_some() {
            self.keep_evidence(&route.origin, &EvidenceRecord::encode(&weighed.tallies, now));
        }
        let (was, whose) = (weighed.was, weighed.whose);
        if weighed.is_news() {
            (self.events)(Event::Limits { origin: route.origin.to_string(), whose, was });
        }
        // What this refusal fell on was decided before it was weighed.
        whose.filter(|whose| Some(whose.part) == suspect.part)
    }

    /// Keeps all evidence as it is at the end.
    pub(super) fn save_evidence(&self) {
        let now = self.gates.now();
        for (origin, evidence) in self.routes.all_evidence() {
            let evidence = evidence.lock().clone();
            if evidence != Evidence::default() {
                self.keep_evidence(&origin, &EvidenceRecord::encode(&evidence.tallies(), now));
            }
        }
    }

    fn keep_evidence(&self, origin: &str, record: &[u8]) {
        let (key, version) = (EvidenceRecord::key(origin), EvidenceRecord::VERSION);
        let record = queue::GateRecord { key, version, record: record.to_vec(), until: None };
        if let Err(error) = self.job.save_gate_soon(record) {
            self.stop_for(&error);
        }
    }
}

/// Puts back what the last run knew of a route's origin.
pub(super) fn restore_evidence(kept: &mut HashMap<String, Vec<u8>>, route: &Route, now: Timestamp) {
    let Some(evidence) = &route.evidence else { return };
    let Some(bytes) = kept.remove(&EvidenceRecord::key(&route.origin)) else { return };
    match EvidenceRecord::decode(&bytes, now) {
        Ok(tallies) => *evidence.lock() = Evidence::restore(tallies),
        Err(error) => tracing::warn!(%error, origin = &*route.origin, "kept evidence is not used"),
    }
}
