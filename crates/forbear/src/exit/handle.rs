//! One exit in hand for one request, and what is told of it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forbear_core::{
    attempt::{Finding, News},
    exit::{Answerer, ExitChange, Pick, answered_by},
    gate::Gate,
    hint::{self, Profile, Reading},
    outcome::{self, Outcome},
    policy::BoundScope,
    time::Timestamp,
    verdict::{History, Verdict, verdict},
};
use forbear_store::gate::{GateStore, MemoryGates, StoreError};

use super::{ExitScheme, ExitSecrets, ExitUrl, pool::Inner};
use crate::{
    client::{Host, Scheme, Target},
    config::Secret,
    item::{Item, Received},
    permit::{Admission, Permit},
};

/// What a report came to.
#[derive(Clone, Copy, Debug)]
#[must_use = "an item that nobody acts on is lost"]
pub struct Report {
    /// What to do next with the item.
    pub verdict: Verdict,
    /// What came of the request, once its exit was heard.
    pub outcome: Outcome,
    /// The exit was left at this origin: cookies and connections of [`Exit::session`] must not be used again (E4).
    pub left: bool,
    /// What happened to the exit.
    pub change: ExitChange,
}

impl Report {
    /// How long the item waits before it is worth asking for an exit again; `None` when it is not sent again in this run.
    #[must_use]
    pub fn again(&self) -> Option<Duration> {
        self.verdict.again()
    }
}

/// The right to send one request by one exit, now. Dropped without a report it gives everything back, as for a request that
/// was never sent, so a task may be cancelled at any moment.
#[must_use = "dropped, it gives its place back"]
pub struct Exit<G: GateStore = MemoryGates> {
    pool: Arc<Inner<G>>,
    url: ExitUrl,
    scopes: Arc<[BoundScope]>,
    profile: Option<&'static Profile>,
    secure: bool,
    /// None once it was reported.
    held: Option<(Pick, Admission<G>)>,
    name: Arc<str>,
    session: u64,
}

impl<G: GateStore> Exit<G> {
    pub(super) fn new(
        pool: Arc<Inner<G>>,
        target: &Target,
        pick: Pick,
        scopes: Arc<[BoundScope]>,
        admission: Admission<G>,
    ) -> Exit<G> {
        let profile = match target.host() {
            Host::Name(name) => Profile::for_host(name),
            Host::Address(_) => None,
        };
        Exit {
            url: pool.members.url(&pick),
            name: pool.members.name(pick.exit).clone(),
            session: pick.session,
            scopes,
            profile,
            secure: target.scheme() == Scheme::Https,
            held: Some((pick, admission)),
            pool,
        }
    }

    /// Its name, for logs: scheme, host and port, and a number where several share these. No credentials.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its session at this origin, by a number that never comes back. Connections and cookies belong to the exit and this
    /// number together (E4).
    #[must_use]
    pub fn session(&self) -> u64 {
        self.session
    }

    /// The exit itself, with the token of its session in the user name. [`ExitUrl::credentials`] has user name and password
    /// as bytes.
    #[must_use]
    pub fn url(&self) -> &ExitUrl {
        &self.url
    }

    /// The URL for a client that takes one, credentials included ([`ExitUrl::to_secret`]).
    #[must_use]
    pub fn proxy_url(&self) -> Secret {
        self.url.to_secret()
    }

    /// What to cut out of whatever is shown of an answer that came by it (K1); `None` without credentials.
    #[must_use]
    pub fn secrets(&self) -> Option<ExitSecrets> {
        ExitSecrets::of(&self.url)
    }

    /// For [`Client`](crate::client::Client), if that is the client.
    #[must_use]
    pub fn permit(&self) -> Option<&Permit> {
        self.held.as_ref().map(|(_, admission)| admission.permit())
    }

    /// Whether the request probes a scope. Then [`Exit::renew`] is due every few seconds while it is on the wire (B1).
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.held.as_ref().is_some_and(|(_, admission)| admission.is_probe())
    }

    /// Shows the probe's sign of life; false if another may probe by now.
    ///
    /// # Errors
    /// What the gate store says.
    pub async fn renew(&self) -> Result<bool, StoreError> {
        match &self.held {
            Some((_, admission)) => admission.renew().await,
            None => Ok(false),
        }
    }

    /// Reports an answer that came whole.
    ///
    /// # Errors
    /// What the gate store says. The exit has heard the report all the same.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, the exit has heard the report; gates in memory too.
    pub async fn answered(self, item: &mut Item, answer: Received<'_>) -> Result<Report, StoreError> {
        let Received { status, headers, body, bytes, tunnel, cost } = answer;
        let forwards = matches!(self.url.scheme(), ExitScheme::Http | ExitScheme::Https);
        if !tunnel
            && forwards
            && !self.secure
            && let Answerer::Exit(fault) = answered_by(status, headers)
        {
            let outcome = Outcome::Exit { fault, processed: fault.processed() };
            return self.report(item, outcome, None, bytes, false, None).await;
        }
        let response = hint::Response { status, headers, body };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let reading = hint::read(&response, self.profile, Timestamp::ZERO.plus(since));
        let outcome = outcome::of_response(status, &reading, item.account.is_some());
        let redirected = matches!(outcome, Outcome::Success) && (300..400).contains(&status);
        self.report(item, outcome, Some(&reading), bytes, redirected, cost).await
    }

    /// Reports that no whole answer came, and whose fault it is.
    ///
    /// | what came | `outcome` |
    /// | --- | --- |
    /// | the exit cannot be reached; TLS with it fails; a reset before the tunnel | [`Outcome::EXIT_BROKEN`] |
    /// | 407 to `CONNECT`, a SOCKS login that was turned down | [`Outcome::EXIT_REJECTS_US`] |
    /// | another answer to `CONNECT`, a SOCKS reply | [`Outcome::Exit`] with [`of_connect`](super::of_connect), [`of_socks_reply`](super::of_socks_reply) |
    /// | the exit took the request, and said nothing | [`Outcome::Exit`] with [`ExitFault::Silent`](super::ExitFault::Silent) |
    /// | a time-out, a reset or an end inside the tunnel, a body cut short | [`Outcome::NO_ANSWER`] |
    /// | the origin's certificate does not fit | [`Outcome::Fault`], not passing |
    /// | a refused stream, a connection that was closing | [`Outcome::NotTaken`] |
    ///
    /// # Errors
    /// As [`Exit::answered`].
    ///
    /// # Cancel safety
    /// As [`Exit::answered`].
    pub async fn failed(self, item: &mut Item, outcome: Outcome) -> Result<Report, StoreError> {
        self.report(item, outcome, None, 0, false, None).await
    }

    async fn report(
        mut self,
        item: &mut Item,
        outcome: Outcome,
        reading: Option<&Reading>,
        bytes: u64,
        redirected: bool,
        told: Option<u32>,
    ) -> Result<Report, StoreError> {
        let Some((pick, admission)) = self.held.take() else { unreachable!("a report takes the exit along") };
        let (pool, roll) = (&*self.pool, fastrand::f64());
        let judged = pool.members.judge(&pick, &outcome, bytes, pool.gates.now(), roll);
        (item.not, item.keep) = pool.members.wishes(&pick, &judged);
        if redirected {
            (item.keep, item.not) = (Some(pick.exit), None); // it goes on by the exit that it came by
        }
        let finding = Finding {
            outcome: &judged.outcome,
            reading,
            item: item.number,
            roll,
            exit: Some(judged.through),
            narrowed: None,
        };
        let shut =
            |news: &News, gates: &[Gate], _| gates.get(news.scope).map(|gate| gate.snapshot().paused_until);
        let real = forbear_core::cost::real(&judged.outcome, told);
        let reported = admission.report(&finding, real, shut).await;
        pool.lines.wake_at(&judged.freed);
        let (news, shut_until) = reported?;
        let settled = pool.members.settle(&pick, &judged, &news, &self.scopes, shut_until, item.blocked);
        let beyond = |i: usize, scope: &BoundScope| news.wakes_at(i) && scope.by.is_some_and(|by| !by.origin);
        if self.scopes.iter().enumerate().any(|(i, scope)| beyond(i, scope))
            || pool.members.concerns_all(judged.change)
        {
            pool.lines.wake_all();
        } else {
            pool.lines.wake_at(&[pick.origin().into()]);
        }
        let history = History { account_stopped: news.account_stopped, way: settled.way, ..item.history };
        let verdict = verdict(&judged.outcome, &history, &pool.item, news.retry_granted, roll);
        item.note(&judged.outcome, verdict, redirected);
        Ok(Report { verdict, outcome: judged.outcome, left: settled.left, change: judged.change })
    }
}

impl<G: GateStore> Drop for Exit<G> {
    fn drop(&mut self) {
        let Some((pick, admission)) = self.held.take() else { return };
        let (members, probe) = (&self.pool.members, admission.is_probe());
        drop(admission); // first the gates, so that whoever is called finds the place free
        if probe {
            members.undo_probe(&pick);
            return self.pool.lines.wake_all();
        }
        let mut free = members.undo(&pick);
        free.push(pick.origin().into());
        self.pool.lines.wake_at(&free);
    }
}

impl<G: GateStore> fmt::Debug for Exit<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exit")
            .field("name", &self.name)
            .field("session", &self.session)
            .finish_non_exhaustive()
    }
}
