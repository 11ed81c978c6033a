//! The bare loop: N keep-alive connections to one host, each sending its next GET as soon as the last body has ended.
//!
//! It reads no list, keeps no record and knows no limit: what is left is what the HTTP client itself costs. It runs until
//! it is ended; whoever measures it counts at the server and in the process table, as for every other contestant.
//!
//! `forbear-bench-peer HOST:PORT CONNECTIONS [PROXY_HOST:PORT]`

use std::error::Error;

use bytes::Bytes;
use http_body_util::{BodyExt as _, Empty};
use hyper::Request;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

type Failure = Box<dyn Error + Send + Sync>;

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (host, connections, proxy) = match &args[..] {
        [host, connections] => (host, connections, None),
        [host, connections, proxy] => (host, connections, Some(proxy)),
        _ => return Err("HOST:PORT CONNECTIONS [PROXY_HOST:PORT]".into()),
    };
    let connections: u64 = connections.parse()?;
    // A proxy is told the whole URL (RFC 9112 section 3.2.2), a server the path alone.
    let base = if proxy.is_some() { format!("http://{host}") } else { String::new() };
    let mut running = tokio::task::JoinSet::new();
    for first in 0..connections {
        let (to, base) = (proxy.unwrap_or(host).clone(), base.clone());
        running.spawn(one_connection(to, host.clone(), base, first, connections));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Pages `first`, `first + step`, ... of `host` without end over one connection to `to`.
async fn one_connection(
    to: String,
    host: String,
    base: String,
    first: u64,
    step: u64,
) -> Result<(), Failure> {
    let stream = TcpStream::connect(&to).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for page in (first..).step_by(usize::try_from(step)?) {
        sender.ready().await?;
        let request =
            Request::get(format!("{base}/p/{page}")).header("host", &host).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        if !response.status().is_success() {
            return Err(format!("page {page}: {}", response.status()).into());
        }
        response.into_body().collect().await?;
    }
    Ok(())
}
