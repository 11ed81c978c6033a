//! What an answer through an exit means for the next request of its item.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::fs;

use forbear_zoo::proxy::{Proxy, ProxyOptions};
use kit::Job;
use kit::wiretap::{Wiretap, say};

#[tokio::test(flavor = "multi_thread")]
async fn v2_a_request_that_an_exit_passed_on_and_lost_is_not_sent_twice() {
    // squid's page for an origin that gave no answer in time.
    let head = "HTTP/1.1 504 Gateway Timeout\r\nX-Squid-Error: ERR_READ_TIMEOUT 0";
    let squid = Wiretap::start([127, 0, 0, 1], move |_, stream| say(stream, head, b"<html>"));
    let order = serde_json::json!({ "url": "http://127.0.0.1:9/order", "method": "POST", "body": "one" });
    let job = Job::of([order.to_string()]);
    let list: String = (0..4).map(|n| format!("http://u{n}:pass@{}\n", squid.addr())).collect();
    fs::write(job.path("exits.txt"), list).unwrap();
    let ran = job.run(&["--proxies", "exits.txt"]).await;
    let out = fs::read_to_string(job.path("out.jsonl")).unwrap();
    assert_eq!((ran.status, squid.heads().len()), (3, 1), "{}", ran.stderr);
    assert!(out.contains("\"outcome\":\"unknown\""), "{out}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_redirect_goes_on_by_the_exit_that_it_came_by() {
    let server = Wiretap::start([127, 0, 0, 1], |head, stream| {
        let page = head.split(' ').nth(1).unwrap_or_default();
        match page.strip_prefix("/from") {
            Some(page) => say(stream, &format!("HTTP/1.1 302 Found\r\nLocation: /to{page}"), b""),
            None => say(stream, "HTTP/1.1 200 OK", b"here"),
        }
    });
    let mut proxies = Vec::new();
    for last in 71..77 {
        proxies.push(Proxy::start(ProxyOptions::at(last)).await.unwrap());
    }
    let job = Job::of((0..60).map(|page| server.url(&format!("/from/{page}"))));
    let list: String = proxies.iter().map(|proxy| proxy.url("http", "") + "\n").collect();
    fs::write(job.path("exits.txt"), list).unwrap();
    job.run_all_done(60, &["--proxies", "exits.txt"]).await;
    let mut used = 0;
    for proxy in &proxies {
        let mut pages = [Vec::new(), Vec::new()];
        for asked in proxy.asked() {
            let (to, page) = asked.path.trim_start_matches('/').split_once('/').unwrap();
            pages[usize::from(to == "to")].push(page.to_owned());
        }
        pages.iter_mut().for_each(|pages| pages.sort());
        assert_eq!(pages[0], pages[1], "begun, and gone on with");
        used += usize::from(!pages[0].is_empty());
    }
    assert!(used >= 3, "only {used} exits were used: nothing was tested");
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_job_that_went_by_exits_says_so_before_it_goes_on_directly() {
    let server = Wiretap::start([127, 0, 0, 1], |_, stream| say(stream, "HTTP/1.1 200 OK", b"here"));
    let job = Job::of([server.url("/page")]);
    let note = "earlier runs of this job went out by exits";
    // The second one is longer than the wait that the first leaves to it; a longer first one would leave a longer wait.
    for time in ["2s", "12s"] {
        let ran = job.run(&["--proxy", "http://127.0.0.1:9", "--run-for", time]).await;
        assert_eq!((ran.status, server.heads().len()), (5, 0), "{}", ran.stderr);
        assert!(!ran.stderr.contains(note), "{}", ran.stderr);
        // The exit, and what the system says of it, once.
        assert!(ran.stderr.contains("(exit: connection refused (os error "), "{}", ran.stderr);
    }
    let retried = job.say(&["job", "show", "job"]);
    assert!(retried.contains("its runs went out by exits: give them again"), "{retried}");
    let ran = job.run_all_done(1, &[]).await;
    assert!(ran.stderr.contains(note), "{}", ran.stderr);
}
