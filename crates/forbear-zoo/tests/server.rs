//! The server over a real socket: what a client sees, and what the log says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use forbear_zoo::naive::{self, NaiveOptions, Retry};
use forbear_zoo::{Account, Answer, Facts, Fault, Hint, Limiter, Rate, Server, ServerOptions, Spec, Verdict};

/// One request on a connection of its own; all the bytes that came back, and how it ended.
fn ask(addr: SocketAddr, head: &str) -> (String, std::io::Result<()>) {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "{head} HTTP/1.1\r\nHost: zoo\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let end = loop {
        match stream.read(&mut chunk) {
            Ok(0) => break Ok(()),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) => break Err(error),
        }
    };
    (String::from_utf8(bytes).unwrap(), end)
}

async fn ask_in_thread(addr: SocketAddr, head: &'static str) -> (String, std::io::Result<()>) {
    tokio::task::spawn_blocking(move || ask(addr, head)).await.unwrap()
}

/// Waits for what must come, and fails if it does not.
async fn until(reached: impl Fn() -> bool) {
    let waiting = async {
        while !reached() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), waiting).await.expect("it never came");
}

/// The one listener that the program has is that of `forbear demo`, and it is this one.
#[tokio::test]
async fn k3_a_server_that_is_told_nothing_else_listens_on_loopback_alone() {
    let server = Server::start(Spec::open(), ServerOptions::default()).await.unwrap();
    assert!(server.addr().ip().is_loopback());
    // A listener on all addresses would take this one, too.
    let elsewhere = SocketAddr::from(([127, 0, 0, 77], server.addr().port()));
    let refused = TcpStream::connect(elsewhere).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_served_then_refused_and_all_of_it_is_in_the_log() {
    let spec = Spec::token_bucket(Rate::new(1, Duration::from_secs(3600)).unwrap(), 2).hint(Hint::Seconds);
    let server = Server::start(spec, ServerOptions::default()).await.unwrap();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let (text, end) = ask_in_thread(server.addr(), "GET /a?b=1").await;
        end.unwrap();
        statuses.push(text.split(' ').nth(1).unwrap().to_owned());
    }
    assert_eq!(statuses, ["200", "200", "429"]);
    let log = server.stop().await;
    assert_eq!((log.served().count(), log.refused().count(), log.connections()), (2, 1, 3));
    let refused = log.refused().next().unwrap();
    assert_eq!(refused.path, "/a?b=1");
    assert!(refused.told.unwrap() > Duration::from_secs(3590));
    assert!(refused.sent.is_some() && refused.answered <= refused.sent);
    assert!(log.sent_into_pause(Duration::ZERO).is_empty(), "nothing came after the refusal");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_seen_on_the_wire() {
    let limiter = |_now: Duration, request: &Facts<'_>| match request.path {
        "/reset" => Answer::fault(Fault::Reset),
        "/truncated" => Answer::fault(Fault::Truncated),
        "/502" => Answer::fault(Fault::ErrorPage),
        _ => Answer::ok(),
    };
    let options = ServerOptions { body_size: 1000, ..ServerOptions::default() };
    let server = Server::start_with(limiter, options).await.unwrap();

    let (text, end) = ask_in_thread(server.addr(), "GET /reset").await;
    assert_eq!(text, "");
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);

    let (text, _) = ask_in_thread(server.addr(), "GET /truncated").await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-length: 1000"), "{head}");
    assert_eq!(body.len(), 500);

    let (text, end) = ask_in_thread(server.addr(), "GET /502").await;
    end.unwrap();
    assert!(text.starts_with("HTTP/1.1 502"), "{text}");

    let (text, end) = ask_in_thread(server.addr(), "HEAD /").await;
    end.unwrap();
    assert!(text.ends_with("\r\n\r\n"), "{text}");

    let log = server.stop().await;
    assert_eq!(log.faults().count(), 3);
    assert!(log.hits().iter().all(|hit| hit.sent.is_some()), "{log:?}");
    assert_eq!(log.hits()[0].verdict, Verdict::Fault(Fault::Reset));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_knows_accounts_methods_and_connections() {
    let server = Server::start(Spec::open(), ServerOptions::default()).await.unwrap();
    let addr = server.addr();
    let text = tokio::task::spawn_blocking(move || {
        let mut stream = TcpStream::connect(addr).unwrap();
        for _ in 0..2 {
            write!(
                stream,
                "POST /x HTTP/1.1\r\nHost: zoo\r\nAuthorization: Bearer a\r\nContent-Length: 3\r\n\r\nabc"
            )
            .unwrap();
        }
        write!(stream, "GET / HTTP/1.1\r\nHost: zoo\r\nX-Api-Key: k\r\nConnection: close\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
    .await
    .unwrap();
    assert_eq!(text.matches("HTTP/1.1 200").count(), 3, "{text}");
    let log = server.stop().await;
    let seen: Vec<_> = log.hits().iter().map(|hit| (hit.method.as_str(), hit.account)).collect();
    let [bearer, key] = ["Bearer a", "k"].map(|credential| Some(Account::of(credential)));
    assert_eq!(seen, [("POST", bearer), ("POST", bearer), ("GET", key)]);
    assert_eq!((log.connections(), log.distinct_paths(), log.max_in_flight()), (1, 2, 1));
    assert!(log.hits().iter().all(|hit| hit.delivered && hit.finished <= hit.sent));
    assert!(!format!("{log:?}").contains("Bearer"), "no credential stays in the log");
}

#[tokio::test(flavor = "multi_thread")]
async fn who_keeps_to_the_cap_is_never_refused() {
    let spec = Spec::concurrency(4).hint(Hint::Seconds);
    let options =
        ServerOptions { latency: Duration::from_millis(1), body_size: 20_000, ..ServerOptions::default() };
    let server = Server::start(spec, options).await.unwrap();
    let paths = (0..400).map(|n| format!("/{n}")).collect();
    let report =
        naive::run(server.addr(), paths, NaiveOptions { workers: 4, ..NaiveOptions::default() }).await;
    assert_eq!((report.done, report.refused, report.faults, report.sent), (400, 0, 0, 400));
    let log = server.stop().await;
    assert!(log.max_in_flight() <= 4);
    assert_eq!((log.hits().len(), log.distinct_paths()), (400, 400));
    assert!(log.hits().iter().all(|hit| hit.delivered));
}

#[tokio::test(flavor = "multi_thread")]
async fn p1_naive_workers_send_into_the_pause_of_others() {
    let spec: Spec = "fixed-window:limit=20/2s,phase=first-request,hint=seconds".parse().unwrap();
    let server = Server::start(spec, ServerOptions::default()).await.unwrap();
    let options = NaiveOptions {
        workers: 8,
        retry: Retry::Every(Duration::from_millis(100)),
        ..NaiveOptions::default()
    };
    let report = naive::run(server.addr(), (0..40).map(|n| format!("/{n}")).collect(), options).await;
    let counts = server.counts();
    let log = server.stop().await;
    assert_eq!((report.done, report.failed, report.faults), (40, 0, 0));
    assert_eq!((counts.hits, counts.served, counts.refused), (report.sent, 40, report.refused));
    assert_eq!(log.refused().count() as u64, report.refused);
    // Eight workers knock about every 100 ms for some two seconds.
    assert!(log.sent_into_pause(Duration::from_millis(20)).len() > 8);
    assert!(!log.pauses().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_alone_that_obeys_never_sends_into_a_pause() {
    let spec: Spec = "token-bucket:rate=20/s,burst=5,hint=seconds".parse().unwrap();
    let server = Server::start(spec, ServerOptions::default()).await.unwrap();
    let retry = Retry::AsTold { otherwise: Duration::from_secs(30) };
    let options = NaiveOptions { workers: 1, retry, ..NaiveOptions::default() };
    let report = naive::run(server.addr(), (0..15).map(|n| format!("/{n}")).collect(), options).await;
    let log = server.stop().await;
    assert_eq!((report.done, report.faults), (15, 0));
    assert!(report.refused > 0);
    assert_eq!(log.sent_into_pause(Duration::ZERO).len(), 0);
    let probes = log.probes();
    assert_eq!(probes.len(), log.pauses().len());
    assert!(probes.iter().all(|probe| probe.company == 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_naive_client_gives_up_at_its_bound() {
    let limiter = |_now: Duration, request: &Facts<'_>| match request.path {
        "/404" => Answer { status: 404, ..Answer::ok() },
        "/429" => Answer::refused(429),
        "/cut" => Answer::fault(Fault::Truncated),
        "/rst" => Answer::fault(Fault::Reset),
        _ => Answer::fault(Fault::Stall(Duration::from_secs(60))),
    };
    let server = Server::start_with(limiter, ServerOptions::default()).await.unwrap();
    let base = Duration::from_millis(1);
    let options = NaiveOptions {
        workers: 2,
        retry: Retry::Exponential { base, cap: base * 4 },
        attempts_max: 3,
        timeout: Duration::from_secs(1),
        authorization: Some("Bearer n".to_owned()),
    };
    let paths = ["/404", "/429", "/cut", "/rst", "/stall"].map(str::to_owned).to_vec();
    let report = naive::run(server.addr(), paths, options).await;
    assert_eq!((report.sent, report.refused, report.faults, report.done, report.failed), (15, 3, 12, 0, 5));
    let log = server.stop().await;
    assert!(log.hits().iter().all(|hit| hit.account == Some(Account::of("Bearer n")) && hit.sent.is_some()));
    assert_eq!(log.hits().iter().filter(|hit| hit.delivered).count(), 6, "the 404s and the 429s");
}

#[tokio::test(flavor = "multi_thread")]
async fn stop_cuts_what_is_in_flight_and_frees_the_port() {
    let options = ServerOptions { latency: Duration::from_secs(600), ..ServerOptions::default() };
    let server = Server::start(Spec::open(), options.clone()).await.unwrap();
    let addr = server.addr();
    let asking = tokio::task::spawn_blocking(move || ask(addr, "GET /slow"));
    until(|| server.counts().in_flight == 1).await;
    let log = server.stop().await;
    assert_eq!(asking.await.unwrap().0, "");
    assert_eq!((log.hits().len(), log.hits()[0].delivered), (1, false));
    assert!(log.hits()[0].sent.is_some());
    let again = Server::start(Spec::open(), ServerOptions { port: addr.port(), ..options }).await.unwrap();
    assert_eq!(again.addr(), addr);
}

#[tokio::test(flavor = "multi_thread")]
async fn c4_a_full_log_goes_on_counting() {
    let server =
        Server::start(Spec::open(), ServerOptions { hits_max: 3, ..ServerOptions::default() }).await.unwrap();
    let report = naive::run(server.addr(), vec!["/".to_owned(); 10], NaiveOptions::default()).await;
    assert_eq!(report.done, 10);
    assert_eq!(server.counts().hits, 10);
    let log = server.stop().await;
    assert_eq!((log.hits().len(), log.dropped()), (3, 7));
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_and_dates_go_out_once_and_as_the_machine_said() {
    let spec: Spec = "fixed-window:limit=1/1h,hint=http-date,hint=draft-7,skew=1h".parse().unwrap();
    let server = Server::start(spec, ServerOptions::default()).await.unwrap();
    let _ = ask_in_thread(server.addr(), "GET /").await;
    let (text, _) = ask_in_thread(server.addr(), "GET /").await;
    let values = |name: &str| -> Vec<String> {
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(each, _)| each.eq_ignore_ascii_case(name)).map(|(_, value)| value.to_owned()).collect()
    };
    let date = |name: &str| match &values(name)[..] {
        [value] => httpdate::parse_http_date(value).unwrap(),
        other => panic!("{name}: {other:?}"),
    };
    let told = date("retry-after").duration_since(date("date")).unwrap();
    assert!(told <= Duration::from_secs(3601), "{text}");
    let ahead = date("date").duration_since(std::time::SystemTime::now()).unwrap();
    assert!(ahead > Duration::from_secs(3500), "{text}");
    assert_eq!(values("ratelimit").len(), 1);
    let log = server.stop().await;
    let refused = log.refused().next().unwrap();
    assert!(refused.told >= refused.wait && refused.told <= Some(told));
}

/// Counts arrivals and departures.
struct Ledger(Arc<AtomicI64>, Arc<AtomicI64>);

impl Limiter for Ledger {
    fn arrive(&mut self, _now: Duration, request: &Facts<'_>) -> Answer {
        self.0.fetch_add(1, Ordering::SeqCst);
        match request.path {
            "/reset" => Answer::fault(Fault::Reset),
            "/cut" => Answer::fault(Fault::Truncated),
            "/none" => Answer { status: 204, ..Answer::ok() }.body(""),
            "/late" => Answer::ok().after(Duration::from_secs(600)),
            _ => Answer::ok(),
        }
    }

    fn depart(&mut self, _now: Duration, _request: &Facts<'_>, _answer: &Answer) {
        self.1.fetch_add(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_arrival_departs_once_however_it_ends() {
    let [arrived, departed] = [Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0))];
    let options = ServerOptions { body_size: 4_000_000, ..ServerOptions::default() };
    let ledger = Ledger(Arc::clone(&arrived), Arc::clone(&departed));
    let server = Server::start_with(ledger, options).await.unwrap();
    let addr = server.addr();
    for head in ["GET /", "HEAD /", "GET /none", "GET /reset", "GET /cut"] {
        let _ = ask_in_thread(addr, head).await;
    }
    // Clients that leave in the middle: of a wait, and of a body that is too large for any buffer.
    let left: Vec<TcpStream> = ["/late", "/"]
        .map(|path| {
            let mut stream = TcpStream::connect(addr).unwrap();
            write!(stream, "GET {path} HTTP/1.1\r\nHost: zoo\r\n\r\n").unwrap();
            stream
        })
        .into();
    until(|| arrived.load(Ordering::SeqCst) == 7).await;
    drop(left);
    until(|| departed.load(Ordering::SeqCst) == 7).await;
    let log = server.stop().await;
    assert_eq!((arrived.load(Ordering::SeqCst), departed.load(Ordering::SeqCst)), (7, 7));
    assert_eq!(log.hits().iter().filter(|hit| hit.delivered).count(), 3);
}

/// The whole zoo over a socket: what clients count is what the log says.
#[tokio::test(flavor = "multi_thread")]
async fn client_and_log_agree_at_every_example() {
    let mut runs = tokio::task::JoinSet::new();
    for (example, spec) in Spec::all_examples() {
        runs.spawn(async move {
            let server = Server::start(spec, ServerOptions::default()).await.unwrap();
            let paths = (0..40).map(|n| format!("/{}/{n}", ["a", "shut", "b"][n % 3])).collect();
            let options = NaiveOptions {
                workers: 5,
                retry: Retry::Every(Duration::from_millis(20)),
                attempts_max: 4,
                ..NaiveOptions::default()
            };
            let report = naive::run(server.addr(), paths, options).await;
            let log = server.stop().await;
            (example.name, report, log)
        });
    }
    while let Some(run) = runs.join_next().await {
        let (name, report, log) = run.unwrap();
        assert_eq!(report.done + report.failed, 40, "{name}");
        assert_eq!(log.hits().len() as u64, report.sent, "{name}");
        let told =
            log.hits().iter().filter(|hit| hit.delivered && [429, 503].contains(&hit.status)).count() as u64;
        assert_eq!(told, report.refused, "{name}");
        let whole = log.served().filter(|hit| hit.delivered).count() as u64;
        let stalled = |hit: &&forbear_zoo::Hit| matches!(hit.verdict, Verdict::Fault(Fault::Stall(_)));
        let late = log.faults().filter(stalled).filter(|hit| hit.delivered).count() as u64;
        assert_eq!(whole + late, report.done, "{name}: a stalled body does come in the end");
    }
}
