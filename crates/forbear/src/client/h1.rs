//! HTTP/1.1 on one connection.
//!
//! Whoever uses a connection also drives it: there is no task beside the request's own, so an answer wakes one task and
//! not two, and dropping the request closes the connection.
//!
//! So all that the answer and its body wait for happens inside [`drive`], which alone gets the task's waker. Answer
//! and body are looked at after it, without a waker ([`look`]): with one they would wake the very task that runs.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use super::clock::Clock;
use super::dial::{Remote, not_sent};
use super::fault::{Fault, FaultKind, Phase, Processed};
use super::wire::{Traffic, Wire};

/// A connection, idle or in use by exactly one request.
pub(super) struct H1 {
    sender: http1::SendRequest<Full<Bytes>>,
    /// Nothing once it has finished: it is dropped then, for what still waits on it hears of the end only by that.
    driver: Option<Driver>,
    served: bool,
    traffic: Arc<Traffic>,
    remote: Remote,
}

type Driver = http1::Connection<TokioIo<Wire>, Full<Bytes>>;

/// How an exchange failed.
pub(super) enum Failed {
    /// The connection was found closed before a byte was written; the request is as it was.
    Unsent(Box<Request<Full<Bytes>>>),
    /// `silent`: not one byte of an answer had come.
    Fault { fault: Fault, silent: bool },
}

impl H1 {
    pub(super) async fn new(wire: Wire, remote: Remote, head: HeadLimits) -> Result<H1, Fault> {
        let traffic = wire.traffic();
        let handshake = http1::Builder::new()
            .allow_obsolete_multiline_headers_in_responses(true) // a must: RFC 9112 section 5.2
            .max_header_size(head.bytes_max)
            .max_buf_size(head.bytes_max.max(BUFFER_MIN))
            .handshake(TokioIo::new(wire));
        let (sender, driver) = handshake
            .await
            .map_err(|error| not_sent(FaultKind::ConnectFailed, Phase::Connect).because(error))?;
        Ok(H1 { sender, driver: Some(driver), served: false, traffic, remote })
    }

    pub(super) fn remote(&self) -> Remote {
        self.remote
    }

    /// Sends the request and waits for the head of the answer.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
        clock: &mut Clock,
    ) -> Result<Response<Incoming>, Failed> {
        let (read, written) = (self.traffic.read(), self.traffic.written());
        let body_len = request.body().size_hint().lower();
        let mut answer = pin!(self.sender.try_send_request(request));
        let driver = &mut self.driver;
        let waited = clock.within(poll_fn(|cx| {
            drive(driver, cx);
            look(|cx| answer.as_mut().poll(cx))
        }));
        let outcome = waited.await;
        let (read, written) = (self.traffic.read() - read, self.traffic.written() - written);
        let processed = if written == 0 { Processed::No } else { Processed::Unknown };
        let at = if written > body_len { Phase::Head } else { Phase::Send };
        let mut error = match outcome {
            Ok(Ok(response)) => {
                self.served = true;
                return Ok(response);
            }
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                let fault = Fault::new(FaultKind::TimedOut, at, processed);
                return Err(Failed::Fault { fault, silent: read == 0 });
            }
        };
        if let (Some(request), 0) = (error.take_message(), written) {
            return Err(Failed::Unsent(Box::new(request)));
        }
        let error = error.into_error();
        let kind = head_fault_kind(&error);
        let mut fault = Fault::new(kind, at, processed).because(error);
        fault.stale_connection =
            self.served && read == 0 && matches!(kind, FaultKind::Reset | FaultKind::Closed);
        Err(Failed::Fault { fault, silent: read == 0 })
    }

    /// The next piece of the body that came on this connection. Trailers say nothing that we use.
    pub(super) fn poll_data(
        &mut self,
        body: &mut Incoming,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            let mut polled = look(|cx| Pin::new(&mut *body).poll_frame(cx));
            if polled.is_pending() {
                drive(&mut self.driver, cx);
                polled = look(|cx| Pin::new(&mut *body).poll_frame(cx));
            }
            match ready!(polled) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Poll::Ready(Some(Ok(data)));
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(body_fault(error)))),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Whether the connection, its body read to the end, can serve another request. Call it once the body is over.
    pub(super) fn is_reusable(&mut self) -> bool {
        // The driver may not have noticed the end yet; and it must forget this task, or the next request on this
        // connection would wake it.
        let _: Poll<()> = look(|cx| {
            drive(&mut self.driver, cx);
            Poll::Pending
        });
        self.driver.is_some() && self.sender.is_ready()
    }
}

/// Moves bytes. The driver's own error comes to the answer or the body as well.
fn drive(driver: &mut Option<Driver>, cx: &mut Context<'_>) {
    if driver.as_mut().is_some_and(|driver| Pin::new(driver).poll(cx).is_ready()) {
        *driver = None;
    }
}

/// Polls without a waker, and outside the runtime's budget, which would need one.
fn look<T>(poll: impl FnMut(&mut Context<'_>) -> Poll<T>) -> Poll<T> {
    pin!(tokio::task::unconstrained(poll_fn(poll))).poll(&mut Context::from_waker(Waker::noop()))
}

impl fmt::Debug for H1 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("H1")
            .field("remote", &self.remote.address)
            .field("served", &self.served)
            .finish_non_exhaustive()
    }
}

/// hyper takes no smaller read buffer.
const BUFFER_MIN: usize = 8192;

/// Bounds on the head of an answer. The number of fields is bounded by hyper's own 100, as Python's `http.client` does it:
/// so many fit on the stack, and a larger bound would cost every answer two allocations.
#[derive(Clone, Copy, Debug)]
pub(super) struct HeadLimits {
    pub(super) bytes_max: usize,
}

fn head_fault_kind(error: &hyper::Error) -> FaultKind {
    if error.is_parse_too_large() {
        FaultKind::HeadTooLarge
    } else if error.is_parse() {
        FaultKind::HeadMalformed
    } else if error.is_user() {
        FaultKind::InvalidRequest
    } else if let Some(error) = io_error(error) {
        match error.kind() {
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
                FaultKind::Reset
            }
            _ => FaultKind::Closed,
        }
    } else {
        FaultKind::Closed
    }
}

/// What a broken body is to be called.
fn body_fault(error: hyper::Error) -> Fault {
    // An unreadable chunk comes as InvalidInput or InvalidData; an end before its time and a reset as what they are.
    let kind = match io_error(&error).map(io::Error::kind) {
        Some(io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => FaultKind::BodyMalformed,
        _ => FaultKind::BodyShort,
    };
    Fault::new(kind, Phase::Body, Processed::Unknown).because(error)
}

fn io_error(error: &hyper::Error) -> Option<&io::Error> {
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref() {
            return Some(io);
        }
        cause = error.source();
    }
    None
}
