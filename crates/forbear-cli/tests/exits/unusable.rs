//! E5: no usable exit is a pause that is said, an exit status of its own, and never a request past the exits.

use forbear_zoo::proxy::{Behaviour, Proxy, ProxyOptions};

use crate::exit_kit::{Exits, assert_never_direct};
use crate::kit::{Job, ms, pages, zoo};

#[tokio::test(flavor = "multi_thread")]
async fn e5_exits_that_turn_us_away_end_the_run_and_good_ones_go_on_with_it() {
    let server = zoo("open", ms(5)).await;
    let exits = Exits::start(2).await;
    for index in 0..2 {
        let mut before = 0;
        exits.behave(index, move |asked| {
            before += 1;
            let old = asked.user.as_deref() == Some(b"old");
            if old && before > 10 { Behaviour::status(407).closing() } else { Behaviour::Carry }
        });
    }
    let job = Job::of(pages(&server, "p", 80));
    let listed = exits.listed(&job, "http", "old:secret");
    let ran = job.run(&[&listed[..], &["--workers", "4"]].concat()).await;
    assert_eq!(ran.status, 5, "{}", ran.stderr);
    assert_eq!(job.records().len(), job.count("done"), "no item failed");
    assert_eq!(job.count("done"), 20, "what came before they turned us away");
    let asked = exits.passed().len();
    assert!(asked <= 20 + 2 * 4, "{asked} requests: each exit is asked no more, once it has said so");
    for index in 0..2 {
        assert!(ran.stderr.contains(&exits.name(index)), "it does not name the exit:\n{}", ran.stderr);
    }
    assert!(ran.last_line().contains("forbear fetch"), "nor how to go on: {}", ran.last_line());

    let listed = exits.listed(&job, "http", "new:secret");
    job.run_all_done(80, &listed).await;
    let log = server.stop().await;
    assert_never_direct(&log);
    assert_eq!((log.hits().len(), log.distinct_paths()), (80, 80));
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_dead_exits_end_the_run_with_nothing_lost() {
    let server = zoo("open", ms(0)).await;
    let exits = Exits::start(2).await;
    for exit in &exits.all {
        exit.shut();
    }
    let job = Job::of(pages(&server, "p", 10));
    let listed = exits.listed(&job, "http", "");
    let ran = job.run(&[&listed[..], &["--run-for", "5s"]].concat()).await;
    assert_eq!(ran.status, 5, "{}", ran.stderr);
    assert!(ran.stderr.contains(&exits.name(0)), "it does not name the exit:\n{}", ran.stderr);
    assert!(job.records().is_empty(), "{:?}", job.records());
    assert!(server.log().hits().is_empty(), "nothing went past them");
    for exit in &exits.all {
        exit.reopen();
    }
    job.run_all_done(10, &listed).await;
    assert_never_direct(&server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_the_only_exit_dies_in_mid_run() {
    let server = zoo("open", ms(5)).await;
    let exits = Exits::start(1).await;
    let job = Job::of(pages(&server, "p", 400)).unlearned("rate = \"50/s\"\n");
    let listed = exits.listed(&job, "http", "");
    let running = job.start(&[&listed[..], &["--run-for", "6s"]].concat());
    crate::kit::until("it works", || exits.passed().len() >= 30).await;
    exits.all[0].shut();
    let ran = running.end().await;
    assert_eq!(ran.status, 5, "{}", ran.stderr);
    assert_eq!(job.count("failed") + job.count("unknown"), 0, "{}", ran.stderr);
    assert!(ran.stderr.contains(&exits.name(0)), "{}", ran.stderr);
    assert_never_direct(&server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn e5_a_dead_proxy_of_the_environment_ends_no_run_that_has_other_work() {
    let server = zoo("open", ms(0)).await;
    let dead = Proxy::start(ProxyOptions::at(41)).await.unwrap();
    dead.shut();
    let lines = [vec!["http://192.0.2.1/".to_owned()], pages(&server, "p", 12)].concat();
    let config = "rate = \"3/s\"\nstall_after = \"1s\"\n";
    let job = Job::of(lines).unlearned(config).env("NO_PROXY", "127.0.0.0/8");
    let job = job.env("http_proxy", &dead.url("http", ""));
    let ran = job.run(&[]).await;
    assert_eq!((ran.status, job.count("done")), (5, 12), "{}", ran.stderr);
    assert_eq!(server.stop().await.hits().len(), 12);
}

#[tokio::test(flavor = "multi_thread")]
async fn e6_the_environment_is_used_when_no_exit_is_given_and_only_then() {
    let server = zoo("open", ms(0)).await;
    let (given, env) = (Exits::start(1).await, Proxy::start(ProxyOptions::at(40)).await.unwrap());
    let env_url = env.url("http", "env:secret");
    let by_env = |urls: Vec<String>| Job::of(urls).env("HTTP_PROXY", &env_url).env("http_proxy", &env_url);

    by_env(pages(&server, "a", 2)).run_all_done(2, &[]).await;
    assert_eq!(env.count(), 2);
    assert_eq!(env.asked()[0].password.as_deref(), Some(&b"secret"[..]));
    let job = by_env(pages(&server, "b", 2));
    job.run_all_done(2, &["--proxy", &given.all[0].url("http", "")]).await;
    by_env(pages(&server, "c", 2)).run_all_done(2, &["--no-env-proxy"]).await;
    by_env(pages(&server, "d", 2)).env("NO_PROXY", "127.0.0.0/8").run_all_done(2, &[]).await;
    assert_eq!(env.count(), 2, "no more than the first two");
    assert_eq!(given.passed().len(), 2);
    assert_eq!(server.stop().await.hits().len(), 8);
}
