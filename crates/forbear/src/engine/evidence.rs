//! Whose the limits of an origin are (L6): what comes back is weighed, what is found is said and kept with the job.

use std::collections::HashMap;

use forbear_core::{
    evidence::{Evidence, Part, Who, Whose},
    hint::Reading,
    outcome::Outcome,
    time::Timestamp,
};
use forbear_store::{
    gate::{EvidenceRecord, GateStore},
    queue,
};

use super::{events::Event, next::Course, route::Route, shared::Shared};

/// Whose a request is, and what a refusal of it falls on.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Suspect {
    who: Who,
    /// Where evidence has narrowed it.
    pub(super) part: Option<Part>,
}

impl Course {
    /// Whom a refusal will be about, as far as is known now.
    pub(super) fn suspect(&self) -> Suspect {
        let Some(evidence) = &self.route.evidence else { return Suspect::default() };
        let who = Who::of(&self.scopes);
        if who.is_anybody() {
            return Suspect::default();
        }
        Suspect { who, part: evidence.lock().narrowed().filter(|part| who.has(*part)) }
    }
}

impl<G: GateStore> Shared<G> {
    /// Takes in what came of a request that was `sent`. What it fell on stays shut `until` then, where it was refused.
    pub(super) fn weigh(
        &self,
        course: &Course,
        suspect: &Suspect,
        sent: Timestamp,
        (outcome, reading): (&Outcome, Option<&Reading>),
        until: Option<Timestamp>,
    ) -> Option<Whose> {
        let evidence = course.route.evidence.as_ref().filter(|_| !suspect.who.is_anybody())?;
        let now = self.gates.now();
        let mut evidence = evidence.lock();
        let before = evidence.narrowed();
        match outcome {
            Outcome::Success | Outcome::Rejected => evidence.served(&suspect.who, sent, now),
            // Where the server says whose limit it is, nothing is to be found out.
            Outcome::Refused(_) if reading.is_none_or(|reading| reading.scope_hint.is_none()) => {
                evidence.refused(&suspect.who, sent, suspect.part, until.unwrap_or(now), now);
            }
            _ => return None,
        }
        let (part, whose, tallies) = (evidence.narrowed(), evidence.whose(), evidence.tallies());
        drop(evidence);
        if part != before || until.is_some() {
            self.keep_evidence(&course.route.origin, &EvidenceRecord::encode(&tallies, now));
        }
        if part != before {
            (self.events)(Event::Limits { origin: course.route.origin.to_string(), whose, was: before });
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
