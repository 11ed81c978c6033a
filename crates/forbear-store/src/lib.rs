//! Where forbear's state lives: gate stores and the durable queue.
//!
//! A store knows no rule. [`gate`] holds the state of scopes and runs the core's steps on it; [`queue`] holds the items
//! of a job, so that none is lost and none is done twice.

pub mod gate;
pub mod queue;
