//! Exits that speak SOCKS 5.

mod client_kit;

use std::time::Duration;

use bytes::Bytes;
use client_kit::exits::{Asked, Replies, Socks, printed, way};
use client_kit::{Authority, End, LONG, Server, by, hello, tls_server};
use forbear::client::{Client, ClientOptions, FaultKind, Hop, Limits, Phase, Processed, Request, Target};
use forbear::permit::Permit;
use forbear_core::outcome::ExitFault;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";
const ANYWHERE: &str = "127.0.0.1:0";

fn target(url: &str) -> Target {
    Target::parse(url).unwrap()
}

async fn origin() -> Server {
    Server::answering(OK, End::Keep).await
}

/// What a name is called, and not where it leads: with `socks5h` only the exit knows that.
#[tokio::test]
async fn e6_names_are_looked_up_here_or_there() {
    let authority = Authority::new();
    let client = authority.client();
    let port = 80;
    let socks = Socks::start(ANYWHERE, Some(origin().await), Replies::default()).await;
    let there = way(&socks.url("socks5h", ""));
    let mut response = by(&client, &there, target("http://only-there.test/a")).await.unwrap();
    assert_eq!((response.reused, response.remote), (false, socks.server.address));
    assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    assert!(by(&client, &there, target("http://only-there.test/b")).await.unwrap().reused);
    let asked = |kind, host: &str, port| Asked {
        methods: vec![0],
        kind,
        host: host.into(),
        port,
        ..Asked::default()
    };
    assert_eq!(socks.asked(), [asked(3, "only-there.test", port)]);

    let here = way(&socks.url("socks5", ""));
    let origin = origin().await;
    let port = origin.address.port();
    let mut response = by(&client, &here, target(&format!("http://localhost:{port}/"))).await.unwrap();
    assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    let asked_here = socks.asked().pop().unwrap();
    assert!(asked_here.kind != 3 && asked_here.port == port, "{asked_here:?}");

    let missing = by(&client, &here, target("http://no-such-name.invalid/")).await.unwrap_err();
    assert_eq!((missing.at, missing.exit), (Phase::Resolve, None), "no fault of the exit: {missing:?}");

    let safe = tls_server(authority.server("only-there.test", &[], |_| {}), hello).await;
    let socks = Socks::start(ANYWHERE, Some(safe), Replies::default()).await;
    let mut response =
        by(&client, &way(&socks.url("socks5h", "")), target("https://only-there.test/")).await.unwrap();
    assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    assert_eq!(socks.asked(), [asked(3, "only-there.test", 443)]);
}

#[tokio::test]
async fn e6_user_and_password_arrive_byte_for_byte() {
    let long = "x".repeat(255);
    let client = Client::default();
    let origin = origin().await;
    for (written, user, password) in [
        ("u:p", &b"u"[..], &b"p"[..]),
        ("u:p%40%3A%2F%25%23%20%C3%BC", b"u", "p@:/%# ü".as_bytes()),
        ("u:p@:/%# ü", b"u", "p@:/%# ü".as_bytes()),
        ("%C3%BC%FF%00:%FE%0D%0A", b"\xc3\xbc\xff\0", b"\xfe\r\n"),
        ("a%3Ab:c", b"a:b", b"c"),
        ("key:", b"key", b""),
        (&format!("{long}:{long}"), long.as_bytes(), long.as_bytes()),
    ] {
        for scheme in ["socks5", "socks5h"] {
            let socks = Socks::start(ANYWHERE, None, Replies::default()).await;
            let way = way(&socks.url(scheme, &format!("{written}@")));
            let mut response = by(&client, &way, origin.target("/")).await.unwrap();
            assert_eq!(response.body.collect(10).await.unwrap(), "hello");
            let asked = socks.asked().pop().unwrap();
            assert_eq!((&asked.user[..], &asked.password[..]), (user, password), "{scheme} {written}");
            assert_eq!((asked.kind, asked.port), (1, origin.address.port()));
        }
    }
}

#[tokio::test]
async fn e6_ipv6_origins_and_exits() {
    let origin = Server::start_on("[::1]:0", |mut stream, _| async move {
        let _ = client_kit::read_head(&mut stream).await;
        let _ = tokio::io::AsyncWriteExt::write_all(&mut stream, OK.as_bytes()).await;
    })
    .await;
    for scheme in ["socks5", "socks5h"] {
        let socks = Socks::start("[::1]:0", None, Replies::default()).await;
        let mut response =
            by(&Client::default(), &way(&socks.url(scheme, "")), origin.target("/")).await.unwrap();
        assert_eq!(response.body.collect(10).await.unwrap(), "hello");
        let asked = socks.asked().pop().unwrap();
        assert_eq!((asked.kind, &*asked.host), (4, "[::1]"), "{scheme}");
    }
}

/// What it says at each of its turns, and what becomes of that.
#[tokio::test]
async fn e1_what_a_socks_exit_does_instead_is_told_apart() {
    use ExitFault::{Broken, Forbidden, NoWay, Rejected, Silent};
    use FaultKind::{Closed, Reset, SocksAuth, SocksMalformed, TimedOut};
    let reply = |code| FaultKind::SocksReply { reply: code };
    let method = |bytes: &'static [u8]| Replies { method: Some(bytes.into()), ..Replies::default() };
    let status = |bytes: &'static [u8]| Replies { status: Some(bytes.into()), ..Replies::default() };
    let last = |bytes: Vec<u8>| Replies { reply: Some(bytes.into()), ..Replies::default() };
    let full = |code: u8| last(vec![5, code, 0, 1, 0, 0, 0, 0, 0, 0]);
    let then = |replies: Replies, end| Replies { then: Some(end), ..replies };
    for (credentials, replies, kind, exit) in [
        ("", method(&[5, 0xff]), SocksAuth, Rejected),
        ("u:p@", method(&[5, 0xff]), SocksAuth, Rejected),
        ("", method(&[5, 2]), SocksAuth, Rejected),
        ("", method(&[5, 1]), SocksMalformed, Broken),
        ("", method(&[4, 0]), SocksMalformed, Broken),
        ("", method(b"HTTP/1.1 400 Bad Request\r\n\r\n"), SocksMalformed, Broken),
        ("", method(&[]), Closed, Broken),
        ("", method(&[5]), Closed, Broken),
        ("", then(method(&[]), End::Reset), Reset, Broken),
        ("", then(method(&[]), End::Hang), TimedOut, Silent),
        ("u:p@", status(&[1, 1]), SocksAuth, Rejected),
        ("u:p@", status(&[5, 9]), SocksAuth, Rejected),
        ("u:p@", status(&[]), Closed, Broken),
        ("u:p@", then(status(&[1]), End::Hang), TimedOut, Silent),
        ("", full(1), reply(1), NoWay),
        ("", full(2), reply(2), Forbidden),
        ("", full(3), reply(3), NoWay),
        ("", full(4), reply(4), NoWay),
        ("", full(5), reply(5), NoWay),
        ("", full(6), reply(6), NoWay),
        ("", full(7), reply(7), Broken),
        ("", full(8), reply(8), NoWay),
        ("", full(99), reply(99), Broken),
        ("", last(vec![5, 5]), reply(5), NoWay),
        ("", last(vec![4, 0, 0, 1]), SocksMalformed, Broken),
        ("", last(vec![5, 0, 0, 2, 0, 0]), SocksMalformed, Broken),
        ("", last(vec![5, 0, 0, 1, 0, 0]), Closed, Broken),
        ("", then(last(vec![]), End::Reset), Reset, Broken),
        ("", then(last(vec![5, 0, 0, 3, 200]), End::Hang), TimedOut, Silent),
    ] {
        let what = format!("{credentials} {replies:?}");
        let time = if exit == Silent { Duration::from_millis(200) } else { LONG };
        for scheme in ["socks5", "socks5h"] {
            let socks = Socks::start(ANYWHERE, None, replies.clone()).await;
            let request = Request::get(target("http://192.0.2.1/"));
            let limits = Limits::within(time);
            let sent = Client::default()
                .send(&Permit::unmetered(), request, &way(&socks.url(scheme, credentials)), &limits)
                .await;
            let fault = sent.unwrap_err();
            assert_eq!((fault.kind, fault.exit), (kind, Some(exit)), "{scheme} {what}: {fault:?}");
            assert_eq!((fault.at, fault.processed), (Phase::Tunnel, Processed::No), "{scheme} {what}");
        }
    }
}

/// What comes after the reply is the origin's doing.
#[tokio::test]
async fn e1_behind_the_reply_it_is_the_origins() {
    let ends = Server::answering("", End::Close).await;
    let socks = Socks::start(ANYWHERE, None, Replies::default()).await;
    let fault = by(&Client::default(), &way(&socks.url("socks5", "")), ends.target("/")).await.unwrap_err();
    assert_eq!((fault.kind, fault.at, fault.exit), (FaultKind::Closed, Phase::Head, None));
    assert_eq!(fault.processed, Processed::Unknown);
}

#[tokio::test]
async fn k2_addresses_are_judged_where_the_name_is_looked_up_here() {
    let origin = origin().await;
    let port = origin.address.port();
    let socks = Socks::start(ANYWHERE, Some(origin), Replies::default()).await;
    let public = Client::new(ClientOptions { public_only: true, ..ClientOptions::default() });
    for (scheme, url, allowed) in [
        ("socks5", format!("http://localhost:{port}/"), false),
        ("socks5", format!("http://127.0.0.1:{port}/"), false),
        ("socks5h", format!("http://127.0.0.1:{port}/"), false),
        ("socks5h", format!("http://localhost:{port}/"), false),
        ("socks5h", "http://anything.test/".into(), true),
    ] {
        let sent = by(&public, &way(&socks.url(scheme, "")), target(&url)).await;
        match sent {
            Ok(_) => assert!(allowed, "{scheme} {url}"),
            Err(fault) => {
                assert!(
                    !allowed && matches!(fault.kind, FaultKind::AddressForbidden { .. }),
                    "{scheme} {url}"
                );
                assert_eq!(fault.exit, None);
            }
        }
    }
    // A connection that a first hop may use, a redirect may not: its address is known.
    let lax = Client::default();
    let socks = Socks::start(
        ANYWHERE,
        None,
        Replies { reply: Some(Bytes::from_static(&[5, 4])), ..Replies::default() },
    )
    .await;
    let limits = Limits { hop: Hop::Redirect, ..Limits::within(LONG) };
    for scheme in ["socks5", "socks5h"] {
        let request = Request::get(target("http://169.254.169.254/"));
        let sent = lax.send(&Permit::unmetered(), request, &way(&socks.url(scheme, "")), &limits).await;
        assert!(matches!(sent.unwrap_err().kind, FaultKind::AddressForbidden { .. }), "{scheme}");
    }
    assert_eq!(socks.server.connections(), 0);
}

#[tokio::test]
async fn k1_a_socks_exit_gets_no_credentials_into_an_error() {
    let replies = Replies { status: Some(Bytes::from_static(&[1, 1])), ..Replies::default() };
    let socks = Socks::start(ANYWHERE, None, replies).await;
    let way = way(&socks.url("socks5h", "us3rname:S3cr3t@"));
    let fault = by(&Client::default(), &way, target("http://a.test/")).await.unwrap_err();
    let text = printed(&fault) + &format!("{way:?}");
    assert!(!text.contains("us3rname") && !text.contains("S3cr3t"), "{text}");
}
