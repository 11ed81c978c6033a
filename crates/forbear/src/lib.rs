//! The SDK and fetch engine: one gate in front of every HTTP request.

pub mod client;
pub mod config;
pub mod permit;
