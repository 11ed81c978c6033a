//! The right to send one request now, and the handle that gives it.

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use forbear_core::{
    attempt::{self, Ask, Decision, Grant, News},
    gate::Cause,
    policy::BoundScope,
    time::Timestamp,
};
use forbear_store::gate::{GateStore, StoreError};

/// Proof that the gate admitted one request.
///
/// Everything that puts a request on the wire takes a `&Permit`, and only the gate's side of this crate makes them.
/// So a request without a permit does not compile: first try, retry, redirect hop, robots.txt and probe alike (S4).
#[derive(Debug)]
pub struct Permit {
    _granted: (),
}

impl Permit {
    /// A permit that no gate granted, for tests and benchmarks of the HTTP client alone.
    #[cfg(feature = "unmetered")]
    pub fn unmetered() -> Permit {
        Permit { _granted: () }
    }
}

/// The answer to one request for a permit.
#[derive(Debug)]
pub enum Answer<G: GateStore> {
    /// Send, and report.
    Admitted(Admission<G>),
    /// Ask again at `until`.
    Wait {
        /// The moment, on the store's clock.
        until: Timestamp,
        /// Which of the scopes it is for.
        scope: usize,
        /// Why.
        cause: Cause,
    },
    /// Ask again when a request of this scope has come back.
    Full {
        /// Which of the scopes.
        scope: usize,
    },
}

/// Asks the gates of all `scopes` for one start.
///
/// # Errors
/// What the store says; nothing is taken then.
///
/// # Cancel safety
/// Dropped before it is ready, nothing is taken by a store in memory.
pub async fn acquire<G: GateStore>(
    gates: &Arc<G>,
    scopes: &Arc<[BoundScope]>,
    ask: Ask,
) -> Result<Answer<G>, StoreError> {
    let decision = gates.update(scopes, |gates, now| attempt::acquire(gates, scopes, ask, now)).await?;
    Ok(match decision {
        Decision::Admit(grant) => Answer::Admitted(Admission {
            permit: Permit { _granted: () },
            grant,
            gates: gates.clone(),
            scopes: scopes.clone(),
            reported: false,
        }),
        Decision::Wait { until, scope, cause } => Answer::Wait { until, scope, cause },
        Decision::Full { scope } => Answer::Full { scope },
    })
}

/// One admitted request: its permit, and the duty to report. Dropped without a report it gives everything back, as for
/// a request that was never sent.
#[derive(Debug)]
pub struct Admission<G: GateStore> {
    permit: Permit,
    grant: Grant,
    gates: Arc<G>,
    scopes: Arc<[BoundScope]>,
    reported: bool,
}

impl<G: GateStore> Admission<G> {
    /// What the client wants to see.
    #[must_use]
    pub fn permit(&self) -> &Permit {
        &self.permit
    }

    /// When it was given, on the store's clock.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.grant.at()
    }

    /// Whether the request probes a scope. Then [`Admission::renew`] is due every few seconds while it is on the wire.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.grant.is_probe()
    }

    /// Shows the probe's sign of life (B1); false if another may probe by now.
    ///
    /// # Errors
    /// What the store says.
    pub async fn renew(&self) -> Result<bool, StoreError> {
        let (scopes, grant) = (&self.scopes, &self.grant);
        self.gates.update(scopes, |gates, now| attempt::renew(gates, scopes, grant, now)).await
    }

    /// Reports what came of the request, and says what that did to its scopes. `real` is what it has cost, where that is
    /// known and not as estimated (C1). `after` sees the gates right after the report, within the same step, to keep what
    /// they are.
    ///
    /// # Errors
    /// What the store says.
    pub async fn report<R: Send>(
        mut self,
        finding: &attempt::Finding<'_>,
        real: Option<u32>,
        mut after: impl FnMut(&News, &[forbear_core::gate::Gate], Timestamp) -> R + Send,
    ) -> Result<(News, R), StoreError> {
        self.reported = true;
        let (scopes, grant) = (&self.scopes, &self.grant);
        self.gates
            .update(scopes, |gates, now| {
                if let Some(real) = real {
                    attempt::correct_cost(gates, scopes, grant, real, now);
                }
                let news = attempt::report(gates, scopes, grant, finding, now);
                let kept = after(&news, gates, now);
                (news, kept)
            })
            .await
    }
}

impl<G: GateStore> Drop for Admission<G> {
    fn drop(&mut self) {
        if self.reported {
            return;
        }
        let (scopes, grant) = (&self.scopes, &self.grant);
        let give_back = self.gates.update(scopes, |gates, _| attempt::cancel(gates, grant));
        // A store in memory is done in one poll; a shared one gets the rest back when the lease ends.
        if let Poll::Ready(Err(error)) = pin!(give_back).poll(&mut Context::from_waker(Waker::noop())) {
            tracing::debug!(%error, "a permit could not be given back");
        }
    }
}
