//! Which exit a request takes (E2).

use std::{cmp::Ordering, collections::HashMap, sync::Arc, time::Duration};

use super::{
    Ask, Choice, ExitId, ExitPolicy, Pick, Rotate, Sticky, Traits,
    judge::{KNOWN_AFTER, Tally},
    site::{Pair, Site},
};
use crate::time::Timestamp;

/// All exits of a run.
#[derive(Debug)]
pub struct Exits {
    pub(super) policy: ExitPolicy,
    pub(super) exits: Vec<Exit>,
    pub(super) sites: HashMap<Arc<str>, Site>,
    pub(super) last_session: u64,
    /// How often an exit was recalled: whoever asked a gate before that has old news.
    recalls: u64,
    pub(super) pairs: usize,
    /// Exits that are out, and exits that fail.
    pub(super) out: usize,
    pub(super) failing: usize,
    /// Exits that have served, and neither fail nor are out.
    pub(super) serving: usize,
    /// Since when there has been no usable exit.
    pub(super) none_since: Option<Timestamp>,
    seed: u64,
}

/// One exit, over all origins.
#[derive(Debug)]
pub(super) struct Exit {
    pub(super) traits: Traits,
    /// It has turned us away, and nothing goes there until it gets other credentials.
    pub(super) out: bool,
    /// Some origin has answered through it.
    pub(super) proven: bool,
    /// Failures of its own in a row.
    pub(super) fails: u32,
    pub(super) failed_at: Timestamp,
    /// The origin of the latest request that it has served, and when that was sent.
    pub(super) served: Option<(Arc<str>, Timestamp)>,
    /// It has broken off at one origin since, and it was taken for that one's own.
    pub(super) doubted: bool,
    pub(super) until: Timestamp,
    pub(super) in_flight: u32,
    /// Origins whose requests found it busy.
    pub(super) wanted: Vec<Arc<str>>,
    pub(super) tally: Tally,
}

/// Whether anything can go out at all (E5).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Usable {
    /// Some exit is not known to fail.
    Yes,
    /// Each exit fails, or has turned us away.
    Failing {
        /// Since then.
        since: Timestamp,
        /// The next one is tried then.
        next: Timestamp,
    },
    /// Each exit has turned us away: only other credentials help.
    Out,
}

impl Exits {
    /// All exits, each fresh. `seed` is chance: it says with which exit each origin begins.
    #[must_use]
    pub fn new(policy: ExitPolicy, exits: impl IntoIterator<Item = Traits>, seed: u64) -> Exits {
        let exits: Vec<Exit> = exits
            .into_iter()
            .map(|traits| Exit {
                traits,
                out: false,
                proven: false,
                fails: 0,
                failed_at: Timestamp::ZERO,
                served: None,
                doubted: false,
                until: Timestamp::ZERO,
                in_flight: 0,
                wanted: Vec::new(),
                tally: Tally::default(),
            })
            .collect();
        let (policy, sites) = (policy, HashMap::new());
        let (last_session, recalls, pairs, out, failing, serving, none_since) = (0, 0, 0, 0, 0, 0, None);
        Exits { policy, exits, sites, last_session, recalls, pairs, out, failing, serving, none_since, seed }
    }

    /// The exit for one request to `origin`: of those that may be asked now the one that succeeds most, then the cheaper one,
    /// where a success costs a quarter less, then the next in turn (E2). One that has never served, or
    /// has failed since, is on trial: one request at a time, and while others serve each eighth choice and an eighth of what is
    /// on the wire here, at most.
    pub fn choose(&mut self, origin: &str, ask: Ask, now: Timestamp) -> Choice {
        if self.out == self.exits.len() {
            return Choice::None;
        }
        self.make_room(origin, now);
        let Exits { policy, exits, sites, serving, .. } = self;
        let Some(site) = sites.get_mut(origin) else { return Choice::None };
        site.expire(now);
        (site.used_at, site.turns) = (now, site.turns.wrapping_add(1));
        if policy.rotate == Rotate::Never
            && let Some(own) = ask.keep
        {
            let exit = &mut exits[own.0 as usize];
            // It waits for its own, unless that is broken, or finds no way to this origin: it would wait for ever.
            let no_way = site.pairs.get(&own).is_some_and(|pair| pair.fails > 0);
            if !exit.out && exit.fails == 0 && !no_way {
                if let Some((until, _)) = site.waiting.iter().find(|(_, id)| *id == own) {
                    return Choice::Wait { until: *until };
                }
                if site.full.contains(&own) {
                    exit.is_wanted_by(&site.origin);
                    return Choice::Busy { or: None };
                }
                if site.ready.contains(&own) {
                    return Choice::Use(self.take(origin, own, ask, now));
                }
            }
        }
        let keep = ask.keep.or_else(|| ask.account.and_then(|account| site.accounts.get(&account).copied()));
        // While others serve, those that are tried out hold an eighth of what goes out here at most, however slow they are.
        let may_try = *serving == 0 || site.trying.len() * TRICKLE as usize <= site.in_flight;
        let its_turn = *serving == 0 || (may_try && site.turns.is_multiple_of(TRICKLE));
        let any_turn = site.turns.is_multiple_of(TRICKLE);
        let (mut best, mut else_try): (Option<(Rank, ExitId)>, Option<ExitId>) = (None, None);
        let (mut at, mut looked, mut busy) = (0, 0, false);
        for _ in 0..site.ready.len() {
            if looked == LOOK || at == site.ready.len() {
                break;
            }
            let id = site.ready[at];
            let exit = &mut exits[id.0 as usize];
            if exit.out || exit.until > now {
                site.ready.remove(at);
                if !exit.out {
                    site.waiting.insert((exit.until, id));
                }
                continue;
            }
            at += 1;
            let pair = site.pairs.get_mut(&id);
            // A few outcomes say nothing: one failure among the first two is bad luck.
            let known = pair.as_ref().filter(|pair| pair.health.events(now) >= KNOWN_AFTER);
            let rate = known.and_then(|pair| pair.health.success_rate(now));
            if let Some(pair) = pair {
                if pair.aside && rate.is_none_or(|rate| rate >= policy.min_success) {
                    (pair.aside, site.aside) = (false, site.aside.saturating_sub(1));
                }
                if pair.aside {
                    // To the end of the line: else half of all would be passed over by every request.
                    site.ready.remove(at - 1);
                    site.ready.push_back(id);
                    at -= 1;
                    continue;
                }
            }
            let trial_here = site.pairs.get(&id).is_some_and(|pair| pair.fails > 0 && pair.in_flight > 0);
            let trial = exit.on_trial();
            if trial_here || (trial && exit.in_flight > 0) {
                busy = true;
                exit.is_wanted_by(&site.origin);
                continue;
            }
            if trial && !its_turn {
                if may_try && else_try.is_none_or(|known| ask.not == Some(known)) {
                    else_try = Some(id);
                }
                site.ready.remove(at - 1); // as those set aside
                site.ready.push_back(id);
                at -= 1;
                continue;
            }
            looked += 1;
            let rank = Rank {
                tried: ask.not == Some(id),
                strange: keep.is_some() && keep != Some(id),
                serves: !trial,
                // In quarters, and not each time: who is a little better must not get everything.
                failures: if any_turn { 0 } else { ((1.0 - rate.unwrap_or(1.0)) * 4.0) as u8 },
                cost: exit.cost_per_success(),
            };
            // Nobody can be better than that, unless it is the turn of one that has never served.
            let perfect = rank == Rank::BEST && !its_turn;
            if best.as_ref().is_none_or(|(known, _)| rank.cmp(known) == Ordering::Less) {
                best = Some((rank, id));
            }
            if perfect {
                break;
            }
        }
        // One that was not tried by this item yet is worth a trial.
        let worth = |id: &ExitId| best.as_ref().is_none_or(|(rank, _)| rank.tried && ask.not != Some(*id));
        if let Some(id) = else_try.filter(worth) {
            return Choice::Use(self.take(origin, id, ask, now));
        }
        if let Some((rank, id)) = best {
            // Who is to be kept may stand further back in the line.
            let kept = keep
                .filter(|keep| rank.strange && ask.not != Some(*keep) && site.may_take(*keep, exits, now));
            return Choice::Use(self.take(origin, kept.unwrap_or(id), ask, now));
        }
        // Nobody but those that may not be tried out now: one of the trials comes back.
        if let Some(tried) = site.trying.first().filter(|_| !may_try) {
            busy = true;
            exits[tried.0 as usize].is_wanted_by(&site.origin);
        }
        let next = site.waiting.first().map(|(until, _)| *until);
        match (busy || !site.full.is_empty(), next) {
            (true, or) => Choice::Busy { or },
            (false, Some(until)) => Choice::Wait { until },
            (false, None) if site.ready.is_empty() => Choice::None,
            (false, None) => {
                // Whoever is left was set aside, and the others have turned us away since.
                site.pairs.values_mut().for_each(|pair| pair.aside = false);
                site.aside = 0;
                Choice::Wait { until: now }
            }
        }
    }

    /// The pair's gate admits nothing before `until`: the pick is given back, and others are offered until then. Who may
    /// ask again is named by origin. Where an exit was recalled since the pick, it may have been this one: it is asked again.
    pub fn put_off(&mut self, pick: &Pick, until: Timestamp) -> Vec<Arc<str>> {
        let gateway = self.exits[pick.exit.0 as usize].traits.gateway;
        if pick.recalls == self.recalls
            && let Some(site) = self.sites.get_mut(&*pick.origin)
        {
            // Of a gateway it was one address that must wait, and that may have been left since.
            let left = gateway && site.pairs.get(&pick.exit).is_some_and(|pair| pair.session != pick.session);
            if !left {
                site.put_off(pick.exit, until);
            }
        }
        self.not_taken(pick)
    }

    /// The pair's gate, or the exit's, has as many requests on the wire as it may: the pick is given back, and the exit is
    /// offered again when one of its requests has come back. Where none is known, the place is held by one whose report is
    /// under way, or by somebody who shares the gate: it is offered again in a moment.
    pub fn full(&mut self, pick: &Pick) -> Vec<Arc<str>> {
        // While others hold it, nobody who waits for it is called: they would find it as full, and call each other for ever.
        self.let_go(pick);
        let freed = if self.is_held(pick.exit) { Vec::new() } else { self.call_all(pick.exit) };
        let exit = &mut self.exits[pick.exit.0 as usize];
        if let Some(site) = self.sites.get_mut(&*pick.origin) {
            if exit.in_flight == 0 {
                site.put_off(pick.exit, pick.at.plus(MOMENT));
            } else if site.take(pick.exit) {
                site.full.push(pick.exit);
                exit.is_wanted_by(&pick.origin);
            }
        }
        freed
    }

    /// The pair's gate has opened: it may be asked at once.
    pub fn recall(&mut self, pick: &Pick) {
        self.recalls += 1;
        if let Some(site) = self.sites.get_mut(&*pick.origin) {
            site.recall(pick.exit);
        }
    }

    /// The exit's own gate has opened: it may be asked at once for every origin.
    pub fn recall_everywhere(&mut self, exit: ExitId) {
        self.recalls += 1;
        self.sites.values_mut().for_each(|site| site.recall(exit));
    }

    /// A gate that is not the exit's holds the request up: the pick is given back, and nobody else is the worse for it.
    pub fn turn_down(&mut self, pick: &Pick) -> Vec<Arc<str>> {
        self.ask_first(pick);
        self.not_taken(pick)
    }

    /// A request that all gates had admitted is not sent after all: its place is free.
    pub fn undo(&mut self, pick: &Pick) -> Vec<Arc<str>> {
        self.ask_first(pick);
        self.give_back(pick)
    }

    fn ask_first(&mut self, pick: &Pick) {
        if let Some(site) = self.sites.get_mut(&*pick.origin)
            && site.take(pick.exit)
        {
            site.ready.push_front(pick.exit);
            site.turns = site.turns.wrapping_sub(1); // it was no turn: or every eighth might always be one like this
        }
    }

    /// Whether anything can go out at all (E5).
    #[must_use]
    pub fn usable(&self) -> Usable {
        let Some(since) = self.none_since else { return Usable::Yes };
        if self.out == self.exits.len() {
            return Usable::Out;
        }
        let next = self.exits.iter().filter(|exit| !exit.out).map(|exit| exit.until).min();
        Usable::Failing { since, next: next.unwrap_or(Timestamp::MAX) }
    }

    /// How many of them neither fail nor are out.
    #[must_use]
    pub fn usable_count(&self) -> usize {
        self.exits.len() - self.out - self.failing
    }

    fn take(&mut self, origin: &str, id: ExitId, ask: Ask, now: Timestamp) -> Pick {
        let fresh = self.policy.sticky == Sticky::Off;
        let site = self.sites.get_mut(origin).unwrap_or_else(|| unreachable!("it was just looked at"));
        site.take(id);
        site.ready.push_back(id);
        if self.policy.sticky == Sticky::Account
            && let Some(account) = ask.account
        {
            if site.accounts.len() >= ACCOUNTS_MAX {
                site.accounts.clear();
            }
            site.accounts.insert(account, id);
        }
        let pair = site.pairs.entry(id).or_insert_with(|| {
            self.pairs += 1;
            self.last_session += 1;
            Pair::new(self.last_session)
        });
        if fresh {
            self.last_session += 1;
            pair.session = self.last_session;
        }
        pair.in_flight += 1;
        site.in_flight += 1;
        let exit = &mut self.exits[id.0 as usize];
        exit.in_flight += 1;
        let (trial, recalls) = (exit.on_trial(), self.recalls);
        if trial {
            site.trying.push(id);
        }
        Pick { exit: id, session: pair.session, origin: site.origin.clone(), at: now, trial, recalls }
    }

    /// A request has come back, and holds nothing any more. Names the origins that wanted its exit.
    pub(super) fn give_back(&mut self, pick: &Pick) -> Vec<Arc<str>> {
        self.let_go(pick);
        self.call_all(pick.exit)
    }

    /// The same for a pick that never held a place at a gate: only who waited for this very pick is called.
    fn not_taken(&mut self, pick: &Pick) -> Vec<Arc<str>> {
        self.let_go(pick);
        if !self.is_held(pick.exit) {
            return self.call_all(pick.exit);
        }
        // A trial at this origin may be had by another lane.
        let site = self.sites.get_mut(&*pick.origin);
        let Some(site) = site.filter(|s| s.pairs.get(&pick.exit).is_none_or(|pair| pair.in_flight == 0))
        else {
            return Vec::new();
        };
        if site.full.contains(&pick.exit) {
            return Vec::new();
        }
        self.exits[pick.exit.0 as usize].wanted.extract_if(.., |origin| **origin == *pick.origin).collect()
    }

    fn let_go(&mut self, pick: &Pick) {
        let exit = &mut self.exits[pick.exit.0 as usize];
        exit.in_flight = exit.in_flight.saturating_sub(1);
        let Some(site) = self.sites.get_mut(&*pick.origin) else { return };
        site.in_flight = site.in_flight.saturating_sub(1);
        if let Some(place) = site.trying.iter().position(|exit| pick.trial && *exit == pick.exit) {
            site.trying.swap_remove(place);
        }
        if let Some(pair) = site.pairs.get_mut(&pick.exit) {
            pair.in_flight = pair.in_flight.saturating_sub(1);
        }
    }

    fn is_held(&self, exit: ExitId) -> bool {
        self.exits[exit.0 as usize].in_flight > 0
    }

    /// It can be had again where it was full or busy.
    fn call_all(&mut self, exit: ExitId) -> Vec<Arc<str>> {
        let wanted = std::mem::take(&mut self.exits[exit.0 as usize].wanted);
        for origin in &wanted {
            if let Some(site) = self.sites.get_mut(origin) {
                site.freed(exit);
            }
        }
        wanted
    }

    /// Makes the origin known, and forgets others that were not asked for longest (C4).
    fn make_room(&mut self, origin: &str, now: Timestamp) {
        let known = self.sites.contains_key(origin);
        let sites_max = (ENTRIES_MAX / self.exits.len()).max(16);
        if self.pairs >= PAIRS_MAX || (!known && self.sites.len() >= sites_max) {
            let mut ages: Vec<(Timestamp, Arc<str>)> = self
                .sites
                .values()
                .filter(|site| &*site.origin != origin)
                .filter(|site| site.pairs.values().all(|pair| pair.in_flight == 0))
                .map(|site| (site.used_at, site.origin.clone()))
                .collect();
            ages.sort_unstable();
            for (_, origin) in ages.into_iter().take((self.sites.len() / 8).max(1)) {
                if let Some(site) = self.sites.remove(&origin) {
                    self.pairs -= site.pairs.len();
                }
            }
        }
        if self.pairs >= PAIRS_MAX
            && let Some(site) = self.sites.get_mut(origin)
        {
            // All the others are in use: this one gives up what it knows.
            let before = site.pairs.len();
            site.pairs.retain(|_, pair| pair.in_flight > 0);
            site.aside = site.pairs.values().filter(|pair| pair.aside).count();
            self.pairs -= before - site.pairs.len();
        }
        if known {
            return;
        }
        // Each origin begins elsewhere in the list, or the first exit would be the first of all of them.
        let count = self.exits.len() as u64;
        let start = crate::exit::site::mix(self.seed ^ self.sites.len() as u64) % count;
        let line = (0..count).map(|n| ExitId(((start + n) % count) as u32));
        let exits = &self.exits;
        let site = Site::new(origin, line.filter(|id| !exits[id.0 as usize].out), now);
        self.sites.insert(site.origin.clone(), site);
    }
}

impl Exit {
    /// It has never served, or has failed since.
    fn on_trial(&self) -> bool {
        self.fails > 0 || !self.proven
    }

    /// It has served, and neither fails nor is out.
    pub(super) fn serves(&self) -> bool {
        !self.on_trial() && !self.out
    }

    fn is_wanted_by(&mut self, origin: &Arc<str>) {
        if !self.wanted.contains(origin) {
            self.wanted.push(origin.clone());
        }
    }

    /// What a success has cost so far, in the currency of its price.
    fn cost_per_success(&self) -> f64 {
        let cost = self.tally.cost(&self.traits);
        if cost == 0.0 { self.traits.price_per_request } else { cost / (self.tally.done.max(1) as f64) }
    }
}

/// The smaller, the better.
#[derive(PartialEq)]
struct Rank {
    tried: bool,
    strange: bool,
    serves: bool,
    failures: u8,
    cost: f64,
}

impl Rank {
    /// Served before, without a failure lately, and for nothing.
    const BEST: Rank = Rank { tried: false, strange: false, serves: true, failures: 0, cost: 0.0 };

    fn cmp(&self, other: &Rank) -> Ordering {
        let order = |r: &Rank| (r.tried, r.strange, r.serves, r.failures);
        let cost = |a: &Rank, b: &Rank| (a.cost * DEARER < b.cost).cmp(&(b.cost * DEARER < a.cost)).reverse();
        order(self).cmp(&order(other)).then_with(|| cost(self, other))
    }
}

/// So many exits are compared for one request, in turn; among ten thousand the best of all would cost more than it is worth.
const LOOK: usize = 16;
/// Who is dearer by less than this is as good: a single failure long ago must not send everything elsewhere.
const DEARER: f64 = 1.25;
/// Each so manieth choice goes to an exit that has not served yet.
const TRICKLE: u32 = 8;
/// Places of exits in the lines of all origins together; four bytes each.
const ENTRIES_MAX: usize = 4_000_000;
/// Pairs of exit and origin with a history, before origins are forgotten; about 200 bytes each.
const PAIRS_MAX: usize = 100_000;
/// When an exit is asked again whose places are all held by nobody we know.
const MOMENT: Duration = Duration::from_millis(1);
/// Accounts of one origin that keep to an exit.
const ACCOUNTS_MAX: usize = 10_000;
