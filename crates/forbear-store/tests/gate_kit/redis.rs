//! A Redis of the test's own: on a free port, in its own directory, gone at the end.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

pub(crate) struct TestRedis {
    port: u16,
    dir: TempDir,
    process: Option<Child>,
    more: Vec<String>,
}

impl TestRedis {
    pub(crate) async fn start() -> TestRedis {
        TestRedis::start_with(&[]).await
    }

    /// With further words of configuration.
    pub(crate) async fn start_with(more: &[&str]) -> TestRedis {
        let dir = tempfile::tempdir().unwrap();
        let more = more.iter().map(|word| (*word).to_owned()).collect();
        let mut redis = TestRedis { port: free_port(), dir, process: None, more };
        redis.restart().await;
        redis
    }

    /// Starts it (again) on the same port: empty, unless what it had was saved by hand.
    pub(crate) async fn restart(&mut self) {
        self.restart_with(&[]).await;
    }

    /// The same with further words of configuration.
    pub(crate) async fn restart_with(&mut self, more: &[&str]) {
        self.kill();
        let port = self.port.to_string();
        let child = Command::new("redis-server")
            .args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .args(&self.more)
            .args(more)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server must be installed: run ./test --prepare");
        self.process = Some(child);
        for _ in 0..500 {
            if std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("redis-server did not start on port {port}");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// SIGKILL.
    pub(crate) fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// SIGSTOP: it is there, and does not answer.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
    }

    /// SIGCONT.
    pub(crate) fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let id = self.process.as_ref().unwrap().id();
        kill_process(Pid::from_raw(i32::try_from(id).unwrap()).unwrap(), signal).unwrap();
    }

    /// One command of a client of the test's own.
    pub(crate) async fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await.unwrap();
        let mut command = redis::cmd(words[0]);
        words[1..].iter().for_each(|word| {
            command.arg(*word);
        });
        command.query_async(&mut connection).await.unwrap()
    }
}

impl Drop for TestRedis {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
