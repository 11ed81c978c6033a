//! What is learned about limits beside their pace: pads over told times (P5), and whose the limits are (L6).

use std::time::Duration;

use forbear_zoo::{Answer, Facts, Log, ServerOptions};
use serde_json::{Value, json};

use crate::kit::{GRACE, Job, Ran, assert_pauses_kept, authority, ms, pages, secs, started};

#[tokio::test(flavor = "multi_thread")]
async fn p5_told_times_that_are_short_by_300_ms_are_learned() {
    const WINDOWS: usize = 6;
    const EACH: usize = 2;
    // Shut for 1.3 s from the first refusal after each two, and it says 1 s, as one does that rounds down.
    let (mut served, mut until) = (0, None);
    let limiter = move |now: Duration, _: &Facts<'_>| {
        if until.is_some_and(|until| now >= until) {
            (served, until) = (0, None);
        }
        if served == EACH {
            until.get_or_insert(now + ms(1300));
            return Answer::refused(429).retry_after(secs(1));
        }
        served += 1;
        Answer::ok()
    };
    let server = started(limiter, ServerOptions { latency: ms(10), ..ServerOptions::default() }).await;
    let job = Job::of(pages(&server, "p", (WINDOWS * EACH) as u32));
    job.run_all_done(WINDOWS * EACH, &["--workers", "8"]).await;
    let log = server.stop().await;
    // Of each window: refusals that left after the told time of the first one was over.
    let (mut early, mut first, mut count) = (vec![0; WINDOWS], None, 0);
    for hit in log.hits() {
        if hit.status == 200 {
            (first, count) = (None, count + 1);
            continue;
        }
        let told = *first.get_or_insert_with(|| hit.told_until().unwrap());
        early[count / EACH - 1] += usize::from(hit.at > told);
    }
    eprintln!("probes that came too early, of each window: {early:?}");
    assert!(early[0] > 0, "the first one cannot know: {early:?}");
    // The pad of 50 ms is doubled at least by each: one that passes by chance in between teaches nothing, and none follows the third.
    assert!(early.iter().sum::<usize>() <= 3, "then it is known: {early:?}");
}

/// Half of the requests are limited, by what `whose` says of them: sixty in each window of two seconds. The others never
/// are. A window that is used up refuses all that are on the wire, and that is the evidence. After fourteen seconds it is twenty:
/// a limit that has been learned is not met again for long. The short form has twenty from the start.
async fn half_limited(whose: impl Fn(&Facts<'_>) -> bool + Send + 'static) -> forbear_zoo::Server {
    const WINDOW: u64 = 2;
    let (mut window, mut used) = (0, 0);
    let limiter = move |now: Duration, request: &Facts<'_>| {
        if !whose(request) {
            return Answer::ok();
        }
        if now.as_secs() / WINDOW != window {
            (window, used) = (now.as_secs() / WINDOW, 0);
        }
        if used >= if is_long() && now < secs(14) { 60 } else { 20 } {
            return Answer::refused(429).retry_after(secs(WINDOW - now.as_secs() % WINDOW));
        }
        used += 1;
        Answer::ok()
    };
    started(limiter, ServerOptions { latency: ms(200), ..ServerOptions::default() }).await
}

/// `./test --campaign l6_a_limit` goes on for long enough to see the others go on.
fn is_long() -> bool {
    std::env::var_os("FORBEAR_ROUNDS").is_some()
}

fn items() -> usize {
    if is_long() { 1300 } else { 400 }
}

fn lines(server: &forbear_zoo::Server, items: usize) -> Vec<String> {
    let line = |n: usize| {
        let (key, folder) = (["Bearer one", "Bearer two"][n % 2], ["a", "b"][n / 2 % 2]);
        json!({ "url": server.url(&format!("/{folder}/{n}")), "headers": { "authorization": key } })
            .to_string()
    };
    (0..items).map(line).collect()
}

/// With a learned pace few are on the wire when the limit is met, and how many refusals it takes to know is chance: the short
/// form is unpaced, so that the first of them says it.
fn endpoints(server: &forbear_zoo::Server) -> String {
    let host = authority(server);
    let pace = if is_long() { "learned" } else { "configured" };
    format!(
        "pace = \"{pace}\"\n[[hosts.\"{host}\".endpoints]]\nmatch = \"/a/*\"\n[[hosts.\"{host}\".endpoints]]\nmatch = \"/b/*\"\n"
    )
}

/// What the job knows of whose the limits are.
fn limits(job: &Job) -> Value {
    let shown: Value = serde_json::from_str(&job.say(&["job", "show", "job", "--json"])).unwrap();
    shown["limits"].clone()
}

/// Requests that arrived while a refused one was told to wait, and that was known.
fn served_meanwhile(log: &Log) -> usize {
    let pauses: Vec<_> =
        log.refused().filter_map(|hit| Some((hit.sent? + GRACE, hit.told_until()?))).collect();
    let inside = |at: Duration| pauses.iter().any(|(from, until)| at > *from && at < *until);
    log.hits().iter().filter(|hit| hit.status == 200 && inside(hit.at)).count()
}

fn assert_found(job: &Job, ran: &Ran, log: &Log, part: &str) {
    let limits = limits(job);
    assert_eq!(
        limits[0]["by"],
        part,
        "{limits}\n{}\n{:#?}",
        ran.stderr,
        log.refused().map(|hit| (hit.at, hit.account, hit.path.clone())).collect::<Vec<_>>()
    );
    assert!(limits[0]["served_elsewhere"].as_u64() > limits[0]["refused_elsewhere"].as_u64(), "{limits}");
    let falls = format!("falls on origin+{part} (evidence ");
    assert!(ran.stderr.contains(&falls), "{falls}\n{}", ran.stderr);
    let shown = job.say(&["job", "show", "job"]);
    assert!(shown.contains(&format!("its limits are by {part} (evidence: ")), "{shown}");
    // It takes two incidents to find out, and a third to see what is different.
    if is_long() {
        assert!(served_meanwhile(log) > 5, "the others go on: {}", served_meanwhile(log));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn l6_a_limit_that_is_one_accounts_stops_that_account_alone() {
    let server =
        half_limited(|request| request.account == Some(forbear_zoo::Account::of("Bearer one"))).await;
    let job = Job::of(lines(&server, items())).config(&endpoints(&server));
    let ran = job.run_all_done(items(), &["--workers", "32", "-v"]).await;
    assert_found(&job, &ran, &server.stop().await, "account");
}

#[tokio::test(flavor = "multi_thread")]
async fn l6_a_limit_that_is_one_endpoints_stops_that_endpoint_alone() {
    let server = half_limited(|request| request.path.starts_with("/a/")).await;
    let job = Job::of(lines(&server, items())).config(&endpoints(&server));
    let ran = job.run_all_done(items(), &["--workers", "32", "-v"]).await;
    assert_found(&job, &ran, &server.stop().await, "endpoint");
}

#[tokio::test(flavor = "multi_thread")]
async fn l6_a_limit_that_is_everyones_is_never_taken_for_an_accounts() {
    let server = half_limited(|_| true).await;
    let job = Job::of(lines(&server, 120)).config(&endpoints(&server));
    let ran = job.run_all_done(120, &["--workers", "32", "-v"]).await;
    let log = server.stop().await;
    assert_pauses_kept(&log);
    assert!(!ran.stderr.contains("falls on origin+"), "{}", ran.stderr);
    assert_eq!(limits(&job), json!([]));
}
