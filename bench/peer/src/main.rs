//! The bare loop: N keep-alive connections to one host, each sending its next GET as soon as the last body has ended.
//!
//! It reads no list, keeps no record and knows no limit: what is left is what the HTTP client itself costs. It runs until
//! it is ended; whoever measures it counts at the server and in the process table, as for every other contestant.
//!
//! `forbear-bench-peer HOST:PORT CONNECTIONS`

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
    let [_, host, connections] =
        std::env::args().collect::<Vec<_>>().try_into().map_err(|_| "HOST:PORT CONNECTIONS")?;
    let connections: u64 = connections.parse()?;
    let mut running = tokio::task::JoinSet::new();
    for first in 0..connections {
        running.spawn(one_connection(host.clone(), first, connections));
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// Pages `first`, `first + step`, ... without end over one connection.
async fn one_connection(host: String, first: u64, step: u64) -> Result<(), Failure> {
    let stream = TcpStream::connect(&host).await?;
    stream.set_nodelay(true)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    for page in (first..).step_by(usize::try_from(step)?) {
        sender.ready().await?;
        let request = Request::get(format!("/p/{page}")).header("host", &host).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        if !response.status().is_success() {
            return Err(format!("page {page}: {}", response.status()).into());
        }
        response.into_body().collect().await?;
    }
    Ok(())
}
