//! `--queue postgres://`: processes that share a job, each with an output of its own (J1, J2, J5, K1).

#[path = "../../forbear-store/tests/queue_support/postgres.rs"]
mod postgres;
mod support;

use std::{
    collections::BTreeSet,
    fs::{self, File},
    path::Path,
    process::{Child, Output, Stdio},
    time::Duration,
};

use postgres::{KEY, TestPostgres};
use serde_json::Value;
use support::{Nginx, Server, forbear};

const PASSWORD: &str = "hunter2hunter2";
const WORKERS: usize = 8;

struct Fleet {
    nginx: Nginx,
    server: TestPostgres,
    dir: tempfile::TempDir,
    pages: usize,
}

impl Fleet {
    fn new(pages: usize) -> Fleet {
        let (nginx, server) = (Nginx::start("", ""), TestPostgres::start());
        let dir = tempfile::tempdir().unwrap();
        let urls: String =
            (1..=pages).map(|page| format!("{}/p/{page}?token=s3cret\n", nginx.base())).collect();
        fs::write(dir.path().join("urls.txt"), urls).unwrap();
        Fleet { nginx, server, dir, pages }
    }

    fn queue(&self) -> String {
        self.server.url_with_password(PASSWORD)
    }

    /// A process that fetches into `out`, at most at `rate`.
    fn spawn(&self, input: Option<&str>, out: &str, rate: &str) -> Child {
        let workers = WORKERS.to_string();
        let said = File::options().create(true).append(true).open(self.dir.path().join(format!("{out}.log")));
        forbear(self.dir.path())
            .arg("fetch")
            .args(input)
            .args(["-o", out, "--queue", &self.queue(), "--job", "nightly", "--progress", "plain"])
            .args(["--workers", &workers, "--host-concurrency", &workers, "--rate", rate])
            .env("FORBEAR_KEY", KEY)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(said.unwrap())
            .spawn()
            .unwrap()
    }

    fn job(&self, words: &[&str]) -> Output {
        let mut command = forbear(self.dir.path());
        command.arg("job").args(words).args(["--queue", &self.queue()]).env("FORBEAR_KEY", KEY);
        let output = command.output().unwrap();
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains(PASSWORD) && !text.contains("s3cret"), "{text}");
        }
        output
    }

    fn counts(&self) -> Option<Value> {
        let shown = self.job(&["show", "nightly", "--json"]);
        shown.status.success().then(|| serde_json::from_slice(&shown.stdout).unwrap())
    }

    /// Asks until so many items are done; the test's own time-out ends it where they never are.
    fn until_done(&self, least: u64) {
        while self.counts().and_then(|shown| shown["counts"]["done"].as_u64()).unwrap_or(0) < least {
            pause(50);
        }
    }

    /// What a process said, without a secret in it.
    fn said(&self, out: &str) -> String {
        let said = fs::read_to_string(self.dir.path().join(format!("{out}.log"))).unwrap();
        assert!(!said.contains(PASSWORD) && !said.contains("s3cret"), "{said}");
        said
    }

    /// All records are there, each once.
    fn assert_complete(&self, outs: &[&str]) {
        let mut ids = BTreeSet::new();
        for out in outs {
            let text = fs::read_to_string(self.dir.path().join(out)).unwrap();
            for line in text.lines() {
                let record: Value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
                assert_eq!(record["outcome"], "done", "{line}");
                assert!(ids.insert(record["id"].to_string()), "twice: {line}");
            }
        }
        assert_eq!(ids.len(), self.pages, "lost");
        let shown = self.counts().unwrap();
        assert_eq!((&shown["counts"]["done"], &shown["items"]), (&self.pages.into(), &self.pages.into()));
    }

    fn again(&self) -> usize {
        self.nginx.answers().served.values().map(|&n| n as usize).sum::<usize>() - self.pages
    }
}

#[expect(clippy::disallowed_methods, reason = "another process is waited for")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn lines(path: &Path) -> usize {
    fs::read_to_string(path).unwrap().lines().count()
}

#[test]
fn j1_processes_share_a_job_with_and_without_the_input() {
    let fleet = Fleet::new(1200);
    let mut one = fleet.spawn(Some("urls.txt"), "one", "150/s");
    fleet.until_done(20);
    let mut two = fleet.spawn(None, "two", "150/s");
    let mut three = fleet.spawn(Some("urls.txt"), "three", "150/s");
    for (child, out) in [(&mut one, "one"), (&mut two, "two"), (&mut three, "three")] {
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(0), "{}", fleet.said(out));
        assert!(lines(&fleet.dir.path().join(out)) > 0, "{out} did nothing: {}", fleet.said(out));
        assert!(fleet.said(out).contains("1200 in = 1200 accounted for"), "{}", fleet.said(out));
    }
    fleet.assert_complete(&["one", "two", "three"]);
    assert_eq!(fleet.again(), 0);
    let export = fleet.job(&["export", "nightly"]);
    assert!(export.status.success(), "{}", String::from_utf8_lossy(&export.stderr));
    let exported = String::from_utf8(export.stdout).unwrap();
    assert_eq!(exported.lines().count(), 1200);
    assert!(exported.lines().all(|line| line.contains("\"outcome\":\"done\"")));
    // One more finds nothing to do, and another input is refused.
    assert_eq!(fleet.spawn(Some("urls.txt"), "four", "150/s").wait().unwrap().code(), Some(0));
    fs::write(fleet.dir.path().join("other.txt"), "http://127.0.0.1:9/1\n").unwrap();
    assert_eq!(fleet.spawn(Some("other.txt"), "five", "150/s").wait().unwrap().code(), Some(2));
    assert!(fleet.said("five").contains("not the input"), "{}", fleet.said("five"));
}

#[test]
fn j1_real_a_killed_process_and_a_restarted_server_lose_nothing() {
    let fleet = Fleet::new(500);
    let mut one = fleet.spawn(Some("urls.txt"), "one", "80/s");
    fleet.until_done(40);
    let mut two = fleet.spawn(None, "two", "80/s");
    fleet.until_done(80);
    one.kill().unwrap();
    one.wait().unwrap();
    // The same command line: its output tells whose items it has.
    let mut one = fleet.spawn(Some("urls.txt"), "one", "80/s");
    fleet.until_done(160);
    fleet.server.stop_immediately();
    pause(700);
    fleet.server.go();
    for (child, out) in [(&mut one, "one"), (&mut two, "two")] {
        assert_eq!(child.wait().unwrap().code(), Some(0), "{}", fleet.said(out));
        assert!(fleet.said(out).contains("cannot be reached; waiting for it"), "{}", fleet.said(out));
        assert!(fleet.said(out).contains("is there again"), "{}", fleet.said(out));
    }
    fleet.assert_complete(&["one", "two"]);
    let again = fleet.again();
    assert!(again <= WORKERS, "{again} pages were fetched again after one kill");
}

#[test]
fn what_cannot_be_used_is_said_with_its_status_and_without_a_secret() {
    let server = TestPostgres::start();
    let (dir, there) = (tempfile::tempdir().unwrap(), server.url_with_password(PASSWORD));
    let nowhere = format!("postgres://u:{PASSWORD}@127.0.0.1:9/db");
    fs::write(dir.path().join("urls.txt"), "http://127.0.0.1:9/\n").unwrap();
    for (words, key, status, says) in [
        (vec!["fetch", "urls.txt", "-o", "a", "--queue", &nowhere, "--job", "j"], KEY, 6, "127.0.0.1:9"),
        (vec!["job", "show", "j", "--queue", &nowhere], KEY, 6, "127.0.0.1:9"),
        (vec!["job", "show", "j", "--queue", &there], KEY, 2, "there is no job j"),
        (vec!["fetch", "-o", "a", "--queue", &there, "--job", "j"], KEY, 2, "no INPUT"),
        (vec!["fetch", "urls.txt", "-o", "a", "--queue", &there], KEY, 2, "--job"),
        (vec!["fetch", "urls.txt", "-o", "a", "--queue", "q.job", "--job", "j"], KEY, 2, "leave --job out"),
        (vec!["fetch", "urls.txt", "-o", "a", "--queue", &there, "--job", "j"], "", 2, "openssl rand"),
        (vec!["fetch", "urls.txt", "-o", "a", "--queue", &there, "--job", "j"], "short", 2, "32 bytes"),
        (
            vec!["fetch", "urls.txt", "-o", "a", "--queue", "mysql://hunter2hunter2@h/db", "--job", "j"],
            KEY,
            2,
            "no queue",
        ),
    ] {
        let output = forbear(dir.path()).args(&words).env("FORBEAR_KEY", key).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{words:?}: {said}");
        assert!(said.contains(says), "{words:?}: {said}");
        assert!(!said.contains(PASSWORD), "{said}");
    }
}
