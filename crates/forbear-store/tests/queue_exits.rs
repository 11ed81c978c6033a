//! What went through each exit stays with the job, over all its runs.

mod queue_support;

use std::sync::Arc;

use forbear_store::queue::{inspect::JobFile, *};
use queue_support::*;

fn row(name: &str, requests: u64, cost: Option<f64>) -> ExitRow {
    ExitRow { requests, done: requests / 2, bytes: requests * 1000, cost, ..ExitRow::new(name, "ok") }
}

fn kept(place: &Place) -> Vec<ExitRow> {
    JobFile::open(place.job()).expect("opens").exits().expect("readable")
}

#[test]
fn e2_a_price_that_came_later_or_went_leaves_the_sum_of_what_was_known() {
    block_on(async {
        let place = Place::new().await;
        for (cost, sum) in [(None, None), (Some(1.5), Some(1.5)), (None, Some(1.5)), (Some(0.5), Some(2.0))] {
            let job = place.open().await;
            job.save_exits(vec![row("http://a:1", 2, cost)]).expect("saved");
            job.close().await.expect("closed");
            assert_eq!(kept(&place)[0].cost, sum);
        }
    });
}

#[test]
fn j4_a_job_from_before_there_were_exits_opens_and_gets_them() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        job.import(lines(1, 3, "h")).expect("imported");
        job.close().await.expect("closed");
        // A run without exits writes what was written before there were any.
        let db = rusqlite::Connection::open(place.job()).expect("opens");
        let tables = |db: &rusqlite::Connection| -> i64 {
            db.query_row("SELECT count(*) FROM sqlite_schema WHERE name = 'exits'", [], |row| row.get(0))
                .expect("asked")
        };
        assert_eq!(tables(&db), 0);
        drop(db);
        assert_eq!(kept(&place), []);

        let job = place.open().await;
        job.save_exits(vec![row("http://a:1", 4, None)]).expect("saved");
        job.close().await.expect("closed");
        assert_eq!(kept(&place), [row("http://a:1", 4, None)]);
    });
}

#[test]
fn j4_what_a_later_version_adds_is_read_past() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        job.save_exits(vec![row("http://a:1", 4, None)]).expect("saved");
        job.close().await.expect("closed");
        let db = rusqlite::Connection::open(place.job()).expect("opens");
        db.execute_batch(
            "ALTER TABLE exits ADD COLUMN region TEXT;
             UPDATE exits SET state = 'napping', region = 'moon', faults = -1;",
        )
        .expect("changed");
        drop(db);
        let job = place.open().await;
        job.save_exits(vec![row("http://b:1", 9, None)]).expect("saved");
        job.close().await.expect("closed");
        let later = ExitRow { state: "napping".into(), ..row("http://a:1", 4, None) };
        assert_eq!(kept(&place), [row("http://b:1", 9, None), later]);
    });
}

#[test]
fn c4_a_job_keeps_a_hundred_thousand_exits_and_no_more() {
    block_on(async {
        let place = Place::new().await;
        let many = |from: u32, to: u32| (from..to).map(|n| row(&format!("http://{n}:1"), 1, None)).collect();
        let job = place.open().await;
        job.save_exits(many(0, 70_000)).expect("saved");
        job.close().await.expect("closed");
        let job = place.open().await;
        job.save_exits(many(30_000, 130_000)).expect("saved");
        job.save_exits(vec![row("http://one-more:1", 9, None)]).expect("saved");
        job.close().await.expect("closed");
        let rows = kept(&place);
        assert_eq!(rows.len(), 100_000);
        let twice = rows.iter().filter(|row| row.requests == 2).count();
        assert_eq!(twice, 40_000, "those that are known go on being counted");
    });
}

#[test]
fn e2_what_was_saved_is_there_though_the_run_never_closed() {
    block_on(async {
        let place = Place::new().await;
        let job = Arc::new(place.open().await);
        job.save_exits(vec![row("http://a:1", 4, Some(1.0))]).expect("saved");
        job.flush().await.expect("flushed");
        // What a kill leaves: the files as they are at this moment.
        let after = Place::new().await;
        for end in ["", "-wal"] {
            let name = format!("a.job{end}");
            std::fs::copy(place.dir.path().join(&name), after.dir.path().join(&name)).expect("copied");
        }
        std::fs::write(after.out(), "").expect("made");
        assert_eq!(kept(&after), [row("http://a:1", 4, Some(1.0))]);
        let again = after.open().await;
        again.save_exits(vec![row("http://a:1", 2, Some(0.5))]).expect("saved");
        again.close().await.expect("closed");
        assert_eq!(kept(&after), [row("http://a:1", 6, Some(1.5))]);
        job.close().await.expect("closed");
    });
}
