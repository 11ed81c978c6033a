//! Verdicts: what counts, what is repeated, what is a success (V1-V4).

use std::collections::HashMap;

use forbear_zoo::{Answer, Facts, Fault, ServerOptions};

use crate::kit::{Job, ms, pages, scripted, secs};

/// Short waits.
const QUICK: &str = "backoff_base = \"20ms\"\nbackoff_cap = \"20ms\"\n";

#[tokio::test(flavor = "multi_thread")]
async fn v1_refusals_use_up_no_attempt() {
    // Each page is refused four times and fails once; two attempts are enough.
    let mut tries = HashMap::<String, u32>::new();
    let server = scripted(move |_, request| {
        let tried = tries.entry(request.path.to_owned()).or_default();
        *tried += 1;
        match *tried {
            1..=4 => Answer::refused(429).header("retry-after-ms", "50"),
            5 => Answer::fault(Fault::Truncated),
            _ => Answer::ok(),
        }
    })
    .await;
    let job = Job::of(pages(&server, "p", 3)).unlearned(QUICK);
    job.run_all_done(3, &["--max-attempts", "2"]).await;
    for record in job.records() {
        assert_eq!((&record["limited"], &record["attempts"]), (&4.into(), &2.into()), "{record}");
    }
    assert_eq!(server.stop().await.hits().len(), 18);
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_the_fifth_refusal_of_an_item_parks_it_for_the_next_run() {
    let server = scripted(|before, _| match before {
        0..=4 => Answer::refused(429).header("retry-after-ms", "50"),
        _ => Answer::ok(),
    })
    .await;
    let job = Job::of(pages(&server, "p", 1)).unlearned(QUICK);
    let ran = job.run(&[]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert_eq!(server.log().hits().len(), 5);
    job.run_all_done(1, &[]).await;
    assert_eq!(server.stop().await.hits().len(), 6);
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_faults_are_tried_as_often_as_allowed_and_no_more() {
    let server = scripted(|_, _| Answer::fault(Fault::Reset)).await;
    let job = Job::of(pages(&server, "p", 4)).config("backoff_base = \"20ms\"\nbackoff_cap = \"40ms\"\n");
    let ran = job.run(&["--max-attempts", "3"]).await;
    assert_eq!((ran.status, job.count("failed")), (3, 4), "{}", ran.stderr);
    let log = server.stop().await;
    assert_eq!((log.hits().len(), log.distinct_paths()), (12, 4));
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_what_may_have_been_done_is_not_done_twice() {
    // Refused means not processed: any method goes again. A reset may mean anything.
    let mut tries = HashMap::<String, u32>::new();
    let server = scripted(move |_, request| {
        let tried = tries.entry(request.path.to_owned()).or_default();
        *tried += 1;
        match *tried {
            1 if request.path.starts_with("/refused") => Answer::refused(429).header("retry-after-ms", "50"),
            1 if request.path.starts_with("/down") => Answer::refused(503).header("retry-after-ms", "50"),
            1 if request.path.starts_with("/reset") => Answer::fault(Fault::Reset),
            1 if request.path.starts_with("/half") => Answer::fault(Fault::Truncated),
            _ => Answer::ok(),
        }
    })
    .await;
    let post = |path: &str, more: serde_json::Value| {
        let mut line =
            serde_json::json!({ "url": server.url(path), "method": "POST", "body": "{}", "id": path });
        line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        line.to_string()
    };
    let nothing = serde_json::json!({});
    let lines = [
        post("/refused", nothing.clone()),
        post("/down", nothing.clone()),
        post("/reset/plain", nothing.clone()),
        post("/half/plain", nothing.clone()),
        post("/reset/key", serde_json::json!({ "headers": { "idempotency-key": "k1" } })),
        post("/reset/word", serde_json::json!({ "idempotent": true })),
        post("/reset/put", serde_json::json!({ "method": "PUT" })),
        post("/reset/never", serde_json::json!({ "method": "PUT", "idempotent": false })),
    ];
    let job = Job::of(lines).config("backoff_base = \"50ms\"\nbackoff_cap = \"50ms\"\n");
    let ran = job.run(&[]).await;
    assert_eq!(ran.status, 3, "{}", ran.stderr);
    let outcomes: HashMap<String, String> = job
        .records()
        .iter()
        .map(|record| {
            (record["id"].as_str().unwrap().to_owned(), record["outcome"].as_str().unwrap().to_owned())
        })
        .collect();
    let log = server.stop().await;
    for (path, outcome, sent) in [
        ("/refused", "done", 2),
        ("/down", "done", 2),
        ("/reset/plain", "unknown", 1),
        ("/half/plain", "unknown", 1),
        ("/reset/key", "done", 2),
        ("/reset/word", "done", 2),
        ("/reset/put", "done", 2),
        ("/reset/never", "unknown", 1),
    ] {
        assert_eq!((outcomes[path].as_str(), log.of(path).count()), (outcome, sent), "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v3_retries_after_faults_stay_within_their_budget() {
    let server = scripted(|_, _| Answer::fault(Fault::Reset)).await;
    // Over the budget an item parks for `backoff_cap`, which no run of this length sees the end of.
    let config = "backoff_base = \"10ms\"\nhost_concurrency = 8\n";
    let job = Job::of(pages(&server, "p", 200)).config(config);
    let ran = job.run(&["--run-for", "5s"]).await;
    let log = server.stop().await;
    let first = log.distinct_paths();
    let retries = log.hits().len() - first;
    let took = log.hits().last().unwrap().at - log.hits()[0].at;
    // A hundred saved up, a fifth of the first tries, ten a second.
    let most = 100.0 + 0.2 * first as f64 + 10.0 * (took.as_secs_f64() + 1.0);
    assert_eq!(first, 200);
    assert!(
        (retries as f64) <= most,
        "{retries} retries of {first} in {took:?}, at most {most}\n{}",
        ran.stderr
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn v4_half_a_body_is_a_fault_and_no_result() {
    let mut tries = HashMap::<String, u32>::new();
    let limiter = move |_: std::time::Duration, request: &Facts<'_>| {
        let tried = tries.entry(request.path.to_owned()).or_default();
        *tried += 1;
        let always = request.path.starts_with("/never");
        if always || *tried == 1 { Answer::fault(Fault::Truncated) } else { Answer::ok() }
    };
    let server =
        crate::kit::started(limiter, ServerOptions { body_size: 5000, ..ServerOptions::default() }).await;
    let urls = [pages(&server, "p", 6), pages(&server, "never", 2)].concat();
    let job = Job::of(urls).config("backoff_base = \"20ms\"\nbackoff_cap = \"40ms\"\n");
    let ran = job.run(&["--max-attempts", "3"]).await;
    assert_eq!((ran.status, job.count("done"), job.count("failed")), (3, 6, 2), "{}", ran.stderr);
    for record in job.records() {
        let whole = record["body"].as_str().is_some_and(|body| body.len() == 5000);
        assert_eq!(whole, record["outcome"] == "done", "{record}");
    }
    assert_eq!(server.stop().await.hits().len(), 2 * 6 + 3 * 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn v4_an_attempt_that_takes_too_long_is_a_fault() {
    let server = scripted(|before, _| match before {
        0 => Answer::fault(Fault::Stall(secs(60))),
        _ => Answer::ok().after(ms(10)),
    })
    .await;
    let job = Job::of(pages(&server, "p", 1)).config("backoff_base = \"50ms\"\n");
    job.run_all_done(1, &["--timeout", "1s"]).await;
    assert_eq!(server.stop().await.hits().len(), 2);
}
