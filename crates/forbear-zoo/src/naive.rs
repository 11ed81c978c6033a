//! A client that does it wrong: each worker retries for itself. What tests and the demo measure against.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::header::{AUTHORIZATION, HOST, RETRY_AFTER};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

/// When a worker tries again after a failure. No worker knows of another.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Retry {
    /// Always after the same time.
    Every(Duration),
    /// `base`, twice that, and so on up to `cap`; without jitter, as most loops are written.
    Exponential {
        /// The first wait.
        base: Duration,
        /// The longest.
        cap: Duration,
    },
    /// As long as this answer's `Retry-After` says in seconds, else this time.
    AsTold {
        /// Where there is none.
        otherwise: Duration,
    },
}

/// How the naive client goes about its work.
#[derive(Clone, Debug)]
pub struct NaiveOptions {
    /// Workers, each with a connection of its own. Default 50.
    pub workers: usize,
    /// Default [`Retry::Every`] 2 s.
    pub retry: Retry,
    /// Attempts at one path before it counts as failed. Default 1000.
    pub attempts_max: u32,
    /// One attempt, all of it. Default 10 s.
    pub timeout: Duration,
    /// The value of `Authorization`, if any. Default none.
    pub authorization: Option<String>,
}

impl Default for NaiveOptions {
    fn default() -> NaiveOptions {
        NaiveOptions {
            workers: 50,
            retry: Retry::Every(Duration::from_secs(2)),
            attempts_max: 1000,
            timeout: Duration::from_secs(10),
            authorization: None,
        }
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct NaiveReport {
    /// Requests sent.
    pub sent: u64,
    /// Answered with 429 or 503.
    pub refused: u64,
    /// Other failures: another status from 400 up, a broken connection or body, a time-out.
    pub faults: u64,
    /// Paths that were got.
    pub done: u64,
    /// Paths given up.
    pub failed: u64,
    /// From the first request to the last answer.
    pub took: Duration,
}

/// Gets every one of `paths` from `addr`. Its workers take the next path as soon as they are done with one, and keep at a path
/// that fails until it is got or `attempts_max` is used up.
///
/// # Cancel safety
/// Dropping the future ends every worker; what they had counted is lost.
pub async fn run(addr: SocketAddr, paths: Vec<String>, options: NaiveOptions) -> NaiveReport {
    let start = Instant::now();
    let paths: Arc<[String]> = paths.into();
    let next = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for _ in 0..options.workers.clamp(1, paths.len().max(1)) {
        let worker = Worker { addr, options: options.clone(), sender: None, report: NaiveReport::default() };
        workers.spawn(worker.work(Arc::clone(&paths), Arc::clone(&next)));
    }
    let mut total = NaiveReport::default();
    while let Some(joined) = workers.join_next().await {
        let Ok(report) = joined else { continue };
        total.sent += report.sent;
        total.refused += report.refused;
        total.faults += report.faults;
        total.done += report.done;
        total.failed += report.failed;
    }
    total.took = start.elapsed();
    total
}

struct Worker {
    addr: SocketAddr,
    options: NaiveOptions,
    sender: Option<SendRequest<Empty<Bytes>>>,
    report: NaiveReport,
}

/// One answer, read to its end.
struct Reply {
    status: StatusCode,
    told: Option<Duration>,
}

impl Worker {
    async fn work(mut self, paths: Arc<[String]>, next: Arc<AtomicUsize>) -> NaiveReport {
        while let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) {
            match self.get(path).await {
                true => self.report.done += 1,
                false => self.report.failed += 1,
            }
        }
        self.report
    }

    async fn get(&mut self, path: &str) -> bool {
        for attempt in 0..self.options.attempts_max {
            self.report.sent += 1;
            let timeout = self.options.timeout;
            let reply = match tokio::time::timeout(timeout, self.attempt(path)).await {
                Ok(Ok(reply)) => Some(reply),
                Ok(Err(_)) | Err(_) => {
                    self.sender = None; // whatever it was, the connection is of no more use
                    None
                }
            };
            match &reply {
                Some(reply) if reply.status.as_u16() < 400 => return true,
                Some(reply) if [429, 503].contains(&reply.status.as_u16()) => self.report.refused += 1,
                _ => self.report.faults += 1,
            }
            if attempt + 1 < self.options.attempts_max {
                tokio::time::sleep(self.wait(attempt, reply.and_then(|reply| reply.told))).await;
            }
        }
        false
    }

    async fn attempt(&mut self, path: &str) -> io::Result<Reply> {
        let kept = match self.sender.take() {
            Some(mut sender) => sender.ready().await.is_ok().then_some(sender),
            None => None,
        };
        let mut sender = match kept {
            Some(sender) => sender,
            None => self.connect().await?,
        };
        let mut request = Request::get(path).header(HOST, self.addr.to_string());
        if let Some(authorization) = &self.options.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let request = request.body(Empty::new()).map_err(io::Error::other)?;
        let mut response = sender.send_request(request).await.map_err(io::Error::other)?;
        while let Some(frame) = response.frame().await {
            frame.map_err(io::Error::other)?;
        }
        self.sender = Some(sender);
        let told = response.headers().get(RETRY_AFTER).and_then(|value| value.to_str().ok()?.parse().ok());
        Ok(Reply { status: response.status(), told: told.map(Duration::from_secs) })
    }

    async fn connect(&self) -> io::Result<SendRequest<Empty<Bytes>>> {
        let stream = TcpStream::connect(self.addr).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
        tokio::spawn(connection); // ends with the sender
        Ok(sender)
    }

    fn wait(&self, attempt: u32, told: Option<Duration>) -> Duration {
        match self.options.retry {
            Retry::Every(wait) => wait,
            Retry::Exponential { base, cap } => base.saturating_mul(2u32.saturating_pow(attempt)).min(cap),
            Retry::AsTold { otherwise } => told.unwrap_or(otherwise),
        }
    }
}
