//! The SQLite job passes the suite for all queues.

mod queue_support;

use forbear_core::time::Timestamp;
use forbear_store::queue::*;
use queue_support::{Place, queue_conformance};

queue_conformance!(Place);
