//! What a server saw of a client: the numbers come from its log, not from the client.

use std::{collections::HashSet, time::Duration};

use forbear_zoo::Log;

/// A client, as its server saw it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Different pages that were served to their last byte.
    pub(super) pages: usize,
    /// Requests that arrived.
    pub(super) sent: u64,
    /// Requests refused.
    pub(super) refused: usize,
    /// Pauses that refusals told of; those that overlap are one.
    pub(super) pauses: usize,
    /// Requests that arrived in a pause which the client had been told of.
    pub(super) into_pause: usize,
    /// The most requests within a tenth of a second.
    pub(super) herd: usize,
    /// From the first arrival to the last answer.
    pub(super) took: Duration,
}

impl Seen {
    pub(super) fn of(log: &Log) -> Seen {
        let first = log.hits().first().map_or(Duration::ZERO, |hit| hit.at);
        let last = log.hits().iter().map(|hit| hit.finished.unwrap_or(hit.at)).max().unwrap_or_default();
        let pages: HashSet<&str> =
            log.served().filter(|hit| hit.delivered).map(|hit| hit.path.as_str()).collect();
        Seen {
            pages: pages.len(),
            sent: log.hits().len() as u64 + log.dropped(),
            refused: log.refused().count(),
            pauses: log.pauses().len(),
            into_pause: log.sent_into_pause(GRACE).len(),
            herd: log.peak(HERD),
            took: last.saturating_sub(first),
        }
    }
}

/// What was on the wire when a refusal left is nobody's fault.
const GRACE: Duration = Duration::from_millis(50);
const HERD: Duration = Duration::from_millis(100);
