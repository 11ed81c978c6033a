//! A store for a fleet, and a Redis of the test's own.

use std::{
    net::{TcpListener, TcpStream},
    process::{Child, Command, Stdio},
};

use serde_json::Value;
use tempfile::TempDir;

use crate::fetch_kit::{Job, ms};

/// A Redis on a free port, in its own directory, gone at the end.
pub(crate) struct Redis {
    port: u16,
    dir: TempDir,
    process: Option<Child>,
    more: Vec<String>,
}

impl Redis {
    pub(crate) async fn start(more: &[&str]) -> Redis {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let more = more.iter().map(|word| (*word).to_owned()).collect();
        let mut redis = Redis { port, dir: TempDir::new().unwrap(), process: None, more };
        redis.restart().await;
        redis
    }

    /// Starts it (again), empty, on the same port.
    pub(crate) async fn restart(&mut self) {
        self.kill();
        let port = self.port.to_string();
        let child = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
            .arg(self.dir.path())
            .args(&self.more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server must be installed: run ./test --prepare");
        self.process = Some(child);
        for _ in 0..1000 {
            if TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            tokio::time::sleep(ms(10)).await;
        }
        panic!("redis-server did not start on port {port}");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// `-STOP`: it is there, and does not answer; `-CONT`: it goes on.
    pub(crate) fn signal(&self, signal: &str) {
        let id = self.process.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &id]).status().unwrap().success());
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Where a fleet has its gates.
pub(crate) enum Store {
    File(TempDir),
    Redis(Redis),
}

impl Store {
    /// One of each kind.
    pub(crate) async fn each() -> [Store; 2] {
        [Store::File(TempDir::new().unwrap()), Store::Redis(Redis::start(&[]).await)]
    }

    pub(crate) fn address(&self) -> String {
        match self {
            Store::File(dir) => dir.path().join("gates.db").display().to_string(),
            Store::Redis(redis) => redis.url(),
        }
    }

    /// What `forbear gate list --json` says of its scopes.
    pub(crate) fn scopes(&self, job: &Job) -> Vec<Value> {
        let said = job.say(&["gate", "list", "--json", "--gate", &self.address()]);
        let said: Value = serde_json::from_str(&said).unwrap();
        said["scopes"].as_array().unwrap().clone()
    }
}
