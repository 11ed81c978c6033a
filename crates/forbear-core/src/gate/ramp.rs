//! The slots of a scope: its pace, where a pause ends and starts go on (B4, L1).
//!
//! Each start takes the next slot, so no two waiters ever wake together. How fast the slots come is the learner's word where the
//! scope has one, and follows the same steps where it has none: doubling until the first refusal, then up to the pace that was
//! refused and carefully beyond. After an overload the pace goes from a tenth to the whole, which is nobody's guess.

use std::time::Duration;

use crate::{learn, time::Timestamp};

/// The pace of a scope in starts a second; none where nothing limits it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ramp {
    pub(super) rate: f32,
    /// The pace at which it was last refused; infinite where it never was.
    pub(super) bad: f32,
    pub(super) form: Form,
    /// When the next slot is, in nanoseconds.
    pub(super) next_ns: u64,
    /// Starts that a pause has left over, to be made up for.
    pub(super) credit: f32,
    /// When it began to grow by time, in milliseconds, wrapping.
    pub(super) began_ms: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Free,
    Paced,
    /// From a tenth to the whole of a good pace, over a time that has begun; then paced if it `learns`, else free.
    Linear {
        over_ms: u32,
        goal: f32,
        learns: bool,
    },
}

/// What happened since the scope opened last, as far as a way up by time depends on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) accepted: u32,
    pub(super) open: Duration,
    pub(super) round_trip: Duration,
}

impl Ramp {
    pub(super) const FREE: Ramp = Ramp {
        rate: f32::INFINITY,
        bad: f32::INFINITY,
        form: Form::Free,
        next_ns: 0,
        credit: 0.0,
        began_ms: 0,
    };

    /// At `rate`, and refused at `bad` (infinite: never, so it doubles).
    pub(super) fn paced(rate: f32, bad: f32) -> Ramp {
        if !rate.is_finite() {
            return Ramp::FREE;
        }
        let bad = if bad > 0.0 { bad } else { f32::INFINITY };
        Ramp { rate: rate.max(SLOWEST), bad, form: Form::Paced, ..Ramp::FREE }
    }

    /// The way back by time: after an overload, or where the pace is configured and not learned. Returns whether it is one: of a
    /// stretch with nothing in it there is no pace to come back to.
    pub(super) fn climb(&mut self, stretch: Stretch, learns: bool, now: Timestamp) -> bool {
        if stretch.accepted == 0 {
            return false;
        }
        let over = Duration::from_secs(10).max(stretch.round_trip * 20);
        let over_ms = u32::try_from(over.as_millis()).unwrap_or(u32::MAX);
        // What was let through while nothing metered it is a good pace, and the wall may be far above. A metered pace that was
        // refused is no good one; nor is the mean over a way up, or each one would end lower.
        let metered = self.form != Form::Free;
        let open_rate = stretch.accepted as f32 / stretch.open.as_secs_f32().max(1.0);
        let goal = (if metered { self.rate * 0.7 } else { open_rate }).max(SLOWEST);
        self.bad = if metered { self.rate } else { f32::INFINITY };
        (self.rate, self.form) = ((goal * 0.1).max(SLOWEST), Form::Linear { over_ms, goal, learns });
        self.began_ms = milliseconds(now);
        self.resume(now, 0.0);
        true
    }

    /// Slots from `now` on, and so many starts to make up for.
    pub(super) fn resume(&mut self, now: Timestamp, credit: f64) {
        self.credit = credit as f32;
        self.next_ns = nanos(now).saturating_add(self.slot_ns(1));
    }

    /// Another pace from the next slot on.
    pub(super) fn set(&mut self, rate: f64, bad: f64) {
        if self.form == Form::Free {
            *self = Ramp::FREE;
            self.form = Form::Paced;
        }
        (self.rate, self.bad) = ((rate as f32).max(SLOWEST), bad as f32);
    }

    /// The earliest start.
    pub(super) fn earliest(&self) -> Timestamp {
        if self.form == Form::Free {
            return Timestamp::ZERO;
        }
        Timestamp::from_micros(self.next_ns.div_ceil(1000))
    }

    /// For how much more time the pace has been used up by a start at `now`. Until the first refusal a start that comes late
    /// counts as well: what it waited for was a place on the wire, or the way up itself. After that a slot that nobody wanted is
    /// no evidence.
    pub(super) fn used(&self, now: Timestamp) -> Duration {
        let gap = self.slot_ns(1);
        let late = nanos(now).saturating_sub(self.next_ns);
        Duration::from_nanos(if self.bad.is_infinite() {
            late.saturating_add(gap).min(gap.saturating_mul(2))
        } else if late <= tolerance(gap) {
            if self.credit > 0.0 { gap / 3 * 2 } else { gap }
        } else {
            0
        })
    }

    /// The pace after that time, where no learner says it.
    pub(super) fn grown(&self, used: Duration, round_trip: Duration) -> f64 {
        learn::grown(f64::from(self.rate), f64::from(self.bad), used, round_trip)
    }

    /// Steps on the way up by time. Returns the pace that it ends with, once it is up.
    pub(super) fn step(&mut self, now: Timestamp) -> Option<f32> {
        let Form::Linear { over_ms, goal, learns } = self.form else { return None };
        let since = milliseconds(now).wrapping_sub(self.began_ms);
        let share = since as f32 / over_ms as f32;
        if share < 1.0 {
            self.rate = (goal * (0.1 + 0.9 * share)).max(SLOWEST);
            return None;
        }
        if !learns {
            *self = Ramp::FREE;
            return None;
        }
        // Up, and on from there by steps: what waited meanwhile must not all start now.
        (self.rate, self.form) = (goal.max(SLOWEST), Form::Paced);
        Some(self.rate)
    }

    /// A start at `now` takes its slot.
    pub(super) fn take(&mut self, now: Timestamp, cost: u32) {
        if self.form == Form::Free {
            return;
        }
        let mut gap = self.slot_ns(cost);
        if self.credit > 0.0 {
            // Half as fast again: in twice the pause all of it is made up for, and what is on the wire stays small.
            gap = gap / 3 * 2;
            self.credit -= cost as f32 / 3.0;
        }
        // A worker that comes a little late to its slot moves none of those after it.
        let from = self.next_ns.max(nanos(now).saturating_sub(tolerance(gap)));
        self.next_ns = from.saturating_add(gap);
    }

    /// So many slots pass unused.
    pub(super) fn skip(&mut self, now: Timestamp, starts: f64) {
        if self.form != Form::Free {
            let step = self.slot_ns(1) as f64 * starts.max(0.0);
            self.next_ns = self.next_ns.max(nanos(now)).saturating_add(step as u64);
        }
    }

    /// Starts a second, where something limits them.
    pub(super) fn rate(&self) -> Option<f32> {
        (self.form != Form::Free).then_some(self.rate)
    }

    /// The pace at which it was last refused, where that is known.
    pub(super) fn bad(&self) -> Option<f32> {
        self.bad.is_finite().then_some(self.bad)
    }

    /// On the way up: by time, or to where it was refused.
    pub(super) fn is_climbing(&self) -> bool {
        match self.form {
            Form::Free => false,
            Form::Linear { .. } => true,
            Form::Paced => self.rate < 0.9 * self.bad,
        }
    }

    /// How long after a start of this cost the next one is.
    fn slot_ns(&self, cost: u32) -> u64 {
        let (rate, cost) = (f64::from(self.rate), f64::from(cost));
        let seconds = match self.form {
            // The pace grows while the next one waits: at a tenth of a slow pace it would wait for longer than the way
            // up takes. d solves rate * d + growth / 2 * d * d = cost.
            Form::Linear { over_ms, goal, .. } => {
                let growth = 0.9 * f64::from(goal) * 1000.0 / f64::from(over_ms.max(1));
                let d = ((rate * rate + 2.0 * growth * cost).sqrt() - rate) / growth;
                d.max(cost / f64::from(goal))
            }
            _ => cost / rate,
        };
        (seconds * 1e9) as u64
    }
}

/// How late a start may come to its slot without losing it: half of the way to the next, and what a busy machine needs.
fn tolerance(gap_ns: u64) -> u64 {
    (gap_ns / 2).max(LATE_NS)
}

fn nanos(t: Timestamp) -> u64 {
    t.as_micros().saturating_mul(1000)
}

pub(super) fn milliseconds(t: Timestamp) -> u32 {
    (t.as_micros() / 1000) as u32
}

/// Slots at just under a known pace (B4).
pub(super) const UNDER: f32 = 0.97;
/// One start in a day: slower than this is a pause, not a pace.
pub(super) const SLOWEST: f32 = 1.0 / 86_400.0;
/// A pace that nobody reaches with one process is none.
pub(super) const FREE_ABOVE: f64 = 20_000.0;
/// A start that comes so late is on time.
const LATE_NS: u64 = 1_000_000;
