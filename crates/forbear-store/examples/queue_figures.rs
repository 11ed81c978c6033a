//! The durable job's figures: import, claim and finish, resume, memory.
//!
//! ```text
//! cargo run --release -p forbear-store --example queue_figures -- [ITEMS] [LANES] [DIRECTORY]
//! ```
//!
//! Defaults: a million plain URLs in 300 lanes, in a temporary directory. Times are wall clock, with every sync that the
//! job makes; memory is the process's high-water mark after each part.

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::Arc,
    time::Instant,
};

use forbear_store::queue::*;

const BATCH: u64 = 8192;
const RECORD_BYTES: usize = 300;
/// Claims a lane at a time, as an engine with a bounded window does.
const CLAIM: usize = 32;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let items: u64 = args.next().map_or(Ok(1_000_000), |n| n.parse())?;
    let lanes: u64 = args.next().map_or(Ok(300), |n| n.parse())?;
    let temporary = tempfile::tempdir()?;
    let dir = args.next().map_or_else(|| temporary.path().to_owned(), PathBuf::from);
    let (path, out) = (dir.join("figures.job"), dir.join("figures.jsonl"));
    say(&format!("{items} items in {lanes} lanes, {}", dir.display()));

    let began = Instant::now();
    let job = Arc::new(open(&path, &out)?);
    import(&job, items, lanes)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build()?;
    runtime.block_on(job.flush())?;
    let took = began.elapsed();
    say(&format!("import          {:>9.0} lines/s   ({took:.2?})", items as f64 / took.as_secs_f64()));
    runtime.block_on(job.close())?;
    drop(job);
    let size = std::fs::metadata(&path)?.len();
    say(&format!("job file        {:>9.0} bytes/item", size as f64 / items as f64));

    let began = Instant::now();
    let job = Arc::new(open(&path, &out)?);
    let took = began.elapsed();
    say(&format!("resume          {took:>9.2?}"));
    assert_eq!(job.counts().pending, items);
    let began = Instant::now();
    let summary = inspect::JobFile::open(&path)?.summary()?;
    say(&format!("show            {:>9.2?}", began.elapsed()));
    assert_eq!(summary.counts.pending, items);

    let began = Instant::now();
    let (done, claims_us) = runtime.block_on(work(Arc::clone(&job)))?;
    runtime.block_on(job.flush())?;
    let took = began.elapsed();
    say(&format!("claim + finish  {:>9.0} items/s   ({took:.2?})", done as f64 / took.as_secs_f64()));
    let claim = |share: usize| claims_us[(claims_us.len() - 1) * share / 100];
    say(&format!(
        "one claim       {:>9} us median, {} us at 99 %, {} us at most",
        claim(50),
        claim(99),
        claim(100)
    ));
    let counts = runtime.block_on(job.close())?;
    assert_eq!((counts.done, counts.open()), (items, 0));
    drop(job);

    let began = Instant::now();
    let job = open(&path, &out)?;
    say(&format!("resume, all done {:>8.2?}", began.elapsed()));
    runtime.block_on(job.close())?;
    Ok(())
}

fn open(path: &Path, out: &Path) -> Result<Job, QueueError> {
    Job::open(
        path,
        JobOptions::new(OutputTarget::File(out.to_owned())),
        Arc::new(|event| say(&event.to_string())),
    )
}

fn import(job: &Job, items: u64, lanes: u64) -> Result<(), QueueError> {
    let keys: Vec<Arc<str>> = (0..lanes.min(4096)).map(key).collect();
    let mut line = 0;
    while line < items {
        let end = (line + BATCH).min(items);
        let batch = (line..end)
            .map(|n| {
                let lane = n % lanes;
                NewItem {
                    seq: Seq(n + 1),
                    id: None,
                    lane: keys.get(lane as usize).map_or_else(|| key(lane), Arc::clone),
                    request: Request::get(format!(
                        "https://host{lane}.example.org/catalogue/page/{n}?ref=list"
                    )),
                    not_before: None,
                }
            })
            .collect();
        line = end;
        let position = InputPosition { offset: line * 60, line };
        let end = if line == items { InputEnd::Reached } else { InputEnd::More };
        job.import(Batch { items: batch, bad: Vec::new(), position, end })?;
    }
    Ok(())
}

fn key(lane: u64) -> Arc<str> {
    format!("https://host{lane}.example.org").into()
}

/// One task goes round the lanes and claims a few items of each; two finish them at once.
async fn work(job: Arc<Job>) -> Result<(u64, Vec<u64>), QueueError> {
    let (hand, taken) = tokio::sync::mpsc::channel::<Vec<Item>>(64);
    let taken = Arc::new(tokio::sync::Mutex::new(taken));
    let workers: Vec<_> = (0..2)
        .map(|_| {
            let (job, taken) = (Arc::clone(&job), Arc::clone(&taken));
            tokio::spawn(async move {
                let mut done = 0;
                loop {
                    let next = taken.lock().await.recv().await;
                    let Some(items) = next else { return Ok::<u64, QueueError>(done) };
                    for item in items {
                        job.finish(finish(item)).await?;
                        done += 1;
                    }
                }
            })
        })
        .collect();
    let mut claims_us = Vec::new();
    let mut after = None;
    loop {
        let page = job.ready_lanes(after, 256).await?;
        if page.is_empty() && after.is_none() {
            break;
        }
        after = page.last().map(|lane| lane.id);
        for lane in page {
            let began = Instant::now();
            let items = job.claim(lane.id, CLAIM).await?;
            claims_us.push(u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX));
            if !items.is_empty() && hand.send(items).await.is_err() {
                break;
            }
        }
    }
    drop(hand);
    let mut done = 0;
    for worker in workers {
        done += worker.await.expect("the task does not panic")?;
    }
    claims_us.sort_unstable();
    Ok((done, claims_us))
}

fn finish(item: Item) -> Finish {
    let mut record = Vec::with_capacity(RECORD_BYTES + 1);
    let _ = write!(
        record,
        r#"{{"id":{},"url":"{}","outcome":"done","status":200,"pad":""#,
        item.lease.seq().0,
        item.request.url
    );
    record.resize(RECORD_BYTES - 2, b'x');
    record.extend_from_slice(b"\"}");
    Finish { lease: item.lease, ending: Ending::Done, record, body: None, counters: item.counters }
}

/// A line of the report, with the processor time (all threads) and the memory so far.
fn say(text: &str) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .map_or(0, |kb| kb.trim().trim_end_matches(" kB").parse::<u64>().unwrap_or(0) / 1024);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let ticks: u64 = stat.split_whitespace().skip(13).take(2).filter_map(|n| n.parse::<u64>().ok()).sum();
    let _ = writeln!(std::io::stdout(), "{text:<68} cpu {:>6.2} s  peak {peak:>3} MiB", ticks as f64 / 100.0);
}
