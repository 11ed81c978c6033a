//! Two processes with `tower` services share one gate, so together they keep to one limit.
//!
//! It starts a server that allows ten requests in a second, and itself twice more; each of these fetches its pages as fast as the
//! gate lets it: `cargo run -p forbear --features tower --example tower_gate -- redis://127.0.0.1:6379`. Without an
//! address the gate is a file, which will do on one machine.
#![allow(clippy::print_stdout, reason = "it is a program")]

use forbear::gate::{Gate, GateLayer, GateOptions, Resend};
use http::Request;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tower::{ServiceBuilder, ServiceExt as _};

#[path = "two_processes/mod.rs"]
mod two_processes;
use two_processes::{Failure, Part, fleet};

/// One process: fetches its pages, four at a time, and says how many it got.
async fn fetch(part: Part) -> Result<usize, Failure> {
    let gate = Gate::open(&part.gate, GateOptions::default()).await?;
    let client: Client<HttpConnector, Empty<bytes::Bytes>> =
        Client::builder(TokioExecutor::new()).retry_canceled_requests(false).build_http();
    // What is refused goes back to the gate: `Resend` stands outside of it.
    let service = ServiceBuilder::new().retry(Resend::default()).layer(GateLayer::new(gate)).service(client);
    part.by_four(async |url| {
        let response = service.clone().oneshot(Request::get(url).body(Empty::new())?).await?;
        let served = response.status().is_success();
        response.into_body().collect().await?;
        Ok(served)
    })
    .await
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    match Part::of_this_process() {
        Some(part) => println!("{}", fetch(part).await?),
        None => fleet().await?,
    }
    Ok(())
}
