//! The way back after a pause, and the pace that follows from how it goes (B4, L1).
//!
//! A reopened scope is metered in slots: each start takes the next one, so no two waiters ever wake together. The pace of
//! the slots comes from what is known: from the server's own numbers, else from what was accepted in the time between two
//! refusals, which estimates every kind of limiter as long as more was offered than allowed.

use std::time::Duration;

use crate::time::Timestamp;

/// Why a scope was shut, as far as the way back depends on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Reason {
    /// A limit with a told time: the pace is met, the time was enough.
    Told,
    /// A limit that said nothing.
    Untold,
    /// The server was overloaded.
    Overload,
    /// A budget was used up, and nothing was refused.
    Reset,
    /// Whatever it was: the pace is configured, not learned, and the way back ends where it began.
    Configured,
}

/// What happened since the refusal before this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) accepted: u32,
    /// From the reopening to the refusal.
    pub(super) open: Duration,
    /// From the earlier refusal to now, the pause included.
    pub(super) total: Duration,
    /// Starts a second by the server's own numbers, where it gave them.
    pub(super) stated: Option<f32>,
    pub(super) round_trip: Duration,
}

/// The pace of a scope in starts a second; none where nothing limits it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ramp {
    pub(super) rate: f32,
    /// The pace at which it was last refused.
    pub(super) bad: f32,
    pub(super) form: Form,
    /// When the next slot is, in nanoseconds.
    pub(super) next_ns: u64,
    /// When it grew last, in milliseconds, wrapping.
    pub(super) stepped_ms: u32,
    pub(super) accepted: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Form {
    Free,
    /// Growing by steps from a guess.
    Growing,
    /// At the server's own number, which does not grow by hoping.
    Stated,
    /// From a tenth to the whole of a good pace, over a time that began with the last step; then as `learns` says:
    /// growing, or free.
    Linear {
        over_ms: u32,
        goal: f32,
        learns: bool,
    },
}

impl Ramp {
    pub(super) const FREE: Ramp = Ramp {
        rate: f32::INFINITY,
        bad: f32::INFINITY,
        form: Form::Free,
        next_ns: 0,
        stepped_ms: 0,
        accepted: 0,
    };

    /// The scope opens again, after `stretch`.
    pub(super) fn reopen(&mut self, reason: Reason, stretch: Stretch, now: Timestamp) {
        let accepted = stretch.accepted as f32;
        // A burst of a few milliseconds says nothing about a pace: it is spread over a second at least.
        let open_rate = accepted / stretch.open.as_secs_f32().max(1.0);
        let mean = accepted / stretch.total.as_secs_f32().max(0.1);
        let paced = matches!(self.form, Form::Growing | Form::Stated);
        (self.rate, self.form) = match (reason, stretch.stated) {
            (Reason::Overload | Reason::Configured, _) if stretch.accepted > 0 => {
                let over = Duration::from_secs(10).max(stretch.round_trip * 20);
                let over_ms = u32::try_from(over.as_millis()).unwrap_or(u32::MAX);
                // What was let through while nothing metered it is a good pace, and the wall may be far above. A metered
                // pace that was refused is no good one; nor is the mean over a way up, or each one would end lower.
                let metered = self.form != Form::Free;
                let goal = if metered { self.rate * 0.7 } else { open_rate };
                self.bad = if metered { self.rate } else { f32::INFINITY };
                (goal * 0.1, Form::Linear { over_ms, goal, learns: reason == Reason::Overload })
            }
            (Reason::Told | Reason::Untold | Reason::Reset, Some(stated)) => (stated * UNDER, Form::Stated),
            // The next budget is counted as well, so all that is needed is a start that is no herd.
            (Reason::Reset, None) => {
                self.bad = f32::INFINITY;
                (mean.max(FLOOR), Form::Growing)
            }
            (reason, _) if paced => {
                // The step before this one went well, and the limit lies between.
                self.bad = self.rate * 0.9;
                let half = self.rate * 0.5;
                let rate = match reason {
                    Reason::Told if accepted >= 10.0 => (mean * UNDER).clamp(half, self.rate * 0.9),
                    _ => half,
                };
                (rate, Form::Growing)
            }
            _ => {
                let known = accepted >= 3.0;
                // It was growing when it was refused, so it was faster at the end than in the mean.
                self.bad = if known { open_rate * 2.0 } else { f32::INFINITY };
                let rate = if known { mean.min(open_rate * 0.5).max(open_rate * 0.1) } else { FLOOR };
                (rate, Form::Growing)
            }
        };
        self.rate = self.rate.max(SLOWEST);
        self.stepped_ms = milliseconds(now);
        self.accepted = 0;
        self.next_ns = now.as_micros().saturating_mul(1000).saturating_add(self.slot_ns(1));
    }

    /// The server said what it allows, before it refused anything: a limit that shrinks to what we send is met at once.
    pub(super) fn stated(&mut self, rate: f32) {
        if self.form == Form::Stated {
            self.rate = (rate * UNDER).max(SLOWEST);
        }
    }

    /// The earliest start.
    pub(super) fn earliest(&self) -> Timestamp {
        if self.form == Form::Free {
            return Timestamp::ZERO;
        }
        Timestamp::from_micros(self.next_ns.div_ceil(1000))
    }

    /// A start at `now` takes its slot.
    pub(super) fn take(&mut self, now: Timestamp, cost: u32) {
        if let Form::Linear { over_ms, goal, learns } = self.form {
            let share = self.since_step(now).as_secs_f32() * 1000.0 / over_ms as f32;
            if share < 1.0 {
                self.rate = (goal * (0.1 + 0.9 * share)).max(SLOWEST);
            } else if learns {
                // Up, and on from there by steps: what waited meanwhile must not all start now.
                (self.rate, self.form, self.accepted) = (goal.max(SLOWEST), Form::Growing, 0);
                self.stepped_ms = milliseconds(now);
            } else {
                *self = Ramp::FREE;
            }
        }
        if self.form != Form::Free {
            let now_ns = now.as_micros().saturating_mul(1000);
            self.next_ns = self.next_ns.max(now_ns).saturating_add(self.slot_ns(cost));
        }
    }

    /// So many slots pass unused.
    pub(super) fn skip(&mut self, now: Timestamp, starts: f64) {
        if self.form != Form::Free {
            let step = self.slot_ns(1) as f64 * starts.max(0.0);
            self.next_ns = self.next_ns.max(now.as_micros().saturating_mul(1000)).saturating_add(step as u64);
        }
    }

    /// A success: after enough of them at this pace it grows by a step. Nothing grows on no evidence: a pace that was not
    /// used up has not been tried.
    pub(super) fn succeeded(&mut self, now: Timestamp) {
        if self.form != Form::Growing {
            return;
        }
        self.accepted += 1;
        let below = self.rate < self.bad * 0.95;
        let step = Duration::from_secs_f32((1.5 / self.rate).max(0.25));
        let step = if below { step } else { (step * 10).max(Duration::from_secs(30)) };
        let elapsed = self.since_step(now);
        if elapsed < step {
            return;
        }
        if self.accepted as f32 >= self.rate * elapsed.as_secs_f32() * 0.5 {
            let factor = if self.bad.is_infinite() {
                2.0
            } else if below {
                1.15
            } else {
                1.05
            };
            let limit = if below && self.bad.is_finite() { self.bad * 0.96 } else { f32::INFINITY };
            self.rate = (self.rate * factor).min(limit);
            if self.rate > FREE_ABOVE {
                *self = Ramp::FREE;
                return;
            }
        }
        self.stepped_ms = milliseconds(now);
        self.accepted = 0;
    }

    /// Starts a second, where something limits them.
    pub(super) fn rate(&self) -> Option<f32> {
        (self.form != Form::Free).then_some(self.rate)
    }

    /// The pace at which it was last refused, where that is known.
    pub(super) fn bad(&self) -> Option<f32> {
        self.bad.is_finite().then_some(self.bad)
    }

    /// As it was kept by a store.
    pub(super) fn restore(rate: f32, bad: Option<f32>, now: Timestamp) -> Ramp {
        let rate = rate.max(SLOWEST);
        if !rate.is_finite() {
            return Ramp::FREE;
        }
        Ramp {
            rate,
            bad: bad.unwrap_or(f32::INFINITY),
            form: Form::Growing,
            stepped_ms: milliseconds(now),
            ..Ramp::FREE
        }
    }

    /// Steps are seconds apart: after 49 days one of them may come late.
    fn since_step(&self, now: Timestamp) -> Duration {
        Duration::from_millis(u64::from(milliseconds(now).wrapping_sub(self.stepped_ms)))
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

pub(super) fn milliseconds(t: Timestamp) -> u32 {
    (t.as_micros() / 1000) as u32
}

/// Slots at just under a known pace (B4).
const UNDER: f32 = 0.97;
/// Where next to nothing was accepted the way back starts at two a second, and doubles.
const FLOOR: f32 = 2.0;
/// One start in a day: slower than this is a pause, not a pace.
pub(super) const SLOWEST: f32 = 1.0 / 86_400.0;
/// A pace that nobody reaches with one process is none.
const FREE_ABOVE: f32 = 20_000.0;
