//! What the tests of the binary share: real servers on free ports, stopped when dropped, and one run of `forbear fetch`.
//!
//! The servers are programs that nobody here wrote, set up as their own documentation says, and what they served and
//! refused is read from *their* logs. `./test --prepare` installs them.

#![allow(dead_code, reason = "each test binary uses a part of this")]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) mod origin;
pub(crate) mod proxies;

/// How long a server may take to start, and a server's log to be written. Generous: the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// The folder of the workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What a server answered to requests for its pages, by its own log.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    /// Path to how often it was served with 200.
    pub(crate) served: BTreeMap<String, u32>,
    /// Requests refused: 429 or 503.
    pub(crate) refused: usize,
    /// Any other answer, which no test here expects.
    pub(crate) other: Vec<String>,
    /// Pages in the order of the log: served, or refused.
    pub(crate) order: Vec<bool>,
}

impl Answers {
    /// Reads lines `STATUS PATH`; lines about other paths than `/p/` do not count as pages.
    fn read(log: &str) -> Answers {
        let mut answers = Answers::default();
        for (status, path) in log.lines().filter_map(|line| line.split_once(' ')) {
            match status {
                _ if !path.starts_with("/p/") => {}
                "200" => {
                    *answers.served.entry(path.to_owned()).or_default() += 1;
                    answers.order.push(true);
                }
                "429" | "503" => {
                    answers.refused += 1;
                    answers.order.push(false);
                }
                _ => answers.other.push(format!("{status} {path}")),
            }
        }
        answers
    }
}

/// A server that a test started.
pub(crate) trait Server {
    /// `http://127.0.0.1:PORT`, without a slash at the end.
    fn base(&self) -> String;
    /// What it answered so far.
    fn answers(&self) -> Answers;
}

/// nginx in one process, with pages under `/p/`.
pub(crate) struct Nginx {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Nginx {
    /// Starts it with `http` in its `http` block and `pages` in the location of the pages.
    pub(crate) fn start(http: &str, pages: &str) -> Nginx {
        let template = fs::read_to_string(root().join("tests/servers/nginx/base.conf")).unwrap();
        // Another process may take the port between our look and nginx's bind: then nginx leaves, and we try another.
        for _ in 0..10 {
            let dir = TempDir::new().unwrap();
            let port = free_port();
            let conf = template
                .replace("@HTTP@", http)
                .replace("@PAGES@", pages)
                .replace("@PORT@", &port.to_string())
                .replace("@DIR@", dir.path().to_str().unwrap());
            fs::create_dir(dir.path().join("www")).unwrap();
            fs::write(dir.path().join("www/page.txt"), "a small page\n".repeat(40)).unwrap();
            fs::write(dir.path().join("nginx.conf"), conf).unwrap();
            let child = Command::new("nginx")
                .arg("-p")
                .arg(dir.path())
                .arg("-c")
                .arg(dir.path().join("nginx.conf"))
                .arg("-e")
                .arg(dir.path().join("error.log"))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(File::create(dir.path().join("stderr.log")).unwrap())
                .spawn()
                .unwrap_or_else(|error| {
                    panic!("nginx does not start ({error}); `./test --prepare` installs it")
                });
            let mut server = Nginx { child, dir, port };
            if server.is_up() {
                return server;
            }
            let log = fs::read_to_string(server.dir.path().join("error.log")).unwrap_or_default();
            assert!(log.contains("Address already in use"), "nginx refused its configuration:\n{log}");
        }
        panic!("no free port for nginx in ten tries");
    }

    /// Waits until it answers, or until it has given up.
    fn is_up(&mut self) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            if get(self.port, "/status").is_some_and(|head| head.starts_with("HTTP/1.1 200")) {
                return self.child.try_wait().unwrap().is_none();
            }
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            pause();
        }
        false
    }
}

impl Server for Nginx {
    fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn answers(&self) -> Answers {
        Answers::read(&fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// An Express application behind `express-rate-limit`, with pages under `/p/`.
pub(crate) struct Express {
    child: Child,
    dir: TempDir,
    port: u16,
}

impl Express {
    /// Starts it with `headers` (`draft-6`, `draft-7`, `draft-8`, `legacy` or `none`) and `limit` pages a `window`.
    pub(crate) fn start(headers: &str, limit: u32, window: Duration) -> Express {
        let modules = root().join(".cache/express/node_modules");
        assert!(modules.is_dir(), "the Express application is not installed; `./test --prepare` does it");
        let dir = TempDir::new().unwrap();
        let setup = serde_json::json!({
            "headers": headers, "limit": limit, "windowMs": u64::try_from(window.as_millis()).unwrap(),
        });
        let child = Command::new("node")
            .arg(root().join("tests/servers/express/app.js"))
            .arg(setup.to_string())
            .env("NODE_PATH", modules)
            .env("NODE_ENV", "production")
            .stdin(Stdio::piped())
            .stdout(File::create(dir.path().join("access.log")).unwrap())
            .stderr(File::create(dir.path().join("stderr.log")).unwrap())
            .spawn()
            .unwrap_or_else(|error| panic!("node does not start ({error})"));
        let mut server = Express { child, dir, port: 0 };
        let began = Instant::now();
        while began.elapsed() < PATIENCE && server.child.try_wait().unwrap().is_none() {
            if let Some(port) =
                server.log().lines().find_map(|line| line.strip_prefix("listening ")?.parse().ok())
            {
                server.port = port;
                return server;
            }
            pause();
        }
        let complaint = fs::read_to_string(server.dir.path().join("stderr.log")).unwrap_or_default();
        panic!("the Express application did not start:\n{complaint}");
    }

    fn log(&self) -> String {
        fs::read_to_string(self.dir.path().join("access.log")).unwrap_or_default()
    }
}

impl Server for Express {
    fn base(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn answers(&self) -> Answers {
        Answers::read(&self.log())
    }
}

impl Drop for Express {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// The head of the response to one plain GET on loopback, or nothing when the server is not there (yet).
pub(crate) fn get(port: u16, path: &str) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer.split_once("\r\n\r\n")?.0.to_owned())
}

/// One run of `forbear fetch` over the pages `1` to `pages` of a server, in a folder of its own.
pub(crate) struct Fetch {
    dir: TempDir,
    pages: u32,
    /// How it ended.
    pub(crate) status: ExitStatus,
    /// How long it took, with the start of the process.
    pub(crate) elapsed: Duration,
    /// What it said.
    pub(crate) stderr: String,
}

impl Fetch {
    /// Runs it to its end, which must come within `patience`.
    pub(crate) fn run(base: &str, pages: u32, flags: &[&str], patience: Duration) -> Fetch {
        let dir = TempDir::new().unwrap();
        let urls: String = (1..=pages).map(|page| format!("{base}/p/{page}\n")).collect();
        fs::write(dir.path().join("urls.txt"), urls).unwrap();
        let began = Instant::now();
        let mut child = forbear(dir.path())
            .args(["fetch", "urls.txt", "-o", "out.jsonl", "--job", "job", "--progress", "plain"])
            .args(flags)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(dir.path().join("stderr.log")).unwrap())
            .spawn()
            .unwrap();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if began.elapsed() > patience => break None,
                None => pause(),
            }
        };
        let elapsed = began.elapsed();
        let stderr = fs::read_to_string(dir.path().join("stderr.log")).unwrap();
        let Some(status) = status else {
            end(&mut child);
            panic!("no end after {patience:?}; it said:\n{stderr}");
        };
        Fetch { dir, pages, status, elapsed, stderr }
    }

    /// The records of the output, in its order.
    pub(crate) fn records(&self) -> Vec<Value> {
        let out = fs::read_to_string(self.dir.path().join("out.jsonl")).unwrap_or_default();
        out.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect()
    }

    /// Seconds from the end of the page at `from`, in the order in which they ended, to that of the last.
    pub(crate) fn seconds_after(&self, from: usize) -> f64 {
        let ended = |record: &Value| {
            let text = record["finished_at"].as_str().unwrap();
            let part = |range: std::ops::Range<usize>| text[range].parse::<f64>().unwrap();
            part(11..13) * 3600.0 + part(14..16) * 60.0 + part(17..23)
        };
        let mut all: Vec<f64> = self.records().iter().map(ended).collect();
        let last = *all.last().unwrap();
        // Midnight may lie between.
        all.iter_mut().filter(|at| **at > last + 43_200.0).for_each(|at| *at -= 86_400.0);
        all.sort_by(f64::total_cmp);
        all[all.len() - 1] - all[from]
    }

    /// Every page is done, stands in the output once, and was served by the server once (J1, J5).
    pub(crate) fn assert_every_page_once(&self, answers: &Answers) {
        assert!(self.status.success(), "ended with {}; it said:\n{}", self.status, self.stderr);
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for record in self.records() {
            assert_eq!(record["outcome"], "done", "{record}");
            assert_eq!(record["status"], 200, "{record}");
            *seen
                .entry(record["url"].as_str().unwrap().rsplit_once('/').unwrap().1.to_owned())
                .or_default() += 1;
        }
        let once: BTreeMap<String, u32> = (1..=self.pages).map(|page| (page.to_string(), 1)).collect();
        assert_eq!(seen, once, "the output");
        let once: BTreeMap<String, u32> = (1..=self.pages).map(|page| (format!("/p/{page}"), 1)).collect();
        assert_eq!(answers.served, once, "the server's own log");
        assert!(answers.other.is_empty(), "{:?}", answers.other);
    }
}

/// The command, in `dir`, with nothing of the caller's environment that could change what it does.
pub(crate) fn forbear(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_forbear"));
    command.current_dir(dir).env("HOME", dir).env("NO_COLOR", "1");
    for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy", "xdg_config_home", "forbear_log"] {
        command.env_remove(name).env_remove(name.to_uppercase());
    }
    command
}

fn free_port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn end(child: &mut Child) {
    let _ = child.kill(); // it may have ended by itself
    let _ = child.wait();
}

#[expect(clippy::disallowed_methods, reason = "no runtime here: other processes are waited for")]
fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
