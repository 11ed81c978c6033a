//! A thin real HTTP/1.1 server around a limiter.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use bytes::Bytes;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

use crate::answer::{Answer, Facts};
use crate::limiter::Limiter;
use crate::log::{Hit, Log};
use crate::spec::Spec;

mod connection;
mod wire;

use connection::Connection;
use wire::Wire;

/// How a server listens and answers.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The address to listen on. Default 127.0.0.1; any 127.0.0.0/8 address is another host on the same machine.
    pub bind: IpAddr,
    /// The port. Default 0: a free one.
    pub port: u16,
    /// Bytes in the body of a served request. Default 2.
    pub body_size: usize,
    /// How long every answer is in the making, refusals too. Default none.
    pub latency: Duration,
    /// The most hits that the log holds. Default a million.
    pub hits_max: usize,
}

impl Default for ServerOptions {
    fn default() -> ServerOptions {
        ServerOptions {
            bind: IpAddr::V4(Ipv4Addr::LOCALHOST),
            port: 0,
            body_size: 2,
            latency: Duration::ZERO,
            hits_max: 1_000_000,
        }
    }
}

/// A running server. It runs on the runtime that started it, and ends with [`Server::stop`] or when it is dropped.
///
/// ```
/// use forbear_zoo::{Hint, Rate, Server, ServerOptions, Spec};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let spec = Spec::token_bucket(Rate::per_second(5), 10).hint(Hint::Seconds);
/// let server = Server::start(spec, ServerOptions::default()).await?;
/// println!("curl -i {}", server.url("/hello"));
/// let log = server.stop().await;
/// assert_eq!(log.hits().len(), 0);
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    stop: watch::Sender<()>,
    accepting: JoinHandle<()>,
}

/// How many hits of each kind there were, for a live display.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Requests that arrived.
    pub hits: u64,
    /// Let through.
    pub served: u64,
    /// Refused by a limit.
    pub refused: u64,
    /// Broken on purpose.
    pub faults: u64,
    /// In flight right now.
    pub in_flight: u32,
}

impl Server {
    /// Starts a server that behaves as `spec` says.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(spec: Spec, options: ServerOptions) -> io::Result<Server> {
        let epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Server::start_with(spec.build(epoch), options).await
    }

    /// Starts a server in front of which any limiter stands; a closure is one.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start_with(limiter: impl Limiter + 'static, options: ServerOptions) -> io::Result<Server> {
        let listener = TcpListener::bind((options.bind, options.port)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            start: Instant::now(),
            body: Bytes::from(vec![b'x'; options.body_size]),
            state: Mutex::new(State {
                limiter: Box::new(limiter),
                log: Log::default(),
                counts: Counts::default(),
            }),
            options,
        });
        let (stop, stopped) = watch::channel(());
        let accepting = tokio::spawn(accept(listener, Arc::clone(&shared), stopped));
        Ok(Server { addr, shared, stop, accepting })
    }

    /// Stops listening, ends every connection, and returns the log once nothing runs any more. What was in flight is cut off.
    pub async fn stop(mut self) -> Log {
        let _ = self.stop.send(());
        let _ = (&mut self.accepting).await;
        std::mem::take(&mut self.shared.lock().log)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The URL of a path (which begins with `/`) on this server.
    #[must_use]
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// The time on the log's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// A copy of the log so far. An answer that a client has just read may not be marked as sent yet.
    #[must_use]
    pub fn log(&self) -> Log {
        self.shared.lock().log.clone()
    }

    /// The counts so far; cheap at any size of the log.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.shared.lock().counts
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort(); // and with it every connection, which it owns
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>, mut stopped: watch::Receiver<()>) {
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        tokio::select! {
            _ = stopped.changed() => break,
            accepted = listener.accept() => {
                // Out of descriptors, or the client has left already: the next one may do better.
                let Ok((stream, peer)) = accepted else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                number += 1;
                connections.spawn(serve(stream, peer, number, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn serve(stream: TcpStream, peer: SocketAddr, number: u64, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let connection = Arc::new(Connection::new(shared, peer.ip(), number));
    let wire = Wire::new(stream, Arc::clone(&connection));
    let service = service_fn(|request| Arc::clone(&connection).answer(request));
    // A client that resets, or a fault of ours, ends it with an error: that is in the log already.
    let _ = http1::Builder::new().serve_connection(wire, service).await;
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    start: Instant,
    options: ServerOptions,
    body: Bytes,
    state: Mutex<State>,
}

struct State {
    limiter: Box<dyn Limiter>,
    log: Log,
    counts: Counts,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("counts", &self.counts).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A limiter of a test may panic; its log is still worth reading.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the limiter judge a request, and writes it down.
    fn arrive(&self, request: &Facts<'_>, connection: u64) -> (Answer, Option<usize>) {
        let mut state = self.lock();
        let state = &mut *state;
        let at = self.start.elapsed(); // under the lock, so that the limiter's time never goes back
        let answer = state.limiter.arrive(at, request);
        let hit = Hit {
            at,
            method: request.method.to_owned(),
            path: request.path.to_owned(),
            account: request.account,
            client: request.client,
            connection,
            verdict: answer.verdict,
            status: answer.status,
            told: answer.told,
            wait: answer.wait,
            in_flight: state.counts.in_flight,
            answered: None,
            finished: None,
            sent: None,
            delivered: false,
            scopes: answer.scopes.clone(),
            refused_by: answer.refused_by,
        };
        state.counts.add(&answer);
        let index = state.log.push(hit, self.options.hits_max);
        (answer, index)
    }

    /// The answer is about to be written.
    fn answered(&self, index: Option<usize>) {
        let mut state = self.lock();
        let now = self.start.elapsed();
        if let Some(hit) = index.and_then(|index| state.log.hit_mut(index)) {
            hit.answered = Some(now);
        }
    }

    /// The last byte of the answer is about to be written, or never will be: from here on the client may send its next
    /// request, so the slot of this one must be free.
    fn finished(&self, request: &Facts<'_>, answer: &Answer, index: Option<usize>) {
        let mut state = self.lock();
        let now = self.start.elapsed();
        state.limiter.depart(now, request, answer);
        state.counts.in_flight = state.counts.in_flight.saturating_sub(1);
        if let Some(hit) = index.and_then(|index| state.log.hit_mut(index)) {
            hit.finished = Some(now);
        }
    }

    /// The answer has been written, or its connection is gone.
    fn sent(&self, index: Option<usize>, delivered: bool) {
        let mut state = self.lock();
        let now = self.start.elapsed();
        if let Some(hit) = index.and_then(|index| state.log.hit_mut(index)) {
            hit.sent = Some(now);
            hit.delivered = delivered;
        }
    }
}

impl Counts {
    fn add(&mut self, answer: &Answer) {
        use crate::answer::Verdict;
        self.hits += 1;
        self.in_flight += 1;
        match answer.verdict {
            Verdict::Served => self.served += 1,
            Verdict::Refused => self.refused += 1,
            Verdict::Fault(_) => self.faults += 1,
        }
    }
}
