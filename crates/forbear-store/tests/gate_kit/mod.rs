//! One suite for every gate store: what a fleet of members on one store may rely on.
//!
//! A store is tested by a [`Fleet`] that says how a member is made, and by `gate_conformance!`.

#![allow(dead_code, reason = "each test program uses a part")]

pub(crate) mod redis;
pub(crate) mod several;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    task::Poll,
    time::Duration,
};

use forbear_core::{
    attempt::{self, Ask, Decision, Finding, Grant},
    gate::{Cause, Change, Check, Gate, Sent, Told},
    outcome::Outcome,
    pace::RateList,
    policy::{BoundScope, ScopePolicy},
    scope::{Combination, Role, ScopeKey},
    time::Timestamp,
};
use forbear_store::gate::{GateStore, StoreError};

/// One store, and the means to join it.
pub(crate) trait Fleet: Send + Sync + Sized + 'static {
    type Store: GateStore;

    fn start() -> impl Future<Output = Self> + Send;

    /// Another process, as far as the store can tell.
    fn member(&self) -> impl Future<Output = Arc<Self::Store>> + Send;

    /// A member that holds at most about so many scopes.
    fn small(&self, scopes: usize) -> impl Future<Output = Arc<Self::Store>> + Send;
}

macro_rules! suite {
    ($($name:ident)+) => {
        /// Makes a test of each part of the suite.
        #[macro_export]
        macro_rules! gate_conformance {
            ($fleet:ty) => {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        gate_kit::$name(<$fleet as gate_kit::Fleet>::start().await).await;
                    }
                )+
            };
        }
    };
}

suite! {
    s1_all_scopes_or_none
    s1_every_order_of_scopes_and_the_same_twice_ends
    p2_deadlines_only_extend
    p1_a_pause_holds_for_every_member
    p3_refusals_of_all_members_are_one_incident
    p8_of_a_kept_pause_and_the_stores_the_longer_wins
    b1_one_probe_for_the_whole_fleet
    b1_a_probe_that_falls_silent_makes_room_and_opens_nothing_late
    b1_a_sign_of_life_keeps_the_probe
    c1_one_rate_for_the_whole_fleet
    c2_one_cap_for_the_whole_fleet
    c2_a_dropped_question_takes_nothing
    c4_full_is_said
    t1_time_never_goes_back
}

pub(crate) fn scope_with(name: &str, policy: ScopePolicy) -> BoundScope {
    let (key, by) = (ScopeKey::from_text(name), Some(Combination::ORIGIN));
    BoundScope { key, by, role: Role::Planned, policy: Arc::new(policy) }
}

pub(crate) fn scope(name: &str) -> BoundScope {
    scope_with(name, ScopePolicy { jitter: 0.0, pace_start: f32::INFINITY, ..ScopePolicy::default() })
}

pub(crate) async fn acquire<S: GateStore>(store: &S, scopes: &[BoundScope]) -> Result<Decision, StoreError> {
    store.update(scopes, |gates, now| attempt::acquire(gates, scopes, Ask::default(), now)).await
}

pub(crate) async fn report<S: GateStore>(store: &S, scopes: &[BoundScope], grant: &Grant) -> attempt::News {
    let finding =
        Finding { outcome: &Outcome::Success, reading: None, item: 0, roll: 0.0, exit: None, narrowed: None };
    store.update(scopes, |gates, now| attempt::report(gates, scopes, grant, &finding, now)).await.unwrap()
}

/// Starts one request of one scope, whatever the pace.
pub(crate) async fn take<S: GateStore>(store: &S, scope: &BoundScope) -> (Check, Option<Sent>) {
    let step = |gates: &mut [Gate], now| {
        let check = gates[0].check(&scope.policy, now, 1);
        let passes = matches!(check, Check::Admit | Check::Probe);
        (check, passes.then(|| gates[0].take(&scope.policy, now, 1)))
    };
    store.update(std::slice::from_ref(scope), step).await.unwrap()
}

pub(crate) async fn succeed<S: GateStore>(store: &S, scope: &BoundScope, sent: Sent) -> Change {
    let step = |gates: &mut [Gate], now| gates[0].succeeded(&scope.policy, sent, now);
    store.update(std::slice::from_ref(scope), step).await.unwrap()
}

pub(crate) async fn refuse<S: GateStore>(
    store: &S,
    scope: &BoundScope,
    sent: Sent,
    wait: Duration,
) -> Change {
    let step = |gates: &mut [Gate], now| gates[0].refused(&scope.policy, sent, Told::wait(wait), now, 0.0);
    store.update(std::slice::from_ref(scope), step).await.unwrap()
}

/// Looks, and changes nothing.
pub(crate) async fn look<S: GateStore, R: Send>(
    store: &S,
    scope: &BoundScope,
    mut view: impl FnMut(&Gate, Timestamp) -> R + Send,
) -> R {
    store.update(std::slice::from_ref(scope), |gates, now| view(&gates[0], now)).await.unwrap()
}

pub(crate) async fn sleep(time: Duration) {
    tokio::time::sleep(time).await;
}

pub(crate) const MS: Duration = Duration::from_millis(1);

/// Waits until it holds: what one member did may take a moment to be seen by another.
pub(crate) async fn eventually<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    for _ in 0..1000 {
        if holds().await {
            return;
        }
        sleep(10 * MS).await;
    }
    panic!("never: {what}");
}

pub(crate) async fn members<F: Fleet>(fleet: &F, count: usize) -> Vec<Arc<F::Store>> {
    let mut all = Vec::new();
    for _ in 0..count {
        all.push(fleet.member().await);
    }
    all
}

pub(crate) async fn s1_all_scopes_or_none<F: Fleet>(fleet: F) {
    let (one, other) = (fleet.member().await, fleet.member().await);
    let (a, b) = (scope("http://a:80"), scope("http://b:80"));
    for _ in 0..4 {
        let decision = acquire(&*one, std::slice::from_ref(&b)).await.unwrap();
        assert!(matches!(decision, Decision::Admit(_)), "{decision:?}");
    }
    let both = [a.clone(), b.clone()];
    for store in [&one, &other] {
        eventually("four are seen on the wire", || async {
            look(&**store, &b, |gate, _| gate.in_flight()).await == 4
        })
        .await;
        assert!(matches!(acquire(&**store, &both).await.unwrap(), Decision::Full { scope: 1 }));
        assert_eq!(look(&**store, &a, |gate, _| gate.in_flight()).await, 0, "nothing of the open one");
        assert_eq!(look(&**store, &b, |gate, _| gate.in_flight()).await, 4);
    }
}

pub(crate) async fn s1_every_order_of_scopes_and_the_same_twice_ends<F: Fleet>(fleet: F) {
    let names: Vec<BoundScope> = (0..5).map(|i| scope(&format!("http://s{i}:80"))).collect();
    let stores = members(&fleet, 2).await;
    let served = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..4)
        .map(|t| {
            let (store, mut mine, served) = (stores[t % 2].clone(), names.clone(), served.clone());
            tokio::spawn(async move {
                for i in 0..100 {
                    mine.rotate_left((i + t) % 3);
                    if let Decision::Admit(grant) = acquire(&*store, &mine).await.unwrap() {
                        served.fetch_add(1, SeqCst);
                        let _ = report(&*store, &mine, &grant).await;
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert!(served.load(SeqCst) > 100, "{served:?} of 400");
    for (name, store) in names.iter().flat_map(|name| stores.iter().map(move |store| (name, store))) {
        eventually("all is given back", || async {
            look(&**store, name, |gate, _| gate.in_flight()).await == 0
        })
        .await;
    }
}

pub(crate) async fn p2_deadlines_only_extend<F: Fleet>(fleet: F) {
    let (one, other, a) = (fleet.member().await, fleet.member().await, scope("http://a:80"));
    let first = take(&*one, &a).await.1.unwrap();
    let second = take(&*other, &a).await.1.unwrap();
    let third = take(&*other, &a).await.1.unwrap();
    let _ = refuse(&*one, &a, first, Duration::from_secs(100)).await;
    let _ = refuse(&*other, &a, second, Duration::from_secs(3)).await;
    assert_eq!(succeed(&*other, &a, third).await, Change::None, "a late success opens nothing");
    for store in [&one, &other] {
        let left =
            look(&**store, &a, |gate, now| gate.pause_at(now).map(|(until, _)| until.since(now))).await;
        assert!(left.is_some_and(|left| left > Duration::from_secs(90)), "{left:?}");
    }
    let _ = refuse(&*other, &a, second, Duration::from_secs(1000)).await;
    eventually("a longer wait extends it for all", || async {
        let left = look(&*one, &a, |gate, now| gate.pause_at(now).map(|(until, _)| until.since(now))).await;
        left.is_some_and(|left| left > Duration::from_secs(900))
    })
    .await;
}

pub(crate) async fn p1_a_pause_holds_for_every_member<F: Fleet>(fleet: F) {
    let (stores, a) = (members(&fleet, 4).await, scope("http://a:80"));
    for store in &stores {
        let sent = take(&**store, &a).await.1.unwrap();
        let _ = succeed(&**store, &a, sent).await;
    }
    let sent = take(&*stores[0], &a).await.1.unwrap();
    let _ = refuse(&*stores[0], &a, sent, 400 * MS).await;
    let told = stores[0].now().plus(350 * MS);
    for store in &stores {
        eventually("everybody waits", || async { matches!(take(&**store, &a).await.0, Check::Wait { .. }) })
            .await;
    }
    assert!(stores[0].now() < told, "it was seen by all while it lasted");
    // From here to the end of it nothing starts, whoever asks.
    while stores[0].now() < told {
        for store in &stores {
            let (check, _) = take(&**store, &a).await;
            let now = stores[0].now();
            assert!(matches!(check, Check::Wait { cause: Cause::Told, .. }) || now >= told, "{check:?}");
        }
        sleep(5 * MS).await;
    }
    eventually("one probes then", || async { take(&*stores[3], &a).await.0 == Check::Probe }).await;
}

pub(crate) async fn p3_refusals_of_all_members_are_one_incident<F: Fleet>(fleet: F) {
    let (stores, a) = (members(&fleet, 4).await, scope("http://a:80"));
    let mut sent = Vec::new();
    for store in &stores {
        sent.push(take(&**store, &a).await.1.unwrap());
    }
    let mut tasks = Vec::new();
    for (store, sent) in stores.iter().zip(sent) {
        let (store, a) = (store.clone(), a.clone());
        tasks.push(tokio::spawn(async move { refuse(&*store, &a, sent, Duration::from_secs(60)).await }));
    }
    let mut incidents = 0;
    for task in tasks {
        incidents += usize::from(task.await.unwrap() == Change::Closed { incident: true });
    }
    assert_eq!(incidents, 1, "one of them began it, the others belong to it");
    for store in &stores {
        eventually("all know of one", || async { look(&**store, &a, |gate, _| gate.incidents()).await == 1 })
            .await;
        eventually("nothing is on the wire", || async {
            look(&**store, &a, |gate, _| gate.in_flight()).await == 0
        })
        .await;
    }
}

pub(crate) async fn p8_of_a_kept_pause_and_the_stores_the_longer_wins<F: Fleet>(fleet: F) {
    let (one, other, a) = (fleet.member().await, fleet.member().await, scope("http://a:80"));
    let pause = |s: u64| {
        let now = one.now();
        let mut gate = Gate::new(&a.policy);
        gate.pause(now.plus(Duration::from_secs(s)), now);
        gate
    };
    for (kept, least) in [(100, 90), (10, 90), (1000, 900)] {
        one.restore(&a, pause(kept)).await.unwrap();
        for store in [&one, &other] {
            eventually("the longer one holds", || async {
                let left =
                    look(&**store, &a, |gate, now| gate.pause_at(now).map(|(until, _)| until.since(now)))
                        .await;
                left.is_some_and(|left| left > Duration::from_secs(least))
            })
            .await;
        }
    }
}

/// A scope whose pause of 100 ms has just been told to all, and whose probe has a lease of 600 ms. Eight were on the wire, so
/// that there is room beside a probe that falls silent.
async fn paused<F: Fleet>(stores: &[Arc<F::Store>]) -> BoundScope {
    let (probe_lease, concurrency_start) = (600 * MS, 8);
    let pace_start = f32::INFINITY;
    let policy =
        ScopePolicy { jitter: 0.0, probe_lease, concurrency_start, pace_start, ..ScopePolicy::default() };
    let a = scope_with("http://a:80", policy);
    let mut sent = Vec::new();
    while sent.len() < 8 {
        sent.extend(take(&*stores[0], &a).await.1);
    }
    let _ = refuse(&*stores[0], &a, sent.remove(7), 100 * MS).await;
    for sent in sent {
        let _ = succeed(&*stores[0], &a, sent).await;
    }
    a
}

pub(crate) async fn b1_one_probe_for_the_whole_fleet<F: Fleet>(fleet: F) {
    let stores = members(&fleet, 4).await;
    let a = paused::<F>(&stores).await;
    let mut tasks = Vec::new();
    for store in stores.iter().chain(&stores) {
        let (store, a) = (store.clone(), a.clone());
        tasks.push(tokio::spawn(async move {
            let end = store.now().plus(400 * MS);
            while store.now() < end {
                let (check, sent) = take(&*store, &a).await;
                if let Some(sent) = sent {
                    assert_eq!(check, Check::Probe);
                    return Some((store, sent));
                }
                sleep(MS).await;
            }
            None
        }));
    }
    let mut probes = Vec::new();
    for task in tasks {
        probes.extend(task.await.unwrap());
    }
    assert_eq!(probes.len(), 1, "exactly one");
    let (store, sent) = probes.remove(0);
    assert_eq!(succeed(&*store, &a, sent).await, Change::Reopened);
    for store in &stores {
        eventually("the others go on", || async {
            let Some(sent) = take(&**store, &a).await.1 else { return false };
            assert!(!sent.fence.is_probe());
            let _ = succeed(&**store, &a, sent).await;
            true
        })
        .await;
    }
}

pub(crate) async fn b1_a_probe_that_falls_silent_makes_room_and_opens_nothing_late<F: Fleet>(fleet: F) {
    let stores = members(&fleet, 2).await;
    let a = paused::<F>(&stores).await;
    let mut silent = None;
    while silent.is_none() {
        silent = take(&*stores[0], &a).await.1;
        sleep(MS).await;
    }
    let (silent, since) = (silent.unwrap(), stores[1].now());
    let mut next = None;
    while next.is_none() {
        next = take(&*stores[1], &a).await.1;
        sleep(5 * MS).await;
    }
    let (next, waited) = (next.unwrap(), stores[1].now().since(since));
    assert!(next.fence.is_probe() && next.fence != silent.fence);
    assert!(waited > 300 * MS, "after the lease: {waited:?}");
    assert_eq!(succeed(&*stores[0], &a, silent).await, Change::None);
    assert!(look(&*stores[0], &a, |gate, _| gate.is_shut()).await, "a late answer opens nothing");
    assert_eq!(succeed(&*stores[1], &a, next).await, Change::Reopened, "nor does it take the lease");
}

pub(crate) async fn b1_a_sign_of_life_keeps_the_probe<F: Fleet>(fleet: F) {
    let stores = members(&fleet, 2).await;
    let a = paused::<F>(&stores).await;
    let mut probe = None;
    while probe.is_none() {
        probe = take(&*stores[0], &a).await.1;
        sleep(5 * MS).await;
    }
    let fence = probe.unwrap().fence;
    let end = stores[0].now().plus(1500 * MS);
    while stores[0].now() < end {
        let renew = |gates: &mut [Gate], now| gates[0].renew(&a.policy, fence, now);
        let held = stores[0].update(std::slice::from_ref(&a), renew).await.unwrap();
        let (check, _) = take(&*stores[1], &a).await;
        assert!(held, "nobody has taken it");
        assert!(matches!(check, Check::Wait { cause: Cause::Probing, .. }), "{check:?}");
        sleep(50 * MS).await;
    }
    assert_eq!(succeed(&*stores[0], &a, probe.unwrap()).await, Change::Reopened);
}

pub(crate) async fn c1_one_rate_for_the_whole_fleet<F: Fleet>(fleet: F) {
    let rates = "40/s".parse::<RateList>().unwrap().into();
    let policy = ScopePolicy { rates, concurrency_start: 64, ..ScopePolicy::default() };
    let a = scope_with("http://a:80", policy);
    let stores = members(&fleet, 4).await;
    let end = stores[0].now().plus(Duration::from_secs(3));
    let mut tasks = Vec::new();
    for store in stores {
        let a = a.clone();
        tasks.push(tokio::spawn(async move {
            let mut starts = Vec::new();
            while store.now() < end {
                let (check, sent) = take(&*store, &a).await;
                if let Some(sent) = sent {
                    starts.push(sent.at);
                    let _ = succeed(&*store, &a, sent).await;
                } else if let Check::Wait { until, .. } = check {
                    sleep(until.since(store.now()).max(MS)).await;
                }
            }
            starts
        }));
    }
    let mut starts = Vec::new();
    for task in tasks {
        starts.extend(task.await.unwrap());
    }
    starts.sort_unstable();
    for window in starts.windows(42) {
        let time = window[41].since(window[0]);
        assert!(time >= Duration::from_secs(1), "42 starts in {time:?}, and 40 are allowed in a second");
    }
    assert!(starts.len() >= 60, "only {} starts in three seconds", starts.len());
}

pub(crate) async fn c2_one_cap_for_the_whole_fleet<F: Fleet>(fleet: F) {
    const CAP: usize = 3;
    let policy = ScopePolicy {
        concurrency_start: CAP as u32,
        concurrency_max: CAP as u32,
        pace_start: f32::INFINITY,
        ..ScopePolicy::default()
    };
    let a = scope_with("http://a:80", policy);
    let stores = members(&fleet, 3).await;
    let (on_wire, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let mut tasks = Vec::new();
    for store in stores.iter().chain(&stores).chain(&stores) {
        let (store, a, on_wire, most) = (store.clone(), a.clone(), on_wire.clone(), most.clone());
        tasks.push(tokio::spawn(async move {
            let mut done = 0;
            while done < 10 {
                let Some(sent) = take(&*store, &a).await.1 else {
                    sleep(5 * MS).await;
                    continue;
                };
                most.fetch_max(on_wire.fetch_add(1, SeqCst) + 1, SeqCst);
                sleep(3 * MS).await;
                on_wire.fetch_sub(1, SeqCst);
                let _ = succeed(&*store, &a, sent).await;
                done += 1;
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(most.load(SeqCst), CAP, "all places were used, and no more");
}

pub(crate) async fn c2_a_dropped_question_takes_nothing<F: Fleet>(fleet: F) {
    let (one, other, a) = (fleet.member().await, fleet.member().await, scope("http://a:80"));
    for polls in 1..40u32 {
        let mut question = Box::pin(take(&*one, &a));
        let mut answer = None;
        for poll in 0..polls % 4 {
            if poll > 0 {
                tokio::task::yield_now().await;
            }
            let once = std::future::poll_fn(|cx| match question.as_mut().poll(cx) {
                Poll::Ready(answer) => Poll::Ready(Some(answer)),
                Poll::Pending => Poll::Ready(None),
            });
            answer = once.await;
            if answer.is_some() {
                break;
            }
        }
        drop(question);
        if let Some((_, Some(sent))) = answer {
            let _ = succeed(&*one, &a, sent).await;
        }
    }
    for store in [&one, &other] {
        eventually("nothing is on the wire", || async {
            look(&**store, &a, |gate, _| gate.in_flight()).await == 0
        })
        .await;
    }
    // A report is heard even if nobody waits for its answer.
    let mut sent = None;
    while sent.is_none() {
        sent = take(&*one, &a).await.1;
        sleep(MS).await;
    }
    let mut told = Box::pin(refuse(&*one, &a, sent.unwrap(), Duration::from_secs(60)));
    std::future::poll_fn(|cx| Poll::Ready(told.as_mut().poll(cx).is_ready())).await;
    drop(told);
    for store in [&one, &other] {
        eventually("the refusal counts", || async {
            matches!(take(&**store, &a).await.0, Check::Wait { cause: Cause::Told, .. })
        })
        .await;
    }
}

pub(crate) async fn c4_full_is_said<F: Fleet>(fleet: F) {
    let store = fleet.small(256).await;
    let (mut refused, mut first) = (0, None);
    for i in 0..1000 {
        let scope = scope(&format!("http://h{i}:80"));
        match acquire(&*store, std::slice::from_ref(&scope)).await {
            Ok(Decision::Admit(grant)) => first = first.or(Some((scope, grant))),
            Ok(other) => panic!("{other:?}"),
            Err(StoreError::Full { scopes }) => {
                assert!((1..=256).contains(&scopes), "{scopes}");
                refused += 1;
            }
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused >= 744, "{refused}");
    let (scope, grant) = first.unwrap();
    let _ = report(&*store, std::slice::from_ref(&scope), &grant).await;
    assert!(matches!(acquire(&*store, &[scope]).await, Ok(Decision::Admit(_))), "who is in stays in");
}

pub(crate) async fn t1_time_never_goes_back<F: Fleet>(fleet: F) {
    let (stores, a) = (members(&fleet, 3).await, scope("http://a:80"));
    let (mut last, mut of_gate) = (Timestamp::ZERO, Timestamp::ZERO);
    for i in 0..300 {
        let store = &stores[i % 3];
        if i % 3 == 0 {
            let now = store.now();
            assert!(now >= last, "{now:?} after {last:?}");
            last = now;
        }
        // Members read one clock, and each knows it as well as a round trip is short.
        let (_, sent) = take(&**store, &a).await;
        if let Some(sent) = sent {
            assert!(sent.at.plus(10 * MS) >= of_gate, "{:?} after {of_gate:?}", sent.at);
            of_gate = of_gate.max(sent.at);
            let _ = succeed(&**store, &a, sent).await;
        }
    }
    assert!(of_gate > Timestamp::ZERO);
}
