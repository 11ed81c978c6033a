//! The durable job: every item of an input, where it stands, and where its record lies (rules J1 to J6).
//!
//! One process runs a job at a time ([`Job`]); others may look ([`inspect`]). An importer feeds it, workers claim from
//! *lanes* and give each item one end:
//!
//! ```text
//! import ──> pending ──claim──> leased ──finish──> done, failed, unknown   (record in the output, once)
//!               ^                 │ │
//!               ├────release──────┘ └──park──> parked until a time, the next run, other credentials
//!               └───────────────wake_due, credentials_changed, open──┘
//! ```
//!
//! **Invariant**: an item's end is committed only after its record is durable in the output, and a record that was
//! written but not committed is found again by the next run. So a crash loses nothing and writes nothing twice.
//! **Invariant**: memory does not grow with the job. Items are read by the page, lanes by the page; what is kept is what
//! is in hand.

mod address;
mod bodies;
mod error;
mod exits;
mod gates;
mod group;
mod input;
pub mod inspect;
mod item;
mod job;
mod ledger;
mod output;
mod pages;
mod postgres;
mod recover;
mod shared;
mod sqlite;
mod writer;

pub use address::{JobAddress, PostgresAddress, QueueAddress};
pub use error::{Event, Events, QueueError};
pub use exits::ExitRow;
pub use gates::GateRecord;
pub use input::{InputChange, InputIdentity};
pub use item::{
    BadLine, Batch, BodyFile, Counters, Ending, Finish, InputEnd, InputPosition, Item, Lane, LaneId, Lease,
    NewItem, Request, Seq, Until,
};
pub use job::{Counts, Job, JobOptions};
pub use output::OutputTarget;
pub use shared::Woken;
