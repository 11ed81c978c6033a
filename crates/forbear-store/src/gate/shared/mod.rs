//! Gates that several processes share, over any store that can compare and set.
//!
//! Every member has a copy of the gates that it uses. A step runs on the copy; what others must know of at once goes to the
//! store before the answer is given, by one compare-and-set over all scopes of the request, and if the copy was old the
//! step is run again on what the store has. What nobody waits for (a success that closes and opens nothing) stays in the
//! copy for up to 200 ms and goes with the next write. Where the pace is high a write takes slots and places ahead, and starts
//! on them need no write; a pause ends them at once. So no rule is here, nor in the store.

mod clock;
mod desk;
mod entry;
mod flight;
mod keep;
mod lead;
mod link;
mod member;
mod merge;
mod options;
mod pages;
mod record;
mod secret;
mod table;
#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock, atomic::AtomicBool},
    time::Duration,
};

use forbear_core::{
    gate::{Cause, Check, Gate},
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
};
use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, futures::OwnedNotified},
};

#[cfg(feature = "simulated")]
pub(crate) use self::clock::Tick;
use self::{
    clock::StoreClock,
    entry::{Entry, Flying},
    flight::{Flight, Landing, Leg, Part, Passenger, Standby},
    keep::keep,
    record::Record,
    table::Table,
};
pub(crate) use self::{
    desk::Desk,
    link::{Link, LinkError, Page, Push, Reply, Write},
    member::member_of_a_fleet,
};
pub use self::{
    desk::{SharedMember, SharedScope},
    options::{SharedChange, SharedCounts, SharedEvent, SharedOptions},
};
use super::{GateStore, StoreError};

/// The gates of one member.
pub(crate) struct SharedGates<L: Link>(Arc<Inner<L>>);

struct Inner<L: Link> {
    link: L,
    clock: StoreClock,
    me: u64,
    options: SharedOptions,
    table: Mutex<Table>,
    /// The key of accounts, once it was asked for.
    secret: OnceLock<[u8; 32]>,
    /// Something should not wait for the next look.
    urgent: Notify,
    /// Something may have been called that was not heard.
    missed: AtomicBool,
    runtime: Handle,
}

/// Scopes that others have changed.
type Changes = Vec<(ScopeKey, SharedChange)>;

/// What one try of a step came to.
enum Turn<L: Link, R> {
    Done(R),
    Fly(Arc<Flight>, R),
    Again,
    Wait(OwnedNotified, Standby<L>),
}

/// The scopes that an update is about to shut, until it is over, whichever way.
struct Closing<'a, L: Link> {
    inner: &'a Inner<L>,
    keys: Vec<ScopeKey>,
    /// Its number, once it shuts something.
    update: u64,
}

impl<L: Link> Closing<'_, L> {
    fn notes(&mut self, key: &ScopeKey) -> u64 {
        if self.update == 0 {
            self.update = fastrand::u64(1..);
        }
        if !self.keys.contains(key) {
            self.keys.push(key.clone());
        }
        self.update
    }
}

impl<L: Link> Drop for Closing<'_, L> {
    fn drop(&mut self) {
        if self.keys.is_empty() {
            return;
        }
        let mut table = self.inner.table.lock();
        for key in &self.keys {
            if let Some(entry) = table.entries.get_mut(key) {
                entry.has_closed(self.update);
            }
        }
    }
}

/// What a write is for.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Purpose {
    /// A step's changes.
    Step,
    /// A slot for somebody who waits.
    Queue,
    /// What has waited here for long enough.
    Flush,
    /// This member goes.
    Leave,
}

impl<L: Link> SharedGates<L> {
    /// A member on a store that answers; `first` is its first answer.
    pub(crate) fn new(link: L, options: SharedOptions) -> SharedGates<L> {
        let clock = StoreClock::new(link.tick(), link.suspended());
        let inner = Arc::new(Inner {
            link,
            clock,
            me: fastrand::u64(1..),
            options,
            table: Mutex::default(),
            secret: OnceLock::new(),
            urgent: Notify::new(),
            missed: AtomicBool::new(false),
            runtime: Handle::current(),
        });
        inner.runtime.spawn(keep(Arc::downgrade(&inner)));
        SharedGates(inner)
    }

    /// Asks the store for its time, once.
    pub(crate) async fn greet(&self) -> Result<(), LinkError> {
        self.0.swap(&[], false).await.map(drop)
    }

    /// The key by which all members name accounts (K1).
    pub(crate) async fn account_key(&self) -> Result<[u8; 32], LinkError> {
        self.0.account_key().await
    }

    /// Gives back what this member holds, and is a member of nothing any more until it starts something again. What the store
    /// does not take within `time` comes back by itself.
    pub(crate) async fn leave(&self, time: Duration) {
        let _ = tokio::time::timeout(time, self.0.clone().leave()).await;
    }

    /// Where the store's calls go.
    pub(crate) fn listener(&self) -> impl Fn(Push) + Send + Sync + 'static {
        let inner = Arc::downgrade(&self.0);
        move |push| {
            if let Some(inner) = inner.upgrade() {
                inner.hear(push);
            }
        }
    }

    /// What it has done.
    pub(crate) fn counts(&self) -> SharedCounts {
        self.0.table.lock().counts
    }

    /// Of how many scopes this member learns.
    pub(crate) fn learns_of(&self) -> usize {
        self.0.table.lock().entries.values().filter(|entry| entry.lead.is_some()).count()
    }

    /// Whether the store is gone.
    pub(crate) fn is_alone(&self) -> bool {
        self.0.table.lock().alone.is_some()
    }
}

impl<L: Link> GateStore for SharedGates<L> {
    async fn update<R: Send>(
        &self,
        scopes: &[BoundScope],
        mut step: impl FnMut(&mut [Gate], Timestamp) -> R + Send,
    ) -> Result<R, StoreError> {
        let mut closing = Closing { inner: &self.0, keys: Vec::new(), update: 0 };
        loop {
            match self.0.attempt(scopes, &mut step, &mut closing)? {
                Turn::Done(answer) => return Ok(answer),
                Turn::Again => {}
                Turn::Wait(landed, standby) => {
                    landed.await;
                    standby.board();
                }
                Turn::Fly(flight, answer) => {
                    let passenger = Passenger::new(&self.0, flight.clone());
                    self.0.runtime.spawn(self.0.clone().fly(flight.clone()));
                    if passenger.landing().await == Landing::Written && !self.0.is_overtaken(&flight) {
                        return Ok(answer);
                    }
                }
            }
        }
    }

    async fn restore(&self, scope: &BoundScope, gate: Gate) -> Result<(), StoreError> {
        self.update(std::slice::from_ref(scope), |here, now| {
            if here[0].pause_at(now).map(|(until, _)| until) <= gate.pause_at(now).map(|(until, _)| until) {
                let mut state = gate.to_state();
                let known = here[0].to_state();
                state.in_flight = known.in_flight;
                merge::later_slots(&known, &mut state);
                here[0] = Gate::from_state(&state);
            }
        })
        .await
    }

    fn now(&self) -> Timestamp {
        self.0.clock.now()
    }

    fn note_waiting(&self, waiting: &HashMap<ScopeKey, u32>) {
        self.0.note_waiting(waiting);
    }
}

impl<L: Link> Inner<L> {
    /// Whether the scope was shut while a start in it was being written. Then the start is given back: it is not sent into a pause
    /// that is known here (P1).
    fn is_overtaken(&self, flight: &Flight) -> bool {
        if !flight::starts(&flight.parts) {
            return false;
        }
        let now = self.clock.now();
        let overtaken = {
            let table = self.table.lock();
            let closed = |part: &Part| table.entries.get(&part.key).is_some_and(|entry| entry.is_closed(now));
            flight.parts.iter().any(|part| !part.private && !part.after.shut && closed(part))
        };
        if overtaken {
            self.settle(&flight.parts, Landing::Written);
        }
        overtaken
    }

    fn attempt<R>(
        self: &Arc<Self>,
        scopes: &[BoundScope],
        step: &mut impl FnMut(&mut [Gate], Timestamp) -> R,
        closing: &mut Closing<'_, L>,
    ) -> Result<Turn<L, R>, StoreError> {
        let mut table = self.table.lock();
        let table = &mut *table;
        let mut now = self.clock.now();
        let alone = table.alone.is_some();
        for scope in scopes {
            let entry = table.entry(scope, now, self.options.scopes_max)?;
            now = now.max(entry.written_at());
        }
        let mut parts = Vec::with_capacity(scopes.len());
        for scope in scopes {
            let entry = table.entry(scope, now, self.options.scopes_max)?;
            let before = entry.view(self.me, now, alone);
            let private = entry.is_local();
            parts.push(Part::still(scope.key.clone(), before, private));
        }
        let mut gates: Vec<Gate> = parts.iter().map(|part| Gate::from_state(&part.before)).collect();
        let answer = step(&mut gates, now);
        parts.iter_mut().zip(gates).for_each(|(part, gate)| part.after = gate.to_state());
        if flight::starts(&parts)
            && let Some(mut gates) = table.closing(&parts, now)
        {
            return Ok(Turn::Done(step(&mut gates, now)));
        }

        if alone {
            let start = flight::starts(&parts);
            for part in &mut parts {
                let Some(entry) = table.entries.get_mut(&part.key) else { continue };
                if start && !part.private {
                    entry.share(&mut part.after, self.me, now);
                }
                entry.commit(&part.before, part.after.clone(), now);
                table.active.push(part.key.clone());
            }
            return Ok(Turn::Done(answer));
        }
        let changed = parts.iter().any(|part| part.before != part.after);
        if !changed {
            return Ok(self.confirm(table, parts, answer, now));
        }
        let covered = |part: &Part| {
            table.entries.get(&part.key).is_some_and(|entry| entry.covers(&part.before, &part.after, self.me))
        };
        if parts.iter().all(covered) {
            let start = flight::starts(&parts);
            for mut part in parts {
                let Some(entry) = table.entries.get_mut(&part.key) else { continue };
                if start && entry.apart {
                    entry.share(&mut part.after, self.me, now);
                }
                entry.commit(&part.before, part.after, now);
                if !part.private {
                    table.active.push(part.key);
                    if entry.is_crowded(self.me, now) {
                        self.urgent.notify_one();
                    }
                }
            }
            return Ok(Turn::Done(answer));
        }
        if flight::starts(&parts) {
            let mut again = false;
            for part in parts.iter().filter(|part| !part.private) {
                let Some(entry) = table.entries.get_mut(&part.key) else { continue };
                if entry.exceeds_slots(&part.after) {
                    entry.drop_slots(now);
                    again = true;
                }
            }
            if again {
                return Ok(Turn::Again);
            }
        }
        for part in parts.iter().filter(|part| part.shuts() && !part.private) {
            if let Some(entry) = table.entries.get_mut(&part.key) {
                entry.closes(&part.after, closing.notes(&part.key));
            }
        }
        Ok(match table.flying(&parts) {
            Some(landed) => Turn::Wait(landed, Standby::new(self, parts)),
            None => Turn::Fly(self.launch(table, parts, now, Purpose::Step), answer),
        })
    }

    /// A step has changed nothing: believed if what it saw is fresh, else the store is asked.
    fn confirm<R>(
        self: &Arc<Self>,
        table: &mut Table,
        mut parts: Vec<Part>,
        answer: R,
        now: Timestamp,
    ) -> Turn<L, R> {
        if self.queues(table, &parts, now) && table.flying(&parts).is_none() {
            return Turn::Fly(self.launch(table, parts, now, Purpose::Queue), answer);
        }
        parts.retain(|part| {
            table.entries.get(&part.key).is_some_and(|entry| entry.is_stale(now) || !entry.is_joined(self.me))
        });
        if parts.is_empty() {
            return Turn::Done(answer);
        }
        if let Some(landed) = table.flying(&parts) {
            return Turn::Wait(landed, Standby::new(self, Vec::new()));
        }
        Turn::Fly(self.launch(table, parts, now, Purpose::Step), answer)
    }

    /// Whether all that these scopes wait for is a slot that can be taken now.
    fn queues(&self, table: &Table, parts: &[Part], now: Timestamp) -> bool {
        let mut waits = false;
        let fine = parts.iter().all(|part| {
            let Some(entry) = table.entries.get(&part.key) else { return false };
            match Gate::from_state(&part.before).check(&entry.policy, now, 1) {
                Check::Admit => true,
                Check::Wait { until, cause: Cause::Pace } => {
                    waits |= !part.private;
                    part.private || entry.may_queue(self.me, until, now)
                }
                Check::Wait { .. } | Check::Probe | Check::Full => false,
            }
        });
        fine && waits
    }

    /// Makes one write of all parts that others share.
    fn launch(
        &self,
        table: &mut Table,
        mut parts: Vec<Part>,
        now: Timestamp,
        purpose: Purpose,
    ) -> Arc<Flight> {
        let (mut legs, mut tell, ahead) = (Vec::<Leg>::new(), false, self.clock.ahead_us());
        flight::by_place(&mut parts, |key| self.link.place(key));
        for i in 0..parts.len() {
            let begins = i == 0 || parts[i - 1].private || parts[i - 1].place != parts[i].place;
            let part = &mut parts[i];
            let Some(entry) = table.entries.get_mut(&part.key) else { continue };
            if part.private {
                entry.commit(&part.before, part.after.clone(), now);
                continue;
            }
            let mut write = Write {
                key: part.key.as_str().to_owned(),
                expect: entry.base.as_ref().map(Record::tag).unwrap_or_default(),
                value: Vec::new(),
                keep: Duration::ZERO,
            };
            let queue = purpose == Purpose::Queue;
            let leaves = purpose == Purpose::Leave;
            let holds =
                leaves || purpose == Purpose::Flush && (entry.holds(self.me) || entry.lead_fades(now));
            let joins = purpose == Purpose::Step && !entry.is_joined(self.me);
            let tells = joins || part.before != part.after || entry.dirty.is_some() || queue || holds;
            if tells {
                if part.after.paused_until > part.before.paused_until
                    && part.after.paused_until != Timestamp::MAX
                {
                    // Who keeps it may be that much further on than we are.
                    let slack = self.clock.slack();
                    part.after.paused_until = part.after.paused_until.plus(slack);
                    let slack_ms = u32::try_from(slack.as_micros().div_ceil(1000)).unwrap_or(0);
                    part.after.beyond_told_ms = part.after.beyond_told_ms.saturating_add(slack_ms);
                }
                let (mut record, slots) =
                    entry.record(&part.before, &part.after, (self.me, now, fastrand::u64(1..)), queue);
                if leaves {
                    record.forget(self.me);
                    (record.owner, record.learned) = entry.hand_over(self.me, now);
                }
                let crowded = part.after.in_flight <= part.before.in_flight && entry.is_crowded(self.me, now);
                tell |= crowded
                    || leaves
                    || joins
                    || slots.is_some()
                    || merge::is_loud(&part.before, &part.after)
                    || entry.dirty.is_some() && record.state.shut
                    || entry.speaks();
                write.keep = record.keep(now);
                let mut of_store = record.clone();
                of_store.shift(-ahead);
                write.value = of_store.encode();
                part.record = Some((record, slots));
            }
            entry.flying = Some(Flying {
                places: part.record.as_ref().map(|(record, _)| record.held(self.me)),
                starts: part.after.in_flight.saturating_sub(part.before.in_flight),
            });
            if begins {
                legs.push(Leg { parts: i..i, writes: Vec::new() });
            }
            if let Some(leg) = legs.last_mut() {
                leg.parts.end = i + 1;
                leg.writes.push(write);
            }
        }
        Arc::new(Flight::new(parts, legs, tell, (table.losses, ahead)))
    }

    async fn fly(self: Arc<Self>, flight: Arc<Flight>) {
        let mut landing = Landing::Written;
        for (i, leg) in flight.legs.iter().enumerate() {
            let landed = match self.swap(&leg.writes, flight.tell).await {
                Ok(reply) if self.table.lock().losses == flight.losses => self.land(&flight, leg, reply),
                Ok(_) => Landing::Again,
                Err(error) => {
                    self.lose(&error, Some(flight.losses));
                    Landing::Again
                }
            };
            if landed == Landing::Again {
                self.give_notice(&flight);
                landing = self.turn_back(&flight, i);
                break;
            }
        }
        if !flight.land(landing) {
            self.settle(&flight.parts, landing);
        }
    }

    /// A pause could not be written, since others wrote first. They may do so again and again, so all are told of it meanwhile.
    fn give_notice(self: &Arc<Self>, flight: &Flight) {
        for part in flight.parts.iter().filter(|part| part.shuts()) {
            let Some((record, _)) = &part.record else { continue };
            let mut notice = record.to_notice();
            notice.shift(-self.clock.ahead_us());
            let write = Write {
                key: part.key.as_str().to_owned(),
                expect: Vec::new(),
                value: notice.encode(),
                keep: Duration::ZERO,
            };
            let inner = self.clone();
            self.runtime.spawn(async move {
                // Whoever does not hear of it now hears of it when it is written.
                let _ = tokio::time::timeout(inner.options.patience, inner.link.call(&write)).await;
            });
        }
    }

    /// The leg of this number came to nothing. A start that was reserved elsewhere is given back; what is reported elsewhere is
    /// reported, and the rest of it follows.
    fn turn_back(&self, flight: &Flight, failed: usize) -> Landing {
        let now = self.clock.now();
        let starts = flight::starts(&flight.parts);
        let reports = failed > 0 && !starts && flight.parts.iter().any(|part| part.before != part.after);
        let done = flight.legs[failed].parts.start;
        let mut table = self.table.lock();
        let table = &mut *table;
        let present = table.losses == flight.losses;
        for (i, part) in flight.parts.iter().enumerate().filter(|(_, part)| !part.private) {
            let Some(entry) = table.entries.get_mut(&part.key) else { continue };
            if i >= flight.legs[failed].parts.end && present {
                entry.flying = None;
                entry.landed.notify_waiters();
            }
            match (i < done, starts) {
                (true, true) => entry.apply(&part.after, &part.before, now),
                (false, false) if reports => entry.apply(&part.before, &part.after, now),
                _ => continue,
            }
            entry.hurry();
            table.active.push(part.key.clone());
        }
        if reports {
            self.urgent.notify_one();
            return Landing::Written;
        }
        for part in flight.parts.iter().filter(|part| part.private) {
            if let Some(entry) = table.entries.get_mut(&part.key) {
                entry.apply(&part.after, &part.before, now);
                entry.give_slots_back(&part.before, &part.after);
            }
        }
        if done > 0 {
            self.urgent.notify_one();
        }
        Landing::Again
    }

    /// Asks the store, and reads its clock.
    async fn swap(&self, writes: &[Write], tell: bool) -> Result<Reply, LinkError> {
        let sent = self.clock.tick();
        let answer = tokio::time::timeout(self.options.patience, self.link.swap(writes, tell)).await;
        let reply = answer.unwrap_or(Err(LinkError::Hung))?;
        if let Some(time) = reply.time
            && self.clock.observe(time, sent, self.clock.tick())
        {
            self.say_pauses_again();
        }
        let mut table = self.table.lock();
        table.counts.round_trips += 1;
        table.counts.conflicts += u64::from(reply.found.is_some());
        Ok(reply)
    }

    fn land(&self, flight: &Flight, leg: &Leg, reply: Reply) -> Landing {
        let now = self.clock.now();
        let mut changed = Changes::new();
        let landing = {
            let mut table = self.table.lock();
            let table = &mut *table;
            let landing = if reply.found.is_none() { Landing::Written } else { Landing::Again };
            let mut found = reply.found.unwrap_or_default().into_iter();
            for part in &flight.parts[leg.parts.clone()] {
                let Some(entry) = table.entries.get_mut(&part.key) else { continue };
                let written = landing == Landing::Written;
                if let (true, Some((record, slots))) = (written, part.record.clone()) {
                    entry.written((&part.before, &part.after), record, slots, now);
                } else if written {
                    entry.seen = now;
                } else {
                    let value = found.next().flatten();
                    self.learn(entry, &part.key, value.as_deref(), now, &mut changed);
                }
                if written && entry.local.shut && flight.ahead_us > self.clock.ahead_us() {
                    // The answer told that the store's clock was set forward: it was written in its old time.
                    entry.dirty = Some(Timestamp::ZERO);
                    self.urgent.notify_one();
                }
                entry.flying = None;
                entry.landed.notify_waiters();
                if let Some(called) = entry.called.take()
                    && entry.is_news(&called)
                {
                    let was = entry.pause();
                    let _ = entry.rebase(called, now, false);
                    changed.push((part.key.clone(), SharedChange::since(was, &entry.local)));
                }
                table.active.push(part.key.clone());
                if self.leads_by(entry) {
                    self.urgent.notify_one();
                }
            }
            landing
        };
        self.tell_changed(changed);
        landing
    }

    /// Takes in what the store has of a scope.
    fn learn(
        &self,
        entry: &mut Entry,
        key: &ScopeKey,
        value: Option<&[u8]>,
        now: Timestamp,
        changed: &mut Changes,
    ) {
        let was = entry.pause();
        let Some(value) = value else {
            if entry.vanished(now) {
                self.urgent.notify_one();
            }
            return;
        };
        match Record::decode(value) {
            Ok(mut record) => {
                record.shift(self.moved_us(&record, now));
                if entry.rebase(record, now, false) {
                    self.urgent.notify_one();
                }
                changed.push((key.clone(), SharedChange::since(was, &entry.local)));
            }
            Err(fault) => {
                // It cannot be understood, so it is not touched: this member goes on as if the store had nothing new.
                entry.apart = true;
                let why = fault.to_string();
                (self.options.events)(SharedEvent::Unreadable { scope: key.clone(), why });
            }
        }
    }

    /// How far a record's moments are behind ours: by the steps of the store's clock that we have seen, or that we see by it.
    fn moved_us(&self, record: &Record, now: Timestamp) -> i64 {
        let ahead = self.clock.ahead_of_us(record.written);
        let written = record.written.as_micros().saturating_add_signed(ahead);
        let future = written.saturating_sub(now.as_micros());
        if future > FUTURE_US { ahead.saturating_sub_unsigned(future) } else { ahead }
    }

    /// Nobody waits for what came of a flight: a start is given back, everything else holds.
    fn settle(&self, parts: &[Part], landing: Landing) {
        let now = self.clock.now();
        let starts = flight::starts(parts);
        let mut table = self.table.lock();
        for part in parts {
            let Some(entry) = table.entries.get_mut(&part.key) else { continue };
            match (landing, starts) {
                (Landing::Written, true) => entry.apply(&part.after, &part.before, now),
                (Landing::Again, false) => entry.apply(&part.before, &part.after, now),
                (Landing::Written, false) | (Landing::Again, true) => continue,
            }
            entry.hurry();
            table.active.push(part.key.clone());
        }
        drop(table);
        self.urgent.notify_one();
    }
}

/// A record that is further in the future was written on another clock.
const FUTURE_US: u64 = 5_000_000;
