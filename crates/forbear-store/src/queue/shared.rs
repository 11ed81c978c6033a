//! What the callers and the writer share: the inbox, the leases, and where each lane's reading stands.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Acquire},
    },
};

use forbear_core::time::Timestamp;
use hashbrown::HashMap;
use parking_lot::{Condvar, Mutex};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::{
    error::QueueError,
    exits::ExitRow,
    gates::GateRecord,
    input::InputIdentity,
    item::{Batch, Counters, Finish, Item, LaneId, Lease, Request, Seq, Until},
    ledger::{Place, Tally},
    pages::Pages,
};

pub(crate) struct Shared {
    /// The job, as it is named in errors.
    pub(crate) path: PathBuf,
    /// What leases carry: one of another number is of an older run.
    pub(crate) run: AtomicU64,
    pub(crate) pages: Pages,
    /// What the job is made from.
    pub(crate) input: Mutex<Option<InputIdentity>>,
    pub(crate) inner: Mutex<Inner>,
    /// Something for the writer.
    pub(crate) wake: Condvar,
    /// Room for an importer.
    pub(crate) room: Condvar,
    /// Memory that finished items may take until they are durable, in units of a KiB.
    pub(crate) capacity: Arc<Semaphore>,
    /// Items that became claimable, in total.
    pub(crate) arrivals: watch::Sender<u64>,
    /// Whether the writer has left and everything is closed.
    pub(crate) left: watch::Sender<bool>,
}

/// One thing for the writer to make durable.
pub(crate) enum Command {
    Import(Batch),
    /// The room that its record takes is given back when the command is dropped, which is after the commit.
    Finish {
        finish: Finish,
        _room: OwnedSemaphorePermit,
    },
    Park {
        seq: Seq,
        until: Until,
        reason: String,
        counters: Counters,
    },
    Progress {
        seq: Seq,
        counters: Counters,
    },
    Wake {
        now: Timestamp,
        limit: usize,
        reply: oneshot::Sender<Woken>,
    },
    Credentials {
        account: String,
        reply: oneshot::Sender<u64>,
    },
    /// Back to the table, for everybody.
    Release(Vec<Seq>),
    /// Nothing but a look whether this process is still a member.
    Look,
    Input(InputIdentity),
    /// What is new of each exit.
    Exits(Vec<ExitRow>),
    Flush(oneshot::Sender<()>),
}

/// Items that were parked and are pending now.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Woken {
    /// How many.
    pub items: u64,
    /// Their lanes, each once.
    pub lanes: Vec<LaneId>,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) inbox: Vec<Command>,
    pub(crate) imports: usize,
    /// Another process imports.
    pub(crate) imports_refused: bool,
    /// Groups that were published.
    pub(crate) commits: u64,
    /// Leases are shown to others by rows of their own.
    pub(crate) shows_leases: bool,
    /// Coalesced: only the last state of a gate is worth writing. `None` deletes.
    pub(crate) gates: HashMap<String, Option<GateRecord>>,
    /// The writer sleeps until it is woken; else it looks again by itself soon.
    pub(crate) idle: bool,
    /// Do not wait for a fuller group.
    pub(crate) urgent: bool,
    pub(crate) closing: bool,
    /// The writer has left; with the reason unless it was asked to.
    pub(crate) gone: bool,
    pub(crate) dead: Option<Arc<QueueError>>,
    pub(crate) held: HashMap<Seq, Held>,
    pub(crate) lanes: HashMap<LaneId, LaneState>,
    /// Claimed since the last commit: to be shown as leased if they still are at the next.
    pub(crate) fresh: Vec<Seq>,
    /// Released since: no longer to be shown.
    pub(crate) unlease: Vec<Seq>,
    /// As of the last commit.
    pub(crate) tally: Tally,
    /// Items out or ending.
    pub(crate) leased: u64,
    pub(crate) soonest: Option<Timestamp>,
    pub(crate) last_token: u64,
}

/// An item that must not be claimed from the table: it is out, or its end is not durable yet.
pub(crate) struct Held {
    pub(crate) lane: LaneId,
    pub(crate) rank: i64,
    pub(crate) token: u64,
    pub(crate) phase: Phase,
    /// Its row in `leased` is written.
    pub(crate) shown: bool,
    /// It has a row in `progress`.
    pub(crate) has_progress: bool,
}

#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Somebody works on it.
    Out,
    /// Its end or parking is on the way to disk.
    Ending,
    /// Given back, kept in memory for the next claim.
    Returned,
}

/// Kept only while the lane has held items: without any, the table says all.
#[derive(Default)]
pub(crate) struct LaneState {
    /// Rank and line up to which the lane was read.
    pub(crate) cursor: Option<(i64, Seq)>,
    /// Entries in `held`.
    pub(crate) held: u64,
    /// Of these, returned ones.
    pub(crate) returned: VecDeque<Item>,
}

impl Inner {
    /// Why nothing more can be done, if so.
    pub(crate) fn refuse(&self) -> Result<(), QueueError> {
        match &self.dead {
            Some(why) => Err(QueueError::Stopped(Arc::clone(why))),
            None if self.closing || self.gone => Err(QueueError::Closed),
            None => Ok(()),
        }
    }

    /// The held item of a lease that is still good.
    pub(crate) fn leased(&mut self, run: u64, lease: Lease) -> Result<&mut Held, QueueError> {
        match self.held.get_mut(&lease.seq) {
            Some(held) if lease.run == run && held.token == lease.token && held.phase == Phase::Out => {
                Ok(held)
            }
            _ => Err(QueueError::StaleLease),
        }
    }

    /// Marks `item` as out and gives it a new lease.
    pub(crate) fn lease(&mut self, run: u64, item: &mut Item, has_progress: bool) {
        self.last_token += 1;
        item.lease = Lease { seq: item.lease.seq, run, token: self.last_token };
        self.leased += 1;
        if self.shows_leases {
            self.fresh.push(item.lease.seq);
        }
        match self.held.get_mut(&item.lease.seq) {
            Some(held) => {
                held.token = self.last_token;
                held.phase = Phase::Out;
            }
            None => {
                let token = self.last_token;
                let (lane, rank) = (item.lane, rank(&item.request));
                self.held.insert(
                    item.lease.seq,
                    Held { lane, rank, token, phase: Phase::Out, shown: false, has_progress },
                );
                self.lanes.entry(lane).or_default().held += 1;
            }
        }
    }

    /// Takes an item back into memory.
    pub(crate) fn give_back(&mut self, item: Item) {
        let Some(held) = self.held.get_mut(&item.lease.seq) else { return };
        held.phase = Phase::Returned;
        self.leased -= 1;
        if std::mem::take(&mut held.shown) {
            self.unlease.push(item.lease.seq);
        }
        self.lanes.entry(held.lane).or_default().returned.push_back(item);
    }

    /// Forgets an item whose end, parking or release is durable.
    pub(crate) fn forget(&mut self, seq: Seq, token: u64) {
        let Some(held) = self.held.get(&seq) else { return };
        self.leased -= 1;
        // Claimed again since it was given back.
        if held.token != token {
            return;
        }
        let lane = held.lane;
        self.held.remove(&seq);
        if let Some(state) = self.lanes.get_mut(&lane) {
            state.held -= 1;
            if state.held == 0 {
                self.lanes.remove(&lane);
            }
        }
    }

    /// Marks items that were given back as on their way to the table.
    pub(crate) fn release_all(&mut self, seqs: impl Iterator<Item = Seq>) {
        for seq in seqs {
            if let Some(held) = self.held.get_mut(&seq) {
                held.phase = Phase::Ending;
                self.leased += 1;
            }
        }
    }

    /// All leases are lost. What was said of the items is void; batches of input stand under no lease of an item, but under
    /// the same membership.
    pub(crate) fn lose_leases(&mut self) {
        self.held.clear();
        self.lanes.clear();
        self.fresh.clear();
        self.unlease.clear();
        self.leased = 0;
        self.imports_refused = true;
        let Inner { inbox, imports, .. } = self;
        inbox.retain(|command| match command {
            Command::Finish { .. }
            | Command::Park { .. }
            | Command::Progress { .. }
            | Command::Release(_) => false,
            Command::Import(_) => {
                *imports -= 1;
                false
            }
            _ => true,
        });
    }

    /// When the first of the parked items is due, as the table has it: what is on its way there is not in it yet.
    pub(crate) fn set_soonest(&mut self, from_table: Option<Timestamp>) {
        let queued = self.inbox.iter().filter_map(|command| match command {
            Command::Park { until: Until::Time(at), .. } => Some(*at),
            _ => None,
        });
        self.soonest = queued.chain(from_table).min();
    }

    /// New items stand in `lane` from `first` on: its reading must not be past them.
    pub(crate) fn lower_cursor(&mut self, lane: LaneId, rank: i64, seq: Seq) {
        if let Some(state) = self.lanes.get_mut(&lane)
            && state.cursor.is_some_and(|cursor| cursor >= (rank, seq))
        {
            // One before it: the order is (rank, line), and lines are unique.
            state.cursor = Some((rank, Seq(seq.0.saturating_sub(1))));
        }
    }
}

impl Shared {
    /// The number of this run.
    pub(crate) fn run(&self) -> u64 {
        self.run.load(Acquire)
    }

    /// Blocks an importer until its batch may queue: one being written and one waiting are enough to keep both busy.
    pub(crate) fn import(&self, batch: Batch) -> Result<(), QueueError> {
        let mut inner = self.inner.lock();
        inner.refuse()?;
        while inner.imports >= 2 && !inner.imports_refused {
            self.room.wait(&mut inner);
            inner.refuse()?;
        }
        if inner.imports_refused {
            return Err(QueueError::NotTheImporter);
        }
        inner.imports += 1;
        inner.inbox.push(Command::Import(batch));
        self.wake.notify_one();
        Ok(())
    }

    /// Hands the writer a command. `urgent` ones do not wait for company.
    pub(crate) fn send(&self, command: Command, urgent: bool) -> Result<(), QueueError> {
        let mut inner = self.inner.lock();
        inner.refuse()?;
        self.push(&mut inner, command, urgent);
        Ok(())
    }

    /// Leases are to be shown, but that is worth no hurry: a writer that is busy or has an eye open will see them.
    pub(crate) fn leases_changed(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.idle) {
            self.wake.notify_one();
        }
    }

    pub(crate) fn push(&self, inner: &mut Inner, command: Command, urgent: bool) {
        // A writer that gathers a group has its own deadline: only the first command, or a hurry, need wake it.
        if inner.inbox.is_empty() || urgent {
            self.wake.notify_one();
        }
        inner.inbox.push(command);
        inner.urgent |= urgent;
    }
}

/// How a request ranks in its lane: higher priority first.
pub(crate) fn rank(request: &Request) -> i64 {
    -i64::from(request.priority)
}

/// How many were woken, and in which lanes.
pub(crate) fn woken(places: &[Place]) -> Woken {
    let mut lanes: Vec<LaneId> = places.iter().map(|p| p.lane).collect();
    lanes.sort_unstable();
    lanes.dedup();
    Woken { items: places.len() as u64, lanes }
}
