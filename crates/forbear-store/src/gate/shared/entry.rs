//! One scope as a member knows it: what the store has, what was done here since, and the slots taken ahead.

use std::{sync::Arc, time::Duration};

use forbear_core::{
    gate::{Cause, Check, Gate, State},
    pace::MAX_RATES,
    policy::ScopePolicy,
    time::Timestamp,
};
use tokio::sync::Notify;

use super::{
    lead::Lead,
    merge::{is_loud, later_slots, merge, reassert, shut_by},
    record::{Member, Record},
};

/// One scope.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) policy: Arc<ScopePolicy>,
    /// The scope of one run is nobody else's.
    pub(super) private: bool,
    /// The store's record is of no use: this member goes on alone with the scope, with its share.
    pub(super) apart: bool,
    /// The record that the store has, as far as is known; none if it has none.
    pub(super) base: Option<Record>,
    /// What `local` was made from.
    from: State,
    /// The gate with what was done here since.
    pub(super) local: State,
    /// Requests of this member on the wire.
    pub(super) own: u16,
    /// Slots that the store has given ahead.
    slots: Option<Slots>,
    /// A compare-and-set is under way; who must wait for it waits at `landed`.
    pub(super) flying: Option<Flying>,
    pub(super) landed: Arc<Notify>,
    /// A record that was called out meanwhile.
    pub(super) called: Option<Record>,
    /// The gate with a pause that this member was told and is about to write, and by which update.
    closing: Option<(State, u64)>,
    /// The gate with a pause that another member is about to write, and until when that is believed.
    heard: Option<(State, Timestamp)>,
    /// When the store was last seen to have `base`.
    pub(super) seen: Timestamp,
    /// Since when something is here that the store has not.
    pub(super) dirty: Option<Timestamp>,
    /// Starts in this stretch of 200 ms.
    recent: (Timestamp, u32),
    /// When this member started something last.
    started: Timestamp,
    /// How many slots are taken ahead next time.
    trust: u32,
    /// Slots that were taken ahead have passed unused: no more than were used are taken until then.
    sober_until: Timestamp,
    /// What waits here.
    pub(super) waiting: u32,
    /// This member learns of the scope.
    pub(super) lead: Option<Box<Lead>>,
}

/// What a compare-and-set under way makes of this member's places. Until it has landed nobody knows which record the store
/// has, so whoever starts without asking must fit in the old one and in the new one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flying {
    /// Places that the store will have for this member; none if the write leaves them as they are.
    pub(super) places: Option<u16>,
    /// Starts that count here only once it has landed.
    pub(super) starts: u16,
}

/// How far ahead of the store's record this member may go without asking.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slots {
    clocks: [u64; MAX_RATES],
    slot_ns: u64,
    until: Timestamp,
    /// From one slot to the next, of each clock and of the ramp. A slot that is used late by less than half of the longest is
    /// still that slot, and does not move the next.
    ways: [u64; MAX_RATES],
    way_ns: u64,
    /// Starts that they are for, and starts on them so far.
    given: u32,
    used: u32,
}

impl Entry {
    pub(super) fn new(policy: &Arc<ScopePolicy>, private: bool) -> Entry {
        let local = Gate::new(policy).to_state();
        Entry {
            policy: policy.clone(),
            private,
            apart: false,
            base: None,
            from: local.clone(),
            local,
            own: 0,
            slots: None,
            flying: None,
            landed: Arc::default(),
            called: None,
            closing: None,
            heard: None,
            seen: Timestamp::ZERO,
            dirty: None,
            recent: (Timestamp::ZERO, 0),
            started: Timestamp::ZERO,
            trust: 0,
            sober_until: Timestamp::ZERO,
            waiting: 0,
            lead: None,
        }
    }

    /// The gate as it is at `now` for `me`; alone, with this member's share of what all may have on the wire.
    pub(super) fn view(&mut self, me: u64, now: Timestamp, alone: bool) -> State {
        if self
            .slots
            .is_some_and(|slots| now >= slots.until || self.local.shut || slots.are_used_up(&self.local))
        {
            self.drop_slots(now);
        }
        let mut state = self.local.clone();
        let others = if self.private {
            0
        } else if alone || self.apart {
            let cap = self.cap();
            cap - (cap / self.users(me, now).clamp(1, u32::from(u16::MAX)) as u16).max(1)
        } else {
            self.base.as_ref().map_or(0, |base| base.others(me, now))
        };
        state.in_flight = others.saturating_add(self.own);
        self.local.in_flight = state.in_flight;
        state.diary.reader = self.reader(now, alone);
        self.local.diary.reader = state.diary.reader;
        state
    }

    /// Whether it is shut here, and until when.
    pub(super) fn pause(&self) -> (bool, Timestamp) {
        (self.local.shut, self.local.paused_until)
    }

    /// Whether the store has no part in it.
    pub(super) fn is_local(&self) -> bool {
        self.private || self.apart
    }

    /// Whether the store need not be asked for this change.
    pub(super) fn covers(&self, before: &State, after: &State, me: u64) -> bool {
        if self.is_local() {
            return true;
        }
        if self.seen == Timestamp::ZERO || is_loud(before, after) {
            return false;
        }
        if after.in_flight <= before.in_flight {
            return after.clocks == before.clocks;
        }
        let started = after.in_flight - before.in_flight;
        let (underway, will_hold) = self.flying.map_or((0, None), |flying| (flying.starts, flying.places));
        let own = self.own.saturating_add(started).saturating_add(underway);
        let held = self.base.as_ref().map_or(0, |base| base.held(me));
        let held = will_hold.map_or(held, |places| places.min(held));
        self.slots.is_some_and(|slots| own <= held && slots.hold(after))
    }

    /// Whether the step asks for more slots than are left of those taken ahead: then it must be run again without them.
    pub(super) fn exceeds_slots(&self, after: &State) -> bool {
        self.slots.is_some_and(|slots| !slots.hold(after) && !after.shut)
    }

    /// Slots that were taken ahead and not used are gone. How many there will be next time follows from what was used.
    pub(super) fn drop_slots(&mut self, now: Timestamp) {
        if let Some(slots) = self.slots.take() {
            // One slot is missed by a timer that is late, and says nothing about what is needed.
            let several = slots.are_paced() && slots.given > 1;
            let wasted = several && !self.local.shut && 2 * slots.used < slots.given;
            let needed = !slots.are_paced() || 4 * slots.used >= 3 * slots.given;
            if wasted {
                (self.trust, self.sober_until) = (slots.used, now.plus(SOBER));
            } else if needed && now >= self.sober_until {
                self.trust = (self.trust * 2 + 1).min(SLOTS_MAX);
            }
        }
        if let Some(base) = &self.base {
            later_slots(&base.state, &mut self.local);
        }
    }

    /// Whether a slot may be taken for somebody who must wait for one until `until`, since others want them too. Not for a probe:
    /// slots are gone while the scope is shut, and members would take them from each other for ever.
    pub(super) fn may_queue(&self, me: u64, until: Timestamp, now: Timestamp) -> bool {
        self.slots.is_none()
            && !self.local.shut
            && self.seen != Timestamp::ZERO
            && until.since(now) <= QUEUE
            && self.users(me, now) > 1
            && self.has_its_turn(me, now)
    }

    /// Where so many use the scope that there is no slot for each within [`QUEUE`], whoever has started lately lets those go first
    /// who have not: each has a turn in every round of all.
    fn has_its_turn(&self, me: u64, now: Timestamp) -> bool {
        let slots = Gate::from_state(&self.local).slots_in(&self.policy, QUEUE).unwrap_or(u32::MAX);
        let round = QUEUE.mul_f64(f64::from(self.users(me, now)) / f64::from(slots.max(1)));
        now.since(self.started) >= round.saturating_sub(QUEUE)
    }

    /// Takes in what was done here.
    pub(super) fn commit(&mut self, before: &State, after: State, now: Timestamp) {
        self.count(before, &after, now);
        if after != *before {
            self.dirty = self.dirty.or(Some(now));
        }
        self.local = after;
        if let Some(slots) = &self.slots {
            slots.fit(before, &mut self.local);
        }
    }

    /// No change of it is earlier than the last one.
    pub(super) fn written_at(&self) -> Timestamp {
        self.base.as_ref().map_or(Timestamp::ZERO, |base| base.written)
    }

    /// What others wait for is free, and the store does not know.
    pub(super) fn is_crowded(&self, me: u64, now: Timestamp) -> bool {
        let base = self.base.as_ref();
        base.is_some_and(|base| base.others(me, now).saturating_add(base.held(me)) >= self.cap())
    }

    /// The record that makes `after` of what the store has, and the slots that come with it.
    pub(super) fn record(
        &mut self,
        before: &State,
        after: &State,
        (me, now, lineage): (u64, Timestamp, u64),
        queue: bool,
    ) -> (Record, Option<Slots>) {
        let own = self.own.saturating_add(after.in_flight).saturating_sub(before.in_flight);
        let mut state = after.clone();
        let (mut slots, mut held) = (self.slots.filter(|slots| slots.hold(after)), own);
        if slots.is_some() {
            // What was given ahead stays given.
            if let Some(base) = &self.base {
                (state.clocks, state.slot_ns) = (base.state.clocks, base.state.slot_ns);
            }
        }
        let starting = after.in_flight > before.in_flight;
        if starting || queue {
            let (starts, free) = self.ahead(after, me, now);
            let starts = if queue { starts.max(1) } else { starts };
            let places = u16::try_from(starts).unwrap_or(u16::MAX).min(free);
            held = own.saturating_add(places);
            if slots.is_none() && starts > 0 {
                let mut gate = Gate::from_state(&state);
                // Where several paces hold, a start is when the slowest of them has its slot: the others' slots are of then.
                let when = match gate.check(&self.policy, now, 1) {
                    Check::Wait { until, cause: Cause::Pace } => until.max(now),
                    _ => now,
                };
                let from = |ns: u64| ns.max(when.as_micros() * 1000);
                let before = (state.clocks, state.slot_ns);
                gate.skip(&self.policy, when, f64::from(starts));
                state = gate.to_state();
                let last = state.clocks.into_iter().fold(state.slot_ns, u64::max);
                let until = Timestamp::from_micros(last / 1000).max(now.plus(SLOTS_FOR)).plus(SLOTS_FOR / 4);
                let (clocks, slot_ns) = (state.clocks, state.slot_ns);
                let count = u64::from(starts);
                let way = |to: u64, at: u64| to.saturating_sub(from(at)) / count;
                let ways = std::array::from_fn(|i| way(clocks[i], before.0[i]));
                let way_ns = way(slot_ns, before.1);
                slots = Some(Slots { clocks, slot_ns, until, ways, way_ns, given: starts, used: 0 });
            }
        }
        state.in_flight = 0;
        let (lineage, revision, members) = match &self.base {
            Some(base) => (base.lineage, base.revision, base.members.clone()),
            None => (lineage, 0, Vec::new()),
        };
        let (owner, learned) = self.lease(me, now, &mut state);
        let mut record = Record {
            lineage,
            revision: revision + 1,
            writer: me,
            written: now,
            state,
            members,
            owner,
            learned,
        };
        let rated = self.policy.learn && !self.policy.rates.is_empty();
        let member =
            Member { id: me, places: held, waiting: self.waiting, until: now.plus(MEMBER_FOR), rated };
        record.note(member, now);
        (record, slots)
    }

    /// The store has taken the record that was made of `before` and `after`; what was done here meanwhile stays.
    pub(super) fn written(
        &mut self,
        (before, after): (&State, &State),
        record: Record,
        slots: Option<Slots>,
        now: Timestamp,
    ) {
        self.count(before, after, now);
        let meanwhile = self.local != *before;
        let mut local = after.clone();
        if meanwhile {
            local = merge(before, &self.local, after);
            later_slots(&self.local, &mut local);
        }
        self.dirty = meanwhile.then_some(now);
        if let Some(slots) = &slots {
            slots.fit(before, &mut local);
        }
        (self.local, self.slots) = (local, slots);
        self.take_lead(&record, now);
        self.from = record.state.clone();
        self.base = Some(record);
        self.seen = now;
    }

    /// The store has another record than was thought. True if it has lost what this member remembers.
    pub(super) fn rebase(&mut self, theirs: Record, now: Timestamp, was_lost: bool) -> bool {
        self.check_lead(&theirs);
        let lost = self.is_lost_in(&theirs);
        let mut local = if lost {
            reassert(&self.local, &theirs.state)
        } else {
            merge(&self.from, &self.local, &theirs.state)
        };
        // Slots are of no use any more where the scope is shut, or metered anew.
        let ramp = (theirs.state.rate.is_some(), theirs.state.opened_at);
        let metered_anew = ramp != (self.from.rate.is_some(), self.from.opened_at) && ramp.0;
        let same_stretch = !lost && !theirs.state.shut && !metered_anew;
        if same_stretch && self.slots.is_some() {
            (local.clocks, local.slot_ns) = (self.local.clocks, self.local.slot_ns);
        } else {
            self.slots = None;
        }
        if was_lost {
            later_slots(&self.local, &mut local);
        }
        let restored =
            lost && local.shut && (!theirs.state.shut || local.paused_until > theirs.state.paused_until);
        if restored {
            self.dirty = Some(now);
        }
        self.local = local;
        self.from = theirs.state.clone();
        self.base = Some(theirs);
        self.seen = now;
        restored
    }

    /// The scope is shut as soon as that is written: nothing starts here from now on.
    pub(super) fn closes(&mut self, after: &State, update: u64) {
        self.closing = Some((after.clone(), update));
    }

    /// That update is over: the pause is written by now, or it came to nothing.
    pub(super) fn has_closed(&mut self, update: u64) {
        self.closing.take_if(|(_, by)| *by == update);
    }

    /// `before` as it will be when the pause is written that is about to be. Whoever waits for its end asks again soon, for it
    /// may come to nothing: what was counted up to it may have been counted anew by then.
    pub(super) fn closing(&self, before: &State, now: Timestamp) -> Option<State> {
        let heard = self.heard.as_ref().filter(|(_, until)| now < *until).map(|(state, _)| state);
        let told = self.closing.as_ref().map(|(state, _)| state);
        let shut = told.into_iter().chain(heard).find_map(|closing| shut_by(closing, before));
        let mut shut = shut.filter(|shut| now < shut.paused_until)?;
        shut.paused_until = shut.paused_until.min(now.plus(CLOSING));
        // Nothing is written of it, so no probe can be let out by it.
        shut.early_probe_at = Timestamp::ZERO;
        Some(shut)
    }

    /// Whether nothing but a probe may go out any more.
    pub(super) fn is_closed(&self, now: Timestamp) -> bool {
        self.local.shut || self.closing(&self.local, now).is_some()
    }

    /// Another member was told to pause, and has not written it yet. Nothing of it is this member's to write, and it is believed
    /// as long as such a write may take; it is called out again if that is longer.
    pub(super) fn heard_of_pause(&mut self, theirs: Record, now: Timestamp) {
        if shut_by(&theirs.state, &self.local).is_some() {
            self.heard = Some((theirs.state, now.plus(CLOSING)));
        }
    }

    /// The store has nothing. True if this member remembers what it should have.
    pub(super) fn vanished(&mut self, now: Timestamp) -> bool {
        self.lead = None;
        self.drop_slots(now);
        let had = self.base.take().is_some() && (self.local.shut || self.own > 0);
        self.from = self.local.clone();
        self.seen = now;
        if had {
            self.dirty = Some(now);
        }
        had
    }

    /// Puts into what is here now what was done to `before`.
    pub(super) fn apply(&mut self, before: &State, after: &State, now: Timestamp) {
        let slots = (self.local.clocks, self.local.slot_ns);
        self.count(before, after, now);
        self.local = merge(before, after, &self.local);
        (self.local.clocks, self.local.slot_ns) = slots;
        self.dirty = self.dirty.or(Some(now));
    }

    /// The store is gone: from here on this member has only its share.
    pub(super) fn part(&mut self, me: u64, now: Timestamp) {
        if let Some((heard, _)) = self.heard.take().filter(|(_, until)| now < *until)
            && heard.paused_until != Timestamp::MAX
            && let Some(shut) = shut_by(&heard, &self.local)
        {
            self.local = shut; // nobody will write it now
        }
        self.flying = None;
        self.lead = None;
        self.drop_slots(now);
        let rank = self.base.as_ref().map_or(0, |base| base.rank(me, now));
        let mut gate = Gate::from_state(&self.local);
        gate.spend_burst(&self.policy, now);
        gate.skip(&self.policy, now, f64::from(rank + 1));
        self.local = gate.to_state();
        if self.local.shut && self.local.paused_until != Timestamp::MAX {
            // Probes of several members come one after the other.
            let later = self.policy.backoff.base().saturating_mul(rank);
            self.local.paused_until = self.local.paused_until.plus(later);
        }
    }

    /// A start of this member alone uses up the slots of the others as well, and a tenth more.
    pub(super) fn share(&self, after: &mut State, me: u64, now: Timestamp) {
        let mut gate = Gate::from_state(after);
        gate.skip(&self.policy, now, f64::from(self.users(me, now)) / SHARE - 1.0);
        *after = gate.to_state();
    }

    /// Whether it has something that the store should have by now.
    pub(super) fn is_due(&self, me: u64, now: Timestamp) -> bool {
        if self.is_local() || self.flying.is_some() {
            return false;
        }
        let held = self.base.as_ref().map_or(0, |base| base.held(me));
        let age = now.since(self.seen);
        // Others' changes are signs of the store's life, not of this member's.
        let fades = self.base.as_ref().is_some_and(|base| base.left(me, now) < MEMBER_FOR * 2 / 3);
        self.dirty.is_some_and(|since| now.since(since) >= FLUSH)
            || (self.own > 0 || held > 0) && fades
            || held > self.own && age > FLUSH
            || self.lead_fades(now)
            || self.local.shut && age > REMIND
    }

    /// Whether the store knows that this member uses the scope, if anybody does.
    pub(super) fn is_joined(&self, me: u64) -> bool {
        self.is_local()
            || self.base.as_ref().is_none_or(|base| base.members.iter().any(|member| member.id == me))
    }

    /// Whether the store has it among those who use the scope.
    pub(super) fn is_member(&self, me: u64) -> bool {
        let known = |base: &Record| base.members.iter().any(|member| member.id == me);
        !self.is_local() && self.base.as_ref().is_some_and(known)
    }

    /// Whether the store must be asked before an answer that changes nothing is believed.
    pub(super) fn is_stale(&self, now: Timestamp) -> bool {
        !self.is_local() && (self.seen == Timestamp::ZERO || now.since(self.seen) > FRESH)
    }

    /// Whether nobody misses it here.
    pub(super) fn is_idle(&self, now: Timestamp) -> bool {
        self.own == 0 && self.dirty.is_none() && self.flying.is_none() && {
            let mut state = self.local.clone();
            state.in_flight = 0;
            Gate::from_state(&state).is_idle(now)
        }
    }

    /// Whether a record is newer than what is known, as far as can be told.
    pub(super) fn is_news(&self, record: &Record) -> bool {
        self.base
            .as_ref()
            .is_none_or(|base| base.lineage != record.lineage || record.revision > base.revision)
    }

    /// Whether the store has less than it had: another life of the scope, or an older record.
    pub(super) fn is_lost_in(&self, record: &Record) -> bool {
        self.base
            .as_ref()
            .is_some_and(|base| base.lineage != record.lineage || record.revision < base.revision)
    }

    /// What was said here about the pace, and the store has not, counts no more.
    pub(super) fn unsay(&mut self) {
        (self.local.rate, self.local.bad_rate) = (self.from.rate, self.from.bad_rate);
        self.local.wire_cap = self.from.wire_cap;
    }

    /// What is here should go to the store at once.
    pub(super) fn hurry(&mut self) {
        if self.dirty.is_some() {
            self.dirty = Some(Timestamp::ZERO);
        }
    }

    /// Whether there is something to look after.
    pub(super) fn is_active(&self, me: u64) -> bool {
        !self.is_local() && (self.dirty.is_some() || self.holds(me) || self.local.shut || self.lead.is_some())
    }

    /// Whether it has places on the wire, in use or ahead.
    pub(super) fn holds(&self, me: u64) -> bool {
        self.own > 0 || self.base.as_ref().is_some_and(|base| base.held(me) > 0)
    }

    /// Slots that a step has taken of a private scope, and that were not used.
    pub(super) fn give_slots_back(&mut self, before: &State, after: &State) {
        let back = |now: &mut u64, from: u64, to: u64| *now = now.saturating_sub(to.saturating_sub(from));
        for ((clock, from), to) in self.local.clocks.iter_mut().zip(before.clocks).zip(after.clocks) {
            back(clock, from, to);
        }
        back(&mut self.local.slot_ns, before.slot_ns, after.slot_ns);
    }

    /// How many processes use it, this one included.
    pub(super) fn users(&self, me: u64, now: Timestamp) -> u32 {
        self.base.as_ref().map_or(1, |base| base.users(me, now))
    }

    /// What waits here, for whoever looks from outside.
    pub(super) fn note_waiting(&mut self, waiting: u32, now: Timestamp) {
        if waiting != self.waiting {
            self.waiting = waiting;
            self.dirty = self.dirty.or(Some(now));
        }
    }

    fn cap(&self) -> u16 {
        self.local
            .cap
            .min(self.local.wire_cap)
            .min(u16::try_from(self.policy.concurrency_max).unwrap_or(u16::MAX))
    }

    /// How many more slots are worth taking with a start, and how many places are free for this member. A pace that gives it
    /// less than a few in that time is not worth it, and slots that it has not used were not needed.
    fn ahead(&mut self, after: &State, me: u64, now: Timestamp) -> (u32, u16) {
        let users = self.users(me, now);
        let free = u32::from(self.cap().saturating_sub(after.in_flight)) / users;
        let free = u16::try_from(free).unwrap_or(u16::MAX);
        if self.trust == 0 || after.shut || after.budget_left != u16::MAX {
            return (0, free);
        }
        let most = match Gate::from_state(after).slots_in(&self.policy, SLOTS_FOR) {
            Some(slots) if slots / users < FEW => return (0, free),
            Some(slots) => (slots / users).max(WORTH.min(slots / 2)),
            None => SLOTS_MAX,
        };
        (most.min(self.trust), free)
    }

    fn count(&mut self, before: &State, after: &State, now: Timestamp) {
        let started = after.in_flight.saturating_sub(before.in_flight);
        self.own = (self.own + started).saturating_sub(before.in_flight.saturating_sub(after.in_flight));
        if now.since(self.recent.0) >= SLOTS_FOR {
            self.recent = (now, 0);
        }
        self.recent.1 += u32::from(started);
        if started > 0 {
            self.started = now;
            if self.trust == 0 && self.recent.1 >= FEW && now >= self.sober_until {
                self.trust = 1;
            }
            if let Some(slots) = &mut self.slots {
                slots.used += u32::from(started);
            }
        }
    }
}

impl Slots {
    /// Whether all of them are used, where they are slots in time.
    fn are_used_up(&self, state: &State) -> bool {
        let mut clocks = state.clocks.iter().zip(self.clocks);
        self.slot_ns != 0 && state.slot_ns >= self.slot_ns
            || clocks.any(|(used, most)| most != 0 && *used >= most)
    }

    /// Whether they are slots in time at all, so that one that passes is gone.
    fn are_paced(&self) -> bool {
        self.slot_ns != 0 || self.clocks != [0; MAX_RATES]
    }

    fn hold(&self, state: &State) -> bool {
        let late = self.ways.iter().fold(self.way_ns, |longest, way| longest.max(*way)) / 2;
        let fits = |used: u64, most: u64| used <= most.saturating_add(late);
        let mut clocks = state.clocks.iter().zip(self.clocks);
        fits(state.slot_ns, self.slot_ns) && clocks.all(|(used, most)| fits(*used, most))
    }

    /// What a start took is so many slots, whenever in its slot it was.
    fn fit(&self, before: &State, state: &mut State) {
        let fit = |at: u64, to: u64, way: u64, most: u64| {
            let slots = (to.saturating_sub(at) + way / 2).checked_div(way);
            slots.map_or(to, |slots| at.saturating_add(slots.saturating_mul(way))).min(most.max(at))
        };
        if self.hold(state) {
            state.slot_ns = fit(before.slot_ns, state.slot_ns, self.way_ns, self.slot_ns);
            for i in 0..MAX_RATES {
                state.clocks[i] = fit(before.clocks[i], state.clocks[i], self.ways[i], self.clocks[i]);
            }
        }
    }
}

/// How long slots are taken ahead for: that much a pause that nobody hears of could cost.
const SLOTS_FOR: Duration = Duration::from_millis(200);
/// So many slots are worth a round trip, where the pace gives twice as many in that time.
const WORTH: u32 = 40;
/// Fewer slots than this in that time are asked for one by one, and so are fewer starts.
const FEW: u32 = 4;
/// After slots have passed unused, no more than were used are taken ahead for so long.
const SOBER: Duration = Duration::from_secs(1);
/// A slot that is further away is not queued for: after a pause it would be in the way.
const QUEUE: Duration = Duration::from_secs(10);
/// More at once would not be noticed.
const SLOTS_MAX: u32 = 256;
/// How long what nobody waits for may stay here.
const FLUSH: Duration = Duration::from_millis(200);
/// How long an answer from memory is believed without having asked.
const FRESH: Duration = Duration::from_secs(1);
/// How often the store is asked whether it still has a pause.
const REMIND: Duration = Duration::from_millis(500);
/// So long a pause that is about to be written is believed: longer than a write takes, and it is said again with each try.
const CLOSING: Duration = Duration::from_secs(3);
/// A member that shows no sign of life for so long has nothing on the wire.
pub(super) const MEMBER_FOR: Duration = Duration::from_secs(10);
/// F1: of the pace, all members together use so much without the store.
const SHARE: f64 = 0.9;
