//! What one commit makes durable.

use super::{
    gates::GateRecord,
    item::{Counters, Seq},
    ledger::Place,
    shared::Command,
};

/// The changes of one commit. Kept until that is done: a failed commit is tried again with the same group.
#[derive(Default)]
pub(crate) struct Group {
    pub(crate) commands: Vec<Command>,
    pub(crate) finishes: Vec<FinishPlan>,
    pub(crate) parks: Vec<(usize, Place)>,
    /// Given back to everybody.
    pub(crate) releases: Vec<Place>,
    pub(crate) gates: Vec<(String, Option<GateRecord>)>,
    pub(crate) show: Vec<Seq>,
    pub(crate) hide: Vec<Seq>,
    /// Where the group's first record went; set once the output is durable.
    pub(crate) start: Option<Option<u64>>,
    pub(crate) bodies_settled: bool,
    pub(crate) imported: Vec<Place>,
    pub(crate) woken: Vec<(usize, Vec<Place>)>,
    pub(crate) progress: Vec<(Seq, Counters)>,
    pub(crate) closing: bool,
    /// This process is not the one that imports any more: its batches are another's.
    pub(crate) no_imports: bool,
}

pub(crate) struct FinishPlan {
    pub(crate) command: usize,
    pub(crate) place: Place,
    pub(crate) has_progress: bool,
    pub(crate) shown: bool,
    /// Its body is lost, so it did not end.
    pub(crate) lost: bool,
}

/// The group's records in the order of the output: acknowledgements, then bad lines.
///
/// Bad lines last: if the group is not committed, the import is repeated, and only what follows the last known item
/// has to be cut.
pub(crate) fn records(group: &Group) -> impl Iterator<Item = &[u8]> {
    let ends = group.finishes.iter().filter(|plan| !plan.lost).filter_map(|plan| {
        match &group.commands[plan.command] {
            Command::Finish { finish, .. } => Some(finish.record.as_slice()),
            _ => None,
        }
    });
    let bad = group.commands.iter().filter_map(|command| match command {
        Command::Import(batch) if !group.no_imports => {
            Some(batch.bad.iter().map(|bad| bad.record.as_slice()))
        }
        _ => None,
    });
    ends.chain(bad.flatten())
}
