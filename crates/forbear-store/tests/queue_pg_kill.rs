//! Four processes on one job in PostgreSQL, SIGKILL at random moments, the server restarted as by a crash: every item once,
//! none lost (J1).
//!
//! `FORBEAR_ROUNDS=40` makes so many kills with at least 50,000 items and two restarts; `FORBEAR_KILL_SEED` repeats one. The
//! input goes on until the last kill, so that each kill finds work, however fast the machine is.

#[path = "queue_support/postgres.rs"]
mod postgres;
mod queue_support;

use std::{
    collections::HashMap,
    env, fs,
    ops::ControlFlow,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use forbear_store::queue::{inspect::JobFile, *};
use postgres::{KEY, TestPostgres};
use queue_support::{kill::*, *};

const PROCESSES: usize = 4;
/// Items that wait at least, until the input ends.
const AHEAD: u64 = 2_000;
/// Its presence says that the input may end.
const ENOUGH: &str = "enough";
/// Items that one process has in hand at most.
const IN_HAND: usize = 64;

#[test]
fn j1_pg_sigkill_of_four_processes_and_restarts_of_the_server() {
    if let Some(dir) = env::var_os("FORBEAR_KILL_CHILD") {
        return block_on(run(&PathBuf::from(dir)));
    }
    let (kills, items) = rounds().map_or((6, 4_000), |kills| (kills, 50_000));
    let (mut dice, seed) = Dice::seeded();
    campaign(&mut dice, kills, items, seed);
}

#[expect(clippy::disallowed_methods, reason = "the moment of the kill is the subject")]
fn campaign(dice: &mut Dice, kills: u64, items: u64, seed: u64) {
    let server = TestPostgres::start();
    let dir = tempfile::tempdir().expect("a directory");
    let child = |n: usize| start(dir.path(), &server.url(), n, items);
    let mut children: Vec<Child> = (0..PROCESSES).map(child).collect();
    let restarts = [kills / 3, kills * 2 / 3];
    let (mut killed, mut restarted) = (0, 0);
    for kill in 0..kills {
        std::thread::sleep(Duration::from_millis(100 + dice.roll(1200)));
        if restarts.contains(&kill) {
            server.stop_immediately();
            std::thread::sleep(Duration::from_millis(dice.roll(800)));
            server.go();
            restarted += 1;
        }
        let n = dice.roll(PROCESSES as u64) as usize;
        let ended = children[n].try_wait().expect("asked");
        assert!(ended.is_none(), "seed {seed}: process {n} ended by itself: {ended:?}");
        killed += 1;
        let _ = children[n].kill();
        children[n].wait().expect("waited");
        children[n] = child(n);
    }
    fs::write(dir.path().join(ENOUGH), "").expect("written");
    let began = Instant::now();
    for (n, child) in children.iter_mut().enumerate() {
        let status = child.wait().expect("waited");
        assert!(status.success(), "seed {seed}: process {n} failed");
    }
    eprintln!("{killed} kills, {restarted} restarts, then {:?} to the end", began.elapsed());

    let (mut records, mut fetched) = (HashMap::<u64, u32>::new(), 0_u64);
    let mut each = Vec::new();
    for n in 0..PROCESSES {
        let text = fs::read_to_string(dir.path().join(format!("out{n}"))).expect("readable");
        each.push(text.lines().count());
        for line in text.lines() {
            let value: serde_json::Value =
                serde_json::from_str(line).unwrap_or_else(|_| panic!("seed {seed}: {line:?}"));
            *records.entry(value["line"].as_u64().expect("a number")).or_default() += 1;
        }
        fetched += fs::metadata(dir.path().join(format!("fetched{n}"))).map_or(0, |meta| meta.len());
    }
    let twice: Vec<_> = records.iter().filter(|(_, n)| **n > 1).collect();
    assert!(twice.is_empty(), "seed {seed}: twice {twice:?}");
    let file = JobFile::open(server.job("kill")).expect("opens");
    assert!(file.is_consistent().expect("readable"), "seed {seed}: totals and tables differ");
    let counts = file.summary().expect("readable").counts;
    let imported = counts.imported;
    assert!(imported >= items && counts.open() == 0, "seed {seed}: {counts:?}");
    let lost: Vec<_> = (1..=imported).filter(|line| !records.contains_key(line)).collect();
    assert!(lost.is_empty(), "seed {seed}: lost {lost:?}");
    let again = fetched - (imported - imported / 97); // bad lines are not fetched
    eprintln!("{imported} items, each once: {each:?}; {again} fetched again");
    // What was in flight: of those that were killed, and of all at each restart.
    let in_flight = killed * IN_HAND as u64 + restarted * (PROCESSES * IN_HAND) as u64;
    assert!(again <= in_flight, "seed {seed}: {again} done again");
    assert!(each.iter().all(|n| *n > 0), "seed {seed}: all took part: {each:?}");
}

fn start(dir: &Path, url: &str, n: usize, items: u64) -> Child {
    Command::new(env::current_exe().expect("this program"))
        .args(["--exact", "j1_pg_sigkill_of_four_processes_and_restarts_of_the_server", "--nocapture"])
        .env("FORBEAR_KILL_CHILD", dir)
        .env("FORBEAR_KILL_URL", url)
        .env("FORBEAR_KILL_N", n.to_string())
        .env("FORBEAR_KILL_ITEMS", items.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("started")
}

fn number(name: &str) -> u64 {
    env::var(name).expect("given").parse().expect("a number")
}

/// The run that is killed: imports if nobody else does, works while there is work, and ends when all is done.
async fn run(dir: &Path) {
    let (n, items) = (number("FORBEAR_KILL_N"), number("FORBEAR_KILL_ITEMS"));
    let Ok(QueueAddress::Postgres(queue)) = env::var("FORBEAR_KILL_URL").expect("given").parse() else {
        panic!()
    };
    let address = queue.with_key(KEY).expect("a key").job("kill");
    let target = OutputTarget::File(dir.join(format!("out{n}")));
    let options = JobOptions { lease: Duration::from_secs(4), ..JobOptions::new(target) };
    let job = loop {
        match Job::open(&address, options.clone(), Arc::new(move |event| eprintln!("{n}: {event}"))) {
            Ok(job) => break Arc::new(job),
            // The server is down at this moment.
            Err(error) if error.is_unreachable() => tokio::time::sleep(Duration::from_millis(100)).await,
            Err(error) => panic!("{error}"),
        }
    };
    let mut fetched =
        fs::File::options().create(true).append(true).open(dir.join(format!("fetched{n}"))).expect("opens");
    let mut importer: Option<std::thread::JoinHandle<()>> = None;
    loop {
        let fed = job.counts().input == InputEnd::Reached;
        if !fed
            && importer.as_ref().is_none_or(std::thread::JoinHandle::is_finished)
            && job.may_import().unwrap_or(false)
        {
            let job = Arc::clone(&job);
            let enough = dir.join(ENOUGH);
            importer = Some(std::thread::spawn(move || import(&job, items, &enough)));
        }
        job.wake_due(now(), 1000).await.expect("woken");
        let mut idle = true;
        for lane in job.ready_lanes(None, 100).await.expect("lanes") {
            for item in job.claim(lane.id, IN_HAND / 4).await.expect("claimed") {
                idle = false;
                work(&job, item, &mut fetched).await;
            }
        }
        let counts = job.counts();
        if counts.open() == 0 && counts.input == InputEnd::Reached {
            break;
        }
        if idle {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    job.close().await.expect("closed");
}

async fn work(job: &Job, item: Item, fetched: &mut fs::File) {
    let taken = |said: Result<(), QueueError>| match said {
        // Lost to others, who have it now.
        Ok(()) | Err(QueueError::StaleLease) => {}
        Err(error) => panic!("{error}"),
    };
    let item = match turn_back(job, item) {
        ControlFlow::Continue(item) => item,
        ControlFlow::Break(said) => return taken(said),
    };
    if !job.is_current(item.lease) {
        return;
    }
    std::io::Write::write_all(fetched, b".").expect("written");
    taken(job.finish(answer(item)).await);
}

#[expect(clippy::disallowed_methods, reason = "a thread of its own, which waits for room")]
fn import(job: &Job, items: u64, enough: &Path) {
    let mut line = job.position().line;
    loop {
        let end = line >= items && enough.exists();
        if !end && job.counts().open() > AHEAD {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        }
        let last = line + 500;
        let mut part = part(line, last, 23);
        if end {
            part.end = InputEnd::Reached;
        }
        if job.import(part).is_err() || end {
            return; // done, or another one imports now, or will
        }
        line = last;
    }
}
