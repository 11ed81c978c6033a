//! Scopes: what a refusal stops, and what it does not (S1-S4).

use forbear_zoo::{Answer, Fault, Log};
use serde_json::json;

use crate::kit::{GRACE, Job, authority, ms, pages, scripted, secs, zoo};

/// How many requests of the folder arrived while the first refusal's told time lasted and was known.
fn sent_meanwhile(log: &Log, folder: &str) -> usize {
    let refusal = log.refused().next().expect("something was refused");
    let (from, until) = (refusal.sent.unwrap() + GRACE, refusal.told_until().unwrap());
    log.hits().iter().filter(|hit| hit.at > from && hit.at < until && hit.path.starts_with(folder)).count()
}

/// `/a/` is refused once for 2 s; `/b/` never, but each page of it takes 100 ms.
async fn one_folder_refused(config: impl Fn(&str) -> String) -> Log {
    let mut refused = false;
    let server = scripted(move |_, request| match request.path.starts_with("/a/") {
        true if !std::mem::replace(&mut refused, true) => Answer::refused(429).retry_after(secs(2)),
        _ => Answer::ok().after(ms(100)),
    })
    .await;
    let urls = [pages(&server, "a", 4), pages(&server, "b", 12)].concat();
    let job = Job::of(urls).unlearned(&config(&authority(&server)));
    job.run_all_done(16, &["--workers", "2"]).await;
    server.stop().await
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_a_limit_of_unknown_scope_stops_the_whole_origin() {
    let log = one_folder_refused(|_| String::new()).await;
    assert!(log.sent_into_pause(GRACE).is_empty(), "{:#?}", log.sent_into_pause(GRACE));
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_endpoints_alone_do_not_narrow_a_limit_of_unknown_scope() {
    let config = |host: &str| {
        format!(
            "[[hosts.\"{host}\".endpoints]]\nmatch = \"/a/*\"\n[[hosts.\"{host}\".endpoints]]\nmatch = \"/b/*\"\n"
        )
    };
    let log = one_folder_refused(config).await;
    assert!(log.sent_into_pause(GRACE).is_empty(), "{:#?}", log.sent_into_pause(GRACE));
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_a_policy_narrows_a_limit_to_the_endpoint() {
    let config = |host: &str| {
        format!(
            "scope = [\"origin+endpoint\"]\n\
             [[hosts.\"{host}\".endpoints]]\nmatch = \"/a/*\"\n[[hosts.\"{host}\".endpoints]]\nmatch = \"/b/*\"\n"
        )
    };
    let log = one_folder_refused(config).await;
    assert_eq!(sent_meanwhile(&log, "/a/"), 0, "the endpoint that was refused waits");
    assert!(sent_meanwhile(&log, "/b/") > 0, "the other one goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn s3_a_policy_narrows_a_limit_to_the_account() {
    let mut refused = false;
    let server = scripted(move |_, request| match request.path.starts_with("/a/") {
        true if !std::mem::replace(&mut refused, true) => Answer::refused(429).retry_after(secs(2)),
        _ => Answer::ok().after(ms(100)),
    })
    .await;
    let lines: Vec<String> = (0..16)
        .map(|n| {
            let (folder, key) = if n % 2 == 0 { ("a", "Bearer first") } else { ("b", "Bearer second") };
            json!({ "url": server.url(&format!("/{folder}/{n}")), "headers": { "authorization": key } })
                .to_string()
        })
        .collect();
    let job = Job::of(lines).unlearned("scope = [\"origin+account\"]\n");
    job.run_all_done(16, &["--workers", "2"]).await;
    let log = server.stop().await;
    assert_eq!(sent_meanwhile(&log, "/a/"), 0, "the account that was refused waits");
    assert!(sent_meanwhile(&log, "/b/") > 0, "the other one goes on");
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_a_limit_of_an_account_holds_on_every_origin_where_the_policy_says_so() {
    let first = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(2)),
        _ => Answer::ok(),
    })
    .await;
    let second = zoo("open", ms(200)).await;
    let lines: Vec<String> = (0..16)
        .map(|n| {
            let server = if n % 4 == 0 { &first } else { &second };
            json!({ "url": server.url(&format!("/{n}")), "account": "ours" }).to_string()
        })
        .collect();
    Job::of(lines).unlearned("scope = [\"account\"]\n").run_all_done(16, &["--workers", "1"]).await;
    assert!(longest_silence_of(first, second).await >= secs(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn s1_a_group_shares_one_limit_and_others_do_not() {
    for (grouped, stops) in [(true, true), (false, false)] {
        let first = scripted(|before, _| match before {
            0 => Answer::refused(429).retry_after(secs(2)),
            _ => Answer::ok(),
        })
        .await;
        let second = zoo("open", ms(200)).await;
        let urls: Vec<String> =
            (0..16).map(|n| if n % 4 == 0 { &first } else { &second }.url(&format!("/{n}"))).collect();
        let config = match grouped {
            true => format!("[groups]\nshop = [\"{}\", \"{}\"]\n", authority(&first), authority(&second)),
            false => String::new(),
        };
        Job::of(urls).unlearned(&config).run_all_done(16, &["--workers", "1"]).await;
        let silent = longest_silence_of(first, second).await >= secs(2);
        assert_eq!(silent, stops, "grouped: {grouped}");
    }
}

/// The longest time in which neither of them heard anything.
async fn longest_silence_of(a: forbear_zoo::Server, b: forbear_zoo::Server) -> std::time::Duration {
    let clocks = crate::kit::Clocks::of(&[&a, &b]);
    let (a, b) = (a.stop().await, b.stop().await);
    let mut all: Vec<_> = a.hits().iter().map(|hit| clocks.common(0, hit.at)).collect();
    all.extend(b.hits().iter().map(|hit| clocks.common(1, hit.at)));
    all.sort_unstable();
    all.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn s2_spellings_of_one_host_are_one_scope() {
    let server = scripted(|before, _| match before {
        0 => Answer::refused(429).retry_after(secs(2)),
        _ => Answer::ok(),
    })
    .await;
    let port = server.addr().port();
    let urls: Vec<String> = ["127.0.0.1", "127.1", "0x7f.0.0.1", "2130706433", "127.0.0.1"]
        .iter()
        .map(|host| format!("HTTP://{host}:{port}/"))
        .collect();
    let ran = Job::of(urls).run_all_done(5, &["--host-concurrency", "1"]).await;
    assert_eq!(ran.row(&server).requests, 6);
    let log = server.stop().await;
    assert!(log.sent_into_pause(GRACE).is_empty(), "{:#?}", log.sent_into_pause(GRACE));
}

#[tokio::test(flavor = "multi_thread")]
async fn s4_every_request_on_the_wire_had_a_permit() {
    // Redirects over two hops, refusals, resets before the answer, half bodies, error pages, probes.
    let mut tries = std::collections::HashMap::<String, u32>::new();
    let server = scripted(move |before, request| {
        let path = request.path.to_owned();
        let (folder, page) = path[1..].split_once('/').unwrap();
        let tried = tries.entry(path.clone()).or_default();
        *tried += 1;
        match (folder, *tried) {
            ("hop", _) => Answer { status: 302, ..Answer::ok() }.header("location", format!("/next/{page}")),
            ("next", _) => Answer { status: 307, ..Answer::ok() }.header("location", format!("/p/{page}")),
            ("reset", 1 | 2) => Answer::fault(Fault::Reset),
            ("half", 1) => Answer::fault(Fault::Truncated),
            ("broken", 1) => Answer::fault(Fault::ErrorPage),
            _ if before % 40 == 39 => Answer::refused(429).header("retry-after-ms", "300"),
            _ => Answer::ok(),
        }
    })
    .await;
    let urls: Vec<String> = ["hop", "reset", "half", "broken", "p"]
        .iter()
        .flat_map(|folder| pages(&server, folder, 16))
        .collect();
    let job = Job::of(urls).config("backoff_base = \"50ms\"\nbackoff_cap = \"200ms\"\n");
    let ran = job.run_all_done(80, &[]).await;
    let row = ran.row(&server);
    let log = server.stop().await;
    assert_eq!(log.hits().len(), row.requests, "on the wire, and permits: {row:?}");
    assert_eq!(log.refused().count(), row.refused);
    assert_eq!(log.faults().count(), row.faults);
    assert!(row.requests >= 80 + 2 * 16 + 2 * 16 + 16 + 16, "{row:?}");
    assert!(row.refused > 0 && row.probes > 0, "{row:?}");
}
