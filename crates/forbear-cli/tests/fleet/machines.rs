//! Two machines: network namespaces of their own, and clocks of which one is wrong.

use std::process::Command;

use forbear_zoo::{Answer, Facts, Server, ServerOptions};

use crate::{
    fetch_kit::{Job, assert_pauses_kept, secs},
    fleet_kit::Redis,
};

/// A network namespace that reaches this one, gone at the end.
struct Machine {
    name: String,
    /// Our own side of the way to it.
    here: String,
}

impl Machine {
    /// None where this machine permits no namespaces.
    fn start(number: u32) -> Option<Machine> {
        let id = std::process::id() % 10_000;
        let (name, ours, theirs) =
            (format!("fb{id}m{number}"), format!("fb{id}a{number}"), format!("fb{id}b{number}"));
        let net = format!("10.{}.{}", 200 + id % 50, 4 * number + id % 4);
        let (here, there) = (format!("{net}.1"), format!("{net}.2"));
        if !ip(&["netns", "add", &name]) {
            return None;
        }
        let machine = Machine { name: name.clone(), here: here.clone() };
        let steps: [&[&str]; 7] = [
            &["link", "add", &ours, "type", "veth", "peer", "name", &theirs, "netns", &name],
            &["addr", "add", &format!("{here}/30"), "dev", &ours],
            &["link", "set", &ours, "up"],
            &["-n", &name, "addr", "add", &format!("{there}/30"), "dev", &theirs],
            &["-n", &name, "link", "set", &theirs, "up"],
            &["-n", &name, "link", "set", "lo", "up"],
            &["-n", &name, "route", "add", "default", "via", &here],
        ];
        steps.iter().all(|words| ip(words)).then_some(machine)
    }

    fn words(&self) -> Vec<String> {
        [&found("ip"), "netns", "exec", &self.name].map(str::to_owned).to_vec()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        ip(&["netns", "del", &self.name]); // and the way to it
    }
}

fn ip(words: &[&str]) -> bool {
    Command::new(found("ip")).args(words).output().is_ok_and(|out| out.status.success())
}

fn found(name: &str) -> String {
    let places = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(|dir| format!("{dir}/{name}"));
    let found = places.into_iter().find(|path| std::path::Path::new(path).exists());
    found.unwrap_or_else(|| panic!("{name} must be installed: run ./test --prepare"))
}

/// What two fleets of two came to: refusals, and starts in the pause.
#[derive(Debug, PartialEq)]
struct Result {
    refused: usize,
    in_pause: usize,
    done: usize,
}

/// The 31st request is told to come back in two seconds, by a date on the server's clock. The clock of the second machine is
/// `ahead` by so much.
async fn meet(machines: &[Option<Machine>; 2], ahead: &str) -> Result {
    let limiter = {
        let mut before = 0;
        move |_: std::time::Duration, _: &Facts<'_>| {
            before += 1;
            if before == 31 { Answer::refused(429).retry_after(secs(2)) } else { Answer::ok() }
        }
    };
    let bind = std::net::Ipv4Addr::UNSPECIFIED.into();
    let server =
        Server::start_with(limiter, ServerOptions { bind, ..ServerOptions::default() }).await.unwrap();
    let redis = Redis::start(&["--bind", "0.0.0.0", "--protected-mode", "no"]).await;
    let here = machines[0].as_ref().map_or("127.0.0.1", |machine| &machine.here);
    let gate = redis.url().replace("127.0.0.1", here);
    let port = server.addr().port();
    let jobs: Vec<Job> = machines
        .iter()
        .enumerate()
        .map(|(n, machine)| {
            let pages = (1..=40).map(|page| format!("http://{here}:{port}/p{n}/{page}"));
            let mut words = machine.as_ref().map(Machine::words).unwrap_or_default();
            if n == 1 && !ahead.is_empty() {
                words.extend([found("faketime"), "-f".into(), ahead.into()]);
            }
            Job::of(pages).unlearned("host_concurrency = 6\n").through(&words)
        })
        .collect();
    let flags = ["--gate", &gate, "--host-rate", &format!("{here}=40/s")];
    let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
    let mut done = 0;
    for (job, run) in jobs.iter().zip(running) {
        let ran = run.end().await;
        assert_eq!(ran.status, 0, "{ahead}: {}", ran.stderr);
        assert!(ran.stderr.contains("is limited, pause of"), "{ahead}: each says it: {}", ran.stderr);
        done += job.count("done");
    }
    let log = server.log();
    assert_pauses_kept(&log);
    let sent = log.refused().next().unwrap().sent.unwrap();
    let pause = sent + crate::fetch_kit::GRACE..sent + secs(2);
    let in_pause = log.hits().iter().filter(|hit| pause.contains(&hit.at)).count();
    Result { refused: log.refused().count(), in_pause, done }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t1_machines_whose_clocks_differ_meet_a_limit_once() {
    let mut machines = [Machine::start(0), Machine::start(1)];
    if machines.iter().any(Option::is_none) {
        eprintln!("no network namespaces are permitted here: the clocks alone are tested");
        machines = [None, None];
    }
    let right = Result { refused: 1, in_pause: 0, done: 80 };
    for ahead in ["", "+5m", "-5m"] {
        assert_eq!(meet(&machines, ahead).await, right, "{ahead}");
    }
}
