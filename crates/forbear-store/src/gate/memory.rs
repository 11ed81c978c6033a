//! Gates in the memory of one process.

use std::{
    hash::{BuildHasher, Hasher},
    time::Duration,
};

use forbear_core::{
    gate::Gate,
    learn::Study,
    policy::BoundScope,
    scope::{MAX_SCOPES, ScopeKey},
    time::Timestamp,
};
use hashbrown::HashTable;
use parking_lot::{Mutex, MutexGuard};

use super::{Clock, GateStore, StoreError};

/// The default store: one process, nothing to reach, nothing to fail.
///
/// Scopes are spread over shards by their hash. Each shard is locked for the few instructions of a step, never over an
/// await. A shard drops its idle gates whenever it has doubled since it last did, so a million scopes that were seen once
/// take no room, and the mean cost of a drop is constant (C4).
#[derive(Debug)]
pub struct MemoryGates {
    shards: Box<[Padded<Mutex<Shard>>]>,
    hasher: foldhash::fast::RandomState,
    clock: Clock,
    max_per_shard: usize,
}

#[derive(Debug, Default)]
struct Shard {
    /// Boxed: a table has up to twice the places that it needs, and a pointer wastes less of them than a gate.
    gates: HashTable<Box<Entry>>,
    /// The size at which idle gates are looked for next.
    sweep_at: usize,
    /// The size when learners without work were looked for last, and when that is done next.
    rested: usize,
    rest_at: Timestamp,
}

#[derive(Debug)]
struct Entry {
    key: ScopeKey,
    gate: Gate,
}

/// On a cache line of its own, so that two shards never slow each other down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Padded<T>(T);

impl Default for MemoryGates {
    fn default() -> MemoryGates {
        MemoryGates::new(Clock::start())
    }
}

impl MemoryGates {
    /// An empty store on this clock.
    #[must_use]
    pub fn new(clock: Clock) -> MemoryGates {
        MemoryGates::with_room(clock, MOST)
    }

    /// An empty store for about so many scopes that are not idle, and never more.
    #[must_use]
    pub fn with_room(clock: Clock, scopes: usize) -> MemoryGates {
        let shards = (0..SHARDS).map(|_| Padded::default()).collect();
        MemoryGates {
            shards,
            hasher: foldhash::fast::RandomState::default(),
            clock,
            max_per_shard: (scopes / SHARDS).max(1),
        }
    }

    /// [`GateStore::update`] without a future: a step in memory never waits.
    ///
    /// # Errors
    /// [`StoreError::Full`].
    pub fn with<R>(
        &self,
        scopes: &[BoundScope],
        step: impl FnOnce(&mut [Gate], Timestamp) -> R,
    ) -> Result<R, StoreError> {
        if let [scope] = scopes {
            let hash = self.hash(&scope.key);
            let mut shard = self.lock(shard_of(hash));
            let now = self.clock.now(); // under the lock, so the moments of one gate never go back
            let gate = shard.gate(scope, hash, now, self)?;
            let answer = step(std::slice::from_mut(gate), now);
            let study = gate.study();
            shard.rest(now);
            if let Some(study) = study {
                drop(shard);
                self.look(&scope.key, hash, study);
            }
            return Ok(answer);
        }
        self.with_several(scopes, step)
    }

    fn with_several<R>(
        &self,
        scopes: &[BoundScope],
        step: impl FnOnce(&mut [Gate], Timestamp) -> R,
    ) -> Result<R, StoreError> {
        let scopes = &scopes[..scopes.len().min(MAX_SCOPES)];
        let mut hashes = [0u64; MAX_SCOPES];
        hashes.iter_mut().zip(scopes).for_each(|(hash, scope)| *hash = self.hash(&scope.key));
        let hashes = &hashes[..scopes.len()];
        // Every shard once, in order, so that two requests can never wait for each other.
        let mut order = [usize::MAX; MAX_SCOPES];
        order.iter_mut().zip(hashes).for_each(|(shard, hash)| *shard = shard_of(*hash));
        order.sort_unstable();
        let mut guards: [Option<MutexGuard<'_, Shard>>; MAX_SCOPES] = Default::default();
        for i in 0..scopes.len() {
            if i == 0 || order[i] != order[i - 1] {
                guards[i] = Some(self.lock(order[i]));
            }
        }
        let now = self.clock.now();
        let place = |hash: u64| order.iter().position(|shard| *shard == shard_of(hash)).unwrap_or(0);
        // The gates lie in different shards, so the step runs on copies that go back together.
        let mut gates: Vec<Gate> = Vec::with_capacity(scopes.len());
        for (scope, hash) in scopes.iter().zip(hashes) {
            if let Some(shard) = &mut guards[place(*hash)] {
                gates.push(shard.gate(scope, *hash, now, self)?.lift());
            }
        }
        let answer = step(&mut gates, now);
        let mut studies: [Option<Study>; MAX_SCOPES] = Default::default();
        studies.iter_mut().zip(&gates).for_each(|(study, gate)| *study = gate.study());
        for ((scope, hash), gate) in scopes.iter().zip(hashes).zip(gates) {
            if let Some(entry) = guards[place(*hash)].as_mut().and_then(|shard| shard.find(&scope.key, *hash))
            {
                entry.gate = gate;
            }
        }
        guards.iter_mut().flatten().for_each(|shard| shard.rest(now));
        drop(guards);
        for ((scope, hash), study) in scopes.iter().zip(hashes).zip(studies) {
            if let Some(study) = study {
                self.look(&scope.key, *hash, study);
            }
        }
        Ok(answer)
    }

    /// What a learner looks for takes a thousand times as long as a step, so nobody else waits for it.
    #[cold]
    fn look(&self, key: &ScopeKey, hash: u64, study: Study) {
        let findings = study.run();
        let mut shard = self.lock(shard_of(hash));
        if let Some(entry) = shard.find(key, hash) {
            entry.gate.studied(findings, self.clock.now());
        }
    }

    /// Scopes held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.0.lock().gates.len()).sum()
    }

    /// Whether no scope is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Every scope for which `wanted` gives something; shards are looked at one after the other.
    pub fn collect<T>(&self, mut wanted: impl FnMut(&ScopeKey, &Gate, Timestamp) -> Option<T>) -> Vec<T> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.0.lock();
            let now = self.clock.now();
            found.extend(shard.gates.iter().filter_map(|entry| wanted(&entry.key, &entry.gate, now)));
        }
        found
    }

    /// Drops every idle gate now.
    pub fn sweep(&self) {
        for shard in &self.shards {
            shard.0.lock().sweep(self.clock.now(), &self.hasher);
        }
    }

    /// The store's clock.
    #[must_use]
    pub fn clock(&self) -> Clock {
        self.clock
    }

    fn hash(&self, key: &ScopeKey) -> u64 {
        hash(&self.hasher, key)
    }

    /// Steps last less than a microsecond, so whoever meets a lock looks away for a while before it sleeps: handing the
    /// lock over by the kernel would cost a hundred steps.
    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        let mutex = &self.shards[shard].0;
        for pauses in [256u32, 1024, 4096] {
            if let Some(guard) = mutex.try_lock() {
                return guard;
            }
            (0..pauses).for_each(|_| std::hint::spin_loop());
        }
        mutex.lock()
    }
}

impl GateStore for MemoryGates {
    async fn update<R: Send>(
        &self,
        scopes: &[BoundScope],
        step: impl FnMut(&mut [Gate], Timestamp) -> R + Send,
    ) -> Result<R, StoreError> {
        self.with(scopes, step)
    }

    async fn restore(&self, scope: &BoundScope, gate: Gate) -> Result<(), StoreError> {
        self.with(std::slice::from_ref(scope), |here, now| {
            if here[0].pause_at(now).map(|(until, _)| until) <= gate.pause_at(now).map(|(until, _)| until) {
                here[0] = gate;
            }
        })
    }

    fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

impl Shard {
    fn gate(
        &mut self,
        scope: &BoundScope,
        hash: u64,
        now: Timestamp,
        store: &MemoryGates,
    ) -> Result<&mut Gate, StoreError> {
        if self.is_crowded(store) && self.gates.find(hash, |entry| entry.key == scope.key).is_none() {
            self.make_room(now, store)?;
        }
        let fresh = || Box::new(Entry { key: scope.key.clone(), gate: Gate::new(&scope.policy) });
        let entry = self.gates.entry(hash, |entry| entry.key == scope.key, |entry| store.hash(&entry.key));
        Ok(&mut entry.or_insert_with(fresh).into_mut().gate)
    }

    fn find(&mut self, key: &ScopeKey, hash: u64) -> Option<&mut Entry> {
        self.gates.find_mut(hash, |entry| entry.key == *key).map(|entry| &mut **entry)
    }

    /// Drops the learners of scopes that nobody uses, now and then while new scopes come.
    fn rest(&mut self, now: Timestamp) {
        if self.gates.len() > self.rested && now >= self.rest_at {
            self.gates.iter_mut().for_each(|entry| entry.gate.rest(now));
            (self.rested, self.rest_at) = (self.gates.len(), now.plus(REST));
        }
    }

    fn is_crowded(&self, store: &MemoryGates) -> bool {
        self.gates.len() >= self.sweep_at.max(SWEEP_FROM).min(store.max_per_shard)
    }

    fn make_room(&mut self, now: Timestamp, store: &MemoryGates) -> Result<(), StoreError> {
        self.sweep(now, &store.hasher);
        if self.gates.len() >= store.max_per_shard {
            return Err(StoreError::Full { scopes: self.gates.len() * SHARDS });
        }
        Ok(())
    }

    fn sweep(&mut self, now: Timestamp, hasher: &foldhash::fast::RandomState) {
        self.gates.retain(|entry| !entry.gate.is_idle(now));
        self.sweep_at = self.gates.len().saturating_mul(2);
        self.rested = self.rested.min(self.gates.len());
        if self.gates.capacity() > self.sweep_at.max(SWEEP_FROM).saturating_mul(4) {
            self.gates.shrink_to(self.sweep_at, |entry| hash(hasher, &entry.key));
        }
    }
}

/// Of the text alone: what `Hash` appends to it, to tell lists of texts apart, costs as much again as a short text.
fn hash(by: &foldhash::fast::RandomState, key: &ScopeKey) -> u64 {
    let mut hasher = by.build_hasher();
    hasher.write(key.as_str().as_bytes());
    hasher.finish()
}

/// The table inside a shard uses the low bits and the top seven; these lie between.
fn shard_of(hash: u64) -> usize {
    (hash >> 40) as usize % SHARDS
}

/// A power of two, many more than cores.
const SHARDS: usize = 128;
/// A shard with fewer gates is not worth looking through.
const SWEEP_FROM: usize = 512;
/// Learners without work are looked for at most so often.
const REST: Duration = Duration::from_secs(60);
/// At most so many scopes that are not idle: 4 GiB of them.
const MOST: usize = 16_000_000;

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use forbear_core::{
        attempt::{self, Ask, Decision, Finding},
        outcome::Outcome,
        policy::ScopePolicy,
    };

    use super::*;

    fn scope(name: &str) -> BoundScope {
        use forbear_core::scope::Role;

        let policy = ScopePolicy { pace_start: f32::INFINITY, ..ScopePolicy::default() };
        let (key, policy) = (ScopeKey::from_text(name), Arc::new(policy));
        BoundScope { key, by: None, role: Role::Run, policy }
    }

    fn acquire(gates: &MemoryGates, scopes: &[BoundScope]) -> Decision {
        gates.with(scopes, |g, now| attempt::acquire(g, scopes, Ask::default(), now)).unwrap()
    }

    #[test]
    fn s1_all_scopes_or_none() {
        let gates = MemoryGates::default();
        let (a, b) = (scope("a"), scope("b"));
        for _ in 0..4 {
            assert!(matches!(acquire(&gates, std::slice::from_ref(&b)), Decision::Admit(_)));
        }
        assert!(matches!(acquire(&gates, &[a.clone(), b.clone()]), Decision::Full { scope: 1 }));
        assert_eq!(
            gates.with(&[a], |g, _| g[0].in_flight()).unwrap(),
            0,
            "nothing was taken of the open one"
        );
        assert_eq!(gates.with(&[b], |g, _| g[0].in_flight()).unwrap(), 4);
    }

    #[test]
    fn s1_every_order_of_scopes_and_the_same_twice_ends() {
        let gates = Arc::new(MemoryGates::default());
        let names: Vec<BoundScope> = (0..5).map(|i| scope(&format!("s{i}"))).collect();
        let threads: Vec<_> = (0..4)
            .map(|t| {
                let (gates, mut mine) = (gates.clone(), names.clone());
                std::thread::spawn(move || {
                    for i in 0..500 {
                        mine.rotate_left((i + t) % 3);
                        if let Decision::Admit(grant) = acquire(&gates, &mine) {
                            let outcome = Outcome::Success;
                            let finding = Finding {
                                outcome: &outcome,
                                reading: None,
                                item: 0,
                                roll: 0.0,
                                exit: None,
                                narrowed: None,
                            };
                            let step = |g: &mut [Gate], now| {
                                let _ = attempt::report(g, &mine, &grant, &finding, now);
                            };
                            gates.with(&mine, step).unwrap();
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        for name in &names {
            assert_eq!(gates.with(std::slice::from_ref(name), |g, _| g[0].in_flight()).unwrap(), 0);
        }
    }

    #[test]
    fn c4_scopes_are_bounded_and_full_is_said() {
        let gates = MemoryGates { max_per_shard: 4, ..MemoryGates::default() };
        let uses = |name: usize| {
            let scope = scope(&name.to_string());
            gates.with(std::slice::from_ref(&scope), |g, now| g[0].take(&scope.policy, now, 1)).is_ok()
        };
        let outcomes: Vec<bool> = (0..2000).map(uses).collect();
        assert!(outcomes.iter().filter(|ok| **ok).count() <= 4 * SHARDS);
        assert!(outcomes.contains(&false));
        assert!(uses(0), "who is in stays in");
    }

    #[tokio::test]
    async fn p2_of_two_pauses_the_longer_wins() {
        let (gates, here) = (MemoryGates::default(), scope("a"));
        let pause = |s: u64| {
            let now = gates.clock.now();
            let mut gate = Gate::new(&here.policy);
            gate.pause(now.plus(Duration::from_secs(s)), now);
            gate
        };
        let left = || {
            gates
                .with(std::slice::from_ref(&here), |g, now| g[0].pause_at(now).unwrap().0.since(now))
                .unwrap()
        };
        gates.restore(&here, pause(100)).await.unwrap();
        gates.restore(&here, pause(10)).await.unwrap();
        assert!(left() > Duration::from_secs(90));
        gates.restore(&here, pause(1000)).await.unwrap();
        assert!(left() > Duration::from_secs(900));
    }
}
