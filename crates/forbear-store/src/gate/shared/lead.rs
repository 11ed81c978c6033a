//! One member learns of a scope for all (L5): the lease that it holds, what it reads, and what it says.
//!
//! What the store has is what all members together did, its own share included, so that is what the owner reads. What it says
//! goes into its copy of the gate, and from there to the store like every other change.

use std::{sync::Arc, time::Duration};

use forbear_core::{
    gate::{Heard, Marks, Owner, Reader, State},
    learn::{Kept, Study},
    scope::ScopeKey,
    time::Timestamp,
};

use super::{
    Inner,
    entry::Entry,
    link::Link,
    record::{Lease, Record},
};

/// The scope's learner, and the lease that it is held by.
#[derive(Debug)]
pub(super) struct Lead {
    owner: Owner,
    fence: u32,
    /// When what was learned was put into the record last.
    kept_at: Timestamp,
    /// Others wait for what is about to be written.
    speaks: bool,
}

impl Entry {
    /// Who learns of the scope, for a gate that is made of it now.
    pub(super) fn reader(&self, now: Timestamp, alone: bool) -> Reader {
        match &self.base {
            _ if self.is_local() => Reader::Nobody,
            _ if alone => Reader::Unreachable,
            Some(base) if base.live_owner(now).is_some() => Reader::Owner,
            _ => Reader::Nobody,
        }
    }

    /// Whether others wait for what this member is about to write as the owner.
    pub(super) fn speaks(&self) -> bool {
        self.lead.as_ref().is_some_and(|lead| lead.speaks)
    }

    /// The lease as the next record has it, and what was learned: renewed by its holder, taken where nobody has it.
    pub(super) fn lease(
        &mut self,
        me: u64,
        now: Timestamp,
        state: &mut State,
    ) -> (Option<Lease>, Option<(Kept, Marks)>) {
        if self.lead.is_some() && self.leaves_the_lead(me, now) {
            return self.hand_over(me, now);
        }
        let Some(base) = &self.base else { return (None, None) };
        let (mut owner, mut learned) = (base.owner, base.learned);
        let until = now.plus(LEASE);
        if let Some(lead) = &mut self.lead {
            if !lead.owner.is_free() {
                owner = Some(Lease { id: me, fence: lead.fence, until });
            }
            if now >= lead.kept_at.plus(KEEP) || lead.speaks {
                learned = lead.owner.kept(now).or(learned);
                lead.kept_at = now;
            }
            let unread = state.diary.started.wrapping_sub(lead.owner.read().started);
            // Events are kept until what was learned of them is.
            if let Some((_, read)) = &learned {
                state.diary.forget(unread.min(UNREAD), read.number);
            }
        } else if base.live_owner(now).is_none() {
            let read = base.learned.as_ref().map(|(_, read)| read);
            if Owner::is_wanted(&self.policy, state, read) && !self.leaves_the_lead(me, now) {
                let fence = owner.map_or(0, |owner| owner.fence).wrapping_add(1);
                owner = Some(Lease { id: me, fence, until });
            }
        }
        (owner, learned)
    }

    /// Whether a member that knows no rate of the scope leaves it to one that was told one: what is learned has that as its
    /// ceiling.
    fn leaves_the_lead(&self, me: u64, now: Timestamp) -> bool {
        let rated = |base: &Record| {
            let mut others = base.members.iter().filter(|member| member.id != me && now < member.until);
            others.any(|member| member.rated)
        };
        self.policy.rates.is_empty() && self.base.as_ref().is_some_and(rated)
    }

    /// This member learns of the scope no more, and another may at once: the lease and what was learned, for the record.
    pub(super) fn hand_over(&mut self, me: u64, now: Timestamp) -> (Option<Lease>, Option<(Kept, Marks)>) {
        let base = self.base.as_ref();
        let (owner, learned) = base.map_or((None, None), |base| (base.owner, base.learned));
        match self.lead.take() {
            Some(lead) => {
                let owner = Lease { id: me, fence: lead.fence, until: now };
                (Some(owner), lead.owner.kept(now).or(learned))
            }
            None => (owner, learned),
        }
    }

    /// The store has taken `record`. If it says that this member learns from now on, it does.
    pub(super) fn take_lead(&mut self, record: &Record, now: Timestamp) {
        let mine = record.live_owner(now).filter(|owner| owner.id == record.writer);
        let Some(lease) = mine else {
            self.lead = None;
            return;
        };
        if let Some(lead) = &mut self.lead {
            lead.speaks = false;
            return;
        }
        // From the record before: what this one has beside it is the first news.
        let before = self.base.as_ref().unwrap_or(record);
        let kept = before.learned.as_ref().map(|(kept, read)| (kept, read));
        let owner = Owner::new(&self.policy, &before.state, kept, now);
        self.lead = Some(Box::new(Lead { owner, fence: lease.fence, kept_at: now, speaks: false }));
    }

    /// Somebody else may have taken the lease, or the record may be another's: then what this member has to say counts no more.
    pub(super) fn check_lead(&mut self, theirs: &Record) {
        let Some(lead) = &self.lead else { return };
        let other = theirs.owner.is_none_or(|owner| owner.fence != lead.fence);
        if other || self.is_lost_in(theirs) {
            self.lead = None;
            self.unsay();
        }
    }

    /// Whether the lease must be renewed. A scope that nobody uses any more lets it go.
    pub(super) fn lead_fades(&self, now: Timestamp) -> bool {
        let (Some(_), Some(base)) = (&self.lead, &self.base) else { return false };
        let used = Timestamp::from_secs(u64::from(self.local.last_used_s));
        let in_use = self.local.shut || now.since(used) < REST;
        in_use && base.owner.is_none_or(|owner| owner.until.since(now) < RENEW)
    }

    /// The owner reads what is new, and says what follows. Returns what is to be looked for, and whether others wait for it.
    fn learn_of(&mut self, now: Timestamp) -> (Option<Study>, Heard) {
        let (Some(lead), Some(base), None) = (&mut self.lead, &self.base, &self.flying) else {
            return (None, Heard::Quiet);
        };
        if base.live_owner(now).is_none_or(|owner| owner.fence != lead.fence) {
            self.lead = None; // too late: whoever writes next may have it
            return (None, Heard::Quiet);
        }
        let heard = lead.owner.observe(&base.state, now);
        let study = lead.owner.study();
        if study.is_none() {
            self.say(heard, now);
        }
        (study, heard)
    }

    /// Writes what the owner says into the copy of the gate.
    fn say(&mut self, heard: Heard, now: Timestamp) {
        let Some(lead) = &mut self.lead else { return };
        let mut after = self.local.clone();
        lead.owner.say(&mut after);
        let quiet = heard == Heard::Quiet;
        if after != self.local {
            lead.speaks |= !quiet;
            let moves = match (after.rate, self.local.rate) {
                (Some(new), Some(old)) => (new / old - 1.0).abs() > MOVES,
                (new, old) => new.is_some() != old.is_some(),
            };
            self.local = after;
            self.dirty = if quiet && !moves { self.dirty.or(Some(now)) } else { Some(Timestamp::ZERO) };
        }
    }
}

impl<L: Link> Inner<L> {
    /// Whether this member has to hear at once of what was written.
    pub(super) fn leads_by(&self, entry: &Entry) -> bool {
        entry.lead.is_some() && entry.has_unread_events()
    }

    /// Every scope that this member learns of.
    pub(super) fn learn_of_all(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut studies: Vec<(ScopeKey, Study, Heard)> = Vec::new();
        {
            let mut table = self.table.lock();
            let table = &mut *table;
            if table.alone.is_some() {
                return;
            }
            for key in &table.active {
                let Some(entry) = table.entries.get_mut(key).filter(|entry| entry.lead.is_some()) else {
                    continue;
                };
                let (study, heard) = entry.learn_of(now);
                studies.extend(study.map(|study| (key.clone(), study, heard)));
            }
        }
        for (key, study, heard) in studies {
            // It takes a thousand times as long as a step, so nobody waits for it.
            let findings = study.run();
            let mut table = self.table.lock();
            let Some(entry) = table.entries.get_mut(&key) else { continue };
            if let Some(lead) = &mut entry.lead {
                lead.owner.studied(findings);
                entry.say(heard, now);
            }
        }
    }
}

impl Entry {
    fn has_unread_events(&self) -> bool {
        let number = self.base.as_ref().map(|base| base.state.diary.number);
        self.lead.as_ref().is_some_and(|lead| number.is_some_and(|number| number != lead.owner.read().number))
    }
}

/// Without a sign of life the owner of a scope is believed to be gone after so long.
pub(super) const LEASE: Duration = Duration::from_secs(2);
/// It shows one when so much is left.
const RENEW: Duration = Duration::from_millis(1200);
/// How often what was learned goes into the record, beside the end of each incident.
const KEEP: Duration = Duration::from_secs(1);
/// A scope that was not used for so long needs nobody who learns of it.
const REST: Duration = Duration::from_secs(60);
/// A pace that is another one by such a share is not kept back.
const MOVES: f32 = 0.015;
/// No diary has more starts.
const UNREAD: u32 = 64;
