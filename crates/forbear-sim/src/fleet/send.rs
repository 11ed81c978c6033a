//! What a worker does, on the core's machines: finds an item that may start, and acts on what came back. The order of the
//! steps is that of the engine.

use std::sync::Arc;

use forbear_core::{
    attempt::{self, Ask, Decision, Finding, Grant},
    exit::{self, Choice, ExitChange, Judged, Pick, Rotate, Usable},
    gate::Change,
    outcome::Outcome,
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
    verdict::{History, Verdict, Way, verdict},
};

use super::{
    Seen,
    items::{ItemId, Place},
    run::{Flight, Run, waits_for_exits},
    scopes::origin_of,
    wire::Back,
};
use crate::{watch::Violation, world::EPOCH};

/// Whether an item may start.
enum Leave {
    Go(Option<Pick>, Grant, Arc<[BoundScope]>),
    Wait { until: Timestamp },
    Hold { until: Timestamp },
    Full { scope: ScopeKey, or: Option<Timestamp> },
}

impl Run<'_> {
    /// Every item that may start now does.
    pub(super) fn look(&mut self) -> Result<(), Violation> {
        loop {
            while let Some(site) = self.frontier.next_load() {
                let page = self.job.claim(site, PAGE, self.now);
                let more = page.len() == PAGE;
                self.frontier.loaded(site, page, more);
            }
            if !self.may_take()? {
                return Ok(());
            }
            let Some((site, item)) = self.frontier.next(self.now) else { return Ok(()) };
            let turn = self.frontier.has_turn(site);
            match self.may_leave(item, site) {
                Leave::Go(pick, grant, scopes) => {
                    if turn {
                        self.frontier.pass_turn(site);
                    }
                    self.busy += 1;
                    self.send((item, site), (pick, grant, scopes))?;
                }
                Leave::Wait { until } => self.frontier.defer(site, item, until),
                Leave::Hold { until } => {
                    self.frontier.hold(site, item, until);
                    self.frontier.finished(site, []);
                }
                Leave::Full { scope, or: None } => self.frontier.block(site, item, &scope),
                Leave::Full { scope, or: Some(until) } => {
                    self.frontier.block_until(site, item, &scope, until)
                }
            }
        }
    }

    /// Asks the gates of all scopes, and before them which exit it is to be.
    fn may_leave(&mut self, id: ItemId, site: u32) -> Leave {
        let now = self.now;
        let item = self.job.item(id);
        let ask = Ask { cost: 1, first: item.tries == 0 };
        let (keep, not) = (item.keep, item.not);
        let Some(exits) = self.exits.as_mut() else {
            let scopes = self.routes.scopes(site, None);
            return match self.gates.with(&scopes, now, |gates| attempt::acquire(gates, &scopes, ask, now)) {
                Decision::Admit(grant) => Leave::Go(None, grant, scopes),
                Decision::Wait { until, .. } => Leave::Wait { until },
                Decision::Full { scope } => Leave::Full { scope: scopes[scope].key.clone(), or: None },
            };
        };
        let own = keep.filter(|_| self.fleet.by_exit.rotate == Rotate::Never).is_some();
        let origin = origin_of(site);
        for _ in 0..ASKED_MAX {
            let pick = match exits.choose(&origin, exit::Ask { keep, not, account: None }, now) {
                Choice::Use(pick) => pick,
                Choice::Wait { until } if own && until != Timestamp::MAX => return Leave::Hold { until },
                Choice::Wait { until } => return Leave::Wait { until },
                Choice::Busy { or } => return Leave::Full { scope: waits_for_exits(site), or },
                Choice::None => return Leave::Wait { until: Timestamp::MAX },
            };
            let scopes = self.routes.scopes(site, Some(pick.exit.0));
            let by_exit = |scope: usize| scopes[scope].by.is_some_and(|by| by.exit);
            let freed =
                match self.gates.with(&scopes, now, |gates| attempt::acquire(gates, &scopes, ask, now)) {
                    Decision::Admit(grant) => return Leave::Go(Some(pick), grant, scopes),
                    Decision::Wait { until, scope, .. } if by_exit(scope) => exits.put_off(&pick, until),
                    Decision::Full { scope } if by_exit(scope) => exits.full(&pick),
                    Decision::Wait { until, .. } => {
                        let freed = exits.turn_down(&pick);
                        call(&mut self.frontier, &freed);
                        return Leave::Wait { until };
                    }
                    Decision::Full { scope } => {
                        let freed = exits.turn_down(&pick);
                        call(&mut self.frontier, &freed);
                        return Leave::Full { scope: scopes[scope].key.clone(), or: None };
                    }
                };
            call(&mut self.frontier, &freed);
        }
        Leave::Wait { until: now }
    }

    /// Something came back, or the time was over.
    pub(super) fn answered(&mut self, flight: Flight, back: Back) -> Result<(), Violation> {
        let now = self.now;
        let roll = self.chance.next_f64();
        let judged = match (self.exits.as_mut(), &flight.pick) {
            (Some(exits), Some(pick)) => Some(exits.judge(pick, &back.outcome, 1000, now, roll)),
            _ => None,
        };
        if let Some(judged) = &judged {
            self.hear(judged.change);
        }
        let outcome = judged.as_ref().map_or(back.outcome, |judged| judged.outcome);
        let scopes = flight.scopes.clone();
        let finding = Finding {
            outcome: &outcome,
            reading: back.reading.as_deref(),
            item: u64::from(flight.item),
            roll,
            narrowed: None,
            exit: judged.as_ref().map(|judged| judged.through),
        };
        let (news, gate) = self.gates.with(&scopes, now, |gates| {
            let news = attempt::report(gates, &scopes, &flight.grant, &finding, now);
            (news, gates[news.scope].snapshot())
        });
        let exit = flight.pick.as_ref().map(|pick| pick.exit.0);
        let idempotent = self.job.item(flight.item).idempotent;
        let came = (&back, &outcome, news.scope);
        self.watch.answered((flight.item, exit, idempotent), &scopes, came, flight.sent, now)?;
        self.count(&outcome);
        let changed = matches!(news.change, Change::Closed { .. } | Change::Reopened);
        if changed {
            self.gates.keep(&scopes[news.scope], gate.clone(), now);
        }
        let mut way = Way::Direct;
        if let (Some(exits), Some(pick), Some(judged)) = (self.exits.as_mut(), &flight.pick, &judged) {
            let shut = changed.then_some(gate.paused_until);
            let blocked = self.job.item(flight.item).blocked;
            way = exits.settle(pick, judged, &news, &scopes, shut, blocked).way;
            let item = self.job.item(flight.item);
            item.not = judged.others.then_some(pick.exit);
            item.keep = (self.fleet.by_exit.rotate == Rotate::Never).then_some(pick.exit).or(item.keep);
        }
        if news.wakes() {
            let of_exit = |i: usize| scopes[i].by.is_some_and(|by| by.exit && !by.origin);
            if (0..scopes.len()).any(|i| news.wakes_at(i) && of_exit(i)) {
                self.wake_all();
            } else {
                self.frontier.wake(flight.site);
            }
        }
        if let Some(Judged { freed, .. }) = &judged {
            call(&mut self.frontier, freed);
        }
        let verdict = self.acts(&flight, (&outcome, news.retry_granted, way), roll);
        (self.see)(&Seen {
            sent: flight.sent.since(EPOCH),
            back: now.since(EPOCH),
            item: flight.item,
            site: flight.site,
            exit,
            probe: flight.grant.is_probe(),
            outcome,
            verdict,
            shut_until: gate.shut.then(|| gate.paused_until.since(EPOCH)),
        });
        Ok(())
    }

    fn hear(&mut self, change: ExitChange) {
        let none_left = self.exits.as_ref().is_some_and(|exits| exits.usable() == Usable::Out);
        if change == ExitChange::Recovered || (change == ExitChange::Out && none_left) {
            self.wake_all();
        }
    }

    fn wake_all(&mut self) {
        (0..self.fleet.sites.len() as u32).for_each(|site| self.frontier.wake(site));
    }

    fn count(&mut self, outcome: &Outcome) {
        match outcome {
            Outcome::Refused(_) => self.summary.refused += 1,
            Outcome::Success => {}
            _ => self.summary.faults += 1,
        }
    }

    /// Acts on the verdict.
    fn acts(
        &mut self,
        flight: &Flight,
        (outcome, granted, way): (&Outcome, bool, Way),
        roll: f64,
    ) -> Verdict {
        let (now, id) = (self.now, flight.item);
        let item = self.job.item(id);
        let history = History {
            failures: item.failures,
            refusals: item.refusals,
            tries: item.tries - 1,
            idempotent: item.idempotent,
            account_stopped: false,
            way,
        };
        item.refusals += u32::from(matches!(outcome, Outcome::Refused(_)));
        item.blocked += u32::from(matches!(outcome, Outcome::Blocked { .. }));
        let verdict = verdict(outcome, &history, &self.fleet.item, granted, roll);
        item.failures += u32::from(verdict.counts(outcome));
        self.busy -= 1;
        let end = |place| (place, None);
        let (place, again) = match verdict {
            Verdict::Retry { after } | Verdict::Elsewhere { after } | Verdict::Hold { told: after } => {
                self.frontier.hold(flight.site, id, now.plus(after));
                (Place::InHand, None)
            }
            Verdict::Park { wait, .. } => (Place::Parked, Some(now.plus(wait))),
            Verdict::ParkForNextRun | Verdict::ParkForCredentials => end(Place::PutOff),
            Verdict::Done => end(Place::Done),
            Verdict::Fail(_) => end(Place::Failed),
            Verdict::Unknown => end(Place::Unknown),
        };
        if place != Place::InHand {
            self.job.put(id, place, now);
        }
        if let Some(at) = again {
            self.due(id, at);
        }
        self.multiplier.sent(now);
        if place.is_end() {
            self.multiplier.ended();
        }
        let value = self.multiplier.value().unwrap_or(1.0);
        self.summary.multiplier = (self.summary.multiplier.0.max(value), value);
        self.frontier.finished(flight.site, flight.scopes.iter().map(|scope| &scope.key));
        if flight.pick.is_some() {
            self.frontier.freed(&waits_for_exits(flight.site));
        }
        verdict
    }
}

/// Lets sites ask again that found the exit busy.
fn call(frontier: &mut forbear_core::frontier::Frontier<u32, ItemId>, origins: &[Arc<str>]) {
    for origin in origins {
        frontier.freed(&ScopeKey::from_text(&format!("{origin} exits")));
    }
}

/// Exits that are asked in a row for one request; then others have their turn.
const ASKED_MAX: usize = 64;
/// Items of a site that are taken in hand at once.
const PAGE: usize = 32;
