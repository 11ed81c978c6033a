//! The gate and its learner: what it is told, and what follows for pace, cap and wait (L1-L5).
//!
//! What a decision looks at is the gate's own: slots, pace, caps. The learner is told what happens, and says what they are to be.
//! A scope has one from its first refusal on, or once it has let through more than a handful.

use std::time::Duration;

use super::{
    Cause, Gate,
    diary::{Reader, What},
    facts::Sent,
    mind::Mind,
    ramp::{FREE_ABOVE, Form, Ramp, UNDER},
};
use crate::{
    learn::{Belief, Findings, Kept, Learner, Past, Refused, Study},
    policy::ScopePolicy,
    time::Timestamp,
};

impl Gate {
    /// What its learner has to look for: some milliseconds of work, up to some ten, for whoever has let the gate go. Bring what is found
    /// to [`Gate::studied`].
    #[must_use]
    pub fn study(&self) -> Option<Study> {
        self.mind.learner()?.study()
    }

    /// Takes in what a [`Study`] has found: the pace from here on.
    pub fn studied(&mut self, findings: Findings, now: Timestamp) {
        let Some(learner) = self.mind.learner_mut() else { return };
        if let Some(credit) = learner.studied(findings) {
            self.follow();
            if !self.shut {
                self.ramp.resume(now, credit);
            }
        }
    }

    /// A copy that has the learner; the gate itself is left without. For a holder that puts the copy back.
    #[must_use]
    pub fn lift(&mut self) -> Gate {
        let mind = self.mind.take();
        Gate { mind, ..self.clone() }
    }

    /// Drops the learner of a scope that nobody uses: pace, limit and cap stay, what it was learned from does not.
    pub fn rest(&mut self, now: Timestamp) {
        if self.mind.learner().is_some() && self.is_unused(now) && !self.shut {
            self.mind = Mind::NOBODY;
        }
    }

    /// What its limit is believed to be, where anything was learned.
    #[must_use]
    pub fn belief(&self) -> Option<Belief> {
        self.mind.learner().map(|learner| learner.belief())
    }

    pub(super) fn kept(&self) -> Option<Kept> {
        let at = Timestamp::from_secs(u64::from(self.last_used_s));
        self.mind.learner().map(|learner| learner.kept(at))
    }

    /// Goes on with what was learned before (L5).
    pub(super) fn take_up(&mut self, policy: &ScopePolicy, kept: Option<&Kept>, now: Timestamp) {
        let Some(kept) = kept.filter(|_| policy.learn && self.mind.diary().is_none()) else { return };
        self.mind = Mind::learns(Learner::restore(kept, &self.past(policy, now)));
        self.follow();
    }

    /// A start while the scope is open: the pace goes on by what was used up of it.
    pub(super) fn paced_start(&mut self, policy: &ScopePolicy, now: Timestamp) {
        if let Form::Linear { .. } = self.ramp.form {
            let up = self.ramp.step(now);
            if let Some(learner) = self.mind.learner_mut() {
                learner.started(now, 1, Duration::ZERO);
                if up.is_some() {
                    self.follow();
                }
            }
            return;
        }
        let used = self.ramp.used(now);
        if let Some(diary) = self.mind.diary_mut() {
            diary.used_us = diary.used_us.wrapping_add(used.as_micros() as u64);
            if diary.reader != Reader::Nobody {
                return; // whoever learns of it says how fast it goes; where nobody can, it stays as it is
            }
        }
        if self.mind.learner().is_none() && self.learns(policy) && self.accepted >= HANDFUL {
            self.mind = Mind::learns(self.new_learner(policy, now));
        }
        let Some(learner) = self.mind.learner_mut() else {
            let rate = self.ramp.grown(used, self.round_trip_mean());
            self.ramp.set(rate, f64::from(self.ramp.bad));
            if rate > FREE_ABOVE {
                self.ramp = Ramp::FREE;
            }
            return;
        };
        learner.started(now, 1, used);
        if learner.rate() > FREE_ABOVE && learner.cap() == u32::MAX {
            (self.ramp, self.mind) = (Ramp::FREE, Mind::NOBODY);
        } else {
            self.follow();
        }
    }

    /// Pace and cap as the learner has them.
    pub(super) fn follow(&mut self) {
        let Some(learner) = self.mind.learner() else { return };
        self.ramp.set(learner.rate(), learner.limit());
        self.wire_cap = u16::try_from(learner.cap()).unwrap_or(u16::MAX);
    }

    /// A request was let through.
    pub(super) fn learn_success(&mut self, sent: Sent, now: Timestamp) {
        if let Some(diary) = self.mind.diary_mut() {
            diary.accept(sent.in_flight);
        }
        let Some(learner) = self.mind.learner_mut() else { return };
        let before = (learner.rate(), learner.cap());
        learner.accepted(sent.at, sent.in_flight, now);
        if before != (learner.rate(), learner.cap()) {
            self.follow();
        }
    }

    /// A limit refused a request. Returns the wait that the learner advises where nobody told one.
    pub(super) fn learn_refusal(
        &mut self,
        policy: &ScopePolicy,
        sent: Sent,
        told: Option<Duration>,
        how: Refused,
        now: Timestamp,
    ) -> Option<Duration> {
        if !policy.learn {
            return None;
        }
        if let Some(diary) = self.mind.diary_mut() {
            diary.refuse(sent, told, how, now);
            return self.owners_wait(policy).filter(|_| how != Refused::Straggler);
        }
        if self.mind.learner().is_none() {
            if how == Refused::Straggler {
                return None;
            }
            self.mind = Mind::learns(self.new_learner(policy, now));
            self.follow();
        }
        let learner = self.mind.learner_mut()?;
        let advised = learner.refused(sent.at, sent.in_flight, told, how, now);
        // Twice in a row it let through again at once, and it punishes nobody: then less than the usual wait will do.
        let least = if learner.forgives() { Duration::ZERO } else { policy.backoff.base() };
        (how != Refused::Straggler).then_some(advised.max(least).min(policy.pause_cap))
    }

    /// The probe of a limit's incident was answered that we are unwanted.
    pub(super) fn learn_block(&mut self, sent: Sent) {
        if let Some(learner) = self.mind.learner_mut() {
            learner.blocked(sent.at);
        }
    }

    /// The scope opens again, by the probe that was sent at `probe`. The pace that it goes on with.
    pub(super) fn find_pace(&mut self, policy: &ScopePolicy, probe: Timestamp, now: Timestamp) {
        let stretch = self.stretch();
        if !policy.learn {
            if !self.ramp.climb(stretch, false, now) {
                self.ramp.resume(now, 0.0);
            }
            return;
        }
        if self.cause == Cause::Overload && self.ramp.climb(stretch, true, now) {
            let goal = match self.ramp.form {
                Form::Linear { goal, .. } => goal,
                _ => self.ramp.rate,
            };
            self.interrupt_at(f64::from(goal), now);
            return;
        }
        let refused = matches!(self.cause, Cause::Told | Cause::Untold | Cause::Tripped);
        let led = self.is_led();
        if let Some(diary) = self.mind.diary_mut().filter(|diary| diary.met) {
            diary.reopen(probe, now);
            if led {
                // With care, until the owner has heard of it.
                let rate = self.ramp.rate().map_or(BEGIN, |rate| 0.5 * rate);
                self.ramp.set(f64::from(rate), f64::from(self.ramp.bad));
                self.ramp.resume(now, 0.0);
                return;
            }
        }
        if let Some(learner) = self.mind.learner_mut().filter(|learner| learner.is_shut()) {
            let credit = learner.reopened(probe, now);
            self.follow();
            self.ramp.resume(now, credit);
        } else if refused && self.mind.learner().is_none() && !led {
            self.find_pace_alone(policy, probe, now);
        } else {
            self.go_on(policy, now);
        }
    }

    /// A gate that keeps no learner has one for a moment: it is told of the one incident, and what it says stays.
    fn find_pace_alone(&mut self, policy: &ScopePolicy, probe: Timestamp, now: Timestamp) {
        let mut learner = self.new_learner(policy, self.closed_at);
        learner.refused(self.closed_at, 1, None, Refused::First, self.closed_at);
        learner.reopened(probe, now);
        learner.conclude();
        self.ramp.set(learner.rate(), learner.limit());
        self.ramp.resume(now, 0.0);
    }

    /// What shut the scope was no limit that was met: it goes on as before, and from small if nothing paced it.
    fn go_on(&mut self, policy: &ScopePolicy, now: Timestamp) {
        if self.ramp.form == Form::Free {
            let begin = if policy.pace_start.is_finite() { policy.pace_start } else { BEGIN };
            self.ramp = Ramp::paced(begin, f32::INFINITY);
        }
        if self.cause == Cause::Budget && self.stated_rate > 0.0 {
            self.ramp.set(f64::from(self.stated_rate * UNDER), f64::from(self.stated_rate));
        }
        self.interrupt_at(f64::from(self.ramp.rate), now);
        self.ramp.resume(now, 0.0);
    }

    /// The limit was one item's (P7): the scope goes on as it was.
    pub(super) fn forget_refusal(&mut self, policy: &ScopePolicy, now: Timestamp) {
        if self.mind.learner().is_some_and(|learner| learner.limit().is_infinite()) {
            self.mind = Mind::NOBODY;
            if !policy.rates.is_empty() || !policy.pace_start.is_finite() {
                self.ramp = Ramp::FREE;
            }
        }
        self.interrupt(now);
    }

    /// The learner's stretch is over without a refusal.
    pub(super) fn interrupt(&mut self, now: Timestamp) {
        self.interrupt_at(f64::from(self.ramp.rate), now);
    }

    fn interrupt_at(&mut self, rate: f64, now: Timestamp) {
        let bad = f64::from(self.ramp.bad);
        if let Some(learner) = self.mind.learner_mut() {
            learner.interrupted(rate, bad, now);
        }
        if let Some(diary) = self.mind.diary_mut() {
            diary.interrupt(rate, bad, now);
        }
    }

    /// The server's own number: a limit below what we do is met at once. While it says what is left, that bounds what is sent,
    /// and a scope that never ran out need not crawl.
    pub(super) fn stated(&mut self, rate: f32, window: Option<Duration>, counts: bool, now: Timestamp) {
        self.stated_rate = rate;
        if let Some(learner) = self.mind.learner_mut() {
            learner.stated(f64::from(rate), window);
        }
        if let (Some(diary), Some(window)) = (self.mind.diary_mut(), window) {
            diary.window_ms = u32::try_from(window.as_millis()).unwrap_or(u32::MAX);
        }
        let met = self.ramp.bad.is_finite() || !counts;
        if met && rate > 0.0 && self.ramp.form == Form::Paced && self.ramp.rate > rate * UNDER {
            self.ramp.set(f64::from(rate * UNDER), f64::from(self.ramp.bad.min(rate)));
            if let Some(learner) = self.mind.learner_mut() {
                learner.slow_down(f64::from(rate * UNDER), f64::from(rate));
            }
            if let Some(diary) = self.mind.diary_mut() {
                diary.write(now, What::Slowed { rate: f64::from(rate * UNDER), limit: f64::from(rate) });
            }
        }
    }

    /// Whether the scope may have a learner, here or with its owner.
    pub(super) fn learns(&self, policy: &ScopePolicy) -> bool {
        policy.learn && (self.mind.diary().is_none() || self.is_led())
    }

    pub(super) fn past(&self, policy: &ScopePolicy, now: Timestamp) -> Past {
        let since = if self.opened_at == Timestamp::ZERO { now } else { self.opened_at.min(now) };
        let starts = f64::from(self.accepted) + f64::from(self.in_flight.current());
        let mut rate = self.ramp.rate;
        let configured = policy.rates.starts_in(Duration::from_secs(1));
        if self.ramp.form == Form::Free {
            // Nothing paced it but a configured rate, or what was there to do.
            let mean = (starts as f32 / now.since(since).as_secs_f32().max(1.0)).max(BEGIN);
            rate = configured.map_or(mean, |configured| mean.min(configured as f32));
        }
        Past {
            since,
            until: now,
            starts,
            accepted: self.accepted,
            rate: f64::from(rate),
            limit: f64::from(self.ramp.bad),
            round_trip: self.round_trip_mean(),
            configured: configured.unwrap_or(f64::INFINITY),
            first_wait: policy.backoff.base(),
        }
    }

    pub(super) fn new_learner(&self, policy: &ScopePolicy, now: Timestamp) -> Learner {
        let mut learner = Learner::new(&self.past(policy, now));
        if self.stated_rate > 0.0 {
            learner.stated(f64::from(self.stated_rate), None);
        }
        learner
    }
}

/// So many let through are no handful any more.
pub(super) const HANDFUL: u32 = 32;
/// A scope that nothing paced was at least so fast, and goes on so slowly after a pause, and doubles.
const BEGIN: f32 = 8.0;
