//! How a run ends (X2), and what time it goes by (T1).

use std::time::{SystemTime, UNIX_EPOCH};

use forbear_zoo::Answer;
use serde_json::json;

use crate::kit::{Job, ms, pages, scripted, secs, zoo};

/// The moment in `... due at 2026-11-29T13:00:00.000Z; ...`, in milliseconds since 1970.
fn due(line: &str) -> i64 {
    let text = line.split_once("due at ").unwrap_or_else(|| panic!("no time in `{line}`")).1;
    let digits: Vec<i64> =
        text.split(['-', 'T', ':', '.', 'Z']).take(7).map(|n| n.parse().unwrap()).collect();
    let [year, month, day, hour, minute, second, milli] = digits[..] else { panic!("{text}") };
    // Days from the civil date, by the usual count that starts a year in March.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = y * 365 + y / 4 - y / 100 + y / 400 + (m * 153 + 2) / 5 + day - 1 - 719_468;
    ((days * 24 + hour) * 60 + minute) * 60_000 + second * 1000 + milli
}

fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_run_ends_when_nothing_is_due_within_its_time() {
    let server = scripted(|_, _| Answer::refused(429).retry_after(secs(100))).await;
    let job = Job::of(pages(&server, "p", 5));
    let began = now();
    let ran = job.run(&["--run-for", "20s", "--workers", "1"]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(now() - began < 19_000, "it has not waited for its time to be over");
    let last = ran.last_line();
    let due = due(last);
    assert!(due >= began + 100_000 && due < began + 140_000, "{last}");
    assert!(last.contains("go on with: forbear fetch urls.txt -o out.jsonl --job job"), "{last}");
    assert_eq!(server.stop().await.hits().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_run_ends_when_its_time_is_over_and_the_named_command_goes_on() {
    let server = zoo("open", ms(50)).await;
    let job = Job::of(pages(&server, "p", 60));
    let rate = format!("{}=20/s", server.addr());
    let ran = job.run(&["--run-for", "1s", "--host-rate", &rate]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(!job.records().is_empty() && job.records().len() < 60);
    // The command that is named has the same time, and goes on from run to run.
    let command = ran.last_line().split_once("go on with: forbear ").unwrap().1.to_owned();
    let words: Vec<&str> = command.split(' ').collect();
    let mut runs = 1;
    while job.start_with(&words, &[], std::process::Stdio::null()).end().await.status == 4 {
        runs += 1;
        assert!(runs < 20, "only {} done after {runs} runs", job.records().len());
    }
    job.assert_done(60);
    let log = server.stop().await;
    assert_eq!((log.hits().len(), log.distinct_paths()), (60, 60), "what was on the wire had time to end");
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_run_stalls_when_the_earliest_due_time_is_too_far_off() {
    let server = scripted(|_, _| Answer::refused(503).retry_after(secs(200))).await;
    let job = Job::of(pages(&server, "p", 5));
    let began = now();
    let ran = job.run(&["--stall-after", "100s", "--workers", "1"]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(due(ran.last_line()) >= began + 200_000, "{}", ran.last_line());
    assert_eq!(server.stop().await.hits().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_the_stall_is_counted_from_the_told_deadline() {
    // Pad and chance lie beyond it, and the told time is not longer than the stall. One item is held, one is parked.
    for hold_max in ["30s", "1s"] {
        let server = scripted(|before, _| match before {
            0 => Answer::refused(429).retry_after(secs(2)),
            _ => Answer::ok(),
        })
        .await;
        let config = format!("hold_max = \"{hold_max}\"\njitter = 1\n[pad]\nfixed = \"400ms\"\n");
        let job = Job::of(pages(&server, "p", 1)).config(&config);
        job.run_all_done(1, &["--stall-after", "2s"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_run_is_over_when_nothing_is_left_and_not_when_a_lease_would_have_ended() {
    // The others waited for a probe, whose lease is long; it came back at once.
    let server = scripted(|_, request| match request.path {
        "/p/2" => Answer::refused(429).retry_after(secs(86_400)),
        _ => Answer::ok().after(ms(20)),
    })
    .await;
    let job = Job::of(pages(&server, "p", 6)).config("probe_lease = \"140s\"\n");
    let ran = job.run(&["--workers", "4"]).await;
    assert_eq!((ran.status, job.count("done")), (4, 5), "{}", ran.stderr);
    assert!(ran.elapsed < secs(70), "{:?}", ran.elapsed);
}

#[tokio::test(flavor = "multi_thread")]
async fn t1_an_item_starts_by_the_wall_clock_when_it_says_so() {
    let server = zoo("open", ms(0)).await;
    let began = now();
    let at = (began / 1000) + 3;
    let lines = [json!({ "url": server.url("/later"), "not_before": at }).to_string(), server.url("/now")];
    Job::of(lines).run_all_done(2, &[]).await;
    let started = now() - i64::try_from(server.now().as_millis()).unwrap();
    let log = server.stop().await;
    let later = log.of("/later").next().unwrap().at;
    assert!(started + i64::try_from(later.as_millis()).unwrap() + 5 >= at * 1000, "it started early");
    assert!(log.of("/now").next().unwrap().at < later);
}
