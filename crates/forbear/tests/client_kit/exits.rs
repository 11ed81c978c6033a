//! Proxies that do as a test says.

use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use forbear::client::{ExitSession, Fault, Way};
use forbear::exit::ExitUrl;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::TcpStream;

use super::{End, Server, reset};

/// A session of its own.
pub(crate) fn session(exit: &str) -> Arc<ExitSession> {
    Arc::new(ExitSession::new(ExitUrl::parse(exit).unwrap()))
}

pub(crate) fn way(exit: &str) -> Way {
    Way::Exit(session(exit))
}

/// What a proxy does about a request.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    /// What it is for: a tunnel, or passing the request on.
    Serve,
    /// These bytes, and then this.
    Say(Bytes, End),
    /// A tunnel, which brings these bytes and then this.
    OpenThen(Bytes, End),
}

pub(crate) fn say(answer: impl Into<Bytes>, end: End) -> Act {
    Act::Say(answer.into(), end)
}

/// An HTTP proxy: what was asked of it, as it came, and what it does about the nth request.
pub(crate) struct Proxy {
    pub(crate) server: Server,
    heads: Heads,
}

type Heads = Arc<Mutex<Vec<String>>>;
type Script = dyn Fn(&str, usize) -> Act + Send + Sync;

impl Proxy {
    pub(crate) async fn start(script: impl Fn(&str, usize) -> Act + Send + Sync + 'static) -> Proxy {
        Proxy::start_on("127.0.0.1:0", script).await
    }

    pub(crate) async fn start_on(
        address: &str,
        script: impl Fn(&str, usize) -> Act + Send + Sync + 'static,
    ) -> Proxy {
        let script: Arc<Script> = Arc::new(script);
        let heads = Heads::default();
        let kept = Arc::clone(&heads);
        let serve = move |stream, _| proxy(stream, |tcp| tcp, Arc::clone(&script), Arc::clone(&kept));
        Proxy { server: Server::start_on(address, serve).await, heads }
    }

    /// Behind TLS.
    pub(crate) async fn start_tls(
        config: Arc<rustls::ServerConfig>,
        script: impl Fn(&str, usize) -> Act + Send + Sync + 'static,
    ) -> Proxy {
        let script: Arc<Script> = Arc::new(script);
        let heads = Heads::default();
        let kept = Arc::clone(&heads);
        let serve = move |stream, _| {
            proxy(stream, |tls: &super::Tls| tls.get_ref().0, Arc::clone(&script), Arc::clone(&kept))
        };
        Proxy { server: super::tls_server(config, serve).await, heads }
    }

    /// As an exit with these credentials (`user:password@`, or nothing).
    pub(crate) fn url(&self, scheme: &str, credentials: &str) -> String {
        format!("{scheme}://{credentials}{}", self.server.address)
    }

    /// All heads, in the order in which they came.
    pub(crate) fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }
}

async fn proxy<S: AsyncRead + AsyncWrite + Unpin>(
    mut stream: S,
    socket: fn(&S) -> &TcpStream,
    script: Arc<Script>,
    heads: Heads,
) {
    while let Some(head) = super::read_head(&mut stream).await {
        let number = {
            let mut heads = heads.lock().unwrap();
            heads.push(head.clone());
            heads.len()
        };
        let mut words = head.split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap());
        match script(&head, number) {
            Act::Say(answer, end) => {
                let _ = stream.write_all(&answer).await;
                match end {
                    End::Keep => continue,
                    other => return finish(stream, socket, other).await,
                }
            }
            Act::OpenThen(bytes, end) => {
                let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
                let _ = stream.flush().await;
                let _ = stream.read_u8().await; // the origin waits for the client to speak
                let _ = stream.write_all(&bytes).await;
                return finish(stream, socket, end).await;
            }
            Act::Serve if method == "CONNECT" => {
                let mut origin = TcpStream::connect(target).await.unwrap();
                stream.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
                let _ = copy_bidirectional(&mut stream, &mut origin).await;
                return;
            }
            Act::Serve => {
                let rest = target.strip_prefix("http://").unwrap();
                let (authority, path) = rest.split_at(rest.find('/').unwrap());
                let mut origin = TcpStream::connect(authority).await.unwrap();
                let own = |line: &&str| !line.to_ascii_lowercase().starts_with("proxy-");
                let fields: Vec<&str> = head.lines().skip(1).filter(own).collect();
                let passed = format!("{method} {path} HTTP/1.1\r\n{}\r\n", fields.join("\r\n"));
                origin.write_all(passed.as_bytes()).await.unwrap();
                let head = super::read_head(&mut origin).await.unwrap();
                let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
                let mut body = vec![0; length.unwrap().parse().unwrap()];
                origin.read_exact(&mut body).await.unwrap();
                stream.write_all(head.as_bytes()).await.unwrap();
                stream.write_all(&body).await.unwrap();
            }
        }
    }
}

async fn finish<S: AsyncWrite + Unpin>(mut stream: S, socket: fn(&S) -> &TcpStream, end: End) {
    match end {
        End::Keep | End::Close => drop(stream.shutdown().await),
        End::Hang => std::future::pending().await,
        End::Reset => {
            tokio::time::sleep(Duration::from_millis(30)).await; // as in `reset`
            socket(&stream).set_zero_linger().unwrap();
        }
    }
}

/// What a SOCKS 5 proxy was asked.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Asked {
    pub(crate) methods: Vec<u8>,
    pub(crate) user: Vec<u8>,
    pub(crate) password: Vec<u8>,
    pub(crate) kind: u8,
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// What a SOCKS 5 proxy says at each of its three turns; nothing is what it is for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Replies {
    pub(crate) method: Option<Bytes>,
    pub(crate) status: Option<Bytes>,
    pub(crate) reply: Option<Bytes>,
    /// What it does after the last of them.
    pub(crate) then: Option<End>,
}

pub(crate) struct Socks {
    pub(crate) server: Server,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Socks {
    /// `names` leads all names to one address. Authentication is wanted where it is offered.
    pub(crate) async fn start(address: &str, names: Option<Server>, replies: Replies) -> Socks {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&asked);
        let names = Arc::new(names);
        let serve = move |stream, _| {
            let (kept, replies, names) = (Arc::clone(&kept), replies.clone(), Arc::clone(&names));
            async move {
                let mut said = Asked::default();
                let way = socks(stream, &mut said, &names, &replies).await;
                kept.lock().unwrap().push(said);
                if let Some((mut stream, mut origin)) = way {
                    let _ = copy_bidirectional(&mut stream, &mut origin).await;
                }
            }
        };
        Socks { server: Server::start_on(address, serve).await, asked }
    }

    pub(crate) fn url(&self, scheme: &str, credentials: &str) -> String {
        format!("{scheme}://{credentials}{}", self.server.address)
    }

    pub(crate) fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }
}

/// The two ends of a connection that was made; otherwise it has ended as the script says.
async fn socks(
    mut stream: TcpStream,
    said: &mut Asked,
    names: &Option<Server>,
    replies: &Replies,
) -> Option<(TcpStream, TcpStream)> {
    let [_version, count] = take(&mut stream).await?;
    said.methods = vec![0; count.into()];
    stream.read_exact(&mut said.methods).await.ok()?;
    let wanted = if said.methods.contains(&2) { 2 } else { 0 };
    if let Some(bytes) = &replies.method {
        return end(stream, bytes, replies).await;
    }
    stream.write_all(&[5, wanted]).await.ok()?;
    if wanted == 2 {
        let [_version, len] = take(&mut stream).await?;
        said.user = vec![0; len.into()];
        stream.read_exact(&mut said.user).await.ok()?;
        let [len] = take(&mut stream).await?;
        said.password = vec![0; len.into()];
        stream.read_exact(&mut said.password).await.ok()?;
        if let Some(bytes) = &replies.status {
            return end(stream, bytes, replies).await;
        }
        stream.write_all(&[1, 0]).await.ok()?;
    }
    let [_version, _command, _reserved, kind] = take(&mut stream).await?;
    said.kind = kind;
    said.host = match kind {
        1 => std::net::Ipv4Addr::from(take::<4>(&mut stream).await?).to_string(),
        4 => format!("[{}]", std::net::Ipv6Addr::from(take::<16>(&mut stream).await?)),
        _ => {
            let [len] = take(&mut stream).await?;
            let mut name = vec![0; len.into()];
            stream.read_exact(&mut name).await.ok()?;
            String::from_utf8(name).unwrap()
        }
    };
    said.port = u16::from_be_bytes(take(&mut stream).await?);
    if let Some(bytes) = &replies.reply {
        return end(stream, bytes, replies).await;
    }
    let to = match (kind, names) {
        (3, Some(server)) => server.address.to_string(),
        _ => format!("{}:{}", said.host, said.port),
    };
    let origin = TcpStream::connect(to).await.unwrap();
    stream.write_all(&[5, 0, 0, 3, 4]).await.ok()?; // a bound address may be a name
    stream.write_all(b"here\0\0").await.ok()?;
    Some((stream, origin))
}

async fn end(mut stream: TcpStream, bytes: &Bytes, replies: &Replies) -> Option<(TcpStream, TcpStream)> {
    stream.write_all(bytes).await.ok()?;
    match replies.then {
        Some(End::Reset) => reset(stream).await,
        Some(End::Hang) => {
            let _open = stream;
            std::future::pending::<()>().await;
        }
        _ => {}
    }
    None
}

async fn take<const N: usize>(stream: &mut TcpStream) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await.ok()?;
    Some(bytes)
}

/// All that a fault can print: itself and its causes.
pub(crate) fn printed(fault: &Fault) -> String {
    let mut text = format!("{fault} {fault:?}");
    let mut cause = std::error::Error::source(fault);
    while let Some(error) = cause {
        text += &format!(" {error} {error:?}");
        cause = error.source();
    }
    text
}

/// Waits until something holds that happens soon, on another task.
pub(crate) async fn until<F: Future<Output = bool>>(holds: impl Fn() -> F) {
    let patience = tokio::time::timeout(super::LONG, async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    });
    patience.await.expect("it never came true");
}
