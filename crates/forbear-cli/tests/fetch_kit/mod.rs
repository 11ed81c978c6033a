//! One job of `forbear fetch` against servers of the zoo, and the questions that are asked of the servers' logs.
//!
//! What a test claims is read from the log of the server, never from what the client says of itself.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use forbear_zoo::{Answer, Facts, Hit, Limiter, Log, Server, ServerOptions, Spec};
use serde_json::Value;
use tempfile::TempDir;

pub(crate) mod wiretap;

/// How long an answer may be on its way to a client that the machine keeps waiting: what was sent meanwhile knew nothing of it.
pub(crate) const GRACE: Duration = Duration::from_millis(300);

/// Nothing is learned, so the way back after a pause takes no time: for tests whose subject it is not.
pub(crate) const NOTHING_LEARNED: &str = "pace = \"configured\"\n";

/// The longest that any run here may take, many times what it needs: a hang is a failure with its last words.
const PATIENCE: Duration = Duration::from_secs(150);

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

pub(crate) const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// A server that behaves as `spec` says; every answer takes it `latency`.
pub(crate) async fn zoo(spec: &str, latency: Duration) -> Server {
    let spec: Spec = spec.parse().unwrap_or_else(|error| panic!("{spec}: {error}"));
    Server::start(spec, ServerOptions { latency, ..ServerOptions::default() }).await.unwrap()
}

/// A server with a script: the limiter is told how many requests came before.
pub(crate) async fn scripted(mut script: impl FnMut(usize, &Facts<'_>) -> Answer + Send + 'static) -> Server {
    let mut before = 0;
    let limiter = move |_now: Duration, request: &Facts<'_>| {
        before += 1;
        script(before - 1, request)
    };
    started(limiter, ServerOptions::default()).await
}

/// A server behind any limiter.
pub(crate) async fn started(limiter: impl Limiter + 'static, options: ServerOptions) -> Server {
    Server::start_with(limiter, options).await.unwrap()
}

/// The pages `1` to `pages` of a server, in a folder of their own.
pub(crate) fn pages(server: &Server, folder: &str, pages: u32) -> Vec<String> {
    (1..=pages).map(|page| server.url(&format!("/{folder}/{page}"))).collect()
}

/// `host:port` of a server, as a configuration names it.
pub(crate) fn authority(server: &Server) -> String {
    server.addr().to_string()
}

/// A job in a folder of its own, run as often as a test likes.
pub(crate) struct Job {
    pub(crate) dir: TempDir,
    env: Vec<(String, String)>,
    /// What runs the command, with its words.
    through: Vec<String>,
}

impl Job {
    /// A job of these lines: URLs, or JSON.
    pub(crate) fn of<S: AsRef<str>>(lines: impl IntoIterator<Item = S>) -> Job {
        let dir = TempDir::new().unwrap();
        let text: String = lines.into_iter().map(|line| format!("{}\n", line.as_ref())).collect();
        fs::write(dir.path().join("urls.txt"), text).unwrap();
        Job { dir, env: Vec::new(), through: Vec::new() }
    }

    /// With this configuration beside the input.
    pub(crate) fn config(self, toml: &str) -> Job {
        fs::write(self.dir.path().join("forbear.toml"), toml).unwrap();
        self
    }

    /// With this variable in its environment.
    pub(crate) fn env(mut self, name: &str, value: &str) -> Job {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Run by another program, which is given by its path.
    pub(crate) fn through(mut self, words: &[String]) -> Job {
        self.through = words.to_vec();
        self
    }

    /// With this configuration, and with nothing learned.
    pub(crate) fn unlearned(self, toml: &str) -> Job {
        self.config(&format!("{NOTHING_LEARNED}{toml}"))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The command, with nothing of the tester's own environment.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut words = self.through.iter().map(String::as_str).chain([env!("CARGO_BIN_EXE_forbear")]);
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).args(args).current_dir(self.dir.path()).env_clear().env("NO_COLOR", "1");
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Starts `forbear fetch` on the job.
    pub(crate) fn start(&self, flags: &[&str]) -> Running {
        self.start_with(&["fetch", "urls.txt", "-o", "out.jsonl", "--job", "job"], flags, Stdio::null())
    }

    /// Starts the command with other words than the usual ones.
    pub(crate) fn start_with(&self, words: &[&str], flags: &[&str], stdin: Stdio) -> Running {
        let stderr = self.path("stderr.log");
        let child = self
            .command(words)
            .args(flags)
            .stdin(stdin)
            .stdout(File::create(self.path("stdout.log")).unwrap())
            .stderr(File::create(&stderr).unwrap())
            .spawn()
            .unwrap();
        Running { child, stderr, began: Instant::now() }
    }

    /// Runs `forbear fetch` on the job to its end.
    pub(crate) async fn run(&self, flags: &[&str]) -> Ran {
        self.start(flags).end().await
    }

    /// Runs it, and every one of `items` is done.
    pub(crate) async fn run_all_done(&self, items: usize, flags: &[&str]) -> Ran {
        let ran = self.run(flags).await;
        assert_eq!(ran.status, 0, "it said:\n{}", ran.stderr);
        self.assert_done(items);
        ran
    }

    /// The records of the output, in its order.
    pub(crate) fn records(&self) -> Vec<Value> {
        let out = fs::read_to_string(self.path("out.jsonl")).unwrap_or_default();
        out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Every item is done and stands in the output once (J1).
    pub(crate) fn assert_done(&self, items: usize) {
        let records = self.records();
        for record in &records {
            assert_eq!(record["outcome"], "done", "{record}");
        }
        let mut ids: Vec<u64> = records.iter().map(|record| record["id"].as_u64().unwrap()).collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..=items as u64).collect::<Vec<_>>(), "each item once");
    }

    /// How many records have this outcome.
    pub(crate) fn count(&self, outcome: &str) -> usize {
        self.records().iter().filter(|record| record["outcome"] == outcome).count()
    }

    /// What a command about the job says on stdout.
    pub(crate) fn say(&self, args: &[&str]) -> String {
        let out = self.command(args).output().unwrap();
        assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }
}

/// A run that has not ended.
pub(crate) struct Running {
    pub(crate) child: Child,
    stderr: PathBuf,
    began: Instant,
}

impl Running {
    /// Waits for its end.
    pub(crate) async fn end(mut self) -> Ran {
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(self.began.elapsed() < PATIENCE, "no end; it said:\n{}", self.said()),
            }
            tokio::time::sleep(ms(10)).await;
        };
        let ran =
            Ran { status: status.code().unwrap_or(-1), stderr: self.said(), elapsed: self.began.elapsed() };
        if [0, 3, 4, 130].contains(&ran.status) {
            ran.assert_accounted_for();
        }
        ran
    }

    /// SIGKILL, and the end of it.
    pub(crate) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// As Ctrl-C does.
    pub(crate) fn interrupt(&self) {
        let sent = Command::new("kill").args(["-INT", &self.child.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }

    pub(crate) fn said(&self) -> String {
        fs::read_to_string(&self.stderr).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended by itself
        let _ = self.child.wait();
    }
}

/// A run that has ended.
pub(crate) struct Ran {
    pub(crate) status: i32,
    pub(crate) stderr: String,
    pub(crate) elapsed: Duration,
}

/// A host's row in the table at the end.
#[derive(Debug, Default)]
pub(crate) struct Row {
    pub(crate) done: usize,
    pub(crate) failed: usize,
    pub(crate) requests: usize,
    pub(crate) refused: usize,
    pub(crate) faults: usize,
    pub(crate) pauses: usize,
    pub(crate) probes: usize,
}

impl Ran {
    /// The row of a server.
    pub(crate) fn row(&self, server: &Server) -> Row {
        let origin = format!("http://{}", server.addr());
        let row = self.stderr.lines().find_map(|line| line.strip_prefix(&origin));
        let row = row.unwrap_or_else(|| panic!("no row of {origin}:\n{}", self.stderr));
        let numbers: Vec<usize> = row.split_whitespace().filter_map(|cell| cell.parse().ok()).collect();
        let [done, failed, requests, refused, faults, pauses, probes, ..] = numbers[..] else {
            panic!("{row}");
        };
        Row { done, failed, requests, refused, faults, pauses, probes }
    }

    /// `N in = N accounted for` (J5).
    fn assert_accounted_for(&self) {
        let line = self.stderr.lines().find(|line| line.contains("accounted for"));
        let line =
            line.unwrap_or_else(|| panic!("it does not say what became of the items:\n{}", self.stderr));
        let (imported, sum) = line.split_once(" in = ").unwrap();
        assert!(sum.starts_with(&format!("{imported} accounted for")), "{line}");
    }

    /// Its last word.
    pub(crate) fn last_line(&self) -> &str {
        self.stderr.lines().last().unwrap_or_default()
    }
}

/// Waits for what must come, and fails if it does not.
pub(crate) async fn until(what: &str, mut reached: impl FnMut() -> bool) {
    let began = Instant::now();
    while !reached() {
        assert!(began.elapsed() < PATIENCE, "it never came: {what}");
        tokio::time::sleep(ms(2)).await;
    }
}

/// Nothing came into a told pause that could have known of it, and no two requests tested an end of one together (P1, B1).
pub(crate) fn assert_pauses_kept(log: &Log) {
    let intrusions = log.sent_into_pause(GRACE);
    assert!(intrusions.is_empty(), "{} sent into a pause: {intrusions:#?}", intrusions.len());
    for probe in log.probes() {
        assert_eq!(probe.company, 0, "not alone: {probe:#?}");
    }
}

/// What arrived after `hit` was answered.
pub(crate) fn after<'a>(log: &'a Log, hit: &Hit) -> impl Iterator<Item = &'a Hit> {
    let known = hit.sent.unwrap_or_default();
    log.hits().iter().filter(move |other| other.at >= known)
}

/// How long after the answer to the request `index` the next one arrived.
pub(crate) fn quiet_after(log: &Log, index: usize) -> Duration {
    let hit = &log.hits()[index];
    let next = after(log, hit).next().unwrap_or_else(|| panic!("nothing came after {hit:?}"));
    next.at - hit.answered.unwrap()
}

/// The logs of several servers on one clock. Take it while they run.
pub(crate) struct Clocks(Vec<Duration>);

impl Clocks {
    /// How far each server's clock is ahead of that of the last one.
    pub(crate) fn of(servers: &[&Server]) -> Clocks {
        let began = Instant::now();
        let ahead: Vec<Duration> =
            servers.iter().map(|server| server.now() + secs(3600) - began.elapsed()).collect();
        Clocks(ahead)
    }

    /// A time of the server `index` on the common clock.
    pub(crate) fn common(&self, index: usize, at: Duration) -> Duration {
        at + secs(100_000) - self.0[index]
    }
}

/// A small file of a job, or nothing.
pub(crate) fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_default()
}
