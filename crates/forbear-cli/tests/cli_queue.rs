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
        (vec!["job", "show", "j", "--queue", &there], KEY, 2, "there is no job j at postgres://127.0.0.1"),
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

#[test]
fn k1_a_server_that_does_not_let_us_in_is_named_with_what_to_do_and_no_password() {
    let hba = "host all forbear 127.0.0.1/32 trust\nhost all poor 127.0.0.1/32 trust\n\
               host all asked 127.0.0.1/32 scram-sha-256\n";
    let server = TestPostgres::start_from(&[], &[("pg_hba.conf", hba)]);
    server.sql("CREATE ROLE asked LOGIN PASSWORD 'right'");
    server.sql("CREATE ROLE poor LOGIN");
    server.sql("GRANT CREATE ON DATABASE postgres TO asked");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("urls.txt"), "http://127.0.0.1:9/\n").unwrap();
    let place = format!("127.0.0.1:{}", server.port());
    for (user, rest, status, says) in [
        (format!("asked:{PASSWORD}"), "/postgres", 6, "look at user and password"),
        ("asked".into(), "/postgres", 6, "asks for a password"),
        ("nobody".into(), "/postgres", 6, "pg_hba.conf"),
        ("forbear".into(), "/nowhere", 6, "createdb"),
        ("forbear".into(), "/postgres?sslmode=require", 6, "look at sslmode"),
        ("forbear".into(), "/postgres?sslmode=verify-full&sslrootcert=none.pem", 2, "sslrootcert=none.pem"),
        ("poor".into(), "/postgres", 2, "GRANT CREATE"),
    ] {
        let queue = format!("postgres://{user}@{place}{rest}");
        let words = ["fetch", "urls.txt", "-o", "out", "--queue", &queue, "--job", "j", "--progress", "none"];
        let output = forbear(dir.path()).args(words).env("FORBEAR_KEY", KEY).output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{queue}: {said}");
        assert!(said.contains(says) && said.contains(&place), "{queue}: {said}");
        assert!(!said.contains(PASSWORD), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    }
    // The same with what was asked for.
    let queue = format!("postgres://asked:right@{place}/postgres");
    let words = ["fetch", "urls.txt", "-o", "out", "--queue", &queue, "--job", "j", "--max-attempts", "1"];
    let output = forbear(dir.path()).args(words).env("FORBEAR_KEY", KEY).output().unwrap();
    assert_eq!(output.status.code(), Some(3), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn j2_a_job_in_a_database_is_shown_listed_put_back_and_exported() {
    let (nginx, server) = (Nginx::start("", ""), TestPostgres::start());
    let dir = tempfile::tempdir().unwrap();
    let base = nginx.base();
    let input = format!(
        "{{\"url\":\"{base}/p/1?token=s3cret\",\"headers\":{{\"Authorization\":\"Bearer s3cret\"}}}}\n\
         {{\"url\":\"{base}/gone/2?token=s3cret\",\"id\":\"second\"}}\n\
         not a line, s3cret\n\
         {{\"url\":\"{base}/p/4\",\"not_before\":\"2099-01-01T00:00:00Z\"}}\n"
    );
    fs::write(dir.path().join("items.jsonl"), input).unwrap();
    let queue = server.url_with_password(PASSWORD);
    let run = |words: &[&str]| {
        let output = forbear(dir.path())
            .args(words)
            .args(["--queue", &queue])
            .env("FORBEAR_KEY", KEY)
            .output()
            .unwrap();
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains(PASSWORD) && !text.contains("s3cret"), "{text}");
        }
        output
    };
    let text = |output: &Output| String::from_utf8(output.stdout.clone()).unwrap();
    let fetch = ["fetch", "items.jsonl", "-o", "out", "--job", "n", "--progress", "none", "--run-for", "20s"];
    let fetched = run(&fetch);
    assert_eq!(fetched.status.code(), Some(4), "{}", String::from_utf8_lossy(&fetched.stderr));

    let counts = || -> Value {
        let shown = run(&["job", "show", "n", "--json"]);
        serde_json::from_slice::<Value>(&shown.stdout).unwrap()["counts"].clone()
    };
    let counted = counts();
    assert_eq!((&counted["done"], &counted["failed"], &counted["parked"]), (&1.into(), &2.into(), &1.into()));
    let shown = run(&["job", "show", "n"]);
    assert!(shown.status.success() && text(&shown).contains("postgres://127.0.0.1"), "{}", text(&shown));
    for (state, lines) in [("done", 1), ("failed", 2), ("parked", 1), ("pending", 0), ("leased", 0)] {
        let listed = run(&["job", "list", "n", "--state", state, "--json"]);
        assert!(listed.status.success(), "{}", String::from_utf8_lossy(&listed.stderr));
        assert_eq!(text(&listed).lines().count(), lines, "{state}: {}", text(&listed));
        assert!(text(&listed).lines().all(|line| line.contains(state)), "{}", text(&listed));
    }
    assert_eq!(
        text(&run(&["job", "list", "n", "--limit", "3"])).lines().count(),
        1 + 3,
        "a header and three"
    );
    let exported = run(&["job", "export", "n"]);
    let records: Vec<Value> =
        text(&exported).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 4, "{records:?}");
    let outcomes: Vec<_> = records.iter().map(|record| record["outcome"].as_str().unwrap()).collect();
    assert_eq!(outcomes, ["done", "failed", "failed", "parked"]);

    let retried = run(&["job", "retry", "n", "--parked"]);
    assert!(text(&retried).contains("1 failed item is pending again, and 1 parked"), "{}", text(&retried));
    let goes_on = String::from_utf8(retried.stderr).unwrap();
    assert!(goes_on.contains("--job n"), "{goes_on}");
    let fetched = run(&["fetch", "-o", "out", "--job", "n", "--progress", "none"]);
    assert_eq!(fetched.status.code(), Some(3), "{}", String::from_utf8_lossy(&fetched.stderr));
    assert_eq!((&counts()["done"], &counts()["failed"]), (&2.into(), &2.into()));
    // Whoever has the database, or a copy of it, has none of this.
    let dump = server.dump();
    assert!(dump.contains("second"), "the ids of items are no secret");
    for secret in ["s3cret", PASSWORD] {
        let hex: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(!dump.contains(secret) && !dump.contains(&hex), "{secret}: {dump}");
    }
}
