//! Jobs: nothing lost, nothing twice, whatever happens to the process (J1-J6).

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::process::Stdio;

use forbear_zoo::Answer;

use crate::kit::{Job, ms, pages, scripted, secs, until, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn j1_sigkill_at_any_moment_loses_nothing_and_writes_nothing_twice() {
    let rounds: usize = std::env::var("FORBEAR_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(6);
    let (workers, items) = (8, 60 * (rounds + 1));
    let server = zoo("open", ms(15)).await;
    let job = Job::of(pages(&server, "p", items as u32));
    for round in 0..rounds {
        let goal = server.counts().hits + 10 + (round as u64 * 7) % 40;
        let mut running = job.start(&["--workers", "8"]);
        until("some requests", || {
            server.counts().hits >= goal || running.child.try_wait().unwrap().is_some()
        })
        .await;
        running.kill();
    }
    job.run_all_done(items, &["--workers", "8"]).await;
    let log = server.stop().await;
    assert_eq!(log.distinct_paths(), items);
    let again = log.hits().len() - items;
    // What was answered, but not yet acknowledged as durable, is fetched again as well; that is a few syncs' worth.
    assert!(again <= rounds * (workers + 64), "{again} requests again after {rounds} kills");
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_the_same_command_goes_on_and_has_nothing_to_do_when_all_is_done() {
    let server = zoo("open", ms(1)).await;
    let job = Job::of(pages(&server, "p", 30));
    job.run_all_done(30, &[]).await;
    let before = fs::read(job.path("out.jsonl")).unwrap();
    job.run_all_done(30, &[]).await;
    assert_eq!(fs::read(job.path("out.jsonl")).unwrap(), before);
    assert_eq!(server.stop().await.hits().len(), 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn j2_parked_items_are_in_the_job_and_not_in_the_output() {
    let server = scripted(|_, request| match request.path.ends_with("/2") {
        true => Answer::refused(429).retry_after(secs(4000)),
        false => Answer::ok(),
    })
    .await;
    let job = Job::of(pages(&server, "p", 3));
    assert_eq!(job.run(&["--workers", "1"]).await.status, 4);
    assert_eq!(job.records().len(), 2);
    let listed = job.say(&["job", "list", "job", "--state", "parked", "--json"]);
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.contains(&server.url("/p/2")), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn j3_import_runs_beside_fetching() {
    let server = zoo("open", ms(0)).await;
    let job = Job::of(["unused"]);
    let words = ["fetch", "-", "-o", "out.jsonl", "--job", "job"];
    let mut running = job.start_with(&words, &[], Stdio::piped());
    let mut input = running.child.stdin.take().unwrap();
    for page in 1..=3 {
        writeln!(input, "{}", server.url(&format!("/p/{page}"))).unwrap();
        // The input has not ended, and nobody knows when it will.
        until("the page that was written first", || server.counts().hits >= page).await;
    }
    drop(input);
    let ran = running.end().await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    job.assert_done(3);
}

#[tokio::test(flavor = "multi_thread")]
async fn j4_a_second_run_on_the_same_job_is_refused() {
    let server = zoo("open", ms(20)).await;
    let job = Job::of(pages(&server, "p", 40));
    let rate = format!("{}=20/s", server.addr());
    let first = job.start(&["--host-rate", &rate]);
    until("the first run", || server.counts().hits > 0).await;
    let out = job.command(&["fetch", "urls.txt", "-o", "out.jsonl", "--job", "job"]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("job"), "{said}");
    let ran = first.end().await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    job.assert_done(40);
    assert_eq!(server.stop().await.hits().len(), 40, "the second one sent nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn j4_a_torn_last_line_is_mended() {
    let server = zoo("open", ms(5)).await;
    let job = Job::of(pages(&server, "p", 80));
    let rate = format!("{}=40/s", server.addr());
    let mut running = job.start(&["--host-rate", &rate]);
    until("some records", || job.path("out.jsonl").metadata().is_ok_and(|file| file.len() > 2000)).await;
    running.kill();
    let mut out = OpenOptions::new().append(true).open(job.path("out.jsonl")).unwrap();
    out.write_all(b"{\"id\":77,\"url\":\"http://exa").unwrap();
    drop(out);
    job.run_all_done(80, &[]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn j5_what_came_in_is_accounted_for_whatever_became_of_it() {
    let server = scripted(|_, request| match request.path {
        "/gone" => Answer { status: 404, ..Answer::ok() },
        "/day" => Answer::refused(429).retry_after(secs(86_400)),
        _ => Answer::ok(),
    })
    .await;
    let lines = [
        server.url("/p/1"),
        "# a comment".to_owned(),
        server.url("/gone"),
        "no url at all".to_owned(),
        "{\"url\": 7}".to_owned(),
        server.url("/day"),
        server.url("/p/1"),
        String::new(),
    ];
    let job = Job::of(lines);
    let ran = job.run(&[]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("6 in = 6 accounted for: 2 done, 3 failed, 1 parked"), "{}", ran.stderr);
    assert_eq!((job.count("done"), job.count("failed"), job.records().len()), (2, 3, 5));
    assert!(ran.stderr.contains("input line 4") && ran.stderr.contains("input line 5"), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn j6_the_first_interrupt_finishes_what_is_in_flight_and_saves_the_rest() {
    let server = zoo("open", ms(300)).await;
    let job = Job::of(pages(&server, "p", 40));
    let running = job.start(&["--host-concurrency", "4"]);
    until("a few answers", || server.counts().served >= 6).await;
    running.interrupt();
    let ran = running.end().await;
    assert_eq!(ran.status, 130, "{}", ran.stderr);
    let sent = server.counts().hits;
    assert_eq!(job.count("done") as u64, sent, "what was on the wire was finished");
    assert!(ran.last_line().contains("go on with"), "{}", ran.stderr);
    job.run_all_done(40, &[]).await;
    assert_eq!(server.stop().await.hits().len(), 40, "nothing was fetched twice");
}

#[tokio::test(flavor = "multi_thread")]
async fn j6_the_second_interrupt_leaves_at_once_and_loses_nothing() {
    let server = zoo("open", secs(1)).await;
    let job = Job::of(pages(&server, "p", 8));
    let running = job.start(&[]);
    until("a request", || server.counts().in_flight >= 1).await;
    running.interrupt();
    until("the first one is heard", || running.said().contains("stopping")).await;
    running.interrupt();
    let mut running = running;
    until("the end", || running.child.try_wait().unwrap().is_some()).await;
    assert_eq!(running.child.try_wait().unwrap().unwrap().code(), Some(130));
    job.run_all_done(8, &[]).await;
    assert_eq!(server.stop().await.distinct_paths(), 8);
}
