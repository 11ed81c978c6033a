//! A store as it is seen from outside: whoever looks, or pauses a scope by hand, is no member and takes no share.

use std::time::Duration;

use forbear_core::{
    gate::{Cause, Gate},
    learn::Belief,
    policy::ScopePolicy,
    scope::ScopeKey,
    time::Timestamp,
};

use super::{
    keep::NOBODYS,
    link::{Link, LinkError, Write},
    record::Record,
    secret::KEY,
};
use crate::gate::StoreError;

/// One scope, as the store has it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SharedScope {
    /// Its name.
    pub key: ScopeKey,
    /// Its gate, with what is on the wire of all members; or why its record cannot be read.
    pub gate: Result<Gate, String>,
    /// When it was written last.
    pub written: Timestamp,
    /// The processes that use it, or did lately.
    pub members: Vec<SharedMember>,
    /// What its limit is believed to be, where anything was learned (L5).
    pub belief: Option<Belief>,
    /// The process that learns of it, by its number.
    pub owner: Option<u64>,
    /// The store's time when it was read.
    pub now: Timestamp,
}

/// A process that uses a scope.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct SharedMember {
    /// Its number, made when it started.
    pub id: u64,
    /// Places on the wire that it has, in use or taken ahead.
    pub places: u16,
    /// Items and callers that wait there, as it said last.
    pub waiting: u32,
    /// Without another sign of life they come back then.
    pub until: Timestamp,
}

/// The way to a store, from outside.
pub(crate) struct Desk<L: Link> {
    link: L,
    patience: Duration,
}

impl<L: Link> Desk<L> {
    pub(crate) fn new(link: L, patience: Duration) -> Desk<L> {
        Desk { link, patience }
    }

    /// Shows `each` scope that the store has, in no order; one that changes meanwhile may come twice.
    pub(crate) async fn scopes(&self, mut each: impl FnMut(SharedScope) + Send) -> Result<(), StoreError> {
        let (now, _) = self.swap(&[]).await?;
        let mut cursor: Option<String> = None;
        loop {
            let page = tokio::time::timeout(self.patience, self.link.page(cursor.as_deref())).await;
            let (values, next) = page.unwrap_or(Err(LinkError::Hung))?;
            for (key, value) in values.into_iter().filter(|(key, _)| key != KEY) {
                each(scope_of(&ScopeKey::from_text(&key), &value, now));
            }
            let Some(next) = next else { return Ok(()) };
            cursor = Some(next);
        }
    }

    /// One scope; none if the store has none of this name.
    pub(crate) async fn scope(&self, key: &ScopeKey) -> Result<Option<SharedScope>, StoreError> {
        let (now, value) = self.read(key).await?;
        Ok(value.map(|value| scope_of(key, &value, now)))
    }

    /// Runs `step` on the gate of a scope, and tells every member; a scope that is new gets an open gate first.
    pub(crate) async fn change(
        &self,
        key: &ScopeKey,
        mut step: impl FnMut(&mut Gate, Timestamp) + Send,
    ) -> Result<SharedScope, StoreError> {
        for _ in 0..TRIES {
            let (now, value) = self.read(key).await?;
            let mut record = match &value {
                Some(value) => Record::decode(value).map_err(StoreError::record)?,
                None => Record::of(&Gate::new(&ScopePolicy::default()), fastrand::u64(1..), now),
            };
            let mut gate = Gate::from_state(&record.state);
            step(&mut gate, now);
            record.state = gate.to_state();
            record.state.in_flight = 0;
            (record.revision, record.writer, record.written) =
                (record.revision.saturating_add(1), fastrand::u64(1..), now);
            let expect = value.map(|value| value[..super::record::TAG].to_vec()).unwrap_or_default();
            let value = record.encode();
            let shown = scope_of(key, &value, now);
            let write = Write { key: key.as_str().to_owned(), expect, value, keep: record.keep(now) };
            if self.swap(&[write]).await?.1.is_none() {
                return Ok(shown);
            }
        }
        Err(StoreError::Contended { attempts: TRIES })
    }

    async fn read(&self, key: &ScopeKey) -> Result<(Timestamp, Option<Vec<u8>>), StoreError> {
        let (expect, value) = (NOBODYS.to_vec(), Vec::new());
        let look = Write { key: key.as_str().to_owned(), expect, value, keep: Duration::ZERO };
        let (now, found) = self.swap(&[look]).await?;
        Ok((now, found.and_then(|mut all| all.pop()).flatten()))
    }

    async fn swap(&self, writes: &[Write]) -> Result<(Timestamp, Option<Vec<Option<Vec<u8>>>>), StoreError> {
        let answer = tokio::time::timeout(self.patience, self.link.swap(writes, true)).await;
        let reply = answer.unwrap_or(Err(LinkError::Hung))?;
        let now = match reply.time {
            Some(now) => now,
            None => {
                let clock = tokio::time::timeout(self.patience, self.link.swap(&[], false)).await;
                clock.unwrap_or(Err(LinkError::Hung))?.time.unwrap_or_default()
            }
        };
        Ok((now, reply.found))
    }
}

fn scope_of(key: &ScopeKey, value: &[u8], now: Timestamp) -> SharedScope {
    let (gate, written, members, belief, owner) = match Record::decode(value) {
        Ok(record) => {
            let owner = record.live_owner(now).map(|owner| owner.id);
            let belief = record.learned.map(|(kept, _)| kept.belief);
            let mut state = record.state;
            let live = record.members.iter().filter(|member| now < member.until);
            state.in_flight = live.fold(0, |sum, member| sum.saturating_add(member.places));
            (Ok(Gate::from_state(&state)), record.written, record.members, belief, owner)
        }
        Err(fault) => (Err(fault.to_string()), Timestamp::ZERO, Vec::new(), None, None),
    };
    let members = members.into_iter().filter(|member| now < member.until);
    let members = members
        .map(|m| SharedMember { id: m.id, places: m.places, waiting: m.waiting, until: m.until })
        .collect();
    SharedScope { key: key.clone(), gate, written, members, belief, owner, now }
}

impl SharedScope {
    /// The word for its state; `unreadable` where its record is.
    #[must_use]
    pub fn state(&self) -> &'static str {
        self.gate.as_ref().map_or("unreadable", |gate| gate.state(self.now))
    }

    /// Until when it is shut, and why.
    #[must_use]
    pub fn pause(&self) -> Option<(Timestamp, Cause)> {
        self.gate.as_ref().ok().and_then(|gate| gate.pause_at(self.now))
    }
}

/// More often nobody comes in between.
const TRIES: u32 = 100;
