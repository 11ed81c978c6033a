//! Jobs in PostgreSQL, for any number of processes on any number of machines.
//!
//! A process is a *member* of a job's run, with a lease that it renews. What it claims is written under its number in the
//! table of leases, and its results are taken only while its row is there. A member that is not heard of for the length of a
//! lease is ended by another, and what it had in hand is pending again.

pub(crate) mod acks;
pub(crate) mod apply;
pub(crate) mod connect;
pub(crate) mod failure;
pub(crate) mod inspect;
pub(crate) mod ledger;
pub(crate) mod link;
pub(crate) mod open;
pub(crate) mod reader;
pub(crate) mod schema;
pub(crate) mod seal;
pub(crate) mod watch;
