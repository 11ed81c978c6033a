//! The HTTP client under the fetch engine: one request, one hop, one attempt.
//!
//! Nothing is hidden. There is no retry, no redirect, no proxy variable, and nothing is sent without a [`Permit`] (S4).
//! What comes back is either a whole answer or a [`Fault`] that says what went wrong, where, whose it is (the origin's or
//! the exit's), and whether the server may have acted on the request.
//!
//! The one thing that looks like a second try is none: a pooled connection that turns out to be closed before a single
//! byte was written is put aside, and another one is used.

mod address;
mod body;
mod clock;
mod decode;
mod dial;
mod fault;
mod h1;
mod h2;
mod headers;
mod pool;
mod target;
mod tickets;
mod tls;
mod tunnel;
mod way;
mod wire;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use forbear_core::exit::{Answerer, answered_by};
use forbear_core::outcome::ExitFault;
use http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, Version};
use http_body_util::Full;
use rustls::RootCertStore;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::client::TlsStream;

pub use address::{Hop, is_public};
pub use body::{Body, RATIO_MAX};
pub use fault::{Fault, FaultKind, Phase, Processed};
pub use headers::is_secret;
pub use target::{Host, Scheme, Target, TargetError, URL_BYTES_MAX};
pub(crate) use target::{parse_host, split_port, unescape};
pub use way::{ExitSession, Way};

use crate::permit::Permit;
use clock::Clock;
use dial::{Dialer, Remote, may_reach, not_sent};
use h1::{H1, HeadLimits};
use h2::H2;
use pool::{Found, Pool, PoolKey, PoolLimits, Turn};
use tls::{Peer, Tls};
use tunnel::{Guide, Link, Reached};
use way::forwards;
use wire::{Stream, Wire};

/// Which versions of HTTP are spoken through TLS. Without TLS it is always HTTP/1.1.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Http2 {
    /// HTTP/2 where the server agrees to it (by ALPN), else HTTP/1.1.
    #[default]
    Auto,
    /// HTTP/1.1 only.
    Never,
}

/// How a [`Client`] behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The `User-Agent` of requests that do not bring their own; none is sent where this is empty. Default
    /// `forbear/VERSION`.
    pub user_agent: HeaderValue,
    /// Refuse every address that is not public: loopback, private, link-local, carrier-grade NAT, multicast and the
    /// rest. Judged on the origin's address, as far as it is known here ([`Way`]). Default off.
    pub public_only: bool,
    /// The most bytes in the head of an answer. Default 64 KiB: four times what common servers allow themselves. Its
    /// fields are at most 100.
    pub head_bytes_max: usize,
    /// The most idle connections to one origin, by one exit session. Default 64.
    pub idle_per_origin_max: usize,
    /// The most idle connections in all, and the most that are shared (HTTP/2); the oldest go first. Default 512, half of
    /// the usual limit on open files.
    pub idle_max: usize,
    /// How long a connection may be idle. Default 30 s: common servers close after 60 to 75 s, some after 5.
    pub idle_timeout: Duration,
    /// Whether HTTP/2 is offered. Default [`Http2::Auto`].
    pub http2: Http2,
    /// The root certificates to trust. Default `None`: the system's, or those of `SSL_CERT_FILE`.
    pub roots: Option<Arc<RootCertStore>>,
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
            http2: Http2::Auto,
            roots: None,
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
    /// How far the body may expand, once it is over 1 MiB: decoded bytes to bytes of the wire.
    pub ratio_max: u32,
    /// Who chose the target.
    pub hop: Hop,
}

impl Limits {
    /// A first hop with a deadline from now, 64 MiB of body, and [`RATIO_MAX`].
    pub fn within(timeout: Duration) -> Limits {
        let deadline = Instant::now() + timeout;
        Limits { deadline, body_max: 64 * 1024 * 1024, ratio_max: RATIO_MAX, hop: Hop::First }
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
    /// The address that was connected to: the origin's, or the exit's.
    pub remote: SocketAddr,
    /// Who answered, where an exit forwards requests without a tunnel; else the origin.
    pub answered_by: Answerer,
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
            .field("answered_by", &self.answered_by)
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
    tls: Tls,
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
        let dialer = Dialer::new(options.public_only);
        let tls = Tls::new(options.http2 == Http2::Auto, options.roots.clone());
        Client { inner: Arc::new(Inner { dialer, tls, pool, options }) }
    }

    /// Sends one request by one way and waits for the head of its answer. The permit is the gate's word that it may (S4).
    ///
    /// # Errors
    /// Why there is no answer, whose failing that is, and whether the server may have acted on the request.
    ///
    /// # Cancel safety
    /// Dropping the future (or later the body) closes an HTTP/1.1 connection and resets an HTTP/2 stream. Whether the
    /// server has acted by then nobody knows.
    pub async fn send(
        &self,
        permit: &Permit,
        request: Request,
        way: &Way,
        limits: &Limits,
    ) -> Result<Response, Fault> {
        let _: &Permit = permit;
        let inner = &*self.inner;
        let Request { method, target, headers, body } = request;
        let headers = headers::assemble(&method, &target, headers, &body, &inner.options.user_agent)?;
        let key = PoolKey::new(way, target.origin_bytes());
        let mut clock = Clock::until(limits.deadline);
        let mut unsent = http::Request::new(Full::new(body.clone()));
        *unsent.method_mut() = method;
        *unsent.uri_mut() = Uri::from(target.path_and_query());
        *unsent.headers_mut() = headers;
        let forwarder = way.session().filter(|exit| target.scheme() == Scheme::Http && forwards(exit));
        if let Some(exit) = forwarder {
            headers::for_exit(&mut unsent, &target, exit.authorization())?;
        }
        loop {
            let (found, reused) = match inner.pool.take(&key) {
                Some(found) => (found, true),
                None => inner.dial(&key, &target, way, limits.hop, &mut clock).await?,
            };
            match found {
                Found::H1(mut connection) => {
                    may_reach(&inner.dialer, connection.remote().origin, limits.hop)?;
                    match connection.exchange(unsent, &mut clock).await {
                        Ok(answer) => {
                            let mut response =
                                inner.answer_h1(answer, connection, reused, key, clock, limits)?;
                            if forwarder.is_some() {
                                response.answered_by =
                                    answered_by(response.status.as_u16(), &response.headers);
                            }
                            return Ok(response);
                        }
                        Err(h1::Failed::Unsent(request)) if reused => unsent = *request,
                        Err(h1::Failed::Unsent(_)) => {
                            let fault = not_sent(FaultKind::Closed, Phase::Send);
                            return Err(if forwarder.is_some() {
                                fault.by_exit(ExitFault::Silent)
                            } else {
                                fault
                            });
                        }
                        Err(h1::Failed::Fault { fault, silent }) => {
                            // Between us and the exit, or between it and the origin: nobody can tell.
                            let unheard = forwarder.is_some()
                                && silent
                                && !fault.stale_connection
                                && fault.is_silence();
                            return Err(if unheard { fault.by_exit(ExitFault::Silent) } else { fault });
                        }
                    }
                }
                Found::H2(mut connection) => {
                    may_reach(&inner.dialer, connection.remote().origin, limits.hop)?;
                    if reused && !connection.is_open() {
                        inner.pool.forget(&key, &connection);
                        continue;
                    }
                    let request = headers::for_h2(&unsent, &target)?;
                    let head_only = unsent.method() == Method::HEAD;
                    let read = connection.read();
                    match connection.exchange(request, body.clone(), reused, &mut clock).await {
                        Ok(answer) => {
                            return Ok(answer_h2(answer, head_only, &connection, reused, clock, limits));
                        }
                        Err(h2::Failed::Unsent) if reused => inner.pool.forget(&key, &connection),
                        Err(h2::Failed::Unsent) => return Err(not_sent(FaultKind::Closed, Phase::Send)),
                        Err(h2::Failed::Fault(fault)) => {
                            // Not one byte until the deadline: the way there may be gone without a word, and whoever
                            // comes next must not wait on it.
                            if fault.kind == FaultKind::TimedOut && connection.read() == read {
                                inner.pool.forget(&key, &connection);
                            }
                            return Err(fault);
                        }
                    }
                }
            }
        }
    }

    /// Leaves an exit session for good, by its [`ExitSession::id`]: closes its idle connections, gives no more requests to
    /// shared ones, and throws away its TLS tickets (E4). What is under way goes on, and its connection is closed after it.
    pub fn leave(&self, session: u64) {
        self.inner.pool.leave(session);
        self.inner.tls.leave(session);
    }
}

impl Inner {
    /// A new connection, or one that another request has opened meanwhile and that may be shared. Tells whether it had
    /// been there before this request.
    async fn dial(
        &self,
        key: &PoolKey,
        target: &Target,
        way: &Way,
        hop: Hop,
        clock: &mut Clock,
    ) -> Result<(Found, bool), Fault> {
        if let Some(session) = way.session() {
            self.pool.meet(session);
        }
        let turn = match target.scheme() {
            Scheme::Https if self.tls.offers_h2() => self.pool.turn(key),
            _ => None,
        };
        let Some(turn) = turn else { return Ok((self.connect(target, way, hop, clock, None).await?, false)) };
        let Ok(guard) = clock.within(turn.lock.lock()).await else {
            let late = not_sent(FaultKind::TimedOut, Phase::Connect);
            // Whoever has the turn has not come through the exit all the while.
            let by_exit = way.session().is_some() && !turn.through.load(Ordering::Relaxed);
            return Err(if by_exit { late.by_exit(ExitFault::Silent) } else { late });
        };
        if let Some(found) = self.pool.take(key) {
            return Ok((found, true));
        }
        if self.pool.turn(key).is_none() {
            drop(guard); // it has turned out to be an HTTP/1.1 server while we waited
            return Ok((self.connect(target, way, hop, clock, None).await?, false));
        }
        turn.through.store(false, Ordering::Relaxed);
        let found = self.connect(target, way, hop, clock, Some(&turn)).await?;
        match &found {
            Found::H1(_) => self.pool.learn(key, None),
            Found::H2(shared) => self.pool.learn(key, Some(shared.clone())),
        }
        Ok((found, false))
    }

    async fn connect(
        &self,
        target: &Target,
        way: &Way,
        hop: Hop,
        clock: &mut Clock,
        turn: Option<&Turn>,
    ) -> Result<Found, Fault> {
        let Reached { link, remote, doubtful } = match way {
            Way::Direct => self.reach(target, hop, clock).await?,
            Way::Exit(session) => {
                let (dialer, tls, head_bytes_max) = (&self.dialer, &self.tls, self.options.head_bytes_max);
                // The state of one tunnel is not for everybody's future.
                Box::pin(Guide { session, dialer, tls, head_bytes_max }.reach(target, hop, clock)).await?
            }
        };
        if let Some(turn) = turn {
            turn.through.store(true, Ordering::Relaxed);
        }
        let stream = match (target.scheme(), link) {
            (Scheme::Http, Link::Plain(stream)) => Stream::Plain(stream),
            (Scheme::Http, Link::Tls(stream)) => Stream::Tls(stream),
            (Scheme::Https, Link::Plain(stream)) => {
                Stream::Tls(Box::new(self.encrypt(stream, target, way, doubtful, clock).await?))
            }
            (Scheme::Https, Link::Tls(stream)) => {
                let stream = Box::pin(self.encrypt(*stream, target, way, doubtful, clock)).await?;
                Stream::TlsInTls(Box::new(stream))
            }
        };
        let head = HeadLimits { bytes_max: self.options.head_bytes_max };
        if target.scheme() == Scheme::Https && stream.speaks_h2() {
            let handshake = H2::new(Wire::new(stream), remote, head);
            let late = |_| not_sent(FaultKind::TimedOut, Phase::Connect);
            return Ok(Found::H2(clock.within(handshake).await.map_err(late)??));
        }
        Ok(Found::H1(Box::new(H1::new(Wire::new(stream), remote, head).await?)))
    }

    /// The origin itself.
    async fn reach(&self, target: &Target, hop: Hop, clock: &mut Clock) -> Result<Reached, Fault> {
        let late = |at| move |_| not_sent(FaultKind::TimedOut, at);
        let deadline = clock.deadline();
        let lookup = self.dialer.resolve(target.host(), target.port(), hop);
        let addresses = clock.within(lookup).await.map_err(late(Phase::Resolve))??;
        let stream =
            clock.within(self.dialer.connect(&addresses, deadline)).await.map_err(late(Phase::Connect))??;
        let address = stream
            .peer_addr()
            .map_err(|error| not_sent(FaultKind::ConnectFailed, Phase::Connect).because(error))?;
        let remote = Remote { address, origin: Some(address.ip()) };
        Ok(Reached { link: Link::Plain(stream), remote, doubtful: false })
    }

    /// TLS with the origin. Its failures are the origin's, unless the exit had announced data of its own.
    async fn encrypt<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        target: &Target,
        way: &Way,
        doubtful: bool,
        clock: &mut Clock,
    ) -> Result<TlsStream<S>, Fault> {
        let handshake = self.tls.handshake(stream, target.host(), Peer::Origin(way));
        let late = |_| not_sent(FaultKind::TimedOut, Phase::Tls);
        clock.within(handshake).await.map_err(late).flatten().map_err(|mut fault| {
            if doubtful && fault.kind == FaultKind::Handshake {
                fault.kind = FaultKind::TunnelPolluted;
                return fault.by_exit(ExitFault::Broken);
            }
            fault
        })
    }

    fn answer_h1(
        &self,
        answer: http::Response<hyper::body::Incoming>,
        connection: Box<H1>,
        reused: bool,
        key: PoolKey,
        clock: Clock,
        limits: &Limits,
    ) -> Result<Response, Fault> {
        let remote = connection.remote().address;
        let (head, incoming) = answer.into_parts();
        if head.status == StatusCode::SWITCHING_PROTOCOLS {
            return Err(Fault::new(FaultKind::UnsupportedProtocol, Phase::Head, Processed::Unknown));
        }
        let pool = Arc::clone(&self.pool);
        let mut body = Body::h1(incoming, connection, pool, key, &head.headers, clock, limits);
        body.settle();
        let (status, version, headers) = (head.status, head.version, head.headers);
        Ok(Response { status, version, headers, body, reused, remote, answered_by: Answerer::Origin })
    }
}

fn answer_h2(
    answer: http::Response<::h2::RecvStream>,
    head_only: bool,
    connection: &H2,
    reused: bool,
    clock: Clock,
    limits: &Limits,
) -> Response {
    let (head, stream) = answer.into_parts();
    let bodiless = head_only || matches!(head.status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let body = Body::h2(stream, bodiless, &head.headers, clock, limits);
    let (status, version, headers) = (head.status, Version::HTTP_2, head.headers);
    let remote = connection.remote().address;
    Response { status, version, headers, body, reused, remote, answered_by: Answerer::Origin }
}

impl Default for Client {
    fn default() -> Client {
        Client::new(ClientOptions::default())
    }
}
