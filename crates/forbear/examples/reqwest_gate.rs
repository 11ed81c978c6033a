//! Two processes with clients of `reqwest` share one gate, so together they keep to one limit.
//!
//! It starts a server that allows ten requests in a second, and itself twice more; each of these fetches its pages as fast as the
//! gate lets it: `cargo run -p forbear --features reqwest --example reqwest_gate -- redis://127.0.0.1:6379`. Without an
//! address the gate is a file, which will do on one machine.
#![allow(clippy::print_stdout, reason = "it is a program")]

use forbear::gate::{Gate, GateMiddleware, GateOptions};
use reqwest_middleware::ClientBuilder;

#[path = "two_processes/mod.rs"]
mod two_processes;
use two_processes::{Failure, Part, fleet};

/// One process: fetches `pages` pages, four at a time, and says how many it got.
async fn fetch(part: Part) -> Result<usize, Failure> {
    let gate = Gate::open(&part.gate, GateOptions::default()).await?;
    // What the client did by itself, the gate would not see.
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .build()?;
    let client = ClientBuilder::new(client).with(GateMiddleware::new(gate)).build();
    part.by_four(async |url| {
        let response = client.get(url).send().await?;
        let served = response.status().is_success();
        response.bytes().await?;
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
