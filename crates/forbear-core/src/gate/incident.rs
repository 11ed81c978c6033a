//! What shuts a scope, and what opens it again: refusals, overload, blocks and credentials (P1-P4, P7, B3, X1).

use std::time::Duration;

use super::{Cause, Change, FORGIVEN, Gate, Sent, Told, seconds};
use crate::{learn::Refused, policy::ScopePolicy, time::Timestamp};

impl Gate {
    /// The server refused the request. `roll`, in `[0, 1)`, is for jitter.
    pub fn refused(
        &mut self,
        policy: &ScopePolicy,
        sent: Sent,
        told: Told,
        now: Timestamp,
        roll: f64,
    ) -> Change {
        self.in_flight.release();
        let probing = self.probe.is_held_by(sent.fence);
        let early = probing && self.probe.early;
        self.probe.release(sent.fence);
        // P3: what was sent before the scope closed belongs to that incident, whenever it comes back.
        let straggler = !probing && sent.at <= self.closed_at;
        let incident = !straggler && (!self.shut || probing);
        let wait = told.wait.filter(|wait| !wait.is_zero());
        if probing && !told.overload {
            self.pad_was_short(policy, sent, wait, now);
        }
        if incident {
            self.begin_incident(policy, sent, probing, now);
        }
        self.last_refusal_s = self.last_refusal_s.max(seconds(now));
        let mut advised = None;
        if !told.overload {
            let how = match (probing, incident) {
                (true, _) => Refused::Probe,
                (false, true) => Refused::First,
                (false, false) => Refused::Straggler,
            };
            advised = self.learn_refusal(policy, sent, wait, how, now);
        }
        let before = self.paused_until;
        self.resumes |= straggler && !self.shut; // it may close the scope again, but not end its ramp
        match wait {
            Some(wait) => {
                let told_until = now.plus(wait);
                let mut until =
                    told_until.plus(self.pad(policy, wait)).plus(chance(wait, policy.jitter, roll));
                if probing || !told.rest.is_zero() {
                    // B3: told the same again and again, the told time is a floor, and our own pause still grows.
                    until = until.max(now.plus(self.untold_wait(policy, told.rest, roll)));
                }
                self.close_told(told_until, until, Cause::Told);
                if wait > policy.pause_cap {
                    // P7, once an incident: an early probe that was refused leaves the scope closed for the full time.
                    if early || !told.may_be_one_items {
                        self.early_probe_at = Timestamp::ZERO;
                    } else if incident {
                        self.early_probe_at = now.plus(self.untold_wait(policy, told.rest, roll));
                    }
                }
            }
            None if incident => {
                let cause = if told.overload { Cause::Overload } else { Cause::Untold };
                let own = self.untold_wait(policy, told.rest, roll);
                let until = now.plus(match advised {
                    // Refused probes make it longer, whatever was learned (B3).
                    Some(advised) if probing => advised.max(own),
                    Some(advised) => advised + policy.backoff.spread(told.rest, roll),
                    None => own,
                });
                self.close(until, cause);
            }
            None => {}
        }
        if self.circuit.refused(incident, &policy.circuit) {
            self.early_probe_at = Timestamp::ZERO;
            self.close(now.plus(policy.circuit.pause), Cause::Tripped);
        }
        if incident || self.paused_until > before { Change::Closed { incident } } else { Change::None }
    }

    /// The server failed under load: 500, 502, 504, or far too slow. Fewer at once; a pause when it repeats.
    pub fn overloaded(&mut self, policy: &ScopePolicy, sent: Sent, now: Timestamp, roll: f64) -> Change {
        if self.probe.is_held_by(sent.fence) {
            // It answered, and not well: a refused probe in all but name.
            return self.refused(policy, sent, Told { overload: true, ..Told::nothing() }, now, roll);
        }
        self.overloads_in_row = self.overloads_in_row.saturating_add(1);
        if self.overloads_in_row >= OVERLOADS_IN_ROW && !self.shut && sent.at > self.closed_at {
            self.overloads_in_row = 0;
            return self.refused(policy, sent, Told { overload: true, ..Told::nothing() }, now, roll);
        }
        self.in_flight.release();
        self.cut(sent, now);
        Change::None
    }

    /// The server answered that we are unwanted: 403, 451, a challenge. A single page may be forbidden to all; several in
    /// a row are about us, and so is one that is `certain`: the way to this origin cools down for 300 to 360 s.
    pub fn blocked(
        &mut self,
        policy: &ScopePolicy,
        sent: Sent,
        certain: bool,
        now: Timestamp,
        roll: f64,
    ) -> Change {
        self.blocked_in_row = self.blocked_in_row.saturating_add(1);
        let cooling = certain || self.blocked_in_row >= BLOCKED_IN_ROW;
        if self.probe.is_held_by(sent.fence)
            && matches!(self.cause, Cause::Told | Cause::Untold | Cause::Tripped)
        {
            self.learn_block(sent);
        }
        // A probe that meets a forbidden page has learned nothing about the limit: the next item probes soon.
        let change = self.unanswered(policy, sent, now);
        if cooling && (sent.at > self.closed_at || sent.fence.is_probe()) {
            self.blocked_in_row = 0;
            self.incidents = self.incidents.saturating_add(1);
            self.closed_at = now;
            self.early_probe_at = Timestamp::ZERO;
            self.close(now.plus(COOLING + COOLING_SPREAD.mul_f64(roll)), Cause::Blocked);
            return Change::Closed { incident: true };
        }
        change
    }

    /// Our credentials were refused for `item`. The second item in a row without a success between stops the account.
    pub fn unauthorised(&mut self, policy: &ScopePolicy, sent: Sent, item: u64, now: Timestamp) -> Change {
        let change = self.unanswered(policy, sent, now);
        let item = item as u16; // enough to tell two items in a row apart
        if self.unauthorised == 0 || self.unauthorised_item != item {
            self.unauthorised = self.unauthorised.saturating_add(1);
            self.unauthorised_item = item;
        }
        if self.unauthorised >= 2 && self.cause != Cause::Credentials {
            self.closed_at = now;
            self.early_probe_at = Timestamp::ZERO;
            self.close(Timestamp::MAX, Cause::Credentials);
            return Change::Closed { incident: true };
        }
        change
    }

    pub(super) fn close(&mut self, until: Timestamp, cause: Cause) {
        if !self.shut || until > self.paused_until || cause == Cause::Credentials {
            self.cause = cause;
        }
        self.shut = true;
        self.paused_until = self.paused_until.max(until); // P2: deadlines only extend
    }

    pub(super) fn close_told(&mut self, told: Timestamp, until: Timestamp, cause: Cause) {
        let told = if self.shut { told.max(self.told_until()) } else { told };
        self.close(until, cause);
        self.beyond_told_ms = u32::try_from(self.paused_until.since(told).as_millis()).unwrap_or(u32::MAX);
    }

    pub(super) fn begin_incident(&mut self, policy: &ScopePolicy, sent: Sent, probing: bool, now: Timestamp) {
        let quiet = self.quiet(now);
        let first = self.incidents == 0;
        if quiet > FORGIVEN {
            self.cap_doubled = 0;
        }
        if probing {
            self.level = self.level.saturating_add(1);
            let doubled = policy.backoff.cap().saturating_mul(1 << self.cap_doubled.min(30));
            if doubled < policy.pause_cap {
                self.cap_doubled += 1; // B3: up to pause_cap, and no further
            }
        } else if first || quiet > self.untold_wait(policy, Duration::ZERO, 1.0).saturating_mul(4).max(QUIET)
        {
            self.level = 0;
        } else {
            self.level = self.level.saturating_add(1);
        }
        self.incidents = self.incidents.saturating_add(1);
        self.early_probe_at = Timestamp::ZERO;
        self.closed_at = now;
        self.forget_requests();
        if !probing && !self.learns(policy) {
            self.in_flight.refused(sent.in_flight); // a learner knows whether it is them that are too many
        }
        self.overloads_in_row = 0;
        self.resumes = false;
    }

    pub(super) fn reopen(&mut self, policy: &ScopePolicy, probe: Timestamp, now: Timestamp) {
        if self.probe.early {
            self.level = self.level.saturating_sub(1); // P7: the limit was one item's, and not the scope's
            self.forget_refusal(policy, now);
        } else {
            if self.cause == Cause::Operator {
                self.interrupt(now);
            } else if !self.resumes {
                self.find_pace(policy, probe, now);
            }
            if !self.learns(policy) || self.cause == Cause::Overload {
                self.in_flight.reopened();
            }
        }
        self.shut = false;
        self.resumes = false;
        self.probe.reset();
        self.early_probe_at = Timestamp::ZERO;
        self.paused_until = now; // over; after a P7 probe that was admitted, over early: the limit was that item's
        self.beyond_told_ms = 0;
        self.cause = Cause::Pace;
        self.opened_at = now;
        self.accepted = 0;
    }

    /// P4's pause at the present level, under the cap that refused probes have raised (B3), and `rest` (E3).
    pub(super) fn untold_wait(&self, policy: &ScopePolicy, rest: Duration, roll: f64) -> Duration {
        // What a learner knows of a limit stays known: only the refused probes of this one incident count beside it.
        let learner = self.mind.learner().filter(|learner| learner.is_shut());
        let diary = self.mind.diary().filter(|diary| diary.met && self.is_led());
        let failed = learner.map(|l| l.failed_probes()).or(diary.map(|diary| u32::from(diary.failed_probes)));
        let level = failed.unwrap_or(u32::from(self.level));
        let cap = policy.backoff.cap().saturating_mul(1 << self.cap_doubled.min(30));
        let cap = cap.min(policy.pause_cap.max(policy.backoff.cap()));
        policy.backoff.wait(level, cap, roll) + policy.backoff.spread(rest, roll)
    }
}

pub(super) fn chance(wait: Duration, jitter: f64, roll: f64) -> Duration {
    // Applied after every cap, and it only adds (P1). Of a wait of years nobody needs a share.
    wait.min(Duration::from_secs(7 * 86_400)).mul_f64((jitter * roll).clamp(0.0, 10.0))
}

/// P4: the level is forgiven after four times the longest wait of that level, and at least this.
const QUIET: Duration = Duration::from_secs(2);
/// Failures under load without a success between, before the scope pauses.
const OVERLOADS_IN_ROW: u8 = 8;
/// Blocked answers without a success between, before they are about us and not about the pages.
const BLOCKED_IN_ROW: u8 = 5;
/// How long the way to an origin that blocks us cools down, and by how much more at most.
const COOLING: Duration = Duration::from_secs(300);
const COOLING_SPREAD: Duration = Duration::from_secs(60);
