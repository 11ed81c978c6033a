//! The suite of gate stores on a real Redis: each member has a connection and a memory of its own.

mod gate_kit;

use gate_kit::redis::{Processes, TestRedis};

gate_conformance!(Processes<TestRedis>);
