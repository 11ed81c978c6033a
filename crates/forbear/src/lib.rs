//! The SDK and fetch engine: one gate in front of every HTTP request.

pub mod bodies;
pub mod client;
pub mod config;
pub mod cost;
pub mod engine;
pub mod exit;
pub mod gate;
pub mod input;
mod item;
mod lines;
pub mod permit;
pub mod record;
pub mod secrets;
