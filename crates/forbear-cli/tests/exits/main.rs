//! `forbear fetch` through exits: forward proxies of the zoo on loopback addresses of their own, good and broken.
//!
//! What a test claims is read from the logs of servers and proxies, never from what the client says of itself.

#[path = "../fetch_kit/mod.rs"]
mod kit;
#[path = "../support/mod.rs"]
mod support;

mod blame;
mod exit_kit;
mod health;
mod limits;
mod secrets;
mod sessions;
mod turns;
mod unusable;
