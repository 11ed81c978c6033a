//! `forbear gate`: an operator's hand on shared scopes while they are in use.

use serde_json::Value;

use crate::{
    fetch_kit::{Job, authority, ms, pages, secs, until, zoo},
    fleet_kit::Store,
};

fn gate(job: &Job, words: &[&str], store: &str) -> (i32, String, String) {
    let out = job.command(&["gate"]).args(words).args(["--gate", store]).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (out.status.code().unwrap(), text(out.stdout), text(out.stderr))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_scope_is_paused_and_resumed_by_hand_while_a_run_uses_it() {
    for store in Store::each().await {
        let address = store.address();
        let server = zoo("open", ms(2)).await;
        let origin = format!("http://{}", authority(&server));
        let job = Job::of(pages(&server, "p", 120)).unlearned("");
        let run = job.start(&["--gate", &address, "--host-rate", "127.0.0.1=40/s"]);
        until("it is under way", || server.log().hits().len() > 10).await;
        let (status, _, said) = gate(&job, &["pause", &origin, "10m"], &address);
        assert!(status == 0 && said.contains("is paused by hand until"), "{said}");
        until("the run says it", || run.said().contains("is paused by hand, pause of")).await;
        tokio::time::sleep(ms(300)).await; // what was on its way
        let sent = server.log().hits().len();
        let scopes = store.scopes(&job);
        assert_eq!(
            (&scopes[0]["state"], &scopes[0]["cause"]),
            (&"paused".into(), &"operator".into()),
            "{scopes:?}"
        );
        let (_, table, _) = gate(&job, &["list"], &address);
        assert!(table.contains(&origin) && table.contains("paused") && table.contains("operator"), "{table}");
        // A shorter pause changes nothing.
        let (_, _, said) = gate(&job, &["pause", &origin, "1s"], &address);
        assert!(said.contains("is paused by hand until"), "{said}");
        tokio::time::sleep(ms(1500)).await;
        assert_eq!(server.log().hits().len(), sent, "nothing is sent");
        let (status, _, said) = gate(&job, &["resume", &origin], &address);
        assert!(status == 0 && said.contains("one request tests it"), "{said}");
        let ran = run.end().await;
        assert_eq!(ran.status, 0, "{}", ran.stderr);
        job.assert_done(120);
        assert!(ran.elapsed < secs(60), "it did not wait for ten minutes: {:?}", ran.elapsed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p2_a_scope_is_opened_by_hand_and_known_by_its_beginning() {
    let store = Store::File(tempfile::TempDir::new().unwrap());
    let address = store.address();
    let job = Job::of(["http://127.0.0.1:9/"]);
    let (status, _, said) = gate(&job, &["list"], &address);
    assert!(status == 6 && said.contains("gates.db"), "nobody has made it: {said}");
    let server = zoo("open", ms(2)).await;
    let work = Job::of(pages(&server, "p", 2));
    work.run_all_done(2, &["--gate", &address]).await;
    // Hosts that nobody has asked yet.
    for host in ["http://a.example", "http://a.example:81", "https://b.example"] {
        let (status, _, said) = gate(&job, &["pause", host, "1h"], &address);
        assert_eq!(status, 0, "{said}");
    }
    let (status, _, said) = gate(&job, &["clear", "http://a.exam"], &address);
    assert!(
        status == 2 && said.contains("http://a.example") && said.contains("http://a.example:81"),
        "{said}"
    );
    let (status, _, said) = gate(&job, &["clear", "https://b."], &address);
    assert!(status == 0 && said.contains("https://b.example is open"), "{said}");
    let (status, _, said) = gate(&job, &["resume", "https://c"], &address);
    assert!(status == 2 && said.contains("no scope is called https://c"), "{said}");
    let (status, shown, _) = gate(&job, &["show", "http://a.example", "--json"], &address);
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert!(
        status == 0 && shown["state"] == "paused" && shown["processes"] == Value::Array(Vec::new()),
        "{shown}"
    );
    let (_, text, _) = gate(&job, &["show", "https://b"], &address);
    // Open, and at the beginning of its way up, as every scope that nobody has asked yet.
    assert!(text.contains("ramping") && text.contains("incidents"), "{text}");
    let (status, _, said) = gate(&job, &["pause", "https://b", "soon"], &address);
    assert!(status == 2 && said.contains("TIME"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn p8_a_jobs_gates_are_read_and_not_changed() {
    let server = zoo("concurrency:max=1,hint=seconds", ms(50)).await;
    let job = Job::of(pages(&server, "p", 20));
    job.run_all_done(20, &[]).await;
    let (status, table, said) = gate(&job, &["list"], "job");
    assert!(status == 0 && table.contains("http://127.0.0.1:"), "{table} {said}");
    let (status, text, _) = gate(&job, &["show", "http://127.0.0.1"], "job");
    assert!(status == 0 && text.contains("incidents"), "{text}");
    let before = std::fs::read(job.path("job")).unwrap();
    let (status, _, said) = gate(&job, &["pause", "http://127.0.0.1", "1m"], "job");
    assert!(status == 2 && said.contains("gates in memory"), "{said}");
    assert_eq!(std::fs::read(job.path("job")).unwrap(), before);
    let out = job.command(&["gate", "list"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2), "no store is named");
}
