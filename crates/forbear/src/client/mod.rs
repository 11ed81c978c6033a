//! The HTTP client under the fetch engine: one request, one hop, one attempt.
//!
//! Nothing is hidden. There is no retry, no redirect, no proxy variable, and nothing is sent without a [`Permit`] (S4).
//! What comes back is either a whole answer or a [`Fault`] that says what went wrong, where, and whether the server may
//! have acted on the request.
//!
//! The one thing that looks like a second try is none: a pooled connection that turns out to be closed before a single
//! byte was written is put aside, and another one is used.

mod address;
mod body;
mod clock;
mod dial;
mod fault;
mod h1;
mod headers;
mod pool;
mod target;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use http_body_util::Full;
use tokio::time::Instant;

pub use address::{Hop, is_public};
pub use body::Body;
pub use fault::{Fault, FaultKind, Phase, Processed};
pub use headers::is_secret;
pub use target::{Host, Scheme, Target, TargetError, URL_BYTES_MAX};

use crate::permit::Permit;
use clock::Clock;
use dial::{Dialer, may_reach, not_sent};
use h1::{Failed, H1, HeadLimits};
use pool::{Pool, PoolKey, PoolLimits};
use wire::{Stream, Wire};

/// The most fields that a head may have. Real answers stay below 100; the bytes are bounded apart.
const HEAD_FIELDS_MAX: usize = 256;

/// How a [`Client`] behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The `User-Agent` of requests that do not bring their own. Default `forbear/VERSION`.
    pub user_agent: HeaderValue,
    /// Refuse every address that is not public: loopback, private, link-local, carrier-grade NAT, multicast and the
    /// rest. Judged on the address that is connected to. Default off.
    pub public_only: bool,
    /// The most bytes in the head of an answer. Default 64 KiB: four times what common servers allow themselves.
    pub head_bytes_max: usize,
    /// The most idle connections to one origin. Default 64.
    pub idle_per_origin_max: usize,
    /// The most idle connections in all; the oldest go first. Default 512, half of the usual limit on open files.
    pub idle_max: usize,
    /// How long a connection may be idle. Default 30 s: common servers close after 60 to 75 s, some after 5.
    pub idle_timeout: Duration,
}

impl Default for ClientOptions {
    fn default() -> ClientOptions {
        ClientOptions {
            user_agent: HeaderValue::from_static(concat!("forbear/", env!("CARGO_PKG_VERSION"))),
            public_only: false,
            head_bytes_max: 64 * 1024,
            idle_per_origin_max: 64,
            idle_max: 512,
            idle_timeout: Duration::from_secs(30),
        }
    }
}

/// One request.
///
/// `headers` override the defaults (`Host`, `User-Agent`, `Accept`, `Accept-Encoding`). Fields of the connection and of
/// the framing (`Connection`, `Content-Length`, `Transfer-Encoding`, `TE` but for `trailers`, `Trailer`, `Upgrade`,
/// `Expect`, `Keep-Alive`, `Proxy-Connection`, `Proxy-Authorization`, `Proxy-Authenticate`) are not sent, whoever set
/// them.
#[derive(Clone)]
pub struct Request {
    /// The method.
    pub method: Method,
    /// Where to.
    pub target: Target,
    /// Fields of the item's own.
    pub headers: HeaderMap,
    /// The whole body, empty for none.
    pub body: Bytes,
}

impl Request {
    /// A `GET` without fields of its own.
    pub fn get(target: Target) -> Request {
        Request { method: Method::GET, target, headers: HeaderMap::new(), body: Bytes::new() }
    }
}

impl fmt::Debug for Request {
    /// Names of fields only: any value may be a secret (K1). The target shows no credentials.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Request")
            .field("method", &self.method)
            .field("target", &self.target)
            .field("headers", &Names(&self.headers))
            .field("body_len", &self.body.len())
            .finish()
    }
}

/// Bounds on one attempt.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// When the attempt is over, from the look-up of the name to the last byte of the body.
    pub deadline: Instant,
    /// The most bytes of body, decoded.
    pub body_max: u64,
    /// Who chose the target.
    pub hop: Hop,
}

impl Limits {
    /// A first hop with a deadline from now and 64 MiB of body.
    pub fn within(timeout: Duration) -> Limits {
        Limits { deadline: Instant::now() + timeout, body_max: 64 * 1024 * 1024, hop: Hop::First }
    }
}

/// The head of an answer, and its body to be read.
pub struct Response {
    /// The status.
    pub status: StatusCode,
    /// The version that was spoken.
    pub version: Version,
    /// The fields as they came, also those that describe a coding that [`Body`] undoes.
    pub headers: HeaderMap,
    /// The body.
    pub body: Body,
    /// Whether the connection had served before.
    pub reused: bool,
    /// Who answered.
    pub remote: SocketAddr,
}

impl fmt::Debug for Response {
    /// Names of fields only: a `Set-Cookie` or a `Location` may hold a secret (K1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Response")
            .field("status", &self.status)
            .field("version", &self.version)
            .field("headers", &Names(&self.headers))
            .field("body", &self.body)
            .field("reused", &self.reused)
            .field("remote", &self.remote)
            .finish()
    }
}

struct Names<'a>(&'a HeaderMap);

impl fmt::Debug for Names<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

/// Sends requests, and keeps connections for the next ones. Cheap to clone; clones share the connections.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    options: ClientOptions,
    dialer: Dialer,
    pool: Arc<Pool>,
}

impl Client {
    /// A client without connections yet.
    pub fn new(options: ClientOptions) -> Client {
        let pool = Arc::new(Pool::new(PoolLimits {
            idle_per_origin_max: options.idle_per_origin_max,
            idle_max: options.idle_max,
            idle_timeout: options.idle_timeout,
        }));
        Client { inner: Arc::new(Inner { dialer: Dialer::new(options.public_only), pool, options }) }
    }

    /// Sends one request and waits for the head of its answer. The permit is the gate's word that it may (S4).
    ///
    /// # Errors
    /// Why there is no answer, and whether the server may have acted on the request.
    ///
    /// # Cancel safety
    /// Dropping the future (or later the body) closes an HTTP/1.1 connection. Whether the server has acted by then
    /// nobody knows.
    pub async fn send(&self, permit: &Permit, request: Request, limits: &Limits) -> Result<Response, Fault> {
        let _: &Permit = permit;
        let Request { method, target, headers, body } = request;
        let headers = headers::assemble(&method, &target, headers, &body, &self.inner.options.user_agent)?;
        let key = PoolKey::new(target.origin_bytes());
        let mut clock = Clock::until(limits.deadline);

        let mut outgoing = http::Request::new(Full::new(body));
        *outgoing.method_mut() = method;
        *outgoing.uri_mut() = Uri::from(target.path_and_query());
        *outgoing.headers_mut() = headers;
        loop {
            let mut connection = match self.inner.pool.take(&key) {
                Some(connection) => connection,
                None => self.connect(&target, limits.hop, &mut clock).await?,
            };
            may_reach(&self.inner.dialer, connection.remote().ip(), limits.hop)?;
            let reused = connection.served();
            match connection.exchange(outgoing, &mut clock).await {
                Ok(response) => {
                    return Ok(self.answer(response, connection, reused, key, clock, limits).await);
                }
                Err(Failed::Unsent(request)) if reused => outgoing = request,
                Err(Failed::Unsent(_)) => return Err(not_sent(FaultKind::Closed, Phase::Send)),
                Err(Failed::Fault(fault)) => return Err(fault),
            }
        }
    }

    async fn connect(&self, target: &Target, hop: Hop, clock: &mut Clock) -> Result<Box<H1>, Fault> {
        if target.scheme() == Scheme::Https {
            return Err(not_sent(FaultKind::UnsupportedProtocol, Phase::Tls));
        }
        let dialer = &self.inner.dialer;
        let deadline = clock.deadline();
        let late = |at| move |_| not_sent(FaultKind::TimedOut, at);
        let addresses = clock
            .within(dialer.resolve(target.host(), target.port(), hop))
            .await
            .map_err(late(Phase::Resolve))??;
        let stream =
            clock.within(dialer.connect(&addresses, deadline)).await.map_err(late(Phase::Connect))??;
        let remote = stream
            .peer_addr()
            .map_err(|error| not_sent(FaultKind::ConnectFailed, Phase::Connect).because(error))?;
        let head = HeadLimits { bytes_max: self.inner.options.head_bytes_max, fields_max: HEAD_FIELDS_MAX };
        Ok(Box::new(H1::new(Wire::new(Stream::Plain(stream)), remote, head).await?))
    }

    async fn answer(
        &self,
        response: http::Response<hyper::body::Incoming>,
        connection: Box<H1>,
        reused: bool,
        key: PoolKey,
        clock: Clock,
        limits: &Limits,
    ) -> Response {
        let remote = connection.remote();
        let (head, incoming) = response.into_parts();
        let pool = Arc::clone(&self.inner.pool);
        let mut body = Body::h1(incoming, connection, pool, key, clock, limits.body_max);
        std::future::poll_fn(|cx| std::task::Poll::Ready(body.settle(cx))).await;
        Response { status: head.status, version: head.version, headers: head.headers, body, reused, remote }
    }
}

impl Default for Client {
    fn default() -> Client {
        Client::new(ClientOptions::default())
    }
}
