//! What becomes of the item: the last column of the verdict table (V1-V3, P6).

use std::time::Duration;

use crate::{
    attempt::HEAT,
    hint::Kind,
    outcome::{ExitFault, Outcome, Processed, Refusal},
    policy::{ItemPolicy, OnNoHint},
};

/// What happened to an item so far, and what it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct History {
    /// Attempts that count: failures, this one not included.
    pub failures: u32,
    /// Refusals in this run, this one not included.
    pub refusals: u32,
    /// All requests sent for it before this one.
    pub tries: u32,
    /// It may be sent twice: an idempotent method (RFC 9110 section 9.2.2), an idempotency key, or `idempotent: true`.
    pub idempotent: bool,
    /// Its account has stopped: the credentials were refused for two different items with no success between.
    pub account_stopped: bool,
    /// Which way the item went.
    pub way: Way,
}

/// How an item went out, as far as its verdict depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Way {
    /// Straight to the origin.
    #[default]
    Direct,
    /// By an exit.
    Exit {
        /// How hot the exit is at the origin, from 0 to 1 (E3).
        heat: f64,
        /// What it was refused for, if it was, is this exit's alone, and others may be used.
        others_free: bool,
        /// Some exit serves at present: it is not all of them that fail.
        others_serve: bool,
        /// Exits that were told before this one that they, or we, are unwanted there with this item.
        blocked_before: u32,
    },
}

/// What to do next with the item.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "an item that nobody acts on is lost"]
pub enum Verdict {
    /// Its result is final.
    Done,
    /// Once more after this delay, as soon as the scope admits it.
    Retry {
        /// The least wait.
        after: Duration,
    },
    /// Once more by another exit, no attempt lost.
    Elsewhere {
        /// The least wait.
        after: Duration,
    },
    /// Kept in hand until the scope opens (P6), and at least for the told time.
    Hold {
        /// The told wait; zero where none was told.
        told: Duration,
    },
    /// Put back for at least this long.
    Park {
        /// The told wait, with pad and chance.
        wait: Duration,
        /// The told wait as it was: what "due" is counted from (X2).
        told: Duration,
    },
    /// Put back until the next run: it was refused, or failed by its exits, too often in this one, or its quota says no time.
    ParkForNextRun,
    /// Put back until its account has new credentials.
    ParkForCredentials,
    /// Its result is final, and no success.
    Fail(FailReason),
    /// Nobody knows whether it was done, and doing it twice may do harm.
    Unknown,
}

impl Verdict {
    /// Whether the attempt with this outcome counts towards [`ItemPolicy::max_attempts`]: faults do, and the last answer.
    /// Refusals and faults of exits do not (V1).
    #[must_use]
    pub fn counts(&self, outcome: &Outcome) -> bool {
        match self {
            Verdict::Retry { after } => !after.is_zero(), // at once: nobody had looked at it
            Verdict::Park { .. } => !matches!(outcome, Outcome::Refused(_)),
            Verdict::Done | Verdict::Fail(_) | Verdict::Unknown => true,
            Verdict::Elsewhere { .. }
            | Verdict::Hold { .. }
            | Verdict::ParkForNextRun
            | Verdict::ParkForCredentials => false,
        }
    }

    /// How long the item waits at least before it is worth asking the gate again; none where it is not sent again in this run.
    #[must_use]
    pub fn again(&self) -> Option<Duration> {
        match *self {
            Verdict::Retry { after } | Verdict::Elsewhere { after } => Some(after),
            Verdict::Hold { told } => Some(told),
            Verdict::Park { wait, .. } => Some(wait),
            Verdict::Done
            | Verdict::ParkForNextRun
            | Verdict::ParkForCredentials
            | Verdict::Fail(_)
            | Verdict::Unknown => None,
        }
    }
}

/// Why an item failed for good.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum FailReason {
    /// As many failures as it may have.
    Attempts,
    /// The answer will not change.
    Answer,
    /// The server said not to try again.
    ToldNotTo,
    /// Denied as unwanted.
    Blocked,
    /// The credentials were refused.
    Unauthorised,
    /// A fault that does not pass, such as a certificate.
    Permanent,
}

impl FailReason {
    /// The words for a record's `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            FailReason::Attempts => "out of attempts",
            FailReason::Answer => "the answer is final",
            FailReason::ToldNotTo => "the server said not to retry",
            FailReason::Blocked => "blocked",
            FailReason::Unauthorised => "credentials refused",
            FailReason::Permanent => "the fault does not pass",
        }
    }
}

/// Decides. `retry_granted` is the scope's budget for retries after faults (V3), `roll` in `[0, 1)` is for jitter.
///
/// A pure function: the outcome, the state of the exit and the number of the attempt go in; whether to try again, after how
/// long, and whether by another exit come out.
///
/// ```
/// use std::time::Duration;
/// use forbear_core::{
///     backoff::{Backoff, Jitter},
///     exit::Health,
///     hint::Kind,
///     outcome::{Outcome, Refusal},
///     policy::ItemPolicy,
///     time::Timestamp,
///     verdict::{History, Verdict, Way, verdict},
/// };
///
/// // An exit that was refused in six of its last ten answers at this origin.
/// let (mut health, now) = (Health::default(), Timestamp::from_secs(1_000));
/// (0..4).for_each(|_| health.succeeded(now));
/// (0..6).for_each(|_| health.refused(now));
///
/// let refused =
///     Outcome::Refused(Refusal { wait: None, from: None, named: None, kind: Kind::RateLimit, may_retry: true });
/// let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), Jitter::Half)?;
/// let policy = ItemPolicy { backoff, ..ItemPolicy::default() };
/// let history = History {
///     tries: 2, // the third request for this item
///     way: Way::Exit { heat: health.heat(now), others_free: true, others_serve: true, blocked_before: 0 },
///     ..History::default()
/// };
/// // 2^2 s, and 30 s times the heat; chance adds up to half of that.
/// let next = verdict(&refused, &history, &policy, true, 0.0);
/// assert_eq!(next, Verdict::Elsewhere { after: Duration::from_secs(4 + 18) });
/// # Ok::<(), forbear_core::backoff::BackoffError>(())
/// ```
pub fn verdict(
    outcome: &Outcome,
    history: &History,
    policy: &ItemPolicy,
    retry_granted: bool,
    roll: f64,
) -> Verdict {
    match outcome {
        Outcome::Success => Verdict::Done,
        Outcome::Refused(refusal) => after_refusal(refusal, history, policy, roll),
        Outcome::Overloaded => after_failure(history, policy, retry_granted, roll),
        Outcome::Blocked { .. } => match history.way {
            Way::Exit { blocked_before, others_free: true, .. }
                if blocked_before < policy.blocked_retries =>
            {
                Verdict::Elsewhere { after: Duration::ZERO }
            }
            _ => Verdict::Fail(FailReason::Blocked),
        },
        Outcome::Exit { processed: Processed::Unknown, .. } if !history.idempotent => Verdict::Unknown,
        // One that breaks every exit would go round for ever, and take them all from the others.
        Outcome::Exit { .. }
            if history.tries >= EXITS_TRIED_MAX
                && matches!(history.way, Way::Exit { others_serve: true, .. }) =>
        {
            Verdict::ParkForNextRun
        }
        Outcome::Exit { fault: ExitFault::Broken | ExitFault::Silent, .. } => {
            let step = policy.exit_wait;
            let after =
                step.saturating_mul(history.tries.saturating_add(1).min(64)) + step.mul_f64(2.0 * roll);
            Verdict::Elsewhere { after }
        }
        Outcome::Exit { .. } => Verdict::Elsewhere { after: Duration::ZERO },
        Outcome::Unauthorised if history.account_stopped => Verdict::ParkForCredentials,
        Outcome::Unauthorised => Verdict::Fail(FailReason::Unauthorised),
        Outcome::Rejected => Verdict::Fail(FailReason::Answer),
        Outcome::NotTaken if history.tries < NOT_TAKEN_MAX => Verdict::Retry { after: Duration::ZERO },
        Outcome::NotTaken => after_failure(history, policy, retry_granted, roll),
        Outcome::Fault { passing: false, .. } => Verdict::Fail(FailReason::Permanent),
        Outcome::Fault { processed: Processed::Unknown, .. } if !history.idempotent => Verdict::Unknown,
        Outcome::Fault { .. } => after_failure(history, policy, retry_granted, roll),
    }
}

fn after_refusal(refusal: &Refusal, history: &History, policy: &ItemPolicy, roll: f64) -> Verdict {
    let told = refusal.wait.unwrap_or(Duration::ZERO);
    if !refusal.may_retry {
        // A used-up quota comes back some day; an order not to retry, or a block, does not.
        return if refusal.kind == Kind::Quota {
            Verdict::ParkForNextRun
        } else {
            Verdict::Fail(FailReason::ToldNotTo)
        };
    }
    if let Way::Exit { heat, others_free: true, .. } = history.way {
        if history.refusals + 1 > policy.refusals_max {
            return Verdict::ParkForNextRun;
        }
        // The told time binds the exit that was told it; the item goes on by another, after a wait of its own.
        let rest = policy.backoff.spread(HEAT.mul_f64(heat.clamp(0.0, 1.0)), roll);
        return Verdict::Elsewhere { after: policy.backoff.delay(history.tries, roll) + rest };
    }
    let park = |wait: Duration| Verdict::Park {
        wait: wait
            + policy.pad.over(wait)
            + wait.min(LONGEST_SPREAD).mul_f64((policy.jitter * roll).clamp(0.0, 10.0)),
        told: wait,
    };
    // The told time is compared, before pad and jitter (P6), and a long one is told to the item even on its last refusal.
    if told > policy.hold_max {
        return park(told.min(LONGEST));
    }
    if history.refusals + 1 > policy.refusals_max {
        return Verdict::ParkForNextRun;
    }
    if told.is_zero() && policy.on_no_hint == OnNoHint::Park {
        let wait = policy.backoff.delay(history.refusals, roll);
        return Verdict::Park { wait, told: wait };
    }
    Verdict::Hold { told }
}

fn after_failure(history: &History, policy: &ItemPolicy, retry_granted: bool, roll: f64) -> Verdict {
    if history.failures + 1 >= policy.max_attempts {
        return Verdict::Fail(FailReason::Attempts);
    }
    let wait = policy.backoff.delay(history.failures, roll);
    if retry_granted {
        return Verdict::Retry { after: wait };
    }
    // V3: over the budget items park, and come back when the storm is over.
    let wait = policy.backoff.cap().max(wait);
    Verdict::Park { wait, told: wait }
}

/// After so many requests in a run an item that is never looked at counts as failing.
const NOT_TAKEN_MAX: u32 = 32;
/// Requests for an item in a run, after which an exit fault is no more a reason to try yet another exit.
const EXITS_TRIED_MAX: u32 = 64;
/// A longer wait than a century is told as a century: a moment that every clock and every file can hold.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);
/// Chance adds to at most a week of a wait.
const LONGEST_SPREAD: Duration = Duration::from_secs(7 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        backoff::{Backoff, Jitter},
        exit::Health,
        hint::WaitSource,
        time::Timestamp,
    };

    const S: Duration = Duration::from_secs(1);

    fn refusal(wait: Option<u64>, kind: Kind, may_retry: bool) -> Outcome {
        let wait = wait.map(Duration::from_secs);
        let from = wait.map(|_| WaitSource::Instruction);
        Outcome::Refused(Refusal { wait, from, named: None, kind, may_retry })
    }

    fn decide(outcome: &Outcome, history: History) -> Verdict {
        let policy = ItemPolicy {
            jitter: 0.0,
            pad: crate::policy::Pad { factor: 1.0, fixed: Duration::ZERO },
            ..ItemPolicy::default()
        };
        verdict(outcome, &history, &policy, true, 0.0)
    }

    #[test]
    fn v1_refusals_use_up_no_attempt() {
        let tired = History { failures: 4, idempotent: true, ..History::default() };
        assert_eq!(decide(&refusal(Some(3), Kind::RateLimit, true), tired), Verdict::Hold { told: 3 * S });
        assert_eq!(decide(&Outcome::Overloaded, tired), Verdict::Fail(FailReason::Attempts));
        let refused = History { refusals: 4, ..History::default() };
        assert_eq!(decide(&refusal(None, Kind::RateLimit, true), refused), Verdict::ParkForNextRun);
    }

    #[test]
    fn v1_certificate_errors_are_no_glitches() {
        let fault = Outcome::Fault { processed: Processed::No, passing: false };
        assert_eq!(decide(&fault, History::default()), Verdict::Fail(FailReason::Permanent));
    }

    #[test]
    fn j2_items_of_a_stopped_account_wait_for_credentials() {
        let stopped = History { account_stopped: true, ..History::default() };
        assert_eq!(decide(&Outcome::Unauthorised, stopped), Verdict::ParkForCredentials);
        assert_eq!(
            decide(&Outcome::Unauthorised, History::default()),
            Verdict::Fail(FailReason::Unauthorised),
            "one item alone says nothing about the account"
        );
    }

    #[test]
    fn v2_replays_go_by_evidence() {
        let (post, get) = (History::default(), History { idempotent: true, ..History::default() });
        let unknown = Outcome::Fault { processed: Processed::Unknown, passing: true };
        let unsent = Outcome::Fault { processed: Processed::No, passing: true };
        for (outcome, history, expected) in [
            (unknown, post, Verdict::Unknown),
            (unknown, get, Verdict::Retry { after: S }),
            (unsent, post, Verdict::Retry { after: S }),
            (Outcome::NotTaken, post, Verdict::Retry { after: Duration::ZERO }),
            (refusal(None, Kind::RateLimit, true), post, Verdict::Hold { told: Duration::ZERO }),
        ] {
            assert_eq!(decide(&outcome, history), expected, "{outcome:?}");
        }
    }

    #[test]
    fn v3_over_the_budget_items_park() {
        let get = History { idempotent: true, ..History::default() };
        let parked = verdict(&Outcome::Overloaded, &get, &ItemPolicy::default(), false, 0.0);
        assert!(matches!(parked, Verdict::Park { wait, .. } if wait >= 60 * S), "{parked:?}");
    }

    #[test]
    fn v1_an_item_that_no_exit_can_carry_is_put_off() {
        for fault in [ExitFault::Broken, ExitFault::NoWay, ExitFault::Rejected] {
            let outcome = Outcome::Exit { fault, processed: Processed::No };
            let tried = |tries, others_serve| {
                let way = Way::Exit { heat: 0.0, others_free: false, others_serve, blocked_before: 0 };
                decide(&outcome, History { tries, idempotent: true, way, ..History::default() })
            };
            let elsewhere = Verdict::Elsewhere { after: Duration::ZERO };
            assert_eq!(tried(EXITS_TRIED_MAX - 1, true), elsewhere);
            assert_eq!(tried(EXITS_TRIED_MAX, true), Verdict::ParkForNextRun);
            assert_eq!(
                tried(10 * EXITS_TRIED_MAX, false),
                elsewhere,
                "E5: no exit serves anybody, so it is not the item"
            );
        }
    }

    #[test]
    fn p6_the_told_time_decides_between_hold_and_park() {
        for (told, holds) in [(1, true), (30, true), (31, false), (300, false), (301, false), (86_400, false)]
        {
            let verdict = decide(&refusal(Some(told), Kind::RateLimit, true), History::default());
            assert_eq!(matches!(verdict, Verdict::Hold { .. }), holds, "{told} s: {verdict:?}");
            if let Verdict::Park { wait, .. } = verdict {
                assert!(wait >= Duration::from_secs(told));
            }
        }
    }

    #[test]
    fn the_verdict_table() {
        let get = History { idempotent: true, ..History::default() };
        for (outcome, expected) in [
            (Outcome::Success, Verdict::Done),
            (Outcome::Rejected, Verdict::Fail(FailReason::Answer)),
            (Outcome::Blocked { challenge: false }, Verdict::Fail(FailReason::Blocked)),
            (Outcome::Unauthorised, Verdict::Fail(FailReason::Unauthorised)),
            (Outcome::Overloaded, Verdict::Retry { after: S }),
            (refusal(None, Kind::Quota, false), Verdict::ParkForNextRun),
            (refusal(None, Kind::RateLimit, false), Verdict::Fail(FailReason::ToldNotTo)),
        ] {
            assert_eq!(decide(&outcome, get), expected, "{outcome:?}");
        }
    }

    /// The formulas of the policy `exit-state`, with `attempt` as the number of earlier tries.
    #[test]
    fn exit_state_verdicts_are_those_of_the_policy() {
        let policy = ItemPolicy {
            backoff: Backoff::new(S, 60 * S, Jitter::Half).unwrap(),
            blocked_retries: 4,
            exit_wait: S / 2,
            ..ItemPolicy::default()
        };
        let now = Timestamp::from_secs(1_000);
        let heat = |refused: u32| {
            let mut health = Health::default();
            (0..10 - refused).for_each(|_| health.succeeded(now));
            (0..refused).for_each(|_| health.refused(now));
            health.heat(now)
        };
        let decide = |outcome: &Outcome, attempt: u32, heat: f64, roll: f64| {
            let way = Way::Exit { heat, others_free: true, others_serve: true, blocked_before: attempt };
            let history =
                History { refusals: attempt, tries: attempt, idempotent: true, way, ..History::default() };
            verdict(outcome, &history, &policy, true, roll)
        };
        let elsewhere = |s: f64| Verdict::Elsewhere { after: Duration::from_secs_f64(s) };
        let broken = Outcome::Exit { fault: ExitFault::Broken, processed: Processed::No };
        let rejects_us = Outcome::Exit { fault: ExitFault::Rejected, processed: Processed::No };
        let blocked = Outcome::Blocked { challenge: false };
        let limited = refusal(None, Kind::RateLimit, true);
        for (outcome, attempt, hot, roll, expected) in [
            // Rate limited: 2^attempt + 30 x heat, and up to half of it.
            (limited, 0, 0, 0.0, elsewhere(1.0)),
            (limited, 3, 0, 0.0, elsewhere(8.0)),
            (limited, 0, 6, 0.0, elsewhere(1.0 + 18.0)),
            (limited, 2, 6, 0.5, elsewhere((4.0 + 18.0) * 1.25)),
            (limited, 2, 10, 1.0, elsewhere((4.0 + 30.0) * 1.5)),
            (refusal(Some(900), Kind::RateLimit, true), 1, 0, 0.0, elsewhere(2.0)), // it binds the exit that was told
            (limited, 4, 0, 0.0, Verdict::ParkForNextRun), // the fifth request was the last
            // Blocked: another exit at once; its pair rests for 300 to 360 s, which is the gate's business.
            (blocked, 0, 0, 0.9, elsewhere(0.0)),
            (blocked, 3, 10, 0.0, elsewhere(0.0)),
            (blocked, 4, 0, 0.0, Verdict::Fail(FailReason::Blocked)),
            // Proxy error: 0.5 x (attempt + 1) + uniform(0, 1), whatever the heat.
            (broken, 0, 0, 0.0, elsewhere(0.5)),
            (broken, 3, 10, 0.0, elsewhere(2.0)),
            (broken, 1, 0, 0.75, elsewhere(1.75)),
            (broken, 9, 0, 0.0, elsewhere(5.0)), // no attempt is lost, so no attempt is the last (V1)
            (rejects_us, 0, 0, 0.9, elsewhere(0.0)),
            // Fatal: never.
            (Outcome::Unauthorised, 0, 0, 0.0, Verdict::Fail(FailReason::Unauthorised)),
            (Outcome::Rejected, 0, 0, 0.0, Verdict::Fail(FailReason::Answer)),
            (
                Outcome::Fault { processed: Processed::No, passing: false },
                0,
                0,
                0.0,
                Verdict::Fail(FailReason::Permanent),
            ),
            (Outcome::Success, 0, 10, 0.0, Verdict::Done),
        ] {
            let found = decide(&outcome, attempt, heat(hot), roll);
            assert_eq!(found, expected, "{outcome:?}, attempt {attempt}, {hot} of 10 refused, roll {roll}");
        }
    }

    #[test]
    fn v1_what_counts_as_an_attempt() {
        let fault = Outcome::Fault { processed: Processed::No, passing: true };
        let park = Verdict::Park { wait: S, told: S };
        for (verdict, outcome, counts) in [
            (Verdict::Done, Outcome::Success, true),
            (Verdict::Fail(FailReason::Answer), Outcome::Rejected, true),
            (Verdict::Retry { after: S }, fault, true),
            (Verdict::Retry { after: Duration::ZERO }, Outcome::NotTaken, false),
            (park, fault, true),
            (park, refusal(Some(99), Kind::RateLimit, true), false),
            (Verdict::Hold { told: S }, refusal(None, Kind::RateLimit, true), false),
            (Verdict::Elsewhere { after: S }, Outcome::Blocked { challenge: false }, false),
            (Verdict::ParkForNextRun, refusal(None, Kind::Quota, false), false),
        ] {
            assert_eq!(verdict.counts(&outcome), counts, "{verdict:?} {outcome:?}");
        }
    }
}
