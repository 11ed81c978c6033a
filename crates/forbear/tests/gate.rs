//! The gate for programs with an HTTP client of their own, alone and in `tower` and `reqwest`.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use forbear::config::Pace;
use forbear::gate::{
    Gate, GateError, GateLayer, GateMiddleware, GateOptions, Item, Outcome, Received, Report, Resend, Verdict,
};
use forbear_store::gate::MemoryGates;
use forbear_zoo::{Server, ServerOptions};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use tower::{BoxError, Service as _, ServiceBuilder, ServiceExt as _};

const URL: &str = "http://api.test/v1";

fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

/// A gate that lets so many requests be on the wire at once.
fn narrow(places: u32) -> Gate<MemoryGates> {
    let mut options = GateOptions::default();
    options.settings.pace = Pace::Configured;
    options.settings.host_concurrency = places.try_into().ok();
    Gate::in_memory(options)
}

#[tokio::test]
async fn p1_a_told_wait_holds_for_all_and_is_named_to_whoever_cannot_wait() {
    let gate = Gate::in_memory(GateOptions::default());
    let mut item = Item::new();
    let pass = gate.acquire(URL, &item).await.unwrap();
    let told = headers(&[("retry-after", "2")]);
    let begun = Instant::now();
    let report = pass.answered(&mut item, Received::new(429, &told)).await.unwrap();
    assert_eq!(report.verdict, Verdict::Hold { told: Duration::from_secs(2) });
    assert_eq!((report.again(), item.tries()), (Some(Duration::from_secs(2)), 1));

    let late = gate.acquire_within(URL, &Item::new(), Duration::from_millis(500)).await.unwrap_err();
    let GateError::Late { wait, scope, .. } = late else { panic!("{late}") };
    assert!(wait > Duration::from_secs(1) && &*scope == "http://api.test", "{wait:?} {scope}");
    // Elsewhere nobody is held up.
    drop(gate.acquire_within("http://other.test/", &Item::new(), Duration::ZERO).await.unwrap());

    let pass = gate.acquire(URL, &item).await.unwrap();
    assert!(begun.elapsed() >= Duration::from_secs(2), "nothing of the scope starts before it");
    assert!(pass.is_probe() && pass.renew().await.unwrap(), "and then one request probes");
    let report = pass.answered(&mut item, Received::new(200, &HeaderMap::new())).await.unwrap();
    assert_eq!(report.verdict, Verdict::Done);
}

#[tokio::test]
async fn c2_what_is_dropped_gives_its_place_back() {
    let gate = narrow(1);
    let item = Item::new();
    let pass = gate.acquire(URL, &item).await.unwrap();
    let busy = gate.acquire_within(URL, &item, Duration::from_millis(20)).await.unwrap_err();
    assert!(matches!(busy, GateError::Busy { .. }), "{busy}");
    // Whoever waits is called, and one that gave up waiting has taken nothing.
    let waits = tokio::spawn({
        let gate = gate.clone();
        async move { gate.acquire(URL, &Item::new()).await.map(drop) }
    });
    let gives_up = tokio::time::timeout(Duration::from_millis(20), gate.acquire(URL, &item)).await;
    assert!(gives_up.is_err());
    drop(pass);
    waits.await.unwrap().unwrap();
    drop(gate.acquire_within(URL, &item, Duration::from_millis(500)).await.unwrap());
}

#[tokio::test]
async fn c4_only_so_many_may_wait() {
    let mut options = GateOptions { waiting_max: 2, ..GateOptions::default() };
    options.settings.pace = Pace::Configured;
    options.settings.host_concurrency = 1.try_into().ok();
    let gate = Gate::in_memory(options);
    let _pass = gate.acquire(URL, &Item::new()).await.unwrap();
    let mut waiting = Vec::new();
    for _ in 0..2 {
        let gate = gate.clone();
        waiting.push(tokio::spawn(async move { gate.acquire(URL, &Item::new()).await.map(drop) }));
    }
    tokio::task::yield_now().await;
    let refused = loop {
        match gate.acquire_within(URL, &Item::new(), Duration::from_millis(5)).await.unwrap_err() {
            GateError::Busy { .. } => tokio::task::yield_now().await, // the two have not come yet
            refused => break refused,
        }
    };
    assert!(matches!(refused, GateError::Crowded { waiting: 2 }), "{refused}");
    waiting.iter().for_each(tokio::task::JoinHandle::abort);
}

#[tokio::test]
async fn s2_an_account_is_a_hash_of_the_credentials_and_has_limits_of_its_own() {
    let mut options = GateOptions { account_key: Some([7; 32]), ..GateOptions::default() };
    options.settings.scope = vec!["origin+account".parse().unwrap()];
    let gate = Gate::in_memory(options);
    let of = |token| gate.item(&Method::GET, URL, &headers(&[("authorization", token)]));
    let mut ours = of("Bearer ours");
    let pass = gate.acquire(URL, &ours).await.unwrap();
    let told = headers(&[("retry-after", "60")]);
    let _ = pass.answered(&mut ours, Received::new(429, &told)).await.unwrap();
    drop(gate.acquire_within(URL, &of("Bearer theirs"), Duration::ZERO).await.unwrap());
    let late = gate.acquire_within(URL, &of("Bearer ours"), Duration::ZERO).await.unwrap_err();
    assert!(!late.to_string().contains("ours") && !format!("{late:?}").contains("ours"), "K1: {late}");
}

/// Two members of one store, which is asked for its key; and who waits there is seen from outside.
#[tokio::test]
async fn s2_who_opens_the_same_store_knows_an_account_by_the_same_name() {
    let dir = tempfile::tempdir().unwrap();
    let address = dir.path().join("gates").display().to_string();
    let (one, other) = (
        Gate::open(&address, GateOptions::default()).await.unwrap(),
        Gate::open(&address, GateOptions::default()).await.unwrap(),
    );
    let fields = headers(&[("authorization", "Bearer s3cret")]);
    let item = |gate: &Gate| gate.item(&Method::GET, URL, &fields);
    let pass = one.acquire(URL, &item(&one)).await.unwrap();
    let told = headers(&[("retry-after", "20")]);
    let _ = pass.answered(&mut item(&one), Received::new(429, &told)).await.unwrap();
    let waits = tokio::spawn({
        let (other, item) = (other.clone(), item(&other));
        async move { other.acquire_within(URL, &item, Duration::from_secs(30)).await.map(drop) }
    });
    let desk = forbear_store::gate::GateDesk::open(&address.parse().unwrap()).await.unwrap();
    let mut seen = Vec::new();
    for _ in 0..100 {
        seen.clear();
        desk.scopes(|scope| seen.push(scope)).await.unwrap();
        if seen.iter().any(|scope| scope.members.iter().any(|member| member.waiting == 1)) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let waiting: u32 = seen.iter().flat_map(|scope| &scope.members).map(|member| member.waiting).sum();
    let names: Vec<&str> = seen.iter().map(|scope| scope.key.as_str()).collect();
    assert_eq!(names.iter().filter(|name| name.contains("account=~")).count(), 1, "{names:?}");
    assert!(waiting >= 1, "{seen:?}");
    waits.abort();
}

#[tokio::test]
async fn v2_what_may_not_be_sent_twice_is_not_sent_again() {
    let gate = Gate::in_memory(GateOptions::default());
    for (method, field, verdict) in [
        (Method::POST, None, false),
        (Method::POST, Some(("idempotency-key", "7")), true),
        (Method::PUT, None, true),
    ] {
        let mut item = gate.item(&method, URL, &headers(&field.into_iter().collect::<Vec<_>>()));
        let pass = gate.acquire(URL, &item).await.unwrap();
        let report = pass.failed(&mut item, Outcome::NO_ANSWER).await.unwrap();
        assert_eq!(report.again().is_some(), verdict, "{method}: {:?}", report.verdict);
    }
}

/// A service that refuses each page once, without a word, and then serves it.
#[derive(Clone, Default)]
struct Stubborn(Arc<AtomicU32>);

impl Stubborn {
    fn answer(&self) -> Response<Full<Bytes>> {
        let nth = self.0.fetch_add(1, Ordering::SeqCst);
        let status = if nth == 0 { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        let mut response = Response::new(Full::from("page"));
        *response.status_mut() = status;
        response
    }
}

#[tokio::test]
async fn tower_waits_at_the_gate_and_sends_again_what_was_refused() {
    let gate = Gate::in_memory(GateOptions::default());
    let server = Stubborn::default();
    let counted = server.clone();
    let mut client = ServiceBuilder::new()
        .retry(Resend::default())
        .layer(GateLayer::new(gate.clone()))
        .service_fn(move |_: Request<()>| {
            let answer = counted.answer();
            async move { Ok::<_, BoxError>(answer) }
        });
    let begun = Instant::now();
    let response = client.ready().await.unwrap().call(Request::get(URL).body(()).unwrap()).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(begun.elapsed() >= Duration::from_secs(1), "P4: never below `backoff_base`");
    assert_eq!(server.0.load(Ordering::SeqCst), 2);
    let report = response.extensions().get::<Report>().unwrap();
    assert_eq!(report.verdict, Verdict::Done);
    assert_eq!(
        response.extensions().get::<Item>().unwrap().tries(),
        1,
        "the refusal; the rest is on its way"
    );
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "page");
}

#[tokio::test]
async fn c2_a_response_keeps_its_place_until_its_body_has_ended() {
    let gate = narrow(1);
    let service = ServiceBuilder::new()
        .layer(GateLayer::new(gate.clone()))
        .service_fn(|_: Request<()>| async { Ok::<_, BoxError>(Response::new(Full::<Bytes>::from("page"))) });
    for read in [true, false] {
        let response = service.clone().oneshot(Request::get(URL).body(()).unwrap()).await.unwrap();
        let busy = gate.acquire_within(URL, &Item::new(), Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(busy, GateError::Busy { .. }), "{busy}");
        if read {
            response.into_body().collect().await.unwrap();
        } else {
            drop(response);
        }
        drop(gate.acquire_within(URL, &Item::new(), Duration::from_millis(500)).await.unwrap());
    }
}

#[tokio::test]
async fn reqwest_keeps_to_a_limit_that_it_was_told() {
    let server =
        Server::start("fixed-window:limit=5/1s,hint=seconds".parse().unwrap(), ServerOptions::default())
            .await
            .unwrap();
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .retry(reqwest::retry::never())
        .build()
        .unwrap();
    let gate = Gate::in_memory(GateOptions::default());
    let client = reqwest_middleware::ClientBuilder::new(client).with(GateMiddleware::new(gate)).build();
    let ask = |page: u32| {
        let ask = client.get(server.url(&format!("/{page}")));
        async move {
            let response = ask.send().await.unwrap();
            assert!(response.extensions().get::<Report>().is_some());
            assert!(response.url().path().ends_with(&page.to_string()), "the URL is kept");
            let status = response.status().as_u16();
            response.bytes().await.unwrap();
            status
        }
    };
    let pages = (0..16).map(|page| tokio::spawn(ask(page))).collect::<Vec<_>>();
    for page in pages {
        assert_eq!(page.await.unwrap(), 200);
    }
    let log = server.log();
    assert!(log.sent_into_pause(Duration::from_millis(250)).is_empty(), "P1");
    assert!(log.refused().count() <= 8, "what was in flight when it closed: {}", log.refused().count());
}

#[tokio::test]
async fn reqwest_hands_over_an_answer_that_must_wait_for_longer_than_it_may_sleep() {
    let server =
        Server::start("fixed-window:limit=1/60s,hint=seconds".parse().unwrap(), ServerOptions::default())
            .await
            .unwrap();
    let middleware =
        GateMiddleware::new(Gate::in_memory(GateOptions::default())).resending_within(Duration::ZERO);
    let client = reqwest_middleware::ClientBuilder::new(reqwest::Client::new()).with(middleware).build();
    let first = client.get(server.url("/1")).send().await.unwrap();
    assert_eq!(first.status(), 200);
    first.bytes().await.unwrap();
    let second = client.get(server.url("/2")).send().await.unwrap();
    assert_eq!(second.status(), 429, "not slept for, and not sent again");
    let wait = second.extensions().get::<Report>().unwrap().again();
    assert!(
        wait.is_some_and(|wait| wait > Duration::from_secs(1)),
        "when it may be sent again is said: {wait:?}"
    );
    assert_eq!(server.log().refused().count(), 1);
}

/// A Redis of this test alone.
struct Redis(Child, String);

impl Redis {
    #[expect(clippy::disallowed_methods, reason = "a thread of its own, and no runtime")]
    fn start() -> Redis {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed by ./test --prepare");
        for _ in 0..500 {
            if std::net::TcpStream::connect(("127.0.0.1", port)).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Redis(server, format!("redis://127.0.0.1:{port}"))
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn p3_the_examples_share_one_redis_gate_between_two_processes() {
    let redis = Redis::start();
    let target = std::env::current_exe().unwrap();
    let examples = target.parent().unwrap().parent().unwrap().join("examples");
    for example in ["tower_gate", "reqwest_gate"] {
        let run = Command::new(examples.join(example)).arg(&redis.1).output().unwrap();
        let text = String::from_utf8(run.stdout).unwrap();
        assert!(run.status.success(), "{example}: {text}{}", String::from_utf8_lossy(&run.stderr));
        assert!(text.contains("left: 20 of 20") && text.contains("right: 20 of 20"), "{example}: {text}");
        let refused = text.trim().rsplit(' ').next().unwrap().parse::<u32>().unwrap();
        // Each alone would be refused at its own start, and with each window; together what was on the wire.
        assert!(refused <= 12, "{example}: {text}");
    }
}
