//! Every rule of forbear, as pure state machines: no I/O, no clock, no randomness, no async.
//!
//! A machine takes facts (a [`Timestamp`](time::Timestamp), a roll of the dice, a response) and returns a value that
//! says what to do. It never sleeps, sends or calls back, so the same machine drives the engine, tests and simulation.
//!
//! [`attempt`] composes the others: [`attempt::acquire`] asks the [`gate`]s of all [`scope`]s of a request,
//! [`attempt::report`] tells them the [`outcome`], and [`verdict::verdict`] says what becomes of the item.

pub mod attempt;
pub mod backoff;
pub mod circuit;
pub mod cost;
pub mod evidence;
pub mod exit;
pub mod frontier;
pub mod gate;
pub mod hint;
pub mod inflight;
pub mod learn;
pub mod multiplier;
pub mod outcome;
pub mod pace;
pub mod policy;
pub mod scope;
pub mod time;
pub mod verdict;
