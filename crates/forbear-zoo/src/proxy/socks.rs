//! SOCKS5: RFC 1928, with user names and passwords by RFC 1929.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::dial::{self, Tunnel};
use super::{Asked, Behaviour, Form, OwnAnswer, Shared};

/// The first byte of every message but those of RFC 1929.
pub(super) const VERSION: u8 = 5;
/// The version of the sub-negotiation (RFC 1929 section 2).
const LOGIN_VERSION: u8 = 1;
const NO_LOGIN: u8 = 0;
const LOGIN: u8 = 2;
const NO_METHOD: u8 = 0xff;
const CONNECT: u8 = 1;

pub(super) async fn serve(mut stream: TcpStream, number: u64, shared: &Arc<Shared>) {
    // A client that breaks off or talks nonsense has its connection closed.
    let Ok(Some(tunnel)) = greet(&mut stream, number, shared).await else { return };
    if matches!(tunnel, Tunnel::Reset) {
        let _ = stream.set_zero_linger();
    }
    dial::run(tunnel, stream).await;
}

async fn greet(stream: &mut TcpStream, number: u64, shared: &Shared) -> io::Result<Option<Tunnel>> {
    let [_, methods] = read(stream).await?;
    let mut offered = vec![0; methods.into()];
    stream.read_exact(&mut offered).await?;
    let mut login = None;
    if offered.contains(&LOGIN) {
        stream.write_all(&[VERSION, LOGIN]).await?;
        let [version, length] = read(stream).await?;
        let user = take(stream, length).await?;
        let [length] = read(stream).await?;
        let password = take(stream, length).await?;
        if version != LOGIN_VERSION {
            return Ok(None);
        }
        let right =
            shared.options.login.as_ref().is_none_or(|known| *known == (user.clone(), password.clone()));
        login = Some((user, password));
        if right {
            stream.write_all(&[LOGIN_VERSION, 0]).await?;
        } else {
            // The client goes no further, so where it wanted to go stays unknown.
            let _ = shared.judge(asked(number, String::new(), login));
            stream.write_all(&[LOGIN_VERSION, 1]).await?;
            return Ok(None);
        }
    } else if offered.contains(&NO_LOGIN) && shared.options.login.is_none() {
        stream.write_all(&[VERSION, NO_LOGIN]).await?;
    } else {
        let _ = shared.judge(asked(number, String::new(), None));
        stream.write_all(&[VERSION, NO_METHOD]).await?;
        return Ok(None);
    }
    let [version, command, _, kind] = read(stream).await?;
    let host = match kind {
        1 => Ipv4Addr::from(read::<4>(stream).await?).to_string(),
        3 => {
            let [length] = read(stream).await?;
            String::from_utf8_lossy(&take(stream, length).await?).into_owned()
        }
        4 => format!("[{}]", Ipv6Addr::from(read::<16>(stream).await?)),
        _ => return reply(stream, 8).await,
    };
    let origin = format!("{host}:{}", u16::from_be_bytes(read(stream).await?));
    if version != VERSION || command != CONNECT {
        return reply(stream, 7).await;
    }
    let tunnel = match shared.judge(asked(number, origin.clone(), login)) {
        Behaviour::Carry => match dial::dial(&origin, &shared.options).await {
            Ok(origin) => Tunnel::To(origin),
            Err(error) => return reply(stream, code(&error)).await,
        },
        Behaviour::Answer(OwnAnswer { status: 403, .. }) => return reply(stream, 2).await,
        Behaviour::Answer(_) => return reply(stream, 1).await,
        Behaviour::Reply(code) => return reply(stream, code).await,
        Behaviour::ResetBefore => {
            stream.set_zero_linger()?;
            return Ok(None);
        }
        Behaviour::CloseBefore => return Ok(None),
        Behaviour::Stall => {
            tokio::time::sleep(Duration::MAX).await;
            return Ok(None);
        }
        Behaviour::ResetAfter => Tunnel::Reset,
        Behaviour::StallAfter => Tunnel::Swallow,
        Behaviour::OwnPage => Tunnel::OwnPage,
    };
    reply(stream, 0).await?;
    Ok(Some(tunnel))
}

fn asked(connection: u64, origin: String, login: Option<(Vec<u8>, Vec<u8>)>) -> Asked {
    let (user, password) = login.unzip();
    Asked {
        at: Duration::ZERO,
        connection,
        form: Form::Socks,
        method: "CONNECT".to_owned(),
        origin,
        path: String::new(),
        user,
        password,
        behaviour: Behaviour::Carry,
    }
}

/// A reply with an address that nobody looks at.
async fn reply(stream: &mut TcpStream, code: u8) -> io::Result<Option<Tunnel>> {
    stream.write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    Ok(None)
}

fn code(error: &io::Error) -> u8 {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => 5,
        io::ErrorKind::NetworkUnreachable => 3,
        _ => 4,
    }
}

async fn read<const N: usize>(stream: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn take(stream: &mut TcpStream, length: u8) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length.into()];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}
