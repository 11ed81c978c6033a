//! A pool of exits under an HTTP client of one's own, here hyper-util's: the pool says by which exit each request goes and
//! when, and what an answer means; the client sends.
//!
//! It starts a server and three proxies on loopback, of which one is dead, fetches a few pages, and prints what went where:
//! `cargo run -p forbear --example exit_pool`
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::{collections::BTreeMap, error::Error, sync::Arc, time::Duration};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use forbear::exit::{
    Exit, ExitPool, ExitUrl, Item, ItemPolicy, Outcome, PoolOptions, Received, Report, Verdict,
};
use forbear_zoo::{
    Server, ServerOptions,
    proxy::{Proxy, ProxyOptions},
};
use http::HeaderMap;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::{
    client::legacy::{
        Client,
        connect::{HttpConnector, proxy::Tunnel},
    },
    rt::TokioExecutor,
};
use tokio::{sync::Mutex, task::JoinSet, time};

type Failure = Box<dyn Error + Send + Sync>;
type Proxied = Client<Tunnel<HttpConnector>, Empty<bytes::Bytes>>;

/// One client for each exit and session, since both connections and cookies belong to them alone. Those of sessions that were
/// left are dropped.
#[derive(Clone, Default)]
struct Clients(Arc<Mutex<BTreeMap<(String, u64), Proxied>>>);

impl Clients {
    async fn of(&self, exit: &Exit) -> Result<Proxied, Failure> {
        let mut clients = self.0.lock().await;
        let key = (exit.name().to_owned(), exit.session());
        if let Some(known) = clients.get(&key) {
            return Ok(known.clone());
        }
        // hyper-util takes address and authorization apart; most clients take `exit.proxy_url().expose()`.
        let mut tunnel = Tunnel::new(exit.url().to_string().parse()?, HttpConnector::new());
        if let Some((user, password)) = exit.url().credentials() {
            let basic = STANDARD.encode([user, b":", password].concat());
            tunnel = tunnel.with_auth(format!("Basic {basic}").parse()?);
        }
        let client = Client::builder(TokioExecutor::new()).build(tunnel);
        clients.insert(key, client.clone());
        Ok(client)
    }

    async fn drop_left(&self, name: &str, session: u64) {
        self.0.lock().await.remove(&(name.to_owned(), session));
    }
}

/// What the client has of an answer.
struct Answer {
    status: u16,
    headers: HeaderMap,
    body: bytes::Bytes,
}

/// One request. A failure is put down to whoever is to blame.
async fn send(client: &Proxied, url: &str) -> Result<Answer, Outcome> {
    let request = http::Request::get(url).body(Empty::new()).map_err(|_| Outcome::Rejected)?;
    let asked = time::timeout(Duration::from_secs(30), client.request(request)).await;
    let response = asked.map_err(|_| Outcome::NO_ANSWER)?.map_err(|error| {
        // No tunnel. hyper-util does not tell what the proxy said to CONNECT, so the proxy is to blame for all of it; a
        // client that tells it has `of_connect` for that.
        if error.is_connect() { Outcome::EXIT_BROKEN } else { Outcome::NO_ANSWER }
    })?;
    let (head, body) = response.into_parts();
    let body = body.collect().await.map_err(|_| Outcome::NO_ANSWER)?.to_bytes();
    Ok(Answer { status: head.status.as_u16(), headers: head.headers, body })
}

/// Fetches one page, by as many exits as it takes. Says by which ones.
async fn fetch(pool: ExitPool, clients: Clients, url: String) -> Result<(Vec<String>, Verdict), Failure> {
    let (mut item, mut by) = (Item::new(), Vec::new());
    loop {
        let exit = pool.exit(&url, &item).await?;
        let (name, session) = (exit.name().to_owned(), exit.session());
        let client = clients.of(&exit).await?;
        let report: Report = match send(&client, &url).await {
            Ok(answer) => {
                let Answer { status, headers, body } = &answer;
                let received = Received {
                    body: Some(body),
                    bytes: body.len() as u64,
                    ..Received::new(*status, headers)
                };
                exit.answered(&mut item, received).await?
            }
            Err(outcome) => exit.failed(&mut item, outcome).await?,
        };
        if report.left {
            clients.drop_left(&name, session).await;
        }
        by.push(name);
        match report.again() {
            Some(wait) => time::sleep(wait).await,
            None => return Ok((by, report.verdict)),
        }
    }
}

/// Runs it all; how many pages each exit has fetched, by name.
pub(crate) async fn run(pages: usize) -> Result<BTreeMap<String, usize>, Failure> {
    let server = Server::start("open".parse()?, ServerOptions::default()).await?;
    let proxies = [
        Proxy::start(ProxyOptions::at(2).login("me", "p@ss/word")).await?,
        Proxy::start(ProxyOptions::at(3).login("me", "p@ss/word")).await?,
        Proxy::start(ProxyOptions::at(4)).await?,
    ];
    proxies[2].shut();

    let exits: Vec<ExitUrl> =
        proxies.iter().map(|proxy| proxy.url("http", "me:p@ss/word").parse()).collect::<Result<_, _>>()?;
    let item = ItemPolicy { exit_wait: Duration::from_millis(50), ..ItemPolicy::default() };
    let pool = ExitPool::new(exits, PoolOptions { item, ..PoolOptions::default() });
    let clients = Clients::default();

    let mut running = JoinSet::new();
    for page in 0..pages {
        running.spawn(fetch(pool.clone(), clients.clone(), server.url(&format!("/page/{page}"))));
    }
    let mut fetched = BTreeMap::new();
    while let Some(page) = running.join_next().await {
        let (by, verdict) = page??;
        if verdict == Verdict::Done {
            *fetched.entry(by.last().cloned().unwrap_or_default()).or_default() += 1;
        }
        if by.len() > 1 {
            println!("went by {}", by.join(", then by "));
        }
    }
    for row in pool.rows() {
        let tally = row.tally;
        println!("{}: {}, {} done, {} faults", row.name, row.state, tally.done, tally.faults);
    }
    Ok(fetched)
}

#[tokio::main]
#[allow(dead_code, reason = "its test has a main of its own")]
async fn main() -> Result<(), Failure> {
    let fetched = run(60).await?;
    println!("{} pages in all", fetched.values().sum::<usize>());
    Ok(())
}
