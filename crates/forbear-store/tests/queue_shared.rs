//! What several processes ask of a job in PostgreSQL: leases, fences, a server that comes and goes, sealed requests.

#[path = "queue_support/postgres.rs"]
mod postgres;
mod queue_support;

use std::{sync::Arc, time::Duration};

use forbear_store::queue::{
    inspect::{JobFile, Retry, Running, retry, unpark},
    *,
};
use postgres::{LEASE, PgPlace};
use queue_support::*;

async fn claim(job: &Job, max: usize) -> Vec<Item> {
    let mut all = Vec::new();
    for lane in job.ready_lanes(None, 1000).await.expect("lanes") {
        all.extend(job.claim(lane.id, max - all.len()).await.expect("claimed"));
    }
    all
}

/// Asks again until it is so; the test's own time-out ends it where it never is.
async fn until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[test]
fn j1_two_processes_share_a_job_and_each_item_ends_once() {
    block_on(async {
        let place = PgPlace::new().await;
        let (one, two) = (place.open().await, place.join("two.jsonl", LEASE).expect("joins"));
        assert!(!two.may_import().expect("asked"), "one process imports");
        assert!(matches!(two.import(lines(1, 2, "h")), Err(QueueError::NotTheImporter)));
        one.import(Batch { end: InputEnd::Reached, ..lines(1, 100, "h") }).expect("imported");
        one.flush().await.expect("flushed");
        let (a, b) = (claim(&one, 40).await, claim(&two, 100).await);
        assert_eq!((a.len(), b.len()), (40, 60), "nobody gets what another has");
        assert!(claim(&one, 9).await.is_empty());
        assert_eq!(two.account_key(), one.account_key());
        until(async || one.counts().elsewhere == 60 && two.counts().elsewhere == 40).await;
        for (job, items) in [(&one, &a), (&two, &b)] {
            for item in items {
                job.finish(end(item, Ending::Done)).await.expect("finished");
            }
            job.flush().await.expect("flushed");
        }
        until(async || one.counts().done == 100 && two.counts().done == 100).await;
        assert_eq!((one.counts().open(), one.counts().imported), (0, 100));
        assert!(place.is_consistent());
        let file = JobFile::open(place.job()).expect("opens");
        assert_eq!(file.summary().expect("readable").running, Running::By(None), "two of them");
        one.close().await.expect("closed");
        two.close().await.expect("closed");
        let mut records = place.records_of("two.jsonl");
        assert_eq!(records.len(), 60);
        records.extend(place.records().await);
        records.sort();
        records.dedup();
        assert_eq!(records.len(), 100);
    });
}

#[test]
fn j1_the_items_of_a_dead_process_come_back_after_its_lease_and_its_results_do_not() {
    block_on(async {
        let place = PgPlace::new().await;
        let lease = Duration::from_secs(2);
        let dying = place.join("dying.jsonl", lease).expect("joins");
        assert!(dying.may_import().expect("asked"));
        dying.import(lines(1, 4, "h")).expect("imported");
        dying.flush().await.expect("flushed");
        let lost = claim(&dying, 2).await;
        dying.finish(end(&lost[0], Ending::Done)).await.expect("finished");
        dying.flush().await.expect("flushed");
        let two = place.join("two.jsonl", lease).expect("joins");
        assert_eq!(seqs(&claim(&two, 9).await), [3, 4], "what another has in hand stays its");
        // Nobody renews this lease any more: as if the process were stopped.
        place
            .server
            .sql("UPDATE forbear_job_1.members SET until = now() - interval '1 hour' WHERE output = 1");
        let mut back = Vec::new();
        until(async || {
            place
                .server
                .sql("UPDATE forbear_job_1.members SET until = now() - interval '1 hour' WHERE output = 1");
            back.extend(claim(&two, 9).await);
            !back.is_empty()
        })
        .await;
        assert_eq!(seqs(&back), [2]);
        // The old process wakes up and has an answer for it.
        let _ = dying.finish(end(&lost[1], Ending::Done)).await;
        let _ = dying.flush().await;
        two.finish(end(&back[0], Ending::Failed)).await.expect("finished");
        two.flush().await.expect("flushed");
        assert_eq!(place.records_of("dying.jsonl"), [record(1, None, "done")], "its late record is cut");
        assert_eq!(place.records_of("two.jsonl"), [record(2, None, "failed")]);
        let told = place.told();
        assert!(told.iter().any(|event| matches!(event, Event::LeasesLost { .. })), "{told:?}");
        let again = dying.finish(end(&lost[1], Ending::Done)).await;
        assert!(matches!(again, Err(QueueError::StaleLease)), "{again:?}");
        assert!(place.is_consistent());
        // It is a member again, and can go on.
        two.close().await.expect("closed");
        let more = claim(&dying, 9).await;
        assert_eq!(seqs(&more), [3, 4], "given back by the one that left");
        dying.close().await.expect("closed");
    });
}

#[test]
fn j1_what_was_claimed_as_the_answer_was_lost_is_claimed_again() {
    block_on(async {
        let place = PgPlace::new().await;
        let job = place.join("one.jsonl", Duration::from_secs(1)).expect("joins");
        assert!(job.may_import().expect("asked"));
        job.import(Batch { end: InputEnd::Reached, ..lines(1, 5, "h") }).expect("imported");
        job.flush().await.expect("flushed");
        let first = claim(&job, 2).await;
        assert_eq!(seqs(&first), [1, 2]);
        // As the server has it when a claim was made and its answer went down with the connection.
        place.server.sql(
            "WITH taken AS (DELETE FROM forbear_job_1.waiting WHERE seq IN (3, 4) RETURNING seq, lane, rank)
             INSERT INTO forbear_job_1.leased(seq, member, lane, rank)
             SELECT seq, member, lane, rank FROM taken, forbear_job_1.members",
        );
        let mut rest = claim(&job, 9).await;
        assert_eq!(seqs(&rest), [5], "two are nobody's");
        until(async || {
            rest.extend(claim(&job, 9).await);
            rest.len() == 3
        })
        .await;
        assert_eq!(seqs(&rest), [5, 3, 4], "what is in hand is not given back with them");
        for item in first.iter().chain(&rest) {
            job.finish(end(item, Ending::Done)).await.expect("finished");
        }
        job.close().await.expect("closed");
        assert_eq!(place.records_of("one.jsonl").len(), 5);
        assert!(place.is_consistent());
    });
}

#[test]
fn j1_a_server_that_is_restarted_loses_nothing() {
    block_on(async {
        let place = PgPlace::new().await;
        let job = place.open().await;
        job.import(Batch { end: InputEnd::Reached, ..lines(1, 60, "h") }).expect("imported");
        job.flush().await.expect("flushed");
        for round in 0..3 {
            let items = claim(&job, 20).await;
            assert_eq!(items.len(), 20, "round {round}");
            for (n, item) in items.iter().enumerate() {
                job.finish(end(item, Ending::Done)).await.expect("finished");
                if n == 10 {
                    place.server.stop_immediately();
                }
            }
            assert!(claim(&job, 1).await.is_empty(), "nothing is to be had, and that is no error");
            place.server.go();
            job.flush().await.expect("flushed");
            until(async || job.counts().done == 20 * (round + 1)).await;
            until(async || round == 2 || !job.ready_lanes(None, 1).await.expect("lanes").is_empty()).await;
        }
        assert_eq!(place.records().await.len(), 60);
        let told = place.told();
        assert!(told.iter().any(|e| matches!(e, Event::QueueLost { .. })), "{told:?}");
        assert!(told.iter().any(|e| matches!(e, Event::QueueBack { .. })), "{told:?}");
        assert_eq!(job.close().await.expect("closed").done, 60);
        assert!(place.is_consistent());
    });
}

#[test]
fn j1_the_next_process_of_an_output_matches_its_tail_and_has_its_leases_at_once() {
    block_on(async {
        let place = PgPlace::new().await;
        let job = place.open().await;
        let named = NewItem { id: Some("\"7\"".into()), ..item(3, "h") };
        job.import(batch(vec![item(1, "h"), item(2, "h"), named, item(4, "h")])).expect("imported");
        job.flush().await.expect("flushed");
        let items = claim(&job, 4).await;
        job.finish(end(&items[0], Ending::Done)).await.expect("finished");
        job.flush().await.expect("flushed");
        // As after SIGKILL: leases stand, records behind the acknowledged end, the last one torn; nobody holds the lock.
        place.server.sql("CREATE TABLE kept AS SELECT * FROM forbear_job_1.leased");
        place.server.sql("CREATE TABLE member AS SELECT * FROM forbear_job_1.members");
        job.close().await.expect("closed");
        place.server.sql("INSERT INTO forbear_job_1.leased SELECT * FROM kept");
        place.server.sql("DELETE FROM forbear_job_1.waiting");
        place.server.sql("INSERT INTO forbear_job_1.members SELECT * FROM member");
        let (second, third) = (record(2, None, "failed"), record(7, None, "done"));
        let mut text = std::fs::read_to_string(place.out("out.jsonl")).expect("read");
        text.push_str(&format!("{second}\n{third}\n{{\"id\":4,\"outc"));
        std::fs::write(place.out("out.jsonl"), text).expect("written");
        let job = place.open().await;
        assert_eq!(place.records().await, [record(1, None, "done"), second, third]);
        let c = job.counts();
        assert_eq!(
            (c.done, c.failed, c.pending, c.leased),
            (2, 1, 1, 0),
            "the lease of the dead one is over at once"
        );
        assert_eq!(seqs(&claim(&job, 9).await), [4]);
        assert!(place.is_consistent());
        job.close().await.expect("closed");
        // Records whose items somebody else has had: cut, not counted. Foreign lines: refused.
        let text = std::fs::read_to_string(place.out("out.jsonl")).expect("read");
        std::fs::write(place.out("out.jsonl"), format!("{text}{}\n", record(4, None, "done")))
            .expect("written");
        let job = place.open().await;
        assert_eq!((place.records().await.len(), job.counts().done), (3, 2));
        job.close().await.expect("closed");
        std::fs::write(place.out("out.jsonl"), format!("{text}{}\n", record(0, Some("mine"), "done")))
            .expect("written");
        let refused = place.join("out.jsonl", LEASE).expect_err("not ours");
        assert!(matches!(refused, QueueError::OutputForeign { .. }), "{refused}");
    });
}

/// A secret as it may be written: plain, in hexadecimal, and in base64 at each of its three places in a text.
fn forms(secret: &str) -> Vec<String> {
    let mut forms = vec![secret.to_owned(), secret.bytes().map(|b| format!("{b:02x}")).collect()];
    for before in 0..3 {
        let text = format!("{}{secret}", "-".repeat(before));
        let whole = base64::Engine::encode(&base64::engine::general_purpose::STANDARD_NO_PAD, text);
        // Without the first and last characters, which are others' too.
        forms.push(whole[(before * 8).div_ceil(6)..whole.len() - 1].to_owned());
    }
    forms
}

#[test]
fn k1_the_database_holds_no_secret_and_another_key_is_refused() {
    block_on(async {
        let place = PgPlace::new().await;
        let job = place.open().await;
        let request = Request {
            headers: vec![("Authorization".into(), "Bearer s3cret".into())],
            body: Some(b"s3cret".to_vec()),
            ..Request::get("http://u:s3cret@h/?token=s3cret")
        };
        job.import(batch(vec![NewItem { request: request.clone(), ..item(1, "h") }])).expect("imported");
        job.flush().await.expect("flushed");
        assert_eq!(claim(&job, 1).await[0].request, request);
        let dump = place.server.dump();
        assert!(dump.contains("forbear_job_1.items") && dump.contains("COPY"), "{dump}");
        let sealed = dump.lines().filter(|line| line.starts_with("1\t1\t")).count();
        assert!(sealed > 0, "the item is there: {dump}");
        place.server.sql("CHECKPOINT");
        for form in forms("s3cret") {
            assert!(!dump.contains(&form), "{form}: {dump}");
            assert_eq!(place.server.files_with(&form), Vec::<std::path::PathBuf>::new(), "{form}");
        }
        // What is looked for can be found.
        place.server.sql("CREATE TABLE plain AS SELECT 's3cret' AS secret; CHECKPOINT");
        assert!(place.server.dump().contains("s3cret") && !place.server.files_with("s3cret").is_empty());
        let key = place.server.sql("SELECT encode(account_key, 'hex') FROM forbear_job_1.job");
        let ours: String = job.account_key().iter().map(|b| format!("{b:02x}")).collect();
        assert!(!key.contains(&ours));
        let QueueAddress::Postgres(queue) = place.server.url().parse().expect("a URL") else {
            unreachable!()
        };
        let other = queue.with_key(&"ab".repeat(32)).expect("a key").job("a");
        let options = JobOptions::new(OutputTarget::File(place.out("three.jsonl")));
        let refused = Job::open(&other, options, Arc::new(|_| ())).expect_err("another key");
        assert!(matches!(refused, QueueError::OtherKey { .. }), "{refused}");
        assert!(matches!(JobFile::open(&other), Err(QueueError::OtherKey { .. })));
        job.close().await.expect("closed");
    });
}

#[test]
fn j2_items_are_put_back_while_others_are_worked_on() {
    block_on(async {
        let place = PgPlace::new().await;
        let job = place.open().await;
        let bad = BadLine { seq: Seq(8), record: record(8, None, "failed").into() };
        job.import(Batch { bad: vec![bad], end: InputEnd::Reached, ..lines(1, 7, "h") }).expect("imported");
        job.flush().await.expect("flushed");
        let items = claim(&job, 6).await;
        job.finish(end(&items[0], Ending::Done)).await.expect("finished");
        job.finish(end(&items[1], Ending::Failed)).await.expect("finished");
        job.finish(end(&items[2], Ending::Unknown)).await.expect("finished");
        job.park(items[3].lease, Until::Time(at(90)), "told 90 s", Counters::default()).expect("parked");
        job.park(items[4].lease, Until::Credentials("shop".into()), "401", Counters::default())
            .expect("parked");
        job.flush().await.expect("flushed");
        assert_eq!(retry(place.job(), Retry::Failed).expect("retried"), 1, "the bad line stays");
        assert_eq!(retry(place.job(), Retry::FailedAndUnknown).expect("retried"), 1);
        assert_eq!(unpark(place.job()).expect("unparked"), 2);
        assert!(place.is_consistent());
        until(async || job.counts().parked == 0 && job.counts().failed == 1).await;
        assert_eq!(seqs(&claim(&job, 9).await), [2, 3, 4, 5, 7]);
        assert!(job.is_current(items[5].lease), "what is in hand stays there");
        job.close().await.expect("closed");
        assert!(place.is_consistent());
    });
}

#[test]
fn j4_an_older_format_is_migrated_and_a_newer_one_is_refused() {
    block_on(async {
        let place = PgPlace::new().await;
        let job = place.open().await;
        job.import(batch(vec![NewItem { id: Some("one".into()), ..item(1, "h") }])).expect("imported");
        job.flush().await.expect("flushed");
        job.close().await.expect("closed");
        // The same job as the first format had it.
        let sql = |text: &str| place.server.sql(text);
        sql(&format!(
            "CREATE SCHEMA old; SET search_path = old; {}",
            include_str!("queue_support/format_1.sql")
        ));
        let tables =
            sql("SELECT table_name FROM information_schema.tables WHERE table_schema = 'old' ORDER BY 1");
        for table in tables.lines() {
            sql(&format!("INSERT INTO old.{table} SELECT * FROM forbear_job_1.{table}"));
        }
        let shape = |schema: &str| {
            let columns = sql(&format!(
                "SELECT table_name, ordinal_position, column_name, data_type, is_nullable FROM information_schema.columns
                 WHERE table_schema = '{schema}' ORDER BY 1, 2"
            ));
            let indexes =
                format!("SELECT indexdef FROM pg_indexes WHERE schemaname = '{schema}' ORDER BY indexname");
            format!("{columns}\n{}", sql(&indexes).replace(&format!("{schema}."), ""))
        };
        let (now, old) = (shape("forbear_job_1"), shape("old"));
        assert_ne!(now, old);
        sql(
            "DROP SCHEMA forbear_job_1 CASCADE; ALTER SCHEMA old RENAME TO forbear_job_1; UPDATE forbear.jobs SET format = 1",
        );
        let file = JobFile::open(place.job()).expect("looked at as it is");
        assert_eq!(file.summary().expect("readable").counts.pending, 1);
        assert_eq!(sql("SELECT format FROM forbear.jobs"), "1", "whoever looks changes nothing");
        let job = place.open().await;
        let migrated = sql("SELECT format FROM forbear.jobs");
        assert_eq!(shape("forbear_job_1"), now, "what is migrated is as what is new");
        let items = claim(&job, 9).await;
        assert_eq!(items[0].id.as_deref(), Some("one"));
        job.finish(end(&items[0], Ending::Done)).await.expect("finished");
        job.close().await.expect("closed");
        place.open().await.close().await.expect("closed");
        assert_eq!(sql("SELECT format FROM forbear.jobs"), migrated);

        sql("UPDATE forbear.jobs SET format = 99");
        let options = || JobOptions::new(OutputTarget::File(place.out("out.jsonl")));
        let refused = Job::open(place.job(), options(), Arc::new(|_| ())).expect_err("newer");
        assert!(matches!(refused, QueueError::TooNew { version: 99, .. }), "{refused}");
        assert!(refused.to_string().contains("newer forbear (format 99); use that one"), "{refused}");
        assert!(matches!(JobFile::open(place.job()), Err(QueueError::TooNew { version: 99, .. })));
        assert_eq!(sql("SELECT format FROM forbear.jobs"), "99", "and left as it is");
    });
}

#[test]
fn f1_a_server_that_cannot_be_reached_is_named_without_its_password() {
    let port =
        std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
    let url = format!("postgres://u:s3cret@127.0.0.1:{port}/db");
    let QueueAddress::Postgres(queue) = url.parse().expect("a URL") else { unreachable!() };
    let job = queue.with_key(postgres::KEY).expect("a key").job("a");
    let options = JobOptions::new(OutputTarget::Stdout);
    let error = Job::open(&job, options, Arc::new(|_| ())).expect_err("nobody is there");
    assert!(error.is_unreachable(), "{error}");
    let text = format!("{error} {error:?}");
    assert!(text.contains(&format!("127.0.0.1:{port}")) && !text.contains("s3cret"), "{text}");
}

#[test]
fn k1_tls_is_what_sslmode_says() {
    let pair = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
    let (certificate, key) = (pair.cert.pem(), pair.signing_key.serialize_pem());
    let server = postgres::TestPostgres::start_from(
        &["-c", "ssl=on"],
        &[("server.crt", &certificate), ("server.key", &key)],
    );
    let dir = tempfile::tempdir().expect("a directory");
    let roots = dir.path().join("ca.pem");
    std::fs::write(&roots, certificate).expect("written");
    let roots = format!("&sslrootcert={}", roots.display());
    // The certificate is for `localhost`, and nobody but the file vouches for it.
    for (host, mode, is_reached, is_encrypted) in [
        ("127.0.0.1", "disable".to_owned(), true, false),
        ("127.0.0.1", "prefer".to_owned(), true, true),
        ("127.0.0.1", "require".to_owned(), true, true),
        ("127.0.0.1", "verify-ca".to_owned(), false, false),
        ("127.0.0.1", format!("verify-ca{roots}"), true, true),
        ("127.0.0.1", format!("verify-full{roots}"), false, false),
        ("localhost", format!("verify-full{roots}"), true, true),
    ] {
        let url = format!("postgres://forbear:s3cret@{host}:{}/postgres?sslmode={mode}", server.port());
        let QueueAddress::Postgres(queue) = url.parse().expect("a URL") else { unreachable!() };
        let job = queue.with_key(postgres::KEY).expect("a key").job("a");
        match Job::open(&job, JobOptions::new(OutputTarget::Stdout), Arc::new(|_| ())) {
            Ok(job) => {
                assert!(is_reached, "{host} {mode}");
                let encrypted = "SELECT ssl FROM pg_stat_ssl s JOIN pg_stat_activity a ON a.pid = s.pid
                                 WHERE a.application_name = 'forbear' ORDER BY a.backend_start DESC LIMIT 1";
                assert_eq!(server.sql(encrypted), if is_encrypted { "t" } else { "f" }, "{host} {mode}");
                block_on(job.close()).expect("closed");
            }
            Err(error) => {
                assert!(!is_reached && error.is_unreachable(), "{host} {mode}: {error}");
                assert!(!format!("{error:?}").contains("s3cret"));
            }
        }
    }
}
