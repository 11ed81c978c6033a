//! Limiters as pure state machines, with a thin real HTTP server, for tests and the demo.
//!
//! A [`Spec`] describes what stands before a service. It becomes an [`Origin`], a machine that takes the time and a request and
//! returns an [`Answer`]; it reads no clock and its chance comes from a seed, so a test crosses a day in a microsecond. Or it
//! becomes a [`Server`], which serves the same answers over loopback and keeps a [`Log`] of who sent what when.
//!
//! ```
//! use forbear_zoo::{Facts, Limiter, Spec};
//! use std::time::Duration;
//!
//! let spec: Spec = "token-bucket:rate=5/s,burst=2,hint=seconds".parse()?;
//! let mut origin = spec.build(Duration::from_secs(1_700_000_000)); // the Unix time at its time zero
//! let statuses = [0, 0, 0, 200].map(|ms| origin.arrive(Duration::from_millis(ms), &Facts::get("/")).status);
//! assert_eq!(statuses, [200, 200, 429, 200]);
//! # Ok::<(), forbear_zoo::SpecError>(())
//! ```
//!
//! # The kinds
//!
//! | kind | its rule | met at |
//! | --- | --- | --- |
//! | `token-bucket` | a request takes one of up to `burst` tokens, which flow in at `rate` | Shopify, Stripe, nginx `limit_req` |
//! | `gcra` | the same limit kept as one timestamp | redis-cell, many gateways |
//! | `fixed-window` | `limit` a window; edges on the clock, or with the first request | GitHub, X; `INCR` and `EXPIRE` |
//! | `sliding-log` | never more than `limit` in any window | a sorted set in Redis |
//! | `sliding-counter` | this window's count and the last one's, weighted | Cloudflare |
//! | `cost-log` | never more than `limit` of cost in any window | tokens of a language model |
//! | `concurrency` | `max` at once | Mailchimp, nginx `limit_conn` |
//! | `maintenance` | 503 for a span | any deployment |
//! | `sentence` | single URLs refused for a day, all others free | one odd page among many |
//! | `brownout` | a queue: latency grows with load, then 5xx, and it recovers | a slow database behind a site |
//! | `flaky` | resets, 502, half bodies, stalls, by seed | an old load balancer |
//!
//! The rate of a token bucket may move, in a `wave` or by `step`s. Every rule may count by endpoint, path, account or client address, may punish (`penalty`: each knock starts the time anew, as
//! at SEC EDGAR; `ban`: 403 after some refusals, as at Discord), and may count what it refuses. Several rules hold at once, as
//! Riot's two windows do: all of them count a request, or none. How a refusal is told is a matter of its own ([`Hint`]): not at
//! all, in seconds, as a date, in milliseconds, as the reset of a budget, in every draft of the `RateLimit` fields; too
//! short, too long, by a clock that is an hour off. [`EXAMPLES`] has one of each.
//!
//! # What is deliberately absent
//!
//! No TLS, no HTTP/2: a limiter does not care. No limiter ever waits; only the server does. A [`proxy`] limits nothing: it is
//! a way to a server, good or broken.

mod answer;
mod hint;
mod limiter;
mod log;
pub mod naive;
mod origin;
pub mod proxy;
mod rng;
mod server;
mod spec;

pub use answer::{Account, Answer, Facts, Fault, ScopeId, Verdict};
pub use hint::Hint;
pub use limiter::Limiter;
pub use limiter::tide::Tide;
pub use limiter::trouble::Shares;
pub use log::{Hit, Intrusion, Log, Pause, Probe, peak};
pub use origin::{Origin, Ruling};
pub use rng::SplitMix64;
pub use server::{Counts, Server, ServerOptions};
pub use spec::{EXAMPLES, Example, Rate, RateError, Scope, Shape, Spec, SpecError, Tightest};
