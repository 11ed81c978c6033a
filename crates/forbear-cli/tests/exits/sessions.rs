//! E4: what belongs to one exit stays with it: cookies, connections, session tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::{Arc, Mutex};

use forbear_zoo::proxy::{Proxy, ProxyOptions};
use forbear_zoo::{Answer, Facts};

use crate::exit_kit::Exits;
use crate::kit::wiretap::{Wiretap, say};
use crate::kit::{Job, ms, pages, scripted, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn e4_cookies_of_exits_do_not_cross() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&seen);
    let server = Wiretap::start([127, 0, 0, 1], move |head, stream| {
        let client = stream.peer_addr()?.ip().to_string();
        let cookie =
            head.lines().find_map(|line| line.to_lowercase().strip_prefix("cookie: ").map(str::to_owned));
        kept.lock().unwrap().push((client.clone(), cookie));
        say(stream, &format!("HTTP/1.1 200 OK\r\nSet-Cookie: via={client}; Path=/"), b"fine")
    });
    let exits = Exits::start(3).await;
    let job = Job::of((1..=60).map(|page| server.url(&format!("/{page}")))).config("cookies = true\n");
    let listed = exits.listed(&job, "http", "");
    job.run_all_done(60, &[&listed[..], &["--workers", "3"]].concat()).await;
    let seen = seen.lock().unwrap();
    let mut given: BTreeMap<&str, u32> = BTreeMap::new();
    for (client, cookie) in seen.iter().filter_map(|(client, cookie)| Some((client, cookie.as_ref()?))) {
        assert_eq!(*cookie, format!("via={client}"), "another exit's");
        *given.entry(client).or_default() += 1;
    }
    assert_eq!(given.len(), 3, "each exit gives its own back: {given:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_connection_belongs_to_one_user_of_one_proxy() {
    // Two exits that differ in nothing but their credentials (S2).
    let server = zoo("open", ms(5)).await;
    for scheme in ["http", "socks5"] {
        let proxy = Proxy::start(ProxyOptions::at(30)).await.unwrap();
        let job = Job::of(pages(&server, scheme, 60));
        let (one, two) = (proxy.url(scheme, "one:x"), proxy.url(scheme, "two:x"));
        job.run_all_done(60, &["--proxy", &one, "--proxy", &two, "--workers", "4"]).await;
        let mut users: BTreeMap<u64, BTreeSet<String>> = BTreeMap::new();
        for asked in proxy.asked() {
            users.entry(asked.connection).or_default().insert(asked.user_text());
        }
        assert!(users.values().all(|users| users.len() == 1), "{scheme}: shared: {users:?}");
        let all: BTreeSet<String> = users.into_values().flatten().collect();
        assert_eq!(all.len(), 2, "{scheme}: {all:?}");
        let exits: BTreeSet<String> =
            job.records().iter().map(|record| record["exit"].as_str().unwrap().to_owned()).collect();
        assert_eq!(exits.len(), 2, "{scheme}: two exits have two names: {exits:?}");
    }
}

/// The proxy as the one line of a list, marked as standing for many addresses.
fn gateway(job: &Job, proxy: &Proxy, login: &str) -> [&'static str; 2] {
    fs::write(job.path("exits.txt"), format!("{} gateway\n", proxy.url("http", login))).unwrap();
    ["--proxies", "exits.txt"]
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_session_token_stays_until_the_exit_is_left() {
    let server = scripted(|before, _| match before {
        // Denied as unwanted: the exit is left, and its session with it.
        20 => Answer::refused(403),
        _ => Answer::ok().after(ms(2)),
    })
    .await;
    let proxy = Proxy::start(ProxyOptions::at(31)).await.unwrap();
    let job = Job::of(pages(&server, "p", 60)).config("policy = \"exit-state\"\n");
    let ran = job
        .run_all_done(
            60,
            &[&gateway(&job, &proxy, "me-sess-{session}-de:x")[..], &["--workers", "1"]].concat(),
        )
        .await;
    let users: Vec<String> = proxy.asked().iter().map(|asked| asked.user_text()).collect();
    let mut sessions = users.clone();
    sessions.dedup();
    assert!(sessions.len() >= 2, "the token is not changed: {users:?}\n{}", ran.stderr);
    assert_eq!(
        users[..20].iter().collect::<BTreeSet<_>>().len(),
        1,
        "it stays while the exit does: {users:?}"
    );
    for user in &users {
        let token = user.strip_prefix("me-sess-").and_then(|rest| rest.strip_suffix("-de"));
        let token = token.unwrap_or_else(|| panic!("the template was not kept: {user}"));
        assert!(token.len() >= 4 && token.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{user}");
    }
    let again: BTreeSet<&String> = sessions.iter().collect();
    assert_eq!(again.len(), sessions.len(), "a session that was left comes back: {sessions:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn e4_a_rotating_gateway_is_not_judged_as_one_address() {
    // Every fourth request leaves by an address that the site has blocked; the next one is another's.
    let server = scripted(|before, _: &Facts<'_>| match before % 4 {
        3 => Answer::refused(403),
        _ => Answer::ok(),
    })
    .await;
    let proxy = Proxy::start(ProxyOptions::at(32)).await.unwrap();
    let job = Job::of(pages(&server, "p", 60)).config("policy = \"exit-state\"\n");
    let flags = gateway(&job, &proxy, "me-{session}:x");
    job.run_all_done(60, &[&flags[..], &["--workers", "2"]].concat()).await;
    let users: BTreeSet<String> = proxy.asked().iter().map(|asked| asked.user_text()).collect();
    assert!(users.len() >= 10, "a new session after each: {users:?}");
    let kept = job.say(&["job", "show", "job"]);
    assert!(!kept.contains('~'), "no later run meets the address of a session: {kept}");
    assert_eq!(server.stop().await.distinct_paths(), 60);
}
