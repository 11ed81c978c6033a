//! What PostgreSQL does for each statement of a job, as it grows: no work on items reads a table from end to end (J3).

#[path = "queue_support/postgres.rs"]
mod postgres;
mod queue_support;

use std::{fmt::Write as _, sync::Arc};

use forbear_store::queue::{
    inspect::{JobFile, Retry, Which, retry},
    *,
};
use postgres::{PgPlace, TestPostgres};
use queue_support::*;

const ITEMS: u64 = 100_000;
/// No multiple of five, so that each lane has items that wait for no time.
const LANES: u64 = 41;
/// Tables that are as large as the job, or as what is left of it. `leased` is none: it has what is in hand, and whoever joins or
/// leaves looks it through.
const LARGE: [&str; 5] = ["items", "waiting", "parked", "progress", "ended"];

/// A server that writes the plan of each statement into its log.
fn explaining() -> TestPostgres {
    TestPostgres::start_with(&[
        "-csession_preload_libraries=auto_explain",
        "-cauto_explain.log_min_duration=0",
        "-cauto_explain.log_analyze=on",
        "-cauto_explain.log_timing=off",
        "-cfsync=off",
    ])
}

#[test]
fn j3_no_statement_on_items_reads_a_table_from_end_to_end() {
    block_on(async {
        let place = PgPlace {
            server: explaining(),
            dir: tempfile::tempdir().expect("a directory"),
            events: Arc::default(),
        };
        let job = place.open().await;
        import(&job).await;
        work(&job).await;
        let file = JobFile::open(place.job()).expect("opens");
        for which in [Which::All, Which::Pending, Which::Parked, Which::Leased, Which::Done, Which::Failed] {
            assert!(!file.list(which, Seq(100), 50).expect("listed").is_empty(), "{which:?}");
        }
        retry(place.job(), Retry::FailedAndUnknown).expect("put back");
        job.close().await.expect("closed");
        // A record that a dead process left behind, and that somebody else has: looked up by its id.
        let mut out = std::fs::read_to_string(place.out("out.jsonl")).expect("read");
        writeln!(out, "{}", record(3, Some("id-3"), "done")).expect("written");
        std::fs::write(place.out("out.jsonl"), out).expect("written");
        place.open().await.close().await.expect("closed");

        let log = place.server.said();
        let plans = plans(&log);
        for (what, part) in [
            ("claim", "DELETE FROM waiting WHERE ctid = ANY"),
            ("page of lanes", "WITH RECURSIVE ready"),
            ("wake", "kind = 0 AND due <="),
            ("new credentials", "kind = 2 AND account ="),
            ("end", "INSERT INTO ended(seq, ending, output, place, length)"),
            ("park", "INSERT INTO parked"),
            ("release", "WITH back AS (DELETE FROM leased WHERE seq = ANY"),
            ("list", "FROM items i"),
            ("retry", "WITH page AS"),
            ("recovery", "id = ANY($2)"),
        ] {
            assert!(plans.iter().any(|plan| plan.contains(part)), "no plan was seen for {what}");
        }
        for taking in ["DELETE FROM waiting WHERE ctid = ANY", "kind = 0 AND due <="] {
            for plan in plans.iter().filter(|plan| plan.contains(taking)) {
                let most = plan.lines().filter_map(rows).max().unwrap_or(0);
                assert!(most <= 500, "more is read than taken: {plan}");
            }
        }
        for plan in &plans {
            for table in LARGE {
                let scan = format!("Seq Scan on {table}");
                let whole = plan.lines().any(|line| {
                    line.split(" (cost").next().is_some_and(|step| {
                        step.split(&scan)
                            .nth(1)
                            .is_some_and(|rest| !rest.starts_with(|c: char| c == '_' || c.is_alphanumeric()))
                    })
                });
                assert!(!whole, "{plan}");
            }
        }
    });
}

async fn import(job: &Job) {
    for first in (1..=ITEMS).step_by(4000) {
        let items = (first..(first + 4000).min(ITEMS + 1)).map(|line| NewItem {
            id: (line % 2 == 1).then(|| format!("id-{line}")),
            not_before: (line % 5 == 0).then(|| at(line)),
            ..item(line, &format!("h{}", line % LANES))
        });
        job.import(batch(items.collect())).expect("imported");
    }
    job.flush().await.expect("flushed");
}

/// Everything that a run does with items.
async fn work(job: &Job) {
    let lanes = job.ready_lanes(None, 100).await.expect("lanes");
    assert_eq!(lanes.len() as u64, LANES);
    job.lane(lanes[0].id).await.expect("asked").expect("there");
    for lane in &lanes {
        let items = job.claim(lane.id, 200).await.expect("claimed");
        assert_eq!(items.len(), 200);
        for item in items {
            match item.lease.seq().0 % 7 {
                0 => job.release(item).expect("released"),
                1 => {
                    let account = Until::Credentials("shop".into());
                    job.park(item.lease, account, "401", item.counters).expect("parked");
                }
                2 => job.park(item.lease, Until::NextRun, "often", item.counters).expect("parked"),
                3 => job.finish(end(&item, Ending::Failed)).await.expect("finished"),
                4 => job.finish(end(&item, Ending::Unknown)).await.expect("finished"),
                5 => drop(item),
                _ => job.finish(end(&item, Ending::Done)).await.expect("finished"),
            }
        }
    }
    job.flush().await.expect("flushed");
    assert!(job.wake_due(at(ITEMS / 2), 500).await.expect("woken").items == 500);
    assert!(job.credentials_changed("shop").await.expect("woken") > 0);
}

/// How many rows a step of a plan gave, all its loops together.
fn rows(step: &str) -> Option<u64> {
    let (_, actual) = step.split_once("(actual rows=")?;
    let (rows, loops) = actual.split_once(" loops=")?;
    let loops = loops.split(')').next()?;
    Some(rows.parse::<u64>().ok()? * loops.parse::<u64>().ok()?)
}

/// The plans in a server's log.
fn plans(log: &str) -> Vec<String> {
    let mut plans = Vec::new();
    let mut plan: Option<String> = None;
    for line in log.lines() {
        if line.contains("LOG:  duration: ") && line.ends_with("plan:") {
            plans.extend(plan.replace(String::new()));
        } else if let (Some(plan), true) = (&mut plan, line.starts_with('\t')) {
            plan.push_str(line);
            plan.push('\n');
        } else {
            plans.extend(plan.take());
        }
    }
    plans.extend(plan);
    plans
}
