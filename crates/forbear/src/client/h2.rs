//! HTTP/2 on one connection that many requests share.
//!
//! On the `h2` crate itself, for two reasons: what the server certainly has not processed can be told by the stream's own
//! error and by whether the stream was ever opened, and a request needs no task of its own.

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use h2::client::{Connection, ResponseFuture, SendRequest};
use h2::{Reason, RecvStream};
use http::{Request, Response};
use parking_lot::Mutex;

use super::clock::Clock;
use super::dial::{Remote, not_sent};
use super::fault::{Fault, FaultKind, Phase, Processed};
use super::h1::HeadLimits;
use super::wire::{Traffic, Wire};

/// Streams that are opened before the server has told its limit. Small: a limit that is told late is not overrun, and
/// waiting costs one round trip at most, once a connection.
const STREAMS_BEFORE_SETTINGS: usize = 8;

/// What the server may send ahead, of one body and of all. Bodies that nobody reads yet stay within it.
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 8 * 1024 * 1024;

/// A handle on a connection; clones share it. A task of its own drives it, and ends when the last handle and the last
/// stream are gone.
#[derive(Clone)]
pub(super) struct H2 {
    sender: SendRequest<Bytes>,
    line: Arc<Line>,
    traffic: Arc<Traffic>,
    remote: Remote,
}

/// The way to the wire, where requests go out whole and in the order of their streams.
///
/// Left to itself, h2 writes the heads of all new streams first and their bodies after, so a request without a body
/// overtakes one that has a body and a lower stream. A server that counts whole requests, and names the last one in its
/// `GOAWAY`, then names a stream below some that it has acted on, or above some that it has not.
struct Line {
    /// Held from a request's head to the end of its body. Taken before `wire`, never after.
    turn: Mutex<()>,
    wire: Mutex<Driven>,
}

struct Driven {
    connection: Option<Connection<Wire, Bytes>>, // until it has ended
    /// The driver's. Whoever else polls the connection must leave the driver to be woken.
    waker: Waker,
}

/// The task of a connection. It takes the connection with it when it ends, also when its runtime does.
struct Driver {
    line: Arc<Line>,
    remote: Remote,
}

impl Future for Driver {
    type Output = ();

    fn poll(self: Pin<&mut Driver>, cx: &mut Context<'_>) -> Poll<()> {
        let mut driven = self.line.wire.lock();
        driven.waker.clone_from(cx.waker());
        driven.poll(self.remote)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let connection = self.line.wire.lock().connection.take();
        drop(connection); // after the lock
    }
}

impl Driven {
    /// Reads and writes what can be; ready once the connection is over.
    fn poll(&mut self, remote: Remote) -> Poll<()> {
        let Some(connection) = &mut self.connection else { return Poll::Ready(()) };
        let ended = ready!(Pin::new(connection).poll(&mut Context::from_waker(&self.waker)));
        if let Err(error) = ended {
            let remote = remote.address;
            tracing::debug!(%remote, %error, "an HTTP/2 connection ended");
        }
        self.connection = None;
        self.waker.wake_by_ref();
        Poll::Ready(())
    }
}

/// How an exchange failed.
pub(super) enum Failed {
    /// The connection takes no more requests, and this one was not given to it.
    Unsent,
    Fault(Fault),
}

impl H2 {
    /// # Errors
    /// The connection broke before the preface was out.
    pub(super) async fn new(wire: Wire, remote: Remote, head: HeadLimits) -> Result<H2, Fault> {
        let traffic = wire.traffic();
        let (sender, connection) = h2::client::Builder::new()
            .enable_push(false)
            .initial_max_send_streams(STREAMS_BEFORE_SETTINGS)
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_header_list_size(u32::try_from(head.bytes_max).unwrap_or(u32::MAX))
            .handshake(wire)
            .await
            .map_err(|error| {
                not_sent(io_kind(&error).unwrap_or(FaultKind::StreamBroken), Phase::Connect).because(error)
            })?;
        let driven = Driven { connection: Some(connection), waker: Waker::noop().clone() };
        let line = Arc::new(Line { turn: Mutex::default(), wire: Mutex::new(driven) });
        tokio::spawn(Driver { line: Arc::clone(&line), remote });
        Ok(H2 { sender, line, traffic, remote })
    }

    pub(super) fn remote(&self) -> Remote {
        self.remote
    }

    /// Whether two handles lead to the same connection.
    pub(super) fn is_same(&self, other: &H2) -> bool {
        Arc::ptr_eq(&self.traffic, &other.traffic)
    }

    /// Whether the connection still takes requests.
    pub(super) fn is_open(&mut self) -> bool {
        // Pending means that a stream is queued, and this handle has none.
        !matches!(self.sender.poll_ready(&mut Context::from_waker(Waker::noop())), Poll::Ready(Err(_)))
    }

    /// Sends the request and waits for the head of the answer. Gives the connection up if it looks dead.
    pub(super) async fn exchange(
        &mut self,
        request: Request<()>,
        body: Bytes,
        reused: bool,
        clock: &mut Clock,
    ) -> Result<Response<RecvStream>, Failed> {
        let read = self.traffic.read();
        let answer = match self.hand_over(request, body) {
            Ok(answer) => answer,
            // The only other error is a request that cannot be written, and GOAWAY comes here as well.
            Err(error) if error.is_io() || error.is_go_away() || error.is_reset() => {
                return Err(Failed::Unsent);
            }
            Err(error) => {
                return Err(Failed::Fault(not_sent(FaultKind::InvalidRequest, Phase::Send).because(error)));
            }
        };
        let mut answer = pin!(answer);
        let mut opened = false; // whether the stream has left the queue for free streams
        let sender = &mut self.sender;
        let waited = clock.within(poll_fn(|cx| {
            opened = opened || matches!(sender.poll_ready(cx), Poll::Ready(Ok(())));
            answer.as_mut().poll(cx)
        }));
        let outcome = waited.await;
        let silent = self.traffic.read() == read;
        let unless_queued = if opened { Processed::Unknown } else { Processed::No };
        let mut fault = match outcome {
            Ok(Ok(response)) => return Ok(response),
            Ok(Err(error)) => head_fault(error, unless_queued),
            Err(_elapsed) => Fault::new(FaultKind::TimedOut, Phase::Head, unless_queued),
        };
        fault.stale_connection =
            reused && silent && matches!(fault.kind, FaultKind::Reset | FaultKind::Closed);
        Err(Failed::Fault(fault))
    }

    /// Gives the request to the connection, and writes it out whole where the socket, the windows and the server's limit
    /// on streams allow it. Where they do not, the driver writes it later, and it may be overtaken.
    fn hand_over(&mut self, request: Request<()>, body: Bytes) -> Result<ResponseFuture, h2::Error> {
        let _turn = self.line.turn.lock();
        let (answer, mut upload) = self.sender.send_request(request, body.is_empty())?;
        if !body.is_empty() {
            // It is in memory already, so the connection may hold it until the windows allow it. If the stream is over
            // by now, its answer or its error says more than this error could.
            let _ = upload.send_data(body, true);
            let _ = self.line.wire.lock().poll(self.remote);
        }
        Ok(answer)
    }

    /// Bytes read so far, to see later whether the connection was silent.
    pub(super) fn read(&self) -> u64 {
        self.traffic.read()
    }
}

impl fmt::Debug for H2 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("H2").field("remote", &self.remote.address).finish_non_exhaustive()
    }
}

/// The next piece of a body. Its room in the windows is given back at once: the reader asks for one piece at a time.
pub(super) fn poll_data(body: &mut RecvStream, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
    let Some(data) = ready!(Pin::new(&mut *body).poll_data(cx)) else { return Poll::Ready(None) };
    Poll::Ready(Some(match data {
        Ok(data) => {
            // It fails only for a stream that is gone, and then the next poll says so.
            let _ = body.flow_control().release_capacity(data.len());
            Ok(data)
        }
        Err(error) => {
            let kind = match () {
                () if error.reason() == Some(Reason::ENHANCE_YOUR_CALM) => FaultKind::EnhanceYourCalm,
                () if error.is_io() => FaultKind::BodyShort,
                () => FaultKind::StreamBroken,
            };
            Err(Fault::new(kind, Phase::Body, Processed::Unknown).because(error))
        }
    }))
}

/// [RFC 9113 section 8.7](https://www.rfc-editor.org/rfc/rfc9113#section-8.7): a refused stream and one above the last
/// stream of a `GOAWAY` have not been processed. (h2 gives the server's `GOAWAY` to just those; streams at or below go on,
/// and if the connection then breaks they get that error.)
fn head_fault(error: h2::Error, unless_queued: Processed) -> Fault {
    let calm = error.reason() == Some(Reason::ENHANCE_YOUR_CALM);
    let (kind, processed) = match () {
        () if error.is_go_away() && error.is_remote() => {
            (if calm { FaultKind::EnhanceYourCalm } else { FaultKind::GoneAway }, Processed::No)
        }
        () if error.is_reset() && error.is_remote() && error.reason() == Some(Reason::REFUSED_STREAM) => {
            (FaultKind::StreamRefused, Processed::No)
        }
        () if calm && error.is_remote() => (FaultKind::EnhanceYourCalm, unless_queued),
        () => (io_kind(&error).unwrap_or(FaultKind::StreamBroken), unless_queued),
    };
    Fault::new(kind, Phase::Head, processed).because(error)
}

fn io_kind(error: &h2::Error) -> Option<FaultKind> {
    Some(match error.get_io()?.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => FaultKind::Reset,
        _ => FaultKind::Closed,
    })
}
