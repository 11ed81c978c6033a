//! The job as one file of SQLite, which one process runs at a time.

pub(crate) mod acks;
pub(crate) mod apply;
pub(crate) mod exits;
pub(crate) mod gates;
pub(crate) mod inspect;
pub(crate) mod ledger;
pub(crate) mod lock;
pub(crate) mod open;
pub(crate) mod reader;
pub(crate) mod schema;
