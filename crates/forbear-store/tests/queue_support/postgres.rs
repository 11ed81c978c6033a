//! A PostgreSQL of the test's own: on a free port, in its own directory, gone at the end.

#![allow(dead_code, unreachable_pub)] // each test file uses its part

use std::{
    net::{TcpListener, TcpStream},
    path::PathBuf,
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    time::Duration,
};

use forbear_store::queue::{inspect::JobFile, *};

pub const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub struct TestPostgres {
    port: u16,
    dir: tempfile::TempDir,
    more: Vec<String>,
}

impl TestPostgres {
    pub fn start() -> TestPostgres {
        TestPostgres::start_with(&[])
    }

    /// With further settings, such as `-cwork_mem=1MB`.
    pub fn start_with(more: &[&str]) -> TestPostgres {
        TestPostgres::start_from(more, &[])
    }

    /// With `files` in its directory of data, which it alone may read.
    pub fn start_from(more: &[&str], files: &[(&str, &str)]) -> TestPostgres {
        let dir = tempfile::tempdir().expect("a directory");
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let postgres = TestPostgres { port, dir, more: more.iter().map(|s| (*s).to_owned()).collect() };
        // The server refuses to be root; whoever it is then must own its directory.
        postgres.own(postgres.dir.path());
        postgres.run("initdb", &["-A", "trust", "-U", "forbear", "--no-sync", "-E", "UTF8", "--locale=C"]);
        for (name, text) in files {
            let path = postgres.dir.path().join("data").join(name);
            std::fs::write(&path, text).expect("written");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("set");
            postgres.own(&path);
        }
        postgres.go();
        postgres
    }

    fn own(&self, path: &std::path::Path) {
        if as_other() {
            let chown = Command::new("chown").arg("postgres").arg(path).status();
            assert!(chown.expect("chown").success());
        }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Starts the server (again), with what it had.
    pub fn go(&self) {
        let port =
            format!("-p {} -h 127.0.0.1 -k {} {}", self.port, self.dir.path().display(), self.more.join(" "));
        self.run("pg_ctl", &["-w", "-s", "-l", &self.log(), "-o", &port, "start"]);
        for _ in 0..500 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            pause(10);
        }
        panic!("PostgreSQL did not start on port {}", self.port);
    }

    /// As a crash: nobody is asked, nothing is written any more, and the next start recovers.
    pub fn stop_immediately(&self) {
        self.run("pg_ctl", &["-w", "-s", "-m", "immediate", "stop"]);
    }

    /// With a password, which is not asked for here and must be seen nowhere.
    pub fn url_with_password(&self, password: &str) -> String {
        self.url().replacen("forbear@", &format!("forbear:{password}@"), 1)
    }

    pub fn url(&self) -> String {
        format!("postgres://forbear@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    pub fn job(&self, name: &str) -> JobAddress {
        match self.url().parse() {
            Ok(QueueAddress::Postgres(queue)) => queue.with_key(KEY).expect("a key").job(name),
            _ => unreachable!("it is a URL"),
        }
    }

    /// What `psql` says to a statement.
    pub fn sql(&self, statement: &str) -> String {
        let output = Command::new(tool("psql"))
            .args([
                "-X",
                "-A",
                "-t",
                "-q",
                "-v",
                "ON_ERROR_STOP=1",
                "-h",
                "127.0.0.1",
                "-U",
                "forbear",
                "-d",
                "postgres",
            ])
            .args(["-p", &self.port.to_string(), "-c", statement])
            .output()
            .expect("psql");
        assert!(output.status.success(), "{statement}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// What the server wrote into its log.
    pub fn said(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(self.log()).expect("the log")).into_owned()
    }

    /// The whole of its databases, as for a backup.
    pub fn dump(&self) -> String {
        let port = self.port.to_string();
        let output = Command::new(tool("pg_dumpall"))
            .args(["-h", "127.0.0.1", "-U", "forbear", "-p", &port])
            .output()
            .expect("pg_dumpall");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// All files of the server whose bytes have `word` in them: tables, indexes, the log of changes, the log.
    pub fn files_with(&self, word: &str) -> Vec<PathBuf> {
        let found =
            Command::new("grep").args(["-rlsF", "--", word]).arg(self.dir.path()).output().expect("grep");
        String::from_utf8_lossy(&found.stdout).lines().map(PathBuf::from).collect()
    }

    fn log(&self) -> String {
        self.dir.path().join("log").display().to_string()
    }

    fn run(&self, program: &str, words: &[&str]) {
        let program = tool(program);
        let mut command = if as_other() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(&program);
            command
        } else {
            Command::new(&program)
        };
        // A server that was started must not keep our pipes: whoever runs the test waits for their end.
        let status = command
            .args(words)
            .env("PGDATA", self.dir.path().join("data"))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(
            status.expect("PostgreSQL must be installed: run ./test --prepare").success(),
            "{program:?} failed"
        );
    }
}

impl Drop for TestPostgres {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.stop_immediately();
        } else {
            let _ = std::panic::catch_unwind(|| self.stop_immediately());
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "a server of its own clock is waited for")]
fn pause(ms: u64) {
    std::thread::sleep(Duration::from_millis(ms));
}

fn as_other() -> bool {
    std::os::unix::fs::MetadataExt::uid(&std::fs::metadata("/proc/self").expect("Linux")) == 0
}

/// A program of the newest PostgreSQL there is.
fn tool(name: &str) -> PathBuf {
    let mut found: Vec<(u32, PathBuf)> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let path = entry.ok()?.path();
            let version = path.file_name()?.to_str()?.parse().ok()?;
            Some((version, path.join("bin").join(name))).filter(|(_, tool)| tool.exists())
        })
        .collect();
    found.sort();
    found.pop().map_or_else(|| PathBuf::from(name), |(_, path)| path)
}

/// A server, and the outputs and events of those who use it.
pub struct PgPlace {
    pub server: TestPostgres,
    pub dir: tempfile::TempDir,
    pub events: Arc<Mutex<Vec<Event>>>,
}

impl PgPlace {
    pub async fn new() -> PgPlace {
        let dir = tempfile::tempdir().expect("a directory");
        PgPlace { server: TestPostgres::start(), dir, events: Arc::default() }
    }

    pub fn job(&self) -> JobAddress {
        self.server.job("a")
    }

    pub fn out(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn join(&self, out: &str, lease: Duration) -> Result<Job, QueueError> {
        let events = Arc::clone(&self.events);
        let tell = move |event| events.lock().expect("not poisoned").push(event);
        let options = JobOptions { lease, ..JobOptions::new(OutputTarget::File(self.out(out))) };
        Job::open(self.job(), options, Arc::new(tell))
    }

    pub async fn open(&self) -> Job {
        let job = self.join("out.jsonl", LEASE).expect("the job opens");
        assert!(job.may_import().expect("asked"), "nobody else is there");
        job
    }

    pub async fn records(&self) -> Vec<String> {
        self.records_of("out.jsonl")
    }

    pub fn records_of(&self, out: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.out(out)).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "torn: {text:?}");
        text.lines().map(str::to_owned).collect()
    }

    pub fn told(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().expect("not poisoned"))
    }

    pub fn is_consistent(&self) -> bool {
        JobFile::open(self.job()).expect("opens").is_consistent().expect("readable")
    }
}

/// As long as anybody's.
pub const LEASE: Duration = Duration::from_secs(30);
