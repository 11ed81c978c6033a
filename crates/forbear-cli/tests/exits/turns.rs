//! E2: good exits take turns, however few requests there are at once, and one that failed or was refused gets its turn again.

use forbear_zoo::proxy::Behaviour;
use forbear_zoo::{Answer, peak};

use crate::exit_kit::{Exits, assert_never_direct, exit_of, ip};
use crate::kit::{self, GRACE, Job, authority, ms, pages, scripted, secs, zoo};
use crate::limits::{EIGHT, assert_hardly_refused, inside, refusing_for_a_while};
use crate::support::origin::Origin;

#[tokio::test(flavor = "multi_thread")]
async fn e1_a_dead_exit_is_tried_again_and_comes_back() {
    let server = zoo("open", ms(5)).await;
    let exits = Exits::start(2).await;
    exits.all[0].shut();
    let job = Job::of(pages(&server, "p", 400)).unlearned("rate = \"50/s\"\n");
    let listed = exits.listed(&job, "http", "");
    let running = job.start(&listed);
    kit::until("the good one works", || exits.passed().len() >= 50).await;
    assert!(exits.passed().iter().all(|one| one.exit == 1));
    exits.all[0].reopen();
    let ran = running.end().await;
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    job.assert_done(400);
    let back = exits.passed().iter().filter(|one| one.exit == 0).count();
    assert!(back >= 20, "it came back for {back} of 400\n{}", ran.stderr);
    assert_never_direct(&server.stop().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn e3_exit_state_a_stray_refusal_of_a_cold_exit_costs_a_short_pause() {
    // One refusal in all, without a hint, on the first request by one exit.
    const STRAY: usize = 1;
    let mut refused = false;
    let server = scripted(move |_, request| match request.client == ip(STRAY) && !refused {
        true => {
            refused = true;
            Answer::refused(429)
        }
        false => Answer::ok(),
    })
    .await;
    let exits = Exits::start(3).await;
    let job = Job::of(pages(&server, "p", 400)).config("policy = \"exit-state\"\nrate = \"50/s\"\n");
    job.run_all_done(400, &exits.listed(&job, "http", "")).await;
    let log = server.stop().await;
    let stray = log.refused().next().expect("it was refused");
    let next = kit::after(&log, stray).find(|hit| exit_of(hit) == Some(STRAY)).expect("it comes back");
    let rest = next.at - stray.answered.unwrap();
    // 2^0 s and half of it by chance; with all its heat it would be up to 30 s more. The run takes 8 s.
    assert!(rest >= secs(1), "{rest:?}");
    assert!(log.hits().iter().filter(|hit| exit_of(hit) == Some(STRAY)).count() >= 50, "and works on");
    let meanwhile = log.hits().iter().filter(|hit| hit.at > stray.at && hit.at < next.at).count();
    assert!(meanwhile >= 20, "the others went on meanwhile: {meanwhile}");
}

#[tokio::test(flavor = "multi_thread")]
async fn c1_eight_exits_with_one_limit_for_all_keep_to_its_pace() {
    let server = zoo("token-bucket:rate=5/s,burst=2,hint=seconds", ms(10)).await;
    let exits = Exits::start(EIGHT).await;
    let job = Job::of(pages(&server, "p", 60));
    let rate = format!("{}=5/s", authority(&server));
    let listed = exits.listed(&job, "http", "");
    job.run_all_done(60, &[&listed[..], &["--host-rate", &rate]].concat()).await;
    let log = server.stop().await;
    assert_never_direct(&log);
    assert_hardly_refused(&log);
    let used: std::collections::BTreeSet<_> = log.hits().iter().map(exit_of).collect();
    assert!(used.len() > 1, "all by one exit: {used:?}");
    // One more than the pace: arrivals are not as even as starts.
    for (window, most) in [(secs(1), 6), (secs(2), 11), (secs(4), 21)] {
        let found = peak(log.hits().iter(), window);
        assert!(found <= most, "{found} in {window:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_rotating_never_sends_into_a_pause_of_the_origin() {
    // One exit is refused, once; by default that closes the origin for all.
    let server = refusing_for_a_while(5, |request| request.client == ip(1)).await;
    let exits = Exits::start(4).await;
    let job = Job::of(pages(&server, "p", 100)).unlearned("rate = \"50/s\"\n");
    job.run_all_done(100, &exits.listed(&job, "http", "")).await;
    let log = server.stop().await;
    assert_never_direct(&log);
    assert_eq!(inside(&log, 0), [], "by any exit");
    assert!(log.refused().count() <= 4, "{} refused", log.refused().count());
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_where_the_scope_names_the_exit_the_others_go_on() {
    let server = refusing_for_a_while(5, |request| request.client == ip(1)).await;
    let exits = Exits::start(4).await;
    let job = Job::of(pages(&server, "p", 200)).unlearned("rate = \"50/s\"\nscope = [\"origin+exit\"]\n");
    job.run_all_done(200, &exits.listed(&job, "http", "")).await;
    let log = server.stop().await;
    let inside = inside(&log, 0);
    assert!(!inside.contains(&Some(1)), "the exit that was refused waits: {inside:?}");
    assert!(inside.len() >= 10, "the others go on: {inside:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn s5_an_exits_own_429_holds_up_no_other_exit() {
    // The exit says it, not the site: it rests as it was told, and the site is open by the other.
    let origin = Origin::start();
    let exits = Exits::start(2).await;
    let mut asked = 0;
    exits.behave(0, move |_| {
        asked += 1;
        if asked == 1 {
            Behaviour::status(429).header("retry-after", "2").closing()
        } else {
            Behaviour::Carry
        }
    });
    let job =
        Job::of(origin.https("p", 240)).env("SSL_CERT_FILE", &origin.ca()).unlearned("rate = \"50/s\"\n");
    job.run_all_done(240, &[&exits.listed(&job, "http", "")[..], &["--max-attempts", "1"]].concat()).await;
    let asked = exits.all[0].asked();
    let until = asked[0].at + secs(2);
    let early = asked[1..].iter().filter(|one| one.at > asked[0].at + GRACE && one.at < until).count();
    assert_eq!(early, 0, "it was asked again before the time that it told");
    assert!(asked.iter().any(|one| one.at >= until), "it is asked again afterwards");
    let seen = origin.seen();
    let gap = seen.windows(2).map(|pair| pair[1].at.saturating_sub(pair[0].at)).max().unwrap();
    assert!(gap < secs(1), "the site was held up for {gap:?} of the 2 s that the exit told");
}
