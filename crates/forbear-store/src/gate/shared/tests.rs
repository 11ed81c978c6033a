//! Members on a store that answers when the test lets it: every order of things that a network can make.

use std::{
    collections::HashMap,
    sync::{
        OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

use forbear_core::{
    gate::{Sent, Told},
    pace::RateList,
    policy::ScopePolicy,
    scope::{Combination, Role},
};

use super::*;

/// A store in this process. Calls and answers are as late as `delays` says, in turns of the scheduler.
#[derive(Default)]
struct World {
    values: Mutex<HashMap<String, Vec<u8>>>,
    listeners: Mutex<Vec<Arc<OnceLock<Listener>>>>,
    delays: Mutex<Delays>,
    /// The store's clock was set forward by so many microseconds.
    ahead_us: AtomicU64,
    /// Each scope lies in a place of its own, and none of them has the store's clock.
    in_places: bool,
}

type Listener = Box<dyn Fn(Push) + Send + Sync>;

#[derive(Default)]
enum Delays {
    #[default]
    None,
    /// Of chance, up to so many turns.
    Random(fastrand::Rng, u32),
    /// No answer until the test says so.
    Held(Arc<Notify>),
}

struct WorldLink {
    world: Arc<World>,
    me: usize,
}

impl World {
    fn member(self: &Arc<World>) -> Arc<SharedGates<WorldLink>> {
        let listener: Arc<OnceLock<Listener>> = Arc::default();
        let me = self.listeners.lock().len();
        self.listeners.lock().push(listener.clone());
        let link = WorldLink { world: self.clone(), me };
        let patience = Duration::from_secs(3600);
        let gates = SharedGates::new(link, SharedOptions { patience, ..SharedOptions::default() });
        assert!(listener.set(Box::new(gates.listener())).is_ok());
        Arc::new(gates)
    }

    /// Lets some turns pass, or waits for the test.
    async fn delay(&self) {
        let (turns, held) = match &mut *self.delays.lock() {
            Delays::None => (0, None),
            Delays::Random(rng, most) => (rng.u32(0..=*most), None),
            Delays::Held(until) => (0, Some(until.clone())),
        };
        if let Some(held) = held {
            held.notified().await;
        }
        for _ in 0..turns {
            tokio::task::yield_now().await;
        }
    }
}

impl WorldLink {
    fn tell(&self, writes: &[Write]) {
        let mut listeners = self.world.listeners.lock().clone();
        listeners.remove(self.me);
        for listener in listeners {
            let (world, writes) = (self.world.clone(), writes.to_vec());
            tokio::spawn(async move {
                world.delay().await;
                for write in writes.into_iter().filter(|write| !write.value.is_empty()) {
                    if let Some(listener) = listener.get() {
                        listener(Push::Value(write.key, write.value));
                    }
                }
            });
        }
    }
}

impl Link for WorldLink {
    async fn swap(&self, writes: &[Write], tell: bool) -> Result<Reply, LinkError> {
        self.world.delay().await;
        let ahead_us = self.world.ahead_us.load(SeqCst);
        let passed = Duration::from_micros(clock::of_the_machine()() + ahead_us);
        let time = Timestamp::from_secs(1_000_000).plus(passed);
        let found: Vec<Option<Vec<u8>>> = {
            let mut values = self.world.values.lock();
            let found: Vec<_> = writes.iter().map(|write| values.get(&write.key).cloned()).collect();
            let expected = |(write, value): (&Write, &Option<Vec<u8>>)| match value {
                Some(value) => !write.expect.is_empty() && value.starts_with(&write.expect),
                None => write.expect.is_empty(),
            };
            if writes.iter().zip(&found).all(expected) {
                for write in writes.iter().filter(|write| !write.value.is_empty()) {
                    values.insert(write.key.clone(), write.value.clone());
                }
                Vec::new()
            } else {
                found
            }
        };
        if tell && found.is_empty() {
            self.tell(writes);
        }
        self.world.delay().await;
        let time = (writes.is_empty() || !self.world.in_places).then_some(time);
        Ok(Reply { time, found: (!found.is_empty()).then_some(found) })
    }

    fn place(&self, key: &str) -> String {
        if self.world.in_places { key.to_owned() } else { String::new() }
    }

    async fn call(&self, write: &Write) -> Result<(), LinkError> {
        self.tell(std::slice::from_ref(write));
        Ok(())
    }

    async fn page(&self, _: Option<&str>) -> Result<Page, LinkError> {
        Ok((self.world.values.lock().clone().into_iter().collect(), None))
    }

    async fn reconnect(&self) -> Result<(), LinkError> {
        Ok(())
    }
}

fn scope(cap: u32) -> BoundScope {
    named("http://a:80", cap)
}

fn named(name: &str, cap: u32) -> BoundScope {
    // Places are what this is about, so nothing paces the starts.
    let policy = ScopePolicy {
        concurrency_start: cap,
        concurrency_max: cap,
        pace_start: f32::INFINITY,
        ..ScopePolicy::default()
    };
    BoundScope {
        key: ScopeKey::from_text(name),
        by: Some(Combination::ORIGIN),
        role: Role::Planned,
        policy: Arc::new(policy),
    }
}

async fn take(gates: &SharedGates<WorldLink>, scope: &BoundScope) -> Option<Sent> {
    let step = |gates: &mut [Gate], now| {
        let passes = matches!(gates[0].check(&scope.policy, now, 1), Check::Admit | Check::Probe);
        passes.then(|| gates[0].take(&scope.policy, now, 1))
    };
    gates.update(std::slice::from_ref(scope), step).await.unwrap()
}

async fn succeed(gates: &SharedGates<WorldLink>, scope: &BoundScope, sent: Sent) {
    let step = |gates: &mut [Gate], now| gates[0].succeeded(&scope.policy, sent, now);
    let _ = gates.update(std::slice::from_ref(scope), step).await.unwrap();
}

/// Two members of one store, and a scope that bears so many at once.
async fn pair(cap: u32) -> (Arc<World>, [Arc<SharedGates<WorldLink>>; 2], BoundScope) {
    let world = Arc::new(World::default());
    let members = [world.member(), world.member()];
    for member in &members {
        member.greet().await.unwrap();
    }
    (world, members, scope(cap))
}

async fn turns(count: u32) {
    for _ in 0..count {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn s2_members_agree_on_the_key_of_accounts_whatever_it_begins_with() {
    // What stands where a key should be is nobody's key: shorter or longer than one.
    for there in [None, Some(vec![b'?'; 32]), Some(vec![b'?'; 33]), Some(b"0123".to_vec())] {
        let world = Arc::new(World::default());
        *world.delays.lock() = Delays::Random(fastrand::Rng::with_seed(7), 4);
        let kept = there.as_ref().filter(|key| key.len() == 32).cloned();
        if let Some(there) = there {
            world.values.lock().insert(super::secret::KEY.to_owned(), there);
        }
        let members = [world.member(), world.member(), world.member()];
        let [one, two, three] = members.each_ref().map(|member| member.account_key());
        let (one, two, three) = tokio::join!(one, two, three);
        let key = one.unwrap();
        assert!(kept.is_none_or(|kept| kept == key), "a key that is there is kept");
        assert_eq!((two.unwrap(), three.unwrap()), (key, key));
    }
    // Nothing can be set where an empty value stands: said, not tried for ever.
    let world = Arc::new(World::default());
    world.values.lock().insert(super::secret::KEY.to_owned(), Vec::new());
    assert!(world.member().account_key().await.is_err());
}

/// A member gives a place back, and takes it again while that is under way: nobody else may have it meanwhile.
#[tokio::test]
async fn c2_a_place_that_is_being_given_back_is_not_used() {
    let (world, [one, other], a) = pair(2).await;
    // The other one uses the scope as well; the first has started often enough to be given places ahead.
    let first = take(&other, &a).await.unwrap();
    succeed(&other, &a, first).await;
    for _ in 0..6 {
        let sent = take(&one, &a).await.unwrap();
        succeed(&one, &a, sent).await;
    }
    let _kept = take(&other, &a).await.unwrap();
    let mine = take(&one, &a).await.unwrap();
    succeed(&one, &a, mine).await;
    // The store hears of it only when the test says so.
    let go = Arc::new(Notify::new());
    *world.delays.lock() = Delays::Held(go.clone());
    one.0.flush();
    turns(10).await;
    let again = tokio::spawn({
        let (one, a) = (one.clone(), a.clone());
        async move { take(&one, &a).await }
    });
    turns(10).await;
    *world.delays.lock() = Delays::None;
    go.notify_waiters();
    turns(20).await; // it has landed, and the other one has heard of it
    let theirs = take(&other, &a).await;
    let again = again.await.unwrap();
    assert!(!(again.is_some() && theirs.is_some()), "three on the wire, and two are allowed");
}

/// Members, tasks and delays of chance; each start is counted where it happens.
#[test]
fn c2_no_order_of_answers_and_calls_exceeds_the_cap() {
    let rounds = std::env::var("FORBEAR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(60);
    for seed in 0..rounds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let most = runtime.block_on(scramble(seed, &[scope(3)]));
        assert!(most <= 3, "{most} on the wire, and three are allowed: seed {seed}");
    }
}

/// The same where a request has scopes in three places, which are written one after the other: a start that one of them refuses is
/// given back to the others, so nobody waits for ever for a place that nobody has.
#[test]
fn s1_scopes_in_several_places_are_all_taken_or_none() {
    let rounds = std::env::var("FORBEAR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(40);
    let scopes = [named("account=k", 4), named("http://a:80", 3), named("group=g", 5)];
    for seed in 0..rounds {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let most = runtime.block_on(scramble(seed, &scopes));
        assert!(most <= 3, "{most} on the wire, and three are allowed: seed {seed}");
    }
}

/// Takes every one of the scopes, or none.
async fn take_all(gates: &SharedGates<WorldLink>, scopes: &[BoundScope]) -> Option<Vec<Sent>> {
    let step = |gates: &mut [Gate], now| {
        let mut all = gates.iter().zip(scopes);
        let pass = all.all(|(gate, scope)| gate.check(&scope.policy, now, 1) == Check::Admit);
        let take = |(gate, scope): (&mut Gate, &BoundScope)| gate.take(&scope.policy, now, 1);
        pass.then(|| gates.iter_mut().zip(scopes).map(take).collect())
    };
    gates.update(scopes, step).await.unwrap()
}

async fn succeed_all(gates: &SharedGates<WorldLink>, scopes: &[BoundScope], sent: &[Sent]) {
    let step = |gates: &mut [Gate], now| {
        for ((gate, scope), sent) in gates.iter_mut().zip(scopes).zip(sent) {
            let _ = gate.succeeded(&scope.policy, *sent, now);
        }
    };
    gates.update(scopes, step).await.unwrap();
}

async fn scramble(seed: u64, scopes: &[BoundScope]) -> usize {
    let world = Arc::new(World { in_places: scopes.len() > 1, ..World::default() });
    let stores = [world.member(), world.member(), world.member()];
    for store in &stores {
        store.greet().await.unwrap();
    }
    *world.delays.lock() = Delays::Random(fastrand::Rng::with_seed(seed), 12);
    let (on_wire, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for (i, store) in stores.iter().cycle().take(9).enumerate() {
        let (store, scopes, on_wire, most) = (store.clone(), scopes.to_vec(), on_wire.clone(), most.clone());
        let mut rng = fastrand::Rng::with_seed(seed * 100 + i as u64);
        tasks.push(tokio::spawn(async move {
            let mut done = 0;
            while done < 60 {
                turns(rng.u32(0..6)).await;
                let Some(sent) = take_all(&store, &scopes).await else { continue };
                most.fetch_max(on_wire.fetch_add(1, SeqCst) + 1, SeqCst);
                turns(rng.u32(0..10)).await;
                on_wire.fetch_sub(1, SeqCst);
                succeed_all(&store, &scopes, &sent).await;
                done += 1;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    most.load(SeqCst)
}

/// A member without a rate of its own meets one that has, on one scope: whoever learns has the rate as its ceiling.
#[tokio::test]
async fn l5_who_has_no_configured_rate_leaves_the_lead_to_one_that_has() {
    let (_world, [bare, rated], unpaced) = pair(4).await;
    let rates = "10/s".parse::<RateList>().unwrap().into();
    let policy = ScopePolicy { rates, ..ScopePolicy::clone(&unpaced.policy) };
    let paced = BoundScope { policy: Arc::new(policy), ..unpaced.clone() };
    let sent = take(&rated, &paced).await.unwrap();
    succeed(&rated, &paced, sent).await;
    let sent = take(&bare, &unpaced).await.unwrap();
    let refused = |gates: &mut [Gate], now| {
        let told = Told { wait: Some(Duration::from_millis(1)), ..Told::nothing() };
        let _ = gates[0].refused(&unpaced.policy, sent, told, now, 0.5);
    };
    bare.update(std::slice::from_ref(&unpaced), refused).await.unwrap();
    bare.0.flush();
    turns(20).await;
    assert_eq!((bare.learns_of(), rated.learns_of()), (0, 0), "the one that writes has no rate");
    for _ in 0..2000 {
        if rated.learns_of() > 0 {
            break;
        }
        if let Some(sent) = take(&rated, &paced).await {
            succeed(&rated, &paced, sent).await;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert_eq!((bare.learns_of(), rated.learns_of()), (0, 1));
}

async fn refuse(gates: &SharedGates<WorldLink>, scope: &BoundScope, sent: Sent, wait: Duration) {
    let step = |gates: &mut [Gate], now| {
        let told = Told { wait: Some(wait), ..Told::nothing() };
        let _ = gates[0].refused(&scope.policy, sent, told, now, 0.0);
    };
    gates.update(std::slice::from_ref(scope), step).await.unwrap();
}

fn left(gates: &SharedGates<WorldLink>, scope: &BoundScope) -> Duration {
    let table = gates.0.table.lock();
    let local = &table.entries[&scope.key].local;
    if local.shut { local.paused_until.since(gates.0.clock.now()) } else { Duration::ZERO }
}

/// What `one` would call out if it were told to wait for two minutes now, and could not write it.
fn notice(one: &SharedGates<WorldLink>, scope: &BoundScope) -> Vec<u8> {
    let table = one.0.table.lock();
    let mut record = table.entries[&scope.key].base.clone().unwrap().to_notice();
    let now = one.0.clock.now();
    record.writer = one.0.me;
    (record.written, record.state.shut, record.state.closed_at) = (now, true, now);
    record.state.paused_until = now.plus(Duration::from_secs(120));
    record.encode()
}

/// Members hear of a pause that never comes to be written, since what was counted up to it was counted anew.
#[tokio::test]
async fn p1_a_pause_that_is_never_written_is_soon_forgotten() {
    let (world, [one, other], a) = pair(8).await;
    let first = take(&one, &a).await.unwrap();
    let second = take(&other, &a).await.unwrap();
    other.0.hear(Push::Value(a.key.as_str().to_owned(), notice(&one, &a)));
    assert!(take(&other, &a).await.is_none(), "nothing starts meanwhile");
    // What is reported meanwhile does not write it.
    succeed(&other, &a, second).await;
    other.0.flush();
    turns(20).await;
    let record = Record::decode(&world.values.lock()[a.key.as_str()]).unwrap();
    assert!(!record.state.shut, "it is nobody's to write but its own member's");
    succeed(&one, &a, first).await;
    for _ in 0..100 {
        if take(&other, &a).await.is_some() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("it is shut for ever");
}

/// A start is being written while its member, or another one, is told to wait: it is not sent.
#[tokio::test]
async fn p1_a_start_that_lands_after_a_pause_was_told_is_given_back() {
    for by_itself in [true, false] {
        let (world, [one, other], a) = pair(8).await;
        let sent = take(&one, &a).await.unwrap();
        let go = Arc::new(Notify::new());
        *world.delays.lock() = Delays::Held(go.clone());
        let start = tokio::spawn({
            let (one, a) = (one.clone(), a.clone());
            async move { take(&one, &a).await }
        });
        turns(10).await;
        let report = by_itself.then(|| {
            let (one, a) = (one.clone(), a.clone());
            tokio::spawn(async move { refuse(&one, &a, sent, Duration::from_secs(60)).await })
        });
        if !by_itself {
            let mut told = Record::decode(&notice(&one, &a)).unwrap();
            told.writer = other.0.me;
            one.0.hear(Push::Value(a.key.as_str().to_owned(), told.encode()));
        }
        turns(10).await;
        *world.delays.lock() = Delays::None;
        go.notify_waiters();
        assert!(start.await.unwrap().is_none(), "sent into a pause that was known");
        if let Some(report) = report {
            report.await.unwrap();
            assert_eq!(one.0.table.lock().entries[&a.key].own, 0, "its place is given back");
        }
    }
}

/// The answer to the write of a pause is what tells that the store's clock was set.
#[tokio::test]
async fn t1_a_pause_that_meets_the_step_itself_is_written_again() {
    let world = Arc::new(World::default());
    let (one, a) = (world.member(), scope(8));
    let policy = ScopePolicy { learn: false, ..ScopePolicy::clone(&a.policy) };
    let a = BoundScope { policy: Arc::new(policy), ..a };
    one.greet().await.unwrap();
    let sent = take(&one, &a).await.unwrap();
    world.ahead_us.store(300_000_000, SeqCst);
    refuse(&one, &a, sent, Duration::from_secs(600)).await;
    one.0.flush();
    turns(40).await;
    let late = world.member();
    late.greet().await.unwrap();
    assert!(take(&late, &a).await.is_none());
    let least = Duration::from_secs(500);
    assert!(left(&one, &a) > least && left(&late, &a) > least, "{:?}, {:?}", left(&one, &a), left(&late, &a));
}
