//! Several Redis of the test's own: a cluster, and a primary with replicas that sentinels watch over.

use std::{
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::{
    eventually,
    redis::{Servers, free_port},
};

/// One of them.
pub(crate) struct Node {
    pub(crate) port: u16,
    bus: u16,
    dir: TempDir,
    words: Vec<String>,
    process: Option<Child>,
}

impl Node {
    fn new(words: &[&str]) -> Node {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        Node { port: free_port(), bus: free_port(), dir: tempfile::tempdir().unwrap(), words, process: None }
    }

    async fn start(&mut self) {
        let mut command = Command::new("redis-server");
        let port = self.port.to_string();
        if self.words[0] == "--sentinel" {
            command.arg(self.dir.path().join("sentinel.conf"));
        } else {
            command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        }
        command.args(&self.words).current_dir(self.dir.path());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.process = Some(child.expect("redis-server must be installed: run ./test --prepare"));
        eventually("a server starts", || async {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        })
        .await;
    }

    pub(crate) async fn restart(&mut self) {
        self.kill();
        self.start().await;
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
    pub(crate) async fn ask<T: redis::FromRedisValue>(&self, words: &[&str]) -> redis::RedisResult<T> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query_async(&mut connection).await
    }

    async fn says(&self, words: &[&str], what: &str) -> bool {
        self.ask::<String>(words).await.is_ok_and(|said| said.contains(what))
    }

    pub(crate) async fn id(&self) -> String {
        self.ask(&["CLUSTER", "MYID"]).await.unwrap()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Three primaries with a third of the slots each, and perhaps a replica of each: the first three, then theirs.
pub(crate) struct TestCluster {
    pub(crate) nodes: Vec<Node>,
}

impl Servers for TestCluster {
    async fn start() -> TestCluster {
        TestCluster::start().await
    }

    fn url(&self) -> String {
        self.url()
    }
}

impl TestCluster {
    pub(crate) async fn start() -> TestCluster {
        TestCluster::start_with(0).await
    }

    /// With so many replicas of each.
    pub(crate) async fn start_with(replicas: usize) -> TestCluster {
        let mut nodes = Vec::new();
        for _ in 0..PRIMARIES * (1 + replicas) {
            let mut node = Node::new(&["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"]);
            node.words.extend(["--cluster-port".into(), node.bus.to_string()]);
            node.words.extend(["--repl-diskless-sync-delay".into(), "0".into()]);
            node.start().await;
            nodes.push(node);
        }
        for (node, slots) in nodes.iter().zip([("0", "5460"), ("5461", "10922"), ("10923", "16383")]) {
            let () = node.ask(&["CLUSTER", "ADDSLOTSRANGE", slots.0, slots.1]).await.unwrap();
        }
        let (first, others) = nodes.split_first().unwrap();
        let (port, bus) = (first.port.to_string(), first.bus.to_string());
        for node in others {
            let () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus]).await.unwrap();
        }
        for node in &nodes {
            let known = format!("cluster_known_nodes:{}", nodes.len());
            eventually("they know each other", || node.says(&["CLUSTER", "INFO"], &known)).await;
        }
        for (i, node) in nodes.iter().enumerate().skip(PRIMARIES) {
            let id = nodes[i % PRIMARIES].id().await;
            eventually("it becomes a replica", || async {
                node.ask::<()>(&["CLUSTER", "REPLICATE", &id]).await.is_ok()
            })
            .await;
        }
        let cluster = TestCluster { nodes };
        cluster.is_whole().await;
        for node in &cluster.nodes[PRIMARIES..] {
            eventually("it has what there is", || {
                node.says(&["INFO", "replication"], "master_link_status:up")
            })
            .await;
        }
        cluster
    }

    /// Waits until all that live say that every slot is served.
    pub(crate) async fn is_whole(&self) {
        for node in self.nodes.iter().filter(|node| node.process.is_some()) {
            eventually("every slot is served", || node.says(&["CLUSTER", "INFO"], "cluster_state:ok")).await;
        }
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        format!("redis+cluster://{}", hosts.join(","))
    }

    /// The slot of a key, and which primary had it at the start.
    pub(crate) async fn slot(&self, key: &str) -> (u16, usize) {
        let slot: u16 = self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key]).await.unwrap();
        (slot, usize::from(slot > 5460) + usize::from(slot > 10922))
    }
}

const PRIMARIES: usize = 3;

/// A primary, two replicas, and three sentinels.
pub(crate) struct TestSentinels {
    pub(crate) servers: Vec<Node>,
    pub(crate) sentinels: Vec<Node>,
    password: &'static str,
}

impl Servers for TestSentinels {
    async fn start() -> TestSentinels {
        TestSentinels::start().await
    }

    fn url(&self) -> String {
        self.url()
    }
}

impl TestSentinels {
    pub(crate) async fn start() -> TestSentinels {
        TestSentinels::start_with("").await
    }

    /// With a password for the servers, and the same with `-s` for the sentinels.
    pub(crate) async fn start_with(password: &'static str) -> TestSentinels {
        let mut servers = Vec::new();
        for i in 0..3 {
            let mut node = Node::new(&["--repl-diskless-sync-delay", "0"]);
            if i > 0 {
                let primary: &Node = &servers[0];
                node.words.extend(["--replicaof".into(), format!("127.0.0.1 {}", primary.port)]);
            }
            if !password.is_empty() {
                for word in ["--requirepass", password, "--masterauth", password] {
                    node.words.push(word.into());
                }
            }
            node.start().await;
            servers.push(node);
        }
        let mut all = TestSentinels { servers, sentinels: Vec::new(), password };
        for node in &all.servers[1..] {
            eventually("it has what there is", || {
                all.says(node, &["INFO", "replication"], "master_link_status:up")
            })
            .await;
        }
        for _ in 0..3 {
            let mut node = Node::new(&["--sentinel"]);
            all.configure(&node, node.dir.path());
            node.start().await;
            all.sentinels.push(node);
        }
        for node in &all.sentinels {
            eventually("they are enough", || all.says(node, &["SENTINEL", "CKQUORUM", "main"], "OK 3")).await;
            eventually("they know the replicas", || async {
                let known = all.ask::<Vec<redis::Value>>(node, &["SENTINEL", "REPLICAS", "main"]).await;
                known.is_ok_and(|known| known.len() == 2)
            })
            .await;
        }
        all
    }

    fn configure(&self, node: &Node, dir: &Path) {
        let (port, primary) = (node.port, self.servers[0].port);
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 2\n\
             sentinel down-after-milliseconds main 500\nsentinel failover-timeout main 2000\n"
        );
        if !self.password.is_empty() {
            let password = self.password;
            text += &format!("sentinel auth-pass main {password}\nrequirepass {password}-s\n");
            text += &format!("sentinel sentinel-pass {password}-s\n");
        }
        std::fs::write(dir.join("sentinel.conf"), text).unwrap();
    }

    pub(crate) fn url(&self) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|node| format!("127.0.0.1:{}", node.port)).collect();
        let (user, query) = match self.password {
            "" => (String::new(), String::new()),
            password => (format!(":{password}@"), format!("?sentinel_password={password}-s")),
        };
        format!("redis+sentinel://{user}{}/main{query}", hosts.join(","))
    }

    async fn ask<T: redis::FromRedisValue>(&self, node: &Node, words: &[&str]) -> redis::RedisResult<T> {
        let sentinel = node.words[0] == "--sentinel";
        let user = match (self.password, sentinel) {
            ("", _) => String::new(),
            (password, true) => format!(":{password}-s@"),
            (password, false) => format!(":{password}@"),
        };
        let client = redis::Client::open(format!("redis://{user}127.0.0.1:{}", node.port)).unwrap();
        let mut connection = client.get_multiplexed_async_connection().await?;
        let mut command = redis::cmd(words[0]);
        for word in &words[1..] {
            command.arg(*word);
        }
        command.query_async(&mut connection).await
    }

    async fn says(&self, node: &Node, words: &[&str], what: &str) -> bool {
        self.ask::<String>(node, words).await.is_ok_and(|said| said.contains(what))
    }

    /// Waits until one of the others is the primary.
    pub(crate) async fn has_failed_over(&self) {
        eventually("another is the primary", || async {
            for node in &self.servers[1..] {
                if self.says(node, &["INFO", "replication"], "role:master").await {
                    return true;
                }
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            false
        })
        .await;
    }
}
