//! What a run tells whoever watches it.

use std::{fmt, sync::Arc, time::Duration};

use forbear_core::{
    evidence::{Part, Whose},
    gate::Cause,
};
use forbear_store::queue;

use crate::input::ImportEvent;

/// Something that the person on call wants to know, once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A scope closed, or stays closed for longer.
    Paused {
        /// The scope's name.
        scope: String,
        /// Why.
        cause: Cause,
        /// For how long from now; none for as long as the credentials are not changed.
        wait: Option<Duration>,
        /// The same as a wall-clock time.
        until: String,
        /// Items at hand that wait for it.
        waiting: usize,
        /// What the server said, cut and redacted.
        said: String,
        /// Why it is this scope and not the whole origin, where evidence says so (L6).
        whose: Option<Whose>,
        /// A new incident, and not a longer wait of the present one.
        incident: bool,
    },
    /// Whose the limits of an origin are has been found out, or has turned out to be wrong (L6).
    Limits {
        /// The origin.
        origin: String,
        /// Whose they are, and the evidence; none where they fall on everyone again.
        whose: Option<Whose>,
        /// What was believed before.
        was: Option<Part>,
    },
    /// A probe was admitted: the scope opens again, gradually.
    Reopened {
        /// The scope's name.
        scope: String,
    },
    /// The shared gate store is lost: this process goes on with its share of every pace (F1).
    GateLost {
        /// Its address, without a password.
        place: String,
        /// Why.
        why: String,
    },
    /// The shared gate store is back, and knows what this process remembers.
    GateBack {
        /// Its address, without a password.
        place: String,
        /// How long it was gone.
        after: Duration,
    },
    /// An account that had stopped has other credentials.
    Renewed {
        /// The scope's name.
        scope: String,
        /// Items that waited for them.
        items: u64,
    },
    /// An exit fails, and is tried again later.
    ExitFails {
        /// Its name, without credentials.
        name: String,
        /// For how long it rests.
        wait: Duration,
        /// What went wrong.
        said: String,
    },
    /// An exit has turned us away, and is out until it gets other credentials.
    ExitOut {
        /// Its name, without credentials.
        name: String,
        /// What it said.
        said: String,
    },
    /// An exit that had failed serves again.
    ExitServes {
        /// Its name, without credentials.
        name: String,
    },
    /// No exit can be used (E5).
    NoExit {
        /// When the next one is tried; none where each has turned us away.
        wait: Option<Duration>,
        /// How many there are.
        exits: usize,
    },
    /// The retry multiplier has changed what the run may have on the wire (V3).
    Multiplier {
        /// Requests for each item that ended.
        value: f64,
        /// The share of its workers that may have an item in hand.
        share: f64,
    },
    /// The job has something to say.
    Job(queue::Event),
    /// The input has something to say.
    Input(ImportEvent),
    /// Something that goes on, but should be seen.
    Warning(String),
}

/// Where events go. Called from workers: it must be quick.
pub type Events = Arc<dyn Fn(Event) + Send + Sync>;

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Event::Paused { scope, cause, wait, until, waiting, said, whose, incident: _ } => {
                write!(f, "{scope} {}", word(*cause))?;
                match wait {
                    Some(wait) => write!(f, ", pause of {} until {until}", seconds(*wait))?,
                    None => f.write_str(", paused until it has other credentials")?,
                }
                write!(f, ", {waiting} at hand wait")?;
                if let Some(Whose { part, served_elsewhere, refused_elsewhere, .. }) = whose {
                    let part = part.as_str();
                    write!(f, ", falls on origin+{part} (evidence {served_elsewhere}:{refused_elsewhere})")?;
                }
                if said.is_empty() { Ok(()) } else { write!(f, " ({said})") }
            }
            Event::Limits { origin, whose: Some(whose), .. } => write!(f, "{origin}: {}", by_evidence(whose)),
            Event::Limits { origin, whose: None, was } => {
                let was = was.map_or("part", Part::as_str);
                write!(
                    f,
                    "{origin}: refused elsewhere too, so its limits are not by {was}; they fall on the origin again"
                )
            }
            Event::Reopened { scope } => write!(f, "{scope} opens again"),
            Event::GateLost { place, why } => write!(
                f,
                "the gate store {place} is lost ({why}): going on with this process's share of every pace until it is back"
            ),
            Event::GateBack { place, after } => {
                write!(f, "the gate store {place} is back after {}", seconds(*after))
            }
            Event::Renewed { scope, items } => {
                write!(f, "{scope} has other credentials, {items} items that waited for them go on")
            }
            Event::ExitFails { name, wait, said } => {
                write!(f, "exit {name} fails, rests for {} ({said})", seconds(*wait))
            }
            Event::ExitOut { name, said } => {
                write!(f, "exit {name} turns us away, and is out until its credentials change ({said})")
            }
            Event::ExitServes { name } => write!(f, "exit {name} serves again"),
            Event::NoExit { wait: Some(wait), exits } => {
                write!(
                    f,
                    "no usable exit: all {exits} fail or are out; the next one is tried in {}",
                    seconds(*wait)
                )
            }
            Event::NoExit { wait: None, exits } => {
                write!(f, "no usable exit: each of {exits} turned us away")
            }
            Event::Multiplier { value, share } => {
                let share = share * 100.0;
                write!(f, "{value:.2} requests for each item that ended; {share:.0} % of the workers go on")
            }
            Event::Job(event) => event.fmt(f),
            Event::Input(event) => match event {
                ImportEvent::BadLine { line, why } => write!(f, "input line {line}: {why}"),
                ImportEvent::Grown { path } => {
                    write!(f, "{} has grown: its new lines are added", path.display())
                }
                ImportEvent::LineWasTorn { line } => {
                    write!(
                        f,
                        "input line {line} had no end when it was read; what was added to it is a line of its own"
                    )
                }
                ImportEvent::Shorter { lines } => {
                    write!(f, "the input ends before line {lines}, up to which it was read; nothing is added")
                }
            },
            Event::Warning(text) => f.write_str(text),
        }
    }
}

fn word(cause: Cause) -> &'static str {
    match cause {
        Cause::Told => "is limited",
        Cause::Untold => "refuses",
        Cause::Budget => "has used up its budget",
        Cause::Overload => "is overloaded",
        Cause::Blocked => "blocks us",
        Cause::Tripped => "refuses again and again",
        Cause::Credentials => "refuses our credentials",
        Cause::Operator => "is paused by hand",
        Cause::Pace | Cause::Probing => "waits",
    }
}

/// Whose the limits are, with the evidence.
#[must_use]
pub fn by_evidence(whose: &Whose) -> String {
    let Whose { part, served_elsewhere, refused_here, refused_elsewhere, .. } = whose;
    let by = part.as_str();
    let but = match refused_elsewhere {
        0 => String::new(),
        n => format!(" and {n} refused"),
    };
    format!(
        "its limits are by {by} (evidence: {served_elsewhere} served elsewhere{but} while {refused_here} were refused here)"
    )
}

/// A time in seconds with as many digits as it needs.
pub(super) fn seconds(d: Duration) -> String {
    let s = d.as_secs_f64();
    if s < 10.0 { format!("{s:.1} s") } else { format!("{s:.0} s") }
}
