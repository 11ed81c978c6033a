//! What all tests of queues share: building input, finishing items, and the [suite](suite) that every queue must pass.

#![allow(dead_code, unreachable_pub, unused_imports, unused_macros)] // each test file uses its part

pub mod kill;
mod suite;

use std::sync::{Arc, Mutex};

use forbear_core::time::Timestamp;
use forbear_store::queue::*;

pub(crate) use self::suite::queue_conformance;

/// Where a test's job, output and events are.
pub struct Place {
    pub dir: tempfile::TempDir,
    pub events: Arc<Mutex<Vec<Event>>>,
}

impl Place {
    pub async fn new() -> Place {
        Place { dir: tempfile::tempdir().expect("a directory"), events: Arc::default() }
    }

    pub fn job(&self) -> std::path::PathBuf {
        self.dir.path().join("a.job")
    }

    pub fn out(&self) -> std::path::PathBuf {
        self.dir.path().join("out.jsonl")
    }

    pub fn try_open(&self) -> Result<Job, QueueError> {
        let events = Arc::clone(&self.events);
        let tell = move |event| events.lock().expect("not poisoned").push(event);
        Job::open(self.job(), JobOptions::new(OutputTarget::File(self.out())), Arc::new(tell))
    }

    pub async fn open(&self) -> Job {
        self.try_open().expect("the job opens")
    }

    /// The records so far, in the order of the output.
    pub async fn records(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.out()).unwrap_or_default();
        assert!(text.is_empty() || text.ends_with('\n'), "torn: {text:?}");
        text.lines().map(str::to_owned).collect()
    }

    pub fn told(&self) -> Vec<Event> {
        std::mem::take(&mut self.events.lock().expect("not poisoned"))
    }
}

pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(work)
}

pub fn at(s: u64) -> Timestamp {
    Timestamp::from_secs(s)
}

pub fn item(line: u64, lane: &str) -> NewItem {
    let url = format!("http://{lane}/{line}");
    NewItem { seq: Seq(line), id: None, lane: lane.into(), request: Request::get(url), not_before: None }
}

/// A batch of these items, with the position behind the last.
pub fn batch(items: Vec<NewItem>) -> Batch {
    let line = items.last().map_or(0, |item| item.seq.0);
    Batch { items, position: InputPosition { offset: line * 10, line }, ..Batch::default() }
}

/// Lines `from` to `to` in one lane.
pub fn lines(from: u64, to: u64, lane: &str) -> Batch {
    batch((from..=to).map(|line| item(line, lane)).collect())
}

/// Of an input that a job may be made from.
pub fn identity() -> InputIdentity {
    InputIdentity { path: "urls.txt".into(), size: 80, modified_us: 1, head_len: 80, head_hash: 7 }
}

pub fn record(line: u64, id: Option<&str>, outcome: &str) -> String {
    match id {
        Some(id) => format!(r#"{{"id":"{id}","outcome":"{outcome}"}}"#),
        None => format!(r#"{{"id":{line},"outcome":"{outcome}"}}"#),
    }
}

/// The end of `item` as the engine would write it.
pub fn end(item: &Item, ending: Ending) -> Finish {
    let outcome = match ending {
        Ending::Done => "done",
        Ending::Failed => "failed",
        Ending::Unknown => "unknown",
    };
    Finish {
        lease: item.lease,
        ending,
        record: record(item.lease.seq().0, item.id.as_deref(), outcome).into(),
        body: None,
        counters: item.counters.clone(),
    }
}

pub fn seqs(items: &[Item]) -> Vec<u64> {
    items.iter().map(|item| item.lease.seq().0).collect()
}
