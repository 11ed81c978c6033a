//! Limiters as pure state machines, with a thin real HTTP server, for tests and the demo.

mod answer;
mod hint;
mod limiter;
mod log;
mod origin;
mod rng;
mod server;
mod spec;

pub use answer::{Account, Answer, Facts, Fault, ScopeId, Verdict};
pub use hint::Hint;
pub use limiter::Limiter;
pub use log::{Hit, Intrusion, Log, Pause, Probe, peak};
pub use origin::Origin;
pub use rng::SplitMix64;
pub use server::{Counts, Server, ServerOptions};
pub use spec::{Rate, RateError, Scope, Spec};
