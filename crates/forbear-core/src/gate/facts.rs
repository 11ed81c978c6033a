//! What a gate is told, and what it answers.

use std::time::Duration;

use super::Fence;
use crate::time::Timestamp;

/// Whether a request may start now.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a decision that nobody acts on is a request that nobody paced"]
pub enum Check {
    /// It may.
    Admit,
    /// It may, as the one probe of a scope whose pause is over.
    Probe,
    /// Not before `until`, because of `cause`.
    Wait {
        /// When to ask again.
        until: Timestamp,
        /// Why.
        cause: Cause,
    },
    /// Not before a request of the scope comes back.
    Full,
}

/// Why a scope lets nothing through.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Cause {
    /// Its next slot has not come: it is open, and paced.
    #[default]
    Pace,
    /// Another request is probing it.
    Probing,
    /// The server told a time.
    Told,
    /// The server refused and told none.
    Untold,
    /// A budget is used up until its reset (H4).
    Budget,
    /// The server is overloaded.
    Overload,
    /// It answers that we are unwanted.
    Blocked,
    /// The circuit tripped (X1).
    Tripped,
    /// The credentials were refused for two items (the account stops).
    Credentials,
    /// An operator said so.
    Operator,
}

impl Cause {
    /// The word for people and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Cause::Pace => "pace",
            Cause::Probing => "probing",
            Cause::Told => "told",
            Cause::Untold => "refused",
            Cause::Budget => "budget",
            Cause::Overload => "overload",
            Cause::Blocked => "blocked",
            Cause::Tripped => "tripped",
            Cause::Credentials => "credentials",
            Cause::Operator => "operator",
        }
    }

    /// The cause with this word.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Cause> {
        ALL_CAUSES.into_iter().find(|cause| cause.as_str() == name)
    }
}

const ALL_CAUSES: [Cause; 10] = [
    Cause::Pace,
    Cause::Probing,
    Cause::Told,
    Cause::Untold,
    Cause::Budget,
    Cause::Overload,
    Cause::Blocked,
    Cause::Tripped,
    Cause::Credentials,
    Cause::Operator,
];

/// What a request carries from its start to its report.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Sent {
    /// When it started.
    pub at: Timestamp,
    /// Which probe it is, if one.
    pub fence: Fence,
    /// Requests of the scope on the wire with it, itself included.
    pub in_flight: u32,
}

/// What a refusal said about the wait.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Told {
    /// The least wait from receipt; none, or zero, is no usable hint (P4).
    pub wait: Option<Duration>,
    /// Whether a wait over `pause_cap` may be tested by another item (P7): it came from an instruction on a refusal
    /// whose scope the server did not name, and it is no quota and no block.
    pub may_be_one_items: bool,
    /// The server is overloaded rather than limiting us.
    pub overload: bool,
    /// The scope rests for at least this much more than its own backoff, since its exit is hot (E3). A told time is
    /// kept as it is where it is longer.
    pub rest: Duration,
}

impl Told {
    /// A told wait, that holds for whatever the server counts.
    #[must_use]
    pub fn wait(wait: Duration) -> Told {
        Told { wait: Some(wait), ..Told::default() }
    }

    /// No usable hint.
    #[must_use]
    pub fn nothing() -> Told {
        Told::default()
    }
}

/// What a report did to the scope.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub enum Change {
    /// Nothing that anybody waits for.
    None,
    /// It closed, or stays closed for longer.
    Closed {
        /// This is a new incident.
        incident: bool,
    },
    /// The probe was admitted: who waits may ask again.
    Reopened,
    /// The probe came to nothing: another may be sent.
    ProbeFree,
}

/// A budget as a response tells it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budget {
    /// It counts what requests cost, and not requests.
    pub of_cost: bool,
    /// Starts, or cost, left in this window.
    pub left: Option<u32>,
    /// Time until the window ends.
    pub resets_in: Option<Duration>,
    /// Starts a second that limit and window come to.
    pub rate: Option<f32>,
    /// The window that the limit is for.
    pub window: Option<Duration>,
}
