//! Several processes on one gate: what the server sees of a fleet, in a file and in Redis.

#[path = "../fetch_kit/mod.rs"]
mod fetch_kit;
mod fleet_kit;

mod hand;
mod lost;
mod machines;
mod together;
