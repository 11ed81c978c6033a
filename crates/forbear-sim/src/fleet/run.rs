//! The events of a fleet in virtual time, from one seed.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc, time::Duration};

use forbear_core::{
    attempt::{self, Grant},
    exit::{Exits, Pick, Traits, Usable},
    frontier::Frontier,
    multiplier::RetryMultiplier,
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
};
use forbear_zoo::{Ruling, SplitMix64};

use super::{
    Fleet, Seen, Summary,
    items::{ItemId, Job, Place},
    scopes::{Gates, Routes, origin_of},
    watch::Watch,
    wire::{Back, Outside, SetOut},
};
use crate::{
    watch::{ENDLESS, Violation},
    world::EPOCH,
};

/// Plays the fleet to its end.
///
/// # Errors
/// A promise was broken, or it did not end within [`Fleet::run_for`].
pub fn run(fleet: &Fleet) -> Result<Summary, Violation> {
    run_seen(fleet, &mut |_| ())
}

/// The same, and `see` is shown each request when it has come back.
///
/// # Errors
/// As [`run`].
pub fn run_seen(fleet: &Fleet, see: &mut dyn FnMut(&Seen)) -> Result<Summary, Violation> {
    let mut run = Run::new(fleet, see);
    run.play()?;
    run.end()
}

#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// A request reaches its site.
    Arrives(u32),
    /// The site is done with it.
    Departs(u32),
    /// What came of it is known.
    Ends(u32),
    /// A probe's sign of life is due.
    Renews(u32, u32),
    /// A parked item is due.
    Due(ItemId, u32),
    /// The process is killed, and is started again after this.
    Crash(Duration),
    Starts,
}

/// A request on the wire.
pub(super) struct Flight {
    pub(super) item: ItemId,
    pub(super) site: u32,
    pub(super) pick: Option<Pick>,
    pub(super) grant: Grant,
    pub(super) scopes: Arc<[BoundScope]>,
    pub(super) sent: Timestamp,
    back: Option<Back>,
    /// The process that sent it.
    process: u32,
}

/// A fleet that is being played.
pub(super) struct Run<'a> {
    pub(super) fleet: &'a Fleet,
    pub(super) see: &'a mut dyn FnMut(&Seen),
    pub(super) now: Timestamp,
    pub(super) chance: SplitMix64,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    numbered: u64,
    outside: Outside,
    flights: Vec<Option<Flight>>,
    rulings: Vec<Option<(u32, Ruling)>>,
    pub(super) frontier: Frontier<u32, ItemId>,
    pub(super) exits: Option<Exits>,
    pub(super) gates: Gates,
    pub(super) routes: Routes,
    pub(super) multiplier: RetryMultiplier,
    pub(super) job: Job,
    pub(super) watch: Watch,
    pub(super) summary: Summary,
    /// Items in the hands of workers.
    pub(super) busy: usize,
    /// The process is up, and which one it is.
    up: bool,
    process: u32,
    /// Looks for work at one moment: more than a few for each item is a fleet that spins.
    looks: (Timestamp, u32),
}

impl<'a> Run<'a> {
    fn new(fleet: &'a Fleet, see: &'a mut dyn FnMut(&Seen)) -> Run<'a> {
        let mut chance = SplitMix64::new(fleet.seed);
        let pages = fleet.sites.iter().map(|site| site.pages);
        let job = Job::new(pages, || fleet.once > 0.0 && chance.next_f64() < fleet.once);
        let rates = fleet.rates.iter().flat_map(|rates| rates.iter());
        let rates = rates.map(|rate| (rate.count() as usize, rate.per())).collect();
        let mut run = Run {
            fleet,
            see,
            now: EPOCH,
            events: BinaryHeap::new(),
            numbered: 0,
            outside: Outside::new(fleet),
            flights: Vec::new(),
            rulings: Vec::new(),
            frontier: Frontier::new(),
            exits: None,
            gates: Gates::default(),
            routes: Routes::new(fleet),
            multiplier: RetryMultiplier::default(),
            summary: Summary { items: job.len(), ..Summary::default() },
            job,
            watch: Watch::new(fleet.workers, fleet.policy.pause_cap, rates),
            busy: 0,
            up: true,
            process: 0,
            looks: (EPOCH, 0),
            chance,
        };
        for (at, down) in &fleet.crashes {
            run.at(EPOCH.plus(*at), Event::Crash(*down));
        }
        run.starts();
        run
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered, event)));
    }

    fn play(&mut self) -> Result<(), Violation> {
        let end = EPOCH.plus(self.fleet.run_for);
        loop {
            if self.up {
                self.look()?;
                Watch::nothing_lost(&self.job, self.frontier.at_hand() + self.busy, self.now)?;
            }
            if self.is_over() {
                return Ok(());
            }
            let next = self.events.peek().map_or(Timestamp::MAX, |Reverse((at, ..))| *at);
            // Whoever waits is asked again once a worker is free.
            let waits = (self.up && self.has_free()).then(|| self.frontier.next_timer()).flatten();
            let timer = waits.unwrap_or(Timestamp::MAX);
            let at = next.min(timer);
            if at > end || at == Timestamp::MAX {
                return Err(self.stuck());
            }
            self.now = self.now.max(at);
            if next <= timer
                && let Some(Reverse((_, _, event))) = self.events.pop()
            {
                self.happens(event)?;
            }
        }
    }

    /// Everything has ended, or nothing can go out any more (E5).
    fn is_over(&self) -> bool {
        self.job.is_over() || (self.busy == 0 && self.up && self.has_no_way())
    }

    /// Each exit has turned us away, or none has served for long (E5, X2).
    fn has_no_way(&self) -> bool {
        match self.exits.as_ref().map(Exits::usable) {
            Some(Usable::Out) => true,
            Some(Usable::Failing { since, .. }) => self.now.since(since) > STALL_AFTER,
            Some(Usable::Yes) | None => false,
        }
    }

    fn stuck(&self) -> Violation {
        let (pending, hand) = (self.job.count(Place::Pending), self.job.count(Place::InHand));
        let parked = self.job.count(Place::Parked);
        let (of, done, sent) = (self.job.len(), self.job.count(Place::Done), self.summary.sent);
        let what = format!(
            "{ENDLESS}: of {of} items {done} done, {pending} pending, {hand} in hand, {parked} parked; {sent} requests, {} \
             on the wire",
            self.busy
        );
        Watch::broken(what, self.now)
    }

    fn happens(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrives(id) => self.arrives(id),
            Event::Departs(slot) => {
                if let Some((site, ruling)) = self.rulings[slot as usize].take() {
                    self.outside.left(site, self.now.since(EPOCH), &ruling);
                }
            }
            Event::Ends(id) => return self.comes_back(id),
            Event::Renews(id, process) => self.renews(id, process),
            Event::Due(item, process) => {
                let parked = self.job.item(item).place == Place::Parked;
                if parked && process == self.process {
                    self.job.put(item, Place::Pending, self.now);
                    let site = self.job.item(item).site;
                    self.frontier.open(site);
                }
            }
            Event::Crash(down) => self.crash(down),
            Event::Starts => {
                self.up = true;
                self.starts();
            }
        }
        Ok(())
    }

    /// A process begins, with what is on disk.
    fn starts(&mut self) {
        if !self.fleet.exits.is_empty() {
            let traits = self.fleet.exits.iter().map(|_| Traits::default());
            self.exits = Some(Exits::new(self.fleet.by_exit.clone(), traits, self.chance.next_u64()));
        }
        (0..self.fleet.sites.len() as u32).for_each(|site| self.frontier.open(site));
    }

    fn crash(&mut self, down: Duration) {
        if !self.up {
            return;
        }
        (self.up, self.process, self.busy) = (false, self.process + 1, 0);
        self.frontier = Frontier::new();
        self.multiplier = RetryMultiplier::default();
        self.gates.crash(self.now);
        self.job.crash(self.now);
        self.watch.crashed(self.now);
        // Dates of parked items are on disk.
        for item in 0..self.job.len() {
            let known = self.job.item(item).due.filter(|_| self.job.item(item).place == Place::Parked);
            if let Some(due) = known {
                self.at(due, Event::Due(item, self.process));
            }
        }
        self.at(self.now.plus(down), Event::Starts);
    }

    /// Puts a parked item on the calendar.
    pub(super) fn due(&mut self, item: ItemId, at: Timestamp) {
        self.job.item(item).due = Some(at);
        self.at(at, Event::Due(item, self.process));
    }

    /// Whether another item may be taken in hand (V3), and that it does not spin.
    pub(super) fn may_take(&mut self) -> Result<bool, Violation> {
        if self.looks.0 != self.now {
            self.looks = (self.now, 0);
        }
        self.looks.1 += 1;
        if self.looks.1 > 100_000 {
            return Err(Watch::broken(
                "it spins: a hundred thousand looks at one moment".to_owned(),
                self.now,
            ));
        }
        Ok(self.has_free())
    }

    fn has_free(&self) -> bool {
        let share = if self.fleet.steered { self.multiplier.share() } else { 1.0 };
        let most = (f64::from(self.fleet.workers) * share).max(1.0);
        let most = if share >= 1.0 { self.fleet.workers as usize } else { most.ceil() as usize };
        self.busy < most
    }

    pub(super) fn send(
        &mut self,
        (item, site): (ItemId, u32),
        (pick, grant, scopes): (Option<Pick>, Grant, Arc<[BoundScope]>),
    ) -> Result<(), Violation> {
        let (now, since) = (self.now, self.now.since(EPOCH));
        let exit = pick.as_ref().map(|pick| pick.exit.0);
        self.watch.sends((item, exit), self.exits.is_some(), &scopes, now)?;
        self.summary.sent += 1;
        self.summary.probes += u64::from(grant.is_probe());
        self.job.item(item).tries += 1;
        let set_out = self.outside.set_out(self.fleet, (site, exit), since, &mut self.chance);
        let probe = grant.is_probe();
        let (process, back) = (self.process, None);
        let mut flight = Flight { item, site, pick, grant, scopes, sent: now, back, process };
        let id = self.flights.len() as u32;
        match set_out {
            SetOut::Goes(way) => {
                self.at(now.plus(way), Event::Arrives(id));
                // Whatever becomes of it, nobody waits for longer.
                self.at(now.plus(self.fleet.timeout), Event::Ends(id));
            }
            SetOut::Ends(back) => {
                self.at(now.plus(back.after.min(self.fleet.timeout)), Event::Ends(id));
                flight.back = Some(back);
            }
        }
        if probe {
            self.at(now.plus(self.fleet.policy.probe_lease / 3), Event::Renews(id, self.process));
        }
        self.flights.push(Some(flight));
        Ok(())
    }

    fn arrives(&mut self, id: u32) {
        let since = self.now.since(EPOCH);
        let Some(flight) = self.flights[id as usize].as_mut() else { return };
        let (site, exit) = (flight.site, flight.pick.as_ref().map(|pick| pick.exit.0));
        let (back, ruling) = self.outside.arrives(self.fleet, (site, exit), since, &mut self.chance);
        let ends = self.now.plus(back.after);
        flight.back = Some(back);
        self.rulings.push(Some((site, ruling)));
        let slot = self.rulings.len() as u32 - 1;
        self.at(ends, Event::Departs(slot));
        self.at(ends, Event::Ends(id));
    }

    fn comes_back(&mut self, id: u32) -> Result<(), Violation> {
        let timed_out = |flight: &Flight| flight.sent.plus(self.fleet.timeout) <= self.now;
        let Some(flight) =
            self.flights[id as usize].take_if(|flight| flight.back.is_some() || timed_out(flight))
        else {
            return Ok(());
        };
        if flight.process != self.process {
            return Ok(()); // nobody is left to hear it
        }
        let late = flight.sent.plus(self.fleet.timeout) <= self.now;
        let back = match flight.back.clone() {
            Some(back) if !late => back,
            Some(back) if matches!(back.outcome, forbear_core::outcome::Outcome::Exit { .. }) => back,
            _ => Back::no_answer(),
        };
        self.answered(flight, back)
    }

    fn renews(&mut self, id: u32, process: u32) {
        let Some(flight) = self.flights[id as usize].as_ref().filter(|_| process == self.process) else {
            return;
        };
        let now = self.now;
        self.gates
            .with(&flight.scopes, now, |gates| attempt::renew(gates, &flight.scopes, &flight.grant, now));
        self.at(now.plus(self.fleet.policy.probe_lease / 3), Event::Renews(id, process));
    }

    fn end(mut self) -> Result<Summary, Violation> {
        let count = |place| self.job.count(place);
        self.summary.done = count(Place::Done);
        self.summary.failed = count(Place::Failed);
        self.summary.unknown = count(Place::Unknown);
        self.summary.put_off = count(Place::PutOff);
        if self.has_no_way() {
            // Nothing can go out: what is left waits for the next run (E5).
            self.summary.put_off += count(Place::Pending) + count(Place::InHand) + count(Place::Parked);
        }
        self.summary.took = self.now.since(EPOCH);
        if let Some(exits) = &self.exits {
            let all = 0..self.fleet.exits.len() as u32;
            self.summary.exits = all.map(|exit| exits.tally(forbear_core::exit::ExitId(exit))).collect();
        }
        if self.summary.lost() > 0 {
            return Err(Watch::broken(format!("J5: {} items are lost", self.summary.lost()), self.now));
        }
        Ok(self.summary)
    }
}

/// A run without a usable exit ends after this.
const STALL_AFTER: Duration = Duration::from_secs(15 * 60);

/// Where the lane of a site waits for an exit.
pub(super) fn waits_for_exits(site: u32) -> ScopeKey {
    ScopeKey::from_text(&format!("{} exits", origin_of(site)))
}
