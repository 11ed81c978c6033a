//! Looking at a job while it runs and after, and trying failed items again (J2).

mod queue_support;

use std::{fs, time::Duration};

use forbear_store::queue::{
    inspect::{JobFile, Retry, Running, State, Which, retry},
    *,
};
use queue_support::*;

async fn claim(job: &Job, max: usize) -> Vec<Item> {
    let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
    job.claim(lane, max).await.expect("claimed")
}

#[test]
fn j2_five_states_are_seen_while_it_runs() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        let bad = BadLine { seq: Seq(8), record: record(8, None, "failed").into() };
        let input =
            InputIdentity { path: "urls.txt".into(), size: 80, modified_us: 1, head_len: 80, head_hash: 7 };
        job.set_input(input.clone()).expect("set");
        job.import(Batch { bad: vec![bad], end: InputEnd::Reached, ..lines(1, 7, "h") }).expect("imported");
        job.flush().await.expect("flushed");
        let items = claim(&job, 6).await;
        job.finish(end(&items[0], Ending::Done)).await.expect("finished");
        job.finish(Finish {
            counters: Counters { attempts: 5, error: Some("reset".into()), ..Counters::default() },
            ..end(&items[1], Ending::Failed)
        })
        .await
        .expect("finished");
        job.park(items[2].lease, Until::Time(at(90)), "told 90 s", Counters::default()).expect("parked");
        job.park(items[3].lease, Until::Credentials("shop".into()), "401", Counters::default())
            .expect("parked");
        job.park(items[4].lease, Until::NextRun, "refused 4 times", Counters::default()).expect("parked");
        job.flush().await.expect("flushed");

        let file = JobFile::open(place.job()).expect("opens beside the run");
        let s = file.summary().expect("readable");
        let c = s.counts;
        assert_eq!((c.pending, c.parked, c.leased, c.done, c.failed, c.imported), (1, 3, 1, 1, 2, 8));
        assert_eq!(c, job.counts());
        assert_eq!(s.running, Running::By(Some(std::process::id())));
        assert_eq!((s.next_due, s.next_run, s.accounts), (Some(at(90)), 1, vec![("shop".to_owned(), 1)]));
        assert_eq!((s.output.as_str(), s.input, s.runs), ("out.jsonl", Some(input), 1));

        let listed = |which| file.list(which, Seq(0), 100).expect("readable");
        let numbers = |which| listed(which).iter().map(|i| i.seq.0).collect::<Vec<_>>();
        assert_eq!(numbers(Which::All), [1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(numbers(Which::Pending), [7]);
        assert_eq!(numbers(Which::Parked), [3, 4, 5]);
        assert_eq!(numbers(Which::Leased), [6]);
        assert_eq!(numbers(Which::Done), [1]);
        assert_eq!(numbers(Which::Failed), [2, 8]);
        assert_eq!(listed(Which::Parked)[0].state, State::Parked(Until::Time(at(90)), "told 90 s".into()));
        let failed = &listed(Which::Failed)[0];
        assert_eq!((failed.counters.attempts, failed.counters.error.as_deref()), (5, Some("reset")));
        assert!(listed(Which::Failed)[1].request.is_none(), "a bad line asks for nothing");
        let State::Ended(Ending::Done, Some((offset, length))) = listed(Which::Done)[0].state else {
            panic!("not done")
        };
        let text = fs::read(place.out()).expect("readable");
        let own = &text[offset as usize..(offset + length) as usize];
        assert_eq!(own, (record(1, None, "done") + "\n").as_bytes(), "where its record lies");
        let page = file.list(Which::All, Seq(3), 2).expect("readable");
        assert_eq!(page.iter().map(|i| i.seq.0).collect::<Vec<_>>(), [4, 5]);
        let lanes = file.lanes(None, 10).expect("readable");
        assert_eq!((lanes[0].key.as_str(), lanes[0].pending, lanes[0].parked), ("h", 2, 3));
        assert_eq!((lanes[0].done, lanes[0].failed), (1, 1));

        job.close().await.expect("closed");
        let after = JobFile::open(place.job()).expect("opens").summary().expect("readable");
        assert_eq!((after.running, after.counts.leased, after.counts.pending), (Running::No, 0, 2));
    });
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
fn j2_failed_items_can_be_done_in_a_later_run() {
    for (what, again) in [(Retry::Failed, vec![2]), (Retry::FailedAndUnknown, vec![2, 3])] {
        block_on(async {
            let place = Place::new().await;
            let job = place.open().await;
            let bad = BadLine { seq: Seq(4), record: record(4, None, "failed").into() };
            job.import(Batch { bad: vec![bad], end: InputEnd::Reached, ..lines(1, 3, "h") })
                .expect("imported");
            job.flush().await.expect("flushed");
            for (item, ending) in
                claim(&job, 9).await.iter().zip([Ending::Done, Ending::Failed, Ending::Unknown])
            {
                let counters = Counters { attempts: 5, ..Counters::default() };
                job.finish(Finish { counters, ..end(item, ending) }).await.expect("finished");
            }
            let refused = retry(place.job(), what).expect_err("a run holds it");
            assert!(matches!(refused, QueueError::InUse { .. }), "{refused:?}");
            job.close().await.expect("closed");

            assert_eq!(retry(place.job(), what).expect("retried"), again.len() as u64);
            assert_eq!(retry(place.job(), what).expect("asked"), 0);
            assert!(JobFile::open(place.job()).expect("opens").is_consistent().expect("readable"));
            let job = place.open().await;
            let items = claim(&job, 9).await;
            assert_eq!(seqs(&items), again);
            assert_eq!(items[0].counters.attempts, 0, "all attempts are there again");
            for item in &items {
                job.finish(end(item, Ending::Done)).await.expect("finished");
            }
            let counts = job.close().await.expect("closed");
            assert_eq!((counts.done, counts.open()), (1 + again.len() as u64, 0));
            let done = place.records().await.iter().filter(|r| r.contains("done")).count();
            assert_eq!(done, 1 + again.len());
        });
    }
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

#[test]
fn p8_gates_can_be_seen_from_outside() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        let gate = GateRecord { key: "http://h".into(), version: 1, record: vec![1], until: Some(at(7)) };
        job.save_gate(gate.clone()).expect("saved");
        job.flush().await.expect("flushed");
        assert_eq!(JobFile::open(place.job()).expect("opens").gates("", 9).expect("readable"), [gate]);
        job.close().await.expect("closed");
    });
}
