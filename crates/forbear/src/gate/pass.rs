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
    gate::{Change, Gate as Machine},
    hint::{self, Reading},
    outcome::{self, Outcome},
    time::Timestamp,
    verdict::{History, Verdict, verdict},
};
use forbear_store::gate::{AnyGates, GateStore, StoreError};

use super::{Gate, Item, Received};
use crate::{
    engine::{Route, by_evidence},
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
        let (roll, sent) = (fastrand::f64(), admission.at());
        let suspect = self.route.suspect(&self.route.scopes);
        let narrowed = suspect.part;
        let finding = Finding { outcome: &outcome, reading, item: item.number, roll, exit: None, narrowed };
        let real = forbear_core::cost::real(&outcome, told);
        let shut = |news: &News, gates: &[Machine], _| match news.change {
            Change::Closed { .. } => gates.get(news.scope).map(|gate| gate.snapshot().paused_until),
            _ => None,
        };
        let reported = admission.report(&finding, real, shut).await;
        self.wake(reported.as_ref().ok().map(|(news, _)| news));
        let (news, until) = reported?;
        let times = (sent, self.gate.0.store.now());
        if let Some(weighed) = self.route.weigh(&suspect, times, (&outcome, reading), until)
            && weighed.is_news()
        {
            let what = weighed.whose.as_ref().map_or_else(|| "its limits are everyone's".into(), by_evidence);
            tracing::info!(origin = &*self.route.origin, "{what}");
        }
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

#[cfg(test)]
mod tests {
    use http::HeaderMap;

    use super::*;
    use crate::gate::{GateError, GateOptions};

    const URL: &str = "http://api.test/v1";

    #[tokio::test]
    async fn l6_a_limit_that_is_one_accounts_holds_up_that_account_alone() {
        let gate = Gate::in_memory(GateOptions::default());
        let (mut busy, mut calm) = (Item::new().account("busy"), Item::new().account("calm"));
        let [of_busy, of_calm] = [&busy, &calm].map(|item| gate.0.route(URL, item).unwrap());
        let [who, other] = [&of_busy, &of_calm].map(|route| route.suspect(&route.scopes));
        let (mut now, mut incidents) = (Timestamp::from_secs(1_000), 0);
        let response = hint::Response { status: 429, headers: &HeaderMap::new(), body: None };
        let reading = hint::read(&response, None, now);
        let refused = outcome::of_response(429, &reading, true);
        while of_busy.suspect(&of_busy.scopes).part.is_none() {
            let sent = now;
            for (route, who, outcome) in
                [(&of_busy, who, refused), (&of_calm, other, Outcome::Success), (&of_busy, who, refused)]
            {
                now = now.plus(Duration::from_millis(20));
                let until = (outcome == refused).then(|| now.plus(Duration::from_secs(1)));
                assert!(route.weigh(&who, (sent, now), (&outcome, None), until).is_some());
            }
            now = now.plus(Duration::from_secs(1));
            incidents += 1;
            assert!(incidents < 50, "nothing was found");
        }
        // From here on a refusal falls on the account, and the others go on.
        let [one, two] = [&busy, &calm].map(|item| gate.acquire(URL, item));
        let (one, two) = (one.await.unwrap(), two.await.unwrap());
        let told = HeaderMap::from_iter([(http::header::RETRY_AFTER, "60".parse().unwrap())]);
        let _ = one.answered(&mut busy, Received::new(429, &told)).await.unwrap();
        let weighed = || of_calm.weighed();
        let before = weighed();
        let _ = two.answered(&mut calm, Received::new(200, &HeaderMap::new())).await.unwrap();
        assert_ne!(weighed(), before, "what is reported is weighed");
        let late = gate.acquire_within(URL, &busy, Duration::ZERO).await.unwrap_err();
        assert!(matches!(&late, GateError::Late { scope, .. } if scope.contains("account=")), "{late}");
        drop(gate.acquire_within(URL, &calm, Duration::from_secs(5)).await.unwrap());
    }
}
