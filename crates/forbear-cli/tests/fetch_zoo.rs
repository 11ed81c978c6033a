//! A short job against every limiter of the zoo.
//!
//! `cargo test --test fetch_zoo -- --nocapture` prints what each server saw.

#[path = "fetch_kit/mod.rs"]
mod kit;

use std::fmt::Write as _;

use forbear_zoo::{Example, Log, Server, ServerOptions, Spec};
use tokio::task::JoinSet;

use kit::{GRACE, Job, Ran, ms};

/// Pages of each job: enough to meet each limit several times.
const PAGES: usize = 60;
const WORKERS: usize = 32;
/// Jobs at once. They wait most of their time.
const AT_ONCE: usize = 10;

/// What became of one job.
struct Seen {
    name: &'static str,
    ran: Ran,
    done: usize,
    failed: usize,
    log: Log,
}

/// Four folders, two accounts: each limiter counts by what it likes.
fn lines(name: &str, server: &Server) -> Vec<String> {
    let line = |page: usize| {
        let shut = name == "sentence" && page % 20 == 7;
        let folder = if shut { "shut" } else { ["a", "b", "c", "d"][page % 4] };
        let url = server.url(&format!("/{folder}/{page}"));
        match name {
            "account" => {
                let key = ["Bearer one", "Bearer two"][page % 2];
                serde_json::json!({ "url": url, "headers": { "authorization": key } }).to_string()
            }
            _ => url,
        }
    };
    (1..=PAGES).map(line).collect()
}

async fn fetch(example: &'static Example, spec: Spec) -> Seen {
    let options = ServerOptions { latency: ms(5), ..ServerOptions::default() };
    let server = Server::start(spec, options).await.unwrap();
    let job = Job::of(lines(example.name, &server));
    let ran = job.run(&["--workers", &WORKERS.to_string(), "--run-for", "60s", "--timeout", "10s"]).await;
    Seen {
        name: example.name,
        ran,
        done: job.count("done"),
        failed: job.count("failed"),
        log: server.stop().await,
    }
}

/// How often a ban began: a 403 that follows no other within its term.
fn bans(log: &Log) -> usize {
    let mut last = None;
    let mut bans = 0;
    for hit in log.hits().iter().filter(|hit| hit.status == 403) {
        bans += usize::from(last.is_none_or(|last| hit.at > last + kit::secs(5)));
        last = Some(hit.at);
    }
    bans
}

impl Seen {
    fn check(&self) {
        let Seen { name, ran, done, failed, log } = self;
        let said = &ran.stderr;
        // J5: the sum was checked when the run ended; here, that nothing was left where nothing has to be.
        let shut = log.hits().iter().filter(|hit| hit.path.starts_with("/shut")).count();
        let may_fail = matches!(*name, "flaky" | "brownout" | "ban");
        assert!(*failed == 0 || may_fail, "{name}: {failed} failed\n{said}");
        // Where we are banned we stay away for five minutes, which is longer than this run.
        let left = if *name == "ban" { PAGES - done - failed } else { shut };
        assert_eq!(done + failed + left, PAGES, "{name}\n{said}");
        let status = match (left, failed) {
            (0, 0) => 0,
            (0, _) => 3,
            _ => 4,
        };
        assert_eq!(ran.status, status, "{name}\n{said}");

        let intrusions = log.sent_into_pause(GRACE);
        assert!(intrusions.is_empty(), "{name}: sent into a pause: {intrusions:#?}");
        assert!(bans(log) <= 1, "{name}: banned {} times", bans(log));
        // What was in flight when the limit was met first, and a tenth.
        let (refused, sent) = (log.refused().count(), log.hits().len());
        assert!(refused <= WORKERS + sent / 10, "{name}: {refused} refused of {sent}\n{said}");
    }
}

fn table(all: &[Seen]) -> String {
    let mut text =
        format!("{:28}{:>6}{:>6}{:>6}{:>8}{:>7}{:>8}\n", "", "done", "sent", "429", "pauses", "herd", "time");
    for Seen { name, ran, done, log, .. } in all {
        let (sent, refused, pauses) = (log.hits().len(), log.refused().count(), log.pauses().len());
        let (herd, took) = (log.peak(ms(100)), ran.elapsed.as_secs_f64());
        let _ = writeln!(text, "{name:28}{done:6}{sent:6}{refused:6}{pauses:8}{herd:7}{took:7.1}s");
    }
    text
}

#[tokio::test(flavor = "multi_thread")]
async fn every_limiter_of_the_zoo_is_met_and_obeyed() {
    let mut examples = Spec::all_examples();
    let (mut running, mut all) = (JoinSet::new(), Vec::new());
    loop {
        while running.len() < AT_ONCE
            && let Some((example, spec)) = examples.next()
        {
            running.spawn(fetch(example, spec));
        }
        let Some(seen) = running.join_next().await else { break };
        all.push(seen.unwrap());
    }
    all.sort_by_key(|seen| forbear_zoo::EXAMPLES.iter().position(|example| example.name == seen.name));
    eprintln!("{}", table(&all));
    assert_eq!(all.len(), forbear_zoo::EXAMPLES.len());
    all.iter().for_each(Seen::check);
}
