//! SIGKILL at random moments: no item lost, no record twice, at most what was in flight done again (J1).
//!
//! `FORBEAR_KILLS=1000` makes the campaign longer, `FORBEAR_KILL_SEED` repeats one.

mod queue_support;

use std::{
    collections::HashMap,
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, SystemTime},
};

use forbear_core::time::Timestamp;
use forbear_store::queue::{inspect::JobFile, *};
use queue_support::*;

const LINES: u64 = 2500;
/// Items claimed and not durable: what a kill may cost.
const IN_FLIGHT_MAX: u64 = 64;

#[test]
fn j1_sigkill_at_any_moment() {
    if let Some(dir) = env::var_os("FORBEAR_KILL_CHILD") {
        return block_on(run(&PathBuf::from(dir)));
    }
    let kills: u64 = env::var("FORBEAR_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(10);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos() as u64;
    let seed = env::var("FORBEAR_KILL_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(now);
    let mut dice = Dice(seed);
    // Twelve kills go into one job; a longer campaign uses several.
    for first in (0..kills).step_by(12) {
        campaign(&mut dice, (kills - first).min(12), seed);
    }
}

#[expect(clippy::disallowed_methods, reason = "the moment of the kill is the subject")]
fn campaign(dice: &mut Dice, kills: u64, seed: u64) {
    let dir = tempfile::tempdir().expect("a directory");
    let (job, out) = (dir.path().join("a.job"), dir.path().join("out.jsonl"));
    let mut killed = 0;
    for _ in 0..kills {
        let mut child = start(dir.path());
        std::thread::sleep(Duration::from_millis(1 + dice.roll(140)));
        let before = child.try_wait().expect("asked");
        child.kill().expect("killed");
        let status = child.wait().expect("waited");
        match before {
            None => killed += 1,
            Some(_) => assert!(status.success(), "seed {seed}: the run failed by itself"),
        }
        if fs::metadata(&job).is_ok_and(|meta| meta.len() > 0)
            && let Ok(file) = JobFile::open(&job)
        {
            assert!(file.is_consistent().expect("readable"), "seed {seed}: totals and tables differ");
        }
    }
    let status = start(dir.path()).wait().expect("waited");
    assert!(status.success(), "seed {seed}: the last run failed");

    let text = fs::read_to_string(&out).expect("readable");
    let mut records: HashMap<String, u32> = HashMap::new();
    for line in text.lines() {
        let value: serde_json::Value =
            serde_json::from_str(line).unwrap_or_else(|_| panic!("seed {seed}: {line:?}"));
        *records.entry(value["line"].to_string()).or_default() += 1;
    }
    let twice: Vec<_> = records.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "seed {seed}: twice {twice:?}");
    assert_eq!(records.len() as u64, LINES, "seed {seed}: lost");
    let file = JobFile::open(&job).expect("opens");
    assert!(file.is_consistent().expect("readable"), "seed {seed}");
    let counts = file.summary().expect("readable").counts;
    assert_eq!((counts.imported, counts.open()), (LINES, 0), "seed {seed}");
    let done = fs::read_to_string(dir.path().join("fetched")).expect("readable");
    let mut fetched: HashMap<&str, u64> = HashMap::new();
    for line in done.split_inclusive('\n') {
        *fetched.entry(line).or_default() += 1;
    }
    let again: u64 = fetched.values().map(|n| n - 1).sum();
    assert!(again <= killed * IN_FLIGHT_MAX, "seed {seed}: {again} done again after {killed} kills");
}

fn start(dir: &Path) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "j1_sigkill_at_any_moment", "--nocapture"])
        .env("FORBEAR_KILL_CHILD", dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

/// The run that is killed: imports while it works, and ends when all is done.
async fn run(dir: &Path) {
    let target = OutputTarget::File(dir.join("out.jsonl"));
    let job = Job::open(dir.join("a.job"), JobOptions::new(target), Arc::new(|event| eprintln!("{event}")));
    let job = Arc::new(job.expect("opens after every kill"));
    let importer = std::thread::spawn({
        let job = Arc::clone(&job);
        move || import(&job)
    });
    let mut fetched = fs::File::options().create(true).append(true).open(dir.join("fetched")).expect("opens");
    loop {
        job.wake_due(now(), 1000).await.expect("woken");
        let mut idle = true;
        for lane in job.ready_lanes(None, 100).await.expect("lanes") {
            let room = IN_FLIGHT_MAX.saturating_sub(job.counts().leased) as usize;
            for item in job.claim(lane.id, room.min(9)).await.expect("claimed") {
                idle = false;
                work(&job, item, &mut fetched).await;
            }
        }
        let counts = job.counts();
        if counts.open() == 0 && counts.input == InputEnd::Reached {
            break;
        }
        if idle {
            job.flush().await.expect("flushed");
        }
    }
    importer.join().expect("imported");
    job.close().await.expect("closed");
}

async fn work(job: &Job, mut item: Item, fetched: &mut fs::File) {
    let line = item.lease.seq().0;
    item.counters.attempts += 1;
    // Each kind of way back, once for some of the items, and before they are "sent".
    if item.counters.attempts == 1 {
        match line % 11 {
            3 => return job.release(item).expect("released"),
            5 => {
                let due = now().plus(Duration::from_millis(20));
                return job.park(item.lease, Until::Time(due), "told", item.counters).expect("parked");
            }
            _ => {}
        }
    }
    fetched.write_all(format!("{line}\n").as_bytes()).expect("written");
    let (ending, outcome) = match line % 7 {
        1 => (Ending::Failed, "failed"),
        2 => (Ending::Unknown, "unknown"),
        _ => (Ending::Done, "done"),
    };
    let id = item.id.as_ref().map_or_else(|| line.to_string(), |id| format!("\"{id}\""));
    let pad = "x".repeat((line % 500) as usize);
    let record = format!(r#"{{"id":{id},"line":{line},"outcome":"{outcome}","pad":"{pad}"}}"#);
    let finish =
        Finish { lease: item.lease, ending, record: record.into(), body: None, counters: item.counters };
    job.finish(finish).await.expect("finished");
}

fn import(job: &Job) {
    let mut line = job.position().line;
    while line < LINES {
        let last = (line + 40).min(LINES);
        let mut part = Batch { position: InputPosition { offset: last * 7, line: last }, ..Batch::default() };
        for line in line + 1..=last {
            if line % 97 == 0 {
                let record =
                    format!(r#"{{"id":{line},"line":{line},"outcome":"failed","error":"not a URL"}}"#);
                part.bad.push(BadLine { seq: Seq(line), record: record.into() });
                continue;
            }
            let mut item = item(line, &format!("h{}", line % 5));
            item.id = (line % 3 == 0).then(|| format!("id-{line}"));
            item.request.priority = (line % 2) as i32;
            part.items.push(item);
        }
        if last == LINES {
            part.end = InputEnd::Reached;
        }
        job.import(part).expect("imported");
        line = last;
    }
}

fn now() -> Timestamp {
    Timestamp::ZERO.plus(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"))
}

/// A small generator (splitmix64), so that a campaign can be repeated.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}
