//! Connections and TLS sessions belong to one exit session, and go with it (E4).

mod client_kit;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use client_kit::exits::{Act, Proxy, Replies, Socks, say, session, until};
use client_kit::{Authority, End, Server, Tls, by, fetch, hello, https, read_head, tls_server};
use forbear::client::{Client, ClientOptions, ExitSession, Target, Way};
use rustls::HandshakeKind;
use tokio::io::AsyncWriteExt as _;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

async fn ask(client: &Client, exit: &Arc<ExitSession>, target: Target) -> bool {
    let mut response = by(client, &Way::Exit(Arc::clone(exit)), target).await.unwrap();
    assert_eq!(response.body.collect(10).await.unwrap(), "hello");
    response.reused
}

/// Whose request or tunnel it was, of `a:x` and `b:x`, in the order in which they came.
fn users(proxy: &Proxy) -> Vec<&'static str> {
    let user = |head: &String| if head.to_ascii_lowercase().contains("basic ytp4") { "a" } else { "b" };
    proxy.heads().iter().map(user).collect()
}

#[tokio::test]
async fn s2_two_credentials_at_one_proxy_share_no_connection() {
    let authority = Authority::new();
    let client = authority.client();
    let plain = Proxy::start(|_, _| say(OK, End::Keep)).await;
    let (a, b) = (session(&plain.url("http", "a:x@")), session(&plain.url("http", "b:x@")));
    let target = || Target::parse("http://a.test/").unwrap();
    let mut reused = Vec::new();
    for exit in [&a, &b, &a, &b] {
        reused.push(ask(&client, exit, target()).await);
    }
    assert_eq!((reused, plain.server.connections()), (vec![false, false, true, true], 2));
    assert_eq!(users(&plain), ["a", "b", "a", "b"]);
    // The same exit in another session is another one too.
    assert!(!ask(&client, &session(&plain.url("http", "a:x@")), target()).await);

    for alpn in [&["http/1.1"][..], &["h2"]] {
        let origin = tls_server(authority.server("127.0.0.1", alpn, |_| {}), both).await;
        let tunnels = Proxy::start(|_, _| Act::Serve).await;
        let (a, b) = (session(&tunnels.url("http", "a:x@")), session(&tunnels.url("http", "b:x@")));
        let mut reused = Vec::new();
        for exit in [&a, &b, &a, &b] {
            reused.push(ask(&client, exit, https(&origin, "/")).await);
        }
        assert_eq!((reused, users(&tunnels)), (vec![false, false, true, true], vec!["a", "b"]), "{alpn:?}");
        assert_eq!(fetch(&client, https(&origin, "/")).await.unwrap(), "hello");
        assert_eq!(origin.connections(), 3, "the direct way has one of its own");
    }
}

/// Either version, as was agreed.
async fn both(stream: Tls, number: usize) {
    if stream.get_ref().1.alpn_protocol() != Some(b"h2") {
        return hello(stream, number).await;
    }
    let mut connection = h2::server::handshake(stream).await.unwrap();
    while let Some(Ok((_, mut respond))) = connection.accept().await {
        let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
        stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
    }
}

#[tokio::test]
async fn e4_a_tls_session_is_resumed_through_its_own_exit_session_only() {
    for (versions, name) in [(&[&rustls::version::TLS13][..], "1.3"), (&[&rustls::version::TLS12], "1.2")] {
        let authority = Authority::new();
        let kinds = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&kinds);
        let serve = move |mut stream: Tls, _| {
            kept.lock().unwrap().push(stream.get_ref().1.handshake_kind().unwrap());
            async move {
                let _ = read_head(&mut stream).await;
                let _ = stream
                    .write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello")
                    .await;
                let _ = stream.shutdown().await;
            }
        };
        let origin = tls_server(authority.server_of("127.0.0.1", versions), serve).await;
        let client = authority.client();
        let http = Proxy::start(|_, _| Act::Serve).await;
        let socks = Socks::start("127.0.0.1:0", None, Replies::default()).await;
        let (a, b) = (session(&http.url("http", "a:x@")), session(&http.url("http", "b:x@")));
        let c = session(&socks.url("socks5", "a:x@"));
        for exit in [&a, &a, &b, &b, &c, &c, &a] {
            ask(&client, exit, https(&origin, "/")).await;
        }
        let (full, resumed) = (HandshakeKind::Full, HandshakeKind::Resumed);
        let seen = |kinds: &Mutex<Vec<HandshakeKind>>| {
            let kind = |kind: &HandshakeKind| if *kind == resumed { resumed } else { full };
            std::mem::take(&mut *kinds.lock().unwrap()).iter().map(kind).collect::<Vec<_>>()
        };
        assert_eq!(seen(&kinds), [full, resumed, full, resumed, full, resumed, resumed], "TLS {name}");

        client.leave(a.id());
        for exit in [&a, &a, &b] {
            ask(&client, exit, https(&origin, "/")).await;
        }
        fetch(&client, https(&origin, "/")).await.unwrap();
        assert_eq!(seen(&kinds), [full, full, resumed, full], "TLS {name}: left, and the direct way apart");
    }
}

#[tokio::test]
async fn e4_leaving_closes_what_is_idle_at_once_and_keeps_nothing_that_comes_back() {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    let (slow, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (slow_there, go_there) = (Arc::clone(&slow), Arc::clone(&go));
    // An exit that passes requests on: it holds back half of the body of /slow.
    let server = Server::start(move |mut stream, _| {
        let (open, slow, go) = (Arc::clone(&counted), Arc::clone(&slow_there), Arc::clone(&go_there));
        async move {
            open.fetch_add(1, Ordering::SeqCst);
            while let Some(head) = read_head(&mut stream).await {
                let held = head.contains("/slow");
                let (first, rest) = OK.as_bytes().split_at(OK.len() - 2);
                let _ = stream.write_all(first).await;
                if held {
                    slow.notify_one();
                    go.notified().await;
                }
                let _ = stream.write_all(rest).await;
            }
            open.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let client = Client::default();
    let (a, b) =
        (session(&format!("http://{}", server.address)), session(&format!("http://{}", server.address)));
    let target = |path: &str| Target::parse(&format!("http://a.test{path}")).unwrap();
    ask(&client, &a, target("/")).await;
    ask(&client, &a, Target::parse("http://b.test/").unwrap()).await;
    ask(&client, &b, target("/")).await;
    let busy = {
        let (client, a) = (client.clone(), Arc::clone(&a));
        tokio::spawn(async move { ask(&client, &a, Target::parse("http://c.test/slow").unwrap()).await })
    };
    slow.notified().await;
    assert_eq!(open.load(Ordering::SeqCst), 4);

    client.leave(a.id());
    until(|| async { open.load(Ordering::SeqCst) == 2 }).await; // b's, and the busy one
    go.notify_one();
    assert!(!busy.await.unwrap(), "it was whole");
    until(|| async { open.load(Ordering::SeqCst) == 1 }).await; // b's
    assert!(!ask(&client, &a, target("/")).await, "a request that was late has a connection of its own");
    assert!(!ask(&client, &a, target("/")).await, "and leaves none behind");
    assert!(ask(&client, &b, target("/")).await, "others are as before");
}

#[tokio::test]
async fn e4_leaving_gives_a_shared_connection_up_and_lets_its_streams_end() {
    let authority = Authority::new();
    let (there, go) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (there_too, go_there) = (Arc::clone(&there), Arc::clone(&go));
    let origin = tls_server(authority.server("127.0.0.1", &["h2"], |_| {}), move |stream, _| {
        let (there, go) = (Arc::clone(&there_too), Arc::clone(&go_there));
        async move {
            let mut connection = h2::server::handshake(stream).await.unwrap();
            while let Some(Ok((request, mut respond))) = connection.accept().await {
                let (there, go) = (Arc::clone(&there), Arc::clone(&go));
                tokio::spawn(async move {
                    if request.uri().path() == "/slow" {
                        there.notify_one();
                        go.notified().await;
                    }
                    let mut stream = respond.send_response(http::Response::new(()), false).unwrap();
                    stream.send_data(Bytes::from_static(b"hello"), true).unwrap();
                });
            }
        }
    })
    .await;
    let proxy = Proxy::start(|_, _| Act::Serve).await;
    let (client, exit) = (authority.client(), session(&proxy.url("http", "")));
    ask(&client, &exit, https(&origin, "/")).await;
    let busy = {
        let (client, exit, target) = (client.clone(), Arc::clone(&exit), https(&origin, "/slow"));
        tokio::spawn(async move { ask(&client, &exit, target).await })
    };
    there.notified().await;
    client.leave(exit.id());
    assert!(!ask(&client, &exit, https(&origin, "/")).await, "a connection of its own");
    go.notify_one();
    assert!(busy.await.unwrap(), "it went on where it was");
    assert_eq!(proxy.server.connections(), 2);
}

#[tokio::test]
async fn e4_the_pool_is_bounded_whatever_the_number_of_sessions() {
    let open = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&open);
    let server = Server::start(move |mut stream, _| {
        let open = Arc::clone(&counted);
        async move {
            open.fetch_add(1, Ordering::SeqCst);
            while read_head(&mut stream).await.is_some() {
                let _ = stream.write_all(OK.as_bytes()).await;
            }
            open.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let client = Client::new(ClientOptions { idle_max: 8, ..ClientOptions::default() });
    let target = || Target::parse("http://a.test/").unwrap();
    let sessions: Vec<_> = (0..100).map(|_| session(&format!("http://{}", server.address))).collect();
    for exit in &sessions {
        ask(&client, exit, target()).await;
    }
    until(|| async { open.load(Ordering::SeqCst) <= 8 }).await;
    assert!(ask(&client, &sessions[99], target()).await, "the youngest is still there");

    let authority = Authority::new();
    let client = Client::new(ClientOptions {
        idle_max: 8,
        roots: Some(authority.roots()),
        ..ClientOptions::default()
    });
    let live = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&live);
    let origin = tls_server(authority.server("127.0.0.1", &["h2"], |_| {}), move |stream, number| {
        let live = Arc::clone(&counted);
        async move {
            live.fetch_add(1, Ordering::SeqCst);
            both(stream, number).await;
            live.fetch_sub(1, Ordering::SeqCst);
        }
    })
    .await;
    let proxy = Proxy::start(|_, _| Act::Serve).await;
    let sessions: Vec<_> = (0..40).map(|_| session(&proxy.url("http", ""))).collect();
    for exit in &sessions {
        ask(&client, exit, https(&origin, "/")).await;
    }
    until(|| async { live.load(Ordering::SeqCst) <= 8 }).await;
    assert!(ask(&client, &sessions[39], https(&origin, "/")).await, "the one last asked for is still there");
}
