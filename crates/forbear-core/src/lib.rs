//! Every rule of forbear, as pure state machines: no I/O, no clock, no randomness, no async.
//!
//! A machine takes facts (a [`Timestamp`](time::Timestamp), a roll of the dice, a response) and returns a value that
//! says what to do. It never sleeps, sends or calls back, so the same machine drives the engine, tests and simulation.

pub mod hint;
pub mod pace;
pub mod time;
