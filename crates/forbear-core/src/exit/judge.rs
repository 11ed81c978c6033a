//! What an attempt says about its exit, and what the exit says about the attempt (E1, E3, E4, V1).

use std::sync::Arc;

use super::{ExitId, Exits, Pick, Rotate, Traits};
use crate::{
    attempt::{News, Through},
    gate::Change,
    outcome::{ExitFault, Outcome},
    policy::BoundScope,
    time::Timestamp,
    verdict::Way,
};

/// What came of an attempt, once its exit has been heard.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Judged {
    /// The outcome for gates and verdict. An exit that finds no way to an origin is the exit's fault until three different
    /// ones, or all there are, have said so; then it is the origin's.
    pub outcome: Outcome,
    /// For the gates.
    pub through: Through,
    /// Another exit may have the item.
    pub others: bool,
    /// The exit is left at this origin: cookies, connections and TLS tickets of the session die (E4).
    pub left: bool,
    /// What happened to the exit.
    pub change: ExitChange,
    /// Origins whose requests wanted this exit and may ask again.
    pub freed: Vec<Arc<str>>,
}

/// What follows for exit and item from what the gates made of the report.
#[derive(Clone, Copy, Debug, PartialEq)]
#[must_use]
pub struct Settled {
    /// Which way the item went, for its verdict.
    pub way: Way,
    /// The exit is left at this origin: cookies, connections and TLS tickets of the session die (E4).
    pub left: bool,
}

/// What happened to an exit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ExitChange {
    /// Nothing new.
    None,
    /// It fails, and is tried again then.
    Failed {
        /// The moment.
        until: Timestamp,
    },
    /// It was tried again, and failed again.
    StillFails {
        /// When it is tried next.
        until: Timestamp,
    },
    /// It turned us away, and is out until its credentials change.
    Out,
    /// It serves again.
    Recovered,
}

/// What went through an exit: a row of the table at the end.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Tally {
    /// Requests sent.
    pub requests: u64,
    /// Requests that were served.
    pub done: u64,
    /// Requests that were refused for a limit.
    pub refused: u64,
    /// Requests that were told that they are unwanted.
    pub blocked: u64,
    /// Faults of the exit itself.
    pub faults: u64,
    /// Bytes of bodies as they were on the wire: what sellers of exits count.
    pub bytes: u64,
}

impl Tally {
    /// What it has cost, in the currency of the exit's price.
    #[must_use]
    pub fn cost(&self, traits: &Traits) -> f64 {
        self.requests as f64 * traits.price_per_request + self.bytes as f64 * traits.price_per_byte
    }
}

impl Exits {
    /// Takes in what came of the request, before its gates do. `bytes` is the length of its body, `roll` in `[0, 1)` is
    /// for jitter.
    pub fn judge(&mut self, pick: &Pick, outcome: &Outcome, bytes: u64, now: Timestamp, roll: f64) -> Judged {
        let freed = self.give_back(pick);
        let mut judged = Judged {
            outcome: *outcome,
            through: Through::default(),
            others: self.policy.rotate == Rotate::Retries && self.exits.len() > 1,
            left: self.policy.sticky == super::Sticky::Off,
            change: ExitChange::None,
            freed,
        };
        let index = pick.exit.0 as usize;
        let (gateway, served_before) = (self.exits[index].traits.gateway, self.exits[index].serves());
        judged.others |= gateway && self.policy.rotate == Rotate::Retries;
        self.count(index, outcome, bytes);
        if let Outcome::Exit { fault, processed } = *outcome {
            match fault {
                ExitFault::Rejected => self.turned_away(index, &mut judged),
                ExitFault::Limited { .. } => {}
                ExitFault::Broken => match self.breaks_off(pick, now) {
                    Breaks::Everywhere => self.failed(pick, now, roll, &mut judged),
                    Breaks::HereOnce => {
                        judged.left = true;
                        self.rests_here(pick, now, roll);
                    }
                    Breaks::Here if self.has_no_way(pick, now, roll) => {
                        judged.outcome = Outcome::Fault { processed, passing: true };
                    }
                    Breaks::Here => judged.left = true,
                },
                // Whoever has never served and says nothing is dead; of another it may be what lies behind it.
                ExitFault::Silent if !self.exits[index].proven => self.failed(pick, now, roll, &mut judged),
                ExitFault::Silent | ExitFault::NoWay | ExitFault::Forbidden => {
                    if self.has_no_way(pick, now, roll) {
                        judged.outcome = Outcome::Fault { processed, passing: true };
                    } else {
                        judged.left = true;
                    }
                }
            }
        } else if !matches!(outcome, Outcome::Fault { .. } | Outcome::NotTaken) {
            judged.change = self.served(pick);
        }
        self.serving = self.serving + usize::from(self.exits[index].serves()) - usize::from(served_before);
        self.note(pick, gateway, &mut judged, now);
        if judged.left {
            self.leave(pick);
        }
        self.watch(now);
        judged
    }

    /// Takes in what the gates of the request's `scopes` made of the report. `shut_until` is the end of the pause of the one
    /// that it fell on; `blocked_before` counts the exits that were told before that the item is unwanted.
    pub fn settle(
        &mut self,
        pick: &Pick,
        judged: &Judged,
        news: &News,
        scopes: &[BoundScope],
        shut_until: Option<Timestamp>,
        blocked_before: u32,
    ) -> Settled {
        for (_, scope) in scopes.iter().enumerate().filter(|(i, _)| news.wakes_at(*i)) {
            match scope.by.filter(|by| by.exit) {
                Some(by) if by.origin => self.recall(pick),
                Some(_) => self.recall_everywhere(pick.exit),
                None => {}
            }
        }
        let alone = scopes[news.scope].by.is_some_and(|by| by.exit);
        let mut left = judged.left;
        if let (true, Change::Closed { .. }, Some(until)) = (alone, news.change, shut_until) {
            if matches!(judged.outcome, Outcome::Refused(_)) {
                self.rests(pick, until);
            } else {
                self.put_aside(pick, until); // unwanted, or refused by the exit: no word about a limit of the origin
            }
            left = true;
        }
        let (heat, others_free) = (judged.through.heat, alone && judged.others);
        let others_serve = self.serving > 0;
        Settled { way: Way::Exit { heat, others_free, others_serve, blocked_before }, left }
    }

    /// The gate of the pair has closed until then for a limit, and only that: the exit is left there (E4), and rests. A
    /// second exit that is refused before that shows the limit to be the origin's.
    pub fn rests(&mut self, pick: &Pick, until: Timestamp) {
        let who = self.whom(pick);
        if let Some(site) = self.sites.get_mut(&*pick.origin) {
            site.refused = Some((who, until));
        }
        self.put_aside(pick, until);
    }

    /// What went through an exit so far.
    #[must_use]
    pub fn tally(&self, exit: ExitId) -> Tally {
        self.exits[exit.0 as usize].tally
    }

    /// The word for an exit's state: `ok`, `unproven`, `failing` or `out`.
    #[must_use]
    pub fn state(&self, exit: ExitId) -> &'static str {
        let exit = &self.exits[exit.0 as usize];
        match (exit.out, exit.fails, exit.proven) {
            (true, ..) => "out",
            (_, 1.., _) => "failing",
            (_, _, true) => "ok",
            _ => "unproven",
        }
    }

    fn count(&mut self, index: usize, outcome: &Outcome, bytes: u64) {
        let tally = &mut self.exits[index].tally;
        tally.requests += 1;
        tally.bytes += bytes;
        match outcome {
            Outcome::Success => tally.done += 1,
            Outcome::Refused(_) => tally.refused += 1,
            Outcome::Blocked { .. } => tally.blocked += 1,
            Outcome::Exit { .. } => tally.faults += 1,
            _ => {}
        }
    }

    /// An origin has answered through it.
    fn served(&mut self, pick: &Pick) -> ExitChange {
        let exit = &mut self.exits[pick.exit.0 as usize];
        (exit.proven, exit.doubted) = (true, false);
        if exit.served.as_ref().is_none_or(|(_, at)| *at <= pick.at) {
            exit.served = Some((pick.origin.clone(), pick.at));
        }
        if exit.out || std::mem::take(&mut exit.fails) == 0 {
            return ExitChange::None;
        }
        self.failing -= 1;
        ExitChange::Recovered
    }

    fn failed(&mut self, pick: &Pick, now: Timestamp, roll: f64, judged: &mut Judged) {
        judged.left = true;
        let exit = &mut self.exits[pick.exit.0 as usize];
        if exit.out || (exit.fails > 0 && pick.at <= exit.failed_at) {
            return; // it was on its way when the exit failed: one failure for all of those (as P3)
        }
        self.failing += usize::from(exit.fails == 0);
        let rest = self.policy.backoff.delay(exit.fails, roll);
        exit.until = now.plus(rest);
        if self.sites.len() > 1
            && let Some(site) = self.sites.get_mut(&*pick.origin)
        {
            site.put_off(pick.exit, now.plus(2 * rest)); // others try it out first: it may drop this origin alone
        }
        exit.fails = exit.fails.saturating_add(1);
        exit.failed_at = now;
        judged.change = match exit.fails {
            1 => ExitChange::Failed { until: exit.until },
            _ => ExitChange::StillFails { until: exit.until },
        };
    }

    /// Where an exit breaks off: it may drop this origin alone (E1), and then the others have no reason to wait for it. That it
    /// serves others is a reason for one doubt. It is so when they were served by what was sent since it broke off here before.
    fn breaks_off(&mut self, pick: &Pick, now: Timestamp) -> Breaks {
        let exit = &mut self.exits[pick.exit.0 as usize];
        let elsewhere = exit.served.as_ref().filter(|(origin, _)| *origin != pick.origin).map(|(_, at)| *at);
        let Some(site) = self.sites.get_mut(&*pick.origin) else { return Breaks::Everywhere };
        let believed = site.no_way.len() >= NO_WAY;
        let Some(pair) = site.pairs.get_mut(&pick.exit) else { return Breaks::Everywhere };
        let before = pair.broke_at.replace(now);
        let Some(served_at) = elsewhere else { return Breaks::Everywhere };
        match before {
            _ if believed && exit.fails == 0 => Breaks::Here,
            Some(before) if before < served_at && before < pick.at => Breaks::Here,
            None if exit.fails == 0 && !std::mem::replace(&mut exit.doubted, true) => Breaks::HereOnce,
            _ => Breaks::Everywhere,
        }
    }

    /// The exit is not asked at this origin for a while.
    fn rests_here(&mut self, pick: &Pick, now: Timestamp, roll: f64) {
        let Some(site) = self.sites.get_mut(&*pick.origin) else { return };
        let Some(pair) = site.pairs.get_mut(&pick.exit) else { return };
        if pair.fails == 0 || pick.at > pair.failed_at {
            let until = now.plus(self.policy.backoff.delay(pair.fails, roll));
            (pair.fails, pair.failed_at) = (pair.fails.saturating_add(1), now);
            site.put_off(pick.exit, until);
        }
    }

    fn turned_away(&mut self, index: usize, judged: &mut Judged) {
        judged.left = true;
        let exit = &mut self.exits[index];
        if std::mem::replace(&mut exit.out, true) {
            return;
        }
        self.out += 1;
        self.failing -= usize::from(exit.fails > 0);
        judged.change = ExitChange::Out;
    }

    /// The exit finds no way to the origin. True when enough of them say so.
    fn has_no_way(&mut self, pick: &Pick, now: Timestamp, roll: f64) -> bool {
        let usable = self.usable_count();
        let Some(site) = self.sites.get_mut(&*pick.origin) else { return false };
        if !site.no_way.contains(&pick.exit) && site.no_way.len() < NO_WAY {
            site.no_way.push(pick.exit);
        }
        if site.no_way.len() >= NO_WAY.min(usable).max(1) {
            // The origin's own: no pair is to blame, and none need wait.
            for exit in site.no_way.clone() {
                if let Some(pair) = site.pairs.get_mut(&exit) {
                    pair.fails = 0;
                }
                site.recall(exit);
            }
            return true;
        }
        self.rests_here(pick, now, roll);
        false
    }

    /// The pair's history, and what follows from it.
    fn note(&mut self, pick: &Pick, gateway: bool, judged: &mut Judged, now: Timestamp) {
        let who = self.whom(pick);
        let Some(site) = self.sites.get_mut(&*pick.origin) else { return };
        let count = site.exits();
        let Some(pair) = site.pairs.get_mut(&pick.exit) else { return };
        match judged.outcome {
            Outcome::Refused(_) if !gateway => {
                judged.through.heat = pair.health.heat(now); // of the events before this one (E3)
                pair.health.refused(now);
            }
            Outcome::Blocked { .. } => {
                judged.left = true;
                if !gateway {
                    judged.through.heat = pair.health.heat(now);
                    pair.health.blocked(now);
                }
            }
            Outcome::Refused(_) | Outcome::Overloaded | Outcome::NotTaken => {}
            // A certificate is the same by every exit, and so is what we do not want to have.
            Outcome::Fault { passing: false, .. } => {}
            Outcome::Exit { .. } | Outcome::Fault { .. } => pair.health.failed(now),
            Outcome::Success | Outcome::Rejected | Outcome::Unauthorised => {
                pair.health.succeeded(now);
                (pair.fails, pair.broke_at) = (0, None);
                site.no_way.clear();
            }
        }
        if matches!(judged.outcome, Outcome::Refused(_)) {
            let other = site.refused.filter(|(exit, until)| *exit != who && now < *until);
            judged.through.refused_elsewhere = other.is_some();
        }
        let rate = pair.health.success_rate(now).filter(|_| pair.health.events(now) >= KNOWN_AFTER);
        let bad = rate.is_some_and(|rate| rate < self.policy.min_success);
        if bad && !pair.aside && (site.aside + 1) * 2 < count {
            (pair.aside, site.aside) = (true, site.aside + 1);
        }
    }

    fn put_aside(&mut self, pick: &Pick, until: Timestamp) {
        let gateway = self.exits[pick.exit.0 as usize].traits.gateway;
        if let Some(site) = self.sites.get_mut(&*pick.origin).filter(|_| !gateway) {
            site.put_off(pick.exit, until);
        }
        self.leave(pick);
    }

    /// The pair gets another session.
    fn leave(&mut self, pick: &Pick) {
        let pair = self.sites.get_mut(&*pick.origin).and_then(|site| site.pairs.get_mut(&pick.exit));
        if let Some(pair) = pair.filter(|pair| pair.session == pick.session) {
            self.last_session += 1;
            pair.session = self.last_session;
        }
    }

    /// Who counts as one address: an exit, or a session of a gateway.
    fn whom(&self, pick: &Pick) -> (ExitId, u64) {
        (pick.exit, if self.exits[pick.exit.0 as usize].traits.gateway { pick.session } else { 0 })
    }

    fn watch(&mut self, now: Timestamp) {
        if self.usable_count() > 0 {
            self.none_since = None;
        } else {
            self.none_since.get_or_insert(now);
        }
    }
}

/// Where an exit breaks off.
enum Breaks {
    /// Wherever it is used, for all that is known.
    Everywhere,
    /// It has just served others, so here alone, maybe.
    HereOnce,
    /// Here alone.
    Here,
}

/// So many different exits must say that an origin cannot be reached before it is believed.
const NO_WAY: usize = 3;
/// Outcomes of a pair before its success rate means anything.
pub(super) const KNOWN_AFTER: usize = 8;
