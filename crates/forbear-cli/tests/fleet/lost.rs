//! F1: a store that is not there, goes away and comes back; and what is never said of its address (K1).

use crate::{
    fetch_kit::{Job, assert_pauses_kept, ms, pages, scripted, secs, until, zoo},
    fleet_kit::Redis,
};
use forbear_zoo::Answer;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_run_does_not_begin_without_its_store() {
    let server = zoo("open", ms(1)).await;
    let job = Job::of(pages(&server, "p", 3));
    let secret = "redis://fleet:S3cr3t@127.0.0.1:1/2";
    let ran = job.run(&["--gate", secret]).await;
    assert_eq!(ran.status, 6, "{}", ran.stderr);
    assert!(ran.stderr.contains("cannot reach the gate store redis://***@127.0.0.1:1/2"), "{}", ran.stderr);
    assert!(ran.stderr.contains("--gate memory") && !ran.stderr.contains("S3cr3t"), "{}", ran.stderr);
    assert!(server.log().hits().is_empty() && !job.path("out.jsonl").exists(), "nothing was begun");
    // The same from the configuration, and what is no address at all.
    let job = job.config(&format!("gate = \"{secret}\"\n"));
    let ran = job.run(&[]).await;
    assert!(ran.status == 6 && !ran.stderr.contains("S3cr3t"), "{}", ran.stderr);
    for wrong in [
        "gate = \"redys://fleet:S3cr3t@h\"\n",
        "gate = \"redis://fleet:S3cr3t@h:x\"\n",
        "gate = \"redis://S3cr3t\n",
    ] {
        let job = Job::of(["http://h/"]).config(wrong);
        let ran = job.run(&[]).await;
        assert_eq!(ran.status, 2, "{}", ran.stderr);
        assert!(!ran.stderr.contains("S3cr3t") && ran.stderr.contains("forbear.toml"), "{}", ran.stderr);
    }
    let ran = Job::of(["http://h/"]).run(&["--gate", "redys://fleet:S3cr3t@h"]).await;
    assert!(ran.status == 2 && !ran.stderr.contains("S3cr3t"), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_file_that_is_something_else_stays_as_it_is() {
    let server = zoo("open", ms(1)).await;
    let job = Job::of(pages(&server, "p", 3));
    assert_eq!(job.run(&[]).await.status, 0);
    let before = std::fs::read(job.path("job")).unwrap();
    let other = Job::of(pages(&server, "q", 3));
    let ran = other.run(&["--gate", job.path("job").to_str().unwrap()]).await;
    assert!(ran.status == 6 && ran.stderr.contains("it is a job"), "{}", ran.stderr);
    assert_eq!(std::fs::read(job.path("job")).unwrap(), before);
}

/// The store is killed under a pause, comes back empty, and is lost again: the pause holds, all is done, and it is said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_store_that_is_lost_ends_no_run_and_no_pause() {
    let mut redis = Redis::start(&[]).await;
    let server =
        scripted(
            |before, _| if before == 10 { Answer::refused(429).retry_after(secs(3)) } else { Answer::ok() },
        )
        .await;
    let jobs: Vec<Job> =
        (0..2).map(|n| Job::of(pages(&server, &format!("p{n}"), 40)).unlearned("")).collect();
    let flags = ["--gate", &redis.url(), "--host-rate", "127.0.0.1=30/s"];
    let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
    until("both are paused", || running.iter().all(|run| run.said().contains("is limited, pause of"))).await;
    redis.kill();
    until("both say it", || running.iter().all(|run| run.said().contains("is lost ("))).await;
    redis.restart().await;
    until("it is back for both", || running.iter().all(|run| run.said().contains("is back after"))).await;
    for (job, run) in jobs.iter().zip(running) {
        let ran = run.end().await;
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        job.assert_done(40);
        assert!(ran.stderr.contains("the gate store was lost once"), "{}", ran.stderr);
    }
    assert_pauses_kept(&server.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_what_is_wrong_with_a_redis_is_said_by_name() {
    let job = Job::of(["http://127.0.0.1:9/"]);
    let redis = Redis::start(&["--requirepass", "right-S3cr3t"]).await;
    let port = redis.url().rsplit(':').next().unwrap().to_owned();
    for (user, says) in [(":wrong-S3cr3t@", "it refuses this user or password"), ("", "it wants a password")]
    {
        let gate = format!("redis://{user}127.0.0.1:{port}");
        let ran = job.run(&["--gate", &gate]).await;
        assert!(ran.status == 6 && ran.stderr.contains(says), "{}", ran.stderr);
        assert!(!ran.stderr.contains("S3cr3t"), "{}", ran.stderr);
    }
    let replica = Redis::start(&["--replicaof", "127.0.0.1 1"]).await;
    let ran = job.run(&["--gate", &replica.url()]).await;
    assert!(ran.status == 6 && ran.stderr.contains("a replica that takes no writes"), "{}", ran.stderr);
    let full = Redis::start(&["--maxmemory", "1mb", "--maxmemory-policy", "noeviction"]).await;
    let ran = job.run(&["--gate", &full.url()]).await;
    assert!(ran.status == 6 && ran.stderr.contains("its memory is full"), "{}", ran.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_an_eviction_policy_is_warned_of() {
    let server = zoo("open", ms(1)).await;
    let redis = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]).await;
    let ran = Job::of(pages(&server, "p", 1)).run(&["--gate", &redis.url()]).await;
    assert_eq!(ran.status, 0);
    assert!(ran.stderr.contains("allkeys-lru") && ran.stderr.contains("noeviction"), "{}", ran.stderr);
    let redis = Redis::start(&["--maxmemory", "100mb", "--maxmemory-policy", "noeviction"]).await;
    let ran = Job::of(pages(&server, "p", 1)).run(&["--gate", &redis.url()]).await;
    assert!(ran.status == 0 && !ran.stderr.contains("noeviction"), "{}", ran.stderr);
}

/// A store that hangs costs one wait, and no more than that for each request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_store_that_hangs_holds_up_nobody_for_long() {
    let redis = Redis::start(&[]).await;
    let server = zoo("open", ms(20)).await;
    let job = Job::of(pages(&server, "p", 200)).unlearned("");
    let run = job.start(&["--gate", &redis.url(), "--host-rate", "127.0.0.1=100/s"]);
    until("it is under way", || server.log().hits().len() > 20).await;
    redis.signal("-STOP");
    let ran = run.end().await;
    redis.signal("-CONT");
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert!(ran.stderr.contains("is lost ("), "{}", ran.stderr);
    assert!(ran.elapsed < secs(30), "{:?}", ran.elapsed);
}

/// Without its store a fleet keeps below the limit and to the pause that it knew, and the way back makes no burst: 110 % in any
/// second at the most. Ten seconds of it in a campaign (`FORBEAR_ROUNDS`), five without.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_fleet_under_load_keeps_to_its_limit_while_the_store_hangs() {
    let hangs = if std::env::var("FORBEAR_ROUNDS").is_ok() { secs(10) } else { secs(5) };
    let redis = Redis::start(&[]).await;
    let server = scripted(|before, _| match before {
        300 => Answer::refused(429).retry_after(secs(2)),
        _ => Answer::ok().after(ms(5)),
    })
    .await;
    let jobs: Vec<Job> =
        (0..4).map(|n| Job::of(pages(&server, &format!("p{n}"), 4000)).unlearned("")).collect();
    let run_for = format!("{}s", hangs.as_secs() + 7);
    let flags = [
        "--gate",
        &redis.url(),
        "--host-rate",
        "127.0.0.1=200/s",
        "--run-for",
        &run_for,
        "--host-concurrency",
        "64",
    ];
    let running: Vec<_> = jobs.iter().map(|job| job.start(&flags)).collect();
    until("all are paused", || running.iter().all(|run| run.said().contains("is limited, pause of"))).await;
    redis.signal("-STOP");
    tokio::time::sleep(hangs).await;
    redis.signal("-CONT");
    for run in running {
        let ran = run.end().await;
        assert_eq!(ran.status, 4, "{}", ran.stderr);
        assert!(ran.stderr.contains("is lost ("), "{}", ran.stderr);
    }
    let log = server.log();
    assert_pauses_kept(&log);
    let most = log.peak(secs(1));
    eprintln!("{} requests, at most {most} within a second", log.hits().len());
    assert!(most <= 220, "{most} within a second, and 200 are allowed");
}
