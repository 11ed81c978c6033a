//! The SDK and fetch engine: one gate in front of every HTTP request.

pub mod config;
