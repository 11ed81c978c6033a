//! HTTP/1.1 against servers that speak raw bytes.

mod client_kit;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use client_kit::{End, LONG, Server, fetch, get, headers, post, read_head, reset};
use forbear::client::{
    Client, ClientOptions, FaultKind, Hop, Limits, Phase, Processed, Request, Target, Way,
};
use forbear::permit::Permit;
use http::{HeaderValue, Method, StatusCode, Version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::sync::Notify;

const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

#[tokio::test]
async fn keep_alive_connections_serve_again() {
    let server = Server::answering(OK, End::Keep).await;
    let client = Client::default();
    for turn in 0..3 {
        let mut response = get(&client, server.target("/a")).await.unwrap();
        assert_eq!(response.reused, turn > 0);
        assert_eq!(response.status, StatusCode::OK);
        assert_eq!(response.version, Version::HTTP_11);
        assert_eq!(response.remote, server.address);
        assert_eq!(response.body.collect(100).await.unwrap(), "hello");
        assert_eq!(response.body.received(), 5);
    }
    assert_eq!(server.connections(), 1);
}

/// What is whole is a success; what ends the connection afterwards, or could, keeps it out of the pool.
#[tokio::test]
async fn v4_whole_bodies_in_every_framing() {
    let chunked =
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2;x=y\r\nlo\r\n0\r\nT: x\r\n\r\n";
    for (answer, end, reused) in [
        (OK, End::Keep, true),
        (OK, End::Reset, false),
        (OK, End::Close, false),
        (chunked, End::Keep, true),
        (chunked, End::Reset, false),
        ("HTTP/1.1 200 OK\r\n\r\nhello", End::Close, false),
        ("HTTP/1.1 200 OK\r\nX: folded\r\n  line\r\nContent-Length: 5\r\n\r\nhello", End::Keep, true),
        ("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello", End::Keep, false),
        ("HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", End::Keep, false),
        ("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\nContent-Length: 5\r\n\r\nhello", End::Keep, true),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            End::Keep,
            true,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhelloHTTP/1.1 200 too much", End::Keep, false),
    ] {
        let server = Server::answering(answer, end).await;
        let client = Client::default();
        assert_eq!(fetch(&client, server.target("/a")).await.unwrap(), "hello", "{answer:?} {end:?}");
        if matches!(end, End::Reset | End::Close) {
            tokio::time::sleep(Duration::from_millis(60)).await; // the end must have arrived
        }
        let second = get(&client, server.target("/b")).await.unwrap();
        assert_eq!(second.reused, reused, "{answer:?} {end:?}");
    }
}

#[tokio::test]
async fn answers_without_a_body_free_the_connection_at_once() {
    for (method, answer) in [
        (Method::GET, "HTTP/1.1 204 No Content\r\n\r\n"),
        (Method::GET, "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\nContent-Encoding: gzip\r\n\r\n"),
        (Method::HEAD, "HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\nContent-Encoding: gzip\r\n\r\n"),
        (Method::GET, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Encoding: gzip\r\n\r\n"),
    ] {
        let server = Server::answering(answer, End::Keep).await;
        let client = Client::default();
        for turn in 0..2 {
            let request = Request { method: method.clone(), ..Request::get(server.target("/a")) };
            let response = client
                .send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG))
                .await
                .unwrap();
            assert_eq!(response.reused, turn > 0, "{answer:?}");
            drop(response); // nobody has read the body
        }
        if method == Method::GET {
            assert_eq!(fetch(&client, server.target("/a")).await.unwrap(), "", "{answer:?}");
        }
    }
}

#[tokio::test]
async fn v4_broken_answers_are_faults_that_say_what_broke() {
    let long_header = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(70_000));
    let many_headers = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(300));
    use FaultKind as K;
    use Phase::{Body, Head};
    for (answer, end, kind, at) in [
        ("", End::Close, K::Closed, Head),
        ("", End::Reset, K::Reset, Head),
        ("HTTP/1.1 200 O", End::Close, K::Closed, Head),
        ("SSH-2.0-OpenSSH\r\n\r\n", End::Keep, K::HeadMalformed, Head),
        ("HTTP/1.1 200 OK\r\nno colon\r\n\r\n", End::Keep, K::HeadMalformed, Head),
        ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", End::Keep, K::HeadMalformed, Head),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            End::Keep,
            K::HeadMalformed,
            Head,
        ),
        (&long_header, End::Keep, K::HeadTooLarge, Head),
        (&many_headers, End::Keep, K::HeadTooLarge, Head),
        (
            "HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
            End::Keep,
            K::UnsupportedProtocol,
            Head,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\nfourteen bytes", End::Close, K::BodyShort, Body),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10000\r\n\r\nfourteen bytes", End::Reset, K::BodyShort, Body),
        ("HTTP/1.1 200 OK\r\n\r\nno length", End::Reset, K::BodyShort, Body),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\npart\r\n",
            End::Close,
            K::BodyShort,
            Body,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\npart\r\n",
            End::Keep,
            K::BodyMalformed,
            Body,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nparts\r\n",
            End::Keep,
            K::BodyMalformed,
            Body,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\ntext",
            End::Keep,
            K::Decode,
            Body,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\n\x1f\u{8b}\x08",
            End::Keep,
            K::Decode,
            Body,
        ),
    ] {
        let server = Server::answering(answer.to_owned(), end).await;
        let client = Client::default();
        let fault = fetch(&client, server.target("/a")).await.unwrap_err();
        let shown = &answer[..answer.len().min(90)];
        assert_eq!((fault.kind, fault.at), (kind, at), "{shown:?} {end:?}: {fault:?}");
        assert_eq!(fault.processed, Processed::Unknown, "{shown:?}");
        assert!(!fault.stale_connection, "{shown:?}: the connection was new");
        let again = fetch(&client, server.target("/b")).await.unwrap_err();
        assert_eq!(again.kind, kind, "{shown:?}");
        assert_eq!(server.connections(), 2, "never reused after an error: {shown:?}");
    }
}

#[tokio::test]
async fn v2_a_pooled_connection_that_was_closed_costs_nothing() {
    let server = Server::answering(OK, End::Close).await;
    let client = Client::default();
    for _ in 0..3 {
        assert_eq!(fetch(&client, server.target("/a")).await.unwrap(), "hello");
        tokio::time::sleep(Duration::from_millis(50)).await; // the close must have arrived
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn v2_a_connection_that_was_closed_at_rest_in_the_pool_costs_nothing() {
    let (close, closed) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let server = Server::start({
        let (close, closed) = (Arc::clone(&close), Arc::clone(&closed));
        move |mut stream, _| {
            let (close, closed) = (Arc::clone(&close), Arc::clone(&closed));
            async move {
                read_head(&mut stream).await;
                stream.write_all(OK.as_bytes()).await.unwrap();
                close.notified().await;
                drop(stream);
                closed.notify_one();
            }
        }
    })
    .await;
    let client = Client::default();
    for _ in 0..3 {
        // The clock runs out where nothing hears of the end.
        assert_eq!(fetch(&client, server.target("/a")).await.unwrap(), "hello");
        close.notify_one();
        closed.notified().await;
    }
    assert_eq!(server.connections(), 3);
}

#[tokio::test]
async fn v2_a_reused_connection_that_closes_on_the_request_is_stale_and_unknown() {
    let server = Server::start(|mut stream, _| async move {
        read_head(&mut stream).await;
        stream.write_all(OK.as_bytes()).await.unwrap();
        read_head(&mut stream).await; // it arrives, and nothing is answered
    })
    .await;
    let client = Client::default();
    fetch(&client, server.target("/a")).await.unwrap();
    let fault = fetch(&client, server.target("/b")).await.unwrap_err();
    assert_eq!((fault.kind, fault.at, fault.processed), (FaultKind::Closed, Phase::Head, Processed::Unknown));
    assert!(fault.stale_connection);
}

#[tokio::test]
async fn v2_what_could_not_connect_was_not_processed() {
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let refused = format!("http://{}/", closed.local_addr().unwrap());
    drop(closed);
    let fault = fetch(&Client::default(), Target::parse(&refused).unwrap()).await.unwrap_err();
    let expected = (FaultKind::ConnectRefused, Phase::Connect, Processed::No);
    assert_eq!((fault.kind, fault.at, fault.processed), expected);
}

#[tokio::test]
async fn one_deadline_for_every_phase() {
    let slow = Limits::within(Duration::from_millis(150));
    for (answer, at) in [
        ("", Phase::Head),
        ("HTTP/1.1 200 OK\r\nX-Drip: ", Phase::Head),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n", Phase::Body),
        ("HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nten bytes.", Phase::Body),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0000", Phase::Body),
    ] {
        let server = Server::answering(answer, End::Hang).await;
        let limits = Limits { deadline: tokio::time::Instant::now() + Duration::from_millis(150), ..slow };
        let sent = Client::default()
            .send(&Permit::unmetered(), Request::get(server.target("/")), &Way::Direct, &limits)
            .await;
        let fault = match sent {
            Ok(mut response) => response.body.collect(100).await.unwrap_err(),
            Err(fault) => fault,
        };
        assert_eq!((fault.kind, fault.at), (FaultKind::TimedOut, at), "{answer:?}");
        assert_eq!(fault.processed, Processed::Unknown);
        assert!(tokio::time::Instant::now() >= limits.deadline);
    }
}

#[tokio::test]
async fn a_body_that_never_stops_meets_the_deadline() {
    let server = Server::start(|mut stream, _| async move {
        read_head(&mut stream).await;
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await;
        while stream.write_all(&[b'x'; 65536]).await.is_ok() {}
    })
    .await;
    let limits = Limits { body_max: u64::MAX, ..Limits::within(Duration::from_millis(200)) };
    let mut response = Client::default()
        .send(&Permit::unmetered(), Request::get(server.target("/")), &Way::Direct, &limits)
        .await
        .unwrap();
    let fault = loop {
        match response.body.chunk().await.unwrap() {
            Ok(_) => {}
            Err(fault) => break fault,
        }
    };
    assert_eq!((fault.kind, fault.at), (FaultKind::TimedOut, Phase::Body));
    assert!(response.body.chunk().await.is_none(), "nothing comes after a fault");
}

#[tokio::test]
async fn k4_a_body_over_its_limit_names_the_size() {
    let big = "x".repeat(300_000);
    let by_length = format!("HTTP/1.1 200 OK\r\nContent-Length: 300000\r\n\r\n{big}");
    let by_chunk =
        format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n{big}\r\n0\r\n\r\n");
    for (answer, exact) in [(by_length, true), (by_chunk, false)] {
        let server = Server::answering(answer, End::Keep).await;
        let limits = Limits { body_max: 100_000, ..Limits::within(LONG) };
        let client = Client::default();
        let mut response = client
            .send(&Permit::unmetered(), Request::get(server.target("/")), &Way::Direct, &limits)
            .await
            .unwrap();
        let fault = response.body.collect(u64::MAX).await.unwrap_err();
        let FaultKind::BodyTooLarge { limit: 100_000, size } = fault.kind else { panic!("{fault:?}") };
        assert!(if exact { size == 300_000 } else { size > 100_000 });
        assert!(fault.to_string().contains("too large") && fault.to_string().contains("100000"), "{fault}");
        let mut response = get(&client, server.target("/")).await.unwrap();
        assert!(!response.reused);
        assert_eq!(response.body.collect(300_000).await.unwrap().len(), 300_000, "exactly the limit");
    }
}

#[tokio::test]
async fn discarding_frees_the_connection_or_closes_it() {
    let body = "x".repeat(200_000);
    let server =
        Server::answering(format!("HTTP/1.1 429 Slow\r\nContent-Length: 200000\r\n\r\n{body}"), End::Keep)
            .await;
    let client = Client::default();
    get(&client, server.target("/")).await.unwrap().body.discard(200_000).await;
    let second = get(&client, server.target("/")).await.unwrap();
    assert!(second.reused, "read to its end");
    second.body.discard(1000).await;
    let third = get(&client, server.target("/")).await.unwrap();
    assert!(!third.reused, "given up");
    drop(third);
    assert!(!get(&client, server.target("/")).await.unwrap().reused, "dropped in the middle");
}

#[tokio::test]
async fn what_goes_out_is_what_was_asked_for() {
    let heads = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&heads);
    let server = Server::start(move |mut stream, _| {
        let log = Arc::clone(&log);
        async move {
            while let Some(head) = read_head(&mut stream).await {
                let len = head.lines().find_map(|line| {
                    line.to_lowercase().strip_prefix("content-length: ").map(|n| n.parse().unwrap())
                });
                let mut body = vec![0; len.unwrap_or(0)];
                stream.read_exact(&mut body).await.unwrap();
                log.lock().unwrap().push((head.to_lowercase(), body));
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
            }
        }
    })
    .await;
    let client = Client::default();
    let send = async |request: Request| {
        client.send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG)).await.unwrap();
        heads.lock().unwrap().pop().unwrap()
    };

    let (head, body) = send(Request::get(server.target("/A b%2f?q"))).await;
    let expected = format!(
        "get /a%20b%2f?q http/1.1\r\nhost: {}\r\nuser-agent: forbear/{}\r\naccept: */*\r\naccept-encoding: gzip, br, zstd, deflate\r\n\r\n",
        server.address,
        env!("CARGO_PKG_VERSION")
    );
    assert_eq!((head.as_str(), body.as_slice()), (expected.as_str(), &b""[..]));

    let nameless = ClientOptions { user_agent: HeaderValue::from_static(""), ..ClientOptions::default() };
    let nameless = Client::new(nameless);
    for (own, sent) in [(&[][..], false), (&[("user-agent", "mine")][..], true)] {
        let request = Request { headers: headers(own), ..Request::get(server.target("/")) };
        nameless.send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG)).await.unwrap();
        let (head, _) = heads.lock().unwrap().pop().unwrap();
        assert_eq!((head.contains("user-agent"), head.contains("user-agent: mine")), (sent, sent), "{head}");
    }

    let fields = headers(&[
        ("host", "other.example"),
        ("user-agent", "mine"),
        ("accept-encoding", "identity"),
        ("cookie", "a=1"),
        ("cookie", "b=2"),
        ("te", "trailers"),
        ("connection", "close"),
        ("keep-alive", "timeout=5"),
        ("proxy-authorization", "Basic abc"),
        ("proxy-connection", "close"),
        ("transfer-encoding", "chunked"),
        ("content-length", "77"),
        ("expect", "100-continue"),
        ("upgrade", "h2c"),
    ]);
    let (head, body) = send(Request { headers: fields, ..post(server.target("/"), "four") }).await;
    let mut lines: Vec<&str> = head.trim_end().lines().collect();
    lines.sort_unstable();
    assert_eq!(
        lines,
        [
            "accept-encoding: identity",
            "accept: */*",
            "content-length: 4",
            "cookie: a=1",
            "cookie: b=2",
            "host: other.example",
            "post / http/1.1",
            "te: trailers",
            "user-agent: mine",
        ]
    );
    assert_eq!(body, b"four");

    for (method, length) in [
        (Method::POST, true),
        (Method::PUT, true),
        (Method::PATCH, true),
        (Method::GET, false),
        (Method::DELETE, false),
    ] {
        let (head, _) = send(Request { method: method.clone(), ..Request::get(server.target("/")) }).await;
        assert_eq!(head.contains("content-length: 0"), length, "{method}");
    }
    for size in [10, 1 << 18] {
        let (_, body) = send(post(server.target("/"), vec![b'b'; size])).await;
        assert_eq!(body.len(), size);
    }

    let url = server.url("/").replace("http://", "http://user:p%40ss@");
    let (head, _) = send(Request::get(Target::parse(&url).unwrap())).await;
    assert!(head.contains("authorization: basic dxnlcjpwqhnz\r\n"), "{head}");
    let own = Request {
        headers: headers(&[("authorization", "Bearer x")]),
        ..Request::get(Target::parse(&url).unwrap())
    };
    assert!(send(own).await.0.contains("authorization: bearer x\r\n"));
}

#[tokio::test]
async fn k1_no_secret_is_shown() {
    let fields = headers(&[
        ("authorization", "Bearer S3CRET"),
        ("cookie", "S3CRET"),
        ("x-api-key", "S3CRET"),
        ("x-odd", "S3CRET"),
    ]);
    let target = Target::parse("http://u:S3CRET@127.0.0.1:9/").unwrap();
    let request = Request { headers: fields, ..post(target.clone(), "S3CRET") };
    let fault = Client::default()
        .send(&Permit::unmetered(), request.clone(), &Way::Direct, &Limits::within(LONG))
        .await
        .unwrap_err();
    let server = Server::answering(
        "HTTP/1.1 200 OK\r\nSet-Cookie: S3CRET\r\nContent-Length: 6\r\n\r\nS3CRET",
        End::Keep,
    )
    .await;
    let response = get(&Client::default(), server.target("/")).await.unwrap();
    let shown = format!("{request:?} {target:?} {target} {fault:?} {fault} {response:?}");
    assert!(!shown.contains("S3CRET"), "{shown}");
    assert!(shown.contains("x-api-key"), "the names are shown");
}

/// The server answers before it has read the request, and closes.
#[tokio::test]
async fn an_early_refusal_is_read_and_its_connection_not_used_again() {
    let server = Server::start(|mut stream, _| async move {
        let head = read_head(&mut stream).await.unwrap();
        let answer = if head.starts_with("POST") {
            "HTTP/1.1 413 Too Large\r\nContent-Length: 2\r\n\r\nno"
        } else {
            OK
        };
        stream.write_all(answer.as_bytes()).await.unwrap();
        read_head(&mut stream).await;
    })
    .await;
    let client = Client::default();
    let request = post(server.target("/"), vec![b'x'; 20_000_000]);
    let mut response =
        client.send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG)).await.unwrap();
    assert_eq!(response.status, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(response.body.collect(10).await.unwrap(), "no");
    let second = get(&client, server.target("/")).await.unwrap();
    assert!(!second.reused);
}

#[tokio::test]
async fn k2_addresses_are_judged_where_the_socket_goes() {
    let server = Server::answering(OK, End::Keep).await;
    let strict = Client::new(ClientOptions { public_only: true, ..ClientOptions::default() });
    for host in ["127.0.0.1", "localhost", "2130706433", "[::ffff:127.0.0.1]"] {
        let target = Target::parse(&format!("http://{host}:{}/", server.address.port())).unwrap();
        let fault = fetch(&strict, target).await.unwrap_err();
        assert!(matches!(fault.kind, FaultKind::AddressForbidden { .. }), "{host}: {fault:?}");
        assert_eq!(fault.processed, Processed::No);
    }
    assert_eq!(server.connections(), 0);

    let hop = |hop| Limits { hop, ..Limits::within(Duration::from_millis(300)) };
    let metadata = Target::parse("http://169.254.169.254/latest/").unwrap();
    let client = Client::default();
    let fault = client
        .send(&Permit::unmetered(), Request::get(metadata), &Way::Direct, &hop(Hop::Redirect))
        .await
        .unwrap_err();
    let address: IpAddr = "169.254.169.254".parse().unwrap();
    assert_eq!(fault.kind, FaultKind::AddressForbidden { address });
    let local = client
        .send(&Permit::unmetered(), Request::get(server.target("/")), &Way::Direct, &hop(Hop::Redirect))
        .await;
    assert!(local.is_ok(), "loopback is not link-local");
}

#[tokio::test]
async fn the_pool_is_bounded_and_forgets() {
    let server = Server::answering(OK, End::Keep).await;
    let client = Client::new(ClientOptions {
        idle_per_origin_max: 2,
        idle_timeout: Duration::from_millis(200),
        ..ClientOptions::default()
    });
    let mut open = Vec::new();
    for _ in 0..4 {
        open.push(get(&client, server.target("/")).await.unwrap());
    }
    for mut response in open.drain(..) {
        response.body.collect(10).await.unwrap();
    }
    for _ in 0..4 {
        open.push(get(&client, server.target("/")).await.unwrap());
    }
    assert_eq!(open.iter().filter(|response| response.reused).count(), 2);
    for mut response in open {
        response.body.collect(10).await.unwrap();
    }
    tokio::time::sleep(Duration::from_millis(250)).await; // the subject is the real clock
    assert!(!get(&client, server.target("/")).await.unwrap().reused);
}

#[tokio::test]
async fn v4_coded_bodies_over_the_wire() {
    let gz = |data: &[u8]| {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, data).unwrap();
        encoder.finish().unwrap()
    };
    let answer = |coding: &str, body: &[u8], cut: usize| -> Bytes {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(&body[..body.len() - cut]);
        bytes.into()
    };
    let text = b"text".repeat(2000);
    let whole = gz(&text);
    let client = Client::default();

    let server = Server::answering(answer("gzip", &whole, 0), End::Keep).await;
    let mut response = get(&client, server.target("/")).await.unwrap();
    assert_eq!(response.body.collect(u64::MAX).await.unwrap(), text);
    assert_eq!((response.body.received(), response.body.decoded()), (whole.len() as u64, 8000));
    assert!(get(&client, server.target("/")).await.unwrap().reused, "a coded body frees its connection too");

    let server = Server::answering(answer("x-odd", b"as it came", 0), End::Keep).await;
    assert_eq!(fetch(&client, server.target("/")).await.unwrap(), "as it came");

    // Whole by its framing, but the stream inside is cut.
    let server = Server::answering(answer("gzip", &whole[..whole.len() - 20], 0), End::Keep).await;
    assert_eq!(fetch(&client, server.target("/")).await.unwrap_err().kind, FaultKind::BodyShort);

    // A short stream that the framing says is longer (the uncompressed length): not whole.
    let mut longer = answer("gzip", &text, text.len()).to_vec();
    longer.extend_from_slice(&whole);
    let server = Server::answering(longer, End::Close).await;
    assert_eq!(fetch(&client, server.target("/")).await.unwrap_err().kind, FaultKind::BodyShort);

    let server = Server::answering(answer("gzip,gzip,gzip,gzip", &whole, 0), End::Keep).await;
    assert_eq!(fetch(&client, server.target("/")).await.unwrap_err().kind, FaultKind::Decode);
}

#[tokio::test]
async fn k4_zeros_pass_in_small_steps_and_bombs_do_not() {
    let zeros = vec![0u8; 1 << 20];
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    for _ in 0..64 {
        std::io::Write::write_all(&mut encoder, &zeros).unwrap();
    }
    let once = encoder.finish().unwrap();
    let twice = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        std::io::Write::write_all(&mut encoder, &once).unwrap();
        encoder.finish().unwrap()
    };
    let served = |coding: &str, body: &[u8]| {
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Encoding: {coding}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        [head.as_bytes(), body].concat()
    };
    let limits = Limits { body_max: 1 << 30, ..Limits::within(LONG) };
    let client = Client::default();
    let server = Server::answering(served("gzip", &once), End::Keep).await;
    let request = Request::get(server.target("/"));
    let mut response = client.send(&Permit::unmetered(), request, &Way::Direct, &limits).await.unwrap();
    let mut len = 0;
    while let Some(piece) = response.body.chunk().await {
        let piece = piece.unwrap();
        assert!(piece.len() <= 64 * 1024);
        len += piece.len();
    }
    assert_eq!(len, 64 << 20);

    let server = Server::answering(served("gzip, gzip", &twice), End::Keep).await;
    let request = Request::get(server.target("/"));
    let mut response = client.send(&Permit::unmetered(), request, &Way::Direct, &limits).await.unwrap();
    let fault = response.body.collect(u64::MAX).await.unwrap_err();
    assert!(matches!(fault.kind, FaultKind::RatioExceeded { .. }), "{fault:?}");
    assert!(response.body.decoded() < 2 << 20);
}

#[tokio::test]
async fn dropping_a_request_closes_its_connection() {
    let (told, mut closed) = tokio::sync::mpsc::unbounded_channel();
    let server = Server::start(move |mut stream, _| {
        let told = told.clone();
        async move {
            read_head(&mut stream).await;
            told.send("asked").unwrap();
            assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
            told.send("closed").unwrap();
        }
    })
    .await;
    let client = Client::default();
    let target = server.target("/");
    let request = tokio::spawn(async move { fetch(&client, target).await });
    assert_eq!(closed.recv().await, Some("asked"));
    request.abort();
    assert_eq!(closed.recv().await, Some("closed"));
}

#[tokio::test]
async fn a_reset_in_the_middle_of_an_upload_is_a_fault() {
    let server = Server::start(|mut stream, _| async move {
        read_head(&mut stream).await;
        reset(stream).await;
    })
    .await;
    let request = post(server.target("/"), vec![b'x'; 20_000_000]);
    let fault = Client::default()
        .send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG))
        .await
        .unwrap_err();
    assert_eq!((fault.at, fault.processed), (Phase::Send, Processed::Unknown), "{fault:?}");
    assert_eq!(fault.kind, FaultKind::Reset);
}
