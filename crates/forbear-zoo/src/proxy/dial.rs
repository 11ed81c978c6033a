//! The way from a proxy to an origin, and the bytes of a tunnel.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};
use tokio::net::{TcpSocket, TcpStream};

use super::{OWN_PAGE, ProxyOptions};

/// How long a connection to an origin may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Dials `origin` (`host:port`) from the proxy's own address.
pub(super) async fn dial(origin: &str, options: &ProxyOptions) -> io::Result<TcpStream> {
    let to = resolve(origin, options).await?;
    let socket = if to.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // An IPv6 origin cannot see an IPv4 exit's address.
    if to.is_ipv4() == options.bind.is_ipv4() {
        socket.bind(SocketAddr::new(options.bind, 0))?;
    }
    let stream = tokio::time::timeout(PATIENCE, socket.connect(to)).await??;
    stream.set_nodelay(true)?;
    Ok(stream)
}

async fn resolve(origin: &str, options: &ProxyOptions) -> io::Result<SocketAddr> {
    let host = origin.rsplit_once(':').map_or(origin, |(host, _)| host);
    if let Some(known) = options.names.get(origin).or_else(|| options.names.get(host)) {
        return Ok(*known);
    }
    let mut found: Vec<SocketAddr> = tokio::net::lookup_host(origin).await?.collect();
    found.sort_by_key(|addr| addr.is_ipv4() != options.bind.is_ipv4());
    found.first().copied().ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// What goes on in a tunnel that has been granted.
#[derive(Debug)]
pub(super) enum Tunnel {
    /// Bytes go both ways.
    To(TcpStream),
    /// Ends in a reset as soon as the client speaks.
    Reset,
    /// Takes everything and says nothing.
    Swallow,
    /// A page of the proxy's own, then the end.
    OwnPage,
}

/// Runs it to its end. `stream` is dropped with it; whoever made it decides how the socket ends.
pub(super) async fn run(tunnel: Tunnel, mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    // A side that breaks off is the end of a tunnel, not an error of the proxy's.
    match tunnel {
        Tunnel::To(mut origin) => drop(copy_bidirectional(&mut stream, &mut origin).await),
        Tunnel::Reset => drop(stream.read(&mut [0]).await),
        Tunnel::Swallow => drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await),
        Tunnel::OwnPage => {
            let page = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{OWN_PAGE}", OWN_PAGE.len());
            if stream.write_all(page.as_bytes()).await.is_ok() && stream.shutdown().await.is_ok() {
                // What the client still says is read, or the page would be lost to a reset.
                drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
            }
        }
    }
}
