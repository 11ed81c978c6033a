//! Budgets of requests and of tokens at once, from the configuration to the wire: estimates, real costs, and what never starts
//! (C1).

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::time::Duration;

use forbear_zoo::{Answer, Facts, Limiter, Log, Server, ServerOptions, Spec};
use kit::{Job, authority, ms, secs, started};
use serde_json::{Value, json};

/// The window of both budgets.
const WINDOW: Duration = secs(10);
/// The server's is shorter by what a busy machine may add to the way of one request: two that are ten seconds apart when they
/// start may be nearer when they come.
const SERVERS_WINDOW: Duration = ms(9_700);
/// What each request is taken to cost. It really costs 300 to 699.
const ESTIMATE: u32 = 700;

/// An API like those of language models: it counts requests and tokens, and bills each answer in its body.
async fn model(requests: u32, tokens: u32) -> Server {
    let spec: Spec =
        format!("sliding-log:limit={requests}/9700ms + cost-log:limit={tokens}/9700ms").parse().unwrap();
    let mut origin = spec.build(secs(1_795_957_200));
    let limiter = move |now: Duration, request: &Facts<'_>| {
        let answer = origin.arrive(now, request);
        match answer.status {
            200 => answer
                .body(json!({ "text": "so be it", "usage": { "total_tokens": request.cost() } }).to_string()),
            _ => answer,
        }
    };
    started(limiter, ServerOptions { latency: ms(20), ..ServerOptions::default() }).await
}

/// What the question `n` really costs: 300 to 699, in no order.
fn cost_of(n: u32) -> u32 {
    300 + n.wrapping_mul(2_654_435_761) % 400
}

fn questions(server: &Server, count: u32) -> Vec<String> {
    let question = |n: u32| {
        let url = server.url(&format!("/v1/chat?n={n}&cost={}", cost_of(n)));
        json!({ "url": url, "id": n, "method": "POST", "idempotent": true, "body": json!({ "max_tokens": ESTIMATE }).to_string() })
    };
    (1..=count).map(|n| question(n).to_string()).collect()
}

/// Arrivals with what they really cost, in their order.
fn arrivals(log: &Log) -> Vec<(Duration, u32)> {
    let mut all: Vec<(Duration, u32)> =
        log.hits().iter().map(|hit| (hit.at, Facts::get(&hit.path).cost())).collect();
    all.sort_unstable();
    all
}

/// The most that came in any window.
fn most(arrivals: &[(Duration, u32)], weight: impl Fn(u32) -> u32) -> u32 {
    let within = |i: usize| {
        let from = arrivals[i].0;
        arrivals[i..]
            .iter()
            .take_while(|(at, _)| *at - from < SERVERS_WINDOW)
            .map(|(_, cost)| weight(*cost))
            .sum()
    };
    (0..arrivals.len()).map(within).max().unwrap_or(0)
}

/// Runs `count` questions against budgets of so many requests and tokens in ten seconds, and says which share of each was used.
async fn used(requests: (u32, &str), tokens: (u32, &str), count: u32) -> (f64, f64) {
    let server = model(requests.0, tokens.0).await;
    let config = format!(
        "[hosts.\"{host}\"]\nrate = \"{}/10s requests{}, {}/10s tokens{}\"\n\
         [hosts.\"{host}\".cost]\nrequest = \"/max_tokens\"\nbody = \"/usage/total_tokens\"\n",
        requests.0,
        requests.1,
        tokens.0,
        tokens.1,
        host = authority(&server),
    );
    let job = Job::of(questions(&server, count)).unlearned(&config);
    let ran = job.run_all_done(count as usize, &["--host-concurrency", "16"]).await;
    for record in job.records() {
        let n = record["id"].as_u64().unwrap() as u32;
        assert_eq!(record["cost"], cost_of(n), "the record has the real cost: {record}");
    }
    let log = server.stop().await;
    assert_eq!(log.refused().count(), 0, "no budget was exceeded:\n{}", ran.stderr);
    let arrivals = arrivals(&log);
    assert_eq!(arrivals.len(), count as usize);
    let (most_requests, most_tokens) = (most(&arrivals, |_| 1), most(&arrivals, |cost| cost));
    assert!(most_requests <= requests.0 && most_tokens <= tokens.0, "{most_requests} and {most_tokens}");
    let total: u32 = arrivals.iter().map(|(_, cost)| cost).sum();
    let row = ran.stderr.lines().find(|line| line.starts_with("http://")).unwrap();
    assert!(row.ends_with(&format!(" {total}")), "the table has the sum {total}:\n{}", ran.stderr);
    // From the first start to the last: what the last one costs is not waited for.
    let (last_at, last) = arrivals[arrivals.len() - 1];
    let windows = (last_at - arrivals[0].0).as_secs_f64() / WINDOW.as_secs_f64();
    let used = (
        f64::from(count - 1) / windows / f64::from(requests.0),
        f64::from(total - last) / windows / f64::from(tokens.0),
    );
    eprintln!("used of {} requests {:.3}, of {} tokens {:.3}", requests.0, used.0, tokens.0, used.1);
    used
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_of_two_budgets_neither_is_exceeded_and_that_of_tokens_is_used() {
    let (_, tokens) = used((250, ""), (60_000, " burst 1000"), 150).await;
    assert!(tokens >= 0.95, "{tokens:.3} of the tighter budget");
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_of_two_budgets_neither_is_exceeded_and_that_of_requests_is_used() {
    let (requests, _) = used((100, " burst 3"), (200_000, " burst 1000"), 130).await;
    assert!(requests >= 0.95, "{requests:.3} of the tighter budget");
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_what_costs_more_than_a_window_fails_at_once_and_says_so() {
    let server = kit::zoo("open", ms(0)).await;
    let line = |n: u32, cost: u32| json!({ "url": server.url(&format!("/{n}")), "cost": cost }).to_string();
    let job = Job::of([line(1, 500), line(2, 501)]);
    let rate = format!("{}=500/min tokens", authority(&server));
    let ran = job.run(&["--host-rate", &rate, "--run-for", "30s"]).await;
    assert_eq!((ran.status, job.count("failed")), (3, 1), "{}", ran.stderr);
    let records = job.records();
    let failed = records.iter().find(|record| record["outcome"] == "failed").unwrap();
    assert_eq!((&failed["id"], &failed["attempts"], &failed["exit"]), (&json!(2), &json!(0), &Value::Null));
    assert_eq!(failed["reason"], "costs more than a configured rate ever allows");
    assert_eq!(failed["error"], "it is taken to cost 501, and `500/min` allows 500 in all");
    assert!(server.stop().await.hits().iter().all(|hit| hit.path != "/2"), "it was never sent");
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_a_cost_that_is_junk_or_missing_corrects_nothing_and_is_said_once() {
    let server = kit::scripted(|before, _| match before % 4 {
        0 => Answer::ok().header("x-cost", "-7"),
        1 => Answer::ok().header("x-cost", "1e300"),
        2 => Answer::ok().header("x-cost", "NaN"),
        _ => Answer::ok(),
    })
    .await;
    let config = format!(
        "[hosts.\"{host}\"]\nrate = \"100/s tokens\"\n[cost]\nestimate = 10\nheader = \"X-Cost\"\n",
        host = authority(&server)
    );
    let job = Job::of(kit::pages(&server, "p", 12)).unlearned(&config);
    let ran = job.run_all_done(12, &["-v"]).await;
    assert!(job.records().iter().all(|record| record["cost"] == 10), "the estimate stays");
    for words in ["negative", "more than any limit counts", "not a number", "it is not there"] {
        let said = ran.stderr.lines().filter(|line| line.contains("estimates stay") && line.contains(words));
        assert_eq!(said.count(), 1, "{words}:\n{}", ran.stderr);
    }
    let log = server.stop().await;
    let hits = log.hits();
    let took = hits[hits.len() - 1].at - hits[0].at;
    assert!(took >= ms(900), "eleven of ten each wait for a tenth of a second: {took:?}");
}

#[test]
fn the_plan_reckons_with_cost() {
    let line = |n: u32| json!({ "url": format!("http://a.example/{n}"), "method": "POST", "body": "{\"max_tokens\":500}" });
    let job = Job::of((0..21).map(|n| line(n).to_string())).config(
        "hosts.'a.example'.rate = '600/min requests, 30000/min tokens burst 500'\ncost.request = '/max_tokens'\n",
    );
    let said = job.say(&["fetch", "--plan", "urls.txt"]);
    let cells = |line: &str| {
        line.split("  ").map(|c| c.trim().to_owned()).filter(|c| !c.is_empty()).collect::<Vec<_>>()
    };
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(cells(lines[0])[..5], ["host", "items", "cost", "rate", "at least"], "{said}");
    let row = cells(lines[1]);
    assert_eq!(row[1..3], ["21", "10500"], "{said}");
    assert_eq!(row[3], "600/min requests, 30000/min burst 500");
    assert_eq!(row[4], "21s", "20 times 500 of 29501 a minute: {said}");
}
