//! Exits: the ways out of the fleet, their health at each origin, and which of them a request takes (E1-E5, S5).
//!
//! [`Exits`] is one machine over all exits and all origins. It is asked for an exit ([`Exits::choose`]), and told what
//! came of the attempt ([`Exits::judge`]); it reads no clock and rolls no dice. Whether a request may start is not its
//! business: pauses of an exit, of an origin, or of the pair of both are gates like all others. When a gate holds up a
//! pair, the machine hears of it ([`Exits::put_off`], [`Exits::full`]) and offers another exit.
//!
//! ```
//! use forbear_core::{
//!     exit::{Ask, Choice, ExitPolicy, Exits, Traits},
//!     outcome::{ExitFault, Outcome, Processed},
//!     time::Timestamp,
//! };
//!
//! let mut exits = Exits::new(ExitPolicy::default(), [Traits::default(), Traits::default()], 7);
//! let now = Timestamp::from_secs(1_000);
//! let Choice::Use(first) = exits.choose("https://a:443", Ask::default(), now) else { panic!() };
//! let dead = Outcome::Exit { fault: ExitFault::Broken, processed: Processed::No };
//! let judged = exits.judge(&first, &dead, 0, now, 0.0);
//! assert_eq!(judged.outcome, dead, "the origin has no part in it");
//! let Choice::Use(second) = exits.choose("https://a:443", Ask::default(), now) else { panic!() };
//! assert_ne!(first.exit, second.exit);
//! ```

mod answer;
mod health;
mod judge;
mod pool;
mod site;

#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

pub use self::{
    answer::{Answerer, answered_by, of_connect, of_socks_reply},
    health::Health,
    judge::{ExitChange, Judged, Settled, Tally},
    pool::{Exits, Usable},
};
use crate::{
    backoff::{Backoff, Jitter},
    time::Timestamp,
};

/// One exit, by its place in the list.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ExitId(pub u32);

/// What is known of an exit before it was ever used.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Traits {
    /// It is a rotating gateway: behind it there is another address for each request, or for each session. So no refusal
    /// is held against it.
    pub gateway: bool,
    /// What one request costs, in any currency.
    pub price_per_request: f64,
    /// What one byte of body costs, in the same.
    pub price_per_byte: f64,
}

/// How exits are chosen and left.
#[derive(Clone, Debug, PartialEq)]
pub struct ExitPolicy {
    /// Who goes by another exit next time (default: who failed for its exit's sake).
    pub rotate: Rotate,
    /// How long a session lasts (default: until the exit is left).
    pub sticky: Sticky,
    /// Exits that succeed less often than this at an origin are set aside there, while more than half of all remain
    /// (default 0.5).
    pub min_success: f64,
    /// How long an exit rests that failed as an exit; doubles with each further failure (default 1 s to 60 s).
    pub backoff: Backoff,
}

impl Default for ExitPolicy {
    fn default() -> ExitPolicy {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), Jitter::Full);
        ExitPolicy {
            rotate: Rotate::Retries,
            sticky: Sticky::Session,
            min_success: 0.5,
            backoff: backoff.unwrap_or_else(|_| unreachable!("1 s is above zero and below 60 s")),
        }
    }
}

/// Who goes by another exit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Rotate {
    /// The next try of an item that failed, was blocked or was refused for its exit's sake.
    #[default]
    Retries,
    /// Nobody: the item waits for its own exit, unless that is broken.
    Never,
}

/// How long a session of an exit lasts at an origin (E4).
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Sticky {
    /// One request.
    Off,
    /// Until the exit is left at that origin.
    #[default]
    Session,
    /// Until then, and the requests of one account keep to one exit while it is usable.
    Account,
}

/// What a request wants of its exit.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Ask {
    /// This one if it is usable: the request goes on with something that was begun there, as a redirect. Under
    /// [`Rotate::Never`] it waits for this one.
    pub keep: Option<ExitId>,
    /// Rather not this one: it was tried already.
    pub not: Option<ExitId>,
    /// A hash of the account whose request it is, for [`Sticky::Account`].
    pub account: Option<u64>,
}

/// An exit for one request. Whoever holds one gives it to [`Exits::judge`], or gives it back.
#[derive(Clone, Debug, Eq, PartialEq)]
#[must_use = "a request that is never told of holds its exit"]
pub struct Pick {
    /// Which exit.
    pub exit: ExitId,
    /// Its session at this origin. Numbers never come back.
    pub session: u64,
    origin: Arc<str>,
    at: Timestamp,
    /// It tries an exit out.
    trial: bool,
    /// How many exits had been recalled until then.
    recalls: u64,
}

impl Pick {
    /// The origin that it is for.
    #[must_use]
    pub fn origin(&self) -> &str {
        &self.origin
    }
}

/// Which exit a request takes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Choice {
    /// This one.
    Use(Pick),
    /// None before `until`: the earliest moment at which one may be asked again.
    Wait {
        /// The moment.
        until: Timestamp,
    },
    /// None before a request comes back that holds one, or before `or`.
    Busy {
        /// When one may be asked again in any case.
        or: Option<Timestamp>,
    },
    /// None at all: each has turned us away (E5).
    None,
}
