//! The gate in a client of `reqwest`.

use std::time::Duration;

use async_trait::async_trait;
use forbear_core::outcome::{Outcome, Processed};
use forbear_store::gate::{AnyGates, GateStore};
use http::Extensions;
use reqwest::{Body, Request, Response, ResponseBuilderExt as _};
use reqwest_middleware::{Error, Middleware, Next, Result};

use super::{Gate, Held, Item};

/// Puts a [`Gate`] into a client: each request waits for its turn, each response is read for what it says about limits, and
/// what was refused or failed is sent again as the verdict says (V1, V2), if its body can be cloned.
///
/// Account and idempotency come from the request's head; an [`Item`] given by `RequestBuilder::with_extension` says them
/// instead, and cost and endpoint. The response has the [`Report`](super::Report) in its extensions.
///
/// Build the client with `redirect::Policy::none()` and `retry::never()`: what it does by itself, the gate does not see (S4).
///
/// ```
/// use forbear::gate::{Gate, GateMiddleware, GateOptions};
/// let client = reqwest::Client::builder()
///     .redirect(reqwest::redirect::Policy::none())
///     .retry(reqwest::retry::never())
///     .build()?;
/// let gate = Gate::in_memory(GateOptions::default());
/// let client = reqwest_middleware::ClientBuilder::new(client).with(GateMiddleware::new(gate)).build();
/// let _ask = client.get("https://api.example/v1/orders");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GateMiddleware<G: GateStore = AnyGates> {
    gate: Gate<G>,
    longest: Duration,
}

impl<G: GateStore> GateMiddleware<G> {
    /// The middleware of this gate. It sleeps no wait over 30 s: such an answer goes to the caller.
    #[must_use]
    pub fn new(gate: Gate<G>) -> GateMiddleware<G> {
        GateMiddleware { gate, longest: Duration::from_secs(30) }
    }

    /// Sleeps waits up to `longest` before it sends again; zero sends nothing again that must wait.
    #[must_use]
    pub fn resending_within(self, longest: Duration) -> GateMiddleware<G> {
        GateMiddleware { longest, ..self }
    }
}

#[async_trait]
impl<G: GateStore> Middleware for GateMiddleware<G> {
    async fn handle(
        &self,
        mut request: Request,
        extensions: &mut Extensions,
        next: Next<'_>,
    ) -> Result<Response> {
        let url = request.url().to_string();
        let given = extensions.remove::<Item>();
        let mut item = given.unwrap_or_else(|| self.gate.item(request.method(), &url, request.headers()));
        loop {
            let again = request.try_clone();
            let pass = self.gate.acquire(&url, &item).await.map_err(Error::middleware)?;
            let sent = pass.sending(next.clone().run(request, extensions)).await;
            let (report, answer) = match sent {
                Ok(response) => {
                    let url = response.url().clone();
                    let (mut head, body) = http::Response::<Body>::from(response).into_parts();
                    let status = head.status.as_u16();
                    let (report, body) = Held::after_head(pass, &mut item, status, &head.headers, body)
                        .await
                        .map_err(Error::middleware)?;
                    head.extensions.insert(report);
                    // The URL is handed on by a builder alone.
                    let mut answer = http::Response::builder()
                        .url(url)
                        .body(Body::wrap(body))
                        .map_err(Error::middleware)?;
                    head.extensions.extend(std::mem::take(answer.extensions_mut()));
                    let (_, body) = answer.into_parts();
                    (report, Ok(http::Response::from_parts(head, body).into()))
                }
                Err(error) => {
                    let outcome = outcome_of(&error);
                    let report = pass.failed(&mut item, outcome).await.map_err(Error::middleware)?;
                    (report, Err(error))
                }
            };
            match (report.again().filter(|wait| *wait <= self.longest), again) {
                (Some(wait), Some(again)) => {
                    drop(answer);
                    tokio::time::sleep(wait).await;
                    request = again;
                }
                _ => return answer,
            }
        }
    }
}

/// How far a request came that failed (V2).
fn outcome_of(error: &Error) -> Outcome {
    match error {
        Error::Reqwest(error) if error.is_connect() => {
            Outcome::Fault { processed: Processed::No, passing: true }
        }
        Error::Reqwest(error) if error.is_builder() => Outcome::Rejected,
        Error::Reqwest(_) | Error::Middleware(_) => Outcome::NO_ANSWER,
    }
}
