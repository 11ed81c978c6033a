//! The gate before any `tower` service that sends HTTP requests.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use forbear_core::outcome::Outcome;
use forbear_store::gate::{AnyGates, GateStore};
use http::{Request, Response};
use tower::{BoxError, Layer, Service, ServiceExt as _, retry::Policy};

use super::{Gate, Held, Item, Report};

/// Puts a [`Gate`] before a service: each request waits for its turn, each response is read for what it says about limits.
///
/// The request's URI must be absolute. Account and idempotency come from its head; an [`Item`] in its extensions says them
/// instead, and cost and endpoint. The response has the [`Report`] and the `Item` in its extensions; a refusal is an answer as
/// others are, for [`Resend`] or the caller to act on.
///
/// What a service does behind the layer's back, the gate does not see: switch redirects and retries in it off (S4).
///
/// ```
/// use forbear::gate::{Gate, GateLayer, GateOptions, Resend};
/// use http::{Request, Response};
/// use http_body_util::Empty;
/// use tower::{Service as _, ServiceBuilder, ServiceExt as _};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let gate = Gate::in_memory(GateOptions::default());
/// let mut client = ServiceBuilder::new()
///     .retry(Resend::default())
///     .layer(GateLayer::new(gate))
///     .service_fn(async |_: Request<()>| Ok::<_, std::io::Error>(Response::new(Empty::<&[u8]>::new())));
/// let response = client.ready().await?.call(Request::get("http://shop.example/").body(())?).await?;
/// assert_eq!(response.status(), 200);
/// # Ok::<(), tower::BoxError>(())
/// # }).map_err(|e| e.to_string())?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct GateLayer<G: GateStore = AnyGates>(Gate<G>);

impl<G: GateStore> GateLayer<G> {
    /// The layer of this gate.
    #[must_use]
    pub fn new(gate: Gate<G>) -> GateLayer<G> {
        GateLayer(gate)
    }
}

impl<G: GateStore> Clone for GateLayer<G> {
    fn clone(&self) -> GateLayer<G> {
        GateLayer(self.0.clone())
    }
}

impl<S, G: GateStore> Layer<S> for GateLayer<G> {
    type Service = GateService<S, G>;

    fn layer(&self, inner: S) -> GateService<S, G> {
        GateService { inner, gate: self.0.clone() }
    }
}

/// A service behind a [`Gate`]. It is always ready: who waits, waits in the call, and holds nothing of the inner service
/// meanwhile (C3).
#[derive(Debug)]
pub struct GateService<S, G: GateStore = AnyGates> {
    inner: S,
    gate: Gate<G>,
}

impl<S: Clone, G: GateStore> Clone for GateService<S, G> {
    fn clone(&self) -> GateService<S, G> {
        GateService { inner: self.inner.clone(), gate: self.gate.clone() }
    }
}

impl<S, B, R, G> Service<Request<B>> for GateService<S, G>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Error: Into<BoxError> + Send,
    S::Future: Send,
    B: Send + 'static,
    R: Send,
    G: GateStore,
{
    type Response = Response<Held<R, G>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<B>) -> Self::Future {
        let (inner, gate) = (self.inner.clone(), self.gate.clone());
        Box::pin(async move {
            let url = request.uri().to_string();
            let given = request.extensions_mut().remove::<Item>();
            let mut item = given.unwrap_or_else(|| gate.item(request.method(), &url, request.headers()));
            let pass = gate.acquire(&url, &item).await?;
            let sent = pass.sending(inner.oneshot(request)).await.map_err(Into::<BoxError>::into);
            match sent {
                Ok(response) => {
                    let (mut head, body) = response.into_parts();
                    let status = head.status.as_u16();
                    let (report, body) =
                        Held::after_head(pass, &mut item, status, &head.headers, body).await?;
                    head.extensions.insert(report);
                    head.extensions.insert(item);
                    Ok(Response::from_parts(head, body))
                }
                Err(source) => {
                    let report = pass.failed(&mut item, Outcome::NO_ANSWER).await?;
                    Err(NotServed { report, item, source }.into())
                }
            }
        })
    }
}

/// The inner service had no response: its error, and what to do with the item.
#[derive(Debug, thiserror::Error)]
#[error("no answer")]
pub struct NotServed {
    /// What to do next.
    pub report: Report,
    /// The item, which knows of this try.
    pub item: Item,
    /// The inner service's error.
    #[source]
    pub source: BoxError,
}

/// Sends again what was refused or failed, as the verdict says (V1, V2): refusals as often as the policy allows, faults only
/// where the request may be sent twice. For `ServiceBuilder::retry`, outside of the [`GateLayer`].
///
/// The request's body must be cheap to clone, as `Full<Bytes>` is.
#[derive(Clone, Copy, Debug)]
pub struct Resend {
    /// A longer wait than this is not slept: the answer goes to the caller, with the [`Report`] in its extensions. Default 30 s.
    pub longest: Duration,
}

impl Default for Resend {
    fn default() -> Resend {
        Resend { longest: Duration::from_secs(30) }
    }
}

impl<B: Clone, R> Policy<Request<B>, Response<R>, BoxError> for Resend {
    type Future = Pin<Box<tokio::time::Sleep>>;

    fn retry(
        &mut self,
        request: &mut Request<B>,
        result: &mut Result<Response<R>, BoxError>,
    ) -> Option<Self::Future> {
        let (report, item) = match result {
            Ok(response) => {
                (*response.extensions().get::<Report>()?, response.extensions().get::<Item>()?.clone())
            }
            Err(error) => {
                let failed = error.downcast_ref::<NotServed>()?;
                (failed.report, failed.item.clone())
            }
        };
        let wait = report.again().filter(|wait| *wait <= self.longest)?;
        request.extensions_mut().insert(item);
        Some(Box::pin(tokio::time::sleep(wait)))
    }

    fn clone_request(&mut self, request: &Request<B>) -> Option<Request<B>> {
        Some(request.clone())
    }
}
