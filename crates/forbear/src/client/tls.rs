//! TLS: whom to trust, what to offer, and what a failure means.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;

use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::OnceCell;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::dial::not_sent;
use super::fault::{Fault, FaultKind, Phase};
use super::target::Host;
use super::tickets::Tickets;
use super::way::{ExitSession, Way};

const H2: &[u8] = b"h2";
const HTTP_1_1: &[u8] = b"http/1.1";

/// The client's side of TLS. The roots are read when the first `https` target is met, and once: a run over plain HTTP
/// does not pay for them.
#[derive(Debug)]
pub(super) struct Tls {
    offer_h2: bool,
    roots: Option<Arc<RootCertStore>>,
    config: OnceCell<Arc<ClientConfig>>,
    tickets: Arc<Tickets>,
}

/// Whom a handshake is with.
#[derive(Clone, Copy, Debug)]
pub(super) enum Peer<'a> {
    /// The origin, by this way.
    Origin(&'a Way),
    /// The exit itself.
    Exit(&'a Arc<ExitSession>),
}

impl Tls {
    /// `roots` are those to trust instead of the system's.
    pub(super) fn new(offer_h2: bool, roots: Option<Arc<RootCertStore>>) -> Tls {
        Tls { offer_h2, roots, config: OnceCell::new(), tickets: Arc::default() }
    }

    /// Whether a connection may turn out to speak HTTP/2.
    pub(super) fn offers_h2(&self) -> bool {
        self.offer_h2
    }

    pub(super) async fn handshake<S: AsyncRead + AsyncWrite + Unpin>(
        &self,
        stream: S,
        host: &Host,
        peer: Peer<'_>,
    ) -> Result<TlsStream<S>, Fault> {
        let config = Arc::clone(self.config.get_or_try_init(|| self.load()).await?);
        let config = match peer {
            Peer::Origin(Way::Direct) => config,
            Peer::Origin(Way::Exit(session)) => Arc::new(self.of_exit(&config, session)),
            Peer::Exit(session) => {
                let mut config = self.of_exit(&config, session);
                config.alpn_protocols = vec![HTTP_1_1.to_vec()];
                Arc::new(config)
            }
        };
        let name = server_name(host)?;
        TlsConnector::from(config).connect(name, stream).await.map_err(handshake_fault)
    }

    /// Throws away what an exit session could resume.
    pub(super) fn leave(&self, session: u64) {
        self.tickets.leave(session);
    }

    /// The same but for what may be resumed. Next to a handshake the copy costs nothing.
    fn of_exit(&self, config: &ClientConfig, session: &Arc<ExitSession>) -> ClientConfig {
        let mut config = config.clone();
        config.resumption = self.tickets.of(session);
        config
    }

    async fn load(&self) -> Result<Arc<ClientConfig>, Fault> {
        let roots = match &self.roots {
            Some(roots) => Arc::clone(roots),
            None => Arc::new(system_roots().await?),
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| not_sent(FaultKind::NoRoots, Phase::Tls).because(error))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let protocols = if self.offer_h2 { &[H2, HTTP_1_1][..] } else { &[HTTP_1_1] };
        config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
        Ok(Arc::new(config))
    }
}

/// Whether both sides agreed on HTTP/2.
pub(super) fn speaks_h2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(H2)
}

/// The system's roots, or those that `SSL_CERT_FILE` and `SSL_CERT_DIR` name.
async fn system_roots() -> Result<RootCertStore, Fault> {
    let no_roots = |cause: io::Error| not_sent(FaultKind::NoRoots, Phase::Tls).because(cause);
    let found = tokio::task::spawn_blocking(rustls_native_certs::load_native_certs);
    let found = found.await.map_err(|gone| no_roots(io::Error::other(gone)))?;
    let mut roots = RootCertStore::empty();
    let (added, _unreadable) = roots.add_parsable_certificates(found.certs);
    if added == 0 {
        let cause = found.errors.into_iter().next();
        return Err(no_roots(cause.map_or_else(|| io::ErrorKind::NotFound.into(), io::Error::other)));
    }
    Ok(roots)
}

fn server_name(host: &Host) -> Result<ServerName<'static>, Fault> {
    match host {
        Host::Address(IpAddr::V6(v6)) => Ok(ServerName::IpAddress(v6.to_ipv4_mapped().map_or_else(
            || IpAddr::V6(*v6).into(),
            |v4| IpAddr::V4(v4).into(), // certificates name the address, not the wrapping
        ))),
        Host::Address(v4) => Ok(ServerName::IpAddress((*v4).into())),
        Host::Name(name) => ServerName::try_from(String::from(&**name))
            .map_err(|error| not_sent(FaultKind::InvalidRequest, Phase::Tls).because(error)),
    }
}

/// A verdict on the certificate is final; anything else may be the network's doing (V1).
fn handshake_fault(error: io::Error) -> Fault {
    let verdict = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
    let kind = match verdict {
        Some(
            rustls::Error::InvalidCertificate(_)
            | rustls::Error::NoCertificatesPresented
            | rustls::Error::InvalidCertRevocationList(_)
            | rustls::Error::UnsupportedNameType,
        ) => FaultKind::Certificate,
        _ => FaultKind::Handshake,
    };
    not_sent(kind, Phase::Tls).because(error)
}
