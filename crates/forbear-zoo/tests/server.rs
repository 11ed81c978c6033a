//! The server over a real socket: what a client sees, and what the log says.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use forbear_zoo::{Answer, Facts, Fault, Hint, Rate, Server, ServerOptions, Spec, Verdict};

/// One request on a connection of its own; all the bytes that came back, and how it ended.
fn ask(addr: SocketAddr, head: &str) -> (String, std::io::Result<()>) {
    let mut stream = TcpStream::connect(addr).unwrap();
    write!(stream, "{head} HTTP/1.1\r\nHost: zoo\r\nConnection: close\r\n\r\n").unwrap();
    let mut bytes = Vec::new();
    let mut chunk = [0; 4096];
    let end = loop {
        match stream.read(&mut chunk) {
            Ok(0) => break Ok(()),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) => break Err(error),
        }
    };
    (String::from_utf8(bytes).unwrap(), end)
}

async fn ask_in_thread(addr: SocketAddr, head: &'static str) -> (String, std::io::Result<()>) {
    tokio::task::spawn_blocking(move || ask(addr, head)).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_is_served_then_refused_and_all_of_it_is_in_the_log() {
    let spec = Spec::token_bucket(Rate::new(1, Duration::from_secs(3600)).unwrap(), 2).hint(Hint::Seconds);
    let server = Server::start(spec, ServerOptions::default()).await.unwrap();
    let mut statuses = Vec::new();
    for _ in 0..3 {
        let (text, end) = ask_in_thread(server.addr(), "GET /a?b=1").await;
        end.unwrap();
        statuses.push(text.split(' ').nth(1).unwrap().to_owned());
    }
    assert_eq!(statuses, ["200", "200", "429"]);
    let log = server.stop().await;
    assert_eq!((log.served().count(), log.refused().count(), log.connections()), (2, 1, 3));
    let refused = log.refused().next().unwrap();
    assert_eq!(refused.path, "/a?b=1");
    assert!(refused.told.unwrap() > Duration::from_secs(3590));
    assert!(refused.sent.is_some() && refused.answered <= refused.sent);
    assert!(log.sent_into_pause(Duration::ZERO).is_empty(), "nothing came after the refusal");
}

#[tokio::test(flavor = "multi_thread")]
async fn faults_are_seen_on_the_wire() {
    let limiter = |_now: Duration, request: &Facts<'_>| match request.path {
        "/reset" => Answer::fault(Fault::Reset),
        "/truncated" => Answer::fault(Fault::Truncated),
        "/502" => Answer::fault(Fault::ErrorPage),
        _ => Answer::ok(),
    };
    let options = ServerOptions { body_size: 1000, ..ServerOptions::default() };
    let server = Server::start_with(limiter, options).await.unwrap();

    let (text, end) = ask_in_thread(server.addr(), "GET /reset").await;
    assert_eq!(text, "");
    assert_eq!(end.unwrap_err().kind(), std::io::ErrorKind::ConnectionReset);

    let (text, _) = ask_in_thread(server.addr(), "GET /truncated").await;
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-length: 1000"), "{head}");
    assert_eq!(body.len(), 500);

    let (text, end) = ask_in_thread(server.addr(), "GET /502").await;
    end.unwrap();
    assert!(text.starts_with("HTTP/1.1 502"), "{text}");

    let (text, end) = ask_in_thread(server.addr(), "HEAD /").await;
    end.unwrap();
    assert!(text.ends_with("\r\n\r\n"), "{text}");

    let log = server.stop().await;
    assert_eq!(log.faults().count(), 3);
    assert!(log.hits().iter().all(|hit| hit.sent.is_some()), "{log:?}");
    assert_eq!(log.hits()[0].verdict, Verdict::Fault(Fault::Reset));
}
