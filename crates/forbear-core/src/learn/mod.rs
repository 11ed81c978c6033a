//! What a limit is that nobody told, learned from what comes back (L1-L5).
//!
//! A [`Learner`] belongs to one scope. It paces its starts, looks now and then for the wall, and from every time that it met
//! it learns: each refusal ends a *stretch*, and what was let through in it is measured against hypotheses on what may stand
//! there (`fit`). A token bucket, a fixed window, a sliding one each have a level that is the same at every refusal, and never
//! higher at anything that was let through; the numbers for which that holds are the limit's. Where no hypothesis holds, as
//! with a limit that moves, the pace follows from what was let through from one refusal to the next, which is right for every
//! limiter as long as more was offered than allowed. What looking costs is paid from a budget (L3).
//!
//! The learner says how fast and how many at once, and how long to wait when nobody told. The slots, the pause itself, its one
//! probe and the promises that go with them are the gate's. A learner is its owner's: what of it lies in a scope's record is
//! [`Kept`].

use std::time::Duration;

use crate::time::Timestamp;

mod belief;
mod budget;
mod climb;
#[cfg(test)]
mod drive;
mod fit;
mod history;
mod kept;
mod likely;
mod model;
mod name;
mod recovery;
mod settle;
mod study;
mod wire;

pub use belief::{Belief, Evidence, Kind};
use budget::Budget;
use climb::{Climb, Ground};
use history::Seen;
pub use kept::Kept;
use model::Model;
use recovery::Recovery;
use settle::Settle;
pub use study::{Findings, Study};
use wire::{Crowd, State, Wire};

/// What a refusal was, for the learner.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Refused {
    /// The first one: the scope closes.
    First,
    /// It was on the wire when the scope closed (P3).
    Straggler,
    /// It probed.
    Probe,
}

/// Learns the limit of one scope.
///
/// ```
/// use forbear_core::{learn::{Learner, Past, Refused}, time::Timestamp};
/// use std::time::Duration;
///
/// let mut now = Timestamp::from_secs(1_000);
/// let mut learner = Learner::new(&Past::none(now, 2.0));
/// for _ in 0..40 {
///     let gap = Duration::from_secs_f64(1.0 / learner.rate());
///     now = now.plus(gap);
///     learner.started(now, 1, gap);
///     learner.accepted(now, 1, now.plus(Duration::from_millis(5)));
/// }
/// assert!(learner.rate() > 10.0, "nothing was refused: it doubles");
/// let wait = learner.refused(now, 1, None, Refused::First, now);
/// assert!(wait >= Duration::from_millis(500));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Learner {
    epoch: Timestamp,
    /// Starts a second.
    rate: f64,
    climb: Climb,
    budget: Budget,
    recovery: Recovery,
    model: Model,
    wire: Wire,
    crowd: Crowd,
    settle: Settle,
    incident: Incident,
    /// An incident is over, and its stretch waits for what explains it.
    due: Option<Due>,
    /// The mean from start to answer, in seconds; times are in seconds since `epoch`.
    round_trip: f64,
    /// The refusal before, and the reopening after it.
    exhausted: f64,
    opened: f64,
    /// Let through since.
    accepted: f64,
    /// Each refusal starts a time of refusals: what shuts it is no window that must be waited for.
    punishes: bool,
    /// Let through until the first refusal of all: no bucket holds more.
    burst: f64,
    /// And how long that took.
    burst_time: f64,
    /// Let through in the last minutes, and the time that it took.
    sustained: (f64, f64),
    /// Starts a second by the server's own numbers; infinite where it gave none.
    stated: f64,
    stated_window: Option<Duration>,
    /// The last start, and the mean time between starts.
    last: f64,
    spacing: f64,
    /// Refused, and not open again.
    shut: bool,
    evidence: Evidence,
    /// The limit bans who is refused again and again: so long lay between the refusals that it did it for, in seconds; zero where
    /// it never did.
    banned: f64,
    /// What was believed before a restart.
    prior: Option<Belief>,
    /// Starts a second that are configured; infinite where none are.
    configured: f64,
    /// They were refused once, and are tried again.
    insists: bool,
}

/// One time that the wall was met.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Incident {
    /// Its first refusal.
    at: f64,
    /// Starts a second at that time.
    pace: f64,
    /// Let through since the one before.
    accepted: f64,
    refusals: f64,
    last_refusal: f64,
    failed_probes: u32,
    /// Probes that were answered that we are unwanted.
    blocked: u32,
    /// The least on the wire with a request that was refused, and with the first of them.
    in_flight: u32,
    met: u32,
}

/// A stretch that is over.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Due {
    it: Incident,
    /// The incident before, and the reopening after it.
    exhausted: f64,
    opened: f64,
    /// The probe that was let through, and when its answer came.
    probe: f64,
    ended: f64,
}

/// What a scope went through before it had a learner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Past {
    /// Since when.
    pub since: Timestamp,
    /// The last start.
    pub until: Timestamp,
    /// Starts, by what they count for.
    pub starts: f64,
    /// Let through.
    pub accepted: u32,
    /// Starts a second, at the end.
    pub rate: f64,
    /// The pace at which it was refused, where that is known from before; infinite where it never was.
    pub limit: f64,
    /// The mean time from start to answer.
    pub round_trip: Duration,
    /// Starts a second that are configured; infinite where none are.
    pub configured: f64,
    /// The first wait that nobody told (the policy's `backoff_base`).
    pub first_wait: Duration,
}

impl Past {
    /// Nothing yet, and so many starts a second to begin with.
    #[must_use]
    pub fn none(now: Timestamp, rate: f64) -> Past {
        Past {
            since: now,
            until: now,
            starts: 0.0,
            accepted: 0,
            rate,
            limit: f64::INFINITY,
            round_trip: Duration::ZERO,
            configured: f64::INFINITY,
            first_wait: Duration::from_secs(1),
        }
    }
}

impl Learner {
    /// Knows nothing but what the scope went through.
    #[must_use]
    pub fn new(past: &Past) -> Learner {
        let mut learner = Learner {
            epoch: past.since,
            rate: past.rate.max(SLOWEST),
            climb: Climb::new(),
            budget: Budget::new(),
            recovery: Recovery::new(past.first_wait.as_secs_f64()),
            model: Model::new(),
            wire: Wire::new(),
            crowd: Crowd::new(),
            settle: Settle::new(),
            incident: Incident::default(),
            due: None,
            round_trip: past.round_trip.as_secs_f64(),
            exhausted: 0.0,
            opened: 0.0,
            accepted: f64::from(past.accepted),
            punishes: false,
            burst: 0.0,
            burst_time: 0.0,
            sustained: (0.0, 0.0),
            stated: f64::INFINITY,
            stated_window: None,
            last: 0.0,
            spacing: 0.0,
            shut: false,
            banned: 0.0,
            evidence: Evidence { since: past.since, accepted: past.accepted, ..Evidence::default() },
            prior: None,
            configured: past.configured,
            insists: false,
        };
        if past.limit.is_finite() && past.limit > 0.0 {
            learner.climb.set(learner.rate, past.limit, learner.settle.margin());
        }
        learner.last = learner.clock(past.until);
        learner.spacing = 1.0 / learner.rate;
        learner.model.history.join(learner.last, past.starts);
        learner
    }

    fn clock(&self, at: Timestamp) -> f64 {
        at.since(self.epoch).as_secs_f64()
    }

    /// Requests on the wire at most; [`u32::MAX`] while it is not them that are limited.
    #[must_use]
    pub fn cap(&self) -> u32 {
        self.wire.cap
    }

    /// Starts a second.
    #[must_use]
    pub fn rate(&self) -> f64 {
        self.rate
    }

    /// A request starts, and counts for `cost`; `used` is how much more time the pace was used up for. A slot that nobody wanted
    /// is no evidence, and nothing grows from it.
    pub fn started(&mut self, now: Timestamp, cost: u32, used: Duration) {
        let now = self.clock(now);
        if self.wire.state == State::Off && (self.climb.starting || !self.budget.is_spent()) {
            let ground = self.ground();
            self.rate = self.climb.grown(self.rate, used.as_secs_f64(), &ground);
            if !self.climb.starting {
                self.rate = self.rate.min(self.stated * UNDER); // who tells a limit is not asked for more
            } else if self.insists {
                self.rate = self.rate.min(self.configured);
            }
        }
        self.spacing += ((now - self.last).min(1.0) - self.spacing) / 8.0;
        self.last = now;
        self.model.history.started(now, f64::from(cost));
    }

    /// A probe starts.
    pub fn probed(&mut self, now: Timestamp) {
        let now = self.clock(now);
        self.model.history.probed(now);
    }

    fn ground(&self) -> Ground {
        self.ground_at(self.rate)
    }

    fn ground_at(&self, rate: f64) -> Ground {
        Ground {
            round_trip: self.round_trip,
            margin: self.settle.margin(),
            // Who was banned for being refused so often is refused far more rarely.
            period: self
                .budget
                .period(rate, self.round_trip, self.recovery.longest(), self.settle.calm())
                .max(SPARSE * self.banned),
            shut: self.recovery.longest(),
            punishes: self.punishes,
        }
    }

    /// A request that had started at `sent`, with `in_flight` on the wire, was let through.
    pub fn accepted(&mut self, sent: Timestamp, in_flight: u32, now: Timestamp) {
        let (sent, now) = (self.clock(sent), self.clock(now));
        let sample = now - sent;
        self.round_trip =
            if self.round_trip == 0.0 { sample } else { self.round_trip + (sample - self.round_trip) / 16.0 };
        self.budget.accepted();
        self.crowd.passed(in_flight, self.spacing);
        self.evidence.accepted = self.evidence.accepted.saturating_add(1);
        self.accepted += 1.0;
        if self.wire.state != State::Off {
            let may_grow = !self.budget.is_spent();
            if let Some(pace) = self.wire.accepted(in_flight, self.burst, may_grow, now) {
                self.rate = pace;
            }
        }
    }

    /// A request that had started at `sent`, with `in_flight` on the wire, was refused. Returns how long to wait from `now`
    /// on where nothing was `told`; zero for a straggler, which prolongs nothing.
    pub fn refused(
        &mut self,
        sent: Timestamp,
        in_flight: u32,
        told: Option<Duration>,
        how: Refused,
        now: Timestamp,
    ) -> Duration {
        let (sent, now) = (self.clock(sent), self.clock(now));
        if how == Refused::First {
            self.conclude();
        }
        // What shut the scope before was nothing that was learned from: then the probe is where it began.
        let how = if how == Refused::Probe && !self.shut { Refused::First } else { how };
        self.shut |= how == Refused::First;
        self.evidence.incidents += u32::from(how == Refused::First);
        self.evidence.refused = self.evidence.refused.saturating_add(1);
        self.model.history.refused(sent, how == Refused::First);
        if how == Refused::Straggler && self.climb.starting {
            self.budget.unavoidable();
        } else {
            self.budget.refused();
        }
        if how != Refused::Straggler {
            let told = told.map_or(-1.0, |told| told.as_secs_f32());
            self.model.keep(Seen { at: sent, probe: how == Refused::Probe, told });
        }
        let it = &mut self.incident;
        let gap = now - it.last_refusal;
        let wait = match how {
            Refused::First => {
                if self.wire.state == State::Off {
                    self.crowd.refused(in_flight, self.spacing);
                }
                // A pace that nobody used up is not the one that was refused.
                let pace = self.rate.min(2.0 / self.spacing.max(1e-9));
                *it = Incident {
                    at: now,
                    pace,
                    accepted: self.accepted,
                    refusals: 1.0,
                    last_refusal: now,
                    failed_probes: 0,
                    blocked: 0,
                    in_flight,
                    met: in_flight,
                };
                let floor = self.round_trip.max(2.0 / pace.min(UNPACED));
                let wait = self.recovery.first_wait(floor);
                // Where many were on the wire there are two probes in all, and what was used up so soon may be a short window.
                let many = self.climb.starting && f64::from(in_flight) > recovery::MANY;
                let patient = many && now - self.opened < recovery::PATIENT;
                let predicted = self.recovery.believed(self.model.predicted_wait(now));
                if patient { wait.max(recovery::PATIENT) } else { wait }.max(predicted)
            }
            Refused::Straggler => {
                it.refusals += 1.0;
                it.last_refusal = now;
                it.in_flight = it.in_flight.min(in_flight);
                0.0
            }
            Refused::Probe => {
                it.refusals += 1.0;
                it.failed_probes += 1;
                it.last_refusal = now;
                self.recovery.was_shut(sent - it.at);
                self.recovery.next_wait(gap, self.model.predicted_wait(now), it.refusals)
            }
        };
        if told.is_some() { Duration::ZERO } else { Duration::from_secs_f64(wait.min(LONGEST_WAIT)) }
    }

    /// The probe that had started at `sent` was answered that we are unwanted. It was not let through. One such page may be
    /// forbidden to all; two in a row after a refusal are a ban for it.
    pub fn blocked(&mut self, sent: Timestamp) {
        let sent = self.clock(sent);
        if self.shut {
            self.model.history.refused(sent, false);
            self.incident.blocked += 1;
        }
    }

    /// The probe that had started at `sent` was let through: the scope opens again. Returns how many starts more than the pace
    /// may be made up for. Where [`Learner::study`] has something, the pace is one to begin with until that is done.
    pub fn reopened(&mut self, sent: Timestamp, now: Timestamp) -> f64 {
        let (probe, now) = (self.clock(sent), self.clock(now));
        self.shut = false;
        self.last = now; // a pause is no time between two starts
        let it = self.incident;
        self.recovery.passed(probe - it.last_refusal, now - it.at);
        let due = Due { it, exhausted: self.exhausted, opened: self.opened, probe, ended: now };
        (self.exhausted, self.opened, self.accepted) = (it.at, now, 1.0);
        if self.wire.state != State::Off {
            let mean = it.accepted / (it.at - due.exhausted).max(1e-3);
            if let Some(pace) = self.wire.incident(&it, mean, now) {
                self.rate = pace.max(SLOWEST);
            }
            return 0.0;
        }
        let turn = self.model.incident(&it, due.exhausted, self.round_trip, probe);
        if turn.moved {
            self.settle.moved();
            self.prior = None;
            self.crowd = Crowd::new();
        }
        if turn.search {
            self.due = Some(due);
            self.rate = (0.5 * it.pace).max(SLOWEST);
            return 0.0;
        }
        self.find_pace(&due)
    }

    /// Whether it was refused, and has not been told of an opening.
    #[must_use]
    pub fn is_shut(&self) -> bool {
        self.shut
    }

    /// The mean time from start to answer.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        Duration::from_secs_f64(self.round_trip.clamp(0.0, LONGEST_WAIT))
    }

    /// The pace at which it expects to be refused; infinite while nothing was.
    #[must_use]
    pub fn limit(&self) -> f64 {
        self.climb.limit
    }

    /// Probes that were refused since the scope closed.
    #[must_use]
    pub fn failed_probes(&self) -> u32 {
        self.incident.failed_probes
    }

    /// Whether the limit has let through again at once, twice in a row, and punishes nobody.
    #[must_use]
    pub fn forgives(&self) -> bool {
        self.recovery.is_quick() && !self.punishes
    }

    /// The stretch is over without a refusal, or with one that was not this limit's: it goes on at `rate`, and looks for
    /// `limit`, where there is one.
    pub fn interrupted(&mut self, rate: f64, limit: f64, now: Timestamp) {
        let now = self.clock(now);
        (self.shut, self.due) = (false, None);
        (self.exhausted, self.opened, self.accepted) = (now, now, 0.0);
        if self.wire.state == State::Off {
            self.rate = rate;
            self.slow_down(rate, limit);
        }
    }

    /// Goes on at `rate`, if that is less, and looks for `limit`, where that is known.
    pub fn slow_down(&mut self, rate: f64, limit: f64) {
        if self.wire.state != State::Off {
            return; // no pace holds, and the cap stays
        }
        self.rate = self.rate.min(rate).max(SLOWEST);
        if limit.is_finite() {
            self.climb.set(self.rate, limit, self.settle.margin());
        }
    }

    /// The server's own numbers (L1): starts a second, and the window that they are for.
    pub fn stated(&mut self, rate: f64, window: Option<Duration>) {
        if rate.is_finite() && rate > 0.0 {
            (self.stated, self.stated_window) = (rate, window.or(self.stated_window));
        }
    }

    /// Goes by what is known, where nobody looks for more.
    pub fn conclude(&mut self) {
        if let Some(due) = self.due.take() {
            self.find_pace(&due);
        }
    }

    /// What is to be looked for: up to a few milliseconds of work, for whoever holds no lock.
    #[must_use]
    pub fn study(&self) -> Option<Study> {
        self.due.map(|due| Study::new(&self.model, due))
    }

    /// Takes in what a [`Study`] has found. Returns how many starts more than the pace may be made up for; none if the scope has
    /// been refused again meanwhile, or nothing was to be looked for.
    pub fn studied(&mut self, findings: Findings) -> Option<f64> {
        let due = self.due.take_if(|due| findings.answers(due))?;
        self.model.adopt(findings.into_model());
        Some(self.find_pace(&due))
    }

    fn find_pace(&mut self, due: &Due) -> f64 {
        let it = due.it;
        let few = self.configured * self.round_trip <= FEW_ON_WIRE;
        if few && self.climb.starting && !self.insists && due.ended - it.at <= INSISTS {
            // One refusal is no reason to know better than whoever configured the pace. The second one is.
            self.insists = true;
            self.rate = self.configured.max(SLOWEST);
            return 0.0;
        }
        if self.climb.starting && it.accepted < FEW && self.stated.is_infinite() {
            // Next to nothing was let through: from small again, and doubling.
            self.rate = (0.5 * it.pace).clamp(SLOWEST, AGAIN);
            return 0.0;
        }
        self.punishes = self.model.always_told().is_some() || self.recovery.is_penalty();
        // Only a climb tells from how far below it came; a limit that has fallen was borne no more.
        let climbed = it.pace > CLIMBED * self.climb.began;
        let burst = (self.burst, self.burst_time);
        let borne = if climbed { settle::borne(&self.model.history, due.opened, it.at, burst) } else { 0.0 };
        let stretch = settle::Stretch {
            accepted: it.accepted,
            all: it.at - due.exhausted,
            open: it.at - due.opened,
            cycle: due.ended - due.opened,
            pace: it.pace,
            first: self.climb.starting,
            limit: self.climb.limit,
            period: self.ground_at(it.pace).period,
            cheap: self.recovery.longest() < CHEAP,
            punishes: self.punishes,
            pushed: self.climb.pushed(),
            borne,
        };
        let mut found = self.settle.find(&stretch, &self.model);
        if it.blocked >= BAN {
            self.banned = self.banned.max(stretch.all.min(BAN_WITHIN));
        }
        if self.banned > 0.0 && !stretch.first {
            found = self.settle.beware(&stretch, found);
        }
        if self.budget.is_spent() {
            found.rate *= 1.0 - 3.0 * self.settle.margin(); // what it cost must be earned first
        }
        if self.stated.is_finite() {
            let stated = self.stated * UNDER;
            let first = self.climb.starting; // the server's own number is better than a guess
            found.rate = if first { stated } else { found.rate.min(stated) };
            found.limit = if first { self.stated } else { found.limit.min(self.stated) };
        }
        found.rate = found.rate.max(SLOWEST);
        let cycle = stretch.cycle;
        if self.climb.starting {
            self.burst = it.accepted;
            self.burst_time = stretch.open;
        } else if stretch.cheap && it.failed_probes == 0 {
            self.wire.note(it.met, it.pace * self.round_trip);
        }
        let kept = (-cycle / MINUTES).exp();
        self.sustained = (self.sustained.0 * kept + it.accepted, self.sustained.1 * kept + cycle);
        let pause = due.ended - it.at;
        let lost = cycle - it.accepted / found.certain.unwrap_or(found.rate);
        let avoidable = if stretch.first { 1.0 + f64::from(it.failed_probes) } else { it.refusals };
        self.budget.incident(avoidable, lost.min(pause).max(0.0));
        self.rate = found.rate;
        self.climb.set(found.rate, found.limit, self.settle.margin());
        let forgiven = stretch.cheap && found.certain.is_some() && it.failed_probes == 0;
        let credit = self.settle.credit(forgiven, &stretch, pause * found.rate);
        if self.wire.is_suspect() && stretch.cheap && it.in_flight >= 3 {
            let sustained = self.sustained.0 / self.sustained.1;
            self.wire.try_cap(it.in_flight, found.rate, sustained, due.ended);
            self.rate = UNPACED;
        }
        credit
    }
}

/// The pace after `used` more seconds at `rate`, of a scope that has no learner: by the same steps, doubling while no `limit` is
/// known, then up to it, and carefully beyond.
#[must_use]
pub(crate) fn grown(rate: f64, limit: f64, used: Duration, round_trip: Duration) -> f64 {
    let round_trip = round_trip.as_secs_f64();
    let margin = Settle::new().margin();
    let mut climb = Climb::new();
    if limit.is_finite() {
        climb.set(rate, limit, margin);
    }
    let period = Budget::new().period(rate, round_trip, 0.0, 1.0);
    let ground = Ground { round_trip, margin, period, shut: 0.0, punishes: false };
    climb.grown(rate, used.as_secs_f64(), &ground)
}

/// Fewer let through before the first refusal are no stretch to learn from; then it starts again with so many a second.
const FEW: f64 = 3.0;
const AGAIN: f64 = 2.0;
/// Slots at just under a pace that the server has told.
const UNDER: f64 = 0.97;
/// One start in a day: slower than this is a pause, not a pace.
const SLOWEST: f64 = 1.0 / 86_400.0;
/// A pace that holds nobody up.
const UNPACED: f64 = 1e6;
/// So many probes in a row that were answered that we are unwanted are no page's matter.
const BAN: u32 = 2;
/// Nobody bans for refusals that are further apart, in seconds.
const BAN_WITHIN: f64 = 60.0;
/// Refusals come so much more rarely than before a ban.
const SPARSE: f64 = 10.0;
/// A limit that lets through again within so many seconds costs little to meet.
const CHEAP: f64 = 4.0;
/// After a longer pause than this, in seconds, a configured rate is not tried again as it is: too much is lost if it is wrong.
const INSISTS: f64 = 60.0;
/// And not one that puts more than this on the wire, for then the way back is a herd's (B4).
const FEW_ON_WIRE: f64 = 2.0;
/// A stretch is a climb that ended so much faster than it began.
const CLIMBED: f64 = 1.2;
/// What is remembered as the last minutes, in seconds.
const MINUTES: f64 = 120.0;
/// The policy's cap holds below this.
const LONGEST_WAIT: f64 = 4000.0;

// What one active scope may take (section 6 of the contract).
const _: () = assert!(size_of::<Learner>() <= 4096);
