//! What happened to a scope, for a learner that is somewhere else (L5).
//!
//! Gates that processes share are made anew for every step, so none of them has a learner. They write down what one would have
//! been told. All is counted from the scope's birth and numbered, so that whatever two processes wrote can be put together, and
//! whoever reads knows what is new to him.

use std::time::Duration;

use super::{Gate, facts::Sent};
use crate::{learn::Refused, policy::ScopePolicy, time::Timestamp};

/// What a learner would have been told. Counts wrap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Diary {
    /// Requests that started while the scope was open.
    pub started: u32,
    /// When the last of these did, in the order in which they were written down.
    pub starts: Vec<Timestamp>,
    /// By how much the pace was used up, in microseconds.
    pub used_us: u64,
    /// Requests that were let through while it was open.
    pub accepted: u32,
    /// On the wire with each of these, summed up.
    pub on_wire: u32,
    /// The number of the last event.
    pub number: u32,
    /// The last events, by their numbers.
    pub events: Vec<Event>,
    /// A limit has shut the scope, and so many probes were refused since.
    pub met: bool,
    /// See `met`.
    pub failed_probes: u8,
    /// The window of the server's own number, in milliseconds; zero where it told none.
    pub window_ms: u32,
    /// The learner's word for the first wait that nobody tells, where that is shorter than the policy's.
    pub first_wait_ms: u32,
    /// Who learns from it now. Known to whoever holds the gate, and not kept.
    pub reader: Reader,
}

/// Who learns of a scope that processes share.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Reader {
    /// Nobody: each gate goes on by the usual steps.
    #[default]
    Nobody,
    /// Some process, and what it says about the pace holds.
    Owner,
    /// Nobody can be reached: the pace stays as it is (F1).
    Unreachable,
}

/// Something that a learner must be told of by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    /// Events of a scope are numbered.
    pub number: u32,
    /// When it became known.
    pub at: Timestamp,
    /// What it is.
    pub what: What,
}

/// What a learner is told.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum What {
    /// A limit refused a request.
    Refused {
        /// What the refusal was.
        how: Refused,
        /// When the request started.
        sent: Timestamp,
        /// On the wire with it.
        in_flight: u32,
        /// The wait that was told.
        told: Option<Duration>,
    },
    /// The scope opened again after such a refusal.
    Reopened {
        /// When the probe started.
        probe: Timestamp,
    },
    /// It goes on at this pace, whatever was before.
    Interrupted {
        /// Starts a second.
        rate: f64,
        /// The pace at which it was refused; infinite where that is not known.
        limit: f64,
    },
    /// It goes on no faster than this.
    Slowed {
        /// Starts a second.
        rate: f64,
        /// The pace at which it will be refused.
        limit: f64,
    },
}

impl Diary {
    /// A request starts while the scope is open.
    pub(super) fn start(&mut self, now: Timestamp) {
        self.started = self.started.wrapping_add(1);
        self.starts.push(now);
        self.bound();
    }

    /// A request was let through.
    pub(super) fn accept(&mut self, in_flight: u32) {
        self.accepted = self.accepted.wrapping_add(1);
        self.on_wire = self.on_wire.wrapping_add(in_flight);
    }

    /// A limit refused a request.
    pub(super) fn refuse(&mut self, sent: Sent, told: Option<Duration>, how: Refused, now: Timestamp) {
        match how {
            Refused::Straggler => {}
            Refused::Probe if self.met => self.failed_probes = self.failed_probes.saturating_add(1),
            Refused::Probe | Refused::First => (self.met, self.failed_probes) = (true, 0),
        }
        self.write(now, What::Refused { how, sent: sent.at, in_flight: sent.in_flight, told });
    }

    /// The scope opened, and a limit had shut it.
    pub(super) fn reopen(&mut self, probe: Timestamp, now: Timestamp) {
        self.met = false;
        self.write(now, What::Reopened { probe });
    }

    /// The stretch is over.
    pub(super) fn interrupt(&mut self, rate: f64, limit: f64, now: Timestamp) {
        if self.started > 0 || self.number > 0 {
            self.met = false;
            self.write(now, What::Interrupted { rate, limit });
        }
    }

    pub(super) fn write(&mut self, at: Timestamp, what: What) {
        self.number = self.number.wrapping_add(1);
        self.events.push(Event { number: self.number, at, what });
        self.bound();
    }

    /// Events after the one of this number.
    pub fn events_after(&self, number: u32) -> impl Iterator<Item = &Event> + '_ {
        self.events.iter().filter(move |event| event.number.wrapping_sub(number) as i32 > 0)
    }

    /// Adds what made `mine` of `base`.
    pub fn add(&mut self, base: &Diary, mine: &Diary) {
        let started = mine.started.wrapping_sub(base.started) as i32;
        self.started = self.started.wrapping_add(started as u32);
        if started > 0 {
            let known = mine.starts.len().saturating_sub(started as usize);
            self.starts.extend_from_slice(&mine.starts[known..]);
        } else {
            // Starts that were taken back: they are the last ones that were there before.
            for start in base.starts.iter().rev().take(started.unsigned_abs() as usize) {
                if let Some(at) = self.starts.iter().rposition(|here| here == start) {
                    self.starts.remove(at);
                }
            }
        }
        self.used_us = self.used_us.wrapping_add(mine.used_us.wrapping_sub(base.used_us));
        self.accepted = self.accepted.wrapping_add(mine.accepted.wrapping_sub(base.accepted));
        self.on_wire = self.on_wire.wrapping_add(mine.on_wire.wrapping_sub(base.on_wire));
        for event in mine.events_after(base.number) {
            self.number = self.number.wrapping_add(1);
            self.events.push(Event { number: self.number, ..*event });
        }
        if self.window_ms == base.window_ms {
            self.window_ms = mine.window_ms;
        }
        self.bound();
    }

    /// Leaves out what the reader knows: all but the last so many starts, and the events up to this number.
    pub fn forget(&mut self, unread: u32, number: u32) {
        let read = self.starts.len().saturating_sub(unread as usize);
        self.starts.drain(..read);
        self.events.retain(|event| event.number.wrapping_sub(number) as i32 > 0);
    }

    fn bound(&mut self) {
        let old = self.starts.len().saturating_sub(STARTS);
        self.starts.drain(..old);
        while self.events.len() > EVENTS {
            let straggler =
                |event: &Event| matches!(event.what, What::Refused { how: Refused::Straggler, .. });
            let least = self.events.iter().position(straggler).unwrap_or(0);
            self.events.remove(least);
        }
    }
}

impl Gate {
    /// Whether some process has the scope's learner, and is told by the diary.
    pub(super) fn is_led(&self) -> bool {
        self.mind.diary().is_some_and(|diary| diary.reader == Reader::Owner)
    }

    /// What the owner has said about the first wait, for a refusal that told none. More than that it adds itself, once it hears.
    pub(super) fn owners_wait(&self, policy: &ScopePolicy) -> Option<Duration> {
        let diary = self.mind.diary().filter(|diary| diary.reader == Reader::Owner)?;
        let wait = match diary.first_wait_ms {
            0 => policy.backoff.base(),
            ms => Duration::from_millis(u64::from(ms)),
        };
        Some(wait.min(policy.pause_cap))
    }
}

/// Starts that are kept with their moments; of more only the number is known.
const STARTS: usize = 64;
/// Events that nobody has read yet.
const EVENTS: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_secs(1_000).plus(Duration::from_millis(ms))
    }

    #[test]
    fn l5_what_two_members_wrote_down_is_put_together() {
        let mut base = Diary::default();
        base.start(at(0));
        base.interrupt(1.0, 2.0, at(1));
        let (mut one, mut other) = (base.clone(), base.clone());
        one.start(at(10));
        one.accept(3);
        one.reopen(at(11), at(12));
        other.start(at(5));
        other.start(at(7));
        other.interrupt(3.0, 4.0, at(8));
        let mut both = other.clone();
        both.add(&base, &one);
        assert_eq!((both.started, both.accepted, both.on_wire), (4, 1, 3));
        assert_eq!(both.starts, [at(0), at(5), at(7), at(10)]);
        let numbers: Vec<u32> = both.events_after(1).map(|event| event.number).collect();
        assert_eq!((numbers.as_slice(), both.number), (&[2, 3][..], 3));
        both.add(&one, &base); // its start is taken back
        assert_eq!((both.started, both.starts.len()), (3, 3));
    }

    #[test]
    fn c4_a_diary_that_nobody_reads_stays_small() {
        let mut diary = Diary::default();
        let sent = Sent { at: at(0), ..Sent::default() };
        diary.refuse(sent, None, Refused::First, at(1));
        for i in 0..1000 {
            diary.start(at(i));
            diary.refuse(sent, None, Refused::Straggler, at(i));
        }
        assert!(diary.starts.len() <= STARTS && diary.events.len() <= EVENTS);
        assert_eq!(diary.started, 1000);
        assert!(matches!(diary.events[0].what, What::Refused { how: Refused::First, .. }), "it is kept");
    }
}
