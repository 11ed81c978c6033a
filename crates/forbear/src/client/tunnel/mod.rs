//! The way to an origin that lies behind an exit: to the exit, and through it.
//!
//! `CONNECT` and SOCKS 5 are spoken here and not by a library, for two reasons. User names and passwords are bytes, and go
//! out as they are. And each failure must say whose it is, the exit's or the origin's (E1), which takes the answer itself:
//! its status and fields, the reply's number, how far it had come. Libraries give one error for all of that.
//!
//! Until the way is open every failure is the exit's: [`ExitFault::Silent`] where the time was over, else
//! [`ExitFault::Broken`] unless it said something better. From then on nothing is.

mod connect;
mod socks;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use forbear_core::outcome::ExitFault;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::address::Hop;
use super::clock::Clock;
use super::dial::{Dialer, Remote, known_address, may_reach, not_sent};
use super::fault::{Fault, FaultKind, Phase};
use super::target::{Scheme, Target};
use super::tls::{Peer, Tls};
use super::way::{ExitSession, forwards};
use crate::exit::ExitScheme;
use socks::Destination;

/// Addresses of one origin that are tried through SOCKS, each over a connection of its own.
const ADDRESSES_MAX: usize = 4;

/// An open way: to the origin, or to an HTTP proxy that will forward a request without a tunnel.
pub(super) struct Reached {
    pub(super) link: Link,
    pub(super) remote: Remote,
    /// The exit promised data of its own behind its 2xx to `CONNECT`. If what comes is not TLS, it is that.
    pub(super) doubtful: bool,
}

/// The stream up to the exit, or to the origin where there is none.
pub(super) enum Link {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// What it takes to go by one exit.
pub(super) struct Guide<'a> {
    pub(super) session: &'a Arc<ExitSession>,
    pub(super) dialer: &'a Dialer,
    pub(super) tls: &'a Tls,
    pub(super) head_bytes_max: usize,
}

impl Guide<'_> {
    /// Opens a way for one target.
    pub(super) async fn reach(&self, target: &Target, hop: Hop, clock: &mut Clock) -> Result<Reached, Fault> {
        if self.session.exit().scheme() == ExitScheme::Socks5 {
            return self.by_address(target, hop, clock).await;
        }
        let origin = known_address(target.host());
        may_reach(self.dialer, origin, hop)?;
        let (stream, address) = self.to_exit(clock).await?;
        let remote = Remote { address, origin };
        if !forwards(self.session) {
            let link =
                Link::Plain(self.through_socks(stream, Destination::of(target), target.port(), clock).await?);
            return Ok(Reached { link, remote, doubtful: false });
        }
        let mut link = match self.session.exit().scheme() {
            ExitScheme::Https => Link::Tls(Box::new(self.encrypt(stream, clock).await?)),
            _ => Link::Plain(stream),
        };
        let mut doubtful = false;
        if target.scheme() == Scheme::Https {
            doubtful = match &mut link {
                Link::Plain(stream) => self.through_connect(stream, target, clock).await?,
                Link::Tls(stream) => self.through_connect(stream, target, clock).await?,
            };
        }
        Ok(Reached { link, remote, doubtful })
    }

    /// Looks the name up here, and asks for its addresses in turn: the exit may have no way to the first.
    async fn by_address(&self, target: &Target, hop: Hop, clock: &mut Clock) -> Result<Reached, Fault> {
        let lookup = self.dialer.resolve(target.host(), target.port(), hop);
        let late = |_| not_sent(FaultKind::TimedOut, Phase::Resolve);
        let addresses = spread(clock.within(lookup).await.map_err(late)??);
        let mut fault = not_sent(FaultKind::NameNotFound, Phase::Resolve);
        for origin in addresses.into_iter().take(ADDRESSES_MAX) {
            let (stream, address) = self.to_exit(clock).await?;
            match self.through_socks(stream, Destination::Address(origin), target.port(), clock).await {
                Ok(stream) => {
                    let remote = Remote { address, origin: Some(origin) };
                    return Ok(Reached { link: Link::Plain(stream), remote, doubtful: false });
                }
                Err(refused) if socks::is_about_the_address(&refused) => fault = refused,
                Err(refused) => return Err(refused),
            }
        }
        Err(fault)
    }

    /// A connection to the exit itself. Its address is not judged: somebody chose it.
    async fn to_exit(&self, clock: &mut Clock) -> Result<(TcpStream, SocketAddr), Fault> {
        let exit = self.session.exit();
        let deadline = clock.deadline();
        let open = async {
            let addresses = self.dialer.addresses(exit.host(), exit.port()).await?;
            let stream = self.dialer.connect(&addresses, deadline).await?;
            let address = stream
                .peer_addr()
                .map_err(|error| not_sent(FaultKind::ConnectFailed, Phase::Exit).because(error))?;
            Ok((stream, address))
        };
        in_time(clock, Phase::Exit, open).await
    }

    async fn encrypt(&self, stream: TcpStream, clock: &mut Clock) -> Result<TlsStream<TcpStream>, Fault> {
        let handshake = self.tls.handshake(stream, self.session.exit().host(), Peer::Exit(self.session));
        in_time(clock, Phase::Exit, handshake).await
    }

    async fn through_connect(
        &self,
        stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
        target: &Target,
        clock: &mut Clock,
    ) -> Result<bool, Fault> {
        let (to, authorization) = (target.host_and_port(), self.session.authorization());
        let open = connect::open(stream, &to, authorization, self.head_bytes_max);
        in_time(clock, Phase::Tunnel, open).await
    }

    async fn through_socks(
        &self,
        mut stream: TcpStream,
        to: Destination<'_>,
        port: u16,
        clock: &mut Clock,
    ) -> Result<TcpStream, Fault> {
        let credentials = self.session.exit().credentials();
        in_time(clock, Phase::Tunnel, socks::open(&mut stream, to, port, credentials)).await?;
        Ok(stream)
    }
}

/// Waits until the deadline. Whatever fails in this phase is the exit's, but for what this machine lacks itself.
async fn in_time<T>(
    clock: &mut Clock,
    at: Phase,
    step: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let late = |_| not_sent(FaultKind::TimedOut, at);
    clock.within(step).await.map_err(late).flatten().map_err(|mut fault| {
        fault.at = at;
        let exit = match (fault.exit, fault.kind) {
            (Some(told), _) => told,
            (None, FaultKind::NoRoots) => return fault,
            (None, FaultKind::TimedOut) => ExitFault::Silent,
            (None, _) => ExitFault::Broken,
        };
        fault.by_exit(exit)
    })
}

/// The first of each family in front: what the exit has no way to may be all of the first family.
fn spread(addresses: Vec<SocketAddr>) -> Vec<IpAddr> {
    let mut spread: Vec<IpAddr> = addresses.iter().map(SocketAddr::ip).collect();
    if let Some(other) = spread.iter().position(|ip| ip.is_ipv4() != spread[0].is_ipv4()) {
        spread[1..=other].rotate_right(1);
    }
    spread
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e6_both_families_are_among_the_first_addresses() {
        for (given, expected) in [
            (
                &["::1", "::2", "::3", "1.1.1.1", "2.2.2.2"][..],
                &["::1", "1.1.1.1", "::2", "::3", "2.2.2.2"][..],
            ),
            (&["1.1.1.1", "::1"], &["1.1.1.1", "::1"]),
            (&["1.1.1.1", "2.2.2.2"], &["1.1.1.1", "2.2.2.2"]),
            (&[], &[]),
        ] {
            let addresses = given.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 1)).collect();
            let spread: Vec<String> = spread(addresses).iter().map(ToString::to_string).collect();
            assert_eq!(spread, expected);
        }
    }
}
