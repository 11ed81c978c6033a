//! SIGKILL at random moments: no item lost, no record twice, at most what was in flight done again (J1).
//!
//! `FORBEAR_ROUNDS=1000` makes the campaign longer, `FORBEAR_KILL_SEED` repeats one.

mod queue_support;

use std::{
    collections::HashMap,
    env, fs,
    io::Write,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use forbear_store::queue::{inspect::JobFile, *};
use queue_support::{kill::*, *};

const LINES: u64 = 2500;
/// Items claimed and not durable: what a kill may cost.
const IN_FLIGHT_MAX: u64 = 64;

#[test]
fn j1_sigkill_at_any_moment() {
    if let Some(dir) = env::var_os("FORBEAR_KILL_CHILD") {
        return block_on(run(&PathBuf::from(dir)));
    }
    let kills = rounds().unwrap_or(10);
    let (mut dice, seed) = Dice::seeded();
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

async fn work(job: &Job, item: Item, fetched: &mut fs::File) {
    let item = match turn_back(job, item) {
        ControlFlow::Continue(item) => item,
        ControlFlow::Break(said) => return said.expect("gone back"),
    };
    let line = item.lease.seq().0;
    fetched.write_all(format!("{line}\n").as_bytes()).expect("written");
    job.finish(answer(item)).await.expect("finished");
}

fn import(job: &Job) {
    let mut line = job.position().line;
    while line < LINES {
        let last = (line + 40).min(LINES);
        let mut part = part(line, last, 5);
        if last == LINES {
            part.end = InputEnd::Reached;
        }
        job.import(part).expect("imported");
        line = last;
    }
}
