//! A thin real forward proxy: absolute-form HTTP, `CONNECT` and SOCKS5 on one port, with faults to order.
//!
//! It dials out from the address that it listens on, so a server that counts by client address sees proxies on 127.0.0.2,
//! 127.0.0.3, ... as different clients, and one that is asked past them sees 127.0.0.1.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};

mod carry;
mod dial;
mod socks;
mod wire;

/// How a proxy listens and whom it lets in.
#[derive(Clone, Debug)]
pub struct ProxyOptions {
    /// The address to listen on and to dial out from. Default 127.0.0.2; any 127.0.0.0/8 address is another exit.
    pub bind: IpAddr,
    /// The port. Default 0: a free one.
    pub port: u16,
    /// The one user name and password that it lets in, as bytes; everyone else gets a 407, or is turned down by SOCKS.
    /// Default none: it lets everyone in, and writes down the credentials that they bring.
    pub login: Option<(Vec<u8>, Vec<u8>)>,
    /// Names that it resolves by itself, as `host` or `host:port`. Default none; others are left to the system.
    pub names: BTreeMap<String, SocketAddr>,
    /// Closes a connection of a client without a word after so many answers, `CONNECT` not counted. Default never.
    pub answers_per_connection: Option<u32>,
    /// The most requests that the log holds; later ones are carried all the same. Default a million.
    pub asked_max: usize,
}

impl Default for ProxyOptions {
    fn default() -> ProxyOptions {
        ProxyOptions {
            bind: IpAddr::from([127, 0, 0, 2]),
            port: 0,
            login: None,
            names: BTreeMap::new(),
            answers_per_connection: None,
            asked_max: 1_000_000,
        }
    }
}

impl ProxyOptions {
    /// The default, on 127.0.0.`last`.
    #[must_use]
    pub fn at(last: u8) -> ProxyOptions {
        ProxyOptions { bind: IpAddr::from([127, 0, 0, last]), ..ProxyOptions::default() }
    }

    /// The same, for one user.
    #[must_use]
    pub fn login(self, user: impl Into<Vec<u8>>, password: impl Into<Vec<u8>>) -> ProxyOptions {
        ProxyOptions { login: Some((user.into(), password.into())), ..self }
    }

    /// The same, with a name that only this proxy knows.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>, at: SocketAddr) -> ProxyOptions {
        self.names.insert(name.into(), at);
        self
    }
}

/// How a request came to a proxy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Form {
    /// `GET http://host/path`: one request, carried for the client (RFC 9112 section 3.2.2).
    Absolute,
    /// `CONNECT host:port`: a tunnel (RFC 9110 section 9.3.6).
    Connect,
    /// A SOCKS5 `CONNECT` (RFC 1928): a tunnel.
    Socks,
}

/// One request to a proxy, as it came.
#[derive(Clone, Debug)]
pub struct Asked {
    /// When, counted from the start of the proxy.
    pub at: Duration,
    /// The client's connection, counted from 1 in the order of acceptance.
    pub connection: u64,
    /// How it came.
    pub form: Form,
    /// The method; `CONNECT` for every tunnel.
    pub method: String,
    /// `host:port` of the origin that it is for.
    pub origin: String,
    /// Path and query; empty for a tunnel.
    pub path: String,
    /// The user name that it brought, byte for byte.
    pub user: Option<Vec<u8>>,
    /// The password that it brought, byte for byte.
    pub password: Option<Vec<u8>>,
    /// What the proxy did; [`Behaviour::Carry`] while that is being decided.
    pub behaviour: Behaviour,
}

impl Asked {
    /// The user name, for proxies whose users are sessions.
    #[must_use]
    pub fn user_text(&self) -> String {
        String::from_utf8_lossy(self.user.as_deref().unwrap_or_default()).into_owned()
    }
}

/// What a proxy does with one request.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub enum Behaviour {
    /// Its work.
    #[default]
    Carry,
    /// An answer of its own, and no way to the origin.
    Answer(OwnAnswer),
    /// A SOCKS reply other than 0 (RFC 1928 section 6). To the other forms it is a 502.
    Reply(u8),
    /// A reset before any answer, and before anything was sent to the origin.
    ResetBefore,
    /// A reset once the tunnel stands and the client has spoken into it; without a tunnel, once the origin has answered.
    ResetAfter,
    /// The same as [`Behaviour::ResetBefore`], with an orderly end in place of the reset.
    CloseBefore,
    /// No word, ever.
    Stall,
    /// A tunnel that swallows everything and gives nothing back. Without a tunnel it is [`Behaviour::Stall`].
    StallAfter,
    /// 200, or a tunnel that was granted, with a page of its own in place of the origin's bytes; then the end of the
    /// connection.
    OwnPage,
}

impl Behaviour {
    /// An answer of its own with this status.
    #[must_use]
    pub fn status(status: u16) -> Behaviour {
        Behaviour::Answer(OwnAnswer { status, headers: Vec::new(), close: false })
    }

    /// The same with one more header, if it is an answer of its own.
    #[must_use]
    pub fn header(mut self, name: &'static str, value: impl Into<String>) -> Behaviour {
        if let Behaviour::Answer(answer) = &mut self {
            answer.headers.push((name, value.into()));
        }
        self
    }

    /// The same with the end of the connection after it, if it is an answer of its own.
    #[must_use]
    pub fn closing(mut self) -> Behaviour {
        if let Behaviour::Answer(answer) = &mut self {
            answer.close = true;
        }
        self
    }
}

/// An answer that a proxy gives by itself. To a SOCKS client, whose login is judged before it says where it wants to go, it is
/// reply 2 for a 403, else reply 1.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct OwnAnswer {
    /// The status. A 2xx to `CONNECT` would be a tunnel: use [`Behaviour::OwnPage`].
    pub status: u16,
    /// Headers, such as `Retry-After`. A 407 gets its `Proxy-Authenticate` by itself.
    pub headers: Vec<(&'static str, String)>,
    /// Whether the connection ends with it, which its head says.
    pub close: bool,
}

/// The text of every page that a proxy writes by itself.
pub const OWN_PAGE: &str = "<html><title>proxy</title>this page is the proxy's own</html>\n";

/// A running proxy. It runs on the runtime that started it, and ends with [`Proxy::stop`] or when it is dropped.
///
/// ```
/// use forbear_zoo::proxy::{Behaviour, Proxy, ProxyOptions};
///
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let proxy = Proxy::start(ProxyOptions::at(5).login("me", "p@ss")).await?;
/// proxy.behave(|asked| match asked.origin.as_str() {
///     "busy.example:443" => Behaviour::status(429).header("retry-after", "3"),
///     _ => Behaviour::Carry,
/// });
/// println!("curl -x {} http://127.0.0.1:8000/", proxy.url("http", "me:p%40ss"));
/// assert!(proxy.stop().await.is_empty());
/// # Ok::<(), std::io::Error>(())
/// # })?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    open: watch::Sender<Phase>,
    accepting: JoinHandle<()>,
}

/// What the loop that accepts connections is to do.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Phase {
    Open,
    Shut,
    Over,
}

impl Proxy {
    /// Starts one that carries everything.
    ///
    /// # Errors
    /// If the address cannot be bound.
    pub async fn start(options: ProxyOptions) -> io::Result<Proxy> {
        let listener = TcpListener::bind((options.bind, options.port)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            start: Instant::now(),
            options,
            state: Mutex::new(State { asked: Vec::new(), count: 0, behave: Box::new(|_| Behaviour::Carry) }),
        });
        let (open, phase) = watch::channel(Phase::Open);
        let accepting = tokio::spawn(accept(listener, addr, Arc::clone(&shared), phase));
        Ok(Proxy { addr, shared, open, accepting })
    }

    /// From now on it does what `behave` says, also on connections that stand. A wrong login comes before it.
    pub fn behave(&self, behave: impl FnMut(&Asked) -> Behaviour + Send + 'static) {
        self.shared.lock().behave = Box::new(behave);
    }

    /// Ends every connection and refuses new ones, until [`Proxy::reopen`].
    pub fn shut(&self) {
        let _ = self.open.send(Phase::Shut);
    }

    /// Listens again.
    pub fn reopen(&self) {
        let _ = self.open.send(Phase::Open);
    }

    /// Ends everything, and returns the log once nothing runs any more.
    pub async fn stop(mut self) -> Vec<Asked> {
        let _ = self.open.send(Phase::Over);
        let _ = (&mut self.accepting).await;
        std::mem::take(&mut self.shared.lock().asked)
    }

    /// Where it listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Its URL in a scheme, with `user:password` as it is given, or without where that is empty.
    #[must_use]
    pub fn url(&self, scheme: &str, login: &str) -> String {
        let at = if login.is_empty() { "" } else { "@" };
        format!("{scheme}://{login}{at}{}", self.addr)
    }

    /// The time on the log's clock.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.shared.start.elapsed()
    }

    /// A copy of the log so far, in the order of arrival.
    #[must_use]
    pub fn asked(&self) -> Vec<Asked> {
        self.shared.lock().asked.clone()
    }

    /// How many requests came so far, those included that the log had no room for.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.shared.lock().count
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort(); // and with it every connection, which it owns
    }
}

/// What all connections share.
#[derive(Debug)]
struct Shared {
    start: Instant,
    options: ProxyOptions,
    state: Mutex<State>,
}

struct State {
    asked: Vec<Asked>,
    count: u64,
    behave: Box<dyn FnMut(&Asked) -> Behaviour + Send>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // A closure of a test may panic; the log is still worth reading.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides, and writes it down.
    fn judge(&self, mut asked: Asked) -> Behaviour {
        let mut state = self.lock();
        asked.at = self.start.elapsed(); // under the lock, so that the log is in order
        asked.behaviour = if self.lets_in(&asked) { (state.behave)(&asked) } else { Behaviour::status(407) };
        let behaviour = asked.behaviour.clone();
        state.count += 1;
        if state.asked.len() < self.options.asked_max {
            state.asked.push(asked);
        }
        behaviour
    }

    fn lets_in(&self, asked: &Asked) -> bool {
        let Some((user, password)) = &self.options.login else { return true };
        asked.user.as_ref() == Some(user) && asked.password.as_ref() == Some(password)
    }
}

async fn accept(
    listener: TcpListener,
    addr: SocketAddr,
    shared: Arc<Shared>,
    mut phase: watch::Receiver<Phase>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        let now = *phase.borrow_and_update();
        match (now, &listener) {
            (Phase::Over, _) => break,
            (Phase::Shut, Some(_)) => {
                listener = None;
                connections.shutdown().await;
            }
            // Another process may hold the port by now; it is tried again below.
            (Phase::Open, None) => listener = TcpListener::bind(addr).await.ok(),
            _ => {}
        }
        tokio::select! {
            changed = phase.changed() => if changed.is_err() { break },
            accepted = next(listener.as_ref()) => {
                // Out of descriptors, or the client has left already: the next one may do better.
                let Ok((stream, _)) = accepted else {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                    continue;
                };
                number += 1;
                connections.spawn(serve(stream, number, Arc::clone(&shared)));
            }
            Some(_) = connections.join_next() => {}
            () = tokio::time::sleep(Duration::from_millis(20)), if now == Phase::Open && listener.is_none() => {}
        }
    }
    drop(listener);
    connections.shutdown().await;
}

async fn next(listener: Option<&TcpListener>) -> io::Result<(TcpStream, SocketAddr)> {
    match listener {
        Some(listener) => listener.accept().await,
        None => std::future::pending().await,
    }
}

/// The first byte tells the protocol: a SOCKS5 client begins with its version, an HTTP client with a letter.
async fn serve(stream: TcpStream, number: u64, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let mut first = [0];
    match stream.peek(&mut first).await {
        Ok(0) | Err(_) => {} // it left without a word
        Ok(_) if first == [socks::VERSION] => socks::serve(stream, number, &shared).await,
        Ok(_) => carry::serve(stream, number, shared).await,
    }
}
