//! What the client's tests share: servers that answer raw bytes, certificates, and a request in one line.
#![allow(dead_code)] // each test binary uses its own part

pub(crate) mod exits;

use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use forbear::client::{Client, ClientOptions, Fault, Limits, Request, Response, Target, Way};
use forbear::permit::Permit;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{RootCertStore, ServerConfig};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A listener whose connections run `serve(stream, number)`, from 1. It goes with the test's runtime.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    connections: Arc<AtomicUsize>,
}

impl Server {
    pub(crate) async fn start<F>(serve: impl Fn(TcpStream, usize) -> F + Send + 'static) -> Server
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Server::start_on("127.0.0.1:0", serve).await
    }

    pub(crate) async fn start_on<F>(
        address: &str,
        serve: impl Fn(TcpStream, usize) -> F + Send + 'static,
    ) -> Server
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&connections);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                // Or the last of several small writes would wait for an acknowledgement, and be lost by a reset.
                stream.set_nodelay(true).unwrap();
                tokio::spawn(serve(stream, counted.fetch_add(1, Ordering::SeqCst) + 1));
            }
        });
        Server { address, connections }
    }

    /// Answers every request with the same bytes, then does as `end` says.
    pub(crate) async fn answering(answer: impl Into<Bytes>, end: End) -> Server {
        let answer: Bytes = answer.into();
        Server::start(move |mut stream, _| {
            let answer = answer.clone();
            async move {
                while read_head(&mut stream).await.is_some() {
                    stream.write_all(&answer).await.unwrap();
                    match end {
                        End::Keep => {}
                        End::Close => return,
                        End::Reset => return reset(stream).await,
                        End::Hang => std::future::pending().await,
                    }
                }
            }
        })
        .await
    }

    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn target(&self, path: &str) -> Target {
        Target::parse(&self.url(path)).unwrap()
    }
}

/// What a server does after its answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    Keep,
    Close,
    Reset,
    Hang,
}

/// Lets what was written arrive, then ends the connection by RST.
pub(crate) async fn reset(stream: TcpStream) {
    // A reset throws away what the other side has not read yet; it must have had its turn.
    tokio::time::sleep(Duration::from_millis(30)).await;
    stream.set_zero_linger().unwrap();
}

/// Reads up to the empty line; `None` at the end of the connection.
pub(crate) async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    Some(String::from_utf8(head).unwrap())
}

/// A generous time: it passes only where a test has failed.
pub(crate) const LONG: Duration = Duration::from_secs(20);

pub(crate) async fn get(client: &Client, target: Target) -> Result<Response, Fault> {
    by(client, &Way::Direct, target).await
}

/// The same by a way of its own.
pub(crate) async fn by(client: &Client, way: &Way, target: Target) -> Result<Response, Fault> {
    client.send(&Permit::unmetered(), Request::get(target), way, &Limits::within(LONG)).await
}

/// The whole body, or the fault on the way to it.
pub(crate) async fn fetch(client: &Client, target: Target) -> Result<Bytes, Fault> {
    get(client, target).await?.body.collect(u64::MAX).await
}

pub(crate) fn post(target: Target, body: impl Into<Bytes>) -> Request {
    Request { method: Method::POST, target, headers: HeaderMap::new(), body: body.into() }
}

pub(crate) fn headers(fields: &[(&str, &str)]) -> HeaderMap {
    fields
        .iter()
        .map(|(name, value)| (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap()))
        .collect()
}

/// A certificate authority of the test's own.
pub(crate) struct Authority {
    issuer: rcgen::CertifiedIssuer<'static, rcgen::KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Authority {
        let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().unwrap();
        Authority { issuer: rcgen::CertifiedIssuer::self_signed(params, key).unwrap() }
    }

    pub(crate) fn pem(&self) -> String {
        self.issuer.pem()
    }

    pub(crate) fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        Arc::new(roots)
    }

    /// A server's side of TLS with a certificate for `name`, changed by `change`, offering `alpn`.
    pub(crate) fn server(
        &self,
        name: &str,
        alpn: &[&str],
        change: impl FnOnce(&mut rcgen::CertificateParams),
    ) -> Arc<ServerConfig> {
        let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        change(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let mut config = server_config(rustls::ALL_VERSIONS)
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }

    /// The same for some versions of TLS.
    pub(crate) fn server_of(
        &self,
        name: &str,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Arc<ServerConfig> {
        let key = rcgen::KeyPair::generate().unwrap();
        let params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = server_config(versions)
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], key)
            .unwrap();
        Arc::new(config)
    }

    /// A client that trusts this authority alone.
    pub(crate) fn client(&self) -> Client {
        Client::new(ClientOptions { roots: Some(self.roots()), ..ClientOptions::default() })
    }
}

pub(crate) type Tls = TlsStream<TcpStream>;

/// A server behind TLS. What fails to shake hands is dropped.
pub(crate) async fn tls_server<F>(
    config: Arc<rustls::ServerConfig>,
    serve: impl Fn(Tls, usize) -> F + Clone + Send + Sync + 'static,
) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    let acceptor = TlsAcceptor::from(config);
    Server::start(move |stream, number| {
        let (acceptor, serve) = (acceptor.clone(), serve.clone());
        async move {
            if let Ok(stream) = acceptor.accept(stream).await {
                serve(stream, number).await;
            }
        }
    })
    .await
}

pub(crate) fn https(server: &Server, path: &str) -> Target {
    Target::parse(&format!("https://{}{path}", server.address)).unwrap()
}

pub(crate) async fn hello(mut stream: Tls, _number: usize) {
    while read_head(&mut stream).await.is_some() {
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
    }
}

fn server_config(
    versions: &[&'static rustls::SupportedProtocolVersion],
) -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ServerConfig::builder_with_provider(provider).with_protocol_versions(versions).unwrap()
}
