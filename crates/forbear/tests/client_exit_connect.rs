//! Exits that open tunnels on `CONNECT`, and all the ways in which they do not.

mod client_kit;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client_kit::exits::{Act, Proxy, printed, say, way};
use client_kit::{Authority, End, LONG, Server, Tls, by, headers, hello, https, read_head, tls_server};
use forbear::client::{
    Client, ClientOptions, Fault, FaultKind, Limits, Phase, Processed, Request, Target, Way,
};
use forbear::permit::Permit;
use forbear_core::exit::Answerer;
use forbear_core::outcome::ExitFault;
use http::Version;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;

const SHORT: Duration = Duration::from_millis(200);

/// A target that nobody need serve: the exit does not get so far.
fn nowhere() -> Target {
    Target::parse("https://origin.test/").unwrap()
}

async fn fault(way: &Way, target: Target, limits: &Limits) -> Fault {
    let sent = Client::default().send(&Permit::unmetered(), Request::get(target), way, limits).await;
    sent.expect_err("an answer")
}

/// Which fault, where, by whom. Nothing was sent to the origin in any of them.
fn told(fault: &Fault) -> (FaultKind, Phase, Option<ExitFault>) {
    assert_eq!(fault.processed, Processed::No, "{fault:?}");
    (fault.kind, fault.at, fault.exit)
}

/// An origin behind TLS that keeps the heads that came to it.
async fn origin(authority: &Authority) -> (Server, Arc<Mutex<Vec<String>>>) {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let kept = Arc::clone(&heads);
    let serve = move |mut stream: Tls, _| {
        let kept = Arc::clone(&kept);
        async move {
            while let Some(head) = read_head(&mut stream).await {
                kept.lock().unwrap().push(head);
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
            }
        }
    };
    (tls_server(authority.server("127.0.0.1", &[], |_| {}), serve).await, heads)
}

#[tokio::test]
async fn e6_an_https_origin_is_reached_through_a_tunnel_and_never_sees_what_is_the_exits() {
    let authority = Authority::new();
    let (origin, seen) = origin(&authority).await;
    let proxy = Proxy::start(|_, _| Act::Serve).await;
    let exit = proxy.url("http", "user%20%C3%BC:p%FFss:w@rd@");
    let (client, way) = (authority.client(), way(&exit));
    for turn in 0..2 {
        let request = Request {
            headers: headers(&[("proxy-authorization", "Basic c3RyYXk="), ("x-own", "1")]),
            ..Request::get(https(&origin, "/a?b"))
        };
        let mut response =
            client.send(&Permit::unmetered(), request, &way, &Limits::within(LONG)).await.unwrap();
        assert_eq!((response.reused, response.remote), (turn > 0, proxy.server.address));
        assert_eq!(response.answered_by, Answerer::Origin);
        assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    }
    let to = origin.address;
    // user `user ü`, password `p`, the byte 0xFF, `ss:w@rd`
    let basic = "dXNlciDDvDpw/3NzOndAcmQ=";
    let expected =
        format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\nProxy-Authorization: Basic {basic}\r\n\r\n");
    assert_eq!(proxy.heads(), [expected]);
    let seen = seen.lock().unwrap().join("").to_ascii_lowercase();
    assert!(seen.starts_with("get /a?b http/1.1") && seen.contains("x-own"), "{seen}");
    assert!(!seen.contains("proxy-"), "{seen}");
}

#[tokio::test]
async fn e6_http2_through_the_tunnel_is_agreed_with_the_origin() {
    let authority = Authority::new();
    let origin = tls_server(authority.server("127.0.0.1", &["h2"], |_| {}), |stream, _| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            assert!(!request.headers().contains_key("proxy-authorization"));
            let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
            stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
        }
    })
    .await;
    let proxy = Proxy::start(|_, _| Act::Serve).await;
    let (client, way) = (authority.client(), way(&proxy.url("http", "u:p@")));
    let all: Vec<_> = (0..5)
        .map(|_| {
            let (client, way, target, address) =
                (client.clone(), way.clone(), https(&origin, "/"), proxy.server.address);
            tokio::spawn(async move {
                let mut response = by(&client, &way, target).await.unwrap();
                assert_eq!((response.version, response.remote), (Version::HTTP_2, address));
                assert_eq!(response.body.collect(10).await.unwrap(), "hello");
            })
        })
        .collect();
    for one in all {
        one.await.unwrap();
    }
    assert_eq!(proxy.server.connections(), 1, "one tunnel for all");
}

#[tokio::test]
async fn e6_an_exit_behind_tls_serves_both_schemes() {
    let authority = Authority::new();
    let (safe, _) = origin(&authority).await;
    let plain = Server::answering("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", End::Keep).await;
    let proxy =
        Proxy::start_tls(authority.server("127.0.0.1", &["http/1.1"], |_| {}), |_, _| Act::Serve).await;
    let (client, way) = (authority.client(), way(&proxy.url("https", "u:p@")));
    for target in [https(&safe, "/"), plain.target("/"), https(&safe, "/")] {
        let mut response = by(&client, &way, target).await.unwrap();
        assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    }
    let heads = proxy.heads();
    assert!(heads[0].starts_with("CONNECT ") && heads[1].starts_with("GET http://"), "{heads:?}");
    assert_eq!(heads.len(), 2, "the tunnel is used again");
    let authorized =
        |head: &String| head.to_ascii_lowercase().contains("proxy-authorization: basic dtpw\r\n");
    assert!(heads.iter().all(authorized), "{heads:?}");
}

#[tokio::test]
async fn e6_ipv6_exits_and_origins() {
    let authority = Authority::new();
    let acceptor = tokio_rustls::TlsAcceptor::from(authority.server("::1", &[], |_| {}));
    let origin = Server::start_on("[::1]:0", move |stream, number| {
        let acceptor = acceptor.clone();
        async move { hello(acceptor.accept(stream).await.unwrap(), number).await }
    })
    .await;
    let proxy = Proxy::start_on("[::1]:0", |_, _| Act::Serve).await;
    let way = way(&proxy.url("http", ""));
    let mut response = by(&authority.client(), &way, https(&origin, "/")).await.unwrap();
    assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    let to = format!("[::1]:{}", origin.address.port());
    assert_eq!(proxy.heads(), [format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n\r\n")]);
}

/// E1: what the exit says or does before the tunnel is up is told apart, and is never the origin's.
#[tokio::test]
async fn e1_until_the_tunnel_is_up_it_is_the_exits_fault() {
    use ExitFault::{Broken, Forbidden, Limited, NoWay, Rejected, Silent};
    let status = |code| FaultKind::ConnectStatus { status: code };
    let body = "Content-Length: 6\r\n\r\n<html>";
    let page = |head: &str| format!("HTTP/1.1 {head}\r\n{body}");
    let wait = |s| Limited { wait: Some(Duration::from_secs(s)) };
    let polluted = FaultKind::TunnelPolluted;
    let endless = |what: &str| what.repeat(100_000 / what.len());
    for (answer, end, kind, at, exit) in [
        (
            page("407 No\r\nProxy-Authenticate: Basic realm=x"),
            End::Keep,
            status(407),
            Phase::Tunnel,
            Rejected,
        ),
        (page("401 No"), End::Close, status(401), Phase::Tunnel, Rejected),
        (page("429 Slow\r\nRetry-After: 3"), End::Close, status(429), Phase::Tunnel, wait(3)),
        (page("503 Busy\r\nRetry-After: 7"), End::Hang, status(503), Phase::Tunnel, wait(7)),
        (page("503 Busy"), End::Keep, status(503), Phase::Tunnel, Limited { wait: None }),
        (page("503 No\r\nX-Squid-Error: ERR_DNS_FAIL 0"), End::Keep, status(503), Phase::Tunnel, NoWay),
        (page("500 No\r\nServer: tinyproxy/1.11.1"), End::Close, status(500), Phase::Tunnel, NoWay),
        (page("502 No"), End::Close, status(502), Phase::Tunnel, NoWay),
        (page("504 No"), End::Keep, status(504), Phase::Tunnel, NoWay),
        (page("403 No"), End::Keep, status(403), Phase::Tunnel, Forbidden),
        (page("500 No"), End::Reset, status(500), Phase::Tunnel, Broken),
        (page("302 Found\r\nLocation: http://portal.test/"), End::Keep, status(302), Phase::Tunnel, Broken),
        (page("200 OK"), End::Keep, polluted, Phase::Tunnel, Broken),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n".into(), End::Close, polluted, Phase::Tls, Broken),
        (String::new(), End::Close, FaultKind::Closed, Phase::Tunnel, Broken),
        (String::new(), End::Reset, FaultKind::Reset, Phase::Tunnel, Broken),
        (String::new(), End::Hang, FaultKind::TimedOut, Phase::Tunnel, Silent),
        ("HTTP/1.1 200 OK\r\n".into(), End::Close, FaultKind::Closed, Phase::Tunnel, Broken),
        ("HTTP/1.1 200 OK\r\n".into(), End::Hang, FaultKind::TimedOut, Phase::Tunnel, Silent),
        ("SSH-2.0-x\r\n".into(), End::Hang, FaultKind::HeadMalformed, Phase::Tunnel, Broken),
        (endless("HTTP/1.1 100 Continue\r\n\r\n"), End::Hang, FaultKind::HeadTooLarge, Phase::Tunnel, Broken),
        (format!("HTTP/1.1 200 {}", endless("x")), End::Hang, FaultKind::HeadTooLarge, Phase::Tunnel, Broken),
    ] {
        let what = format!("{:?}, then {end:?}", &answer[..answer.len().min(60)]);
        let hangs = matches!(exit, Silent);
        let proxy = Proxy::start(move |_, _| say(answer.clone(), end)).await;
        let limits = Limits::within(if hangs { SHORT } else { LONG });
        let fault = fault(&way(&proxy.url("http", "u:p@")), nowhere(), &limits).await;
        assert_eq!(told(&fault), (kind, at, Some(exit)), "{what}: {fault:?}");
    }
}

#[tokio::test]
async fn e1_an_exit_that_cannot_be_reached() {
    let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    for scheme in ["http", "https", "socks5h"] {
        let fault = fault(&way(&format!("{scheme}://{gone}")), nowhere(), &Limits::within(LONG)).await;
        assert_eq!(
            told(&fault),
            (FaultKind::ConnectRefused, Phase::Exit, Some(ExitFault::Broken)),
            "{scheme}: {fault:?}"
        );
    }
}

#[tokio::test]
async fn v1_the_certificate_of_an_exit_is_the_exits_and_that_of_an_origin_the_origins() {
    let (authority, stranger) = (Authority::new(), Authority::new());
    let client = authority.client();
    let distrusted = Proxy::start_tls(stranger.server("127.0.0.1", &[], |_| {}), |_, _| Act::Serve).await;
    let fault = by(&client, &way(&distrusted.url("https", "")), nowhere()).await.unwrap_err();
    assert_eq!(told(&fault), (FaultKind::Certificate, Phase::Exit, Some(ExitFault::Broken)));
    let resets = Server::start(|stream, _| client_kit::reset(stream)).await;
    let fault = by(&client, &way(&format!("https://{}", resets.address)), nowhere()).await.unwrap_err();
    assert_eq!(told(&fault), (FaultKind::Handshake, Phase::Exit, Some(ExitFault::Broken)));
    let silent = Server::start(|stream, _| async move {
        let _open = stream;
        std::future::pending().await
    })
    .await;
    let way_there = way(&format!("https://{}", silent.address));
    let limits = Limits::within(SHORT);
    let sent = client.send(&Permit::unmetered(), Request::get(nowhere()), &way_there, &limits).await;
    assert_eq!(told(&sent.unwrap_err()), (FaultKind::TimedOut, Phase::Exit, Some(ExitFault::Silent)));

    let origin = tls_server(stranger.server("127.0.0.1", &[], |_| {}), hello).await;
    for proxy in [
        Proxy::start(|_, _| Act::Serve).await.url("http", ""),
        Proxy::start_tls(authority.server("127.0.0.1", &[], |_| {}), |_, _| Act::Serve)
            .await
            .url("https", ""),
    ] {
        let fault = by(&client, &way(&proxy), https(&origin, "/")).await.unwrap_err();
        assert_eq!(told(&fault), (FaultKind::Certificate, Phase::Tls, None), "{proxy}");
    }
}

/// E1: once the tunnel is up nothing is the exit's.
#[tokio::test]
async fn e1_behind_the_tunnel_it_is_the_origins_fault() {
    for (bytes, end, kind, at) in [
        ("", End::Close, FaultKind::Handshake, Phase::Tls),
        ("", End::Reset, FaultKind::Handshake, Phase::Tls),
        ("", End::Hang, FaultKind::TimedOut, Phase::Tls),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", End::Close, FaultKind::Handshake, Phase::Tls),
    ] {
        let proxy = Proxy::start(move |_, _| Act::OpenThen(bytes.into(), end)).await;
        let limits = Limits::within(if matches!(end, End::Hang) { SHORT } else { LONG });
        let fault = fault(&way(&proxy.url("http", "")), nowhere(), &limits).await;
        assert_eq!(told(&fault), (kind, at, None), "{bytes:?} {end:?}: {fault:?}");
    }
    let authority = Authority::new();
    let proxy = Proxy::start(|_, _| Act::Serve).await;
    for (answer, end, kind, at) in [
        ("", End::Close, FaultKind::Closed, Phase::Head),
        ("", End::Hang, FaultKind::TimedOut, Phase::Head),
        ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhello", End::Close, FaultKind::BodyShort, Phase::Body),
    ] {
        let serve = move |mut stream: Tls, _| async move {
            let _ = read_head(&mut stream).await;
            stream.write_all(answer.as_bytes()).await.unwrap();
            match end {
                End::Hang => std::future::pending().await,
                _ => drop(stream.shutdown().await),
            }
        };
        let origin = tls_server(authority.server("127.0.0.1", &[], |_| {}), serve).await;
        let limits = Limits::within(if matches!(end, End::Hang) { SHORT } else { LONG });
        let request = Request::get(https(&origin, "/"));
        let way = way(&proxy.url("http", ""));
        let fault = match authority.client().send(&Permit::unmetered(), request, &way, &limits).await {
            Ok(mut response) => response.body.collect(100).await.unwrap_err(),
            Err(fault) => fault,
        };
        assert_eq!((fault.kind, fault.at, fault.exit), (kind, at, None), "{answer:?} {end:?}: {fault:?}");
        assert_eq!(fault.processed, Processed::Unknown);
    }
}

/// Those who wait for one of them to open a connection that all can share are told apart as well.
#[tokio::test]
async fn e1_who_waits_for_anothers_tunnel_knows_whose_silence_it_was() {
    for (act, exit) in
        [(say("", End::Hang), Some(ExitFault::Silent)), (Act::OpenThen(Bytes::new(), End::Hang), None)]
    {
        let proxy = Proxy::start(move |_, _| act.clone()).await;
        let (client, way) = (Client::default(), way(&proxy.url("http", "")));
        // The first has the longest time, so it has the turn until the others have given up.
        let send = |ms| {
            let (client, way) = (client.clone(), way.clone());
            let limits = Limits::within(Duration::from_millis(ms));
            tokio::spawn(async move {
                client.send(&Permit::unmetered(), Request::get(nowhere()), &way, &limits).await.unwrap_err()
            })
        };
        let first = send(900);
        while proxy.heads().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        for waiter in [send(200), send(200)] {
            let fault = waiter.await.unwrap();
            assert_eq!(told(&fault), (FaultKind::TimedOut, Phase::Connect, exit), "{fault:?}");
        }
        assert_eq!(first.await.unwrap().exit, exit);
        assert_eq!(proxy.server.connections(), 1);
    }
}

#[tokio::test]
async fn k1_an_exit_that_repeats_our_credentials_gets_them_into_no_error() {
    let (user, password, encoded) = ("us3rname", "S3cr3tS3cr3t", "dXMzcm5hbWU6UzNjcjN0UzNjcjN0");
    for echo in [
        "HTTP/1.1 407 {}\r\nX-Echo: {}\r\n\r\n{}",
        "HTTP/1.1 200 OK\r\n{}\u{0}: x\r\n\r\n",
        "{}\r\n",
        "HTTP/1.1 200 OK\r\n\r\n{}",
        "HTTP/1.1 2{}",
    ] {
        let proxy = Proxy::start(move |head, _| {
            let sent = head.lines().find(|line| line.starts_with("Proxy-Authorization")).unwrap();
            let sent = format!("{sent} {user}:{password}");
            say(echo.replace("{}", &sent), End::Close)
        })
        .await;
        let way = way(&proxy.url("http", &format!("{user}:{password}@")));
        let fault = fault(&way, nowhere(), &Limits::within(LONG)).await;
        let text = printed(&fault) + &format!("{way:?}");
        for secret in [user, password, encoded] {
            assert!(!text.contains(secret), "{echo:?}: {text}");
        }
    }
}

#[tokio::test]
async fn k4_the_head_of_an_exit_obeys_the_clients_bound() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(2000));
    let proxy = Proxy::start(move |_, _| Act::Say(long.clone().into(), End::Hang)).await;
    for (head_bytes_max, kind) in [(1000, FaultKind::HeadTooLarge), (4000, FaultKind::TimedOut)] {
        let client = Client::new(ClientOptions { head_bytes_max, ..ClientOptions::default() });
        let (way, limits) = (way(&proxy.url("http", "")), Limits::within(Duration::from_millis(500)));
        let sent = client.send(&Permit::unmetered(), Request::get(nowhere()), &way, &limits).await;
        assert_eq!(sent.unwrap_err().kind, kind, "{head_bytes_max}");
    }
}
