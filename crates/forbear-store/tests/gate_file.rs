//! The suite of gate stores on a file, with what a file can suffer.

mod gate_kit;

use std::{path::PathBuf, sync::Arc, time::Duration};

use forbear_core::{
    gate::Sent,
    learn::Belief,
    policy::{BoundScope, ScopePolicy},
};
use forbear_store::gate::{FileGates, GateAddress, GateDesk, SharedEvent, SharedOptions};
use gate_kit::{MS, eventually, look, refuse, scope, sleep, succeed, take};
use tempfile::TempDir;

struct Machine(TempDir);

impl Machine {
    fn path(&self) -> PathBuf {
        self.0.path().join("gates.db")
    }
}

impl gate_kit::Fleet for Machine {
    type Store = FileGates;

    async fn start() -> Machine {
        Machine(tempfile::tempdir().unwrap())
    }

    async fn member(&self) -> Arc<FileGates> {
        Arc::new(FileGates::open(&self.path(), SharedOptions::default()).await.unwrap())
    }

    async fn small(&self, scopes_max: usize) -> Arc<FileGates> {
        let options = SharedOptions { scopes_max, ..SharedOptions::default() };
        Arc::new(FileGates::open(&self.path(), options).await.unwrap())
    }
}

gate_conformance!(Machine);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p1_a_pause_is_called_out() {
    let machine = <Machine as gate_kit::Fleet>::start().await;
    let (heard, mut calls) = tokio::sync::mpsc::unbounded_channel();
    let events = move |event| drop(heard.send(event));
    let options = SharedOptions { events: Arc::new(events), ..SharedOptions::default() };
    let other = FileGates::open(&machine.path(), options).await.unwrap();
    // A process that is gone has left its socket, and one that is stopped does not read: neither holds up the call.
    let left = machine.0.path().join("gates.db.news/0-dead");
    drop(std::os::unix::net::UnixDatagram::bind(&left).unwrap());
    let _stopped =
        std::os::unix::net::UnixDatagram::bind(machine.0.path().join("gates.db.news/0-stopped")).unwrap();
    let one = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
    let a = scope("http://a:80");
    look(&other, &a, |_, _| ()).await;
    let asked = other.counts().round_trips;
    for wait in 1..200 {
        let mut sent = take(&one, &a).await.1;
        let _ = refuse(&one, &a, sent.take().unwrap_or_default(), Duration::from_secs(100 + wait)).await;
    }
    let call = tokio::time::timeout(Duration::from_secs(5), calls.recv()).await.unwrap();
    assert!(matches!(call, Some(SharedEvent::Changed { .. })), "{call:?}");
    eventually("all of it is heard", || async {
        let left = look(&other, &a, |gate, now| gate.pause_at(now).map(|(until, _)| until.since(now))).await;
        left.is_some_and(|left| left > Duration::from_secs(290))
    })
    .await;
    assert!(other.counts().round_trips < asked + 50, "it did not have to ask each time");
    assert!(!left.exists(), "what a dead process left is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_a_pause_outlives_every_process() {
    let machine = <Machine as gate_kit::Fleet>::start().await;
    let a = scope("http://a:80");
    {
        let gates = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
        let sent = take(&gates, &a).await.1.unwrap();
        let _ = refuse(&gates, &a, sent, Duration::from_secs(100)).await;
    }
    let gates = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
    let left = look(&gates, &a, |gate, now| gate.pause_at(now).map(|(until, _)| until.since(now))).await;
    assert!(left.is_some_and(|left| left > Duration::from_secs(90)), "{left:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f1_a_process_that_holds_the_file_stops_nobody_else() {
    let machine = <Machine as gate_kit::Fleet>::start().await;
    let gates = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
    let (a, b) = (scope("http://a:80"), scope("http://b:80"));
    let sent = take(&gates, &a).await.1.unwrap();
    let _ = refuse(&gates, &a, sent, Duration::from_secs(100)).await;
    let holder = rusqlite::Connection::open(machine.path()).unwrap();
    holder.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert!(take(&gates, &b).await.1.is_some());
    assert!(gates.is_alone(), "after one wait");
    assert!(take(&gates, &a).await.1.is_none(), "the pause holds");
    let sent = take(&gates, &b).await.1.unwrap();
    let _ = refuse(&gates, &b, sent, Duration::from_secs(50)).await;
    holder.execute_batch("ROLLBACK").unwrap();
    eventually("it is back", || async { !gates.is_alone() }).await;
    let other = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
    eventually("what happened meanwhile is known", || async { take(&other, &b).await.1.is_none() }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn j4_what_is_no_file_of_gates_is_left_as_it_is() {
    let machine = <Machine as gate_kit::Fleet>::start().await;
    std::fs::write(machine.path(), [7; 4096]).unwrap();
    assert!(FileGates::open(&machine.path(), SharedOptions::default()).await.is_err());
    assert_eq!(std::fs::read(machine.path()).unwrap(), [7; 4096]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s1_those_who_make_the_file_together_all_get_it() {
    for _ in 0..20 {
        let machine = <Machine as gate_kit::Fleet>::start().await;
        let opening: Vec<_> = (0..8)
            .map(|_| {
                let path = machine.path();
                tokio::spawn(async move { FileGates::open(&path, SharedOptions::default()).await })
            })
            .collect();
        for gates in opening {
            assert!(gates.await.unwrap().map_err(|error| error.to_string()).is_ok(), "one was refused");
        }
    }
}

/// Starts a request, however long it must wait for its slot.
async fn start(gates: &FileGates, scope: &BoundScope) -> Sent {
    for _ in 0..2000 {
        if let Some(sent) = take(gates, scope).await.1 {
            return sent;
        }
        sleep(5 * MS).await;
    }
    panic!("it never starts");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l5_what_one_process_learned_for_all_survives_it() {
    let machine = <Machine as gate_kit::Fleet>::start().await;
    let policy = ScopePolicy { jitter: 0.0, pace_start: 4.0, ..ScopePolicy::default() };
    let a = gate_kit::scope_with("http://a:80", policy);
    let one = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
    let desk = GateDesk::open(&GateAddress::File(machine.path())).await.unwrap();
    let seen = || async { desk.scope(&a.key).await.unwrap().map(|seen| (seen.owner, seen.belief)) };
    let met = |belief: Option<Belief>| belief.is_some_and(|belief| belief.evidence.incidents > 0);
    for _ in 0..36 {
        let sent = start(&one, &a).await;
        let _ = succeed(&one, &a, sent).await;
    }
    // By now it may take the scope for free of any limit, and then nobody learns of it until one is met.
    let sent = start(&one, &a).await;
    let _ = refuse(&one, &a, sent, Duration::from_millis(300)).await;
    eventually("it learns", || async { one.learns_of() == 1 }).await;
    let probe = start(&one, &a).await;
    let _ = succeed(&one, &a, probe).await;
    eventually("what it learned is seen", || async {
        seen().await.is_some_and(|(owner, belief)| owner.is_some() && met(belief))
    })
    .await;
    let (first, _) = seen().await.unwrap();
    drop(one); // as if it were killed: it says nothing
    let other = FileGates::open(&machine.path(), SharedOptions::default()).await.unwrap();
    eventually("another learns on", || async {
        let sent = start(&other, &a).await;
        let _ = succeed(&other, &a, sent).await;
        other.learns_of() == 1
    })
    .await;
    eventually("of what was known", || async {
        seen().await.is_some_and(|(owner, belief)| owner.is_some() && owner != first && met(belief))
    })
    .await;
}
