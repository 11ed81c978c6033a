//! Fleets of workers before modelled limiters, replayed from one seed in virtual time.
//!
//! A [`Scenario`] says what limiter, how many workers, what latencies, what work. [`run`] plays it with a [`Client`]
//! between workers and origin: the real gate, or one of the [`habits`] that others have. An hour of a
//! hundred thousand workers takes seconds, and the same seed gives the same run.
//!
//! What the client has promised is checked at every step: nothing is sent into a told pause (P1), one request probes (B1),
//! nothing is lost (J5), and in the end it gets on. A [`Violation`] names the moment.
//!
//! The limiters are those of `forbear-zoo`: the same machines answer the real servers of the tests.

mod client;
mod gated;
mod limit;
mod net;
mod report;
mod scenario;
mod trace;
mod watch;
mod world;

pub mod fleet;
pub mod habits;
pub mod picture;
pub mod sets;

pub use client::{Client, Go, Reply};
pub use gated::Gated;
pub use limit::Optimum;
pub use net::Latency;
pub use report::{Report, Spike, Tally};
pub use scenario::{Scenario, TrueKind, Truth, Work};
pub use trace::{Bin, Phase, Trace};
pub use watch::Violation;
pub use world::{Played, observe, run, run_traced};
