//! Rate, concurrency, and that nobody starves (C1-C3, J3).

use std::time::Duration;

use forbear_zoo::{Answer, Log};

use crate::kit::{Clocks, Job, authority, ms, pages, scripted, secs, zoo};

/// What a busy machine may add to the way of one request, and so take from the time between two.
const LATE: Duration = Duration::from_millis(300);

/// Starts are at least `every` apart. Each arrival may be late, none is early, so all is measured against those that were not.
fn assert_spaced(log: &Log, every: Duration) {
    let hits = log.hits();
    for (index, hit) in hits.iter().enumerate() {
        let since_first = hit.at - hits[0].at + LATE;
        assert!(since_first >= every * index as u32, "arrival {index} came {since_first:?} after the first");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_no_window_has_more_starts_than_the_rate() {
    let server = zoo("open", ms(0)).await;
    let rate = format!("{}=20/s", authority(&server));
    Job::of(pages(&server, "p", 60)).run_all_done(60, &["--host-rate", &rate]).await;
    let log = server.stop().await;
    assert_spaced(&log, ms(50));
    assert!(log.peak(secs(1)) <= 20 + 6, "{} in one second", log.peak(secs(1)));
    assert!(log.peak(ms(100)) <= 2 + 6, "a burst of one: {} in a tenth of it", log.peak(ms(100)));
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_an_item_takes_as_many_slots_as_it_costs() {
    let server = zoo("open", ms(0)).await;
    let lines: Vec<String> = (1..=12)
        .map(|page| serde_json::json!({ "url": server.url(&format!("/{page}")), "cost": 5 }).to_string())
        .collect();
    let rate = format!("{}=20/s", authority(&server));
    Job::of(lines).run_all_done(12, &["--host-rate", &rate]).await;
    assert_spaced(&server.stop().await, ms(250));
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_the_rate_of_the_run_counts_over_all_hosts() {
    let (a, b) = (zoo("open", ms(0)).await, zoo("open", ms(0)).await);
    let clocks = Clocks::of(&[&a, &b]);
    let urls = [pages(&a, "p", 20), pages(&b, "p", 20)].concat();
    Job::of(urls).run_all_done(40, &["--rate", "20/s"]).await;
    let logs = [a.stop().await, b.stop().await];
    let mut all: Vec<_> = logs
        .iter()
        .enumerate()
        .flat_map(|(index, log)| log.hits().iter().map(move |hit| (index, hit.clone())))
        .map(|(index, mut hit)| {
            hit.at = clocks.common(index, hit.at);
            hit
        })
        .collect();
    all.sort_by_key(|hit| hit.at);
    assert_spaced(&Log::from_hits(all), ms(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_never_more_in_flight_than_the_cap() {
    let server = zoo("open", ms(40)).await;
    Job::of(pages(&server, "p", 80)).run_all_done(80, &["--host-concurrency", "3"]).await;
    assert_eq!(server.stop().await.max_in_flight(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn c2_never_more_in_flight_than_workers_over_all_hosts() {
    let servers = [zoo("open", ms(60)).await, zoo("open", ms(60)).await, zoo("open", ms(60)).await];
    let clocks = Clocks::of(&servers.iter().collect::<Vec<_>>());
    let urls: Vec<String> = servers.iter().flat_map(|server| pages(server, "p", 30)).collect();
    Job::of(urls).run_all_done(90, &["--workers", "5"]).await;
    let mut steps = Vec::new();
    for (index, server) in servers.into_iter().enumerate() {
        for hit in server.stop().await.hits() {
            steps.push((clocks.common(index, hit.at), 1));
            steps.push((clocks.common(index, hit.finished.unwrap()), -1));
        }
    }
    steps.sort_unstable(); // what ends at the same time goes before what begins
    let (mut now, mut most) = (0, 0);
    for (_, step) in steps {
        now += step;
        most = most.max(now);
    }
    assert!((2..=5).contains(&most), "{most} at once");
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_slow_host_starves_nobody() {
    let (slow, fast) = (zoo("open", secs(2)).await, zoo("open", ms(5)).await);
    let clocks = Clocks::of(&[&slow, &fast]);
    let urls = [pages(&slow, "p", 4), pages(&fast, "p", 60)].concat();
    Job::of(urls).run_all_done(64, &["--workers", "6"]).await;
    let (slow, fast) = (slow.stop().await, fast.stop().await);
    let first_slow = clocks.common(0, slow.hits()[0].answered.unwrap());
    let last_fast = clocks.common(1, fast.hits()[59].at);
    assert!(last_fast < first_slow, "the fast host was done before the slow one had answered once");
}

#[tokio::test(flavor = "multi_thread")]
async fn c3_a_paused_host_holds_no_worker() {
    let paused = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(3)),
        _ => Answer::ok(),
    })
    .await;
    let open = zoo("open", ms(5)).await;
    let clocks = Clocks::of(&[&paused, &open]);
    let urls = [pages(&paused, "p", 5), pages(&open, "p", 60)].concat();
    Job::of(urls).unlearned("").run_all_done(65, &["--workers", "1"]).await;
    let (paused, open) = (paused.stop().await, open.stop().await);
    assert_eq!(paused.sent_into_pause(ms(0)).len(), 0);
    let opened = clocks.common(0, paused.hits()[1].at);
    let last = clocks.common(1, open.hits()[59].at);
    assert!(last < opened, "the only worker was free for the other host during the pause");
}
