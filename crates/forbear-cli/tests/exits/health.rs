//! E1 to E3: an exit that is broken, or burnt at a site, is left alone there and only there.

use forbear_zoo::proxy::Behaviour;
use forbear_zoo::{Answer, Facts, Server, ServerOptions};

use crate::exit_kit::{Exits, assert_never_direct, exit_of, ip};
use crate::kit::{self, Job, authority, ms, pages, scripted, started, zoo};

/// A site that refuses everything that one exit brings.
async fn refusing(exit: usize) -> Server {
    let limiter = move |_, request: &Facts<'_>| match request.client == ip(exit) {
        true => Answer::refused(429),
        false => Answer::ok(),
    };
    started(limiter, ServerOptions { latency: ms(5), ..ServerOptions::default() }).await
}

const ITEMS_PER_SITE: u32 = 300;
/// What it takes to find out.
const LEARNING: usize = 100;
const DEAD: usize = 1;
const REJECTING: usize = 4;
const BURNT: usize = 7;

/// Ten exits of which one is dead, one rejects us, and one is refused at one of three sites.
async fn ten_exits(flags: &[&str], config: &str) {
    let (a, burning, c) = (zoo("open", ms(5)).await, refusing(BURNT).await, zoo("open", ms(5)).await);
    let exits = Exits::start(10).await;
    exits.behave(DEAD, |_| Behaviour::ResetBefore);
    exits.behave(REJECTING, |_| Behaviour::status(407).closing());
    let sites = [&a, &burning, &c].map(|site| pages(site, "p", ITEMS_PER_SITE));
    let items = sites.iter().map(Vec::len).sum();
    // The sites in turn, as a list that was written by hand would have them.
    let lines = (0..ITEMS_PER_SITE as usize).flat_map(|page| sites.iter().map(move |site| &site[page]));
    let job = Job::of(lines).config(config);
    let listed = exits.listed(&job, "http", "me:secret");
    let ran = job.run_all_done(items, &[&listed[..], flags].concat()).await;

    let passed = exits.passed();
    let late = &passed[LEARNING..];
    let share = |what: &str, count: usize, of: usize| {
        eprintln!("{what}: {count} of {of} requests after the first {LEARNING}");
        assert!(count * 50 <= of, "{what}: {count} of {of}\n{}", ran.stderr);
    };
    share("the dead one", late.iter().filter(|one| one.exit == DEAD).count(), late.len());
    share("the one that rejects us", late.iter().filter(|one| one.exit == REJECTING).count(), late.len());
    let there: Vec<_> = late.iter().filter(|one| one.origin == authority(&burning)).collect();
    share("the burnt one, at its site", there.iter().filter(|one| one.exit == BURNT).count(), there.len());
    let elsewhere: Vec<_> = late.iter().filter(|one| one.origin != authority(&burning)).collect();
    let works = elsewhere.iter().filter(|one| one.exit == BURNT).count();
    eprintln!("the burnt one, at the other sites: {works} of {}", elsewhere.len());
    // An even share would be an eighth.
    assert!(works * 25 >= elsewhere.len(), "it no longer works elsewhere: {works} of {}", elsewhere.len());
    for site in [a, burning, c] {
        assert_never_direct(&site.stop().await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_proxy_queue_of_ten_exits_the_broken_ones_get_hardly_a_request() {
    ten_exits(&["--policy", "proxy-queue"], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_exit_state_of_ten_exits_the_broken_ones_get_hardly_a_request() {
    ten_exits(&["--policy", "exit-state"], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_of_ten_exits_the_broken_ones_get_hardly_a_request_where_the_scope_is_the_exit() {
    ten_exits(&[], "scope = [\"origin+exit\"]\n").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_the_load_is_spread_over_all_good_exits() {
    let server = zoo("open", ms(10)).await;
    let exits = Exits::start(5).await;
    let job = Job::of(pages(&server, "p", 300));
    job.run_all_done(300, &exits.listed(&job, "http", "")).await;
    let log = server.stop().await;
    assert_never_direct(&log);
    for index in 0..5 {
        let count = log.hits().iter().filter(|hit| exit_of(hit) == Some(index)).count();
        assert!(count >= 20, "exit {index} had {count} of 300, where 60 would be even");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e1_exit_state_an_exit_that_was_blocked_stays_away_from_that_site_alone() {
    // The fifth request by one exit is denied; it is the site's only denial.
    const DENIED: usize = 2;
    let mut by_it = 0;
    let site = scripted(move |_, request| {
        by_it += usize::from(request.client == ip(DENIED));
        match by_it {
            5 if request.client == ip(DENIED) => Answer::refused(403),
            _ => Answer::ok(),
        }
    })
    .await;
    let other = zoo("open", ms(5)).await;
    let exits = Exits::start(4).await;
    let job = Job::of([pages(&site, "p", 200), pages(&other, "p", 200)].concat())
        .config("policy = \"exit-state\"\nrate = \"60/s\"\n");
    let listed = exits.listed(&job, "http", "");
    job.run_all_done(400, &listed).await;
    let log = site.stop().await;
    let denied = log.refused().next().expect("it was denied");
    // What was on its way already knew nothing of it.
    let known = denied.sent.unwrap() + kit::GRACE;
    let again = log.hits().iter().filter(|hit| hit.at > known && exit_of(hit) == Some(DENIED)).count();
    assert_eq!(again, 0, "the pair rests for 300 s at least");
    let done_by_another = log.of(&denied.path).filter(|hit| hit.status == 200).map(exit_of).next().flatten();
    assert!(done_by_another.is_some_and(|exit| exit != DENIED), "{done_by_another:?}");
    let elsewhere = other.stop().await;
    let late = elsewhere.hits().iter().rev().take(100).filter(|hit| exit_of(hit) == Some(DENIED)).count();
    assert!(late >= 5, "it works on elsewhere: {late} of the last 100");
}
