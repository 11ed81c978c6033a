//! What stands between a fleet's workers and the origin: a gate, or a habit of others to compare with.

use std::{borrow::Cow, time::Duration};

use forbear_core::time::Timestamp;

use crate::trace::Phase;

/// What a client says to a worker that has a request to send.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Go<T> {
    /// Send it; the ticket comes back with the answer.
    Send(T),
    /// Ask again at this moment.
    At(Timestamp),
    /// Ask again when another request has been answered.
    Full,
}

/// An answer as it reaches a client.
#[derive(Clone, Debug)]
pub struct Reply {
    /// The status code; 200 stands for everything that was served.
    pub status: u16,
    /// A limit refused the request.
    pub refused: bool,
    /// The wait that an honest reader takes from the headers.
    pub told: Option<Duration>,
    /// The headers that matter, where any were sent.
    pub headers: Vec<(Cow<'static, str>, String)>,
}

/// A fleet's way to send. Time and chance come from the simulation.
pub trait Client {
    /// What it needs to know of a request when the answer comes.
    type Ticket: Copy;

    /// Whether all workers meet a limit together: then they are all alike, and wait in one line. Otherwise each goes by
    /// its own clock.
    const SHARED: bool = true;

    /// Whether it promises to send nothing into a told pause, and one probe after each (P1, B1): the simulation watches.
    const FORBEARS: bool = true;

    /// May `worker` send now?
    fn ask(&mut self, worker: u32, now: Timestamp) -> Go<Self::Ticket>;

    /// The answer to a request of `worker`. Returns when that worker may ask again; `roll`, in `[0, 1)`, is its chance.
    fn answered(
        &mut self,
        worker: u32,
        ticket: Self::Ticket,
        reply: &Reply,
        now: Timestamp,
        roll: f64,
    ) -> Timestamp;

    /// The process dies and comes back at once; what was on the wire is never heard of again.
    fn crash(&mut self, now: Timestamp) {
        let _ = now; // habits have no memory worth losing
    }

    /// What its gate is doing, where it has one.
    fn phase(&self, now: Timestamp) -> Option<Phase> {
        let _ = now;
        None
    }

    /// Starts a second that it holds to be allowed, where it has an opinion.
    fn pace(&self) -> Option<f64> {
        None
    }
}
