//! F1: a Redis that is killed, hangs, forgets or refuses, under a fleet that goes on.

mod gate_kit;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forbear_core::{
    gate::{Cause, Check},
    pace::RateList,
    policy::ScopePolicy,
    time::Timestamp,
};
use forbear_store::gate::{GateStore, RedisGates, SharedEvent, SharedOptions, StoreError};
use gate_kit::{MS, eventually, look, redis::TestRedis, refuse, scope, scope_with, sleep, succeed, take};
use parking_lot::Mutex;

struct Member {
    gates: Arc<RedisGates>,
    events: Arc<Mutex<Vec<SharedEvent>>>,
}

impl Member {
    async fn join(redis: &TestRedis) -> Member {
        Member::join_with(redis, Duration::from_millis(500)).await
    }

    async fn join_with(redis: &TestRedis, patience: Duration) -> Member {
        let events: Arc<Mutex<Vec<SharedEvent>>> = Arc::default();
        let heard = events.clone();
        let options = SharedOptions {
            patience,
            events: Arc::new(move |event| heard.lock().push(event)),
            ..SharedOptions::default()
        };
        Member { gates: Arc::new(RedisGates::connect(&redis.url(), options).await.unwrap()), events }
    }

    async fn is_alone(&self, alone: bool) {
        eventually("it notices", || async { self.gates.is_alone() == alone }).await;
    }

    fn losses(&self) -> usize {
        self.events.lock().iter().filter(|event| matches!(event, SharedEvent::Lost { .. })).count()
    }

    async fn pause_left(&self, scope: &forbear_core::policy::BoundScope) -> Duration {
        let view = |gate: &forbear_core::gate::Gate, now: Timestamp| {
            gate.pause_at(now).map(|(until, _)| until.since(now))
        };
        look(&*self.gates, scope, view).await.unwrap_or_default()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_member_that_starts_without_the_store_is_told() {
    let mut redis = TestRedis::start().await;
    redis.kill();
    let error = RedisGates::connect(&redis.url(), SharedOptions::default()).await.unwrap_err();
    assert!(matches!(error, StoreError::Unreachable(_)), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_pause_outlives_the_store_and_comes_back_to_it() {
    let mut redis = TestRedis::start().await;
    let (one, other) = (Member::join(&redis).await, Member::join(&redis).await);
    let a = scope("http://a:80");
    let sent = take(&*one.gates, &a).await.1.unwrap();
    let _ = refuse(&*one.gates, &a, sent, Duration::from_secs(100)).await;
    eventually("the other hears of it", || async { other.pause_left(&a).await > Duration::from_secs(90) })
        .await;
    redis.kill();
    for member in [&one, &other] {
        member.is_alone(true).await;
        let check = take(&*member.gates, &a).await.0;
        assert!(matches!(check, Check::Wait { cause: Cause::Told, .. }), "{check:?}");
        assert_eq!(member.losses(), 1, "it is said");
    }
    redis.restart().await; // and knows nothing
    one.is_alone(false).await;
    other.is_alone(false).await;
    let fresh = Member::join(&redis).await;
    eventually("who knows nothing learns of it", || async {
        fresh.pause_left(&a).await > Duration::from_secs(80)
    })
    .await;
    assert!(one.events.lock().iter().any(|event| matches!(event, SharedEvent::Back { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_what_was_refused_while_it_was_gone_counts_for_all() {
    let mut redis = TestRedis::start().await;
    let (one, other) = (Member::join(&redis).await, Member::join(&redis).await);
    let a = scope("http://a:80");
    let sent = take(&*one.gates, &a).await.1.unwrap();
    look(&*other.gates, &a, |_, _| ()).await;
    redis.kill();
    one.is_alone(true).await;
    let _ = refuse(&*one.gates, &a, sent, Duration::from_secs(100)).await;
    redis.restart().await;
    eventually("the other one hears of it", || async {
        other.pause_left(&a).await > Duration::from_secs(80)
    })
    .await;
    assert!(one.pause_left(&a).await > Duration::from_secs(80));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_store_that_hangs_costs_one_wait_and_no_more() {
    let redis = TestRedis::start().await;
    let member = Member::join(&redis).await;
    let a = scope("http://a:80");
    let sent = take(&*member.gates, &a).await.1.unwrap();
    let _ = succeed(&*member.gates, &a, sent).await;
    redis.stop();
    let begin = Instant::now();
    for i in 0..2000 {
        let a = scope(&format!("http://h{}:80", i % 50));
        let (check, sent) = take(&*member.gates, &a).await;
        if let Some(sent) = sent {
            let _ = succeed(&*member.gates, &a, sent).await;
        }
        let _ = check;
    }
    let took = begin.elapsed();
    assert!(member.gates.is_alone());
    assert!(took < Duration::from_secs(5), "4,000 steps took {took:?}, and one wait is half a second");
    redis.go_on();
    member.is_alone(false).await;
    assert_eq!(member.losses(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_alone_the_members_together_keep_below_the_rate() {
    let mut redis = TestRedis::start().await;
    let rates = "100/s burst 20".parse::<RateList>().unwrap().into();
    let policy = ScopePolicy { rates, concurrency_start: 64, learn: false, ..ScopePolicy::default() };
    let a = scope_with("http://a:80", policy);
    let mut members = Vec::new();
    for _ in 0..4 {
        members.push(Member::join(&redis).await);
    }
    let run = |until: Duration| {
        let tasks: Vec<_> = members
            .iter()
            .map(|member| {
                let (gates, a) = (member.gates.clone(), a.clone());
                tokio::spawn(async move {
                    let (begin, mut starts) = (Instant::now(), Vec::new());
                    while begin.elapsed() < until {
                        let (check, sent) = take(&*gates, &a).await;
                        if let Some(sent) = sent {
                            starts.push(Instant::now());
                            let _ = succeed(&*gates, &a, sent).await;
                        } else if let Check::Wait { until, .. } = check {
                            sleep(until.since(gates.now()).clamp(MS, 20 * MS)).await;
                        }
                    }
                    starts
                })
            })
            .collect();
        async move {
            let mut starts = Vec::new();
            for task in tasks {
                starts.extend(task.await.unwrap());
            }
            starts.sort_unstable();
            starts
        }
    };
    let with_store = run(Duration::from_secs(1)).await;
    assert!(with_store.len() >= 50, "{} starts in a second", with_store.len());
    redis.kill();
    for member in &members {
        member.is_alone(true).await;
    }
    let alone = run(Duration::from_secs(3)).await;
    for window in alone.windows(111) {
        let time = window[110].duration_since(window[0]);
        assert!(time >= Duration::from_secs(1), "111 starts in {time:?}, and the limit is 100/s");
    }
    assert!(alone.len() >= 150, "they go on: {} starts in three seconds", alone.len());
    redis.restart().await;
    for member in &members {
        member.is_alone(false).await;
    }
    let back = run(Duration::from_secs(2)).await;
    for window in back.windows(111) {
        let time = window[110].duration_since(window[0]);
        assert!(time >= Duration::from_secs(1), "no burst: 111 starts in {time:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_flushed_store_gets_the_pause_back() {
    let redis = TestRedis::start().await;
    let member = Member::join(&redis).await;
    let a = scope("http://a:80");
    let sent = take(&*member.gates, &a).await.1.unwrap();
    let _ = refuse(&*member.gates, &a, sent, Duration::from_secs(100)).await;
    redis.command(&["FLUSHALL"]).await;
    let fresh = Member::join(&redis).await;
    eventually("it is put back", || async { fresh.pause_left(&a).await > Duration::from_secs(80) }).await;
    assert_eq!(member.losses(), 0, "it was there all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_what_a_full_store_has_thrown_away_is_put_back() {
    let redis = TestRedis::start_with(&["--maxmemory", "4mb", "--maxmemory-policy", "allkeys-random"]).await;
    let member = Member::join(&redis).await;
    let said =
        |event: &SharedEvent| matches!(event, SharedEvent::Evicts { policy } if policy == "allkeys-random");
    assert!(member.events.lock().iter().any(said), "it is warned of");
    let a = scope("http://a:80");
    let sent = take(&*member.gates, &a).await.1.unwrap();
    let _ = refuse(&*member.gates, &a, sent, Duration::from_secs(100)).await;
    let key = "forbear:gate:{http://a:80}http://a:80";
    let (mut gone, big) = (false, "x".repeat(50_000));
    for n in 0..5000 {
        redis.command(&["SET", &format!("other{n}"), &big]).await;
        gone = redis.command(&["EXISTS", key]).await == redis::Value::Int(0);
        if gone {
            break;
        }
    }
    assert!(gone, "the key was thrown away");
    eventually("it is put back", || async { redis.command(&["EXISTS", key]).await == redis::Value::Int(1) })
        .await;
    assert!(member.pause_left(&a).await > Duration::from_secs(60));
    assert_eq!(member.losses(), 0, "the store was there all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_store_that_is_still_loading_is_not_back_yet() {
    let mut redis = TestRedis::start_with(&["--rdbcompression", "no"]).await;
    let member = Member::join(&redis).await;
    let a = scope("http://a:80");
    let sent = take(&*member.gates, &a).await.1.unwrap();
    let _ = refuse(&*member.gates, &a, sent, Duration::from_secs(100)).await;
    for n in 0..100 {
        redis.command(&["SET", &format!("other{n}"), &"x".repeat(500)]).await;
    }
    redis.command(&["SAVE"]).await;
    redis.kill();
    member.is_alone(true).await;
    // It reads a hundred keys, and takes 20 ms for each.
    redis
        .restart_with(&["--key-load-delay", "20000", "--loading-process-events-interval-bytes", "1024"])
        .await;
    let error = RedisGates::connect(&redis.url(), SharedOptions::default()).await.unwrap_err();
    assert!(format!("{error:?}").contains("LOADING"), "{error:?}");
    assert!(member.gates.is_alone());
    assert!(matches!(take(&*member.gates, &a).await.0, Check::Wait { cause: Cause::Told, .. }));
    member.is_alone(false).await;
    assert!(member.pause_left(&a).await > Duration::from_secs(60));
    assert_eq!(member.losses(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_password_that_was_changed_meanwhile_is_a_loss_until_it_is_right() {
    let redis = TestRedis::start().await;
    let member = Member::join(&redis).await;
    let a = scope("http://a:80");
    let sent = take(&*member.gates, &a).await.1.unwrap();
    let _ = refuse(&*member.gates, &a, sent, Duration::from_secs(100)).await;
    let of_operator = redis::Client::open(redis.url()).unwrap();
    let mut operator = of_operator.get_multiplexed_async_connection().await.unwrap();
    let set = |password: &str| {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET").arg("requirepass").arg(password);
        command
    };
    let () = set("hunter2").query_async(&mut operator).await.unwrap();
    let mut kill = redis::cmd("CLIENT");
    kill.arg("KILL").arg("TYPE").arg("pubsub");
    let _: i64 = kill.query_async(&mut operator).await.unwrap();
    member.is_alone(true).await;
    sleep(300 * MS).await;
    assert!(member.gates.is_alone(), "it cannot come back");
    assert!(matches!(take(&*member.gates, &a).await.0, Check::Wait { cause: Cause::Told, .. }));
    let () = set("").query_async(&mut operator).await.unwrap();
    member.is_alone(false).await;
    assert!(member.pause_left(&a).await > Duration::from_secs(60));
}

/// Whatever members do, in whatever order: no key is there for ever, and none goes away before its pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_no_order_of_steps_leaves_a_key_for_ever() {
    let rounds = std::env::var("FORBEAR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    let redis = TestRedis::start().await;
    for seed in 0..rounds {
        let mut rng = fastrand::Rng::with_seed(seed);
        let members = [Member::join(&redis).await, Member::join(&redis).await, Member::join(&redis).await];
        let mut on_wire = Vec::new();
        for _ in 0..200 {
            let gates = &members[rng.usize(..3)].gates;
            let a = scope(&format!("http://h{}:80", rng.u32(..5)));
            match rng.u32(..10) {
                0..6 => on_wire.extend(take(&**gates, &a).await.1.map(|sent| (gates.clone(), a, sent))),
                6 => {
                    let _ = redis.command(&["SCRIPT", "FLUSH"]).await;
                }
                7 if rng.u32(..5) == 0 => {
                    let _ = redis.command(&["FLUSHALL"]).await;
                }
                _ if on_wire.is_empty() => {}
                8 => {
                    let (gates, a, sent) = on_wire.swap_remove(rng.usize(..on_wire.len()));
                    let wait = Duration::from_millis(rng.u64(..1500));
                    let _ = refuse(&*gates, &a, sent, wait).await;
                }
                _ => {
                    let (gates, a, sent) = on_wire.swap_remove(rng.usize(..on_wire.len()));
                    let _ = succeed(&*gates, &a, sent).await;
                }
            }
        }
        members[0].gates.account_key().await.unwrap();
        sleep(300 * MS).await;
        let redis::Value::Array(keys) = redis.command(&["KEYS", "*"]).await else { panic!("no list") };
        assert!(!keys.is_empty());
        for key in keys {
            let redis::Value::BulkString(key) = key else { panic!("{key:?}") };
            let key = String::from_utf8(key).unwrap();
            let redis::Value::Int(ms) = redis.command(&["PTTL", &key]).await else { panic!("no number") };
            assert!(ms > 60_000, "seed {seed}: {key} lives for {ms} ms");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_script_that_was_forgotten_is_sent_again() {
    let redis = TestRedis::start().await;
    let member = Member::join(&redis).await;
    let a = scope("http://a:80");
    for _ in 0..3 {
        redis.command(&["SCRIPT", "FLUSH"]).await;
        let sent = take(&*member.gates, &a).await.1.unwrap();
        let _ = succeed(&*member.gates, &a, sent).await;
    }
    assert_eq!(member.losses(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_store_that_takes_no_writes_is_lost() {
    let redis = TestRedis::start().await;
    let member = Member::join(&redis).await;
    let a = scope("http://a:80");
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]).await;
    let (check, _) = take(&*member.gates, &a).await;
    assert!(matches!(check, Check::Admit | Check::Wait { .. }), "{check:?}");
    assert!(member.gates.is_alone());
    let events = member.events.lock().clone();
    let why = events.iter().find_map(|event| match event {
        SharedEvent::Lost { why } => Some(why.clone()),
        _ => None,
    });
    assert!(why.as_deref().is_some_and(|why| why.contains("READONLY")), "{why:?}");
    redis.command(&["REPLICAOF", "NO", "ONE"]).await;
    member.is_alone(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c4_every_key_goes_away_by_itself() {
    let redis = TestRedis::start().await;
    let member = Member::join(&redis).await;
    for (i, wait) in [0, 1, 100, 100_000].into_iter().enumerate() {
        let a = scope(&format!("http://h{i}:80"));
        let sent = take(&*member.gates, &a).await.1.unwrap();
        let _ = refuse(&*member.gates, &a, sent, Duration::from_secs(wait)).await;
        let key = format!("forbear:gate:{{http://h{i}:80}}http://h{i}:80");
        let redis::Value::Int(ms) = redis.command(&["PTTL", &key]).await else { panic!("no number") };
        let ms = u64::try_from(ms).expect("it has a time to live");
        assert!(ms / 1000 >= wait + 60 && ms / 1000 <= wait + 1200, "{ms} ms for a pause of {wait} s");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_a_dead_members_place_comes_back() {
    let redis = TestRedis::start().await;
    let policy = ScopePolicy {
        concurrency_start: 1,
        concurrency_max: 1,
        pace_start: f32::INFINITY,
        ..ScopePolicy::default()
    };
    let a = scope_with("http://a:80", policy);
    // A process of its own, as far as the store can tell, that is gone without a word.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let (url, of_dead) = (redis.url(), a.clone());
    let dead = runtime.spawn(async move {
        let gates = RedisGates::connect(&url, SharedOptions::default()).await.unwrap();
        take(&gates, &of_dead).await.1.unwrap()
    });
    dead.await.unwrap();
    runtime.shutdown_background();
    let member = Member::join(&redis).await;
    assert_eq!(take(&*member.gates, &a).await.0, Check::Full);
    let begin = Instant::now();
    eventually("it comes back", || async { take(&*member.gates, &a).await.1.is_some() }).await;
    assert!(begin.elapsed() > Duration::from_secs(5), "not while it might still live: {:?}", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_wrong_password_is_said_and_not_shown() {
    let redis = TestRedis::start_with(&["--requirepass", "right-hunter2"]).await;
    let url = format!("redis://:wrong-hunter3@127.0.0.1:{}", redis.port());
    let error = RedisGates::connect(&url, SharedOptions::default()).await.unwrap_err();
    let all = format!("{error:?} {error}");
    assert!(!all.contains("hunter"), "{all}");
    let url = format!("redis://:right-hunter2@127.0.0.1:{}", redis.port());
    let gates = RedisGates::connect(&url, SharedOptions::default()).await.unwrap();
    assert!(take(&gates, &scope("http://a:80")).await.1.is_some());
    assert!(!format!("{gates:?}").contains("hunter"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_a_record_of_a_later_version_is_left_alone_and_said() {
    let redis = TestRedis::start().await;
    let (a, b) = (scope("http://a:80"), scope("http://b:80"));
    let key = "forbear:gate:{http://a:80}http://a:80";
    let later = format!("{}{}", "0".repeat(48), r#"{"v":99,"x":1}"#);
    redis.command(&["SET", key, &later, "PX", "600000"]).await;
    let member = Member::join(&redis).await;
    for _ in 0..20 {
        if let Some(sent) = take(&*member.gates, &a).await.1 {
            let _ = succeed(&*member.gates, &a, sent).await;
        }
    }
    sleep(300 * MS).await;
    let redis::Value::BulkString(value) = redis.command(&["GET", key]).await else { panic!("it is gone") };
    assert_eq!(value, later.into_bytes(), "nobody has touched it");
    let said = |event: &SharedEvent| matches!(event, SharedEvent::Unreadable { why, .. } if why.contains("version 99"));
    assert!(member.events.lock().iter().any(said));
    assert!(take(&*member.gates, &b).await.1.is_some(), "the others are shared as before");
    assert_eq!(member.losses(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_the_scope_of_one_run_is_nobody_elses() {
    let redis = TestRedis::start().await;
    let (one, other) = (Member::join(&redis).await, Member::join(&redis).await);
    let rates = "1/s".parse::<RateList>().unwrap().into();
    let mut run = scope_with("run", ScopePolicy { rates, ..ScopePolicy::default() });
    run.role = forbear_core::scope::Role::Run;
    let scopes = [run, scope("http://a:80")];
    for member in [&one, &other] {
        let first = gate_kit::acquire(&*member.gates, &scopes).await.unwrap();
        assert!(
            matches!(first, forbear_core::attempt::Decision::Admit(_)),
            "each run has its own rate: {first:?}"
        );
        let second = gate_kit::acquire(&*member.gates, &scopes).await.unwrap();
        let wait =
            matches!(second, forbear_core::attempt::Decision::Wait { scope: 0, cause: Cause::Pace, .. });
        assert!(wait, "{second:?}");
    }
    let redis::Value::Array(keys) = redis.command(&["KEYS", "*"]).await else { panic!("no list") };
    assert_eq!(keys.len(), 1, "{keys:?}");
}

/// The roots that a process trusts come from its environment, so the member is a process of its own: this test again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k1_a_redis_is_reached_over_tls_and_trusted_by_its_certificate() {
    const URL: &str = "FORBEAR_TEST_TLS_URL";
    if let Ok(url) = std::env::var(URL) {
        let gates = RedisGates::connect(&url, SharedOptions::default()).await.unwrap();
        assert!(take(&gates, &scope("http://a:80")).await.1.is_some());
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    std::fs::write(path("cert.pem"), pair.cert.pem()).unwrap();
    std::fs::write(path("key.pem"), pair.signing_key.serialize_pem()).unwrap();
    let tls_port = gate_kit::redis::free_port();
    let redis = TestRedis::start_with(&[
        "--tls-port",
        &tls_port.to_string(),
        "--tls-cert-file",
        &path("cert.pem"),
        "--tls-key-file",
        &path("key.pem"),
        "--tls-auth-clients",
        "no",
        "--requirepass",
        "p@ss:word/?",
    ])
    .await;
    let member = |url: String, roots: Option<String>| {
        let mut child = std::process::Command::new(std::env::current_exe().unwrap());
        let name = "k1_a_redis_is_reached_over_tls_and_trusted_by_its_certificate";
        child.args(["--exact", name, "--nocapture"]).env(URL, url).env_remove("SSL_CERT_FILE");
        let out = child.envs(roots.map(|roots| ("SSL_CERT_FILE", roots))).output().unwrap();
        let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
        assert!(!said.contains("p%40ss") && !said.contains("p@ss"), "{said}");
        (out.status.success(), said)
    };
    let url = format!("rediss://:p%40ss%3Aword%2F%3F@localhost:{tls_port}");
    let (reached, said) = member(url.clone(), Some(path("cert.pem")));
    assert!(reached, "{said}");
    assert!(!member(url, None).0, "nobody vouches for it");
    drop(redis);
}
