//! S3, S5, C1: what a limit counts when there are exits, and that no change of exit gets round a pause.

use std::time::Duration;

use forbear_zoo::{Answer, Facts, Log, ServerOptions};

use crate::exit_kit::{Exits, assert_never_direct, exit_of};
use crate::kit::{GRACE, Job, authority, ms, pages, secs, started, zoo};

pub(crate) const EIGHT: usize = 8;

/// Starts a second between the first and the last request.
fn pace(log: &Log) -> f64 {
    let [first, .., last] = log.hits() else { panic!("no two requests") };
    (log.hits().len() - 1) as f64 / (last.at - first.at).as_secs_f64()
}

/// At most 2 % refused.
pub(crate) fn assert_hardly_refused(log: &Log) {
    let refused = log.refused().count();
    assert!(refused * 50 <= log.hits().len(), "{refused} refused of {}", log.hits().len());
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_eight_exits_with_a_limit_each_have_eight_times_its_pace() {
    let server = zoo("token-bucket:rate=5/s,burst=2,scope=client,hint=seconds", ms(10)).await;
    let exits = Exits::start(EIGHT).await;
    let config = format!("scope = [\"origin+exit\"]\n[hosts.\"{}\"]\nrate = \"5/s\"\n", authority(&server));
    let job = Job::of(pages(&server, "p", 600)).config(&config);
    let ran = job.run_all_done(600, &exits.listed(&job, "http", "")).await;
    let log = server.stop().await;
    assert_never_direct(&log);
    assert_hardly_refused(&log);
    let pace = pace(&log);
    eprintln!("{pace:.1}/s of 40/s, {} refused of {}", log.refused().count(), log.hits().len());
    assert!(pace >= 0.9 * 40.0, "{pace:.1}/s of 40/s\n{}", ran.stderr);
}

/// A site that refuses, from the request number `from` on and for 2 s, everything that `whom` tells.
pub(crate) async fn refusing_for_a_while(
    from: usize,
    whom: impl Fn(&Facts<'_>) -> bool + Send + 'static,
) -> forbear_zoo::Server {
    let (mut before, mut until) = (0, None);
    let limiter = move |now: Duration, request: &Facts<'_>| {
        before += usize::from(whom(request));
        match whom(request) && before > from {
            true if now < *until.get_or_insert(now + secs(2)) => Answer::refused(429).retry_after(secs(2)),
            _ => Answer::ok(),
        }
    };
    started(limiter, ServerOptions { latency: ms(20), ..ServerOptions::default() }).await
}

/// Requests that arrived after the refusal `index` was known and before its told time was over.
pub(crate) fn inside(log: &Log, index: usize) -> Vec<Option<usize>> {
    let refusal = log.refused().nth(index).expect("it was refused");
    let (known, until) = (refusal.sent.unwrap() + GRACE, refusal.told_until().unwrap());
    log.hits().iter().filter(|hit| hit.at > known && hit.at < until).map(exit_of).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_a_second_exit_refused_meanwhile_closes_the_origin_for_all() {
    // The limit is everybody's, though the policy takes it for the exit's.
    let server = refusing_for_a_while(40, |_| true).await;
    let exits = Exits::start(6).await;
    let job = Job::of(pages(&server, "p", 120)).unlearned("rate = \"20/s\"\nscope = [\"origin+exit\"]\n");
    job.run_all_done(120, &exits.listed(&job, "http", "")).await;
    let log = server.stop().await;
    assert_never_direct(&log);
    let refused: Vec<_> = log.refused().map(exit_of).collect();
    let first = log.refused().next().unwrap();
    let second =
        log.refused().position(|hit| exit_of(hit) != exit_of(first)).expect("a second exit was refused");
    assert_eq!(inside(&log, second), [], "refused: {refused:?}");
    assert!(refused.len() <= 6, "{refused:?}");
}
