//! The learner of a scope that processes share: one of them has it, and reads what all of them wrote down (L5).
//!
//! What others did is known a moment later, and not in order. A curve that is a few starts off explains nothing, so the learner
//! is behind by as long as a member may keep things to itself; when the scope opens, all is there, and it catches up. What cannot
//! wait until then, how fast it goes and for how long it stays shut, is asked of a copy that was told all there is.

use std::{collections::VecDeque, time::Duration};

use super::{
    Cause, Gate, State,
    diary::{Event, What},
    learned::HANDFUL,
    ramp::{FREE_ABOVE, SLOWEST},
};
use crate::{
    learn::{Belief, Findings, Kept, Learner, Refused, Study},
    policy::ScopePolicy,
    time::Timestamp,
};

/// The learner of a shared scope, and how far it has read.
#[derive(Clone, Debug)]
pub struct Owner {
    learner: Box<Learner>,
    first_wait: Duration,
    pause_cap: Duration,
    /// What was read, and when.
    read: Marks,
    read_at: Timestamp,
    /// Read, and not told to the learner: starts, with what each used up of the pace, and events.
    starts: VecDeque<(Timestamp, Duration)>,
    events: VecDeque<Event>,
    /// The number of the last event that it was told, and the last moment.
    told: u32,
    told_at: Timestamp,
    stated: f32,
    /// The scope opened, and may make up for so many starts.
    credit: Option<f64>,
    /// The last starts that it was told, from which follows how many were on the wire.
    recent: VecDeque<Timestamp>,
    /// The paces that the members had lately, and since when.
    paces: VecDeque<(Timestamp, f64)>,
    /// It must stay shut until then.
    shut_until: Timestamp,
    /// The wait that the learner advised last.
    advised: Duration,
}

/// How far a diary was read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[allow(missing_docs, reason = "the fields are the diary's, documented there")]
pub struct Marks {
    pub started: u32,
    pub used_us: u64,
    pub accepted: u32,
    pub on_wire: u32,
    pub number: u32,
}

/// What reading has come to.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Heard {
    /// What the owner has to say can wait.
    Quiet,
    /// Others wait for it.
    Loud,
}

impl Owner {
    /// Whether a scope is one that somebody should learn of.
    #[must_use]
    pub fn is_wanted(policy: &ScopePolicy, state: &State, read: Option<&Marks>) -> bool {
        let unread = read.is_none_or(|read| read.number != state.diary.number) && state.diary.number != 0;
        let limited = state.rate.is_some() || state.wire_cap != u16::MAX;
        policy.learn && (limited && state.diary.started >= HANDFUL || unread)
    }

    /// Takes over the scope of `state`, with what was kept of its learner and how far that had read.
    #[must_use]
    pub fn new(policy: &ScopePolicy, state: &State, kept: Option<(&Kept, &Marks)>, now: Timestamp) -> Owner {
        let diary = &state.diary;
        // A record has no requests on the wire: those that started and did not come back are, or as many as the pace comes to.
        let usual = state.rate.unwrap_or(0.0) * state.round_trip_us as f32 / 1e6;
        let out = diary.started.wrapping_sub(diary.accepted);
        let in_flight = u16::try_from(if diary.number == 0 { out } else { usual as u32 }).unwrap_or(0);
        let gate = Gate::from_state(&State { in_flight, ..state.clone() });
        let mut read = Marks {
            started: diary.started,
            used_us: diary.used_us,
            accepted: diary.accepted,
            on_wire: diary.on_wire,
            number: diary.number,
        };
        let mut read_at = now;
        let learner = if let Some((kept, marks)) = kept {
            (read, read_at) = (*marks, kept.at.min(now));
            Learner::restore(kept, &gate.past(policy, now))
        } else {
            if diary.met {
                // The incident that it finds itself in is the first that it learns from.
                let first = |event: &&Event| matches!(event.what, What::Refused { how: Refused::First, .. });
                let first = diary.events.iter().rfind(first);
                read.number = first.map_or(read.number, |event| event.number.wrapping_sub(1));
            }
            gate.new_learner(policy, now)
        };
        Owner {
            learner: Box::new(learner),
            first_wait: policy.backoff.base(),
            pause_cap: policy.pause_cap,
            read,
            read_at,
            starts: VecDeque::new(),
            events: VecDeque::new(),
            told: read.number,
            told_at: now,
            stated: state.stated_rate,
            credit: None,
            recent: VecDeque::new(),
            paces: VecDeque::new(),
            shut_until: Timestamp::ZERO,
            advised: Duration::ZERO,
        }
    }

    /// Reads what is new in the scope as all members together have it.
    pub fn observe(&mut self, state: &State, now: Timestamp) -> Heard {
        self.read_starts(state, now);
        self.note_pace(state, now);
        let diary = &state.diary;
        let accepted = diary.accepted.wrapping_sub(self.read.accepted) as i32;
        if accepted > 0 {
            let on_wire = diary.on_wire.wrapping_sub(self.read.on_wire);
            let round_trip = Duration::from_micros(u64::from(state.round_trip_us));
            let mean = (f64::from(on_wire) / f64::from(accepted)).round().max(1.0) as u32;
            let mean = self.on_wire(self.told_at).unwrap_or(mean);
            for _ in 0..accepted.min(ACCEPTED_MOST) {
                self.learner.accepted(now.minus(round_trip), mean, now);
            }
            (self.read.accepted, self.read.on_wire) = (diary.accepted, diary.on_wire);
        }
        if state.stated_rate != self.stated {
            let window = Duration::from_millis(u64::from(diary.window_ms));
            self.stated = state.stated_rate;
            self.learner.stated(f64::from(self.stated), (!window.is_zero()).then_some(window));
        }
        let before = self.events.len();
        self.events.extend(diary.events_after(self.read.number).copied());
        self.read.number = diary.number;
        self.read_at = now;
        let refused = |event: &&Event| {
            matches!(event.what, What::Refused { told: None, how: Refused::First | Refused::Probe, .. })
        };
        let mut heard = Heard::Quiet;
        if let Some(refused) = self.events.iter().skip(before).rfind(refused) {
            let at = refused.at;
            let mut all = self.clone();
            all.tell(Timestamp::MAX);
            let least = if all.learner.forgives() { Duration::ZERO } else { self.first_wait };
            self.shut_until = at.plus(all.advised.max(least).min(self.pause_cap));
            heard = Heard::Loud;
        }
        let opening = self.events.iter().rfind(|event| !matches!(event.what, What::Refused { .. }));
        if let Some(opening) = opening.map(|event| event.at) {
            self.tell(opening.max(now.minus(BEHIND)));
            return Heard::Loud;
        }
        self.tell(now.minus(BEHIND));
        heard
    }

    /// Notes the pace that the members have, which is behind what the learner says.
    fn note_pace(&mut self, state: &State, now: Timestamp) {
        let rate = state.rate.map_or(f64::INFINITY, f64::from);
        if self.paces.back().is_none_or(|(_, last)| *last != rate) {
            self.paces.push_back((now, rate));
        }
        if self.paces.len() > PACES {
            self.paces.pop_front();
        }
    }

    /// The pace that the members had when a request started: they take their slots a little ahead.
    fn pace_at(&self, sent: Timestamp) -> Option<f64> {
        let then = sent.minus(AHEAD);
        self.paces.iter().rfind(|(at, _)| *at <= then).or(self.paces.front()).map(|(_, rate)| *rate)
    }

    fn read_starts(&mut self, state: &State, now: Timestamp) {
        let diary = &state.diary;
        let started = diary.started.wrapping_sub(self.read.started) as i32;
        let used = diary.used_us.wrapping_sub(self.read.used_us) as i64;
        (self.read.started, self.read.used_us) = (diary.started, diary.used_us);
        if started <= 0 {
            let left = self.starts.len().saturating_sub(started.unsigned_abs() as usize);
            self.starts.truncate(left);
            return;
        }
        let used = Duration::from_micros(u64::try_from(used).unwrap_or(0)) / started.unsigned_abs();
        let known = diary.starts.len().min(started.unsigned_abs() as usize);
        let known = &diary.starts[diary.starts.len() - known..];
        // Of more than that only the number is known: they are spread evenly.
        let unknown =
            started.min(ACCEPTED_MOST).unsigned_abs() - known.len().min(ACCEPTED_MOST as usize) as u32;
        let until = known.iter().min().copied().unwrap_or(now);
        let step = until.since(self.read_at) / (unknown + 1);
        let spread = (1..=unknown).map(|i| self.read_at.plus(step * i).min(until));
        self.starts.extend(spread.chain(known.iter().copied()).map(|at| (at, used)));
        self.starts.make_contiguous().sort_by_key(|(at, _)| *at);
    }

    /// Tells the learner all up to `until`, in order.
    fn tell(&mut self, until: Timestamp) {
        loop {
            let start = self.starts.front().map(|(at, _)| *at).filter(|at| *at <= until);
            let event = self.events.front().map(|event| event.at).filter(|at| *at <= until);
            match (start, event) {
                (Some(start), event) if event.is_none_or(|event| start <= event) => {
                    let Some((at, used)) = self.starts.pop_front() else { return };
                    let at = self.in_order(at);
                    self.learner.started(at, 1, used);
                    self.recent.push_back(at);
                    if self.recent.len() > RECENT {
                        self.recent.pop_front();
                    }
                }
                (_, Some(_)) => {
                    let Some(event) = self.events.pop_front() else { return };
                    self.tell_event(&event);
                }
                _ => return,
            }
        }
    }

    /// How many were on the wire with a request that started at `sent`. Those of other processes are known as places that they
    /// hold, in use or not, so they are counted by their starts; none where these are too many to be known.
    fn on_wire(&self, sent: Timestamp) -> Option<u32> {
        let since = sent.minus(self.learner.round_trip());
        let all = self.recent.len() < RECENT || self.recent.front().is_some_and(|first| *first <= since);
        let count = self.recent.iter().filter(|at| (since..=sent).contains(at) && **at > since).count();
        all.then(|| u32::try_from(count).unwrap_or(u32::MAX).max(1))
    }

    fn in_order(&mut self, at: Timestamp) -> Timestamp {
        self.told_at = self.told_at.max(at);
        self.told_at
    }

    fn tell_event(&mut self, event: &Event) {
        let at = self.in_order(event.at);
        self.told = event.number;
        match event.what {
            What::Refused { how, sent, in_flight, told } => {
                let in_flight = self.on_wire(sent).unwrap_or(in_flight);
                if let Some(pace) =
                    self.pace_at(sent).filter(|pace| how == Refused::First && pace.is_finite())
                {
                    self.learner.slow_down(pace, f64::INFINITY);
                }
                if how == Refused::Probe {
                    self.learner.probed(sent);
                }
                let wait = self.learner.refused(sent, in_flight, told, how, at);
                if how != Refused::Straggler {
                    self.advised = wait;
                }
            }
            What::Reopened { .. } if !self.learner.is_shut() => {
                // What shut the scope was forgotten with its store: it goes on, with care.
                self.learner.interrupted(CARE * self.learner.rate(), self.learner.limit(), at);
            }
            What::Reopened { probe } => {
                self.learner.probed(probe);
                self.credit = Some(self.learner.reopened(probe, at));
            }
            What::Interrupted { rate, limit } => {
                let rate = if rate.is_finite() { rate } else { self.learner.rate() };
                self.learner.interrupted(rate.max(f64::from(SLOWEST)), limit, at);
            }
            What::Slowed { rate, limit } => self.learner.slow_down(rate, limit),
        }
    }

    /// What the learner has to look for: up to milliseconds of work, for whoever holds no lock.
    #[must_use]
    pub fn study(&self) -> Option<Study> {
        self.learner.study()
    }

    /// Takes in what was found.
    pub fn studied(&mut self, findings: Findings) {
        if let Some(credit) = self.learner.studied(findings) {
            self.credit = Some(credit);
        }
    }

    /// Writes what the learner says into the scope.
    pub fn say(&mut self, state: &mut State) {
        let own_wait = state.shut && matches!(state.cause, Cause::Untold);
        if own_wait {
            state.paused_until = state.paused_until.max(self.shut_until);
        }
        let first_wait = if self.learner.forgives() {
            let mut learner = self.learner.clone();
            learner.refused(self.told_at, 1, None, Refused::First, self.told_at).min(self.first_wait)
        } else {
            Duration::ZERO
        };
        state.diary.first_wait_ms = first_wait.as_micros().div_ceil(1000) as u32;
        if state.shut || state.linear_ms != 0 {
            return; // the pace that it had, or one that goes up by time
        }
        // The pace need not be behind as well: it is that of a copy to which all is told, though not all of it in order.
        let mut ahead = None;
        if self.events.is_empty() && !self.starts.is_empty() {
            ahead.insert(self.clone()).tell(Timestamp::MAX);
        }
        let learner = ahead.as_ref().map_or(&self.learner, |all: &Owner| &all.learner);
        let (rate, limit) = (learner.rate() as f32, learner.limit() as f32);
        state.rate = (learner.rate() < UNPACED).then_some(rate.max(SLOWEST));
        state.bad_rate = limit.is_finite().then_some(limit);
        state.wire_cap = u16::try_from(learner.cap()).unwrap_or(u16::MAX);
        if let Some(credit) = self.credit.take() {
            state.credit = credit as f32;
        }
    }

    /// Whether there is no limit up to a pace that nobody reaches: then nobody need learn of the scope.
    #[must_use]
    pub fn is_free(&self) -> bool {
        self.learner.rate() > FREE_ABOVE && self.learner.cap() == u32::MAX
    }

    /// What was read last.
    #[must_use]
    pub fn read(&self) -> &Marks {
        &self.read
    }

    /// What is believed.
    #[must_use]
    pub fn belief(&self) -> Belief {
        self.learner.belief()
    }

    /// What the next owner goes on from; none in the middle of an incident, which it is to be told of as a whole.
    #[must_use]
    pub fn kept(&self, now: Timestamp) -> Option<(Kept, Marks)> {
        if self.learner.is_shut() {
            return None;
        }
        let waiting = u32::try_from(self.starts.len()).unwrap_or(0);
        let used =
            self.starts.iter().fold(0, |sum: u64, (_, used)| sum.wrapping_add(used.as_micros() as u64));
        let started = self.read.started.wrapping_sub(waiting);
        let used_us = self.read.used_us.wrapping_sub(used);
        Some((self.learner.kept(now), Marks { started, used_us, number: self.told, ..self.read }))
    }
}

/// How far the learner is behind: what a member may keep to itself, and the way.
const BEHIND: Duration = Duration::from_millis(300);
/// After an incident that nobody knows, the share of the pace.
const CARE: f64 = 0.8;
/// So many changes of the pace are remembered, and slots are taken so long ahead in the mean.
const PACES: usize = 32;
const AHEAD: Duration = Duration::from_millis(100);
/// More at once are not told one by one.
const ACCEPTED_MOST: i32 = 10_000;
/// Where a cap is what limits, the learner's pace is none.
const UNPACED: f64 = 1e5;
/// Starts by which those on the wire are counted.
const RECENT: usize = 512;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gate::{Reader, Told};

    /// A fleet's gate, made anew for each step; its starts are let through at once, at its pace.
    struct Fleet {
        policy: ScopePolicy,
        state: State,
        now: Timestamp,
    }

    impl Fleet {
        fn runs(&mut self, starts: u32) {
            for _ in 0..starts {
                let gap = Duration::from_secs_f32(1.0 / self.state.rate.unwrap());
                self.now = self.now.plus(gap);
                let mut gate = Gate::from_state(&self.state);
                let sent = gate.take(&self.policy, self.now, 1);
                let _ = gate.succeeded(&self.policy, sent, self.now.plus(Duration::from_millis(5)));
                self.state = gate.to_state();
            }
        }
    }

    #[test]
    fn l5_the_pace_of_a_fleet_is_its_owners_word() {
        let policy = ScopePolicy { jitter: 0.0, pace_start: 8.0, ..ScopePolicy::default() };
        let state = Gate::from_state(&Gate::new(&policy).to_state()).to_state();
        let mut fleet = Fleet { policy: policy.clone(), state, now: Timestamp::from_secs(1_000) };
        assert!(!Owner::is_wanted(&policy, &fleet.state, None));
        fleet.runs(40);
        assert!(Owner::is_wanted(&policy, &fleet.state, None));
        let mut owner = Owner::new(&policy, &fleet.state, None, fleet.now);
        fleet.state.diary.reader = Reader::Owner;
        let before = fleet.state.rate;
        fleet.runs(20);
        assert_eq!(fleet.state.rate, before, "no gate lets it grow by itself");
        assert_eq!(owner.observe(&fleet.state, fleet.now), Heard::Quiet);
        owner.say(&mut fleet.state);
        assert!(fleet.state.rate > before, "{:?}", fleet.state.rate);

        let mut gate = Gate::from_state(&fleet.state);
        let sent = gate.take(&policy, fleet.now, 1);
        let _ = gate.refused(&policy, sent, Told::nothing(), fleet.now, 0.0);
        fleet.state = gate.to_state();
        let at_refusal = fleet.state.rate;
        assert_eq!(owner.observe(&fleet.state, fleet.now), Heard::Loud);
        assert!(owner.kept(fleet.now.plus(Duration::from_secs(1))).is_some(), "it is not told yet");
        let probe = fleet.state.paused_until;
        let mut gate = Gate::from_state(&fleet.state);
        let sent = gate.take(&policy, probe, 1);
        let _ = gate.succeeded(&policy, sent, probe.plus(Duration::from_millis(5)));
        fleet.state = gate.to_state();
        assert!(fleet.state.rate < at_refusal, "with care until it has said");
        assert_eq!(owner.observe(&fleet.state, probe.plus(Duration::from_millis(6))), Heard::Loud);
        if let Some(study) = owner.study() {
            owner.studied(study.run());
        }
        owner.say(&mut fleet.state);
        assert!(fleet.state.bad_rate.is_some() && fleet.state.rate < at_refusal);
        let (kept, read) = owner.kept(probe).unwrap();
        assert_eq!((kept.belief.evidence.incidents, read.number), (1, fleet.state.diary.number));
        let next = Owner::new(&policy, &fleet.state, Some((&kept, &read)), probe);
        assert_eq!(next.belief().evidence.incidents, 1, "the next one goes on from there");
    }
}
