//! Exits that pass requests on without a tunnel: HTTP proxies and `http` origins.

mod client_kit;

use std::time::Duration;

use client_kit::exits::{Act, Proxy, say, way};
use client_kit::{End, LONG, Server, by, headers, post, read_head};
use forbear::client::{
    Client, ClientOptions, Fault, FaultKind, Hop, Limits, Phase, Processed, Request, Target,
};
use forbear::permit::Permit;
use forbear_core::exit::Answerer;
use forbear_core::outcome::ExitFault;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const SHORT: Duration = Duration::from_millis(200);

fn target(url: &str) -> Target {
    Target::parse(url).unwrap()
}

#[tokio::test]
async fn e6_a_proxy_gets_the_whole_target_and_our_credentials_unasked() {
    let proxy = Proxy::start(|_, _| say(OK, End::Keep)).await;
    let (client, way) = (Client::default(), way(&proxy.url("http", "u:p%40%3A%2F%25%23%20%C3%BC%FF@")));
    let stray = headers(&[("proxy-authorization", "Basic c3RyYXk="), ("authorization", "Bearer origins")]);
    for (turn, url) in
        ["http://a.test/x?y=%7B", "http://a.test", "http://[::1]:81/v6"].into_iter().enumerate()
    {
        let request = Request { headers: stray.clone(), ..Request::get(target(url)) };
        let mut response =
            client.send(&Permit::unmetered(), request, &way, &Limits::within(LONG)).await.unwrap();
        assert_eq!((response.reused, response.remote), (turn == 1, proxy.server.address), "{url}");
        assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    }
    // p, then `@:/%# ü` and the byte 0xFF
    let basic = "proxy-authorization: Basic dTpwQDovJSMgw7z/";
    let heads = proxy.heads();
    for (head, (line, host)) in heads.iter().zip([
        ("GET http://a.test/x?y=%7B HTTP/1.1", "host: a.test"),
        ("GET http://a.test/ HTTP/1.1", "host: a.test"),
        ("GET http://[::1]:81/v6 HTTP/1.1", "host: [::1]:81"),
    ]) {
        let lines: Vec<&str> = head.lines().collect();
        assert_eq!(lines[0], line);
        assert!(lines.contains(&host) && lines.contains(&"authorization: Bearer origins"), "{head}");
        let ours: Vec<&&str> = lines.iter().filter(|line| line.starts_with("proxy-")).collect();
        assert_eq!(ours, [&basic], "{head}");
    }
    assert_eq!(proxy.server.connections(), 2, "one for each origin");
}

#[tokio::test]
async fn e6_an_exit_without_credentials_gets_none_and_a_body_goes_along() {
    let origin = Server::answering(OK, End::Close).await;
    let proxy = Proxy::start(|_, _| Act::Serve).await;
    let (client, way) = (Client::default(), way(&proxy.url("http", "")));
    let mut response = by(&client, &way, origin.target("/through")).await.unwrap();
    assert_eq!(response.answered_by, Answerer::Origin);
    assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    assert!(!proxy.heads()[0].contains("proxy-"), "{:?}", proxy.heads());

    let echo = Server::start(|mut stream, _| async move {
        let _ = read_head(&mut stream).await;
        let mut body = [0; 4];
        tokio::io::AsyncReadExt::read_exact(&mut stream, &mut body).await.unwrap();
        let answer = [b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\n", &body[..]].concat();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &answer).await.unwrap();
    })
    .await;
    let way = client_kit::exits::way(&format!("http://{}", echo.address));
    let request = post(target("http://a.test/"), "ping");
    let sent = client.send(&Permit::unmetered(), request, &way, &Limits::within(LONG)).await;
    assert_eq!(sent.unwrap().body.collect(10).await.unwrap(), "ping");
}

async fn fault(client: &Client, proxy: &Proxy, end: End) -> Fault {
    let limits = Limits::within(if matches!(end, End::Hang) { SHORT } else { LONG });
    let way = way(&proxy.url("http", "u:p@"));
    let sent = client.send(&Permit::unmetered(), Request::get(target("http://a.test/")), &way, &limits).await;
    match sent {
        Ok(mut response) => response.body.collect(100).await.unwrap_err(),
        Err(fault) => fault,
    }
}

/// E1: without a tunnel silence has two possible causes, and a word has one.
#[tokio::test]
async fn e1_silence_of_a_proxy_and_broken_words_of_an_origin() {
    let silent = Some(ExitFault::Silent);
    let short = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello";
    for (answer, end, kind, at, exit) in [
        ("", End::Close, FaultKind::Closed, Phase::Head, silent),
        ("", End::Reset, FaultKind::Reset, Phase::Head, silent),
        ("", End::Hang, FaultKind::TimedOut, Phase::Head, silent),
        ("HTTP/1.1 200", End::Close, FaultKind::Closed, Phase::Head, None),
        ("HTTP/1.1 200", End::Hang, FaultKind::TimedOut, Phase::Head, None),
        ("nonsense\r\n\r\n", End::Close, FaultKind::HeadMalformed, Phase::Head, None),
        (short, End::Close, FaultKind::BodyShort, Phase::Body, None),
        (short, End::Hang, FaultKind::TimedOut, Phase::Body, None),
    ] {
        let proxy = Proxy::start(move |_, _| say(answer, end)).await;
        let fault = fault(&Client::default(), &proxy, end).await;
        assert_eq!((fault.kind, fault.at, fault.exit), (kind, at, exit), "{answer:?} {end:?}: {fault:?}");
        assert_eq!((fault.processed, fault.stale_connection), (Processed::Unknown, false), "{answer:?}");
    }
    let refusing = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let fault = by(&Client::default(), &way(&format!("http://{refusing}")), target("http://a.test/")).await;
    let fault = fault.unwrap_err();
    assert_eq!((fault.kind, fault.at), (FaultKind::ConnectRefused, Phase::Exit));
    assert_eq!((fault.processed, fault.exit), (Processed::No, Some(ExitFault::Broken)));
}

/// A connection that has served and is closed at rest says nothing about anybody.
#[tokio::test]
async fn e1_a_stale_connection_is_nobodys_fault_and_a_silent_one_is() {
    for (end, kind, exit, stale) in [
        (End::Close, FaultKind::Closed, None, true),
        (End::Hang, FaultKind::TimedOut, Some(ExitFault::Silent), false),
    ] {
        let proxy = Proxy::start(move |_, number| match number {
            1 => say(OK, End::Keep),
            _ => say("", end),
        })
        .await;
        let (client, way) = (Client::default(), way(&proxy.url("http", "")));
        let mut first = by(&client, &way, target("http://a.test/")).await.unwrap();
        assert_eq!(first.body.collect(10).await.unwrap(), "hello");
        let limits = Limits::within(if stale { LONG } else { SHORT });
        let request = Request::get(target("http://a.test/"));
        let fault = client.send(&Permit::unmetered(), request, &way, &limits).await.unwrap_err();
        assert_eq!((fault.kind, fault.exit, fault.stale_connection), (kind, exit, stale), "{fault:?}");
        assert_eq!(proxy.server.connections(), 1);
    }
}

#[tokio::test]
async fn e1_who_answered_without_a_tunnel() {
    let own = Answerer::Exit;
    for (head, answerer) in [
        ("200 OK", Answerer::Origin),
        ("200 OK\r\nX-Squid-Error: ERR_CONNECT_FAIL 111", Answerer::Origin),
        ("403 Forbidden", Answerer::Origin),
        ("429 Slow", Answerer::Origin),
        ("503 Busy\r\nRetry-After: 3", Answerer::Origin),
        ("407 No\r\nProxy-Authenticate: Basic realm=x", own(ExitFault::Rejected)),
        ("503 No\r\nX-Squid-Error: ERR_CONNECT_FAIL 111", own(ExitFault::NoWay)),
        ("500 No\r\nServer: tinyproxy/1.11.1", own(ExitFault::NoWay)),
        ("502 No\r\nProxy-Status: exit; error=dns_error", own(ExitFault::NoWay)),
    ] {
        let answer = format!("HTTP/1.1 {head}\r\nContent-Length: 0\r\n\r\n");
        let proxy = Proxy::start(move |_, _| say(answer.clone(), End::Keep)).await;
        let response = by(&Client::default(), &way(&proxy.url("http", "")), target("http://a.test/")).await;
        assert_eq!(response.unwrap().answered_by, answerer, "{head}");
        // The same words of an origin, without an exit.
        let direct = client_kit::get(&Client::default(), proxy.server.target("/")).await.unwrap();
        assert_eq!(direct.answered_by, Answerer::Origin, "{head}");
    }
}

/// K2: what the address is known of is judged, also on a connection that is there already; the rest is the exit's to judge.
#[tokio::test]
async fn k2_addresses_behind_an_exit_are_judged_as_far_as_they_are_known() {
    let proxy = Proxy::start(|_, _| say(OK, End::Keep)).await;
    let way = way(&proxy.url("http", ""));
    let public = Client::new(ClientOptions { public_only: true, ..ClientOptions::default() });
    for (url, hop, allowed) in [
        ("http://a.test/", Hop::First, true),
        ("http://a.test/", Hop::Redirect, true),
        ("http://8.8.8.8/", Hop::First, true),
        ("http://10.0.0.1/", Hop::First, false),
        ("http://[::1]/", Hop::First, false),
        ("http://[::ffff:127.0.0.1]/", Hop::First, false),
        ("http://localhost/", Hop::First, false),
        ("http://x.localhost/", Hop::First, false),
        ("https://10.0.0.1/", Hop::First, false),
    ] {
        let limits = Limits { hop, ..Limits::within(LONG) };
        let sent = public.send(&Permit::unmetered(), Request::get(target(url)), &way, &limits).await;
        match sent {
            Ok(_) => assert!(allowed, "{url}"),
            Err(fault) => {
                assert!(
                    !allowed && matches!(fault.kind, FaultKind::AddressForbidden { .. }),
                    "{url} {fault:?}"
                );
                assert_eq!((fault.exit, fault.processed), (None, Processed::No), "{url}");
            }
        }
    }
    let lax = Client::default();
    let metadata = || Request::get(target("http://169.254.169.254/"));
    for (hop, allowed) in [(Hop::First, true), (Hop::Redirect, false)] {
        let limits = Limits { hop, ..Limits::within(LONG) };
        let sent = lax.send(&Permit::unmetered(), metadata(), &way, &limits).await;
        assert_eq!(sent.is_ok(), allowed, "{hop:?}");
    }
}
