//! Pauses: nothing of the scope before they end (P1-P8, T2).

use std::sync::Arc;

use forbear::config::Settings;
use forbear::engine::{FetchOptions, KeepBodies, Run, Stop};
use forbear::input::Source;
use forbear_store::queue::OutputTarget;
use forbear_zoo::Answer;

use crate::kit::{Job, after, assert_pauses_kept, ms, pages, quiet_after, scripted, secs, until, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn p1_nothing_is_sent_into_a_told_pause() {
    let server = zoo("token-bucket:rate=20/s,burst=20,penalty=1s,hint=seconds", ms(10)).await;
    Job::of(pages(&server, "p", 60)).run_all_done(60, &[]).await;
    let log = server.stop().await;
    assert!(log.refused().count() > 0, "the limit was never met, so nothing was tested");
    assert_pauses_kept(&log);
}

/// With one request at a time nothing is ever on its way when the news comes, so there is no grace either.
#[tokio::test(flavor = "multi_thread")]
async fn t2_nothing_starts_before_its_deadline() {
    let server = zoo("fixed-window:limit=3/700ms,phase=first-request,hint=ms", ms(0)).await;
    Job::of(pages(&server, "p", 9)).run_all_done(9, &["--workers", "1"]).await;
    let log = server.stop().await;
    assert!(log.refused().count() > 0);
    let intrusions = log.sent_into_pause(ms(0));
    assert!(intrusions.is_empty(), "{intrusions:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn p2_neither_a_shorter_hint_nor_a_late_success_shortens_a_pause() {
    // Four at once: the first is refused for 3 s, then the second for 1 s, then the others come back well.
    let server = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(3)).after(ms(600)),
        1 => Answer::refused(429).retry_after(secs(1)).after(ms(900)),
        2 | 3 => Answer::ok().after(ms(1200)),
        _ => Answer::ok(),
    })
    .await;
    Job::of(pages(&server, "p", 8)).unlearned("").run_all_done(8, &[]).await;
    let log = server.stop().await;
    assert_eq!(log.pauses().len(), 1, "four were on the wire at once: {:#?}", log.pauses());
    assert_eq!(log.pauses()[0].refusals, 2);
    assert_pauses_kept(&log);
}

#[tokio::test(flavor = "multi_thread")]
async fn p3_what_was_in_flight_is_one_incident() {
    // Four at once, all refused without a time; the probe is refused as well, then all is well.
    let server = scripted(|before, _| match before {
        0..=3 => Answer::refused(429).after(ms(600)),
        4 => Answer::refused(429),
        _ => Answer::ok(),
    })
    .await;
    // Without chance a pause of the level n is exactly 2^n s.
    let job = Job::of(pages(&server, "p", 8)).unlearned("jitter = 0\n");
    let ran = job.run_all_done(8, &["-v"]).await;
    let row = ran.row(&server);
    assert_eq!((row.refused, row.pauses, row.probes), (5, 2, 2), "{row:?}");
    assert!(ran.stderr.contains("pause of 1.0 s"), "{}", ran.stderr);
    assert!(ran.stderr.contains("pause of 2.0 s"), "four refusals raise the level once:\n{}", ran.stderr);
    assert!(!ran.stderr.contains("pause of 4.0 s"), "{}", ran.stderr);
    let log = server.stop().await;
    let hits = log.hits();
    let first_known = hits[..4].iter().filter_map(|hit| hit.answered).min().unwrap();
    assert!(hits[4].at - first_known >= secs(1));
    assert!(quiet_after(&log, 4) >= secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn p4_a_refusal_without_a_usable_time_is_at_least_the_base() {
    // No hint, a told zero, a date that is past, junk.
    let server = scripted(|before, _| {
        let refused = Answer::refused(429);
        match before {
            0 => refused,
            2 => refused.header("retry-after", "0"),
            4 => refused.header("retry-after", "Sun, 06 Nov 1994 08:49:37 GMT"),
            6 => refused.header("retry-after", "soon"),
            _ => Answer::ok(),
        }
    })
    .await;
    let config = "workers = 1\nbackoff_base = \"400ms\"\n";
    Job::of(pages(&server, "p", 10)).unlearned(config).run_all_done(10, &[]).await;
    let log = server.stop().await;
    assert_eq!(log.refused().count(), 4);
    for index in [0, 2, 4, 6] {
        assert!(quiet_after(&log, index) >= ms(400), "{:#?}", log.hits()[index]);
    }
}

/// Runs the engine as a library on one page that is told to wait `told`, and returns how many items are held and parked
/// while it waits.
async fn waiting(told: u64, hold_max: u64) -> (usize, u64) {
    let server = scripted(move |before, _| match before {
        0 => Answer::refused(429).header("retry-after-ms", told.to_string()),
        _ => Answer::ok(),
    })
    .await;
    let job = Job::of(pages(&server, "p", 1));
    let mut settings = Settings::default();
    settings.hold_max = ms(hold_max);
    let options = FetchOptions {
        settings,
        job: job.path("job").into(),
        output: OutputTarget::File(job.path("out.jsonl")),
        input: Some(Source::File(job.path("urls.txt"))),
        bodies: KeepBodies::Inline,
    };
    let run = Run::open(options, Arc::new(|_| {})).await.unwrap();
    let watch = run.watch();
    let ended = tokio::spawn(run.run(Stop::default()));
    until("the item waits", || {
        let progress = watch.progress();
        progress.in_flight == 0 && progress.held as u64 + progress.counts.parked == 1
    })
    .await;
    let progress = watch.progress();
    let summary = ended.await.unwrap().unwrap();
    assert_eq!((summary.counts.done, summary.counts.imported), (1, 1));
    (progress.held, progress.counts.parked)
}

#[tokio::test(flavor = "multi_thread")]
async fn p6_a_wait_within_hold_max_is_held_in_hand_and_a_longer_one_is_parked() {
    // The told time is compared: pad and chance come on top of it.
    let (held, longer) = tokio::join!(waiting(1500, 1500), waiting(1501, 1500));
    assert_eq!(held, (1, 0));
    assert_eq!(longer, (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_a_day_for_a_few_urls_does_not_stop_the_others() {
    let server = zoo("sentence:match=/shut/*,wait=1d,hint=seconds", ms(5)).await;
    let mut urls = pages(&server, "open", 20);
    for (page, at) in [(1, 3), (2, 12)] {
        urls.insert(at, server.url(&format!("/shut/{page}")));
    }
    let job = Job::of(urls);
    let ran = job.run(&[]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert_eq!(job.count("done"), 20);
    assert!(ran.stderr.contains("22 in = 22 accounted for: 20 done, 0 failed, 2 parked"), "{}", ran.stderr);
    let log = server.stop().await;
    for shut in log.refused() {
        assert_eq!(log.of(&shut.path).count(), 1, "{} was told a day, and asked again", shut.path);
        let next = after(&log, shut).find(|hit| hit.at > shut.sent.unwrap() + crate::kit::GRACE);
        if let Some(next) = next {
            assert!(next.at - shut.answered.unwrap() >= secs(1), "the others wait for P4's pause first");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_a_day_for_the_whole_host_costs_one_probe() {
    let server = scripted(|_, _| Answer::refused(429).retry_after(secs(86_400))).await;
    let job = Job::of(pages(&server, "p", 50));
    let ran = job.run(&[]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    let row = ran.row(&server);
    let log = server.stop().await;
    let first_known = log.hits()[0].sent.unwrap() + crate::kit::GRACE;
    let inside: Vec<_> = log.hits().iter().filter(|hit| hit.at > first_known).collect();
    assert_eq!(inside.len(), 1, "one other item asks, once: {inside:#?}");
    assert_eq!(row.probes, 1);
    assert!(log.hits().len() <= 5, "four at the start and the probe");
    assert_eq!(log.distinct_paths(), log.hits().len(), "another item asks, not the same again");
    assert!(inside[0].at - log.hits()[0].answered.unwrap() >= secs(1), "not before P4's pause");
}

#[tokio::test(flavor = "multi_thread")]
async fn p7_no_probe_tests_a_budget_or_a_scope_that_the_server_named() {
    let budget = scripted(|before, _| {
        let left = if before == 0 { "0" } else { "5" };
        let headers =
            [("x-ratelimit-limit", "60"), ("x-ratelimit-remaining", left), ("x-ratelimit-reset", "5000")];
        headers.into_iter().fold(Answer::ok(), |answer, (name, value)| answer.header(name, value))
    })
    .await;
    let named = scripted(|_, _| {
        Answer::refused(429)
            .header("x-ratelimit-scope", "global")
            .header("x-ratelimit-global", "true")
            .retry_after(secs(5000))
    })
    .await;
    for (server, sent) in [(budget, 1), (named, 1)] {
        let job = Job::of(pages(&server, "p", 10));
        let ran = job.run(&["--workers", "1"]).await;
        assert_eq!(ran.status, 4, "{}", ran.stderr);
        let log = server.stop().await;
        assert_eq!(log.hits().len(), sent, "{:#?}\n{}", log.hits(), ran.stderr);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn p8_a_restart_inside_a_pause_waits_for_what_is_left() {
    let server = scripted(|before, _| match before {
        2 => Answer::refused(429).retry_after(secs(4)),
        _ => Answer::ok().after(ms(20)),
    })
    .await;
    let job = Job::of(pages(&server, "p", 12)).unlearned("");
    let mut first = job.start(&["--workers", "1"]);
    until("the refusal", || server.log().refused().any(|hit| hit.delivered)).await;
    // A pause is on disk within 50 ms; this machine may be busy.
    tokio::time::sleep(ms(500)).await;
    first.kill();
    assert_eq!(server.log().hits().len(), 3, "it was killed inside the pause");
    job.run_all_done(12, &["--workers", "4"]).await;
    let log = server.stop().await;
    assert_pauses_kept(&log);
    assert_eq!(log.probes().len(), 1);
}
