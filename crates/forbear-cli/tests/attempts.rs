//! What a record says of its attempts is what the server saw.

#[path = "fetch_kit/mod.rs"]
mod kit;

use forbear_zoo::{Answer, Fault};
use kit::{Job, scripted, secs};
use serde_json::{Value, json};

#[tokio::test(flavor = "multi_thread")]
async fn v1_each_request_counts_once_however_its_item_ends() {
    let server = scripted(|_, request| match request.bare_path() {
        "/large" => Answer::ok().body(vec![b'x'; 5000]),
        "/gone" => Answer::refused(404),
        "/short" | "/post" => Answer::fault(Fault::Truncated),
        "/busy" => Answer::refused(500),
        _ => Answer::ok(),
    })
    .await;
    let paths = ["/large", "/gone", "/short", "/busy", "/fine"];
    let mut lines: Vec<String> = paths.iter().map(|path| server.url(path)).collect();
    lines.push(json!({ "url": server.url("/post"), "method": "POST", "body": "x" }).to_string());
    let job = Job::of(lines).config("body_max = \"1KiB\"\nbackoff_base = \"50ms\"\n");
    let ran = job.run(&["--max-attempts", "3"]).await;
    assert_eq!(ran.status, 3, "{}", ran.stderr);
    let log = server.stop().await;
    let records = job.records();
    assert_eq!(records.len(), 6);
    for record in &records {
        let path = record["url"].as_str().unwrap().rsplit_once('/').unwrap().1;
        let seen = log.hits().iter().filter(|hit| hit.path.trim_start_matches('/') == path).count();
        assert_eq!(record["attempts"], json!(seen), "{record}");
    }
    // The job says the same of what failed, and why.
    let listed = job.say(&["job", "list", "job", "--state", "failed", "--json"]);
    for line in listed.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        let record = records.iter().find(|record| record["id"] == line["id"]).unwrap();
        assert_eq!((&line["attempts"], &line["reason"]), (&record["attempts"], &record["error"]), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_what_a_parked_item_waits_stands_in_its_record() {
    let server = scripted(
        |before, _| if before == 0 { Answer::refused(429).retry_after(secs(2)) } else { Answer::ok() },
    )
    .await;
    let job = Job::of([server.url("/p")]).config("hold_max = \"1s\"\n");
    let first = job.run(&["--run-for", "1s"]).await;
    assert_eq!(first.status, 4, "parked beyond the run: {}", first.stderr);
    job.run_all_done(1, &[]).await;
    let record = &job.records()[0];
    assert!(record["waited_s"].as_f64().unwrap() >= 2.0, "{record}");
    assert_eq!(record["limited"], json!(1));
}
