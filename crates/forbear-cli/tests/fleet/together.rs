//! One pause, one probe, one rate, one cap, one account for all processes.

use std::time::Duration;

use forbear_zoo::Answer;

use crate::{
    fetch_kit::{GRACE, Job, assert_pauses_kept, ms, pages, scripted, secs, until, zoo},
    fleet_kit::{Redis, Store},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_pause_met_by_one_process_holds_for_all() {
    for store in Store::each().await {
        // The 31st request is told to come back in two seconds.
        let server =
            scripted(
                |before, _| {
                    if before == 30 { Answer::refused(429).retry_after(secs(2)) } else { Answer::ok() }
                },
            )
            .await;
        let jobs: Vec<Job> = (0..3)
            .map(|n| Job::of(pages(&server, &format!("p{n}"), 40)).unlearned("host_concurrency = 6\n"))
            .collect();
        let flags = ["--gate", &store.address(), "--host-rate", "127.0.0.1=40/s"];
        let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
        for (job, run) in jobs.iter().zip(running) {
            let ran = run.end().await;
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            job.assert_done(40);
            assert!(ran.stderr.contains("is limited, pause of"), "each says it: {}", ran.stderr);
        }
        let log = server.log();
        assert_pauses_kept(&log);
        let first = log.refused().next().unwrap();
        let told = first.sent.unwrap() + secs(2);
        let early =
            log.hits().iter().filter(|hit| hit.at > first.sent.unwrap() + GRACE && hit.at < told).count();
        assert_eq!(early, 0, "sent into the pause");
        assert_eq!(log.refused().count(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_one_request_of_the_whole_fleet_tests_the_end_of_a_pause() {
    for store in Store::each().await {
        let server = scripted(|before, _| {
            if (8..12).contains(&before) {
                Answer::refused(429).retry_after(secs(1))
            } else {
                Answer::ok().after(ms(300))
            }
        })
        .await;
        let jobs: Vec<Job> =
            (0..3).map(|n| Job::of(pages(&server, &format!("p{n}"), 8)).unlearned("")).collect();
        let gate = store.address();
        let running: Vec<_> = jobs.iter().map(|job| job.start(&["--gate", &gate])).collect();
        for (job, run) in jobs.iter().zip(running) {
            let ran = run.end().await;
            assert_eq!(ran.status, 0, "{}", ran.stderr);
            job.assert_done(8);
        }
        assert_pauses_kept(&server.log());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_one_rate_for_all_processes() {
    for store in Store::each().await {
        let server = zoo("open", ms(5)).await;
        let jobs: Vec<Job> =
            (0..4).map(|n| Job::of(pages(&server, &format!("p{n}"), 20)).unlearned("")).collect();
        let flags = ["--gate", &store.address(), "--host-rate", "127.0.0.1=20/s", "--host-concurrency", "64"];
        let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
        for run in running {
            let ran = run.end().await;
            assert_eq!(ran.status, 0, "{}", ran.stderr);
        }
        let most = server.log().peak(secs(1));
        assert!(most <= 24, "{most} within a second, and 20 are allowed where they start");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_one_cap_for_all_processes() {
    for store in Store::each().await {
        let server = zoo("open", ms(40)).await;
        let jobs: Vec<Job> =
            (0..3).map(|n| Job::of(pages(&server, &format!("p{n}"), 25)).unlearned("")).collect();
        let flags = ["--gate", &store.address(), "--host-concurrency", "3"];
        let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
        for run in running {
            let ran = run.end().await;
            assert_eq!(ran.status, 0, "{}", ran.stderr);
        }
        let log = server.log();
        assert!(log.max_in_flight() <= 3, "{} on the wire", log.max_in_flight());
    }
}

/// `workers` is each process's own: one that has a single worker need not wait until nobody else has anything on the wire.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_a_process_with_one_worker_is_not_starved_by_the_others() {
    for store in Store::each().await {
        let server = zoo("open", ms(100)).await;
        let flags = ["--gate", &store.address(), "--host-rate", "127.0.0.1=20/s", "--workers"];
        let busy = Job::of(pages(&server, "busy", 120)).unlearned("");
        let run = busy.start(&[&flags[..], &["8"]].concat());
        until("it is under way", || server.log().hits().len() > 10).await;
        let small = Job::of(pages(&server, "small", 1)).unlearned("");
        small.run_all_done(1, &[&flags[..], &["1"]].concat()).await;
        let log = server.log();
        assert!(log.hits().len() < 110, "its turn came while the other one was busy: {}", log.hits().len());
        assert_eq!(run.end().await.status, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s2_the_credentials_of_two_jobs_are_one_account() {
    for store in Store::each().await {
        let server = zoo("open", ms(1)).await;
        let line = |n: u32| {
            let url = server.url(&format!("/{n}"));
            format!("{{\"url\": \"{url}\", \"headers\": {{\"Authorization\": \"Bearer s3cret\"}}}}")
        };
        let flags = ["--gate", &store.address()];
        let jobs = [Job::of([line(1), line(2)]), Job::of([line(3)])];
        for job in &jobs {
            assert_eq!(job.run(&flags).await.status, 0);
        }
        let names: Vec<String> =
            store.scopes(&jobs[0]).iter().map(|scope| scope["scope"].as_str().unwrap().to_owned()).collect();
        let accounts = names.iter().filter(|name| name.contains("account=~")).count();
        assert_eq!((accounts, names.len()), (1, 2), "{names:?}");
        assert!(names.iter().all(|name| !name.contains("s3cret")));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_a_process_that_ends_gives_its_places_back_at_once() {
    for store in Store::each().await {
        let server = zoo("open", ms(1)).await;
        let flags = ["--gate", &store.address(), "--host-concurrency", "4"];
        let job = Job::of(pages(&server, "p", 200)).unlearned("");
        job.run_all_done(200, &flags).await;
        for scope in store.scopes(&job) {
            assert_eq!((&scope["on_the_wire"], &scope["processes"]), (&0.into(), &0.into()), "{scope}");
        }
    }
}

/// A process that holds all places is killed: the next one has them within ten seconds, by nobody's hand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_the_places_of_a_killed_process_come_back() {
    let store = Store::File(tempfile::TempDir::new().unwrap());
    let server =
        scripted(|before, _| if before < 2 { Answer::ok().after(secs(60)) } else { Answer::ok() }).await;
    let flags = ["--gate", &store.address(), "--host-concurrency", "2"];
    let first = Job::of(pages(&server, "a", 2)).unlearned("");
    let mut held = first.start(&flags);
    until("both places are taken", || server.log().hits().len() == 2).await;
    held.kill();
    let second = Job::of(pages(&server, "b", 5)).unlearned("");
    let ran = second.run_all_done(5, &flags).await;
    assert!(ran.elapsed < secs(25), "{:?}", ran.elapsed);
}

/// The owner of the probe is killed while it is on the wire: another process tests within the lease and a second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn b1_the_probe_of_a_killed_process_is_taken_over_after_its_lease() {
    // Longer than the ten seconds after which a dead process's place on the wire comes back.
    const LEASE: Duration = secs(11);
    for store in [Store::Redis(Redis::start(&[]).await)] {
        // Both have begun when the eleventh request is refused; the twelfth is the probe, and is never answered.
        let server = scripted(|before, _| match before {
            10 => Answer::refused(429).retry_after(secs(1)),
            11 => Answer::ok().after(secs(120)),
            _ => Answer::ok(),
        })
        .await;
        let config = "probe_lease = \"11s\"\nhost_concurrency = 4\n";
        let flags = ["--gate", &store.address(), "--host-rate", "127.0.0.1=10/s"];
        let jobs: Vec<Job> =
            (0..2).map(|n| Job::of(pages(&server, &format!("p{n}"), 30)).unlearned(config)).collect();
        let mut running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
        until("the probe is on the wire", || server.log().hits().len() == 12).await;
        let owner = usize::from(server.log().hits()[11].path.starts_with("/p1"));
        running[owner].kill();
        let killed = server.log().hits()[11].at;
        let other = running.remove(1 - owner).end().await;
        assert_eq!(other.status, 0, "{}", other.stderr);
        jobs[1 - owner].assert_done(30);
        let waited = server.log().hits()[12].at - killed;
        assert!(waited >= LEASE - ms(300), "the lease holds: {waited:?}");
        // The killed process's places on the wire come back after ten seconds, and where the cap is low the next probe needs one
        // of them. A second for who takes over, and what a busy machine takes.
        assert!(waited <= secs(10) + secs(1) + secs(1), "{waited:?}");
    }
}

/// The short form of a campaign: `FORBEAR_ROUNDS` seconds, 12 without it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c1_many_processes_share_two_a_second() {
    let rounds = std::env::var("FORBEAR_ROUNDS").ok().and_then(|n| n.parse::<u32>().ok());
    let (processes, seconds) = rounds.map_or((12, 12), |rounds| (64, rounds.max(12)));
    let store = Store::Redis(Redis::start(&[]).await);
    let server = zoo("open", ms(5)).await;
    let time = format!("{seconds}s");
    let flags =
        ["--gate", &store.address(), "--host-rate", "127.0.0.1=2/s", "--run-for", &time, "--workers", "2"];
    let jobs: Vec<Job> =
        (0..processes).map(|n| Job::of(pages(&server, &format!("p{n}"), 200)).unlearned("")).collect();
    let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
    for run in running {
        let ran = run.end().await;
        assert_eq!(ran.status, 4, "{}", ran.stderr);
    }
    let log = server.log();
    let (most, all) = (log.peak(secs(10)), log.hits().len());
    assert!(most <= 21, "{most} within ten seconds, and 21 are allowed");
    let span = log.hits().last().unwrap().at - log.hits()[0].at;
    let share = (all - 1) as f64 / (2.0 * span.as_secs_f64());
    eprintln!("{all} requests of {processes} processes, {:.1} % of the limit", share * 100.0);
    assert!(share >= 0.9, "{:.1} % of the limit", share * 100.0);
}
