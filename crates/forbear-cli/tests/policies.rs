//! What each shipped policy must show, as far as one process can show it.
//!
//! Times are a tenth of those that the policies speak of, and rates five times as high, where a test would take minutes
//! otherwise; the shapes stay.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::time::Duration;

use forbear_zoo::naive::{self, NaiveOptions, Retry};
use forbear_zoo::{Answer, Facts, Log, ServerOptions, peak};

use kit::{GRACE, Job, authority, ms, pages, scripted, secs, started, zoo};

/// A server that is shut for a while: the request number `from` shuts it for `shut`, and every refusal tells `told`.
async fn shut_once(from: usize, shut: Duration, told: Duration, latency: Duration) -> forbear_zoo::Server {
    let (mut before, mut until) = (0, None);
    let limiter = move |now: Duration, _: &Facts<'_>| {
        before += 1;
        if before > from && now < *until.get_or_insert(now + shut) {
            return Answer::refused(429).retry_after(told);
        }
        Answer::ok()
    };
    started(limiter, ServerOptions { latency, ..ServerOptions::default() }).await
}

/// What arrived after the first refusal was known, up to the first success after it.
fn until_it_opens(log: &Log) -> usize {
    let first = log.refused().next().expect("it was refused");
    let known = first.sent.unwrap() + GRACE;
    let later = || log.hits().iter().filter(|hit| hit.at > known);
    later().position(|hit| hit.status == 200).expect("it opened again") + 1
}

#[tokio::test(flavor = "multi_thread")]
async fn polite_is_the_default() {
    let job = Job::of(["http://127.0.0.1/"]);
    let (default, named) = (job.say(&["check"]), job.say(&["check", "--policy", "polite"]));
    // The last column tells where a value is from: for the name of the policy that is the one difference.
    let values = |text: &str| -> Vec<String> { text.lines().skip(1).map(str::to_owned).collect() };
    assert!(default.contains("policy polite") && values(&default).len() > 15, "{default}");
    assert_eq!(values(&default), values(&named));
}

#[tokio::test(flavor = "multi_thread")]
async fn polite_meets_a_limit_once_and_learns_its_pace() {
    let server = zoo("token-bucket:rate=25/s,burst=10,hint=seconds", ms(10)).await;
    Job::of(pages(&server, "p", 90)).run_all_done(90, &[]).await;
    let log = server.stop().await;
    kit::assert_pauses_kept(&log);
    assert!(log.refused().count() <= 64, "{} refused", log.refused().count());
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_gate_sends_two_probes_and_nothing_else_when_the_first_one_meets_a_closed_door() {
    // It is shut for 4 s and tells 3 s: the first probe comes too early, by the server's own word.
    let server = shut_once(40, secs(4), secs(3), ms(50)).await;
    let job = Job::of(pages(&server, "p", 80));
    let ran = job.run_all_done(80, &["--policy", "shared-gate", "--workers", "64"]).await;
    let row = ran.row(&server);
    let log = server.stop().await;
    assert_eq!(until_it_opens(&log), 2, "{:#?}", log.probes());
    assert_eq!(row.probes, 2, "{row:?}");
    kit::assert_pauses_kept(&log);
    let opened = log.probes().last().unwrap().hit.at;
    let herd = peak(log.hits().iter().filter(|hit| hit.at >= opened && hit.at < opened + secs(1)), ms(100));
    assert!(herd <= 3, "{herd} within a tenth of a second: the rest follow one by one");
}

/// A server that says 3 s, and 6 s to those who come early.
fn strict() -> impl FnMut(Duration) -> Option<Duration> {
    let mut until: Option<Duration> = None;
    move |now| match until {
        None => Some(*until.insert(now + secs(3)) - now),
        Some(end) if now < end => Some(*until.insert(now + secs(6)) - now),
        Some(_) => None,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_sends_two_requests_and_waits_once_where_doubling_sends_seven() {
    // Doubling from a fifth of a second, on the machine itself: nobody has to wait for that.
    let (mut door, mut now, mut wait, mut sent) = (strict(), Duration::ZERO, ms(200), 1);
    while door(now).is_some() {
        (now, wait, sent) = (now + wait, wait * 2, sent + 1);
    }
    assert_eq!((sent, now), (7, ms(12_600)));

    let mut door = strict();
    let limiter = move |now: Duration, _: &Facts<'_>| match door(now) {
        Some(wait) => Answer::refused(429).retry_after(wait),
        None => Answer::ok(),
    };
    let server = started(limiter, ServerOptions::default()).await;
    let job = Job::of(pages(&server, "p", 1));
    job.run_all_done(1, &["--policy", "retry-after"]).await;
    let log = server.stop().await;
    assert_eq!(log.hits().len(), 2);
    let waited = log.hits()[1].at - log.hits()[0].answered.unwrap();
    assert!(waited >= ms(3750), "the told time and a quarter: {waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_with_the_rate_by_configuration_is_hardly_refused() {
    // Five times faster than 2/s and one retry in 2 s: 10/s, of which sixteen naive workers offer 40.
    const LIMITER: &str = "token-bucket:rate=10/s,burst=4,hint=seconds";
    let (server, theirs) = (zoo(LIMITER, ms(5)).await, zoo(LIMITER, ms(5)).await);
    let rate = format!("{}=10/s", authority(&server));
    let job = Job::of(pages(&server, "p", 60));
    let flags = ["--policy", "retry-after", "--host-rate", &rate];
    let paths = (1..=60).map(|page| format!("/p/{page}")).collect();
    let options = NaiveOptions { workers: 16, retry: Retry::Every(ms(400)), ..NaiveOptions::default() };
    let (ran, naive) = tokio::join!(job.run_all_done(60, &flags), naive::run(theirs.addr(), paths, options));
    let log = server.stop().await;
    let refused = log.refused().count();
    assert!(refused * 50 <= log.hits().len(), "{refused} refused of {}\n{}", log.hits().len(), ran.stderr);
    let share = naive.refused as f64 / naive.sent as f64;
    assert!((0.5..0.95).contains(&share), "about three quarters are refused without: {share}");
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_does_what_its_table_says() {
    // Told, the number of requests at one page within a short run, and where the page is then.
    for (told, sent, left) in [
        (Some("1"), 2, "1 in = 1 accounted for: 1 done"),
        (Some("40"), 1, "1 parked"),
        (Some("400"), 1, "1 parked"),
        (None, 2, "1 in = 1 accounted for: 1 done"),
    ] {
        let server = scripted(move |before, _| match (before, told) {
            (0, Some(told)) => Answer::refused(429).header("retry-after", told),
            (0, None) => Answer::refused(429),
            _ => Answer::ok(),
        })
        .await;
        let job = Job::of(pages(&server, "p", 1));
        let ran = job.run(&["--policy", "retry-after", "--run-for", "20s"]).await;
        assert!(ran.stderr.contains(left), "{told:?}: {}", ran.stderr);
        assert_eq!(server.stop().await.hits().len(), sent, "{told:?}");
        if let Some(told) = told.filter(|_| sent == 1) {
            let export = job.say(&["job", "export", "job"]);
            assert!(export.contains("not_before"), "{told}: put off with a date: {export}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_leaves_a_host_alone_after_25_refusals_in_a_row() {
    // Short guesses, so that it takes no minutes.
    let server = scripted(|_, _| Answer::refused(429)).await;
    let config =
        "policy = \"retry-after\"\nbackoff_base = \"10ms\"\nbackoff_cap = \"10ms\"\npause_cap = \"10ms\"\n";
    let job = Job::of(pages(&server, "p", 60)).config(config);
    let ran = job.run(&["-v", "--run-for", "60s"]).await;
    assert_eq!(ran.status, 4, "{}", ran.stderr);
    assert!(ran.stderr.contains("refuses again and again, pause of 600 s"), "{}", ran.stderr);
    assert_eq!(server.stop().await.hits().len(), 25);
}

/// Everything that arrived within a second from the probe that was admitted.
fn way_back(log: &Log) -> impl Iterator<Item = &forbear_zoo::Hit> {
    let opened = log.probes().last().expect("it opened again").hit.at;
    log.hits().iter().filter(move |hit| hit.at >= opened && hit.at < opened + secs(1))
}

#[tokio::test(flavor = "multi_thread")]
async fn jitter_bucket_nobody_comes_back_with_another() {
    let server = shut_once(10, secs(1), secs(2), ms(20)).await;
    let job = Job::of(pages(&server, "p", 30));
    job.run_all_done(30, &["--policy", "jitter-bucket", "--workers", "50"]).await;
    let log = server.stop().await;
    kit::assert_pauses_kept(&log);
    // The probe, and the one that the bucket's burst of two lets follow it.
    let herd = peak(way_back(&log), ms(100));
    assert!(herd <= 2, "{herd} in a tenth of a second");
    let together = way_back(&log).map(|hit| hit.in_flight).max();
    assert_eq!(together, Some(0), "no two on the wire together");
}

#[tokio::test(flavor = "multi_thread")]
async fn jitter_bucket_fifty_that_are_refused_together_come_back_one_by_one() {
    // The bucket is opened wide, so that fifty are on the wire; then the way back is the gate's alone.
    let server = shut_once(250, secs(1), secs(2), ms(300)).await;
    let config = "policy = \"jitter-bucket\"\npace = \"learned\"\nworkers = 50\nhost_concurrency = 50\n\
                  [hosts.\"*\"]\nrate = \"1000/s burst 100\"\n";
    let job = Job::of(pages(&server, "p", 400)).config(config);
    job.run_all_done(400, &[]).await;
    let log = server.stop().await;
    kit::assert_pauses_kept(&log);
    let refused = log.refused().count();
    // As many as were on the wire, which a busy machine makes fewer.
    assert!(refused >= 12, "only {refused} were refused together");
    let herd = peak(way_back(&log), ms(100));
    assert!(herd * 3 <= refused, "{herd} in a tenth of a second, of {refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn jitter_bucket_the_bucket_in_front_makes_refusals_the_exception() {
    // Ten times the policy's own numbers: 50/s with a burst of 2, before a server that bears 60/s.
    let server = zoo("token-bucket:rate=60/s,burst=15,hint=seconds", ms(5)).await;
    let config = "policy = \"jitter-bucket\"\n[hosts.\"*\"]\nrate = \"50/s burst 2\"\n";
    let job = Job::of(pages(&server, "p", 300)).config(config);
    job.run_all_done(300, &["--workers", "50"]).await;
    let log = server.stop().await;
    let refused = log.refused().count();
    assert!(refused * 100 < log.hits().len(), "{refused} refused of {}", log.hits().len());
}
