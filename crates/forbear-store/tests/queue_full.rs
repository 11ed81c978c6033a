//! No space: said, nothing lost, no torn line, and it goes on when there is some (J4).

mod queue_support;

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use forbear_store::queue::{inspect::JobFile, *};
use queue_support::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const LINES: u64 = 60;
const RECORD_BYTES: usize = 20_000;

/// Runs `test` of this file again as a process that may not write files over `kib`; its limit can be lifted.
fn limited(test: &str, dir: &Path, kib: u64) {
    // A write over the limit is an error only where the signal is ignored, and that must be done before the start.
    let output = Command::new("bash")
        .args(["-c", r#"trap "" XFSZ; ulimit -S -f "$1"; shift; exec "$@""#, "limited", &kib.to_string()])
        .arg(env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .env("FORBEAR_FULL_CHILD", dir)
        .stdin(Stdio::null())
        .output()
        .expect("started");
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn child() -> Option<PathBuf> {
    env::var_os("FORBEAR_FULL_CHILD").map(PathBuf::from)
}

fn lift_the_limit() {
    let maximum = getrlimit(Resource::Fsize).maximum;
    setrlimit(Resource::Fsize, Rlimit { current: maximum, maximum }).expect("lifted");
}

fn open(dir: &Path) -> (Arc<Job>, mpsc::Receiver<Event>) {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let target = OutputTarget::File(dir.join("out.jsonl"));
    let events = Arc::new(move |event| drop(tell.lock().expect("not poisoned").send(event)));
    (Arc::new(Job::open(dir.join("a.job"), JobOptions::new(target), events).expect("opens")), told)
}

async fn finish_all(job: &Job) -> Result<(), QueueError> {
    for lane in job.ready_lanes(None, 10).await? {
        for item in job.claim(lane.id, 1000).await? {
            let line = item.lease.seq().0;
            let record = format!(r#"{{"id":{line},"outcome":"done","pad":"{}"}}"#, "z".repeat(RECORD_BYTES));
            let finish = Finish { record: record.into(), ..end(&item, Ending::Done) };
            job.finish(finish).await?;
        }
    }
    job.flush().await
}

fn whole_lines(dir: &Path) -> u64 {
    let text = fs::read_to_string(dir.join("out.jsonl")).expect("readable");
    assert!(text.is_empty() || text.ends_with('\n'), "a torn line");
    text.lines().count() as u64
}

fn wait_for(told: &mpsc::Receiver<Event>, wanted: impl Fn(&Event) -> bool) {
    loop {
        if wanted(&told.recv_timeout(Duration::from_secs(30)).expect("said in time")) {
            return;
        }
    }
}

fn check_all_done(dir: &Path) {
    assert_eq!(whole_lines(dir), LINES);
    let file = JobFile::open(dir.join("a.job")).expect("opens");
    assert!(file.is_consistent().expect("readable"));
    assert_eq!(file.summary().expect("readable").counts.done, LINES);
}

fn is_full(event: &Event) -> bool {
    matches!(event, Event::DiskFull { .. })
}

#[test]
fn j4_a_full_output_is_said_and_goes_on_when_there_is_space() {
    let Some(dir) = child() else {
        let dir = tempfile::tempdir().expect("a directory");
        limited("j4_a_full_output_is_said_and_goes_on_when_there_is_space", dir.path(), 400);
        return check_all_done(dir.path());
    };
    block_on(async {
        let (job, told) = open(&dir);
        job.import(lines(1, LINES, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let waiter = std::thread::spawn({
            let dir = dir.clone();
            move || {
                wait_for(&told, is_full);
                assert!(whole_lines(&dir) < LINES);
                lift_the_limit();
                wait_for(&told, |event| matches!(event, Event::DiskHasRoom { .. }));
            }
        });
        finish_all(&job).await.expect("it goes on");
        waiter.join().expect("said");
        assert_eq!(job.close().await.expect("closed").done, LINES);
    });
}

#[test]
fn j4_a_full_output_at_the_end_loses_nothing() {
    let Some(dir) = child() else {
        let dir = tempfile::tempdir().expect("a directory");
        limited("j4_a_full_output_at_the_end_loses_nothing", dir.path(), 400);
        assert!(whole_lines(dir.path()) < LINES);
        return block_on(async {
            let (job, _told) = open(dir.path());
            assert!(job.counts().pending > 0);
            finish_all(&job).await.expect("finished");
            job.close().await.expect("closed");
            check_all_done(dir.path());
        });
    };
    block_on(async {
        let (job, told) = open(&dir);
        job.import(lines(1, LINES, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let work = tokio::task::LocalSet::new();
        work.run_until(async {
            let finishing = tokio::task::spawn_local({
                let job = Arc::clone(&job);
                async move { finish_all(&job).await }
            });
            let full = tokio::task::spawn_blocking(move || wait_for(&told, is_full));
            full.await.expect("said");
            let refused = job.close().await.expect_err("no success on a full disk");
            assert!(refused.is_disk_full(), "{refused:?}");
            finishing.await.expect("ends").expect_err("not saved");
        })
        .await;
    });
}

#[test]
fn j4_a_full_database_is_said_and_goes_on_when_there_is_space() {
    let Some(dir) = child() else {
        let dir = tempfile::tempdir().expect("a directory");
        limited("j4_a_full_database_is_said_and_goes_on_when_there_is_space", dir.path(), 600);
        return check_all_done(dir.path());
    };
    block_on(async {
        let (job, told) = open(&dir);
        let waiter = std::thread::spawn(move || {
            wait_for(&told, is_full);
            lift_the_limit();
            wait_for(&told, |event| matches!(event, Event::DiskHasRoom { .. }));
        });
        let mut big = lines(1, LINES, "h");
        for item in &mut big.items {
            item.request.body = Some(vec![b'b'; RECORD_BYTES]);
        }
        job.import(big).expect("imported");
        job.flush().await.expect("it goes on");
        waiter.join().expect("said");
        finish_all(&job).await.expect("finished");
        assert_eq!(job.close().await.expect("closed").done, LINES);
    });
}

/// The real thing, where this process may make a small file system: job and output both on it.
#[test]
fn j4_a_full_file_system_is_said_and_goes_on_when_there_is_space() {
    let dir = tempfile::tempdir().expect("a directory");
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(dir.path()).stderr(Stdio::null());
        mount.status().is_ok_and(|status| status.success())
    };
    if !mount("size=600k") {
        return; // the limits above stand for it
    }
    block_on(async {
        let (job, told) = open(dir.path());
        job.import(lines(1, LINES, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let waiter = std::thread::spawn({
            let dir = dir.path().to_owned();
            move || {
                wait_for(&told, is_full);
                assert!(whole_lines(&dir) < LINES);
                let grown = Command::new("mount").args(["-o", "remount,size=20m"]).arg(&dir).status();
                assert!(grown.is_ok_and(|status| status.success()));
                wait_for(&told, |event| matches!(event, Event::DiskHasRoom { .. }));
            }
        });
        finish_all(&job).await.expect("it goes on");
        waiter.join().expect("said");
        job.close().await.expect("closed");
        check_all_done(dir.path());
    });
    let status = Command::new("umount").arg("-l").arg(dir.path()).status();
    assert!(status.is_ok_and(|status| status.success()));
}
