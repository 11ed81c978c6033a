//! The suite that every queue must pass.

/// The same tests for each queue. `$place` has `new().await`, `open(&self).await`, `records(&self).await` and `job(&self)`.
macro_rules! queue_conformance {
    ($place:ty) => {
        mod conformance {
            use super::*;
            use $crate::queue_support::*;

            async fn with(batches: Vec<Batch>) -> ($place, Job) {
                let place = <$place>::new().await;
                let job = place.open().await;
                for batch in batches {
                    job.import(batch).expect("imported");
                }
                job.flush().await.expect("flushed");
                (place, job)
            }

            async fn claim_all(job: &Job) -> Vec<Item> {
                let mut all = Vec::new();
                for lane in job.ready_lanes(None, 1000).await.expect("lanes") {
                    all.extend(job.claim(lane.id, 1000).await.expect("claimed"));
                }
                all
            }

            fn sum(c: &Counts) -> u64 {
                c.pending + c.parked + c.leased + c.done + c.failed + c.unknown
            }

            #[test]
            fn j1_each_item_ends_once_and_its_record_is_durable() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 5, "h")]).await;
                    let items = claim_all(&job).await;
                    assert_eq!(seqs(&items), [1, 2, 3, 4, 5]);
                    assert!(claim_all(&job).await.is_empty(), "all are out");
                    for item in &items {
                        job.finish(end(item, Ending::Done)).await.expect("finished");
                    }
                    job.flush().await.expect("flushed");
                    assert_eq!(place.records().await.len(), 5);
                    assert!(claim_all(&job).await.is_empty());
                    let counts = job.close().await.expect("closed");
                    assert_eq!((counts.done, counts.open()), (5, 0));
                    let job = place.open().await;
                    assert!(claim_all(&job).await.is_empty());
                    assert_eq!(job.counts().done, 5);
                });
            }

            #[test]
            fn j1_a_lease_is_good_once() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 3, "h")]).await;
                    let items = claim_all(&job).await;
                    job.finish(end(&items[0], Ending::Done)).await.expect("finished");
                    let again = job.finish(end(&items[0], Ending::Done)).await;
                    assert!(matches!(again, Err(QueueError::StaleLease)), "{again:?}");
                    job.park(items[1].lease, Until::Time(at(9)), "told", Counters::default())
                        .expect("parked");
                    let again = job.park(items[1].lease, Until::NextRun, "told", Counters::default());
                    assert!(matches!(again, Err(QueueError::StaleLease)), "{again:?}");
                    job.release(items[2].clone()).expect("released");
                    let again = job.finish(end(&items[2], Ending::Done)).await;
                    assert!(matches!(again, Err(QueueError::StaleLease)), "{again:?}");
                    job.close().await.expect("closed");
                    assert_eq!(place.records().await.len(), 1);
                });
            }

            #[test]
            fn j1_an_answer_of_an_older_run_is_refused() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 1, "h")]).await;
                    let old = claim_all(&job).await;
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    let new = claim_all(&job).await;
                    assert_eq!(seqs(&new), [1], "what was leased is pending again");
                    let late = job.finish(end(&old[0], Ending::Done)).await;
                    assert!(matches!(late, Err(QueueError::StaleLease)), "{late:?}");
                    job.finish(end(&new[0], Ending::Done)).await.expect("finished");
                    job.close().await.expect("closed");
                    assert_eq!(place.records().await.len(), 1);
                });
            }

            #[test]
            fn j2_all_endings_are_counted_and_none_comes_back() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 3, "h")]).await;
                    for (item, ending) in
                        claim_all(&job).await.iter().zip([Ending::Done, Ending::Failed, Ending::Unknown])
                    {
                        job.finish(end(item, ending)).await.expect("finished");
                    }
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    let c = job.counts();
                    assert_eq!((c.done, c.failed, c.unknown, c.open()), (1, 1, 1, 0));
                    assert!(claim_all(&job).await.is_empty());
                });
            }

            #[test]
            fn t2_a_parked_item_never_starts_before_its_time() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 2, "h")]).await;
                    for item in claim_all(&job).await {
                        let due = at(100 * item.lease.seq().0);
                        job.park(item.lease, Until::Time(due), "told", item.counters).expect("parked");
                    }
                    assert_eq!(job.next_due(), Some(at(100)), "known before it is durable");
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert_eq!((job.next_due(), job.counts().parked), (Some(at(100)), 2));
                    let early = job.wake_due(Timestamp::from_micros(99_999_999), 10).await.expect("asked");
                    assert_eq!(early.items, 0);
                    assert!(claim_all(&job).await.is_empty());
                    let due = job.wake_due(at(100), 10).await.expect("asked");
                    assert_eq!((due.items, due.lanes.len()), (1, 1));
                    let lane = job.lane(due.lanes[0]).await.expect("asked").expect("known");
                    assert_eq!((&*lane.key, lane.pending), ("h", 1));
                    assert_eq!(job.next_due(), Some(at(200)));
                    assert_eq!(seqs(&claim_all(&job).await), [1]);
                    assert_eq!(job.wake_due(Timestamp::MAX, 10).await.expect("asked").items, 1);
                    assert_eq!(job.next_due(), None);
                });
            }

            #[test]
            fn t1_a_far_deadline_saturates() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 1, "h")]).await;
                    let item = claim_all(&job).await.remove(0);
                    job.park(item.lease, Until::Time(Timestamp::MAX), "told", item.counters).expect("parked");
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert_eq!(job.wake_due(at(u32::MAX.into()), 10).await.expect("asked").items, 0);
                    assert!(job.next_due().is_some_and(|due| due > at(u32::MAX.into())));
                });
            }

            #[test]
            fn j2_parked_until_the_next_run() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 1, "h")]).await;
                    let item = claim_all(&job).await.remove(0);
                    job.park(item.lease, Until::NextRun, "refused often", item.counters).expect("parked");
                    assert_eq!(job.wake_due(Timestamp::MAX, 10).await.expect("asked").items, 0);
                    assert!(claim_all(&job).await.is_empty());
                    assert_eq!(job.counts().parked, 1);
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert_eq!(seqs(&claim_all(&job).await), [1]);
                });
            }

            #[test]
            fn j2_parked_until_new_credentials() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 2, "h")]).await;
                    for (item, account) in claim_all(&job).await.into_iter().zip(["one", "two"]) {
                        job.park(item.lease, Until::Credentials(account.into()), "401", item.counters)
                            .expect("parked");
                    }
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert!(claim_all(&job).await.is_empty(), "the next run alone is no new credential");
                    assert_eq!(job.credentials_changed("two").await.expect("asked"), 1);
                    assert_eq!(seqs(&claim_all(&job).await), [2]);
                    assert_eq!(job.counts().parked, 1);
                });
            }

            #[test]
            fn j2_counters_survive_and_refusals_begin_again_each_run() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 2, "h")]).await;
                    let counters = Counters {
                        attempts: 3,
                        refusals: 2,
                        limited: 7,
                        waited: std::time::Duration::from_millis(1500),
                        started_at: Some(at(77)),
                        error: Some("reset".into()),
                    };
                    let mut items = claim_all(&job).await;
                    let mut second = items.remove(1);
                    second.counters = counters.clone();
                    job.release(second).expect("released");
                    job.park(items[0].lease, Until::Time(at(5)), "told", counters.clone()).expect("parked");
                    let seen = claim_all(&job).await;
                    assert_eq!((seqs(&seen), &seen[0].counters), (vec![2], &counters));
                    job.wake_due(at(5), 10).await.expect("asked");
                    assert_eq!(claim_all(&job).await[0].counters, counters, "same run");
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    let items = claim_all(&job).await;
                    assert_eq!(items.len(), 2);
                    for item in items {
                        assert_eq!(item.counters, Counters { refusals: 0, ..counters.clone() });
                    }
                });
            }

            #[test]
            fn j3_the_position_is_part_of_the_state_and_no_line_comes_twice() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 4, "h")]).await;
                    assert_eq!(job.position(), InputPosition { offset: 40, line: 4 });
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert_eq!(job.position(), InputPosition { offset: 40, line: 4 });
                    assert_eq!(job.counts().input, InputEnd::More);
                    job.import(Batch { end: InputEnd::Reached, ..lines(3, 6, "h") }).expect("imported");
                    job.flush().await.expect("flushed");
                    assert_eq!((job.counts().imported, job.counts().input), (6, InputEnd::Reached));
                    assert_eq!(seqs(&claim_all(&job).await), [1, 2, 3, 4, 5, 6]);
                });
            }

            #[test]
            fn j3_lanes_come_by_the_page_and_only_those_with_work() {
                block_on(async {
                    let all = (1..=10).map(|line| item(line, &format!("h{line}"))).collect();
                    let (_place, job) = with(vec![batch(all)]).await;
                    let first = job.ready_lanes(None, 4).await.expect("lanes");
                    assert_eq!(first.len(), 4);
                    let rest = job.ready_lanes(Some(first[3].id), 100).await.expect("lanes");
                    assert_eq!(rest.len(), 6);
                    assert_eq!((&*first[0].key, first[0].pending), ("h1", 1));
                    let out = job.claim(first[0].id, 10).await.expect("claimed");
                    let done = job.claim(first[1].id, 10).await.expect("claimed");
                    job.finish(end(&done[0], Ending::Done)).await.expect("finished");
                    job.flush().await.expect("flushed");
                    let keys: Vec<_> =
                        job.ready_lanes(None, 100).await.expect("lanes").into_iter().map(|l| l.key).collect();
                    assert_eq!(keys.len(), 8, "one is out, one done: {keys:?}");
                    job.release(out.into_iter().next().expect("one")).expect("released");
                    assert_eq!(job.ready_lanes(None, 100).await.expect("lanes").len(), 9);
                });
            }

            #[test]
            fn j3_higher_priority_goes_first_also_if_it_comes_later() {
                block_on(async {
                    let with_priority = |line, priority| {
                        let mut item = item(line, "h");
                        item.request.priority = priority;
                        item
                    };
                    let (_place, job) = with(vec![batch(vec![
                        with_priority(1, 0),
                        with_priority(2, 5),
                        with_priority(3, -5),
                    ])])
                    .await;
                    let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
                    assert_eq!(seqs(&job.claim(lane, 1).await.expect("claimed")), [2]);
                    job.import(batch(vec![with_priority(4, 5), with_priority(5, 9)])).expect("imported");
                    job.flush().await.expect("flushed");
                    assert_eq!(seqs(&job.claim(lane, 9).await.expect("claimed")), [5, 4, 1, 3]);
                });
            }

            #[test]
            fn j2_an_item_with_a_not_before_begins_parked() {
                block_on(async {
                    let late = NewItem { not_before: Some(at(50)), ..item(1, "h") };
                    let (_place, job) = with(vec![batch(vec![late, item(2, "h")])]).await;
                    assert_eq!((job.counts().parked, job.next_due()), (1, Some(at(50))));
                    assert_eq!(seqs(&claim_all(&job).await), [2]);
                    assert_eq!(job.wake_due(at(50), 9).await.expect("asked").items, 1);
                    assert_eq!(seqs(&claim_all(&job).await), [1], "though the lane was read past it");
                });
            }

            #[test]
            fn j5_every_line_is_somewhere_at_every_moment() {
                block_on(async {
                    let bad = BadLine { seq: Seq(3), record: record(3, None, "failed").into() };
                    let mixed =
                        Batch { bad: vec![bad], ..batch(vec![item(1, "h"), item(2, "g"), item(4, "h")]) };
                    let (place, job) = with(vec![mixed]).await;
                    assert_eq!(sum(&job.counts()), 4);
                    assert_eq!(place.records().await, [record(3, None, "failed")]);
                    let items = claim_all(&job).await;
                    assert_eq!(sum(&job.counts()), 4);
                    job.finish(end(&items[0], Ending::Failed)).await.expect("finished");
                    assert_eq!(sum(&job.counts()), 4);
                    job.park(items[1].lease, Until::NextRun, "x", Counters::default()).expect("parked");
                    job.release(items[2].clone()).expect("released");
                    assert_eq!(sum(&job.counts()), 4);
                    let counts = job.close().await.expect("closed");
                    assert_eq!((sum(&counts), counts.imported, counts.failed), (4, 4, 2));
                });
            }

            #[test]
            fn j1_the_whole_request_survives() {
                block_on(async {
                    let request = Request {
                        method: Some("POST".into()),
                        headers: vec![("X-A".into(), "1".into()), ("x-a".into(), "2".into())],
                        body: Some(vec![0, 10, 255]),
                        account: Some("shop".into()),
                        endpoint: Some("search".into()),
                        cost: Some(12),
                        priority: 2,
                        idempotent: Some(true),
                        ..Request::get("http://h/1")
                    };
                    let given =
                        NewItem { id: Some("first".into()), request: request.clone(), ..item(1, "h") };
                    let (place, job) = with(vec![batch(vec![given])]).await;
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    let items = claim_all(&job).await;
                    assert_eq!((items[0].id.as_deref(), &items[0].request), (Some("first"), &request));
                });
            }

            #[test]
            fn p8_gates_are_found_again() {
                block_on(async {
                    let gate = |key: &str, byte| GateRecord {
                        key: key.into(),
                        version: 3,
                        record: vec![byte; 4],
                        until: Some(at(9)),
                    };
                    let (place, job) = with(vec![]).await;
                    job.save_gate(gate("http://a", 1)).expect("saved");
                    job.save_gate(gate("http://a", 2)).expect("saved");
                    job.save_gate_soon(gate("http://b", 3)).expect("saved");
                    job.save_gate(gate("http://c", 4)).expect("saved");
                    job.delete_gate("http://c").expect("deleted");
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    let all = [gate("http://a", 2), gate("http://b", 3)];
                    assert_eq!(job.load_gates("", 10).expect("read"), all);
                    assert_eq!(job.load_gates("http://a", 10).expect("read"), all[1..]);
                    assert_eq!(job.load_gate("http://a").expect("read").as_ref(), Some(&all[0]));
                });
            }

            #[test]
            fn j3_arrivals_wake_those_who_wait_for_work() {
                block_on(async {
                    let (_place, job) = with(vec![]).await;
                    let mut arrivals = job.arrivals();
                    job.import(lines(1, 3, "h")).expect("imported");
                    assert_eq!(*arrivals.wait_for(|n| *n > 0).await.expect("open"), 3);
                });
            }

            #[test]
            fn j1_a_record_is_one_line() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 1, "h")]).await;
                    let item = claim_all(&job).await.remove(0);
                    let broken = Finish { record: b"{}\n{}".to_vec(), ..end(&item, Ending::Done) };
                    assert!(matches!(job.finish(broken).await, Err(QueueError::NotALine)));
                    job.finish(end(&item, Ending::Done)).await.expect("the lease is still good");
                    job.close().await.expect("closed");
                    assert_eq!(place.records().await.len(), 1);
                });
            }

            #[test]
            fn j6_a_closed_queue_says_so() {
                block_on(async {
                    let (_place, job) = with(vec![lines(1, 1, "h")]).await;
                    let item = claim_all(&job).await.remove(0);
                    assert_eq!(job.close().await.expect("closed").pending, 1);
                    assert!(matches!(job.finish(end(&item, Ending::Done)).await, Err(QueueError::Closed)));
                    assert!(matches!(job.claim(item.lane, 1).await, Err(QueueError::Closed)));
                    assert!(matches!(job.import(lines(2, 2, "h")), Err(QueueError::Closed)));
                });
            }

            #[test]
            fn j1_a_lease_is_current_in_the_run_that_has_it() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 3, "h")]).await;
                    let items = claim_all(&job).await;
                    assert!(items.iter().all(|item| job.is_current(item.lease)));
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert!(!items.iter().any(|item| job.is_current(item.lease)), "of an older run");
                    let again = claim_all(&job).await;
                    assert!(again.len() == 3 && again.iter().all(|item| job.is_current(item.lease)));
                });
            }

            #[test]
            fn j3_what_a_job_is_made_from_and_its_secret_are_kept() {
                block_on(async {
                    let (place, job) = with(vec![]).await;
                    assert_eq!(job.input(), None);
                    assert!(job.may_import().expect("asked"), "nobody else reads it");
                    assert!(!job.is_fed_elsewhere());
                    job.set_input(identity()).expect("set");
                    let (key, run) = (job.account_key(), job.run());
                    assert_ne!(key, [0; 32]);
                    job.close().await.expect("closed");
                    let job = place.open().await;
                    assert_eq!((job.input(), job.account_key()), (Some(identity()), key));
                    assert!(job.run() > run, "each run has a number of its own, and the later one a greater");
                    job.close().await.expect("closed");
                });
            }

            #[test]
            fn j2_five_states_are_seen_while_it_runs() {
                block_on(async {
                    let place = <$place>::new().await;
                    let looked = JobFile::open(place.job());
                    assert!(matches!(looked, Err(QueueError::NoSuchJob { .. })));
                    let job = place.open().await;
                    let bad = BadLine { seq: Seq(9), record: record(9, None, "failed").into() };
                    job.set_input(identity()).expect("set");
                    let all = Batch { bad: vec![bad], end: InputEnd::Reached, ..lines(1, 8, "h") };
                    job.import(all).expect("imported");
                    job.flush().await.expect("flushed");
                    let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
                    let items = job.claim(lane, 7).await.expect("claimed");
                    job.finish(end(&items[0], Ending::Done)).await.expect("finished");
                    let counters =
                        Counters { attempts: 5, error: Some("reset".into()), ..Counters::default() };
                    let failed = Finish { counters, ..end(&items[1], Ending::Failed) };
                    job.finish(failed).await.expect("finished");
                    job.finish(end(&items[2], Ending::Unknown)).await.expect("finished");
                    for (item, until, reason) in [
                        (&items[3], Until::Time(at(90)), "told 90 s"),
                        (&items[4], Until::Credentials("shop".into()), "401"),
                        (&items[5], Until::NextRun, "refused 4 times"),
                    ] {
                        job.park(item.lease, until, reason, Counters::default()).expect("parked");
                    }
                    job.flush().await.expect("flushed");

                    let file = JobFile::open(place.job()).expect("opens beside the run");
                    assert!(file.is_consistent().expect("readable"));
                    let s = file.summary().expect("readable");
                    let c = s.counts;
                    let states = (c.pending, c.parked, c.leased, c.done, c.failed, c.unknown, c.imported);
                    assert_eq!(states, (1, 3, 1, 1, 2, 1, 9));
                    assert_eq!(c, job.counts());
                    assert_eq!(s.running, Running::By(Some(std::process::id())));
                    let accounts = vec![("shop".to_owned(), 1)];
                    assert_eq!((s.next_due, s.next_run, s.accounts), (Some(at(90)), 1, accounts));
                    assert_eq!((s.input, s.runs), (Some(identity()), 1));
                    assert!(s.output.ends_with("out.jsonl"), "{}", s.output);

                    let listed = |which| file.list(which, Seq(0), 100).expect("readable");
                    let numbers = |which| listed(which).iter().map(|i| i.seq.0).collect::<Vec<_>>();
                    assert_eq!(numbers(Which::All), [1, 2, 3, 4, 5, 6, 7, 8, 9]);
                    assert_eq!(numbers(Which::Pending), [8]);
                    assert_eq!(numbers(Which::Parked), [4, 5, 6]);
                    assert_eq!(numbers(Which::Leased), [7]);
                    assert_eq!(numbers(Which::Done), [1]);
                    assert_eq!(numbers(Which::Failed), [2, 3, 9]);
                    let parked = &listed(Which::Parked)[0].state;
                    assert_eq!(parked, &State::Parked(Until::Time(at(90)), "told 90 s".into()));
                    let failed = &listed(Which::Failed);
                    let counters = &failed[0].counters;
                    assert_eq!((counters.attempts, counters.error.as_deref()), (5, Some("reset")));
                    assert!(failed[2].request.is_none(), "a bad line asks for nothing");
                    let State::Ended(Ending::Done, Some((offset, length))) = listed(Which::Done)[0].state
                    else {
                        panic!("not done, or nobody knows where")
                    };
                    let text = place.records().await.join("\n") + "\n";
                    let own = &text[offset as usize..(offset + length) as usize];
                    assert_eq!(own, record(1, None, "done") + "\n", "where its record lies");
                    let page = file.list(Which::All, Seq(3), 2).expect("readable");
                    assert_eq!(page.iter().map(|i| i.seq.0).collect::<Vec<_>>(), [4, 5]);
                    let lanes = file.lanes(None, 10).expect("readable");
                    let l = &lanes[0];
                    assert_eq!((lanes.len(), l.key.as_str(), l.pending, l.parked), (1, "h", 2, 3));
                    assert_eq!((l.done, l.failed), (1, 2));
                    assert!(file.lanes(Some(lane), 10).expect("readable").is_empty());

                    job.close().await.expect("closed");
                    let after = JobFile::open(place.job()).expect("opens").summary().expect("readable");
                    assert_eq!((after.running, after.counts.leased), (Running::No, 0));
                    assert_eq!(after.counts.pending, 2);
                });
            }

            #[test]
            fn j2_failed_items_can_be_done_in_a_later_run() {
                for (what, again) in [(Retry::Failed, vec![2]), (Retry::FailedAndUnknown, vec![2, 3])] {
                    block_on(async {
                        let bad = BadLine { seq: Seq(4), record: record(4, None, "failed").into() };
                        let all = Batch { bad: vec![bad], end: InputEnd::Reached, ..lines(1, 3, "h") };
                        let (place, job) = with(vec![all]).await;
                        let endings = [Ending::Done, Ending::Failed, Ending::Unknown];
                        for (item, ending) in claim_all(&job).await.iter().zip(endings) {
                            let counters = Counters { attempts: 5, ..Counters::default() };
                            let finish = Finish { counters, ..end(item, ending) };
                            job.finish(finish).await.expect("finished");
                        }
                        job.close().await.expect("closed");

                        assert_eq!(retry(place.job(), what).expect("retried"), again.len() as u64);
                        assert_eq!(retry(place.job(), what).expect("asked"), 0);
                        assert!(
                            JobFile::open(place.job()).expect("opens").is_consistent().expect("readable")
                        );
                        let job = place.open().await;
                        let items = claim_all(&job).await;
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
            fn j2_parked_items_can_be_put_back_whatever_they_wait_for() {
                block_on(async {
                    let (place, job) = with(vec![lines(1, 4, "h")]).await;
                    let waits =
                        [Until::Time(at(u32::MAX.into())), Until::NextRun, Until::Credentials("a".into())];
                    for (item, until) in claim_all(&job).await.iter().zip(waits) {
                        job.park(item.lease, until, "told", Counters::default()).expect("parked");
                    }
                    job.close().await.expect("closed");
                    assert_eq!(unpark(place.job()).expect("put back"), 3);
                    assert_eq!(unpark(place.job()).expect("asked"), 0);
                    assert!(JobFile::open(place.job()).expect("opens").is_consistent().expect("readable"));
                    let job = place.open().await;
                    assert_eq!((job.next_due(), job.counts().parked), (None, 0));
                    assert_eq!(seqs(&claim_all(&job).await), [1, 2, 3, 4]);
                });
            }

            #[test]
            fn p8_gates_can_be_seen_from_outside() {
                block_on(async {
                    let (place, job) = with(vec![]).await;
                    let key = "http://h".into();
                    let gate = GateRecord { key, version: 1, record: vec![1], until: Some(at(7)) };
                    job.save_gate(gate.clone()).expect("saved");
                    job.flush().await.expect("flushed");
                    let file = JobFile::open(place.job()).expect("opens");
                    assert_eq!(file.gates("", 9).expect("readable"), [gate]);
                    assert_eq!(file.gates("http://h", 9).expect("readable"), []);
                    job.close().await.expect("closed");
                });
            }

            #[test]
            fn e2_what_went_through_exits_adds_up_over_runs_and_not_within_one() {
                block_on(async {
                    let row = |name: &str, requests: u64, cost: Option<f64>| ExitRow {
                        requests,
                        done: requests / 2,
                        refused: 3 * requests,
                        blocked: 4 * requests,
                        faults: 5 * requests,
                        bytes: requests << 40,
                        cost,
                        ..ExitRow::new(name, "ok")
                    };
                    let place = <$place>::new().await;
                    for run in 1..=3_u64 {
                        let job = place.open().await;
                        for told in [4, 4, 10] {
                            let rows = vec![
                                row("http://a:1", told, Some(told as f64 * 0.5)),
                                row("http://b:1", 2, None),
                            ];
                            job.save_exits(rows).expect("saved");
                            job.flush().await.expect("flushed");
                        }
                        let state = format!("state {run}");
                        let last = ExitRow { state: state.clone(), ..row("http://a:1", 10, Some(5.0)) };
                        job.save_exits(vec![last]).expect("saved");
                        job.close().await.expect("closed");
                        let sum = ExitRow { state, ..row("http://a:1", 10 * run, Some(5.0 * run as f64)) };
                        let kept = JobFile::open(place.job()).expect("opens").exits().expect("readable");
                        assert_eq!(kept, [sum, row("http://b:1", 2 * run, None)], "the busiest first");
                    }
                });
            }
        }
    };
}
pub(crate) use queue_conformance;
