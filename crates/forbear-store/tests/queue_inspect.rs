//! Looking at a job while it runs and after, and trying failed items again (J2).

mod queue_support;

use std::{fs, time::Duration};

use forbear_store::queue::{
    inspect::{JobFile, Retry, retry, unpark},
    *,
};
use queue_support::*;

async fn claim(job: &Job, max: usize) -> Vec<Item> {
    let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
    job.claim(lane, max).await.expect("claimed")
}

#[test]
fn j2_leases_are_shown_though_nothing_else_is_written() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        job.import(lines(1, 3, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let items = claim(&job, 2).await;
        let file = JobFile::open(place.job()).expect("opens");
        let leased = async |wanted| {
            while file.summary().expect("readable").counts.leased != wanted {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let soon = Duration::from_secs(20);
        tokio::time::timeout(soon, leased(2)).await.expect("shown");
        for item in items {
            job.release(item).expect("released");
        }
        tokio::time::timeout(soon, leased(0)).await.expect("taken away");
        job.close().await.expect("closed");
    });
}

#[test]
fn j4_nothing_is_put_back_into_a_file_while_a_run_holds_it() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        for refused in [
            retry(place.job(), Retry::Failed),
            retry(place.job(), Retry::FailedAndUnknown),
            unpark(place.job()),
        ] {
            assert!(matches!(refused, Err(QueueError::InUse { .. })), "{refused:?}");
        }
        job.close().await.expect("closed");
    });
}

#[test]
fn j2_looking_at_nothing_makes_nothing() {
    block_on(async {
        let place = Place::new().await;
        assert!(matches!(JobFile::open(place.job()), Err(QueueError::NoSuchJob { .. })));
        assert!(matches!(retry(place.job(), Retry::Failed), Err(QueueError::NoSuchJob { .. })));
        assert_eq!(fs::read_dir(place.dir.path()).expect("readable").count(), 0);
    });
}
