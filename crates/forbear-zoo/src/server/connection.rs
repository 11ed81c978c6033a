//! One connection: from a request to its answer, with the faults that need the socket.

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::{AUTHORIZATION, CONTENT_LENGTH, HeaderName, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::time::Sleep;

use super::Shared;
use crate::answer::{Account, Answer, Facts, Fault, Verdict};

/// What the pieces of one connection share. HTTP/1.1 answers one request after the other, so one place is enough.
#[derive(Debug)]
pub(super) struct Connection {
    shared: Arc<Shared>,
    client: IpAddr,
    number: u64,
    current: Mutex<Option<Current>>,
    /// The connection is to end in a reset.
    reset: AtomicBool,
}

/// A request that is not answered yet.
#[derive(Debug)]
struct Current {
    method: Method,
    path: String,
    account: Option<Account>,
    answer: Answer,
    index: Option<usize>,
    finished: bool,
}

impl Connection {
    pub(super) fn new(shared: Arc<Shared>, client: IpAddr, number: u64) -> Connection {
        Connection { shared, client, number, current: Mutex::new(None), reset: AtomicBool::new(false) }
    }

    pub(super) async fn answer(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> Result<Response<AnswerBody>, CutOff> {
        let (head, mut body) = request.into_parts();
        let path = head.uri.path_and_query().map_or("/", |path| path.as_str()).to_owned();
        let account = account(&head.headers);
        let facts = Facts { method: head.method.as_str(), path: &path, account, client: self.client };
        let (answer, index) = self.shared.arrive(&facts, self.number);
        let current =
            Current { method: head.method, path, account, answer: answer.clone(), index, finished: false };
        *self.current.lock().unwrap_or_else(PoisonError::into_inner) = Some(current);

        while let Some(frame) = body.frame().await {
            frame.map_err(|_| CutOff)?; // the client gave up in the middle of its own request
        }
        let latency = self.shared.options.latency + answer.latency;
        if !latency.is_zero() {
            tokio::time::sleep(latency).await;
        }
        if answer.verdict == Verdict::Fault(Fault::Reset) {
            self.reset.store(true, Ordering::Relaxed);
            return Err(CutOff);
        }
        let response = Arc::clone(&self).respond(answer);
        self.shared.answered(index);
        Ok(response)
    }

    fn respond(self: Arc<Self>, answer: Answer) -> Response<AnswerBody> {
        let text = match answer.verdict {
            Verdict::Served => self.shared.body.clone(),
            Verdict::Refused => Bytes::from_static(b"too many requests\n"),
            Verdict::Fault(Fault::ErrorPage) => Bytes::from_static(b"something broke\n"),
            // Long enough to have two halves.
            Verdict::Fault(_) if self.shared.body.len() < 2 => Bytes::from_static(b"half and half"),
            Verdict::Fault(_) => self.shared.body.clone(),
        };
        let data = answer.body.unwrap_or(text);
        let length = data.len() as u64;
        let step = match answer.verdict {
            Verdict::Fault(Fault::Truncated) => Step::Half(After::CutOff),
            Verdict::Fault(Fault::Stall(time)) => Step::Half(After::Stall(time)),
            _ => Step::Whole,
        };
        let mut response = Response::new(AnswerBody { data, length, step, connection: self });
        *response.status_mut() =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_LENGTH, length.into());
        for (name, value) in &answer.headers {
            // A hand-written limiter may say what no header can hold; such a one is left out.
            let name = HeaderName::from_bytes(name.as_bytes());
            let value = HeaderValue::from_bytes(value.as_bytes());
            if let (Ok(name), Ok(value)) = (name, value) {
                headers.append(name, value);
            }
        }
        response
    }

    /// The body of the current answer has been handed over to its last byte.
    fn finish(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Current { method, path, account, answer, index, finished }) = &mut *current else { return };
        if !std::mem::replace(finished, true) {
            let facts = Facts { method: method.as_str(), path, account: *account, client: self.client };
            self.shared.finished(&facts, answer, *index);
        }
    }

    /// All that had been handed over has been written to the socket.
    pub(super) fn flushed(&self) {
        let mut current = self.current.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Current { index, .. }) = current.take_if(|current| current.finished) {
            self.shared.sent(index, true);
        }
    }

    /// The connection is gone, and with it the answer that was under way, if any.
    pub(super) fn cut_off(&self) {
        self.finish();
        let current = self.current.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Current { index, .. }) = current {
            self.shared.sent(index, false);
        }
    }

    pub(super) fn is_reset(&self) -> bool {
        self.reset.load(Ordering::Relaxed)
    }
}

/// Who asks: `Authorization`, else the usual API key headers.
fn account(headers: &http::HeaderMap) -> Option<Account> {
    let names = [AUTHORIZATION, HeaderName::from_static("x-api-key"), HeaderName::from_static("api-key")];
    let value = names.iter().find_map(|name| headers.get(name))?;
    Some(Account(crate::rng::hash(value.as_bytes())))
}

/// Bytes handed over at once: small, so that a long answer stays in flight until nearly all of it has left.
const FRAME: usize = 16 * 1024;

/// The body of an answer, which tells its connection when its last byte has been handed over.
#[derive(Debug)]
pub(super) struct AnswerBody {
    data: Bytes,
    length: u64,
    step: Step,
    connection: Arc<Connection>,
}

#[derive(Debug)]
enum Step {
    Whole,
    Half(After),
    /// Gives way once, so that the first half is written before the connection ends.
    Yield,
    Stalled(Pin<Box<Sleep>>),
    CutOff,
    Done,
}

#[derive(Clone, Copy, Debug)]
enum After {
    CutOff,
    Stall(Duration),
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = CutOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, CutOff>>> {
        loop {
            match &mut self.step {
                Step::Whole => {
                    if self.data.len() > FRAME {
                        let data = self.data.split_to(FRAME);
                        return Poll::Ready(Some(Ok(Frame::data(data))));
                    }
                    self.step = Step::Done;
                    let data = std::mem::take(&mut self.data);
                    self.connection.finish();
                    return Poll::Ready(if data.is_empty() { None } else { Some(Ok(Frame::data(data))) });
                }
                Step::Half(after) => {
                    let after = *after;
                    let half = self.data.len() / 2;
                    let data = self.data.split_to(half);
                    self.step = match after {
                        After::CutOff => Step::Yield,
                        After::Stall(time) => Step::Stalled(Box::pin(tokio::time::sleep(time))),
                    };
                    return Poll::Ready(Some(Ok(Frame::data(data))));
                }
                Step::Yield => {
                    self.step = Step::CutOff;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Step::Stalled(sleep) => {
                    std::task::ready!(sleep.as_mut().poll(cx));
                    self.step = Step::Whole;
                }
                Step::CutOff => return Poll::Ready(Some(Err(CutOff))),
                Step::Done => return Poll::Ready(None),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.step, Step::Done) || self.length == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.data.len() as u64)
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        // HEAD and 204 never poll the body: what they have to say is said with the head.
        if matches!(self.step, Step::Whole) {
            self.connection.finish();
        }
    }
}

/// A connection ends before its answer does.
#[derive(Debug)]
pub(super) struct CutOff;

impl fmt::Display for CutOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("cut off on purpose")
    }
}

impl std::error::Error for CutOff {}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    use super::super::{Counts, ServerOptions, State};
    use super::*;
    use crate::limiter::Limiter;
    use crate::log::Log;

    struct Departures(Arc<AtomicU32>);

    impl Limiter for Departures {
        fn arrive(&mut self, _now: Duration, _request: &Facts<'_>) -> Answer {
            Answer::ok()
        }

        fn depart(&mut self, _now: Duration, _request: &Facts<'_>, _answer: &Answer) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A connection whose one request has just arrived.
    fn busy() -> (Connection, Arc<AtomicU32>) {
        let departures = Arc::new(AtomicU32::new(0));
        let limiter = Box::new(Departures(Arc::clone(&departures)));
        let shared = Arc::new(Shared {
            start: Instant::now(),
            options: ServerOptions::default(),
            body: Bytes::new(),
            state: Mutex::new(State { limiter, log: Log::default(), counts: Counts::default() }),
        });
        let connection = Connection::new(shared, IpAddr::from([127, 0, 0, 1]), 1);
        let (answer, index) = connection.shared.arrive(&Facts::get("/"), 1);
        let (method, path) = (Method::GET, "/".to_owned());
        let current = Current { method, path, account: None, answer, index, finished: false };
        *connection.current.lock().unwrap() = Some(current);
        (connection, departures)
    }

    fn check(steps: &[fn(&Connection)], delivered: bool) {
        let (connection, departures) = busy();
        steps.iter().for_each(|step| step(&connection));
        let state = connection.shared.lock();
        assert_eq!((departures.load(Ordering::Relaxed), state.counts.in_flight), (1, 0));
        assert_eq!((state.log.hits()[0].delivered, state.log.hits()[0].sent.is_some()), (delivered, true));
    }

    #[test]
    fn a_request_departs_once_whatever_follows() {
        check(&[Connection::finish, Connection::flushed], true);
        check(&[Connection::flushed, Connection::finish, Connection::flushed, Connection::cut_off], true);
        check(&[Connection::finish, Connection::cut_off, Connection::flushed], false);
        check(&[Connection::cut_off, Connection::cut_off], false);
    }
}
