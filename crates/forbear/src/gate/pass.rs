//! The right to send one request, and what is told of it.

use std::{
    fmt,
    future::Future,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forbear_core::{
    attempt::{Finding, News},
    hint::{self, Reading},
    outcome::{self, Outcome},
    time::Timestamp,
    verdict::{History, Verdict, verdict},
};
use forbear_store::gate::{AnyGates, GateStore, StoreError};

use super::{Gate, Item, Received};
use crate::{
    engine::Route,
    permit::{Admission, Permit},
};

/// The right to send one request now. Dropped without a report it gives everything back, as for a request that was never sent,
/// so a task may be cancelled at any moment.
#[must_use = "dropped, it gives its place back"]
pub struct Pass<G: GateStore = AnyGates> {
    gate: Gate<G>,
    route: Arc<Route>,
    /// None once it was reported.
    admission: Option<Admission<G>>,
}

/// What a report came to.
#[derive(Clone, Copy, Debug)]
#[must_use = "an item that nobody acts on is lost"]
pub struct Report {
    /// What to do next with the item.
    pub verdict: Verdict,
    /// What came of the request.
    pub outcome: Outcome,
}

impl Report {
    /// How long the item waits before it is worth asking the gate again; `None` when it is not to be sent again.
    #[must_use]
    pub fn again(&self) -> Option<Duration> {
        self.verdict.again()
    }
}

impl<G: GateStore> Pass<G> {
    pub(super) fn new(gate: Gate<G>, route: Arc<Route>, admission: Admission<G>) -> Pass<G> {
        Pass { gate, route, admission: Some(admission) }
    }

    /// For [`Client`](crate::client::Client), if that is the client.
    #[must_use]
    pub fn permit(&self) -> Option<&Permit> {
        self.admission.as_ref().map(Admission::permit)
    }

    /// Whether the request probes a scope. Then [`Pass::renew`] is due every few seconds while it is on the wire (B1).
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.admission.as_ref().is_some_and(Admission::is_probe)
    }

    /// Shows the probe's sign of life; false if another may probe by now.
    ///
    /// # Errors
    /// What the store says.
    pub async fn renew(&self) -> Result<bool, StoreError> {
        match &self.admission {
            Some(admission) => admission.renew().await,
            None => Ok(false),
        }
    }

    /// Runs `request` to its end, and renews the lease meanwhile where it probes.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, `request` is dropped; the pass is as it was.
    pub async fn sending<F: Future>(&self, request: F) -> F::Output {
        if !self.is_probe() {
            return request.await;
        }
        let mut request = pin!(request);
        loop {
            tokio::select! {
                answer = &mut request => return answer,
                () = tokio::time::sleep(self.gate.0.sign_of_life) => {
                    // A lease that is lost, or a store: the request is on the wire all the same, and its answer counts.
                    let _ = self.renew().await;
                }
            }
        }
    }

    /// Reports an answer that came whole.
    ///
    /// # Errors
    /// What the store says.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, what was reported stays reported.
    pub async fn answered(self, item: &mut Item, answer: Received<'_>) -> Result<Report, StoreError> {
        let (outcome, reading) = self.read(item, answer);
        let redirected = matches!(outcome, Outcome::Success) && (300..400).contains(&answer.status);
        self.report(item, outcome, Some(&reading), redirected, answer.cost).await
    }

    /// Reports that no whole answer came.
    ///
    /// | what came | `outcome` |
    /// | --- | --- |
    /// | a time-out, a reset, a body cut short | [`Outcome::NO_ANSWER`] |
    /// | the connection could not be made | [`Outcome::Fault`], not processed |
    /// | the origin's certificate does not fit | [`Outcome::Fault`], not passing |
    /// | a refused stream, a connection that was closing | [`Outcome::NotTaken`] |
    ///
    /// # Errors
    /// As [`Pass::answered`].
    ///
    /// # Cancel safety
    /// As [`Pass::answered`].
    pub async fn failed(self, item: &mut Item, outcome: Outcome) -> Result<Report, StoreError> {
        self.report(item, outcome, None, false, None).await
    }

    /// What an answer means, before anybody is told.
    pub(super) fn read(&self, item: &Item, answer: Received<'_>) -> (Outcome, Reading) {
        let Received { status, headers, body, .. } = answer;
        let response = hint::Response { status, headers, body };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let reading = hint::read(&response, self.route.profile, Timestamp::ZERO.plus(since));
        (outcome::of_response(status, &reading, item.account.is_some()), reading)
    }

    /// Reports without waiting for the store, where nobody is left to act on the verdict.
    #[cfg(any(feature = "tower", feature = "reqwest"))]
    pub(super) fn close(self, item: &mut Item, outcome: Outcome, reading: Option<&Reading>) {
        let report = pin!(self.report(item, outcome, reading, false, None));
        // A store in memory is done in one poll, and of a shared one what was reported stays reported.
        let _ = report.poll(&mut std::task::Context::from_waker(std::task::Waker::noop()));
    }

    pub(super) async fn report(
        mut self,
        item: &mut Item,
        outcome: Outcome,
        reading: Option<&Reading>,
        redirected: bool,
        told: Option<u32>,
    ) -> Result<Report, StoreError> {
        let Some(admission) = self.admission.take() else { unreachable!("a report takes the pass along") };
        let roll = fastrand::f64();
        let finding =
            Finding { outcome: &outcome, reading, item: item.number, roll, exit: None, narrowed: None };
        let real = forbear_core::cost::real(&outcome, told);
        let reported = admission.report(&finding, real, |_, _, _| ()).await;
        self.wake(reported.as_ref().ok().map(|(news, ())| news));
        let (news, ()) = reported?;
        let history = History { account_stopped: news.account_stopped, ..item.history };
        let verdict = verdict(&outcome, &history, self.gate.policy(), news.retry_granted, roll);
        item.note(&outcome, verdict, redirected);
        Ok(Report { verdict, outcome })
    }

    /// Calls those that what happened may let through.
    fn wake(&self, news: Option<&News>) {
        let beyond = |news: &News| {
            let wide = |i: usize| self.route.scopes[i].by.is_some_and(|by| !by.origin);
            (0..self.route.scopes.len()).any(|i| news.wakes_at(i) && wide(i))
        };
        let lines = &self.gate.0.lines;
        if news.is_none_or(beyond) {
            lines.wake_all()
        } else {
            lines.wake_at(std::slice::from_ref(&self.route.origin))
        }
    }
}

impl<G: GateStore> Drop for Pass<G> {
    fn drop(&mut self) {
        if let Some(admission) = self.admission.take() {
            drop(admission); // first the gate, so that whoever is called finds the place free
            self.gate.0.lines.wake_at(std::slice::from_ref(&self.route.origin));
        }
    }
}

impl<G: GateStore> fmt::Debug for Pass<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pass").field("origin", &self.route.origin).field("probe", &self.is_probe()).finish()
    }
}
