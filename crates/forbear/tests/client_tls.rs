//! TLS and HTTP/2, against servers that keep the rules and servers that break them.

mod client_kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use client_kit::{Authority, LONG, Server, Tls, fetch, get, headers, hello, https, post, reset, tls_server};
use forbear::client::{
    Client, ClientOptions, FaultKind, Http2, Limits, Phase, Processed, Request, Target, Way,
};
use forbear::permit::Permit;
use http::{Method, StatusCode, Version};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::test]
async fn v1_a_verdict_on_a_certificate_is_final_and_a_broken_handshake_is_not() {
    let authority = Authority::new();
    let client = authority.client();
    let good = tls_server(authority.server("127.0.0.1", &[], |_| {}), hello).await;
    assert_eq!(fetch(&client, https(&good, "/")).await.unwrap(), "hello");
    assert!(get(&client, https(&good, "/")).await.unwrap().reused);

    let expired =
        authority.server("127.0.0.1", &[], |params| params.not_after = rcgen::date_time_ymd(2020, 1, 1));
    let elsewhere = authority.server("elsewhere.test", &[], |_| {});
    let stranger = Authority::new().server("127.0.0.1", &[], |_| {});
    for (what, config) in [("expired", expired), ("another name", elsewhere), ("another authority", stranger)]
    {
        let server = tls_server(config, hello).await;
        let fault = fetch(&client, https(&server, "/")).await.unwrap_err();
        assert_eq!(
            (fault.kind, fault.at, fault.processed),
            (FaultKind::Certificate, Phase::Tls, Processed::No),
            "{what}"
        );
    }

    let closes = Server::start(|mut stream, _| async move { drop(stream.read_u8().await) }).await;
    let resets = Server::start(|mut stream, _| async move {
        let _ = stream.read_u8().await;
        reset(stream).await;
    })
    .await;
    let plain = Server::start(|mut stream, _| async move {
        let _ = stream.read_u8().await;
        let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await;
    })
    .await;
    for server in [closes, resets, plain] {
        let fault = fetch(&client, https(&server, "/")).await.unwrap_err();
        assert_eq!(
            (fault.kind, fault.at, fault.processed),
            (FaultKind::Handshake, Phase::Tls, Processed::No)
        );
    }

    let silent = Server::start(|stream, _| async move {
        let _open = stream;
        std::future::pending().await
    })
    .await;
    let limits = Limits::within(Duration::from_millis(150));
    let fault = client
        .send(&Permit::unmetered(), Request::get(https(&silent, "/")), &Way::Direct, &limits)
        .await
        .unwrap_err();
    assert_eq!((fault.kind, fault.at, fault.processed), (FaultKind::TimedOut, Phase::Tls, Processed::No));
}

/// The variables of a process cannot be changed safely while it runs, so the second half of this test runs in a process
/// of its own.
#[test]
fn roots_come_from_ssl_cert_file() {
    let (file, url) = ("FORBEAR_TEST_ROOTS", "FORBEAR_TEST_URL");
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    if let Ok(url) = std::env::var(url) {
        let target = Target::parse(&url).unwrap();
        assert_eq!(runtime.block_on(fetch(&Client::default(), target)).unwrap(), "hello");
        return;
    }
    let authority = Authority::new();
    let config = authority.server("127.0.0.1", &[], |_| {});
    let server = runtime.block_on(tls_server(config, hello));
    let directory = tempfile::tempdir().unwrap();
    let pem = directory.path().join(file);
    std::fs::write(&pem, authority.pem()).unwrap();
    let child = |roots: &std::path::Path| {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "roots_come_from_ssl_cert_file"])
            .env("SSL_CERT_FILE", roots)
            .env(url, https(&server, "/").as_str())
            .output()
            .unwrap()
    };
    let trusting = child(&pem);
    assert!(trusting.status.success(), "{}", String::from_utf8_lossy(&trusting.stdout));
    assert!(!child(&directory.path().join("missing")).status.success());
}

/// HTTP/2 as it should be, by the library's own server. Each answer says what was asked.
async fn polite(authority: &Authority, alpn: &[&str]) -> Server {
    tls_server(authority.server("127.0.0.1", alpn, |_| {}), |stream, _| async move {
        let mut connection = h2::server::handshake(stream).await.unwrap();
        while let Some(Ok((request, mut respond))) = connection.accept().await {
            tokio::spawn(async move {
                let (head, mut body) = request.into_parts();
                let mut len = 0;
                while let Some(Ok(data)) = body.data().await {
                    len += data.len();
                    let _ = body.flow_control().release_capacity(data.len());
                }
                let asked = format!("{} {} {} {len}", head.method, head.uri, head.headers.len());
                let answer = http::Response::builder().header("content-length", asked.len());
                let mut stream = respond.send_response(answer.body(()).unwrap(), false).unwrap();
                stream.send_data(Bytes::from(asked), true).unwrap();
            });
        }
    })
    .await
}

#[tokio::test]
async fn many_requests_share_one_http2_connection_and_one_handshake() {
    let authority = Authority::new();
    let server = polite(&authority, &["h2", "http/1.1"]).await;
    let client = authority.client();
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..60 {
        let (client, target) = (client.clone(), https(&server, &format!("/{n}")));
        asked.spawn(async move {
            let mut response = get(&client, target.clone()).await.unwrap();
            assert_eq!((response.version, response.status), (Version::HTTP_2, StatusCode::OK));
            let body = response.body.collect(1000).await.unwrap();
            assert_eq!(body, format!("GET {target} 3 0"));
            response.reused
        });
    }
    let reused = asked.join_all().await;
    assert_eq!(reused.into_iter().filter(|reused| !reused).count(), 1);
    assert_eq!(server.connections(), 1);

    let request = Request {
        headers: headers(&[("host", "other.example"), ("connection", "close"), ("x", "y")]),
        ..post(https(&server, "/up"), vec![b'x'; 3_000_000])
    };
    let mut response =
        client.send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG)).await.unwrap();
    assert_eq!(response.body.collect(1000).await.unwrap(), "POST https://other.example/up 5 3000000");

    let h1_only =
        ClientOptions { http2: Http2::Never, roots: Some(authority.roots()), ..ClientOptions::default() };
    let server = tls_server(authority.server("127.0.0.1", &["h2", "http/1.1"], |_| {}), hello).await;
    assert_eq!(get(&Client::new(h1_only), https(&server, "/")).await.unwrap().version, Version::HTTP_11);
}

#[tokio::test]
async fn a_server_without_http2_gets_its_connections_side_by_side() {
    let authority = Authority::new();
    let config = authority.server("127.0.0.1", &["http/1.1"], |_| {});
    let server = tls_server(config, hello).await;
    let client = authority.client();
    let open: Vec<_> = {
        let mut asked = tokio::task::JoinSet::new();
        for _ in 0..5 {
            let (client, target) = (client.clone(), https(&server, "/"));
            asked.spawn(async move { get(&client, target).await.unwrap() });
        }
        asked.join_all().await
    };
    assert!(open.iter().all(|response| response.version == Version::HTTP_11 && !response.reused));
    assert_eq!(server.connections(), 5);
}

// ---------------------------------------------------------------- HTTP/2 frame by frame

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;

const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

const PROTOCOL_ERROR: u32 = 1;
const REFUSED_STREAM: u32 = 7;
const ENHANCE_YOUR_CALM: u32 = 11;

struct Frames {
    stream: Tls,
}

impl Frames {
    /// Reads the preface and tells `settings` (identifier, value).
    async fn start(mut stream: Tls, settings: &[(u16, u32)]) -> Frames {
        stream.read_exact(&mut [0; 24]).await.unwrap();
        let mut frames = Frames { stream };
        let settings: Vec<u8> = settings
            .iter()
            .flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat())
            .collect();
        frames.write(SETTINGS, 0, 0, &settings).await;
        frames
    }

    async fn write(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let frame = [&len[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat();
        let _ = self.stream.write_all(&frame).await;
        let _ = self.stream.flush().await;
    }

    /// The next request that has been sent whole, by its stream; `None` when the client has gone.
    async fn request(&mut self) -> Option<u32> {
        loop {
            let mut head = [0; 9];
            self.stream.read_exact(&mut head).await.ok()?;
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            self.stream.read_exact(&mut vec![0; len]).await.ok()?;
            let (kind, flags) = (head[3], head[4]);
            if kind == SETTINGS && flags & 1 == 0 {
                self.write(SETTINGS, 1, 0, &[]).await;
            }
            if matches!(kind, HEADERS | DATA) && flags & END_STREAM != 0 {
                return Some(u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
            }
        }
    }

    async fn head(&mut self, stream: u32, flags: u8) {
        self.write(HEADERS, END_HEADERS | flags, stream, &[0x88]).await; // `:status: 200`, RFC 7541 appendix A
    }

    async fn ok(&mut self, stream: u32) {
        self.head(stream, 0).await;
        self.write(DATA, END_STREAM, stream, b"ok").await;
    }

    async fn refuse(&mut self, stream: u32, code: u32) {
        self.write(RST_STREAM, 0, stream, &code.to_be_bytes()).await;
    }

    async fn go_away(&mut self, last: u32, code: u32) {
        self.write(GOAWAY, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat()).await;
    }

    /// Goes without a TLS farewell.
    async fn reset(self) {
        reset(self.stream.into_inner().0).await;
    }
}

async fn h2_server<F>(
    authority: &Authority,
    serve: impl Fn(Tls, usize) -> F + Clone + Send + Sync + 'static,
) -> Server
where
    F: Future<Output = ()> + Send + 'static,
{
    tls_server(authority.server("127.0.0.1", &["h2"], |_| {}), serve).await
}

#[tokio::test]
async fn v2_what_http2_says_about_a_request() {
    #[derive(Clone, Copy, Debug)]
    enum Does {
        Refuse(u32),
        GoAway { below: bool, code: u32 },
        GoAwayThenBreak,
        Break,
        Close,
    }
    use Does::*;
    use FaultKind as K;
    use Processed::{No, Unknown};
    let authority = Authority::new();
    for (does, kind, processed) in [
        (Refuse(REFUSED_STREAM), K::StreamRefused, No),
        (Refuse(ENHANCE_YOUR_CALM), K::EnhanceYourCalm, Unknown),
        (Refuse(PROTOCOL_ERROR), K::StreamBroken, Unknown),
        (GoAway { below: true, code: 0 }, K::GoneAway, No),
        (GoAway { below: true, code: PROTOCOL_ERROR }, K::GoneAway, No),
        (GoAway { below: true, code: ENHANCE_YOUR_CALM }, K::EnhanceYourCalm, No),
        (GoAway { below: false, code: 0 }, K::Closed, Unknown),
        (GoAwayThenBreak, K::Reset, Unknown),
        (Break, K::Reset, Unknown),
        (Close, K::Closed, Unknown),
    ] {
        let server = h2_server(&authority, move |stream, _| async move {
            let mut frames = Frames::start(stream, &[]).await;
            let Some(stream) = frames.request().await else { return };
            match does {
                Refuse(code) => {
                    frames.refuse(stream, code).await;
                    while frames.request().await.is_some() {}
                }
                GoAway { below, code } => frames.go_away(if below { 0 } else { stream }, code).await,
                GoAwayThenBreak => {
                    frames.go_away(stream, 0).await;
                    frames.reset().await;
                }
                Break => frames.reset().await,
                Close => {}
            }
        })
        .await;
        let client = authority.client();
        let request = post(https(&server, "/"), "x");
        let fault = client
            .send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG))
            .await
            .unwrap_err();
        assert_eq!((fault.kind, fault.processed), (kind, processed), "{does:?}: {fault:?}");
        assert!(!fault.stale_connection, "{does:?}");
    }
}

/// The limit is told only after the first requests: none is lost, what the server refuses was not processed.
#[tokio::test]
async fn v2_a_limit_on_streams_that_is_told_late_is_kept() {
    let authority = Authority::new();
    let most = Arc::new(AtomicUsize::new(0));
    let seen = Arc::clone(&most);
    let server = h2_server(&authority, move |stream, _| {
        let seen = Arc::clone(&seen);
        async move {
            let mut frames = Frames::start(stream, &[(3, 10)]).await;
            // Answers only once nobody adds to those that wait, so all that may be open is open.
            let mut open = Vec::new();
            loop {
                match tokio::time::timeout(Duration::from_millis(40), frames.request()).await {
                    Ok(Some(stream)) => open.push(stream),
                    Ok(None) => return,
                    Err(_quiet) => {
                        seen.fetch_max(open.len(), Ordering::SeqCst);
                        for stream in open.drain(..) {
                            frames.ok(stream).await;
                        }
                    }
                }
            }
        }
    })
    .await;
    let client = authority.client();
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..45 {
        let (client, target) = (client.clone(), https(&server, "/"));
        asked.spawn(async move { fetch(&client, target).await.unwrap() });
    }
    assert!(asked.join_all().await.iter().all(|body| body == "ok"));
    assert_eq!((most.load(Ordering::SeqCst), server.connections()), (10, 1));
}

/// A request that is still queued behind the server's limit on streams has not been sent, whatever happens next.
#[tokio::test]
async fn v2_a_queued_stream_was_not_processed() {
    let authority = Authority::new();
    let server = h2_server(&authority, move |stream, _| async move {
        let mut frames = Frames::start(stream, &[(3, 1)]).await;
        let first = frames.request().await.unwrap();
        frames.ok(first).await; // by now the limit is known
        frames.request().await.unwrap();
        tokio::time::timeout(Duration::from_millis(100), frames.request()).await.unwrap_err(); // the third one must wait
        frames.reset().await;
    })
    .await;
    let client = authority.client();
    fetch(&client, https(&server, "/")).await.unwrap();
    let send = async || {
        let request = post(https(&server, "/"), "x");
        client.send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG)).await.unwrap_err()
    };
    let (second, third) = tokio::join!(send(), send());
    assert_eq!((second.kind, second.processed), (FaultKind::Reset, Processed::Unknown));
    assert_eq!(third.processed, Processed::No, "{third:?}");
}

/// Requests go out whole and in the order of their streams, so a server that counts whole requests and names the last one
/// in its `GOAWAY` names a stream that stands between those it answers and those it ignores.
#[tokio::test]
async fn v2_a_body_is_not_overtaken_so_the_last_stream_divides_what_was_processed() {
    let authority = Authority::new();
    let server = h2_server(&authority, move |stream, _| async move {
        let mut frames = Frames::start(stream, &[]).await;
        let first = frames.request().await.unwrap();
        frames.ok(first).await; // by now the settings are known
        let mut whole = Vec::new();
        for _ in 0..8 {
            whole.push(frames.request().await.unwrap());
        }
        frames.go_away(whole[4], 0).await;
        for stream in &whole[..5] {
            frames.ok(*stream).await;
        }
        while frames.request().await.is_some() {}
    })
    .await;
    let client = authority.client();
    fetch(&client, https(&server, "/")).await.unwrap();
    let mut asked = tokio::task::JoinSet::new();
    for n in 0..8 {
        let body = if n % 2 == 0 { "x" } else { "" };
        let (client, request) = (client.clone(), post(https(&server, "/"), body));
        asked.spawn(async move {
            let mut response =
                client.send(&Permit::unmetered(), request, &Way::Direct, &Limits::within(LONG)).await?;
            response.body.collect(10).await
        });
    }
    let (answered, ignored): (Vec<_>, Vec<_>) = asked.join_all().await.into_iter().partition(Result::is_ok);
    assert_eq!((answered.len(), server.connections()), (5, 1));
    for fault in ignored.into_iter().map(Result::unwrap_err) {
        assert_eq!((fault.kind, fault.processed), (FaultKind::GoneAway, Processed::No), "{fault:?}");
    }
}

#[tokio::test]
async fn a_connection_that_goes_away_finishes_its_streams_and_a_new_one_is_made() {
    let authority = Authority::new();
    let server = h2_server(&authority, move |stream, number| async move {
        let mut frames = Frames::start(stream, &[]).await;
        let first = frames.request().await.unwrap();
        if number == 1 {
            frames.go_away(first, 0).await;
        }
        frames.ok(first).await;
        while frames.request().await.is_some() {}
    })
    .await;
    let client = authority.client();
    assert_eq!(fetch(&client, https(&server, "/")).await.unwrap(), "ok");
    assert_eq!(fetch(&client, https(&server, "/")).await.unwrap(), "ok");
    assert_eq!(server.connections(), 2);
}

#[tokio::test]
async fn v4_an_http2_body_is_whole_or_a_fault() {
    let authority = Authority::new();
    for (stage, kind) in
        [(0, FaultKind::StreamBroken), (1, FaultKind::BodyShort), (2, FaultKind::StreamBroken)]
    {
        let server = h2_server(&authority, move |stream, _| async move {
            let mut frames = Frames::start(stream, &[]).await;
            let stream = frames.request().await.unwrap();
            if stage == 2 {
                // `content-length: 5`, and two bytes follow
                frames.write(HEADERS, END_HEADERS, stream, b"\x88\x0f\x0d\x015").await;
                return frames.write(DATA, END_STREAM, stream, b"ok").await;
            }
            frames.head(stream, 0).await;
            frames.write(DATA, 0, stream, b"part").await;
            match stage {
                0 => frames.refuse(stream, PROTOCOL_ERROR).await,
                _ => return frames.reset().await,
            }
            while frames.request().await.is_some() {}
        })
        .await;
        let fault = fetch(&authority.client(), https(&server, "/")).await.unwrap_err();
        assert_eq!((fault.kind, fault.at), (kind, Phase::Body), "{stage}: {fault:?}");
    }
}

#[tokio::test]
async fn the_answer_to_head_has_no_body_whatever_it_says() {
    let authority = Authority::new();
    let server = h2_server(&authority, move |stream, _| async move {
        let mut frames = Frames::start(stream, &[]).await;
        while let Some(stream) = frames.request().await {
            // `content-length: 99999999999`, and the stream ends later, by a frame without data
            frames.write(HEADERS, END_HEADERS, stream, b"\x88\x0f\x0d\x0b99999999999").await;
            frames.write(DATA, END_STREAM, stream, b"").await;
        }
    })
    .await;
    let request = Request { method: Method::HEAD, ..Request::get(https(&server, "/")) };
    let limits = Limits::within(LONG);
    let mut response =
        authority.client().send(&Permit::unmetered(), request, &Way::Direct, &limits).await.unwrap();
    assert_eq!(response.body.collect(10).await.unwrap(), "");
}

/// A connection that says nothing until the deadline is not given to the next request.
#[tokio::test]
async fn a_silent_http2_connection_is_not_used_again() {
    let authority = Authority::new();
    let server = h2_server(&authority, move |stream, number| async move {
        let mut frames = Frames::start(stream, &[]).await;
        while let Some(stream) = frames.request().await {
            if number > 1 || stream == 1 {
                frames.ok(stream).await;
            }
        }
    })
    .await;
    let client = authority.client();
    fetch(&client, https(&server, "/")).await.unwrap();
    let limits = Limits::within(Duration::from_millis(150));
    let fault = client
        .send(&Permit::unmetered(), Request::get(https(&server, "/")), &Way::Direct, &limits)
        .await
        .unwrap_err();
    assert_eq!(
        (fault.kind, fault.at, fault.processed),
        (FaultKind::TimedOut, Phase::Head, Processed::Unknown)
    );
    assert_eq!(fetch(&client, https(&server, "/")).await.unwrap(), "ok");
    assert_eq!(server.connections(), 2);
}
