//! Whether it is the requests on the wire that are limited, and how many there may be.
//!
//! A cap on requests in flight looks like a limit of the pace that cannot be pinned down: answers take one time now and
//! another then, so it refuses at any pace now and then. What gives it away is that it always refuses at the same number on
//! the wire. Then a trial is worth its price: that number less one, and no pace at all.

use super::Incident;

/// The cap on requests in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Wire {
    pub(super) cap: u32,
    pub(super) state: State,
    /// Accepted since `since`.
    count: f64,
    since: f64,
    /// The pace to go back to, and what it came to in the mean.
    pace: f64,
    sustained: f64,
    trials: u32,
    /// Refusals in a row with little between them.
    strikes: u32,
    /// The cap is one higher than what went well.
    raised: bool,
    /// The cap was tried one higher so often in vain.
    patience: u32,
    crowd: f64,
    seen: u32,
    met: Spread,
    due: Spread,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum State {
    /// Not limited, as far as anybody knows.
    Off,
    /// Being tried.
    Trial,
    /// It is what the server limits.
    On,
}

/// Mean and variance, with the past forgotten slowly.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Spread {
    mean: f64,
    variance: f64,
}

impl Spread {
    fn add(&mut self, value: f64, weight: f64) {
        let off = value - self.mean;
        self.mean += weight * off;
        self.variance = (1.0 - weight) * (self.variance + weight * off * off);
    }
}

impl Wire {
    pub(super) fn new() -> Wire {
        Wire {
            cap: u32::MAX,
            state: State::Off,
            count: 0.0,
            since: 0.0,
            pace: 0.0,
            sustained: 0.0,
            trials: 0,
            strikes: 0,
            raised: false,
            patience: 0,
            crowd: 0.0,
            seen: 0,
            met: Spread::default(),
            due: Spread::default(),
        }
    }

    /// A refusal while the pace was what is limited, or so it seemed; `due` is how many are on the wire at that pace.
    pub(super) fn note(&mut self, met: u32, due: f64) {
        let (met, due) = (f64::from(met), due.max(0.1));
        // A limit of the pace does not care how many more than usual are on the wire.
        let off = ((met - 1.0 - due) / due.sqrt()).clamp(-3.0, 3.0);
        self.crowd = (self.crowd + off - 0.3).max(0.0);
        self.seen += 1;
        let weight = (1.0 / f64::from(self.seen)).max(0.2);
        self.met.add(met.ln(), weight);
        self.due.add(due.ln(), weight);
    }

    /// The number on the wire was the same whatever the pace, or always more than usual.
    pub(super) fn is_suspect(&self) -> bool {
        self.crowd > 3.0 * f64::from(1 + self.trials)
            || self.seen >= 5 && self.due.variance > 0.006 && self.met.variance < 0.4 * self.due.variance
    }

    /// Tries one less than was refused. `pace` is where to go back to, `sustained` what must be beaten.
    pub(super) fn try_cap(&mut self, refused_at: u32, pace: f64, sustained: f64, now: f64) {
        *self = Wire {
            cap: refused_at.saturating_sub(1).max(1),
            state: State::Trial,
            since: now,
            pace,
            sustained,
            trials: self.trials,
            ..Wire::new()
        };
    }

    /// A request was let through. Returns the pace to go back to, where the trial has failed.
    pub(super) fn accepted(&mut self, in_flight: u32, burst: f64, may_grow: bool, now: f64) -> Option<f64> {
        self.count += 1.0;
        let time = now - self.since;
        match self.state {
            State::Off => None,
            State::Trial => {
                // More than the pace ever came to, and more than a burst that was saved up.
                if self.count >= 100.0 && self.count > 1.03 * self.sustained * time + burst {
                    self.state = State::On;
                    (self.count, self.since) = (0.0, now);
                    return None;
                }
                let slow = self.count >= 50.0 && time > 1.0 && self.count < 0.9 * self.sustained * time;
                (slow || time > LONGEST_TRIAL).then(|| self.give_up())
            }
            State::On => {
                if self.count >= 200.0 && self.count < self.sustained * time {
                    return Some(self.give_up()); // no more gets through than by pace: it was no cap
                }
                let due = (3.0 * f64::from(self.cap)).max(LEAST_BETWEEN) * f64::from(1u32 << self.patience);
                if self.count >= due && may_grow && in_flight >= self.cap {
                    self.cap += 1;
                    self.raised = true;
                    (self.count, self.since) = (0.0, now);
                }
                None
            }
        }
    }

    /// An incident under the cap is over. Returns the pace to go back to, where there is no cap after all.
    pub(super) fn incident(&mut self, it: &Incident, mean: f64, now: f64) -> Option<f64> {
        let trial = self.state == State::Trial;
        // One more was too many: that is what a cap is like, and nothing against it.
        let expected = std::mem::take(&mut self.raised);
        self.strikes = match expected {
            true => 0,
            false if self.count < 100.0 => self.strikes + 1,
            false => 1,
        };
        // One too many on the wire is one refusal; a whole flight of them is a limit of the pace.
        if self.strikes > 3 || it.refusals >= 4.0 {
            let pace = self.give_up();
            return Some(if trial { pace } else { mean });
        }
        self.patience = if trial { self.patience } else { (self.patience + 1).min(5) };
        self.cap = (self.cap - 1).min(it.in_flight.saturating_sub(1)).max(1);
        (self.count, self.since) = (0.0, now);
        None
    }

    fn give_up(&mut self) -> f64 {
        let pace = self.pace;
        *self = Wire { trials: self.trials + 1, ..Wire::new() };
        pace
    }
}

/// Seconds after which a trial that shows nothing has failed.
const LONGEST_TRIAL: f64 = 30.0;
/// One refusal for so many successes is within the budget (L3).
const LEAST_BETWEEN: f64 = 170.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l4_a_cap_is_told_from_a_pace_by_what_stays_the_same() {
        let mut cap = Wire::new();
        let mut pace = Wire::new();
        for rate in [70.0, 60.0, 50.0, 62.0, 48.0, 55.0, 45.0] {
            cap.note(9, rate * 0.14);
            pace.note((rate * 0.14) as u32 + 1, rate * 0.14);
        }
        assert!(cap.is_suspect(), "always nine on the wire, at whatever pace");
        assert!(!pace.is_suspect(), "as many as the pace puts there");
    }

    #[test]
    fn l4_a_trial_that_lets_no_more_through_is_given_up() {
        let mut wire = Wire::new();
        wire.try_cap(9, 40.0, 45.0, 0.0);
        let back = (1..200).find_map(|n| wire.accepted(8, 20.0, true, f64::from(n) / 30.0));
        assert_eq!((back, wire.state, wire.cap), (Some(40.0), State::Off, u32::MAX));
        wire.try_cap(9, 40.0, 45.0, 0.0);
        let back = (1..600).find_map(|n| wire.accepted(8, 20.0, true, f64::from(n) / 60.0));
        assert_eq!((back, wire.state), (None, State::On), "a third more gets through");
    }
}
