//! What a run finds when the last one ended badly, or somebody has been at its files (J1, J4).

mod queue_support;

use std::{fs, os::unix::fs::PermissionsExt};

use forbear_store::queue::{inspect::JobFile, *};
use queue_support::*;

const LINES: u64 = 6;
const DONE: u64 = 4;

/// A job of six lines of which the first four are done; the last of them with the id `four`.
async fn four_of_six(place: &Place) {
    let job = place.open().await;
    let mut items: Vec<NewItem> = (1..=LINES).map(|line| item(line, "h")).collect();
    items[3].id = Some("four".into());
    items[5].id = Some("six".into());
    job.import(Batch { end: InputEnd::Reached, ..batch(items) }).expect("imported");
    job.flush().await.expect("flushed");
    let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
    for item in job.claim(lane, DONE as usize).await.expect("claimed") {
        job.finish(end(&item, Ending::Done)).await.expect("finished");
    }
    job.close().await.expect("closed");
}

async fn left(job: &Job) -> Vec<u64> {
    match job.ready_lanes(None, 1).await.expect("lanes").first() {
        Some(lane) => seqs(&job.claim(lane.id, 100).await.expect("claimed")),
        None => Vec::new(),
    }
}

/// Finishes what is left, and checks that each line has exactly one record and all tables agree.
async fn finish_and_check(place: &Place, job: Job) {
    if let Some(lane) = job.ready_lanes(None, 1).await.expect("lanes").first() {
        for item in job.claim(lane.id, 100).await.expect("claimed") {
            job.finish(end(&item, Ending::Done)).await.expect("finished");
        }
    }
    let counts = job.close().await.expect("closed");
    assert_eq!((counts.open(), counts.done + counts.failed + counts.unknown), (0, LINES));
    let mut records = place.records().await;
    records.sort();
    records.dedup();
    assert_eq!(records.len() as u64, LINES, "{records:#?}");
    assert_eq!(fs::read_to_string(place.out()).expect("read").lines().count() as u64, LINES);
    assert!(JobFile::open(place.job()).expect("opens").is_consistent().expect("read"));
}

#[test]
fn j4_a_tail_is_matched_or_cut() {
    let whole = |line, id, outcome| record(line, id, outcome) + "\n";
    // What follows the last acknowledged record; the lines that are left to do; what is said.
    let kept = |records| format!("TailKept({records})");
    let cut = |bytes| format!("TailCut({bytes})");
    let table: Vec<(&str, String, Vec<u64>, Vec<String>)> = vec![
        ("nothing", String::new(), vec![5, 6], vec![]),
        ("half a record", r#"{"id":5,"outc"#.into(), vec![5, 6], vec![cut(13)]),
        ("a whole record", whole(5, None, "done"), vec![6], vec![kept(1)]),
        ("an id in quotes is the same id", whole(0, Some("5"), "done"), vec![6], vec![kept(1)]),
        ("an id of the input's", whole(6, Some("six"), "failed"), vec![5], vec![kept(1)]),
        ("two", whole(6, Some("six"), "done") + &whole(5, None, "unknown"), vec![], vec![kept(2)]),
        ("only the newline is missing", record(5, None, "done"), vec![6], vec![kept(1)]),
        ("one and a half", whole(5, None, "done") + r#"{"id":"six""#, vec![6], vec![cut(11), kept(1)]),
        ("a half line with its newline", "{\"id\":5,\"ou\n".into(), vec![5, 6], vec![cut(12)]),
        ("zeros, as after a power cut", "\0".repeat(4096), vec![5, 6], vec![cut(4096)]),
        ("one, then zeros", whole(5, None, "done") + &"\0".repeat(100), vec![6], vec![cut(100), kept(1)]),
        ("zeros with a newline", "\0\0\0\n".into(), vec![5, 6], vec![cut(4)]),
        ("a bad line that was not imported yet", whole(7, None, "failed"), vec![5, 6], vec![cut(28)]),
        ("half a letter", "{\"id\":5,\"url\":\"\u{fc}".into(), vec![5, 6], vec![cut(17)]),
    ];
    for (name, tail, expected, said) in table {
        block_on(async {
            let place = Place::new().await;
            four_of_six(&place).await;
            let mut text = fs::read(place.out()).expect("read");
            text.extend_from_slice(tail.as_bytes());
            fs::write(place.out(), text).expect("written");
            let job = place.open().await;
            let told: Vec<String> = place
                .told()
                .into_iter()
                .map(|event| match event {
                    Event::TailKept { records, .. } => kept(records),
                    Event::TailCut { bytes, .. } => cut(bytes),
                    other => format!("{other:?}"),
                })
                .collect();
            assert_eq!(told, said, "{name}");
            assert_eq!(left(&job).await, expected, "{name}");
            job.close().await.expect("closed");
            let job = place.open().await;
            assert_eq!(place.told(), [], "{name}: said twice");
            finish_and_check(&place, job).await;
        });
    }
}

#[test]
fn j4_lines_that_are_not_ours_are_never_cut() {
    for tail in [
        "a note of the user's\n",
        "{\"id\":4,\"outcome\":\"done\"}\n",
        "{\"id\":\"other\",\"outcome\":\"done\"}\n",
    ] {
        block_on(async {
            let place = Place::new().await;
            four_of_six(&place).await;
            let before = fs::read_to_string(place.out()).expect("read") + tail;
            fs::write(place.out(), &before).expect("written");
            let refused = place.try_open().expect_err("not ours");
            assert!(matches!(refused, QueueError::OutputForeign { .. }), "{refused:?}");
            assert_eq!(fs::read_to_string(place.out()).expect("read"), before);
        });
    }
}

#[test]
fn j4_only_the_last_newline_is_missing() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        let size = fs::metadata(place.out()).expect("there").len();
        fs::File::options().write(true).open(place.out()).and_then(|f| f.set_len(size - 1)).expect("cut");
        let job = place.open().await;
        assert_eq!(place.told(), [Event::NewlineRestored { out: place.out() }]);
        assert_eq!(left(&job).await, [5, 6], "it is not done again");
        job.close().await.expect("closed");
        let job = place.open().await;
        finish_and_check(&place, job).await;
    });
}

#[test]
fn j4_a_shortened_output_means_its_items_are_done_again() {
    for (keep, again) in [(1, vec![2, 3, 4, 5, 6]), (3, vec![4, 5, 6])] {
        for extra in [0, 1, 9] {
            block_on(async {
                let place = Place::new().await;
                four_of_six(&place).await;
                let text = fs::read_to_string(place.out()).expect("read");
                let whole: usize = text.split_inclusive('\n').take(keep).map(str::len).sum();
                fs::write(place.out(), &text[..whole + extra]).expect("written");
                let job = place.open().await;
                let items = DONE - keep as u64;
                assert_eq!(place.told(), [Event::RecordsLost { out: place.out(), items }]);
                assert_eq!(left(&job).await, again);
                job.close().await.expect("closed");
                let job = place.open().await;
                finish_and_check(&place, job).await;
            });
        }
    }
}

#[test]
fn j4_a_lost_record_of_a_bad_line_is_written_again() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        let bad = BadLine { seq: Seq(2), record: record(2, None, "failed").into() };
        job.import(Batch { bad: vec![bad], ..batch(vec![item(1, "h"), item(3, "h")]) }).expect("imported");
        job.flush().await.expect("flushed");
        let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
        let items = job.claim(lane, 9).await.expect("claimed");
        job.finish(end(&items[0], Ending::Done)).await.expect("finished");
        job.close().await.expect("closed");
        // The bad line came first, the good one after it: swap, so that the lost one is the bad one.
        let text = fs::read_to_string(place.out()).expect("read");
        let first = text.split_inclusive('\n').next().expect("a line");
        assert_eq!(first, record(2, None, "failed") + "\n");
        fs::write(place.out(), first).expect("shortened");
        let job = place.open().await;
        assert_eq!(place.told(), [Event::RecordsLost { out: place.out(), items: 1 }]);
        assert_eq!(left(&job).await, [1, 3]);
        job.close().await.expect("closed");
        assert_eq!(place.records().await, [record(2, None, "failed")]);
    });
}

#[test]
fn j4_an_output_that_is_gone_or_another_is_refused_untouched() {
    for (name, now) in
        [("missing", None), ("empty", Some("")), ("another", Some("{\"id\":9,\"outcome\":\"done\"}\n"))]
    {
        for long in [1, 40] {
            block_on(async {
                let place = Place::new().await;
                four_of_six(&place).await;
                match now {
                    None => fs::remove_file(place.out()).expect("removed"),
                    Some(text) => fs::write(place.out(), text.repeat(long)).expect("written"),
                }
                let before = fs::read(place.job()).expect("read");
                let refused = place.try_open().expect_err(name);
                assert!(
                    matches!(refused, QueueError::OutputGone { .. } | QueueError::OutputReplaced { .. }),
                    "{name}: {refused:?}"
                );
                assert!(refused.to_string().contains("out.jsonl"), "{refused}");
                let after = fs::read(place.out()).unwrap_or_default();
                assert_eq!(after, now.unwrap_or_default().repeat(long).as_bytes(), "{name}");
                assert_eq!(fs::read(place.job()).expect("read"), before, "{name}");
            });
        }
    }
}

#[test]
fn j4_a_job_file_that_is_none_is_one_clear_error() {
    for (name, content, word) in [
        ("empty", vec![], "empty or missing"),
        ("zeros", vec![0; 40_960], "zeros"),
        ("text", b"http://h/1\n".repeat(900), "not a forbear job"),
    ] {
        block_on(async {
            let place = Place::new().await;
            four_of_six(&place).await;
            fs::write(place.job(), &content).expect("written");
            let before = fs::read(place.out()).expect("read");
            let refused = place.try_open().expect_err(name).to_string();
            assert!(refused.contains(word) && refused.contains("a.job"), "{name}: {refused}");
            assert_eq!(fs::read(place.out()).expect("read"), before, "{name}");
            assert_eq!(fs::read(place.job()).expect("read"), content, "{name}");
        });
    }
}

#[test]
fn j4_a_damaged_job_is_one_clear_error() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        let mut bytes = fs::read(place.job()).expect("read");
        let end = bytes.len();
        bytes[100..end].fill(0xa5);
        fs::write(place.job(), &bytes).expect("written");
        let refused = place.try_open().expect_err("damaged");
        assert!(matches!(refused, QueueError::Damaged { .. }), "{refused:?}");
    });
}

#[test]
fn j4_a_missing_job_beside_a_full_output_is_no_fresh_start() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        fs::remove_file(place.job()).expect("removed");
        let refused = place.try_open().expect_err("not fresh");
        assert!(matches!(refused, QueueError::OutputOccupied { .. }), "{refused:?}");
        assert!(!place.job().exists(), "nothing is left behind");
    });
}

#[test]
fn j4_an_empty_job_beside_an_empty_output_starts_anew_and_says_so() {
    block_on(async {
        let place = Place::new().await;
        fs::write(place.job(), "").expect("written");
        let job = place.open().await;
        assert_eq!(place.told(), [Event::StartedOverEmpty { path: place.job() }]);
        job.close().await.expect("closed");
    });
}

#[test]
fn j4_another_database_is_left_alone() {
    block_on(async {
        let place = Place::new().await;
        let db = rusqlite::Connection::open(place.job()).expect("made");
        db.execute_batch("CREATE TABLE mine(x); INSERT INTO mine VALUES(1);").expect("filled");
        drop(db);
        let before = fs::read(place.job()).expect("read");
        assert!(matches!(place.try_open(), Err(QueueError::NotAJob { .. })));
        assert_eq!(fs::read(place.job()).expect("read"), before);
    });
}

#[test]
fn j4_a_newer_format_is_refused() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        let db = rusqlite::Connection::open(place.job()).expect("opens");
        db.execute_batch("PRAGMA user_version = 99").expect("set");
        drop(db);
        assert!(matches!(place.try_open(), Err(QueueError::TooNew { version: 99, .. })));
    });
}

#[test]
fn j4_a_second_run_is_refused_and_names_the_first() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        let refused = place.try_open().expect_err("in use");
        assert!(refused.to_string().contains(&std::process::id().to_string()), "{refused}");
        job.import(lines(1, 1, "h")).expect("the first goes on");
        job.close().await.expect("closed");
        place.open().await.close().await.expect("free again");
    });
}

#[test]
fn j4_another_output_is_refused() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        for target in [OutputTarget::File(place.dir.path().join("other.jsonl")), OutputTarget::Stdout] {
            let refused = Job::open(place.job(), JobOptions::new(target), std::sync::Arc::new(|_| ()))
                .expect_err("another output");
            assert!(matches!(refused, QueueError::OtherOutput { .. }), "{refused:?}");
            assert!(refused.to_string().contains("out.jsonl"), "{refused}");
        }
        assert!(!place.dir.path().join("other.jsonl").exists());
    });
}

#[test]
fn j4_a_directory_is_no_output() {
    let place = block_on(Place::new());
    fs::create_dir(place.out()).expect("made");
    let refused = place.try_open().expect_err("a directory");
    assert!(matches!(refused, QueueError::Io { .. }), "{refused:?}");
}

#[test]
fn j4_two_jobs_cannot_share_an_output() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        let options = JobOptions::new(OutputTarget::File(place.out()));
        let refused = Job::open(place.dir.path().join("b.job"), options, std::sync::Arc::new(|_| ()))
            .expect_err("the output is taken");
        assert!(matches!(refused, QueueError::OutputInUse { .. }), "{refused:?}");
        job.close().await.expect("closed");
    });
}

#[test]
fn j2_job_and_output_can_be_moved_together() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        let there = Place::new().await;
        fs::rename(place.job(), there.job()).expect("moved");
        fs::rename(place.out(), there.out()).expect("moved");
        let job = there.open().await;
        finish_and_check(&there, job).await;
    });
}

#[test]
fn k1_the_job_is_its_owners_alone() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        job.import(lines(1, 3, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let mut seen = 0;
        for entry in fs::read_dir(place.dir.path()).expect("read") {
            let entry = entry.expect("read");
            if entry.file_name().to_string_lossy().starts_with("a.job") {
                let mode = entry.metadata().expect("there").permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{:?}", entry.file_name());
                seen += 1;
            }
        }
        assert!(seen >= 3, "job, log and index of the log");
        job.close().await.expect("closed");
        fs::set_permissions(place.job(), fs::Permissions::from_mode(0o644)).expect("set");
        place.open().await.close().await.expect("closed");
        assert_eq!(fs::metadata(place.job()).expect("there").permissions().mode() & 0o777, 0o600);
    });
}

#[test]
fn j4_a_closed_job_is_one_file() {
    block_on(async {
        let place = Place::new().await;
        four_of_six(&place).await;
        let mut names: Vec<_> = fs::read_dir(place.dir.path())
            .expect("read")
            .map(|entry| entry.expect("read").file_name().into_string().expect("a name"))
            .collect();
        names.sort();
        assert_eq!(names, ["a.job", "out.jsonl"]);
    });
}

/// A power cut may undo commits that were not synced; what they acknowledged was. Imitated by an older copy of the job.
#[test]
fn j1_acknowledgements_that_a_power_cut_undid_are_found_in_the_output() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        job.import(Batch { end: InputEnd::Reached, ..lines(1, LINES, "h") }).expect("imported");
        job.flush().await.expect("flushed");
        let copies: Vec<_> = ["a.job", "a.job-wal"]
            .map(|name| (place.dir.path().join(name), fs::read(place.dir.path().join(name)).expect("read")))
            .into();
        let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
        for item in job.claim(lane, 3).await.expect("claimed") {
            job.finish(end(&item, Ending::Done)).await.expect("finished");
            job.flush().await.expect("a group for each");
        }
        job.close().await.expect("closed");
        for (path, bytes) in copies {
            fs::write(path, bytes).expect("written");
        }
        let job = place.open().await;
        assert_eq!(place.told(), [Event::TailKept { out: place.out(), records: 3 }]);
        assert_eq!(left(&job).await, [4, 5, 6]);
        job.close().await.expect("closed");
        let job = place.open().await;
        finish_and_check(&place, job).await;
    });
}

#[test]
fn j1_a_body_file_is_in_place_before_its_record() {
    block_on(async {
        let place = Place::new().await;
        let job = place.open().await;
        job.import(lines(1, 2, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
        let items = job.claim(lane, 2).await.expect("claimed");
        let body = |line: u64| BodyFile {
            aside: place.dir.path().join(format!("{line}.part")),
            path: place.dir.path().join(format!("{line}")),
        };
        // The second body was never written: its record must not be either.
        fs::write(body(1).aside, "body").expect("written");
        for item in &items {
            let body = Some(body(item.lease.seq().0));
            job.finish(Finish { body, ..end(item, Ending::Done) }).await.expect("finished");
        }
        job.flush().await.expect("flushed");
        assert_eq!(fs::read_to_string(body(1).path).expect("there"), "body");
        assert_eq!(place.records().await, [record(1, None, "done")]);
        assert_eq!(place.told(), [Event::BodyLost { path: body(2).path }]);
        assert_eq!(left(&job).await, [2], "its item is pending again");
        job.close().await.expect("closed");
    });
}

#[test]
fn j1_a_pipe_gets_each_record_and_its_end_is_a_clean_stop() {
    block_on(async {
        let place = Place::new().await;
        let pipe = place.dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.is_ok_and(|status| status.success()));
        let events = std::sync::Arc::clone(&place.events);
        let open = || {
            let events = std::sync::Arc::clone(&events);
            let tell = move |event| events.lock().expect("not poisoned").push(event);
            Job::open(
                place.job(),
                JobOptions::new(OutputTarget::File(pipe.clone())),
                std::sync::Arc::new(tell),
            )
        };
        let job = open().expect("opens without a reader");
        job.import(lines(1, 4, "h")).expect("imported");
        job.flush().await.expect("flushed");
        let reader = std::thread::spawn({
            let pipe = pipe.clone();
            move || {
                use std::io::{BufRead, BufReader};
                let mut line = String::new();
                BufReader::new(fs::File::open(pipe).expect("opens")).read_line(&mut line).expect("read");
                line
            }
        });
        let lane = job.ready_lanes(None, 1).await.expect("lanes")[0].id;
        let items = job.claim(lane, 4).await.expect("claimed");
        job.finish(end(&items[0], Ending::Done)).await.expect("finished");
        job.flush().await.expect("flushed");
        assert_eq!(reader.join().expect("read"), record(1, None, "done") + "\n");
        // Now nobody reads any more.
        job.finish(end(&items[1], Ending::Done)).await.expect("handed over");
        let stopped = job.flush().await.expect_err("closed");
        assert!(
            matches!(&stopped, QueueError::Stopped(why) if matches!(**why, QueueError::OutputClosed)),
            "{stopped:?}"
        );
        job.close().await.expect_err("not all was saved");
        drop(job);
        let job = open().expect("opens again");
        assert_eq!(left(&job).await, [2, 3, 4], "what was not written is pending");
        job.close().await.expect("closed");
    });
}
