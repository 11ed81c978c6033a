//! A Redis of the test's own: on a free port, in its own directory, gone at the end.

use std::{
    future::Future,
    net::TcpListener,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use forbear_core::policy::BoundScope;
use forbear_store::gate::{RedisGates, SharedEvent, SharedOptions};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::look;

/// One Redis, or several that are one store.
pub(crate) trait Servers: Send + Sync + Sized + 'static {
    fn start() -> impl Future<Output = Self> + Send;

    fn url(&self) -> String;
}

/// Processes on such a store: each member has a connection and a memory of its own.
pub(crate) struct Processes<S>(S);

impl<S: Servers> super::Fleet for Processes<S> {
    type Store = RedisGates;

    async fn start() -> Processes<S> {
        Processes(S::start().await)
    }

    async fn member(&self) -> Arc<RedisGates> {
        connect(&self.0, SharedOptions::default()).await
    }

    async fn small(&self, scopes_max: usize) -> Arc<RedisGates> {
        connect(&self.0, SharedOptions { scopes_max, ..SharedOptions::default() }).await
    }
}

async fn connect(servers: &impl Servers, options: SharedOptions) -> Arc<RedisGates> {
    Arc::new(RedisGates::connect(&servers.url(), options).await.unwrap())
}

/// A member, and how often it has lost its store.
pub(crate) async fn join(servers: &impl Servers) -> (Arc<RedisGates>, Arc<AtomicUsize>) {
    let lost = Arc::new(AtomicUsize::new(0));
    let count = lost.clone();
    let events = move |event| {
        if matches!(event, SharedEvent::Lost { .. }) {
            count.fetch_add(1, SeqCst);
        }
    };
    (connect(servers, SharedOptions { events: Arc::new(events), ..SharedOptions::default() }).await, lost)
}

/// How much longer a scope is paused, as this member knows it.
pub(crate) async fn pause_left(gates: &RedisGates, scope: &BoundScope) -> Duration {
    let left = look(gates, scope, |gate, now| gate.pause_at(now).map(|(until, _)| until.since(now))).await;
    left.unwrap_or_default()
}

impl Servers for TestRedis {
    async fn start() -> TestRedis {
        TestRedis::start().await
    }

    fn url(&self) -> String {
        self.url()
    }
}

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
