//! What a decision costs that several processes share, beside a GET and a SET for each request in the same run; and how
//! long a pause takes to reach them. One line of JSON for each figure.
//!
//! Starts a `redis-server` and processes of its own: what is measured runs in this same program, told so by its arguments. Peers
//! of other makers are named by `FORBEAR_BENCH_PEERS`, as `bench/run` does: commands that take the server's URL and a number of
//! seconds, and print how many requests they let through.

use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use forbear_core::{
    attempt::{self, Ask, Decision, Finding},
    gate::{Gate, Told},
    outcome::Outcome,
    pace::RateList,
    policy::{BoundScope, ScopePolicy},
    scope::{Combination, Role, ScopeKey},
    time::Timestamp,
};
use forbear_store::gate::{GateStore, RedisGates, SharedEvent, SharedOptions};

/// Requests that each process has in the works at once.
const TASKS: usize = 32;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let part = args.iter().position(|arg| arg == "--part");
    if let (Some(at), Ok(runtime)) = (part, runtime()) {
        return runtime.block_on(member(&args[at + 1..]));
    }
    let quick = !args.iter().any(|arg| arg == "--bench");
    let seconds = if quick { "1" } else { "5" };
    let (rounds, mut server) = (if quick { 20 } else { 300 }, Server::start());
    let url = server.url.clone();

    // Turns, so that what slows the machine down slows both.
    let (mut ours, mut trips, mut peers) = (0.0, 0.0, peers());
    let rounds_of_peers = if quick { 1 } else { 3 };
    for _ in 0..rounds_of_peers {
        for peer in &mut peers {
            let children = (0..2).map(|_| peer.start(&url, seconds));
            peer.done += sum(&said(children.collect()))[0];
        }
        let of_run = sum(&run(2, &["decide", &url, seconds, "none"]));
        (ours, trips) = (ours + of_run[0], trips + of_run[1]);
    }
    let whole = f64::from(rounds_of_peers) * seconds.parse::<f64>().unwrap_or(1.0);
    figure("permit and report, one scope, two processes", format!("{:.0}/s", ours / whole), "", true);
    for peer in &peers {
        let (name, least, times) = (&peer.name, peer.times, ours / peer.done);
        figure(&format!("{name}, two processes"), format!("{:.0}/s", peer.done / whole), "peer", true);
        let budget = format!("at least {least:.0}x");
        figure(&format!("forbear beside {name}"), format!("{times:.1}x"), &budget, times >= least);
    }
    figure("round trips for each of them", format!("{:.4}", trips / ours), "at most 1", trips <= ours);
    for (rate, processes, most) in [("1000/s", 2, "at most 0.05"), ("1000/s", 8, ""), ("20/s", 2, "")] {
        let of_run = sum(&run(processes, &["decide", &url, seconds, rate]));
        let (each, share) = (of_run[1] / of_run[0], of_run[0] / seconds.parse::<f64>().unwrap_or(1.0));
        let what = format!("round trips for a permit at {rate}, {processes} processes");
        figure(&what, format!("{each:.3}, at {share:.0} permits a second"), most, each <= 0.05);
        let each = of_run[1] / of_run[2];
        figure("the same for a decision", format!("{each:.3}"), "at most 1", each <= 1.0);
    }
    let mut late = pauses(&url, 8, rounds);
    late.sort_by(f64::total_cmp);
    let at = |share: f64| late[((late.len() - 1) as f64 * share) as usize];
    let shown = format!("{:.2} ms; median {:.2}, most {:.2}", at(0.99), at(0.5), at(1.0));
    figure("a pause seen by 8 processes, 99th percentile", shown, "at most 5 ms", at(0.99) <= 5.0);
    server.stop();
}

/// What one process does.
async fn member(args: &[String]) {
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match words[..] {
        ["get-set", url, seconds] => {
            let client = redis::Client::open(url).unwrap();
            let connection = client.get_multiplexed_async_connection().await.unwrap();
            let done = Arc::new(AtomicU64::new(0));
            let count = done.clone();
            let work = move |_: usize| {
                let (mut connection, done) = (connection.clone(), count.clone());
                async move {
                    let value: Option<Vec<u8>> =
                        redis::cmd("GET").arg("peer").query_async(&mut connection).await.unwrap();
                    let value = value.unwrap_or_else(|| vec![b'x'; 200]);
                    let mut set = redis::cmd("SET");
                    set.arg("peer").arg(&value).arg("PX").arg(60_000);
                    let () = set.query_async(&mut connection).await.unwrap();
                    done.fetch_add(1, Relaxed);
                }
            };
            repeat(seconds, work).await;
            say(format_args!("{} 0 0", done.load(Relaxed)));
        }
        ["decide", url, seconds, rate] => {
            let gates = Arc::new(RedisGates::connect(url, SharedOptions::default()).await.unwrap());
            let (scopes, end) =
                ([scope(rate)], Instant::now() + Duration::from_secs(seconds.parse().unwrap()));
            // A lane asks for one item at a time, and what was admitted goes its own way.
            let asked = Arc::new(AtomicU64::new(0));
            let askers = if rate == "none" { TASKS } else { 1 };
            let done = Arc::new(AtomicU64::new(0));
            let mut tasks = Vec::new();
            for _ in 0..askers {
                let (gates, scopes, done, asked) =
                    (gates.clone(), scopes.clone(), done.clone(), asked.clone());
                tasks.push(tokio::spawn(async move {
                    while Instant::now() < end {
                        asked.fetch_add(1, Relaxed);
                        let step = |g: &mut [Gate], now: Timestamp| {
                            attempt::acquire(g, &scopes, Ask::default(), now)
                        };
                        let wait = match gates.update(&scopes, step).await.unwrap() {
                            Decision::Admit(grant) if askers == 1 => {
                                let (gates, scopes) = (gates.clone(), scopes.clone());
                                tokio::spawn(async move {
                                    tokio::time::sleep(Duration::from_millis(20)).await;
                                    report(&gates, &scopes, &grant).await;
                                });
                                done.fetch_add(1, Relaxed);
                                continue;
                            }
                            Decision::Admit(grant) => {
                                report(&gates, &scopes, &grant).await;
                                done.fetch_add(1, Relaxed);
                                tokio::task::yield_now().await;
                                continue;
                            }
                            Decision::Wait { until, .. } => until.since(gates.now()),
                            Decision::Full { .. } => Duration::from_millis(1),
                        };
                        // As good as the engine's timer: the runtime's has a grain of a millisecond.
                        let _ = tokio::task::spawn_blocking(move || std::thread::park_timeout(wait)).await;
                    }
                }));
            }
            for task in tasks {
                task.await.unwrap();
            }
            let round_trips = gates.counts().round_trips;
            say(format_args!("{} {round_trips} {}", done.load(Relaxed), asked.load(Relaxed)));
        }
        ["listen", url, name] => {
            let heard = Arc::new(AtomicBool::new(false));
            let first = heard.clone();
            let events = move |event| {
                if matches!(event, SharedEvent::Changed { .. }) {
                    say(format_args!("{}", wall_us()));
                    first.store(true, Relaxed);
                }
            };
            let options = SharedOptions { events: Arc::new(events), ..SharedOptions::default() };
            let gates = RedisGates::connect(url, options).await.unwrap();
            let scopes = [named(name)];
            gates.update(&scopes, |_, _| ()).await.unwrap();
            say(format_args!("ready"));
            tokio::time::sleep(Duration::from_secs(600)).await;
        }
        _ => panic!("no such part: {words:?}"),
    }
}

async fn report(gates: &RedisGates, scopes: &[BoundScope], grant: &attempt::Grant) {
    let finding =
        Finding { outcome: &Outcome::Success, reading: None, item: 1, roll: 0.5, exit: None, narrowed: None };
    let step = |g: &mut [Gate], now| attempt::report(g, scopes, grant, &finding, now);
    let _ = gates.update(scopes, step).await.unwrap();
}

/// All tasks of a process, for so long.
async fn repeat<F: Future<Output = ()> + Send>(
    seconds: &str,
    work: impl Fn(usize) -> F + Clone + Send + Sync + 'static,
) {
    let end = Instant::now() + Duration::from_secs(seconds.parse().unwrap());
    let task = |i| {
        let work = work.clone();
        tokio::spawn(async move {
            while Instant::now() < end {
                work(i).await;
            }
        })
    };
    let tasks: Vec<_> = (0..TASKS).map(task).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// How late, in milliseconds, each of the processes sees each pause.
fn pauses(url: &str, processes: usize, rounds: usize) -> Vec<f64> {
    let name = "http://paused:80";
    let mut children: Vec<Child> = (0..processes).map(|_| part(&["listen", url, name])).collect();
    let mut lines: Vec<_> =
        children.iter_mut().map(|child| BufReader::new(child.stdout.take().unwrap()).lines()).collect();
    lines.iter_mut().for_each(|lines| assert_eq!(lines.next().unwrap().unwrap(), "ready"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let gates = runtime.block_on(RedisGates::connect(url, SharedOptions::default())).unwrap();
    let scopes = [named(name)];
    let mut late = Vec::new();
    for round in 0..rounds {
        let at = wall_us();
        let close = |g: &mut [Gate], now: Timestamp| {
            let policy = scopes[0].policy.clone();
            let sent = g[0].take(&policy, now, 1);
            let wait = Duration::from_secs(60 + round as u64);
            let _ = g[0].refused(&policy, sent, Told::wait(wait), now, 0.0);
        };
        runtime.block_on(gates.update(&scopes, close)).unwrap();
        for lines in &mut lines {
            let seen: u64 = lines.next().unwrap().unwrap().parse().unwrap();
            late.push(seen.saturating_sub(at) as f64 / 1000.0);
        }
    }
    children.iter_mut().for_each(|child| {
        let _ = child.kill();
        let _ = child.wait();
    });
    late
}

fn named(name: &str) -> BoundScope {
    let policy = ScopePolicy { jitter: 0.0, concurrency_start: 64, ..ScopePolicy::default() };
    BoundScope {
        key: ScopeKey::from_text(name),
        by: Some(Combination::ORIGIN),
        role: Role::Planned,
        policy: Arc::new(policy),
    }
}

fn scope(rate: &str) -> BoundScope {
    let mut scope = named(&format!("http://{}:80", rate.replace('/', "-")));
    let mut policy = (*scope.policy).clone();
    policy.concurrency_max = 256;
    policy.concurrency_start = 256;
    policy.pace_start = f32::INFINITY;
    if let Ok(rates) = rate.parse::<RateList>() {
        policy.rates = rates.into();
    }
    scope.policy = Arc::new(policy);
    scope
}

/// Somebody else's way to share a limit.
#[derive(serde::Deserialize)]
struct Peer {
    name: String,
    command: Vec<String>,
    /// We are to be so many times as fast, at least.
    times: f64,
    #[serde(skip)]
    done: f64,
}

impl Peer {
    fn start(&self, url: &str, seconds: &str) -> Child {
        let mut command = Command::new(&self.command[0]);
        command.args(&self.command[1..]).args([url, seconds]).stdout(Stdio::piped());
        command.spawn().unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }
}

/// The naive way, and those that are named from outside.
fn peers() -> Vec<Peer> {
    let me = std::env::current_exe().unwrap().display().to_string();
    let command = [&me, "--part", "get-set"].map(str::to_owned).to_vec();
    let naive = Peer { name: "GET then SET for each request".into(), command, times: 5.0, done: 0.0 };
    let others = std::env::var("FORBEAR_BENCH_PEERS").unwrap_or_else(|_| "[]".into());
    let others: Vec<Peer> = serde_json::from_str(&others).expect("FORBEAR_BENCH_PEERS is a list of peers");
    std::iter::once(naive).chain(others).collect()
}

/// So many processes at once; what each says, by words.
fn run(processes: usize, args: &[&str]) -> Vec<Vec<f64>> {
    said((0..processes).map(|_| part(args)).collect())
}

fn said(children: Vec<Child>) -> Vec<Vec<f64>> {
    let said = |child: Child| {
        let out = child.wait_with_output().unwrap();
        let text = String::from_utf8(out.stdout).unwrap();
        text.split_whitespace().map(|word| word.parse().unwrap()).collect()
    };
    children.into_iter().map(said).collect()
}

fn part(args: &[&str]) -> Child {
    let me = std::env::current_exe().unwrap();
    Command::new(me).arg("--part").args(args).stdout(Stdio::piped()).spawn().unwrap()
}

fn sum(all: &[Vec<f64>]) -> Vec<f64> {
    (0..3).map(|i| all.iter().map(|of_one| of_one[i]).sum()).collect()
}

fn wall_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(0)
}

struct Server {
    process: Child,
    url: String,
    _dir: tempfile::TempDir,
}

impl Server {
    fn start() -> Server {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let process = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server must be installed: run ./test --prepare");
        let up = |_: &i32| TcpStream::connect(("127.0.0.1", port)).is_ok();
        let wait = |n: i32| {
            std::thread::park_timeout(Duration::from_millis(20));
            n
        };
        assert!((0..500).map(wait).any(|n| up(&n)), "redis-server did not start");
        Server { process, url: format!("redis://127.0.0.1:{port}"), _dir: dir }
    }

    fn stop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn say(words: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{words}");
    let _ = out.flush();
}

fn figure(what: &str, value: String, budget: &str, kept: bool) {
    let verdict = match (budget, kept) {
        ("" | "peer", _) => "",
        (_, true) => "kept",
        (_, false) => "missed",
    };
    say(format_args!(
        r#"{{"what":"{what}","value":"{value}","spread":"","budget":"{budget}","verdict":"{verdict}"}}"#
    ));
}
