//! What a job in PostgreSQL costs as it grows: bulk load, claims, ends, parked items that wake, at several sizes of one job.
//!
//! ```text
//! FORBEAR_KEY=... cargo run --release -p forbear-store --example queue_curve -- URL [ITEMS,ITEMS,...] [LANES]
//! ```
//!
//! Makes the job `curve` there, or goes on with it. One line of JSON for each size. One process with one connection for claims and one for
//! commits, every commit synced as the server is set up; `bench/run --only queue` starts a server for it.

use std::{
    io::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use forbear_core::time::Timestamp;
use forbear_store::queue::*;

const BATCH: u64 = 4096;
/// Claims that are measured at each size, and their items.
const CLAIMS: usize = 400;
const CLAIM: usize = 32;
/// Items that are parked and woken at each size, and how many of them at once.
const PARKED: usize = 2000;
const WAKE: usize = 500;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let url = args.next().ok_or("usage: queue_curve URL [ITEMS,ITEMS,...] [LANES]")?;
    let sizes = args.next().unwrap_or_else(|| "100000,500000,1000000,2000000,5000000".to_owned());
    let sizes = sizes.split(',').map(str::parse).collect::<Result<Vec<u64>, _>>()?;
    let lanes: u64 = args.next().map_or(Ok(300), |n| n.parse())?;
    let Ok(QueueAddress::Postgres(queue)) = url.parse() else {
        return Err("not an address of a database".into());
    };
    let dir = tempfile::tempdir()?;
    let output = OutputTarget::File(dir.path().join("out.jsonl"));
    let job = Job::open(queue.job("curve"), JobOptions::new(output), Arc::new(|event| eprintln!("{event}")))?;
    let job = Arc::new(job);
    if !job.may_import()? {
        return Err("another process imports".into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build()?;
    let mut line = job.position().line;
    for size in sizes {
        let (began, from) = (Instant::now(), line);
        import(&job, &mut line, size, lanes)?;
        runtime.block_on(job.flush())?;
        let load = (line - from) as f64 / began.elapsed().as_secs_f64(); // none, where the job has so many
        let measured = runtime.block_on(measure(&job))?;
        let at = |share: usize| measured.claims[(measured.claims.len() - 1) * share / 100].as_micros();
        let text = format!(
            "{{\"items\":{size},\"load_per_s\":{load:.0},\"claim_us\":{},\"claim_us_99\":{},\"claimed_per_s\":{:.0},\
             \"ended_per_s\":{:.0},\"lanes_us\":{},\"wake_us\":{}}}\n",
            at(50),
            at(99),
            measured.items as f64 / measured.claims.iter().sum::<Duration>().as_secs_f64(),
            measured.items as f64 / measured.took.as_secs_f64(),
            measured.lanes.as_micros(),
            measured.wake.as_micros(),
        );
        std::io::stdout().write_all(text.as_bytes())?;
    }
    runtime.block_on(job.close())?;
    Ok(())
}

fn import(job: &Job, line: &mut u64, to: u64, lanes: u64) -> Result<(), QueueError> {
    let keys: Vec<Arc<str>> = (0..lanes).map(|n| format!("https://host{n}.example.org").into()).collect();
    while *line < to {
        let end = (*line + BATCH).min(to);
        let items = (*line..end).map(|n| {
            let lane = n % lanes;
            let url = format!("https://host{lane}.example.org/catalogue/page/{n}?ref=list");
            let lane = Arc::clone(&keys[usize::try_from(lane).unwrap_or(0)]);
            NewItem { seq: Seq(n + 1), id: None, lane, request: Request::get(url), not_before: None }
        });
        let position = InputPosition { offset: end * 60, line: end };
        job.import(Batch { items: items.collect(), position, ..Batch::default() })?;
        *line = end;
    }
    Ok(())
}

struct Measured {
    claims: Vec<Duration>,
    items: usize,
    /// From the first claim until the last end was durable.
    took: Duration,
    /// A page of all lanes.
    lanes: Duration,
    /// A page of parked items whose time has come, until they are pending and that is durable.
    wake: Duration,
}

async fn measure(job: &Job) -> Result<Measured, QueueError> {
    let began = Instant::now();
    let lanes = job.ready_lanes(None, 512).await?;
    let listed = began.elapsed();
    let (mut claims, mut items) = (Vec::with_capacity(CLAIMS), 0);
    let began = Instant::now();
    for lane in lanes.iter().cycle().take(CLAIMS) {
        let asked = Instant::now();
        let claimed = job.claim(lane.id, CLAIM).await?;
        claims.push(asked.elapsed());
        items += claimed.len();
        for item in claimed {
            let record = format!(r#"{{"id":{},"outcome":"done","pad":"{:200}"}}"#, item.lease.seq().0, "");
            let (lease, counters) = (item.lease, item.counters);
            job.finish(Finish { lease, ending: Ending::Done, record: record.into(), body: None, counters })
                .await?;
        }
    }
    job.flush().await?;
    let took = began.elapsed();
    claims.sort_unstable();
    Ok(Measured { claims, items, took, lanes: listed, wake: wake(job, &lanes).await? })
}

/// Parks items and wakes them: the mean of a page.
async fn wake(job: &Job, lanes: &[Lane]) -> Result<Duration, QueueError> {
    let due = Timestamp::from_secs(1);
    let mut parked = 0;
    for lane in lanes.iter().cycle().take(PARKED.div_ceil(CLAIM)) {
        for item in job.claim(lane.id, CLAIM).await? {
            job.park(item.lease, Until::Time(due), "told", item.counters)?;
            parked += 1;
        }
    }
    job.flush().await?;
    let (began, mut pages, mut woken) = (Instant::now(), 0, 0);
    while woken < parked {
        let page = job.wake_due(due, WAKE).await?.items;
        assert!(page > 0, "{woken} of {parked} woken");
        (pages, woken) = (pages + 1, woken + page);
    }
    Ok(began.elapsed() / pages)
}
