//! Gate states kept with the job, so that a pause outlives the process (P8). Opaque here: the gate's own record.

use forbear_core::time::Timestamp;

/// A gate's state as it is to be found again.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct GateRecord {
    /// The scope's canonical key.
    pub key: String,
    /// Version of the record's format.
    pub version: u32,
    /// The state, in that format.
    pub record: Vec<u8>,
    /// Wall-clock time until which the scope is closed, if it is: for those who only look.
    pub until: Option<Timestamp>,
}
