//! Credentials that are refused: the account stops, its items wait, and others bring them back.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::fs;

use forbear_zoo::{Account, Answer, Server};
use kit::{Job, authority, pages, scripted};
use serde_json::json;

const GOOD: &str = "Bearer good";

/// A server that knows one token.
async fn guarded() -> Server {
    scripted(|_, request| match request.account {
        Some(account) if account == Account::of(GOOD) => Answer::ok(),
        _ => Answer::refused(401),
    })
    .await
}

fn config(server: &Server, token: &str) -> String {
    format!("[hosts.\"{}\"]\nheaders = {{ Authorization = \"{token}\" }}\n", authority(server))
}

fn parked(job: &Job) -> Vec<String> {
    let listed = job.say(&["job", "list", "job", "--state", "parked"]);
    listed.lines().skip(1).map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_an_account_that_has_stopped_goes_on_with_other_credentials() {
    let server = guarded().await;
    let job = Job::of(pages(&server, "p", 20)).config(&config(&server, "Bearer bad"));
    let ran = job.run(&["--workers", "1"]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    let records = job.records();
    assert_eq!(records.len(), 1, "the first says nothing about the account: {records:?}");
    assert_eq!((&records[0]["reason"], &records[0]["attempts"]), (&json!("credentials refused"), &json!(1)));
    assert_eq!(parked(&job).len(), 1, "the second stops it; the others were not asked for");

    let again = job.run(&[]).await;
    assert_eq!((again.status, job.records().len()), (4, 1), "the same ones are not tried again");

    fs::write(job.path("forbear.toml"), config(&server, GOOD)).unwrap();
    let renewed = job.run(&[]).await;
    assert_eq!(renewed.status, 3, "{}", renewed.stderr);
    assert!(renewed.stderr.contains("has other credentials, 1 items"), "{}", renewed.stderr);
    assert_eq!((job.count("done"), job.count("failed")), (19, 1));
    assert_eq!(server.stop().await.hits().len(), 2 + 19);
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_the_same_credentials_are_tried_again_when_somebody_says_so() {
    let server = guarded().await;
    let job = Job::of(pages(&server, "p", 5)).config(&config(&server, "Bearer bad"));
    assert_eq!(job.run(&["--workers", "1"]).await.status, 4);
    job.command(&["job", "retry", "job", "--parked"]).output().unwrap();
    assert!(parked(&job).is_empty());
    assert_eq!(job.run(&["--workers", "1"]).await.status, 4);
    assert_eq!(parked(&job).len(), 1);
    assert_eq!(server.stop().await.hits().len(), 4, "two items for each time");
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_stopped_account_holds_up_no_other() {
    let server = guarded().await;
    let line = |account: &str, token: &str, page: u32| {
        let url = server.url(&format!("/{account}/{page}"));
        json!({ "url": url, "account": account, "headers": { "Authorization": token } }).to_string()
    };
    let bad = (1..=5).map(|page| line("bad", "Bearer bad", page));
    let good = ["a", "b", "c"].into_iter().flat_map(|name| (1..=10).map(move |page| (name, page)));
    let lines: Vec<String> = bad.chain(good.map(|(name, page)| line(name, GOOD, page))).collect();
    let job = Job::of(lines);
    let ran = job.run(&["--host-concurrency", "1"]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert_eq!((job.count("done"), job.count("failed")), (30, 1), "{}", ran.stderr);
}
