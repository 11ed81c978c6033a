//! The state of one scope: open, paused, probing, ramping or tripped (P1-P8, B1-B4, H4, X1).
//!
//! A gate is told what came back and answers whether a request may start. It reads no clock, rolls no dice and never
//! waits. What opens it again after a pause is the success of its one probe, and nothing else.
//!
//! ```
//! use forbear_core::{gate::{Check, Gate, Told}, policy::ScopePolicy, time::Timestamp};
//! use std::time::Duration;
//!
//! let (policy, t) = (ScopePolicy::default(), Timestamp::from_secs(1_000));
//! let mut gate = Gate::new(&policy);
//! let sent = gate.take(&policy, t, 1);
//! gate.refused(&policy, sent, Told::wait(Duration::from_secs(3)), t.plus(Duration::from_millis(50)), 0.0);
//! assert!(matches!(gate.check(&policy, t.plus(Duration::from_secs(2)), 1), Check::Wait { .. }));
//! assert!(matches!(gate.check(&policy, t.plus(Duration::from_secs(4)), 1), Check::Probe));
//! ```

mod budget;
mod diary;
mod facts;
mod incident;
mod learned;
mod mind;
mod owner;
mod pad;
mod probe;
mod ramp;
mod snapshot;
mod state;

use std::time::Duration;

pub use self::{
    diary::{Diary, Event, Reader, What},
    facts::{Budget, Cause, Change, Check, Sent, Told},
    owner::{Heard, Marks, Owner},
    probe::Fence,
    snapshot::Snapshot,
    state::State,
};
use self::{
    mind::Mind,
    probe::Probe,
    ramp::{Form, Ramp, Stretch, milliseconds},
};
use crate::{circuit::Circuit, inflight::InFlight, pace::Clocks, policy::ScopePolicy, time::Timestamp};

/// The state of one scope.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    /// Shut since a refusal; only a probe opens it again.
    shut: bool,
    /// It was shut by a straggler only: the way back goes on where it was (P3).
    resumes: bool,
    cause: Cause,
    /// Steps of the backoff (P4).
    level: u8,
    /// How often `backoff_cap` is doubled (B3).
    cap_doubled: u8,
    blocked_in_row: u8,
    overloads_in_row: u8,
    /// Refused credentials in a row, and whose item the last one was.
    unauthorised: u8,
    unauthorised_item: u16,
    incidents: u32,
    circuit: Circuit,
    paused_until: Timestamp,
    /// How much earlier the deadline is that the server told, without pad and jitter (P6); nothing where it told none.
    beyond_told_ms: u32,
    /// When it last closed: what was sent before belongs to that incident (P3).
    closed_at: Timestamp,
    opened_at: Timestamp,
    /// In whole seconds, for forgiving.
    last_refusal_s: u32,
    /// When another item may test a told time over `pause_cap` (P7); zero where none may.
    early_probe_at: Timestamp,
    probe: Probe,
    ramp: Ramp,
    clocks: Clocks,
    in_flight: InFlight,
    /// Requests on the wire at most, as the learner has it.
    wire_cap: u16,
    mind: Mind,
    /// Accepted since `opened_at`.
    accepted: u32,
    round_trip_us: u32,
    /// Starts a second by the server's own numbers; zero where it gave none.
    stated_rate: f32,
    /// In milliseconds, wrapping.
    last_cut_ms: u32,
    /// In fifths of a retry: what a first try pays (V3).
    retry_fifths: u16,
    /// In whole seconds, both.
    retry_refilled_s: u32,
    last_used_s: u32,
}

impl Gate {
    /// An open gate that nobody has passed.
    #[must_use]
    pub fn new(policy: &ScopePolicy) -> Gate {
        Gate {
            shut: false,
            resumes: false,
            cause: Cause::Pace,
            level: 0,
            cap_doubled: 0,
            blocked_in_row: 0,
            overloads_in_row: 0,
            unauthorised: 0,
            unauthorised_item: 0,
            incidents: 0,
            circuit: Circuit::default(),
            paused_until: Timestamp::ZERO,
            beyond_told_ms: 0,
            closed_at: Timestamp::ZERO,
            opened_at: Timestamp::ZERO,
            last_refusal_s: 0,
            early_probe_at: Timestamp::ZERO,
            probe: Probe::default(),
            ramp: if policy.learn && policy.rates.is_empty() {
                Ramp::paced(policy.pace_start, f32::INFINITY)
            } else {
                Ramp::FREE
            },
            clocks: Clocks::default(),
            in_flight: InFlight::new(policy.concurrency_start.min(policy.concurrency_max)),
            wire_cap: u16::MAX,
            mind: Mind::NOBODY,
            accepted: 0,
            round_trip_us: 0,
            stated_rate: 0.0,
            last_cut_ms: 0,
            retry_fifths: RETRY_FLOOR * RETRY,
            retry_refilled_s: 0,
            last_used_s: 0,
        }
    }

    /// Notes the start of a request that [`Gate::check`] let pass at the same `now`: takes its slot and its place on the
    /// wire, and the probe's lease where the scope was shut (B2: claimed last, by a request that is really sent).
    #[inline]
    #[must_use = "whoever starts must report"]
    pub fn take(&mut self, policy: &ScopePolicy, now: Timestamp, cost: u32) -> Sent {
        let (fence, in_flight) = self.start(policy, now, cost);
        Sent { at: now, fence, in_flight }
    }

    /// The two that a start finds out, in registers: written to memory one by one and read together they would be waited for.
    fn start(&mut self, policy: &ScopePolicy, now: Timestamp, cost: u32) -> (Fence, u32) {
        policy.rates.take(&mut self.clocks, now, cost);
        if self.ramp.form != Form::Free {
            if self.shut {
                if let Some(learner) = self.mind.learner_mut() {
                    learner.probed(now);
                }
            } else {
                self.paced_start(policy, now);
            }
            self.ramp.take(now, 1); // a learned pace counts requests: that is what it was learned from
        }
        if let Some(diary) = self.mind.diary_mut().filter(|_| !self.shut) {
            diary.start(now);
        }
        self.in_flight.take();
        self.last_used_s = seconds(now);
        self.clocks.take_request();
        self.change_cost_budget(|budget| budget.take(cost));
        let mut fence = Fence::NONE;
        if self.shut {
            let early = now < self.paused_until;
            fence = self.probe.claim(now, policy.probe_lease, early);
        } else if self.opened_at == Timestamp::ZERO {
            self.opened_at = now;
        }
        (fence, self.in_flight.current())
    }

    /// Gives everything back for a request that was never sent (except its slot: a slot that passed is gone).
    pub fn give_back(&mut self, sent: Sent) -> Change {
        self.in_flight.release();
        if self.probe.release(sent.fence) { Change::ProbeFree } else { Change::None }
    }

    /// The probe is still on the wire: its lease lasts from now on again (B1). False if it is lost.
    pub fn renew(&mut self, policy: &ScopePolicy, fence: Fence, now: Timestamp) -> bool {
        self.probe.renew(fence, now, policy.probe_lease)
    }

    /// The server accepted the request, whatever it answered.
    pub fn succeeded(&mut self, policy: &ScopePolicy, sent: Sent, now: Timestamp) -> Change {
        self.in_flight.release();
        self.round_trip(sent, now);
        self.circuit.succeeded();
        self.blocked_in_row = 0;
        self.overloads_in_row = 0;
        self.unauthorised = 0;
        if self.shut {
            if !self.probe.is_held_by(sent.fence) {
                return Change::None; // P2: a late success opens nothing
            }
            if now < self.paused_until && !self.probe.early {
                // While it was on the wire another request was told to wait for longer (P2).
                self.probe.release(sent.fence);
                return Change::ProbeFree;
            }
            self.pad_was_enough(policy, sent);
            self.reopen(policy, sent.at, now);
            return Change::Reopened;
        }
        self.probe.release(sent.fence);
        if sent.at >= self.opened_at {
            self.accepted = self.accepted.saturating_add(1);
            self.learn_success(sent, now);
            self.in_flight.succeeded(policy.concurrency_max, milliseconds(now));
        }
        if self.quiet(now) > FORGIVEN {
            self.cap_doubled = 0;
        }
        Change::None
    }

    /// The server left the request unread, most likely since there were too many at once: fewer from now on.
    pub fn not_taken(&mut self, policy: &ScopePolicy, sent: Sent, now: Timestamp) -> Change {
        self.cut(sent, now);
        self.unanswered(policy, sent, now)
    }

    fn cut(&mut self, sent: Sent, now: Timestamp) {
        if milliseconds(sent.at).wrapping_sub(self.last_cut_ms) as i32 > 0 || self.last_cut_ms == 0 {
            self.last_cut_ms = milliseconds(now); // once for all that was on the wire together
            self.in_flight.overloaded();
        }
    }

    /// No answer came (reset, time-out, dead connection): no reopening, and the next probe is soon (B3).
    pub fn unanswered(&mut self, policy: &ScopePolicy, sent: Sent, now: Timestamp) -> Change {
        self.in_flight.release();
        if self.probe.release(sent.fence) {
            let soon = now.plus(policy.backoff.base());
            self.paused_until = self.paused_until.max(soon);
            if self.early_probe_at != Timestamp::ZERO {
                self.early_probe_at = self.early_probe_at.max(soon);
            }
            return Change::ProbeFree;
        }
        Change::None
    }

    /// An operator's pause until `until`.
    pub fn pause(&mut self, until: Timestamp, now: Timestamp) {
        self.closed_at = now;
        self.close(until, Cause::Operator);
    }

    /// An operator opens the scope: the one way to shorten a pause (P2). Backoff and pace are kept.
    pub fn clear(&mut self, now: Timestamp) {
        self.paused_until = now;
        self.beyond_told_ms = 0;
        self.early_probe_at = Timestamp::ZERO;
        self.shut = false;
        self.opened_at = now;
        self.accepted = 0;
        self.unauthorised = 0;
        self.cause = Cause::Pace;
        self.interrupt(now);
    }

    /// Takes one retry after a fault from the scope's budget (V3): a fifth of the first tries, and ten a second at
    /// least. False when it is used up.
    pub fn take_retry(&mut self, now: Timestamp) -> bool {
        let passed = seconds(now).saturating_sub(self.retry_refilled_s).min(60) as u16;
        self.retry_refilled_s = seconds(now);
        self.retry_fifths = (self.retry_fifths + passed * RETRY_FLOOR * RETRY).min(RETRY_MOST * RETRY);
        let granted = self.retry_fifths >= RETRY;
        self.retry_fifths -= RETRY * u16::from(granted);
        granted
    }

    /// A first try pays into the budget for retries (V3).
    pub fn first_try(&mut self) {
        self.retry_fifths = (self.retry_fifths + 1).min(RETRY_MOST * RETRY);
    }

    /// Whether a request of this cost may start at `now`. Changes nothing: S1 asks all scopes first, and takes then.
    pub fn check(&self, policy: &ScopePolicy, now: Timestamp, cost: u32) -> Check {
        let mut answer = Check::Admit;
        if self.shut {
            let early = self.early_probe_at != Timestamp::ZERO && now >= self.early_probe_at;
            if now < self.paused_until && !early {
                let until = if self.early_probe_at == Timestamp::ZERO {
                    self.paused_until
                } else {
                    self.early_probe_at.min(self.paused_until)
                };
                return Check::Wait { until, cause: self.cause };
            }
            if let Some(until) = self.probe.live_until(now) {
                return Check::Wait { until, cause: Cause::Probing };
            }
            answer = Check::Probe;
        } else if let Some(resets) = self.used_up_until(now) {
            // What may still be left is on the wire; its answers will say.
            return if self.in_flight.current() > 0 {
                Check::Full
            } else {
                let until = resets.plus(self.pad(policy, Duration::ZERO));
                Check::Wait { until, cause: Cause::Budget }
            };
        } else if let Some(resets) = self.clocks.budget().wait(now, cost) {
            // The same for what this one would cost.
            return if self.in_flight.current() > 0 {
                Check::Full
            } else {
                Check::Wait { until: resets.plus(self.pad(policy, Duration::ZERO)), cause: Cause::Budget }
            };
        }
        let slot = policy.rates.earliest(&self.clocks, cost).max(self.ramp.earliest());
        if now < slot {
            return Check::Wait { until: slot, cause: Cause::Pace };
        }
        if self.in_flight.is_full(policy.concurrency_max.min(u32::from(self.wire_cap))) {
            Check::Full
        } else {
            answer
        }
    }

    /// Until when nothing starts, and why; none for an open gate. Of an endless pause the moment is [`Timestamp::MAX`].
    #[must_use]
    pub fn pause_at(&self, now: Timestamp) -> Option<(Timestamp, Cause)> {
        (self.shut && now < self.paused_until).then_some((self.paused_until, self.cause))
    }

    /// The deadline that the server told, without pad and jitter; the pause's end where it told none.
    #[must_use]
    pub fn told_until(&self) -> Timestamp {
        self.paused_until.minus(Duration::from_millis(u64::from(self.beyond_told_ms)))
    }

    /// The word for its state (section 2 of the contract).
    #[must_use]
    pub fn state(&self, now: Timestamp) -> &'static str {
        match (self.shut, self.cause) {
            (true, _) if self.probe.live_until(now).is_some() => "probing",
            (true, Cause::Tripped) => "tripped",
            (true, _) => "paused",
            (false, _) if self.ramp.is_climbing() => "ramping",
            (false, _) => "open",
        }
    }

    /// Starts a second that the scope is paced at, beside configured rates.
    #[must_use]
    pub fn learned_rate(&self) -> Option<f32> {
        self.ramp.rate()
    }

    /// Whether it stays shut until its account has other credentials.
    #[must_use]
    pub fn has_bad_credentials(&self) -> bool {
        self.shut && self.cause == Cause::Credentials
    }

    /// Incidents so far.
    #[must_use]
    pub fn incidents(&self) -> u32 {
        self.incidents
    }

    /// Requests on the wire.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.in_flight.current()
    }

    /// The present cap of requests on the wire.
    #[must_use]
    pub fn concurrency(&self) -> u32 {
        self.in_flight.cap()
    }

    /// The mean time from start to answer.
    #[must_use]
    pub fn round_trip_mean(&self) -> Duration {
        Duration::from_micros(u64::from(self.round_trip_us))
    }

    /// Whether dropping it loses nothing that anybody would miss: nothing on the wire, no pause, no learned pace, and no
    /// use for a while (C4).
    #[must_use]
    pub fn is_idle(&self, now: Timestamp) -> bool {
        self.in_flight.current() == 0
            && !self.shut
            && self.is_unused(now)
            && self.quiet(now) > FORGIVEN
            // What was learned is worth its room for a while.
            && (self.ramp.bad.is_infinite() || seconds(now).saturating_sub(self.last_used_s) > LEARNED_S)
    }

    fn is_unused(&self, now: Timestamp) -> bool {
        seconds(now).saturating_sub(self.last_used_s) > IDLE_S
    }

    fn stretch(&self) -> Stretch {
        let open = self.closed_at.since(self.opened_at);
        Stretch { accepted: self.accepted, open, round_trip: self.round_trip_mean() }
    }

    fn quiet(&self, now: Timestamp) -> Duration {
        Duration::from_secs(u64::from(seconds(now).saturating_sub(self.last_refusal_s)))
    }

    fn round_trip(&mut self, sent: Sent, now: Timestamp) {
        let sample = u32::try_from(now.since(sent.at).as_micros()).unwrap_or(u32::MAX);
        self.round_trip_us = if self.round_trip_us == 0 {
            sample
        } else {
            self.round_trip_us - self.round_trip_us / 8 + sample / 8 // RFC 6298's gain
        };
    }
}

fn seconds(t: Timestamp) -> u32 {
    u32::try_from(t.as_micros() / 1_000_000).unwrap_or(u32::MAX) // until the year 2106
}

/// B3: backoff cap and pause fall back after so long without a refusal.
const FORGIVEN: Duration = Duration::from_secs(600);
/// A scope that was not used for so long takes no memory.
const IDLE_S: u32 = 60;
/// One whose limit is known is remembered for so long.
const LEARNED_S: u32 = 3600;
/// V3: each first try pays for a fifth of a retry; ten a second are free (Finagle's figures), a hundred can be saved up.
const RETRY: u16 = 5;
const RETRY_FLOOR: u16 = 10;
const RETRY_MOST: u16 = 100;
