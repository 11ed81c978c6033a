//! All exits as one origin sees them.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    sync::Arc,
};

use super::{ExitId, Health, pool::Exit};
use crate::time::Timestamp;

/// One origin. Each exit that has not turned us away stands in exactly one of the three lines.
#[derive(Debug)]
pub(super) struct Site {
    pub(super) origin: Arc<str>,
    /// May be asked, in turn.
    pub(super) ready: VecDeque<ExitId>,
    /// May be asked from then on.
    pub(super) waiting: BTreeSet<(Timestamp, ExitId)>,
    /// Holds as many requests as it may.
    pub(super) full: Vec<ExitId>,
    pub(super) pairs: HashMap<ExitId, Pair>,
    /// Requests that hold an exit here.
    pub(super) in_flight: usize,
    /// The exits of those that try one out: it has never served, or has failed since.
    pub(super) trying: Vec<ExitId>,
    /// How many pairs are set aside for failing too often.
    pub(super) aside: usize,
    /// Different exits that found no way to the origin, since the last that did; as many as matter.
    pub(super) no_way: Vec<ExitId>,
    /// The last refusal that was put down to an exit alone, and until when that rests.
    pub(super) refused: Option<((ExitId, u64), Timestamp)>,
    /// Which exit an account keeps to.
    pub(super) accounts: HashMap<u64, ExitId>,
    /// Choices so far, for the trickle.
    pub(super) turns: u32,
    pub(super) used_at: Timestamp,
}

/// One exit at one origin.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) session: u64,
    pub(super) health: Health,
    pub(super) in_flight: u32,
    /// Failures of this pair in a row.
    pub(super) fails: u32,
    pub(super) failed_at: Timestamp,
    /// When the exit broke off here last, if it has not served here since.
    pub(super) broke_at: Option<Timestamp>,
    pub(super) aside: bool,
}

impl Site {
    pub(super) fn new(origin: &str, exits: impl Iterator<Item = ExitId>, now: Timestamp) -> Site {
        Site {
            origin: origin.into(),
            ready: exits.collect(),
            waiting: BTreeSet::new(),
            full: Vec::new(),
            pairs: HashMap::new(),
            in_flight: 0,
            trying: Vec::new(),
            aside: 0,
            no_way: Vec::new(),
            refused: None,
            accounts: HashMap::new(),
            turns: 0,
            used_at: now,
        }
    }

    /// Exits whose time has come may be asked again.
    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some((until, exit)) = self.waiting.first().copied() {
            if until > now {
                return;
            }
            self.waiting.pop_first();
            self.ready.push_back(exit);
        }
    }

    /// Takes the exit out of the line of those that may be asked; false where it does not stand there.
    pub(super) fn take(&mut self, exit: ExitId) -> bool {
        // It was asked last, so it stands at the back, or was just looked at, so at the front.
        let place = match self.ready.back() {
            Some(last) if *last == exit => Some(self.ready.len() - 1),
            _ => self.ready.iter().position(|other| *other == exit),
        };
        place.is_some_and(|place| self.ready.remove(place).is_some())
    }

    /// Nobody asks the exit before `until`.
    pub(super) fn put_off(&mut self, exit: ExitId, until: Timestamp) {
        if self.take(exit) {
            self.waiting.insert((until, exit));
            return;
        }
        let sooner = self.waiting.iter().find(|(at, other)| *other == exit && *at < until).copied();
        if let Some(entry) = sooner {
            self.waiting.remove(&entry);
            self.waiting.insert((until, exit));
        }
    }

    /// The exit may be asked at once, whatever it was told to wait for.
    pub(super) fn recall(&mut self, exit: ExitId) {
        let found = self.waiting.iter().find(|(_, other)| *other == exit).copied();
        if let Some(entry) = found {
            self.waiting.remove(&entry);
            self.ready.push_back(exit);
        }
    }

    /// Whether this one may be asked now.
    pub(super) fn may_take(&self, id: ExitId, exits: &[Exit], now: Timestamp) -> bool {
        let Some(exit) = exits.get(id.0 as usize) else { return false };
        let aside = self.pairs.get(&id).is_some_and(|pair| pair.aside);
        !exit.out && exit.fails == 0 && exit.until <= now && !aside && self.ready.contains(&id)
    }

    /// It has room again.
    pub(super) fn freed(&mut self, exit: ExitId) {
        if let Some(place) = self.full.iter().position(|other| *other == exit) {
            self.full.swap_remove(place);
            self.ready.push_front(exit);
        }
    }

    /// Exits of this origin that are not out.
    pub(super) fn exits(&self) -> usize {
        self.ready.len() + self.waiting.len() + self.full.len()
    }
}

impl Pair {
    pub(super) fn new(session: u64) -> Pair {
        Pair {
            session,
            health: Health::default(),
            in_flight: 0,
            fails: 0,
            failed_at: Timestamp::ZERO,
            broke_at: None,
            aside: false,
        }
    }
}

/// Scatters numbers that lie side by side (the finalizer of SplitMix64, Steele et al. 2014).
pub(super) fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}
