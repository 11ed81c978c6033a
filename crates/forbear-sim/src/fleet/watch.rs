//! What a fleet has promised, kept by itself and checked at every step; it knows the rules and none of the machines.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use forbear_core::{
    outcome::{ExitFault, Outcome, Processed},
    policy::BoundScope,
    scope::{Role, ScopeKey},
    time::Timestamp,
};

use super::{
    items::{ItemId, Job, ON_DISK, Place},
    wire::Back,
};
use crate::{watch::Violation, world::EPOCH};

/// Watches one fleet.
#[derive(Debug)]
pub(super) struct Watch {
    workers: u32,
    pause_cap: Duration,
    /// So many starts in any window of this length, on an origin's own scope.
    rates: Vec<(usize, Duration)>,
    on_wire: u32,
    scopes: HashMap<ScopeKey, Told>,
    items: HashMap<ItemId, Held>,
    /// Exits that have turned us away.
    out: Vec<u32>,
}

/// What is known of one scope.
#[derive(Debug, Default)]
struct Told {
    /// When something was told, and until when it holds.
    until: Vec<(Timestamp, Timestamp)>,
    /// A time that is too long to believe for all (P7).
    long: Option<Long>,
    /// When we heard that we must stop, until something sent later was served.
    closed_at: Option<Timestamp>,
    last_closed: Timestamp,
    /// Sent since then, and not answered.
    probes: u32,
    on_wire: u32,
    starts: VecDeque<Timestamp>,
}

#[derive(Clone, Copy, Debug)]
struct Long {
    heard: Timestamp,
    until: Timestamp,
    item: ItemId,
    tested: bool,
}

/// What holds for one item.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// Not before this.
    until: Timestamp,
    on_wire: bool,
    /// It may have been processed, and must not be sent again.
    spent: bool,
}

impl Watch {
    pub(super) fn new(workers: u32, pause_cap: Duration, rates: Vec<(usize, Duration)>) -> Watch {
        let (scopes, items, out) = Default::default();
        Watch { workers, pause_cap, rates, on_wire: 0, scopes, items, out }
    }

    pub(super) fn broken(what: String, now: Timestamp) -> Violation {
        Violation { at: now.since(EPOCH), what }
    }

    pub(super) fn sends(
        &mut self,
        (item, exit): (ItemId, Option<u32>),
        by_exits: bool,
        scopes: &[BoundScope],
        now: Timestamp,
    ) -> Result<(), Violation> {
        let broken = |what: String| Err(Watch::broken(what, now));
        self.on_wire += 1;
        if self.on_wire > self.workers {
            return broken(format!("C2: {} requests on the wire, of {} workers", self.on_wire, self.workers));
        }
        if by_exits != exit.is_some() {
            return broken("E5: a request went directly, though there are exits".to_owned());
        }
        if let Some(exit) = exit.filter(|exit| self.out.contains(exit)) {
            return broken(format!("E1: exit {exit} was asked again, though it had turned us away"));
        }
        let held = self.items.entry(item).or_default();
        if held.on_wire {
            return broken(format!("J1: item {item} is on the wire twice"));
        }
        if held.spent {
            return broken(format!("V2: item {item} was sent again, and must not be"));
        }
        if now < held.until {
            let early = held.until.since(now);
            return broken(format!("P1: item {item} was sent {early:?} before its told time"));
        }
        held.on_wire = true;
        for (i, scope) in scopes.iter().enumerate() {
            let told = self.scopes.entry(scope.key.clone()).or_default();
            if let Some((_, until)) = told.until.iter().find(|(_, until)| now < *until) {
                let early = until.since(now);
                return broken(format!("P1: {}: sent {early:?} before the told time", scope.key));
            }
            if let Some(long) = told.long.as_mut().filter(|long| now < long.until) {
                if long.tested || long.item == item || now.since(long.heard) < Duration::from_secs(1) {
                    return broken(format!("P7: {}: sent into a long pause: {long:?}", scope.key));
                }
                long.tested = true;
            }
            if told.closed_at.is_some() {
                told.probes += 1;
                if told.probes > 1 {
                    return broken(format!("B1: {}: a second request while one probed", scope.key));
                }
            }
            told.on_wire += 1;
            if told.on_wire > scope.policy.concurrency_max {
                return broken(format!("C2: {}: {} on the wire", scope.key, told.on_wire));
            }
            if scope.policy.rates.is_empty() {
                continue;
            }
            for (most, window) in &self.rates {
                let recent = told.starts.iter().filter(|at| now.since(**at) < *window).count();
                if recent >= *most {
                    return broken(format!("C1: {}, scope {i}: more than {most} in {window:?}", scope.key));
                }
            }
            let longest = self.rates.iter().map(|(_, window)| *window).max().unwrap_or_default();
            while told.starts.front().is_some_and(|at| now.since(*at) >= longest) {
                told.starts.pop_front();
            }
            told.starts.push_back(now);
        }
        Ok(())
    }

    /// A request of the living process has come back; `blamed` is the scope that its report fell on.
    pub(super) fn answered(
        &mut self,
        (item, exit, idempotent): (ItemId, Option<u32>, bool),
        scopes: &Arc<[BoundScope]>,
        (back, outcome, blamed): (&Back, &Outcome, usize),
        sent: Timestamp,
        now: Timestamp,
    ) -> Result<(), Violation> {
        self.on_wire -= 1;
        let refused = matches!(outcome, Outcome::Refused(_));
        let limited = matches!(outcome, Outcome::Exit { fault: ExitFault::Limited { .. }, .. });
        let served = matches!(outcome, Outcome::Success | Outcome::Rejected);
        let held = self.items.entry(item).or_default();
        held.on_wire = false;
        let unsure = matches!(
            outcome,
            Outcome::Fault { processed: Processed::Unknown, .. }
                | Outcome::Exit { processed: Processed::Unknown, .. }
        );
        held.spent |= unsure && !idempotent;
        if let (Some(exit), Outcome::Exit { fault: ExitFault::Rejected, .. }) = (exit, outcome) {
            self.out.push(exit);
        }
        for (i, scope) in scopes.iter().enumerate() {
            let told = self.scopes.entry(scope.key.clone()).or_default();
            told.on_wire -= 1;
            let probe = told.closed_at.is_some_and(|closed| sent > closed);
            told.probes = told.probes.saturating_sub(u32::from(probe));
            if served && probe {
                told.closed_at = None;
            }
            if served && told.long.is_some_and(|long| sent > long.heard) {
                told.long = None;
            }
            if !served && !refused && probe {
                // No answer is no test: another may ask.
                told.long.iter_mut().for_each(|long| long.tested = false);
            }
            if i != blamed || !(refused || limited) {
                continue;
            }
            if refused && scope.role == Role::Exit {
                let what = format!("S5: a site's refusal fell on {}", scope.key);
                return Err(Watch::broken(what, now));
            }
            // P3: what was sent before is part of that incident. Without a time it says nothing new; with one it may close
            // the scope again, and a probe that is on its way is a probe still.
            if sent > told.last_closed {
                (told.closed_at, told.last_closed) = (Some(now), now);
            } else if back.told.is_some() {
                told.closed_at.get_or_insert(now);
            }
            let Some(wait) = back.told.filter(|wait| !wait.is_zero()) else { continue };
            let until = now.plus(wait);
            if wait > self.pause_cap && refused {
                let known = told.long.filter(|long| now < long.until);
                let tested = known.is_some_and(|long| long.tested);
                let until = known.map_or(until, |long| long.until.max(until));
                let heard = known.map_or(now, |long| long.heard);
                told.long = Some(Long { heard, until, item, tested });
            } else {
                told.until.retain(|(_, until)| now < *until);
                told.until.push((now, until));
            }
        }
        if refused && exit.is_none() {
            let wait = back.told.unwrap_or_default();
            self.items.entry(item).or_default().until = now.plus(wait);
        }
        Ok(())
    }

    /// The process is gone, with all that it had not written down (P8: within 50 ms).
    pub(super) fn crashed(&mut self, now: Timestamp) {
        self.on_wire = 0;
        self.out.clear(); // whoever starts a run may have paid the bill
        let fresh = |heard: Timestamp| now.since(heard) < ON_DISK;
        for told in self.scopes.values_mut() {
            told.until.retain(|(heard, _)| !fresh(*heard));
            told.long = told.long.filter(|long| !fresh(long.heard));
            // Whose item it was may be forgotten, as any that came to its place a moment ago.
            told.long.iter_mut().for_each(|long| long.item = ItemId::MAX);
            told.closed_at = told.closed_at.filter(|heard| !fresh(*heard));
            (told.probes, told.on_wire) = (0, 0);
            told.starts.clear();
        }
        for held in self.items.values_mut() {
            // Items lie pending again: the scope alone knows of the pause, and what was on the wire is sent once more (J1).
            *held = Held::default();
        }
    }

    pub(super) fn nothing_lost(job: &Job, in_hand: usize, now: Timestamp) -> Result<(), Violation> {
        let counted = job.count(Place::InHand) as usize;
        if counted == in_hand {
            return Ok(());
        }
        let what = format!("J5: {counted} items were taken in hand, and {in_hand} are there");
        Err(Watch::broken(what, now))
    }
}
