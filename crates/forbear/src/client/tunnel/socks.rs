//! SOCKS 5 ([RFC 1928]), with user name and password ([RFC 1929]) where there are any.
//!
//! [RFC 1928]: https://www.rfc-editor.org/rfc/rfc1928
//! [RFC 1929]: https://www.rfc-editor.org/rfc/rfc1929

use std::io;
use std::net::IpAddr;

use forbear_core::{exit::of_socks_reply, outcome::ExitFault};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::super::dial::not_sent;
use super::super::fault::{Fault, FaultKind, Phase};
use super::super::target::{Host, Target};
use super::connect::broken_off;

/// Where the exit is to connect to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Destination<'a> {
    /// A name that the exit looks up.
    Name(&'a str),
    Address(IpAddr),
}

impl Destination<'_> {
    pub(super) fn of(target: &Target) -> Destination<'_> {
        match target.host() {
            Host::Name(name) => Destination::Name(name),
            Host::Address(address) => Destination::Address(*address),
        }
    }
}

const VERSION: u8 = 5;
const NO_AUTHENTICATION: u8 = 0;
const USER_AND_PASSWORD: u8 = 2;
const NONE_ACCEPTABLE: u8 = 0xff;
const CONNECT: u8 = 1;
const IPV4: u8 = 1;
const NAME: u8 = 3;
const IPV6: u8 = 4;

/// Asks for a connection to `to`. The exit says which of the offered ways to authenticate it wants; both are offered where
/// there are credentials, as everybody does it.
///
/// Not a byte is read beyond the reply: what follows is the origin's.
///
/// # Errors
/// What the exit did. Faults without a word on the exit are the exit's own failing.
pub(super) async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    to: Destination<'_>,
    port: u16,
    credentials: Option<(&[u8], &[u8])>,
) -> Result<(), Fault> {
    let rejected = || not_sent(FaultKind::SocksAuth, Phase::Tunnel).by_exit(ExitFault::Rejected);
    let malformed = || not_sent(FaultKind::SocksMalformed, Phase::Tunnel);

    let offer: &[u8] = match credentials {
        None => &[VERSION, 1, NO_AUTHENTICATION],
        Some(_) => &[VERSION, 2, NO_AUTHENTICATION, USER_AND_PASSWORD],
    };
    send(stream, offer).await?;
    let [version, method] = receive(stream).await?;
    match (version, method, credentials) {
        (VERSION, NO_AUTHENTICATION, _) => {}
        (VERSION, USER_AND_PASSWORD, Some((user, password))) => {
            // Neither has more than 255 bytes: an exit that has cannot be read (`exit::ExitUrl`).
            let len = |part: &[u8]| u8::try_from(part.len()).map_err(|_| rejected());
            let subnegotiation = [&[1, len(user)?][..], user, &[len(password)?][..], password].concat();
            send(stream, &subnegotiation).await?;
            let [_version, status] = receive(stream).await?; // some send 5 for the version, and mean it well
            if status != 0 {
                return Err(rejected());
            }
        }
        (VERSION, NONE_ACCEPTABLE | USER_AND_PASSWORD, _) => return Err(rejected()),
        _ => return Err(malformed()),
    }

    let mut request = vec![VERSION, CONNECT, 0];
    match to {
        Destination::Name(name) => {
            request.push(NAME);
            request.push(
                u8::try_from(name.len()).map_err(|_| not_sent(FaultKind::InvalidRequest, Phase::Tunnel))?,
            );
            request.extend_from_slice(name.as_bytes());
        }
        Destination::Address(address) => match address.to_canonical() {
            IpAddr::V4(v4) => {
                request.push(IPV4);
                request.extend_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                request.push(IPV6);
                request.extend_from_slice(&v6.octets());
            }
        },
    }
    request.extend_from_slice(&port.to_be_bytes());
    send(stream, &request).await?;

    let [version, reply] = receive(stream).await?;
    if version != VERSION {
        return Err(malformed());
    }
    if reply != 0 {
        // The rest of a refusal is of no use, and some leave it out.
        let fault = not_sent(FaultKind::SocksReply { reply }, Phase::Tunnel);
        return Err(fault.by_exit(of_socks_reply(reply)));
    }
    let [_reserved, kind] = receive(stream).await?;
    let address_len = match kind {
        IPV4 => 4,
        IPV6 => 16,
        NAME => {
            let [len] = receive(stream).await?;
            usize::from(len)
        }
        _ => return Err(malformed()),
    };
    let mut bound = [0; 255 + 2]; // where the exit connects from
    stream.read_exact(&mut bound[..address_len + 2]).await.map_err(broken_off)?;
    Ok(())
}

/// Whether another address of the same origin may fare better.
pub(super) fn is_about_the_address(fault: &Fault) -> bool {
    matches!(fault.kind, FaultKind::SocksReply { reply: 1 | 3..=6 | 8 })
}

async fn send(stream: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> Result<(), Fault> {
    stream.write_all(bytes).await.map_err(broken_off)
}

async fn receive<const N: usize>(stream: &mut (impl AsyncRead + Unpin)) -> Result<[u8; N], Fault> {
    let mut bytes = [0; N];
    let read: io::Result<usize> = stream.read_exact(&mut bytes).await;
    read.map_err(broken_off)?;
    Ok(bytes)
}
