//! The suite of gate stores on a Redis Cluster of three, with what a cluster does: slots that move, servers that die, clocks that
//! differ.

mod gate_kit;

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use forbear_core::gate::{Cause, Check};
use forbear_store::gate::{GateAddress, GateDesk};
use gate_kit::{
    MS, eventually, look,
    redis::{Processes, join, pause_left},
    refuse, scope,
    several::TestCluster,
    sleep, succeed, take,
};

gate_conformance!(Processes<TestCluster>);

fn key(origin: &str) -> String {
    format!("forbear:gate:{{{origin}}}{origin}")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_all_scopes_of_an_origin_are_one_step_wherever_the_origin_lies() {
    let cluster = TestCluster::start().await;
    let (one, _) = join(&cluster).await;
    let mut places = [false; 3];
    for host in 0..12 {
        let names = ["", " account=k", " endpoint=/a", " exit=http://p:1"];
        let scopes: Vec<_> = names.iter().map(|more| scope(&format!("http://h{host}:80{more}"))).collect();
        let asked = one.counts().round_trips;
        let decision = gate_kit::acquire(&*one, &scopes).await.unwrap();
        assert!(matches!(decision, forbear_core::attempt::Decision::Admit(_)), "{decision:?}");
        assert!(
            one.counts().round_trips <= asked + 2,
            "the first time it finds them empty, then it is one step"
        );
        places[cluster.slot(&key(&format!("http://h{host}:80"))).await.1] = true;
    }
    assert_eq!(places, [true; 3], "they lie on all three");
    let (desk, mut seen) = (GateDesk::open(&cluster.url().parse::<GateAddress>().unwrap()).await.unwrap(), 0);
    desk.scopes(|_| seen += 1).await.unwrap();
    assert_eq!(seen, 48, "an operator sees those of every server");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_slot_that_moves_is_followed_and_nothing_of_it_is_lost() {
    let cluster = TestCluster::start().await;
    let ((one, lost), (other, _)) = (join(&cluster).await, join(&cluster).await);
    let (a, b) = (scope("http://a:80"), scope("http://b:80"));
    for gates in [&one, &other] {
        let sent = take(&**gates, &a).await.1.unwrap();
        let _ = succeed(&**gates, &a, sent).await;
    }
    let sent = take(&*one, &a).await.1.unwrap();
    let (slot, from) = cluster.slot(&key("http://a:80")).await;
    let (slot, to) = (slot.to_string(), (from + 1) % 3);
    let (source, target) = (&cluster.nodes[from], &cluster.nodes[to]);
    let (source_id, target_id) = (source.id().await, target.id().await);
    let () = target.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &source_id]).await.unwrap();
    let () = source.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &target_id]).await.unwrap();
    let port = target.port.to_string();
    let () = source.ask(&["MIGRATE", "127.0.0.1", &port, &key("http://a:80"), "0", "1000"]).await.unwrap();
    // Half-way: whoever asks where it was is sent on (ASK).
    let _ = refuse(&*one, &a, sent, Duration::from_secs(100)).await;
    eventually("the other hears of it", || async { pause_left(&other, &a).await > Duration::from_secs(90) })
        .await;
    for node in [target, source] {
        let () = node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &target_id]).await.unwrap();
    }
    // All the way: it is there for good (MOVED).
    let (fresh, _) = join(&cluster).await;
    for gates in [&one, &other, &fresh] {
        assert!(matches!(take(&**gates, &a).await.0, Check::Wait { cause: Cause::Told, .. }));
        let sent = take(&**gates, &b).await.1.unwrap();
        let _ = succeed(&**gates, &b, sent).await;
    }
    assert_eq!(lost.load(SeqCst), 0, "the store was there all the time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_server_of_a_cluster_that_dies_is_replaced_and_no_pause_is_lost() {
    let mut cluster = TestCluster::start_with(1).await;
    let ((one, lost), (other, _)) = (join(&cluster).await, join(&cluster).await);
    let scopes: Vec<_> = (0..9).map(|n| scope(&format!("http://h{n}:80"))).collect();
    for a in &scopes {
        let sent = take(&*one, a).await.1.unwrap();
        let _ = refuse(&*one, a, sent, Duration::from_secs(100)).await;
        eventually("the other hears of it", || async {
            pause_left(&other, a).await > Duration::from_secs(90)
        })
        .await;
    }
    let victim = cluster.slot(&key("http://h0:80")).await.1;
    cluster.nodes[victim].kill();
    // It asks a scope there, notices, and goes on alone with what it knows.
    for gates in [&one, &other] {
        eventually("it is noticed, or over already", || async {
            look(&**gates, &scopes[0], |_, _| ()).await;
            gates.is_alone() || lost.load(SeqCst) > 0
        })
        .await;
        for a in &scopes {
            assert!(matches!(take(&**gates, a).await.0, Check::Wait { cause: Cause::Told, .. }));
        }
    }
    cluster.is_whole().await;
    for gates in [&one, &other] {
        eventually("it is back", || async { !gates.is_alone() }).await;
    }
    let (fresh, _) = join(&cluster).await;
    for a in &scopes {
        eventually("who comes new knows", || async { pause_left(&fresh, a).await > Duration::from_secs(60) })
            .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_cluster_with_a_hole_is_lost_and_found_again() {
    let mut cluster = TestCluster::start().await;
    let (one, lost) = join(&cluster).await;
    let (a, mut sent) = (scope("http://a:80"), None);
    while sent.is_none() {
        sent = take(&*one, &a).await.1;
    }
    let _ = refuse(&*one, &a, sent.unwrap(), Duration::from_secs(100)).await;
    let victim = cluster.slot(&key("http://a:80")).await.1;
    cluster.nodes[victim].kill();
    eventually("it is noticed", || async {
        let _ = take(&*one, &scope("http://b:80")).await;
        look(&*one, &a, |_, _| ()).await;
        one.is_alone()
    })
    .await;
    assert!(matches!(take(&*one, &a).await.0, Check::Wait { cause: Cause::Told, .. }));
    sleep(300 * MS).await;
    assert_eq!(lost.load(SeqCst), 1, "and said once");
    cluster.nodes[victim].restart().await; // its slots, and none of its keys
    cluster.is_whole().await;
    eventually("it is back", || async { !one.is_alone() }).await;
    let (fresh, _) = join(&cluster).await;
    eventually("the pause is put back", || async { pause_left(&fresh, &a).await > Duration::from_secs(60) })
        .await;
}
