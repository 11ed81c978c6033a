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

/// How many are on the wire with what is refused, against with what is let through. A limit of the pace refuses with as many as
/// usual. A cap refuses with more, and never with fewer than it allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Crowd {
    usual: Spread,
    /// The usual time between two starts.
    spacing: f64,
    passed: u32,
    refusals: u32,
    /// How far beyond the usual they were together, in deviations.
    beyond: f64,
    /// The fewest with a refusal, and how often they were so few.
    fewest: u32,
    times: u32,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        Crowd {
            usual: Spread::default(),
            spacing: 0.0,
            passed: 0,
            refusals: 0,
            beyond: 0.0,
            fewest: u32::MAX,
            times: 0,
        }
    }

    /// One was let through, with so many on the wire, while a start came every `spacing` seconds.
    pub(super) fn passed(&mut self, in_flight: u32, spacing: f64) {
        self.passed = (self.passed + 1).min(64);
        let weight = 1.0 / f64::from(self.passed);
        self.usual.add(f64::from(in_flight), weight);
        self.spacing += weight * (spacing - self.spacing);
    }

    /// An incident began, with so many on the wire.
    pub(super) fn refused(&mut self, in_flight: u32, spacing: f64) {
        self.refusals = self.refusals.saturating_add(1);
        if self.refusals <= STARTING {
            return; // while it doubles, more than usual are on the wire in any case
        }
        // Whoever starts faster than usual has more on the wire.
        let usual = self.usual.mean * (self.spacing / spacing.max(1e-9)).max(1.0);
        let off = (f64::from(in_flight) - usual) / self.usual.variance.sqrt().max(0.5);
        self.beyond += off.clamp(-4.0, 4.0);
        match in_flight.cmp(&self.fewest) {
            std::cmp::Ordering::Less => (self.fewest, self.times) = (in_flight, 1),
            std::cmp::Ordering::Equal => self.times = self.times.saturating_add(1),
            std::cmp::Ordering::Greater => {}
        }
    }

    /// How far beyond the usual in the mean, and how far that is from chance, in deviations.
    fn excess(&self) -> (f64, f64) {
        let n = f64::from(self.refusals.saturating_sub(STARTING)).max(1.0);
        (self.beyond / n, self.beyond / n.sqrt())
    }

    /// There is a cap: zero where it is not known, since so few on the wire were refused but once.
    pub(super) fn cap(&self) -> Option<u32> {
        let (mean, sure) = self.excess();
        let met = self.refusals >= STARTING + 6;
        (met && mean >= 0.22 && sure >= 3.8)
            .then(|| if self.times >= 2 { self.fewest.saturating_sub(1) } else { 0 })
    }

    /// There may be one.
    pub(super) fn is_suspect(&self) -> bool {
        self.excess().1 >= 2.5
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

/// So many incidents belong to the start.
const STARTING: u32 = 2;
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
    fn l4_a_cap_is_named_by_how_many_are_on_the_wire_with_what_is_refused() {
        let (mut cap, mut pace) = (Crowd::new(), Crowd::new());
        for i in 0..40u32 {
            // Between five and nine, as service times will have it.
            for crowd in [&mut cap, &mut pace] {
                (0..25).for_each(|k| crowd.passed(5 + (i * 7 + k * 3) % 5, 0.1));
            }
            cap.refused(9 + i % 2, 0.1);
            pace.refused(5 + (i * 3) % 5, 0.1);
        }
        assert_eq!((cap.cap(), pace.cap()), (Some(8), None));
        assert!(!pace.is_suspect(), "as many as usual");
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
