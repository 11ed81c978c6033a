//! From a host to an open connection: name, address, socket.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::address::{self, Hop};
use super::fault::{Fault, FaultKind, Phase, Processed};
use super::target::Host;

/// Look-ups at a time. Each holds a thread of the runtime's blocking pool (512) until the system's resolver answers,
/// and others need that pool too.
const LOOKUPS_MAX: usize = 128;

/// An address that has others behind it in the line gets at most this long, so a black hole in front of a good address
/// costs some seconds, not the attempt.
const ADDRESS_TRY_MAX: Duration = Duration::from_secs(5);

/// Opens sockets.
#[derive(Debug)]
pub(super) struct Dialer {
    pub(super) public_only: bool,
    lookups: Arc<Semaphore>,
}

impl Dialer {
    pub(super) fn new(public_only: bool) -> Dialer {
        Dialer { public_only, lookups: Arc::new(Semaphore::new(LOOKUPS_MAX)) }
    }

    /// The addresses of a host, whatever they are.
    pub(super) async fn addresses(&self, host: &Host, port: u16) -> Result<Vec<SocketAddr>, Fault> {
        match host {
            Host::Address(address) => Ok(vec![SocketAddr::new(*address, port)]),
            Host::Name(name) => self.look_up(name, port).await,
        }
    }

    /// The addresses of a host, only those that may be reached.
    pub(super) async fn resolve(&self, host: &Host, port: u16, hop: Hop) -> Result<Vec<SocketAddr>, Fault> {
        let all = self.addresses(host, port).await?;
        let first = all.first().map(SocketAddr::ip);
        let mut usable = all;
        usable.retain(|address| address::allowed(address.ip(), self.public_only, hop));
        match (usable.is_empty(), first) {
            (false, _) => Ok(usable),
            (true, Some(address)) => Err(not_sent(FaultKind::AddressForbidden { address }, Phase::Resolve)),
            (true, None) => Err(not_sent(FaultKind::NameNotFound, Phase::Resolve)),
        }
    }

    /// Tries the addresses in turn. The last error is told, for it is the freshest.
    pub(super) async fn connect(
        &self,
        addresses: &[SocketAddr],
        deadline: Instant,
    ) -> Result<TcpStream, Fault> {
        let mut fault = not_sent(FaultKind::ConnectFailed, Phase::Connect);
        for (tried, address) in addresses.iter().enumerate() {
            let now = Instant::now();
            let left = (addresses.len() - tried) as u32;
            let until = match left {
                1 => deadline,
                _ => now + (deadline.saturating_duration_since(now) / left).min(ADDRESS_TRY_MAX),
            };
            match timeout_at(until, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => {
                    // Heads and small bodies leave at once. That it fails (a socket reset already) shows soon enough.
                    let _ = stream.set_nodelay(true);
                    return Ok(stream);
                }
                Ok(Err(error)) => fault = connect_fault(error),
                Err(_elapsed) => fault = not_sent(FaultKind::TimedOut, Phase::Connect),
            }
        }
        Err(fault)
    }

    async fn look_up(&self, name: &str, port: u16) -> Result<Vec<SocketAddr>, Fault> {
        let failed =
            |error: io::Error| not_sent(lookup_kind(&error.to_string()), Phase::Resolve).because(error);
        let slot = Arc::clone(&self.lookups).acquire_owned().await;
        let name = name.to_owned();
        let lookup = tokio::task::spawn_blocking(move || {
            let _held_until_the_resolver_answers = slot;
            (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>)
        });
        match lookup.await {
            Ok(found) => found.map_err(failed),
            Err(gone) => Err(failed(io::Error::other(gone))),
        }
    }
}

/// Where a connection leads.
#[derive(Clone, Copy, Debug)]
pub(super) struct Remote {
    /// What was connected to: the origin, or the exit.
    pub(super) address: SocketAddr,
    /// The origin's own address, where it is known.
    pub(super) origin: Option<IpAddr>,
}

/// Whether the request may go to where a connection leads. What is not known is not judged.
pub(super) fn may_reach(dialer: &Dialer, origin: Option<IpAddr>, hop: Hop) -> Result<(), Fault> {
    match origin.filter(|&address| !address::allowed(address, dialer.public_only, hop)) {
        None => Ok(()),
        Some(address) => Err(not_sent(FaultKind::AddressForbidden { address }, Phase::Connect)),
    }
}

/// The address that a host has without a look-up: its own, or that of a name that leads nowhere else
/// ([RFC 6761 section 6.3](https://www.rfc-editor.org/rfc/rfc6761#section-6.3)).
pub(super) fn known_address(host: &Host) -> Option<IpAddr> {
    match host {
        Host::Address(address) => Some(*address),
        Host::Name(name) => {
            let is_local = &**name == "localhost" || name.ends_with(".localhost");
            is_local.then_some(IpAddr::V4(Ipv4Addr::LOCALHOST))
        }
    }
}

/// A fault from before anything was written.
pub(super) fn not_sent(kind: FaultKind, at: Phase) -> Fault {
    Fault::new(kind, at, Processed::No)
}

fn connect_fault(error: io::Error) -> Fault {
    let kind = match error.kind() {
        io::ErrorKind::ConnectionRefused => FaultKind::ConnectRefused,
        io::ErrorKind::HostUnreachable
        | io::ErrorKind::NetworkUnreachable
        | io::ErrorKind::AddrNotAvailable => FaultKind::Unreachable,
        io::ErrorKind::ConnectionReset => FaultKind::Reset,
        io::ErrorKind::TimedOut => FaultKind::TimedOut,
        _ => FaultKind::ConnectFailed,
    };
    not_sent(kind, Phase::Connect).because(error)
}

/// The standard library gives `getaddrinfo`'s verdict as text only: `EAI_NONAME` and `EAI_NODATA` of glibc, musl and
/// Apple. Everything else, `EAI_AGAIN` above all, may be better next time.
fn lookup_kind(text: &str) -> FaultKind {
    const NO_SUCH_NAME: [&str; 4] = [
        "Name or service not known",
        "No address associated with hostname",
        "Name does not resolve",
        "nodename nor servname provided",
    ];
    match NO_SUCH_NAME.iter().any(|known| text.contains(known)) {
        true => FaultKind::NameNotFound,
        false => FaultKind::ResolverFailed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_does_not_exist_is_told_from_a_resolver_that_fails() {
        for (text, kind) in [
            ("failed to lookup address information: Name or service not known", FaultKind::NameNotFound),
            (
                "failed to lookup address information: No address associated with hostname",
                FaultKind::NameNotFound,
            ),
            ("failed to lookup address information: Name does not resolve", FaultKind::NameNotFound),
            (
                "failed to lookup address information: Temporary failure in name resolution",
                FaultKind::ResolverFailed,
            ),
            ("failed to lookup address information: Try again", FaultKind::ResolverFailed),
            (
                "failed to lookup address information: Non-recoverable failure in name resolution",
                FaultKind::ResolverFailed,
            ),
            ("too many open files", FaultKind::ResolverFailed),
        ] {
            assert_eq!(lookup_kind(text), kind, "{text}");
        }
    }

    #[tokio::test]
    async fn a_dead_address_in_front_of_a_good_one_is_passed_over() {
        let dead = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let refusing = dead.local_addr().unwrap();
        drop(dead);
        let good = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = good.local_addr().unwrap();
        let dialer = Dialer::new(false);
        let deadline = Instant::now() + Duration::from_secs(10);
        let stream = dialer.connect(&[refusing, address], deadline).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), address);
        assert_eq!(dialer.connect(&[refusing], deadline).await.unwrap_err().kind, FaultKind::ConnectRefused);
    }
}
