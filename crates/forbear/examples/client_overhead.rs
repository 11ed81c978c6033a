//! What the client costs on top of hyper: small pages over keep-alive connections, by `Client::send` and by a bare loop on
//! `hyper::client::conn::http1`, in turns, against the same local server in a process of its own.
//!
//! `cargo run --release -p forbear --example client_overhead [connections] [rounds]`
#![allow(clippy::print_stdout)]

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use forbear::client::{Client, Limits, Request, Target, Way};
use forbear::permit::Permit;
use http_body_util::{BodyExt as _, Empty, Full};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};

const ROUND: Duration = Duration::from_secs(2);

fn main() {
    let mut words = std::env::args().skip(1);
    let first = words.next();
    if first.as_deref() == Some("serve") {
        return runtime().block_on(serve());
    }
    let connections = first.map_or(16, |word| word.parse().expect("a number of connections"));
    let rounds = words.next().map_or(5, |word| word.parse().expect("a number of rounds"));

    let exe = std::env::current_exe().expect("this program");
    let mut server = Command::new(exe)
        .arg("serve")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a server");
    let mut line = String::new();
    BufReader::new(server.stdout.take().expect("its output")).read_line(&mut line).expect("its address");
    let address: SocketAddr = line.trim().parse().expect("its address");

    let mut ratios = Vec::new();
    println!("{connections} connections, pages of 1 KiB\n{:>24} {:>24}", "hyper alone", "forbear's client");
    for _ in 0..rounds {
        let bare = measure(connections, |stop| bare(address, stop));
        let client = Client::default();
        let ours = measure(connections, |stop| ours(client.clone(), address, stop));
        println!(
            "{:>9.0}/s {:>8.2} us CPU {:>9.0}/s {:>8.2} us CPU",
            bare.rate, bare.cpu_us, ours.rate, ours.cpu_us
        );
        ratios.push((ours.rate / bare.rate, ours.cpu_us / bare.cpu_us));
    }
    ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
    let median = ratios[ratios.len() / 2];
    println!(
        "median: {:.1} % of the pages, {:.2} times the CPU of the client's process",
        median.0 * 100.0,
        median.1
    );
    server.kill().expect("the server ends");
    server.wait().expect("the server ends");
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

struct Measured {
    rate: f64,
    cpu_us: f64,
}

/// Runs as many loops as there are connections for a round.
fn measure<F>(connections: usize, work: impl Fn(Arc<AtomicBool>) -> F) -> Measured
where
    F: Future<Output = u64> + Send + 'static,
{
    let runtime = runtime();
    let stop = Arc::new(AtomicBool::new(false));
    let (started, cpu) = (Instant::now(), cpu_ticks());
    let loops: Vec<_> = (0..connections).map(|_| runtime.spawn(work(Arc::clone(&stop)))).collect();
    runtime.block_on(async { tokio::time::sleep(ROUND).await });
    stop.store(true, Ordering::Relaxed);
    let pages: u64 = loops.into_iter().map(|pages| runtime.block_on(pages).expect("a loop")).sum();
    let (wall, cpu) = (started.elapsed(), cpu_ticks() - cpu);
    // A tick is 10 ms on every Linux that matters.
    Measured { rate: pages as f64 / wall.as_secs_f64(), cpu_us: cpu as f64 * 10_000.0 / pages as f64 }
}

/// User and system time of this process (`proc_pid_stat(5)`, fields 14 and 15).
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split(' ').skip(11).take(2).filter_map(|ticks| ticks.parse::<u64>().ok()).sum()
}

async fn bare(address: SocketAddr, stop: Arc<AtomicBool>) -> u64 {
    let stream = TcpStream::connect(address).await.expect("a connection");
    stream.set_nodelay(true).expect("a socket");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.expect("a handshake");
    tokio::spawn(connection);
    let host = address.to_string();
    let mut pages = 0;
    while !stop.load(Ordering::Relaxed) {
        let request = http::Request::get("/page")
            .header("host", &host)
            .header("user-agent", "bare")
            .header("accept", "*/*")
            .header("accept-encoding", "gzip, br, zstd, deflate")
            .body(Empty::<Bytes>::new())
            .expect("a request");
        sender.ready().await.expect("a connection");
        let answer = sender.send_request(request).await.expect("an answer");
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        assert_eq!(body.len(), 1024);
        pages += 1;
    }
    pages
}

async fn ours(client: Client, address: SocketAddr, stop: Arc<AtomicBool>) -> u64 {
    let target = Target::parse(&format!("http://{address}/page")).expect("a target");
    let permit = Permit::unmetered();
    let mut pages = 0;
    while !stop.load(Ordering::Relaxed) {
        let limits = Limits::within(Duration::from_secs(30));
        let mut answer = client
            .send(&permit, Request::get(target.clone()), &Way::Direct, &limits)
            .await
            .expect("an answer");
        let body = answer.body.collect(1 << 20).await.expect("a body");
        assert_eq!(body.len(), 1024);
        pages += 1;
    }
    pages
}

/// Pages of 1 KiB to everybody until the parent is gone.
async fn serve() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    println!("{}", listener.local_addr().expect("an address"));
    let mut orphaned = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new())); // ends with the parent
    let page = Bytes::from(vec![b'x'; 1024]);
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => accepted.expect("a connection").0,
            _ = &mut orphaned => return,
        };
        let page = page.clone();
        tokio::spawn(async move {
            stream.set_nodelay(true).expect("a socket");
            let answer = service_fn(move |_request| {
                let page = page.clone();
                async move { Ok::<_, Infallible>(http::Response::new(Full::new(page))) }
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
    }
}
