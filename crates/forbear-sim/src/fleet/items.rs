//! The items of a job: where each is, and what a crash leaves of that (J1, J2).

use std::{collections::VecDeque, time::Duration};

use forbear_core::{exit::ExitId, time::Timestamp};

/// An item by its number.
pub(super) type ItemId = u32;

/// Where an item is.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Place {
    Pending,
    InHand,
    Parked,
    PutOff,
    Done,
    Failed,
    Unknown,
}

impl Place {
    pub(super) fn is_end(self) -> bool {
        matches!(self, Place::Done | Place::Failed | Place::Unknown)
    }
}

#[derive(Clone, Debug)]
pub(super) struct Item {
    pub(super) site: u32,
    pub(super) place: Place,
    /// When it came there: on disk 50 ms later.
    since: Timestamp,
    pub(super) idempotent: bool,
    pub(super) failures: u32,
    pub(super) refusals: u32,
    pub(super) tries: u32,
    pub(super) blocked: u32,
    pub(super) keep: Option<ExitId>,
    pub(super) not: Option<ExitId>,
    /// Of a parked one: when it is asked for again.
    pub(super) due: Option<Timestamp>,
}

/// All items of a job.
#[derive(Debug)]
pub(super) struct Job {
    items: Vec<Item>,
    /// Pending ones, by site.
    queues: Vec<VecDeque<ItemId>>,
    counts: [u32; 7],
}

impl Job {
    /// One queue a site, each with so many pages; `once` says of each item whether it must not be sent twice.
    pub(super) fn new(pages: impl Iterator<Item = u32>, mut once: impl FnMut() -> bool) -> Job {
        let (mut items, mut queues) = (Vec::new(), Vec::new());
        for (site, pages) in (0..).zip(pages) {
            let first = items.len() as ItemId;
            queues.push((first..first + pages).collect());
            items.extend((0..pages).map(|_| Item {
                site,
                place: Place::Pending,
                since: Timestamp::ZERO,
                idempotent: !once(),
                failures: 0,
                refusals: 0,
                tries: 0,
                blocked: 0,
                keep: None,
                not: None,
                due: None,
            }));
        }
        let mut counts = [0; 7];
        counts[Place::Pending as usize] = items.len() as u32;
        Job { items, queues, counts }
    }

    pub(super) fn len(&self) -> u32 {
        self.items.len() as u32
    }

    pub(super) fn item(&mut self, id: ItemId) -> &mut Item {
        &mut self.items[id as usize]
    }

    pub(super) fn count(&self, place: Place) -> u32 {
        self.counts[place as usize]
    }

    /// Nothing is left to be done in this run.
    pub(super) fn is_over(&self) -> bool {
        [Place::Pending, Place::InHand, Place::Parked].iter().all(|place| self.count(*place) == 0)
    }

    pub(super) fn put(&mut self, id: ItemId, place: Place, now: Timestamp) {
        let item = &mut self.items[id as usize];
        self.counts[item.place as usize] -= 1;
        self.counts[place as usize] += 1;
        (item.place, item.since) = (place, now);
        if place == Place::Pending {
            self.queues[item.site as usize].push_back(id);
        }
    }

    /// The next page of a site's items, taken in hand.
    pub(super) fn claim(&mut self, site: u32, most: usize, now: Timestamp) -> Vec<ItemId> {
        let queue = &mut self.queues[site as usize];
        let page: Vec<ItemId> = queue.drain(..most.min(queue.len())).collect();
        page.iter().for_each(|id| self.put(*id, Place::InHand, now));
        page
    }

    /// The process is gone: what was in hand is pending, and what had not reached the disk is as it was before (J1). Another
    /// run begins, so what was put off until then is asked for again.
    pub(super) fn crash(&mut self, now: Timestamp) {
        for id in 0..self.len() {
            let item = &mut self.items[id as usize];
            let fresh = now.since(item.since) < ON_DISK;
            let again = match item.place {
                Place::InHand | Place::PutOff => true,
                Place::Parked | Place::Done | Place::Failed | Place::Unknown => fresh,
                Place::Pending => false,
            };
            (item.refusals, item.tries, item.blocked, item.keep, item.not) = (0, 0, 0, None, None);
            if again {
                self.put(id, Place::Pending, now);
            }
        }
    }
}

/// J1, P8: what happened is on disk after this.
pub(super) const ON_DISK: Duration = Duration::from_millis(50);
