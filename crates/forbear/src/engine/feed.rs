//! Feeds a run: lanes of the job into the frontier, parked items when their time has come, gates as they were kept.

use std::{collections::HashMap, sync::Arc};

use forbear_core::policy::BoundScope;
use forbear_store::{
    gate::{GateRecord, GateStore},
    queue::{Job, LaneId, QueueError},
};

use super::{evidence::restore_evidence, route::LaneParts, shared::Shared, worker::wall_now};

/// Opens lanes that have something to do, as many as the window holds.
pub(super) struct Feeder<G> {
    shared: Arc<Shared<G>>,
    /// Gates as the last run left them, until their scope is met.
    kept: HashMap<String, Vec<u8>>,
    after: Option<LaneId>,
    rescan: bool,
}

impl<G: GateStore> Feeder<G> {
    pub(super) fn new(shared: Arc<Shared<G>>, kept: HashMap<String, Vec<u8>>) -> Feeder<G> {
        Feeder { shared, kept, after: None, rescan: true }
    }

    pub(super) fn arrived(&mut self) {
        self.rescan = true;
        self.after = None;
    }

    pub(super) async fn feed(&mut self) -> Result<(), QueueError> {
        let shared = self.shared.clone();
        let wall = wall_now();
        while shared.job.next_due().is_some_and(|due| due <= wall) {
            let woken = shared.job.wake_due(wall, WAKE).await?;
            self.open_all(woken.lanes).await?;
            if woken.items < WAKE as u64 {
                break;
            }
        }
        let due = shared.front.lock().take_due(shared.gates.now(), LANES_PAGE);
        self.open_all(due).await?;
        while self.rescan {
            if !self.has_room() {
                return Ok(());
            }
            let lanes = shared.job.ready_lanes(self.after, LANES_PAGE).await?;
            self.rescan = lanes.len() == LANES_PAGE;
            self.after = lanes.last().map(|lane| lane.id);
            for lane in lanes {
                self.open(lane.id, &lane.key).await;
            }
            if !self.rescan {
                self.after = None;
            }
            shared.idle.notify_one();
        }
        Ok(())
    }

    /// Opens lanes that are known by their numbers, where there is room; without it the next look at all finds them.
    async fn open_all(&mut self, lanes: Vec<LaneId>) -> Result<(), QueueError> {
        for id in lanes {
            if !self.has_room() {
                self.arrived();
                return Ok(());
            }
            if let Some(lane) = self.shared.job.lane(id).await? {
                self.open(lane.id, &lane.key).await;
            }
        }
        self.shared.idle.notify_one();
        Ok(())
    }

    async fn open(&mut self, lane: LaneId, key: &str) {
        let shared = &self.shared;
        {
            let mut front = shared.front.lock();
            if front.is_asleep(lane, shared.gates.now()) {
                return;
            }
            if front.is_open(lane) {
                front.open(lane, || shared.routes.route(LaneParts::parse(key)));
                return;
            }
        }
        let route = shared.routes.route(LaneParts::parse(key));
        restore(&mut self.kept, &*shared.gates, &route.scopes).await;
        restore_evidence(&mut self.kept, &route, shared.gates.now());
        shared.front.lock().open(lane, || route);
    }

    /// Whether another lane fits in; waiting lanes make room for ready ones.
    fn has_room(&mut self) -> bool {
        let now = self.shared.gates.now();
        let mut front = self.shared.front.lock();
        if front.frontier.lanes() < WINDOW {
            return true;
        }
        let Some((works, until)) = front.make_room(now) else { return false };
        drop(front);
        for work in works {
            let _ = self.shared.put_back(*work, until);
        }
        true
    }
}

/// Puts gates back as the last run left them (P8).
pub(super) async fn restore<G: GateStore>(
    kept: &mut HashMap<String, Vec<u8>>,
    gates: &G,
    scopes: &[BoundScope],
) {
    for scope in scopes {
        let Some(bytes) = kept.remove(scope.key.as_str()) else { continue };
        match GateRecord::decode(&bytes, &scope.policy, gates.now()) {
            Ok(gate) => {
                if let Err(error) = gates.restore(scope, gate).await {
                    tracing::warn!(%error, scope = scope.key.as_str(), "a pause could not be restored");
                }
            }
            Err(error) => tracing::warn!(%error, scope = scope.key.as_str(), "a kept gate is not used"),
        }
    }
}

pub(super) fn load_gates(job: &Job) -> Result<HashMap<String, Vec<u8>>, QueueError> {
    let mut kept = HashMap::new();
    let mut after = String::new();
    loop {
        let page = job.load_gates(&after, 1000)?;
        let last = page.len() < 1000;
        if let Some(gate) = page.last() {
            after.clone_from(&gate.key);
        }
        kept.extend(page.into_iter().map(|gate| (gate.key, gate.record)));
        if last {
            return Ok(kept);
        }
    }
}

/// Lanes at hand at once. With few items each they take some ten megabytes.
const WINDOW: usize = 4096;
/// Lanes that are asked for at once.
const LANES_PAGE: usize = 512;
/// Parked items that are woken at once.
const WAKE: usize = 10_000;
