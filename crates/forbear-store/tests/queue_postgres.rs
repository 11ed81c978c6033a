//! The job in PostgreSQL passes the suite for all queues.

#[path = "queue_support/postgres.rs"]
mod postgres;
mod queue_support;

use forbear_core::time::Timestamp;
use forbear_store::queue::{
    inspect::{JobFile, Retry, Running, State, Which, retry, unpark},
    *,
};
use postgres::PgPlace;
use queue_support::queue_conformance;

queue_conformance!(PgPlace);
