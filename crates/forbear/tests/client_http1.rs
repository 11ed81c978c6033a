//! HTTP/1.1 against servers that speak raw bytes.

use std::time::Duration;

use forbear::client::{Client, Limits, Request, Target};
use forbear::permit::Permit;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

#[tokio::test]
async fn keep_alive_connections_serve_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/a", listener.local_addr().unwrap());
    let server = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        for _ in 0..3 {
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello").await.unwrap();
        }
    });
    let client = Client::default();
    for turn in 0..3 {
        let request = Request::get(Target::parse(&url).unwrap());
        let limits = Limits::within(Duration::from_secs(10));
        let mut response = client.send(&Permit::unmetered(), request, &limits).await.unwrap();
        assert_eq!(response.reused, turn > 0);
        assert_eq!(response.body.collect(100).await.unwrap(), "hello");
    }
    server.await.unwrap();
}
