//! Exits under an HTTP client that is not ours: who may go when, what an answer means, what is given back.

#[path = "../examples/exit_pool.rs"]
mod example;

use std::time::Duration;

use forbear::exit::{
    Entry, Exit, ExitChange, ExitError, ExitFault, ExitPolicy, ExitPool, ExitUrl, FailReason, GivenBy, Item,
    ItemPolicy, Offer, Outcome, PoolOptions, Processed, Received, Rotate, ScopePolicy, Usable, Verdict,
};
use http::{HeaderMap, HeaderName};

const SITE: &str = "http://shop.example/";
const PASSWORD: &str = "p@ss/w0rd";

fn exits(count: usize) -> Vec<ExitUrl> {
    let exit = |n| format!("http://me-sess-{{session}}:{PASSWORD}@203.0.113.{n}:8080").parse().unwrap();
    (1..=count).map(exit).collect()
}

/// So many exits with one request at a time for each at an origin.
fn narrow(count: usize) -> ExitPool {
    let pace_start = f32::INFINITY;
    let scope =
        ScopePolicy { concurrency_start: 1, concurrency_max: 1, pace_start, ..ScopePolicy::default() };
    ExitPool::new(exits(count), PoolOptions { scope, ..PoolOptions::default() })
}

/// Nothing paces what these tests are not about.
fn unpaced() -> PoolOptions {
    let scope = ScopePolicy { pace_start: f32::INFINITY, ..ScopePolicy::default() };
    PoolOptions { scope, ..PoolOptions::default() }
}

fn wide(count: usize) -> ExitPool {
    ExitPool::new(exits(count), unpaced())
}

fn heads(fields: &[(&'static str, &str)]) -> HeaderMap {
    fields.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
}

async fn serve(pool: &ExitPool) -> String {
    let mut item = Item::new();
    let exit = pool.exit(SITE, &item).await.unwrap();
    let name = exit.name().to_owned();
    let report = exit.answered(&mut item, Received::new(200, &HeaderMap::new())).await.unwrap();
    assert_eq!((report.verdict, report.again()), (Verdict::Done, None));
    name
}

async fn offered(pool: &ExitPool, item: &Item) -> Exit {
    match pool.try_exit(SITE, item).await.unwrap() {
        Offer::Exit(exit) => exit,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn e2_the_example_fetches_everything_by_the_exits_that_live() {
    let fetched = example::run(60).await.unwrap();
    assert_eq!(fetched.values().sum::<usize>(), 60, "{fetched:?}");
    assert_eq!(fetched.len(), 2, "{fetched:?}");
    assert!(fetched.keys().all(|name| !name.starts_with("http://127.0.0.4:")), "{fetched:?}");
}

#[tokio::test]
async fn e4_an_exit_tells_the_client_all_and_a_log_nothing() {
    let pool = ExitPool::new(exits(1), unpaced());
    let exit = pool.exit(SITE, &Item::new()).await.unwrap();
    let (user, password) = exit.url().credentials().unwrap();
    let token = user.strip_prefix(b"me-sess-").unwrap();
    assert!(token.len() == 16 && token.iter().all(u8::is_ascii_alphanumeric), "{}", token.escape_ascii());
    assert_eq!(password, PASSWORD.as_bytes());
    let token = String::from_utf8_lossy(token);
    let url = format!("http://me-sess-{token}:p%40ss%2Fw0rd@203.0.113.1:8080");
    assert_eq!(exit.proxy_url().expose(), url);
    assert_eq!(exit.name(), "http://203.0.113.1:8080");
    let said = format!("{exit:?} {pool:?} {:?} {:?}", exit.proxy_url(), pool.rows());
    for secret in [PASSWORD, "p%40ss", &token] {
        assert!(!said.contains(secret), "{said}");
    }
    assert_eq!(exit.secrets().unwrap().hide("407: p@ss/w0rd is wrong"), "407: *** is wrong");
}

#[tokio::test]
async fn e4_a_token_lasts_until_the_exit_is_left() {
    let policy = ExitPolicy { rotate: Rotate::Never, ..ExitPolicy::default() };
    let pool = ExitPool::new(exits(1), PoolOptions { exits: policy, ..unpaced() });
    serve(&pool).await;
    let (first, second) = (pool.exit(SITE, &Item::new()).await.unwrap(), Item::new());
    assert_eq!(offered(&pool, &second).await.url(), first.url());
    let (session, url) = (first.session(), first.url().clone());
    let report = first.failed(&mut Item::new(), Outcome::EXIT_BROKEN).await.unwrap();
    assert!(report.left && matches!(report.change, ExitChange::Failed { .. }), "{report:?}");
    let next = pool.exit(SITE, &Item::new()).await.unwrap();
    assert!(next.session() != session && *next.url() != url);
}

#[tokio::test]
async fn e2_without_rotation_whoever_waits_for_an_exit_of_its_own_holds_up_nobody() {
    let policy = ExitPolicy { rotate: Rotate::Never, ..ExitPolicy::default() };
    let pool = ExitPool::new(exits(2), PoolOptions { exits: policy, ..unpaced() });
    let mut item = Item::new();
    let refusal = heads(&[("retry-after", "600")]);
    let exit = pool.exit(SITE, &item).await.unwrap();
    let _ = exit.answered(&mut item, Received::new(429, &refusal)).await.unwrap();
    let (theirs, waiting) = (pool.clone(), item.clone());
    let waits = tokio::spawn(async move { theirs.exit(SITE, &waiting).await.map(drop) });
    tokio::task::yield_now().await;
    for _ in 0..3 {
        // By the other one, with nobody in the way; else it hangs.
        tokio::time::timeout(Duration::from_secs(60), serve(&pool)).await.unwrap();
    }
    assert!(!waits.is_finished());
    waits.abort();
}

#[tokio::test]
async fn c2_an_exit_that_is_dropped_gives_everything_back() {
    let pool = narrow(1);
    for _ in 0..3 {
        let held = offered(&pool, &Item::new()).await;
        assert!(matches!(pool.try_exit(SITE, &Item::new()).await.unwrap(), Offer::Busy));
        drop(held);
    }
    assert_eq!(pool.rows()[0].tally.requests, 0, "nothing was ever sent");
    serve(&pool).await;
}

#[tokio::test]
async fn c2_whoever_waits_is_called_when_a_place_is_free_and_may_leave_at_any_time() {
    let pool = narrow(2);
    serve(&pool).await;
    serve(&pool).await;
    let held = [offered(&pool, &Item::new()).await, offered(&pool, &Item::new()).await];
    let waiting: Vec<_> = (0..20)
        .map(|n| {
            let pool = pool.clone();
            tokio::spawn(async move {
                let mut item = Item::new();
                let exit = pool.exit(SITE, &item).await.unwrap();
                tokio::task::yield_now().await;
                match n % 3 {
                    0 => drop(exit),
                    1 => _ = exit.failed(&mut item, Outcome::NotTaken).await.unwrap(),
                    _ => _ = exit.answered(&mut item, Received::new(200, &HeaderMap::new())).await.unwrap(),
                }
            })
        })
        .collect();
    tokio::task::yield_now().await;
    assert!(waiting.iter().all(|task| !task.is_finished()));
    for task in waiting.iter().step_by(2) {
        task.abort();
    }
    drop(held);
    let mut ended = 0;
    for task in waiting {
        ended += usize::from(task.await.is_ok());
    }
    assert_eq!(ended, 10, "all that did not leave");
    drop([offered(&pool, &Item::new()).await, offered(&pool, &Item::new()).await]);
}

#[tokio::test]
async fn s5_a_refusal_is_the_exits_until_a_second_one_is_refused() {
    let pool = wide(3);
    for _ in 0..12 {
        serve(&pool).await;
    }
    let refused = heads(&[("retry-after", "7")]);
    let (mut item, mut other) = (Item::new(), Item::new());
    let first = pool.exit(SITE, &item).await.unwrap();
    let name = first.name().to_owned();
    let report = first.answered(&mut item, Received::new(429, &refused)).await.unwrap();
    assert!(matches!(report.verdict, Verdict::Elsewhere { .. }) && report.left, "{report:?}");
    let second = offered(&pool, &other).await;
    assert_ne!(second.name(), name, "the refused one rests");
    let report = second.answered(&mut other, Received::new(429, &refused)).await.unwrap();
    assert!(matches!(report.verdict, Verdict::Hold { .. }), "{report:?}");
    // The third has not been refused, and gets nothing either: the limit is everybody's.
    match pool.try_exit(SITE, &Item::new()).await.unwrap() {
        Offer::Wait(wait) => assert!(wait > Duration::from_secs(5), "{wait:?}"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(pool.try_exit("http://b.example/", &Item::new()).await.unwrap(), Offer::Exit(_)));
}

#[tokio::test]
async fn e5_when_each_exit_has_turned_us_away_there_is_none() {
    let pool = wide(2);
    let mut item = Item::new();
    for _ in 0..2 {
        let exit = pool.exit(SITE, &item).await.unwrap();
        let report = exit.failed(&mut item, Outcome::EXIT_REJECTS_US).await.unwrap();
        assert_eq!(report.verdict, Verdict::Elsewhere { after: Duration::ZERO });
        assert_eq!(report.change, ExitChange::Out);
    }
    assert_eq!(pool.usable(), Usable::Out);
    let error = pool.exit(SITE, &item).await.unwrap_err();
    assert!(matches!(error, ExitError::NoExit { exits: 2 }), "{error}");
    let none = ExitPool::new(Vec::<ExitUrl>::new(), unpaced());
    assert!(matches!(none.exit(SITE, &item).await, Err(ExitError::NoExit { exits: 0 })));
    assert!(matches!(none.exit("shop.example", &item).await, Err(ExitError::Url(_))));
}

#[tokio::test]
async fn e1_an_exits_own_answer_is_not_the_origins() {
    let squid = heads(&[("x-squid-error", "ERR_READ_TIMEOUT 0")]);
    let (none, rejects) = (HeaderMap::new(), ExitFault::Rejected);
    let exit = |fault, processed| Outcome::Exit { fault, processed };
    for (status, headers, tunnel, twice, outcome, elsewhere) in [
        (407, &none, false, true, exit(rejects, Processed::No), true),
        (407, &none, false, false, exit(rejects, Processed::No), true),
        (504, &squid, false, true, exit(ExitFault::Silent, Processed::Unknown), true),
        // V2: the exit had passed it on, so nobody knows what became of it.
        (504, &squid, false, false, exit(ExitFault::Silent, Processed::Unknown), false),
        (504, &squid, true, true, Outcome::Overloaded, false),
        (407, &none, true, true, Outcome::Rejected, false),
    ] {
        let pool = wide(5);
        let mut item = if twice { Item::new() } else { Item::new().not_twice() };
        let asked = pool.exit(SITE, &item).await.unwrap();
        let received = Received { tunnel, ..Received::new(status, headers) };
        let report = asked.answered(&mut item, received).await.unwrap();
        assert_eq!(report.outcome, outcome, "{status} {tunnel}");
        let found = matches!(report.verdict, Verdict::Elsewhere { .. });
        assert_eq!(found, elsewhere, "{status} {tunnel} {twice}: {report:?}");
        assert_eq!(report.verdict == Verdict::Unknown, !twice && status == 504, "{report:?}");
    }
}

#[tokio::test]
async fn v1_only_what_counts_uses_up_an_items_attempts() {
    let item_policy = ItemPolicy { max_attempts: 2, ..ItemPolicy::default() };
    let pool = ExitPool::new(exits(4), PoolOptions { item: item_policy, ..unpaced() });
    let mut item = Item::new();
    let mut last = None;
    for outcome in [
        Outcome::EXIT_BROKEN,
        Outcome::NotTaken,
        Outcome::EXIT_BROKEN,
        Outcome::NO_ANSWER,
        Outcome::NO_ANSWER,
    ] {
        let exit = pool.exit(SITE, &item).await.unwrap();
        last = Some(exit.failed(&mut item, outcome).await.unwrap().verdict);
    }
    assert_eq!((last, item.tries()), (Some(Verdict::Fail(FailReason::Attempts)), 5));
}

#[tokio::test]
async fn e2_a_redirect_goes_on_by_the_exit_that_it_came_by() {
    let pool = wide(8);
    for _ in 0..100 {
        serve(&pool).await;
    }
    for _ in 0..20 {
        let mut item = Item::new();
        let exit = pool.exit(SITE, &item).await.unwrap();
        let name = exit.name().to_owned();
        let location = heads(&[("location", "/b")]);
        _ = exit.answered(&mut item, Received::new(302, &location)).await.unwrap();
        assert_eq!(offered(&pool, &item).await.name(), name);
    }
}

#[tokio::test]
async fn e2_prices_and_gateways_come_with_the_entries() {
    let line = |text: &str| Entry::parse(text, GivenBy::Other).unwrap().unwrap();
    let list = [line("http://203.0.113.1:1 price_per_request=2"), line("http://203.0.113.1:1 gateway")];
    let pool = ExitPool::new(list, unpaced());
    for _ in 0..40 {
        serve(&pool).await;
    }
    let rows = pool.rows();
    assert_eq!(
        rows.iter().map(|row| &*row.name).collect::<Vec<_>>(),
        ["http://203.0.113.1:1", "http://203.0.113.1:1#2"]
    );
    assert!(rows[1].tally.requests > rows[0].tally.requests, "the cheaper of two that serve: {rows:?}");
    assert_eq!(rows[0].cost, Some(2.0 * rows[0].tally.requests as f64));
    assert_eq!(rows[1].cost, None);
}
