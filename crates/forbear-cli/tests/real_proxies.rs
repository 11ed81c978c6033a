//! `forbear fetch` through proxies that nobody here wrote: tinyproxy, squid and microsocks, each on an address of its own,
//! judged by the log of an nginx behind them.

#[path = "fetch_kit/mod.rs"]
mod kit;
mod support;

use std::collections::BTreeSet;

use kit::{Job, until};
use support::origin::{Origin, Seen};
use support::proxies::RealProxy;

const USER: &str = "me";
/// What all three take.
const PLAIN: &str = "s3cret-w.ord_1";
/// What squid and microsocks take: everything that has a meaning in a URL, and text beyond ASCII.
const SPECIAL: &str = "p@s:s/w%o%41r#d?x ü€&\"=+";

/// Every byte that is no letter or digit as an escape.
fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte.is_ascii_alphanumeric() {
        true => char::from(byte).to_string(),
        false => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// The requests of one folder.
fn seen(origin: &Origin, folder: &str) -> Vec<Seen> {
    let prefix = format!("/p/{folder}/");
    origin.seen().into_iter().filter(|seen| seen.path.starts_with(&prefix)).collect()
}

/// Pages by http, by https, and by https with HTTP/2, all through one proxy and each asked for once.
async fn carries_all(origin: &Origin, proxy: &RealProxy, scheme: &str, login: &str) {
    let urls = [origin.http("plain", 4), origin.https("tls", 4), origin.h2("two", 4)].concat();
    let job = Job::of(urls).env("SSL_CERT_FILE", &origin.ca());
    job.run_all_done(12, &["--proxy", &proxy.url(scheme, login)]).await;
    for record in job.records() {
        let exit = record["exit"].as_str().unwrap_or_else(|| panic!("no exit: {record}"));
        assert!(exit.contains(&proxy.addr()), "{record}");
        assert_eq!(record["attempts"], 1, "{record}");
    }
    for (folder, protocol) in [("plain", ""), ("tls", "HTTP/1.1"), ("two", "HTTP/2.0")] {
        let seen = seen(origin, folder);
        let paths: BTreeSet<&str> = seen.iter().map(|seen| seen.path.as_str()).collect();
        assert_eq!((seen.len(), paths.len()), (4, 4), "{folder}: {seen:#?}");
        for one in &seen {
            assert_eq!((one.client.as_str(), one.status), (proxy.ip().as_str(), 200), "{one:?}");
            assert!(one.protocol.contains(protocol), "{one:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_real_tinyproxy_carries_http_https_and_http2() {
    let origin = Origin::start();
    let proxy = RealProxy::tinyproxy(61, Some((USER, PLAIN)));
    carries_all(&origin, &proxy, "http", &format!("{USER}:{PLAIN}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_real_squid_carries_http_https_and_http2() {
    let origin = Origin::start();
    let proxy = RealProxy::squid(62, Some((USER, PLAIN)), &[origin.port()]);
    carries_all(&origin, &proxy, "http", &format!("{USER}:{PLAIN}")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_real_microsocks_carries_http_https_and_http2() {
    for scheme in ["socks5", "socks5h"] {
        let origin = Origin::start();
        let proxy = RealProxy::microsocks(63, Some((USER, PLAIN)));
        carries_all(&origin, &proxy, scheme, &format!("{USER}:{PLAIN}")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_real_credentials_arrive_byte_for_byte() {
    for (special, user) in [(SPECIAL, USER), ("p@s:s/w%o#d", "jürgen"), ("a%zz", USER)] {
        // Plain, as far as the rule lets it stand: an escape that is meant as text needs to be escaped.
        let plain = special.replace("%41", "%2541");
        for written in [format!("{user}:{plain}"), format!("{}:{}", escaped(user), escaped(special))] {
            let origin = Origin::start();
            let squid = RealProxy::squid(64, Some((user, special)), &[origin.port()]);
            let socks = RealProxy::microsocks(65, Some((user, special)));
            for (proxy, scheme) in [(&squid, "http"), (&socks, "socks5")] {
                let folder = proxy.ip();
                let urls = [origin.http(&folder, 1), origin.https(&folder, 1)].concat();
                let job = Job::of(urls).env("SSL_CERT_FILE", &origin.ca());
                job.run_all_done(2, &["--proxy", &proxy.url(scheme, &written)]).await;
                assert_eq!(seen(&origin, &folder).len(), 2);
            }
        }
    }
}

/// A wrong password: no usable exit, nothing asked and nothing lost; with the right one the same job goes on.
async fn turned_away(origin: &Origin, proxy: &RealProxy, scheme: &str, urls: Vec<String>) {
    let items = urls.len();
    let job = Job::of(urls).env("SSL_CERT_FILE", &origin.ca());
    let ran = job.run(&["--proxy", &proxy.url(scheme, "me:Zk7wrong")]).await;
    assert_eq!(ran.status, 5, "{}", ran.stderr);
    assert!(ran.stderr.contains(&proxy.addr()), "it does not name the exit:\n{}", ran.stderr);
    assert!(!ran.stderr.contains("Zk7wrong"), "{}", ran.stderr);
    assert!(job.records().is_empty(), "no item has an end: {:?}", job.records());
    assert!(origin.seen().is_empty(), "nobody went round the proxy: {:?}", origin.seen());
    job.run_all_done(items, &["--proxy", &proxy.url(scheme, &format!("{USER}:{PLAIN}"))]).await;
    assert!(job.records().iter().all(|record| record["attempts"] == 1), "{:?}", job.records());
    assert!(origin.seen().iter().all(|seen| seen.client == proxy.ip()));
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_real_squid_that_turns_us_away_is_no_usable_exit() {
    let origin = Origin::start();
    let proxy = RealProxy::squid(66, Some((USER, PLAIN)), &[origin.port()]);
    turned_away(&origin, &proxy, "http", [origin.http("a", 5), origin.https("b", 5)].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_real_microsocks_that_turns_us_away_is_no_usable_exit() {
    let origin = Origin::start();
    let proxy = RealProxy::microsocks(67, Some((USER, PLAIN)));
    turned_away(&origin, &proxy, "socks5", [origin.http("a", 5), origin.https("b", 5)].concat()).await;
}

/// tinyproxy says 401 to a wrong password where 407 would be right.
#[tokio::test(flavor = "multi_thread")]
async fn e5_real_tinyproxy_that_turns_us_away_is_no_usable_exit() {
    let origin = Origin::start();
    let proxy = RealProxy::tinyproxy(68, Some((USER, PLAIN)));
    turned_away(&origin, &proxy, "http", [origin.http("a", 5), origin.https("b", 5)].concat()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_real_a_tunnel_that_squid_denies_goes_by_another_exit() {
    let origin = Origin::start();
    let squid = RealProxy::squid(69, None, &[1]);
    let tinyproxy = RealProxy::tinyproxy(70, None);
    let urls = [origin.https("tls", 20), origin.http("plain", 20)].concat();
    let job = Job::of(urls).env("SSL_CERT_FILE", &origin.ca());
    let flags = ["--proxy", &squid.url("http", ""), "--proxy", &tinyproxy.url("http", "")];
    job.run_all_done(40, &[&flags[..], &["--max-attempts", "1", "--workers", "4"]].concat()).await;
    assert!(squid.said().contains("TCP_DENIED/403"), "squid was never asked for a tunnel:\n{}", squid.said());
    assert!(seen(&origin, "tls").iter().all(|seen| seen.client == tinyproxy.ip()));
    let plain: BTreeSet<String> = seen(&origin, "plain").into_iter().map(|seen| seen.client).collect();
    assert!(plain.contains(&squid.ip()), "squid works on for what it does not deny: {plain:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_real_a_proxy_that_dies_in_mid_run_costs_no_item() {
    let origin = Origin::start();
    let tinyproxy = RealProxy::tinyproxy(71, None);
    let squid = RealProxy::squid(72, None, &[origin.port()]);
    let mut socks = RealProxy::microsocks(73, None);
    let job = Job::of([origin.http("plain", 150), origin.https("tls", 150)].concat())
        .env("SSL_CERT_FILE", &origin.ca())
        .unlearned("rate = \"40/s\"\n");
    let proxies = [tinyproxy.url("http", ""), squid.url("http", ""), socks.url("socks5", "")];
    let mut flags: Vec<&str> = proxies.iter().flat_map(|url| ["--proxy", url]).collect();
    flags.extend(["--max-attempts", "2"]);
    let running = job.start(&flags);
    let by = |ip: &str| origin.seen().iter().filter(|seen| seen.client == ip).count();
    until("the proxy that is to die has work", || by(&socks.ip()) >= 15).await;
    let before = origin.seen().len();
    assert!(before < 250, "the run is nearly over before the proxy dies: {before}");
    socks.kill();
    let ran = running.end().await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    job.assert_done(300);
    let late = origin.seen().len() - before;
    assert!(by(&tinyproxy.ip()) + by(&squid.ip()) >= late, "the others took over");
    // What the proxy took down with it may count once; who only finds it dead loses nothing.
    let again = job.records().iter().filter(|record| record["attempts"] != 1).count();
    assert!(again <= 10, "{again} items lost an attempt\n{}", ran.stderr);
}
