//! Two rates at once for one scope, from flag and file to the wire (C1).

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::time::Duration;

use forbear_zoo::Log;
use kit::{Job, authority, ms, pages, secs, zoo};

/// What a busy machine may add to the way of one request, and so take from the time between two.
const LATE: Duration = Duration::from_millis(300);

/// A short window, and a long one whose burst does not fit into it: without the one, thirty would start at once, without
/// the other, all would be done in two seconds.
const TWO: &str = "20/s, 40/3s burst 30";
/// The first window of 3 s is full after forty.
const PAGES: usize = 42;

/// No window of either rate has more than its starts: who comes `count` after another, comes at least the window later.
fn assert_both_kept(log: &Log) {
    let mut hits: Vec<Duration> = log.hits().iter().map(|hit| hit.at).collect();
    hits.sort_unstable();
    assert_eq!(hits.len(), PAGES);
    for (count, window) in [(20, secs(1)), (40, secs(3))] {
        for (first, later) in hits.iter().zip(&hits[count..]) {
            let apart = *later - *first + LATE;
            assert!(apart >= window, "{count} and one more within {apart:?}, from {first:?} on");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_no_window_of_either_rate_of_a_host_has_more_than_its_starts() {
    let server = zoo("open", ms(0)).await;
    let rate = format!("{}={TWO}", authority(&server));
    Job::of(pages(&server, "p", PAGES as u32)).run_all_done(PAGES, &["--host-rate", &rate]).await;
    assert_both_kept(&server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_no_window_of_either_rate_of_the_run_has_more_than_its_starts() {
    let server = zoo("open", ms(0)).await;
    let job = Job::of(pages(&server, "p", PAGES as u32)).config("rate = [\"20/s\", \"40/3s burst 30\"]\n");
    job.run_all_done(PAGES, &[]).await;
    assert_both_kept(&server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_no_window_of_either_rate_of_an_endpoint_has_more_than_its_starts() {
    let server = zoo("open", ms(0)).await;
    let config = format!(
        "[[hosts.\"{}\".endpoints]]\nname = \"search\"\nmatch = \"/search/*\"\nrate = \"{TWO}\"\n",
        authority(&server)
    );
    let job = Job::of(pages(&server, "search", PAGES as u32)).config(&config);
    job.run_all_done(PAGES, &[]).await;
    assert_both_kept(&server.stop().await);
}

#[test]
fn the_plan_shows_both_and_takes_the_time_of_the_slower_one() {
    let job = Job::of((0..101).map(|page| format!("http://a.example/{page}")));
    let least = |rate: &str| {
        let said = job.say(&["fetch", "--plan", "urls.txt", "--host-rate", &format!("a.example={rate}")]);
        let row = said.lines().nth(1).unwrap();
        let cells: Vec<_> = row.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[..3], ["http://a.example", "101", &rate.replace(',', ", ")], "{said}");
        assert!(said.contains(&format!("at least {} by the configured rates", cells[3])), "{said}");
        cells[3].to_owned()
    };
    assert_eq!(least("10/s"), "10s");
    assert_eq!(least("10/s,60/min"), "1m40s");
    assert_eq!(least("60/min,10/s"), "1m40s");
    assert_eq!(least("10/s,1000/h burst 101"), "10s", "the burst of the hour has room for all");
}

#[test]
fn more_rates_than_can_hold_are_refused_with_a_word() {
    let job = Job::of(["http://a.example/"]);
    for (flag, value) in [("--rate", "1/s,2/s,3/s,4/s,5/s"), ("--host-rate", "a.example=1/s,2/s,3/s,4/s,5/s")]
    {
        for command in ["check", "fetch"] {
            let out = job.command(&[command, flag, value]).output().unwrap();
            let said = String::from_utf8(out.stderr).unwrap();
            let wanted = format!("forbear: {flag}: at most 4 rates can hold together, and these are 5");
            assert_eq!(out.status.code(), Some(2), "{command} {flag}: {said}");
            assert!(said.starts_with(&wanted) && said.contains("help: it takes rates"), "{said}");
        }
    }
    let shown = job.say(&["check", "--rate", "10/s,1000/h"]);
    assert!(
        shown.lines().any(|line| line.starts_with("rate ") && line.contains(" 10/s, 1000/h ")),
        "{shown}"
    );
}
