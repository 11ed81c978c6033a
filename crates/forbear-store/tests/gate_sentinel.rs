//! The suite of gate stores on a Redis that sentinels watch over, with failovers in the middle.

mod gate_kit;

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use forbear_core::gate::{Cause, Check};
use forbear_store::gate::{RedisGates, SharedOptions, StoreError};
use gate_kit::{
    eventually,
    redis::{Processes, join, pause_left},
    refuse, scope,
    several::TestSentinels,
    take,
};

gate_conformance!(Processes<TestSentinels>);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_failover_ends_no_pause() {
    let mut servers = TestSentinels::start().await;
    let ((one, lost), (other, _)) = (join(&servers).await, join(&servers).await);
    let a = scope("http://a:80");
    let sent = take(&*one, &a).await.1.unwrap();
    let _ = refuse(&*one, &a, sent, Duration::from_secs(100)).await;
    eventually("the other hears of it", || async { pause_left(&other, &a).await > Duration::from_secs(90) })
        .await;
    servers.servers[0].kill();
    for gates in [&one, &other] {
        eventually("it notices", || async { gates.is_alone() || lost.load(SeqCst) > 0 }).await;
        assert!(matches!(take(&**gates, &a).await.0, Check::Wait { cause: Cause::Told, .. }));
    }
    servers.has_failed_over().await;
    for gates in [&one, &other] {
        eventually("it finds the new primary", || async { !gates.is_alone() }).await;
        assert!(pause_left(gates, &a).await > Duration::from_secs(60));
    }
    let (fresh, _) = join(&servers).await;
    assert!(pause_left(&fresh, &a).await > Duration::from_secs(60));
}

/// The replicas hear nothing for a while, and then one of them is the primary: what was acknowledged in between is gone there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_failover_that_lost_writes_gets_the_pause_back() {
    let mut servers = TestSentinels::start().await;
    let ((one, lost), (other, _)) = (join(&servers).await, join(&servers).await);
    let a = scope("http://a:80");
    let sent = [take(&*one, &a).await.1.unwrap(), take(&*one, &a).await.1.unwrap()];
    let _ = refuse(&*one, &a, sent[0], Duration::from_secs(30)).await;
    eventually("the other hears of it", || async { pause_left(&other, &a).await > Duration::from_secs(20) })
        .await;
    let known = pause_left(&one, &a).await;
    tokio::time::sleep(Duration::from_millis(300)).await; // the replicas have that
    servers.servers[1..].iter().for_each(|replica| replica.stop());
    let _ = refuse(&*one, &a, sent[1], Duration::from_secs(200)).await;
    assert!(known < Duration::from_secs(60) && pause_left(&one, &a).await > Duration::from_secs(150));
    servers.servers[0].kill();
    servers.servers[1..].iter().for_each(|replica| replica.go_on());
    servers.has_failed_over().await;
    eventually("both find the new primary", || async {
        lost.load(SeqCst) > 0 && !one.is_alone() && !other.is_alone()
    })
    .await;
    let (fresh, _) = join(&servers).await;
    for gates in [&fresh, &other, &one] {
        eventually("of two pauses the longer one holds", || async {
            pause_left(gates, &a).await > Duration::from_secs(120)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_sentinel_that_hangs_holds_up_nobody() {
    let servers = TestSentinels::start().await;
    servers.sentinels[0].stop();
    let (one, _) = join(&servers).await;
    assert!(take(&*one, &scope("http://a:80")).await.1.is_some());
    servers.sentinels[0].go_on();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k1_sentinels_and_servers_have_passwords_of_their_own() {
    let servers = TestSentinels::start_with("hunter2").await;
    let (one, _) = join(&servers).await;
    assert!(take(&*one, &scope("http://a:80")).await.1.is_some());
    for (right, wrong) in [(":hunter2@", ":hunter3@"), ("hunter2-s", "hunter3-s")] {
        let url = servers.url().replace(right, wrong);
        let error = RedisGates::connect(&url, SharedOptions::default()).await.unwrap_err();
        let all = format!("{error} {error:?}");
        assert!(matches!(error, StoreError::Unreachable(_)) && !all.contains("hunter"), "{all}");
    }
    let unknown = servers.url().replace("/main", "/other");
    assert!(RedisGates::connect(&unknown, SharedOptions::default()).await.is_err());
}
