//! The rules on the wire: the real binary against real servers, and what the servers saw.

#[path = "../fetch_kit/mod.rs"]
mod kit;

mod evidence;
mod hints;
mod jobs;
mod pace;
mod pause;
mod probe;
mod run;
mod scopes;
mod secrets;
mod verdicts;
