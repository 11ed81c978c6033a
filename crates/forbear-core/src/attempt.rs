//! The one machine that composes the others: may this request start, and what follows from what came back (S1, B2).
//!
//! Engine and simulator both drive it, inside one atomic step of the gate store over all scopes of a request.

use std::time::Duration;

use crate::{
    evidence::Part,
    gate::{self, Budget, Cause, Change, Check, Fence, Gate, Sent, Told},
    hint::{self, Reading, ScopeHint},
    outcome::{ExitFault, Outcome},
    pace::Rate,
    policy::BoundScope,
    scope::{self, Blame, MAX_SCOPES},
    time::Timestamp,
};

/// What a request asks for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Ask {
    /// What it counts for on every rate that does not count requests, 1 by default (C1).
    pub cost: u32,
    /// Its first request of all, which pays into the budget for retries (V3).
    pub first: bool,
}

impl Default for Ask {
    fn default() -> Ask {
        Ask { cost: 1, first: true }
    }
}

/// The right to send one request now. Whoever holds one reports what came of it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Grant {
    at: Timestamp,
    /// Of each scope: which probe it is, and how many are on the wire with it.
    taken: [(Fence, u32); MAX_SCOPES],
    cost: u32,
}

impl Grant {
    /// When it was given.
    #[must_use]
    pub fn at(&self) -> Timestamp {
        self.at
    }

    /// Whether the request probes one of its scopes: its lease must be renewed while it is on the wire (B1).
    #[must_use]
    pub fn is_probe(&self) -> bool {
        self.taken.iter().any(|(fence, _)| fence.is_probe())
    }

    fn sent(&self, scope: usize) -> Sent {
        let (fence, in_flight) = self.taken[scope];
        Sent { at: self.at, fence, in_flight }
    }
}

/// Answers one request. Exhaustive on purpose: a new answer must break every caller's `match`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use = "a decision that nobody acts on is a request that nobody paced"]
pub enum Decision {
    /// Send, and report.
    Admit(Grant),
    /// Ask again at `until`, the latest of all scopes' deadlines.
    Wait {
        /// The moment.
        until: Timestamp,
        /// Which scope it is for.
        scope: usize,
        /// Why.
        cause: Cause,
    },
    /// Ask again when a request of this scope has come back.
    Full {
        /// Which scope.
        scope: usize,
    },
}

/// Tests all scopes, then takes all of them, in one step (S1). `gates` and `scopes` go in pairs.
pub fn acquire(gates: &mut [Gate], scopes: &[BoundScope], ask: Ask, now: Timestamp) -> Decision {
    let mut wait: Option<Decision> = None;
    let mut latest = Timestamp::ZERO;
    for (i, (gate, scope)) in gates.iter().zip(scopes).enumerate() {
        match gate.check(&scope.policy, now, ask.cost) {
            Check::Admit | Check::Probe => {}
            Check::Wait { until, cause } if until > latest => {
                latest = until;
                wait = Some(Decision::Wait { until, scope: i, cause });
            }
            Check::Wait { .. } => {}
            Check::Full => wait = wait.or(Some(Decision::Full { scope: i })),
        }
    }
    if let Some(wait) = wait {
        return wait;
    }
    let mut taken = [(Fence::NONE, 0); MAX_SCOPES];
    if let ([gate], [scope]) = (&mut *gates, scopes) {
        // Most requests: the array need not be written and read again before it is handed over.
        taken[0] = take(gate, scope, ask, now);
        return Decision::Admit(Grant { at: now, taken, cost: ask.cost });
    }
    for ((gate, scope), taken) in gates.iter_mut().zip(scopes).zip(&mut taken) {
        *taken = take(gate, scope, ask, now);
    }
    Decision::Admit(Grant { at: now, taken, cost: ask.cost })
}

fn take(gate: &mut Gate, scope: &BoundScope, ask: Ask, now: Timestamp) -> (Fence, u32) {
    let Sent { fence, in_flight, .. } = gate.take(&scope.policy, now, ask.cost);
    if ask.first {
        gate.first_try();
    }
    (fence, in_flight)
}

/// What a report did.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[must_use]
pub struct News {
    /// Which scope it fell on.
    pub scope: usize,
    /// What happened to that scope.
    pub change: Change,
    /// A retry after a fault is within the scope's budget (V3).
    pub retry_granted: bool,
    /// The credentials were refused, and their account has stopped, with this answer or before.
    pub account_stopped: bool,
    /// A bit for each scope of the request that opened, or may be probed by another.
    woken: u8,
}

impl News {
    fn of(scope: usize) -> News {
        News { scope, change: Change::None, retry_granted: true, account_stopped: false, woken: 0 }
    }

    /// Some scope of the request opened, or may be probed by another: who waits may ask again.
    #[must_use]
    pub fn wakes(&self) -> bool {
        self.woken != 0
    }

    /// Whether this one did, by its index.
    #[must_use]
    pub fn wakes_at(&self, scope: usize) -> bool {
        scope < MAX_SCOPES && self.woken & (1 << scope) != 0
    }
}

/// What came of a request.
#[derive(Clone, Copy, Debug)]
pub struct Finding<'a> {
    /// In one word.
    pub outcome: &'a Outcome,
    /// What the response said about limits, where one came.
    pub reading: Option<&'a Reading>,
    /// Tells items apart.
    pub item: u64,
    /// Chance, in `[0, 1)`.
    pub roll: f64,
    /// What is known of the exit that it went by; nothing for the direct way.
    pub exit: Option<Through>,
    /// Whose the origin's limits have been found to be, where that is narrower than everyone's (L6).
    pub narrowed: Option<Part>,
}

/// What the exits know about one attempt that its gates do not.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Through {
    /// How hot the exit is at this origin, from 0 to 1 (E3): it rests for up to [`HEAT`] more.
    pub heat: f64,
    /// Another exit was refused by this origin meanwhile, so the limit is not this exit's alone (S5).
    pub refused_elsewhere: bool,
}

/// Takes in what came of a request.
pub fn report(
    gates: &mut [Gate],
    scopes: &[BoundScope],
    grant: &Grant,
    finding: &Finding<'_>,
    now: Timestamp,
) -> News {
    let Finding { outcome, reading, roll, .. } = *finding;
    let scope = if scopes.len() == 1 { 0 } else { blamed(scopes, finding) };
    let mut news = News::of(scope);
    for (i, (gate, bound)) in gates.iter_mut().zip(scopes).enumerate() {
        let (policy, sent) = (&*bound.policy, grant.sent(i));
        let mut change = match outcome {
            Outcome::Success | Outcome::Rejected => gate.succeeded(policy, sent, now),
            _ => not_served(gate, bound, sent, finding, i == scope, now),
        };
        if i == scope {
            let refused = matches!(outcome, Outcome::Refused(_));
            for budget in
                reading.map_or([None; 2], |reading| budgets_of(reading, refused)).into_iter().flatten()
            {
                let closed = gate.budget(policy, sent, budget, now, roll);
                change = if closed == Change::None { change } else { closed };
            }
            if matches!(outcome, Outcome::Overloaded | Outcome::Fault { .. }) {
                news.retry_granted = gate.take_retry(now);
            }
            news.change = change;
            news.account_stopped = matches!(outcome, Outcome::Unauthorised) && gate.has_bad_credentials();
        }
        // However a probe ends, whoever waits for it has another time to wait for.
        news.woken |= u8::from(change == Change::Reopened || sent.fence.is_probe()) << i;
    }
    news
}

/// What every other outcome than a success does to one scope of the request, the one that it `falls_on` or another. Apart, so
/// that a success pays for none of it.
#[inline(never)]
fn not_served(
    gate: &mut Gate,
    bound: &BoundScope,
    sent: Sent,
    finding: &Finding<'_>,
    falls_on: bool,
    now: Timestamp,
) -> Change {
    let Finding { outcome, reading, item, roll, exit, .. } = *finding;
    let policy = &*bound.policy;
    match outcome {
        Outcome::Success | Outcome::Rejected => gate.succeeded(policy, sent, now),
        Outcome::Fault { .. } => gate.unanswered(policy, sent, now),
        Outcome::NotTaken => gate.not_taken(policy, sent, now),
        Outcome::Exit { fault: ExitFault::Limited { wait }, .. } if falls_on => {
            gate.refused(policy, sent, Told { wait: *wait, ..Told::nothing() }, now, roll)
        }
        Outcome::Exit { .. } => gate.unanswered(policy, sent, now),
        // B2: what a refusal does not count for is neither opened nor closed by it.
        _ if !falls_on => gate.give_back(sent),
        Outcome::Refused(refusal) => {
            let mut told = refusal.told();
            // The server named something narrower than this scope, which we cannot tell apart: others may well pass.
            let named = reading.and_then(|reading| reading.scope_hint);
            let narrower = named == Some(ScopeHint::Endpoint) && !bound.by.is_some_and(|by| by.endpoint);
            told.may_be_one_items |= narrower && told.wait.is_some() && refusal.may_be_tested();
            if let Some(exit) = exit.filter(|_| bound.by.is_some_and(|by| by.exit)) {
                told.rest = HEAT.mul_f64(exit.heat.clamp(0.0, 1.0));
            }
            gate.refused(policy, sent, told, now, roll)
        }
        Outcome::Overloaded => gate.overloaded(policy, sent, now, roll),
        Outcome::Blocked { challenge } => {
            // One page may be forbidden to everybody. With other exits at hand the pair need not be given the doubt.
            let certain = *challenge || bound.by.is_some_and(|by| by.exit);
            gate.blocked(policy, sent, certain, now, roll)
        }
        Outcome::Unauthorised => gate.unauthorised(policy, sent, item, now),
    }
}

/// Which scope a report falls on.
fn blamed(scopes: &[BoundScope], finding: &Finding<'_>) -> usize {
    let Finding { outcome, reading, exit, narrowed, .. } = *finding;
    if matches!(outcome, Outcome::Blocked { .. }) {
        // What is blocked is the way from this exit to this origin, where the request has that pair.
        let pair = scopes.iter().position(|scope| scope.by.is_some_and(|by| by.exit && by.origin));
        if let Some(pair) = pair {
            return pair;
        }
    }
    let fault = matches!(outcome, Outcome::Unauthorised).then_some(ScopeHint::Account);
    let blame = Blame {
        named: fault.or(reading.and_then(|r| r.scope_hint)),
        narrowed: narrowed.map(Part::of_origin),
        not_the_exits: exit.is_some_and(|exit| exit.refused_elsewhere),
        by_exit: matches!(outcome, Outcome::Exit { .. }),
    };
    scope::blamed(scopes.iter().map(|scope| (scope.by.as_ref(), scope.role)), blame)
}

/// Gives everything back for a request that was never sent: no answer, no fault, no success.
pub fn cancel(gates: &mut [Gate], grant: &Grant) -> News {
    let mut news = News::of(0);
    for (i, gate) in gates.iter_mut().enumerate().take(MAX_SCOPES) {
        news.woken |= u8::from(gate.give_back(grant.sent(i)) == Change::ProbeFree) << i;
    }
    news
}

/// A sign of life of a probe on the wire (B1). False when one of its leases is lost.
pub fn renew(gates: &mut [Gate], scopes: &[BoundScope], grant: &Grant, now: Timestamp) -> bool {
    let mut held = true;
    for ((gate, scope), (fence, _)) in gates.iter_mut().zip(scopes).zip(&grant.taken) {
        held &= !fence.is_probe() || gate.renew(&scope.policy, *fence, now);
    }
    held
}

/// Corrects the pace once the real cost is known (C1). Call it before [`report`], and once.
pub fn correct_cost(gates: &mut [Gate], scopes: &[BoundScope], grant: &Grant, real: u32, now: Timestamp) {
    if real == grant.cost {
        return;
    }
    for (gate, scope) in gates.iter_mut().zip(scopes) {
        gate.correct_cost(&scope.policy, now, grant.cost, real);
    }
}

/// The scope and the rate that a request of this cost is too large for, so that it will never start.
#[must_use]
pub fn never(scopes: &[BoundScope], cost: u32) -> Option<(&BoundScope, Rate)> {
    scopes.iter().find_map(|scope| Some((scope, scope.policy.rates.never(cost)?)))
}

/// A response's budgets as the gate counts them, of requests and of cost; a refusal's own wait is not repeated here.
fn budgets_of(reading: &Reading, refused: bool) -> [Option<Budget>; 2] {
    let of = |budget: &hint::Budget, resets_in: Option<Duration>| {
        let rate = match (budget.limit, budget.window) {
            (Some(limit), Some(window)) if !window.is_zero() && limit > 0.0 && !budget.of_cost => {
                Some(limit as f32 / window.as_secs_f32())
            }
            _ => None,
        };
        let left = budget.remaining.map(|left| left.clamp(0.0, f64::from(u32::MAX - 1)) as u32);
        let left = if refused { None } else { left };
        Budget { of_cost: budget.of_cost, left, resets_in, rate, window: budget.window }
    };
    let main = reading
        .budget
        .as_ref()
        .map(|budget| of(budget, if reading.limited { reading.wait } else { budget.reset_after }));
    [main, reading.beside.as_ref().map(|budget| of(budget, budget.reset_after))]
}

/// What a wholly hot exit rests for beside its backoff (E3).
pub const HEAT: Duration = Duration::from_secs(30);

// With its key and its place in a map it stays under the 256 bytes that a scope may take.
const _: () = assert!(size_of::<gate::Gate>() <= 200);
// `News` has a bit for each scope.
const _: () = assert!(MAX_SCOPES <= u8::BITS as usize);
