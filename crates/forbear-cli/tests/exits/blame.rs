//! V1, E1: who is to blame for a failure. What an exit did wrong never counts against the item.

use forbear_zoo::proxy::{Behaviour, Form, ProxyOptions};
use forbear_zoo::{Answer, Server};
use serde_json::json;

use crate::exit_kit::{Exits, assert_never_direct};
use crate::kit::{Job, ms, pages, scripted, zoo};
use crate::support::origin::Origin;

/// How a request goes out: absolute form, and tunnels by CONNECT and by SOCKS.
const FORMS: [Form; 3] = [Form::Absolute, Form::Connect, Form::Socks];
const ITEMS: usize = 8;

/// One exit does `behaviour`, the other its work; every item may have so many attempts, and is done.
async fn all_is_done(form: Form, behaviour: Behaviour, attempts: &str) {
    let name = format!("{form:?}, {behaviour:?}");
    let origin = Origin::start();
    let exits = Exits::start(2).await;
    let its = behaviour.clone();
    exits.behave(0, move |_| its.clone());
    let folder = "p";
    let urls = match form {
        Form::Connect => origin.https(folder, ITEMS as u32),
        _ => origin.http(folder, ITEMS as u32),
    };
    let job = Job::of(urls).env("SSL_CERT_FILE", &origin.ca());
    let scheme = if form == Form::Socks { "socks5" } else { "http" };
    let listed = exits.listed(&job, scheme, "");
    let flags = ["--max-attempts", attempts, "--timeout", "2s", "--workers", "2"];
    let ran = job.run(&[&listed[..], &flags].concat()).await;
    assert_eq!(ran.status, 0, "{name}: {}\n{:#?}", ran.stderr, job.records());
    job.assert_done(ITEMS);
    assert!(exits.passed().iter().any(|one| one.exit == 0), "{name}: the faulty one was never tried");
    assert!(exits.all.iter().flat_map(|exit| exit.asked()).all(|asked| asked.form == form), "{name}");
    for seen in origin.seen() {
        assert_ne!(seen.client, "127.0.0.1", "{name}: went past the exits");
    }
}

async fn each_costs_no_attempt(cases: impl IntoIterator<Item = (Form, Behaviour)>) {
    each_is_done(cases, "1").await;
}

/// All at once: most of their time is waiting.
async fn each_is_done(cases: impl IntoIterator<Item = (Form, Behaviour)>, attempts: &'static str) {
    let mut running = tokio::task::JoinSet::new();
    for (form, behaviour) in cases {
        running.spawn(all_is_done(form, behaviour, attempts));
        if running.len() >= 4 {
            running.join_next().await.unwrap().unwrap();
        }
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_an_exit_that_answers_for_itself_costs_no_attempt() {
    let limited = || Behaviour::status(429).header("retry-after", "2");
    let http = [
        Behaviour::status(407),
        Behaviour::status(407).closing(),
        limited(),
        limited().closing(),
        Behaviour::status(502).closing(),
        Behaviour::status(503).closing(),
        Behaviour::status(504),
    ];
    each_costs_no_attempt(http.into_iter().map(|behaviour| (Form::Connect, behaviour))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_an_exit_that_turns_us_away_without_a_tunnel_costs_no_attempt() {
    let absolute = [Behaviour::status(407), Behaviour::status(407).closing()];
    each_costs_no_attempt(absolute.into_iter().map(|behaviour| (Form::Absolute, behaviour))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_a_socks_exit_that_says_no_costs_no_attempt() {
    // General failure, not allowed, network and host unreachable, refused, expired, and a code that nobody knows.
    let codes = [1, 2, 3, 4, 5, 6, 99];
    each_costs_no_attempt(codes.into_iter().map(|code| (Form::Socks, Behaviour::Reply(code)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_an_exit_that_breaks_off_or_says_nothing_costs_no_attempt() {
    let faults = [Behaviour::ResetBefore, Behaviour::CloseBefore, Behaviour::Stall];
    each_costs_no_attempt(FORMS.into_iter().flat_map(|form| faults.clone().map(|fault| (form, fault)))).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_what_broke_inside_a_tunnel_goes_by_another_exit() {
    // Who broke it, exit or origin, nobody can know: it is an attempt, and the next one is another exit's.
    let faults = [Behaviour::ResetAfter, Behaviour::StallAfter];
    let cases =
        [Form::Connect, Form::Socks].into_iter().flat_map(|form| faults.clone().map(|fault| (form, fault)));
    // A page of the exit's own is no page to a client that wants TLS.
    each_is_done(cases.chain([(Form::Connect, Behaviour::OwnPage)]), "2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_a_dead_exit_costs_no_attempt() {
    let server = zoo("open", ms(0)).await;
    let exits = Exits::start(2).await;
    exits.all[0].shut();
    let job = Job::of(pages(&server, "p", 20));
    let listed = exits.listed(&job, "http", "");
    let ran = job.run_all_done(20, &[&listed[..], &["--max-attempts", "1"]].concat()).await;
    let row = ran.row(&server);
    assert!(row.requests > 20 && row.faults == 0, "it is no fault of the site: {row:?}");
    assert_never_direct(&server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_a_page_of_the_exits_own_without_a_tunnel_is_told_apart_by_the_record() {
    let server = zoo("open", ms(5)).await;
    let exits = Exits::start(2).await;
    exits.behave(0, |_| Behaviour::OwnPage);
    let job = Job::of(pages(&server, "p", 30));
    job.run_all_done(30, &exits.listed(&job, "http", "")).await;
    let mut own = 0;
    for record in job.records() {
        let exit = usize::from(record["exit"].as_str().is_some_and(|exit| exit.contains(&exits.name(1))));
        let is_own = record["body"].as_str().unwrap().contains("the proxy's own");
        assert_eq!(is_own, exit == 0, "{record}");
        own += usize::from(is_own);
    }
    assert!(own > 0, "the exit with the page was never used");
    assert_eq!(server.stop().await.hits().len() + own, 30);
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_a_connection_that_an_exit_closes_at_rest_costs_nothing() {
    let server = zoo("open", ms(0)).await;
    let options = ProxyOptions { answers_per_connection: Some(3), ..ProxyOptions::at(11) };
    let proxy = forbear_zoo::proxy::Proxy::start(options).await.unwrap();
    // A request that may not be sent twice is sent again: it was certainly never read.
    let lines = pages(&server, "p", 60)
        .into_iter()
        .map(|url| json!({ "url": url, "method": "POST", "body": "x" }).to_string());
    // With time between them, so that the end of a connection is known before the next request.
    let job = Job::of(lines).unlearned("rate = \"40/s\"\n");
    let flags = ["--proxy", &proxy.url("http", ""), "--max-attempts", "1"];
    job.run_all_done(60, &flags).await;
    let log = server.stop().await;
    assert_eq!((log.hits().len(), log.distinct_paths()), (60, 60), "each once");
    assert_never_direct(&log);
    assert!(proxy.asked().last().unwrap().connection >= 20, "no connection carries more than three");
}

#[tokio::test(flavor = "multi_thread")]
async fn v2_a_post_that_an_exit_took_down_with_it_is_unknown() {
    // The request reached the server, and its answer never came back.
    let server = zoo("open", ms(0)).await;
    let exits = Exits::start(2).await;
    for index in 0..2 {
        exits.behave(index, |_| Behaviour::ResetAfter);
    }
    let post = json!({ "url": server.url("/post"), "method": "POST", "body": "x" }).to_string();
    let job = Job::of([post]);
    let ran = job.run(&exits.listed(&job, "http", "")).await;
    assert_eq!((ran.status, job.count("unknown")), (3, 1), "{}", ran.stderr);
    assert_eq!(server.stop().await.hits().len(), 1, "not a second time by the other exit");
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_a_certificate_that_is_wrong_is_no_exits_fault_and_not_tried_again() {
    let origin = Origin::start();
    let exits = Exits::start(3).await;
    let job = Job::of([origin.https("tls", 4), origin.http("plain", 30)].concat()); // nobody told it of the certificate
    let listed = exits.listed(&job, "http", "");
    let ran = job.run(&[&listed[..], &["--workers", "2"]].concat()).await;
    assert_eq!((ran.status, job.count("failed"), job.count("done")), (3, 4, 30), "{}", ran.stderr);
    for record in job.records().iter().filter(|record| record["outcome"] == "failed") {
        assert_eq!(record["attempts"], 1, "{record}");
        assert!(record["error"].as_str().unwrap().contains("certificate"), "{record}");
    }
    let tunnels =
        exits.all.iter().flat_map(|exit| exit.asked()).filter(|one| one.form == Form::Connect).count();
    assert_eq!(tunnels, 4, "one for each item");
    for index in 0..3 {
        let plain = exits.all[index].asked().iter().filter(|one| one.form == Form::Absolute).count();
        assert!(plain >= 3, "exit {index} was left for it: {plain} of 30");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn v1_what_the_origin_refuses_marks_no_exit_as_dead() {
    // Every page is an error of the origin's own: exits stay in turn, and items have their attempts.
    let server: Server = scripted(|before, _| match before % 2 {
        0 => Answer { status: 404, ..Answer::ok() },
        _ => Answer { status: 410, ..Answer::ok() },
    })
    .await;
    let exits = Exits::start(3).await;
    let job = Job::of(pages(&server, "p", 60));
    let ran = job.run(&[&exits.listed(&job, "http", "")[..], &["--workers", "3"]].concat()).await;
    assert_eq!((ran.status, job.count("failed")), (3, 60), "{}", ran.stderr);
    assert_eq!(exits.passed().len(), 60, "once each");
    for index in 0..3 {
        let count = exits.passed().iter().filter(|one| one.exit == index).count();
        assert!(count >= 8, "exit {index} was left: {count} of 60");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_one_target_that_cannot_be_reached_is_not_the_exits_fault_for_others() {
    // 502 and 504 to CONNECT for one target: three different exits say so, then it is the origin's fault.
    let (origin, dead) = (Origin::start(), "127.0.0.240:9");
    let exits = Exits::start(4).await;
    for index in 0..4 {
        let status = if index % 2 == 0 { 502 } else { 504 };
        exits.behave(index, move |asked| match asked.origin == dead {
            true => Behaviour::status(status),
            false => Behaviour::Carry,
        });
    }
    let gone = (1..=4).map(|page| format!("https://{dead}/{page}")).collect();
    let job = Job::of([gone, origin.https("p", 20)].concat()).env("SSL_CERT_FILE", &origin.ca());
    let listed = exits.listed(&job, "http", "");
    let ran = job.run(&[&listed[..], &["--max-attempts", "2"]].concat()).await;
    assert_eq!((ran.status, job.count("done"), job.count("failed")), (3, 20, 4), "{}", ran.stderr);
    let tries = exits.passed().iter().filter(|one| one.origin == dead).count();
    assert!(tries <= 4 * 5, "{tries} tunnels for 4 items that may have two attempts each");
}
