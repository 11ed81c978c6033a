//! Connections: where the server is, TLS, and the thread that serves the sockets.

use std::{collections::HashMap, io, path::PathBuf, sync::Arc, time::Duration};

use parking_lot::Mutex;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use tokio::{runtime::Handle, sync::oneshot};
use tokio_postgres::{
    Client, Config, Error, NoTls, Row, Statement,
    config::{Host, SslMode},
    types::ToSql,
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::failure::{is_lost, is_refused};
use crate::queue::{address::PostgresAddress, error::QueueError};

/// A server that does not answer is given up, and tried again by whoever must have it.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection on which nothing is acknowledged for so long is dead: well before a lease is over.
const SILENCE: Duration = Duration::from_secs(10);
/// A transaction of ours that we left open, as by a partition, is ended by the server.
const LEFT_OPEN_MS: u32 = 120_000;

/// A parameter of a statement.
pub(crate) type Value<'a> = &'a (dyn ToSql + Sync);

/// A PostgreSQL, and a thread that drives the connections to it. Clones share both.
#[derive(Clone)]
pub(crate) struct Server {
    inner: Arc<Inner>,
}

struct Inner {
    config: Config,
    tls: Option<MakeRustlsConnect>,
    handle: Handle,
    /// Dropped with the last clone: the thread ends.
    _alive: oneshot::Sender<()>,
    shown: PathBuf,
}

impl Server {
    /// Reads the address and starts the thread. Nothing is connected yet. `shown` names the job in errors.
    pub(crate) fn new(address: &PostgresAddress, shown: PathBuf) -> Result<Server, QueueError> {
        let (mut config, check) =
            parse(&address.url).ok_or_else(|| QueueError::Address { at: shown.clone() })?;
        config.connect_timeout(CONNECT_TIMEOUT);
        config.tcp_user_timeout(SILENCE).keepalives_idle(SILENCE / 2);
        if config.get_application_name().is_none() {
            config.application_name("forbear");
        }
        let tls = match config.get_ssl_mode() {
            SslMode::Disable => None,
            _ => Some(tls(&check).map_err(|source| QueueError::Io { path: shown.clone(), source })?),
        };
        let io = |source| QueueError::Io { path: shown.clone(), source };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(io)?;
        let handle = runtime.handle().clone();
        let (alive, ended) = oneshot::channel::<()>();
        std::thread::Builder::new()
            .name("forbear-postgres".into())
            .spawn(move || {
                let _ = runtime.block_on(ended);
            })
            .map_err(io)?;
        Ok(Server { inner: Arc::new(Inner { config, tls, handle, _alive: alive, shown }) })
    }

    /// The runtime of the connections.
    pub(crate) fn handle(&self) -> &Handle {
        &self.inner.handle
    }

    /// The job's name in errors.
    pub(crate) fn shown(&self) -> &PathBuf {
        &self.inner.shown
    }

    /// Waits on a thread that is nobody's worker.
    pub(crate) fn block<T: Send, W: Future<Output = T>>(&self, work: impl FnOnce() -> W + Send) -> T {
        std::thread::scope(|scope| match scope.spawn(|| self.inner.handle.block_on(work())).join() {
            Ok(value) => value,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    }

    /// A new connection, which looks into `schema`.
    pub(crate) async fn connect(&self, schema: Option<&str>) -> Result<Db, Error> {
        let config = &self.inner.config;
        let client = match &self.inner.tls {
            None => {
                let (client, connection) = config.connect(NoTls).await?;
                self.inner.handle.spawn(connection);
                client
            }
            Some(tls) => {
                let (client, connection) = config.connect(tls.clone()).await?;
                self.inner.handle.spawn(connection);
                client
            }
        };
        // One plan for each statement, whatever the statistics say: all of them are made for their index, and a table is
        // empty when its first plan is made and has a hundred million rows an hour later. By the index's order, too: whoever
        // takes the first of many must not collect and sort them all, as by a bitmap.
        let mut settings = format!(
            "SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET jit = off;
             SET idle_in_transaction_session_timeout = {LEFT_OPEN_MS}; SET client_min_messages = warning;"
        );
        if let Some(schema) = schema {
            settings.push_str(&format!("SET search_path = {schema};"));
        }
        client.batch_execute(&settings).await?;
        Ok(Db { client, statements: Mutex::default() })
    }

    /// An error as one of ours: a server that cannot be reached is told apart, for it may come back.
    pub(crate) fn error(&self, source: Error) -> QueueError {
        let at = self.inner.shown.clone();
        if is_lost(&source) || is_refused(&source) {
            QueueError::Unreachable { at, host: self.host(), source }
        } else {
            QueueError::Postgres { at, source }
        }
    }

    /// Host and port, for whoever has to look there.
    fn host(&self) -> String {
        let config = &self.inner.config;
        let host = match config.get_hosts().first() {
            Some(Host::Tcp(host)) => host.clone(),
            #[cfg(unix)]
            Some(Host::Unix(path)) => path.display().to_string(),
            _ => config.get_hostaddrs().first().map_or_else(|| "localhost".into(), ToString::to_string),
        };
        format!("{host}:{}", config.get_ports().first().unwrap_or(&5432))
    }
}

/// One connection with its statements, each prepared once.
pub(crate) struct Db {
    client: Client,
    statements: Mutex<HashMap<&'static str, Statement>>,
}

impl Db {
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    async fn statement(&self, sql: &'static str) -> Result<Statement, Error> {
        let known = self.statements.lock().get(sql).cloned();
        if let Some(statement) = known {
            return Ok(statement);
        }
        let statement = self.client.prepare(sql).await?;
        self.statements.lock().insert(sql, statement.clone());
        Ok(statement)
    }

    pub(crate) async fn query(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Vec<Row>, Error> {
        self.client.query(&self.statement(sql).await?, values).await
    }

    pub(crate) async fn one(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Row, Error> {
        self.client.query_one(&self.statement(sql).await?, values).await
    }

    pub(crate) async fn maybe(&self, sql: &'static str, values: &[Value<'_>]) -> Result<Option<Row>, Error> {
        self.client.query_opt(&self.statement(sql).await?, values).await
    }

    pub(crate) async fn execute(&self, sql: &'static str, values: &[Value<'_>]) -> Result<u64, Error> {
        self.client.execute(&self.statement(sql).await?, values).await
    }

    pub(crate) async fn batch(&self, sql: &str) -> Result<(), Error> {
        self.client.batch_execute(sql).await
    }

    /// Runs `work` in one transaction, and takes it back where that fails.
    pub(crate) async fn transaction<T, E: From<Error>>(
        &self,
        work: impl AsyncFnOnce(&Db) -> Result<T, E>,
    ) -> Result<T, E> {
        self.batch("BEGIN").await?;
        match work(self).await {
            Ok(value) => {
                self.batch("COMMIT").await?;
                Ok(value)
            }
            Err(error) => {
                let _ = self.batch("ROLLBACK").await;
                Err(error)
            }
        }
    }
}

/// What is asked of the server's certificate: libpq's words.
struct Check {
    chain: bool,
    name: bool,
    roots: Option<PathBuf>,
}

/// The address, with the words of libpq that the client does not know: `sslmode=allow`, `verify-ca`, `verify-full`, and
/// `sslrootcert`.
fn parse(url: &str) -> Option<(Config, Check)> {
    let (place, query) = url.split_once('?').unwrap_or((url, ""));
    if !matches!(place.split_once("://")?.0, "postgres" | "postgresql") {
        return None;
    }
    let mut check = Check { chain: false, name: false, roots: None };
    let mut kept = Vec::new();
    for word in query.split('&').filter(|word| !word.is_empty()) {
        match word.split_once('=')? {
            ("sslmode", mode) => {
                let mode = match mode {
                    // Ours is the client that begins: to try without and then with is to try with.
                    "allow" => "prefer",
                    "verify-ca" | "verify-full" => {
                        (check.chain, check.name) = (true, mode == "verify-full");
                        "require"
                    }
                    other => other,
                };
                kept.push(format!("sslmode={mode}"));
            }
            ("sslrootcert", path) => {
                let path = percent(path)?;
                check.roots = (path != "system").then(|| path.into());
            }
            _ => kept.push(word.to_owned()),
        }
    }
    let config = format!("{place}?{}", kept.join("&")).parse().ok()?;
    Some((config, check))
}

/// Whether it can be read as an address.
pub(crate) fn is_address(url: &str) -> bool {
    parse(url).is_some()
}

fn percent(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first == b'%' {
            let (digits, after) = rest.split_at_checked(2)?;
            bytes.push(u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?);
            rest = after;
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

fn tls(check: &Check) -> io::Result<MakeRustlsConnect> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let other = |error: TlsError| io::Error::other(error);
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(other)?;
    if check.name {
        return Ok(MakeRustlsConnect::new(
            builder.with_root_certificates(roots(check)?).with_no_client_auth(),
        ));
    }
    let chain = if check.chain {
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots(check)?), provider.clone());
        Some(verifier.build().map_err(io::Error::other)?)
    } else {
        None
    };
    let lenient = Arc::new(Lenient { chain, provider });
    Ok(MakeRustlsConnect::new(
        builder.dangerous().with_custom_certificate_verifier(lenient).with_no_client_auth(),
    ))
}

/// The certificates that are believed: those that were named, else the system's.
fn roots(check: &Check) -> io::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match &check.roots {
        Some(path) => {
            let name = |error: &dyn std::fmt::Display| {
                io::Error::other(format!("sslrootcert={}: {error}", path.display()))
            };
            for certificate in CertificateDer::pem_file_iter(path).map_err(|e| name(&e))? {
                roots.add(certificate.map_err(|e| name(&e))?).map_err(|e| name(&e))?;
            }
        }
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}

/// `sslmode=require` encrypts and asks nothing of the certificate, `verify-ca` does not ask for its name: so does libpq.
#[derive(Debug)]
struct Lenient {
    chain: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        use rustls::CertificateError::{NotValidForName, NotValidForNameContext};
        let Some(chain) = &self.chain else { return Ok(ServerCertVerified::assertion()) };
        match chain.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
            Err(TlsError::InvalidCertificate(NotValidForName | NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_libpq_are_known() {
        for (query, mode, chain, name) in [
            ("", SslMode::Prefer, false, false),
            ("?sslmode=disable", SslMode::Disable, false, false),
            ("?sslmode=allow", SslMode::Prefer, false, false),
            ("?sslmode=require", SslMode::Require, false, false),
            ("?sslmode=verify-ca&sslrootcert=%2Fetc%2Fca.pem", SslMode::Require, true, false),
            ("?connect_timeout=3&sslmode=verify-full&sslrootcert=system", SslMode::Require, true, true),
        ] {
            let (config, check) = parse(&format!("postgres://u:p%40w@h:5433/db{query}")).expect(query);
            assert_eq!((config.get_ssl_mode(), check.chain, check.name), (mode, chain, name), "{query}");
            assert_eq!(config.get_password(), Some(&b"p@w"[..]));
            let file = query.contains("ca.pem").then(|| PathBuf::from("/etc/ca.pem"));
            assert_eq!(check.roots, file);
        }
        for bad in ["mysql://h/db", "postgres://h/db?sslmode=maybe", "h/db", "postgres://h/db?sslmode"] {
            assert!(parse(bad).is_none(), "{bad}");
        }
    }
}
