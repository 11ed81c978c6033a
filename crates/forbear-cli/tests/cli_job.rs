//! `forbear job` on jobs made by the queue itself: what is shown, listed, exported and put back.

mod common;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::Stdio,
    sync::{Arc, OnceLock},
    time::Duration,
};

use common::{Output, forbear, run};
use forbear_core::{
    evidence::Tally,
    gate::{Budget, Gate, Told},
    policy::ScopePolicy,
    time::Timestamp,
};
use forbear_store::{gate, queue::*};
use serde_json::Value;

/// A planted secret: nothing that is printed may hold it (K1).
const SECRET: &str = "s3cretvalue";

/// A directory with a job in it.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Place {
        Place(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn open(&self, output: OutputTarget) -> Job {
        Job::open(self.path("out.jsonl.job"), JobOptions::new(output), Arc::new(|_| {})).unwrap()
    }

    fn open_file(&self) -> Job {
        self.open(OutputTarget::File(self.path("out.jsonl")))
    }

    /// `forbear job ARGS`, in the directory.
    fn job(&self, args: &[&str]) -> Output {
        let out = run(forbear(&[&["job"], args].concat()).current_dir(self.0.path()), b"");
        assert!(!out.stdout.contains(SECRET) && !out.stderr.contains(SECRET), "{}{}", out.stdout, out.stderr);
        out
    }

    /// The same where it must succeed.
    fn ok(&self, args: &[&str]) -> String {
        let out = self.job(args);
        assert_eq!(out.status, 0, "{args:?}: {}", out.stderr);
        out.stdout
    }

    fn export(&self) -> Vec<Value> {
        json_lines(&self.ok(&["export", "out.jsonl.job"]))
    }
}

fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(work)
}

fn now() -> Timestamp {
    Timestamp::ZERO.plus(std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap())
}

/// An hour after it was asked for first: the same second for whoever parks and whoever looks.
fn in_an_hour() -> Timestamp {
    static AT: OnceLock<Timestamp> = OnceLock::new();
    *AT.get_or_init(|| Timestamp::from_secs(now().plus(Duration::from_secs(3600)).as_micros() / 1_000_000))
}

fn items(count: u64, host: &str) -> Batch {
    let item = |line| NewItem {
        seq: Seq(line),
        id: None,
        lane: host.into(),
        request: Request::get(format!("{host}/{line}?api_key={SECRET}")),
        not_before: None,
    };
    Batch {
        items: (1..=count).map(item).collect(),
        position: InputPosition { offset: count * 40, line: count },
        end: InputEnd::Reached,
        ..Batch::default()
    }
}

fn record(item: &Item, ending: Ending) -> String {
    let outcome = match ending {
        Ending::Done => "done",
        Ending::Failed => "failed",
        Ending::Unknown => "unknown",
    };
    let id = item.lease.seq().0;
    format!(
        r#"{{"id":{id},"url":"http://h/{id}?api_key=***","outcome":"{outcome}","status":200,"body":"page {id}"}}"#
    )
}

fn end(item: &Item, ending: Ending, error: Option<&str>) -> Finish {
    let counters =
        Counters { attempts: 5, limited: 2, error: error.map(str::to_owned), ..Counters::default() };
    Finish { lease: item.lease, ending, record: record(item, ending).into(), body: None, counters }
}

async fn claim(job: &Job, max: usize) -> Vec<Item> {
    let lane = job.ready_lanes(None, 1).await.unwrap()[0].id;
    job.claim(lane, max).await.unwrap()
}

/// One item in each state, and one bad line. Item 7 is leased, 8 pending.
async fn one_of_each(job: &Job) {
    let bad = BadLine {
        seq: Seq(9),
        record: br#"{"id":9,"url":null,"outcome":"failed","status":null,"error":"no URL"}"#.to_vec(),
    };
    job.import(Batch { bad: vec![bad], ..items(8, "http://h") }).unwrap();
    job.flush().await.unwrap();
    let claimed = claim(job, 7).await;
    let refused = Counters { limited: 3, ..Counters::default() };
    job.finish(end(&claimed[1], Ending::Done, None)).await.unwrap(); // not in the order of the input
    job.finish(end(&claimed[0], Ending::Done, None)).await.unwrap();
    let error = format!("reset by http://u:{SECRET}@h/3\u{1b}[2J");
    job.finish(end(&claimed[2], Ending::Failed, Some(&error))).await.unwrap();
    job.finish(end(&claimed[3], Ending::Unknown, Some("reset"))).await.unwrap();
    job.park(claimed[4].lease, Until::Time(in_an_hour()), "told 3600 s", refused.clone()).unwrap();
    job.park(claimed[5].lease, Until::Credentials("shop".into()), "401", refused).unwrap();
    job.flush().await.unwrap();
}

fn shut(key: &str, told: Duration) -> GateRecord {
    let policy = ScopePolicy { jitter: 0.0, ..ScopePolicy::default() };
    let then = Timestamp::from_secs(1_000);
    let mut gate = Gate::new(&policy);
    let sent = gate.take(&policy, then, 1);
    let _ = gate.refused(&policy, sent, Told::wait(told), then, 0.0);
    let kept = gate.snapshot();
    GateRecord {
        key: key.into(),
        version: gate::GateRecord::VERSION,
        record: gate::GateRecord::encode(&kept, then),
        until: Some(now().plus(told)),
    }
}

#[test]
fn j2_a_job_is_shown_while_a_process_runs_it_and_after() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        let path = "my urls.txt".to_owned();
        job.set_input(InputIdentity { path, size: 640, modified_us: 1, head_len: 0, head_hash: 0 }).unwrap();
        one_of_each(&job).await;
        job.save_gate(shut("http://h", Duration::from_secs(120))).unwrap();
        job.save_gate(GateRecord { until: None, ..shut("http://open", Duration::from_secs(1)) }).unwrap();
        job.flush().await.unwrap();

        let shown: Value = serde_json::from_str(&place.ok(&["show", "out.jsonl.job", "--json"])).unwrap();
        let expected = serde_json::json!(
            {"pending": 1, "parked": 2, "leased": 1, "done": 2, "failed": 2, "unknown": 1}
        );
        assert_eq!((&shown["counts"], &shown["items"]), (&expected, &9.into()));
        assert_eq!((&shown["running"], &shown["pid"]), (&true.into(), &std::process::id().into()));
        assert_eq!(shown["next_due"], forbear::record::rfc3339(in_an_hour()));
        assert_eq!(shown["parked_for_credentials"][0]["account"], "shop");
        let paused = shown["paused"].as_array().unwrap();
        assert_eq!(
            (paused.len(), &paused[0]["scope"], &paused[0]["cause"]),
            (1, &"http://h".into(), &"told".into())
        );
        let (until, told) = (paused[0]["until"].as_str().unwrap(), paused[0]["told_until"].as_str().unwrap());
        assert!(told <= until && *until > *forbear::record::rfc3339(now()), "{told} {until}");
        assert_eq!(shown["hosts"][0]["host"], "http://h");
        assert_eq!(shown["hosts"][0]["done"], 2);

        let text = place.ok(&["show", "out.jsonl.job"]);
        for part in [
            &format!("process {} runs it", std::process::id()),
            "input   my urls.txt, read to its end, 8 lines",
            "output  out.jsonl\n",
            "1 parked until account shop has other credentials",
            "the first parked item is due at ",
            "paused scope",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
        assert!(!text.contains("go on with"), "it is going on: {text}");
        job.close().await.unwrap();
    });
    let text = place.ok(&["show", "out.jsonl.job"]);
    for part in
        ["no process runs it", "go on with: forbear fetch -o out.jsonl\n", "\nleased   0\n", "\npending  2\n"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 2, "looking leaves nothing behind");
}

/// Names of the page's block about `job show --json`: those at the beginnings of its lines, and all others.
fn documented() -> (Vec<String>, Vec<String>) {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    let page = fs::read_to_string(page).unwrap();
    let block = page.split("`forbear job show --json` prints").nth(1).unwrap().split("```").nth(1).unwrap();
    let block = block.strip_prefix("text\n").unwrap();
    let first = block.lines().filter(|line| !line.starts_with(' '));
    let first = first.map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let words = block.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').map(str::to_owned);
    (first, words.collect())
}

#[test]
fn j2_the_reference_names_every_key_of_the_json_that_show_prints() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        let path = "urls.txt".to_owned();
        job.set_input(InputIdentity { path, size: 640, modified_us: 1, head_len: 0, head_hash: 0 }).unwrap();
        one_of_each(&job).await;
        job.save_gate(shut("http://h", Duration::from_secs(120))).unwrap();
        let found =
            Tally { narrow: true, score: 6.0, served_elsewhere: 14, refused_here: 6, ..Tally::default() };
        let record = gate::EvidenceRecord::encode(&[found, Tally::default(), Tally::default()], now());
        let (key, version) = (gate::EvidenceRecord::key("http://h"), gate::EvidenceRecord::VERSION);
        job.save_gate(GateRecord { key, version, record, until: None }).unwrap();
        job.save_exits(vec![ExitRow { requests: 3, ..ExitRow::new("http://203.0.113.7:8080", "ok") }])
            .unwrap();
        job.close().await.unwrap();
    });
    let shown: Value = serde_json::from_str(&place.ok(&["show", "out.jsonl.job", "--json"])).unwrap();
    let text = place.ok(&["show", "out.jsonl.job"]);
    let line = "http://h: its limits are by account (evidence: 14 served elsewhere while 6 were refused here), since ";
    assert!(text.contains(line), "{text}");
    let shown = shown.as_object().unwrap();
    let (mut keys, words) = documented();
    keys.sort_unstable();
    assert_eq!(shown.keys().cloned().collect::<Vec<_>>(), keys, "keys, in the order of the alphabet");
    for (key, value) in shown {
        let part = if let Value::Array(list) = value { list.first().expect(key) } else { value };
        for name in part.as_object().into_iter().flat_map(|part| part.keys()) {
            assert!(words.contains(name), "{key}: {name} is not documented");
        }
    }
}

/// A gate that has been refused after a few pages, and was told what is allowed.
fn learned(key: &str) -> GateRecord {
    let policy = ScopePolicy { jitter: 0.0, ..ScopePolicy::default() };
    let mut gate = Gate::new(&policy);
    let mut now = Timestamp::from_secs(1_000);
    let states = Budget {
        of_cost: false,
        left: Some(30),
        resets_in: Some(Duration::from_secs(50)),
        rate: Some(0.5),
        window: Some(Duration::from_secs(60)),
    };
    for page in 0..12 {
        now = now.plus(Duration::from_secs(2));
        let sent = gate.take(&policy, now, 1);
        now = now.plus(Duration::from_millis(50));
        let _ = match page {
            8 => gate.refused(&policy, sent, Told::wait(Duration::from_secs(1)), now, 0.0),
            _ => gate.succeeded(&policy, sent, now),
        };
        let _ = gate.budget(&policy, sent, states, now, 0.0);
    }
    let (kept, version) = (gate.snapshot(), gate::GateRecord::VERSION);
    GateRecord { key: key.into(), version, record: gate::GateRecord::encode(&kept, now), until: None }
}

#[test]
fn l4_what_is_believed_of_an_origin_is_explained_with_its_reasons() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        one_of_each(&job).await;
        job.save_gate(learned("http://h")).unwrap();
        job.save_gate(shut("http://h account=k1", Duration::from_secs(120))).unwrap();
        job.save_gate(shut("http://other", Duration::from_secs(120))).unwrap();
        let account = Tally { score: 2.0, served_elsewhere: 14, refused_here: 6, ..Tally::default() };
        let record = gate::EvidenceRecord::encode(&[account, Tally::default(), Tally::default()], now());
        let (key, version) = (gate::EvidenceRecord::key("http://h"), gate::EvidenceRecord::VERSION);
        job.save_gate(GateRecord { key, version, record, until: None }).unwrap();
        job.close().await.unwrap();
    });
    let explain =
        |args: &[&str]| run(forbear(&[&["explain"], args].concat()).current_dir(place.0.path()), b"");
    for args in [
        &["--scope", "http://h", "--job", "out.jsonl.job"][..],
        &["--scope", "http://H:80/p/1?x=y", "--job", "out.jsonl.job"],
        &["--scope", "h", "--gate", "out.jsonl.job"],
    ] {
        let out = explain(args);
        assert_eq!((out.status, out.stderr.as_str()), (0, ""), "{args:?}");
        for part in [
            "scope      http://h\n",
            "state      ",
            "pace       ",
            "believed   about 0.5/s, of no known kind, from 1 refusal",
            "the limit was met once",
            "1 requests were refused meanwhile, ",
            "scope      http://h account=k1\n",
            "paused (told) until ",
            "as of      ",
            "whose  everyone's, for all that is known",
            "by account: odds of 7.4 to 1 (80 or more are believed); while 6 were refused, 14 were served elsewhere and 0 refused",
        ] {
            assert!(out.stdout.contains(part), "{args:?}: no {part:?} in\n{}", out.stdout);
        }
        assert!(!out.stdout.contains("other"), "{}", out.stdout);
    }
    let out = explain(&["--scope", "http://h", "--job", "out.jsonl.job", "--json"]);
    let shown: Value = serde_json::from_str(&out.stdout).unwrap();
    assert_eq!(shown["scopes"][0]["believed"]["refused"], 1, "{shown}");
    assert_eq!(shown["scopes"][1]["cause"], "told", "{shown}");
    assert_eq!(shown["whose"][0]["odds"], 7.4, "{shown}");
    let reference =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md")).unwrap();
    for list in ["scopes", "whose"] {
        for key in shown[list][0].as_object().unwrap().keys() {
            assert!(reference.contains(key.as_str()), "{key} is not documented");
        }
    }
    let out = explain(&["--scope", "http://nobody", "--job", "out.jsonl.job"]);
    assert_eq!((out.status, out.stdout.as_str()), (2, ""));
    assert!(out.stderr.contains("nothing is known there of http://nobody: "), "{}", out.stderr);
}

#[test]
fn e2_the_exits_of_a_file_are_shown_whatever_it_says() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        let row = |n: u64| ExitRow { requests: n, ..ExitRow::new(format!("http://10.0.0.{n}:8080"), "ok") };
        job.save_exits((1..=50).map(row).collect()).unwrap();
        let strange = ExitRow { requests: 99, ..ExitRow::new("http://a\u{1b}[2J", "dream\ning") };
        job.save_exits(vec![strange, ExitRow::new("http://gone:1", "out")]).unwrap();
        job.close().await.unwrap();
    });
    let text = place.ok(&["show", "out.jsonl.job"]);
    assert!(text.ends_with("\ngo on with: forbear fetch -o out.jsonl\n\
        its runs went out by exits: give them again, by --proxies or the configuration, or it goes on directly\n"), "{text}");
    assert!(text.contains("http://a\u{fffd}[2J") && text.contains("dream\u{fffd}ing"), "{text}");
    assert!(text.contains("\nhttp://gone:1") && text.contains("\n32 more exits"), "{text}");
    let shown: Value = serde_json::from_str(&place.ok(&["show", "out.jsonl.job", "--json"])).unwrap();
    let exits = shown["exits"].as_array().unwrap();
    assert_eq!(
        (exits.len(), &exits[0]["requests"], &exits[51]["exit"]),
        (52, &99.into(), &"http://gone:1".into())
    );
}

#[test]
fn j2_the_command_that_resumes_names_input_job_and_output_as_they_are_from_here() {
    let place = Place::new();
    fs::create_dir(place.path("my jobs")).unwrap();
    block_on(async {
        let options = JobOptions::new(OutputTarget::File(place.path("my jobs/out.jsonl")));
        let job = Job::open(place.path("my jobs/a.job"), options, Arc::new(|_| {})).unwrap();
        let path = "urls.txt".to_owned();
        job.set_input(InputIdentity { path, size: 800, modified_us: 1, head_len: 0, head_hash: 0 }).unwrap();
        job.import(Batch { end: InputEnd::More, ..items(10, "http://h") }).unwrap();
        job.close().await.unwrap();
    });
    let text = place.ok(&["show", "my jobs/a.job"]);
    let expected = "go on with: forbear fetch urls.txt --job 'my jobs/a.job' -o 'my jobs/out.jsonl'\n";
    assert!(text.ends_with(expected) && text.contains("read to line 10, 50.0 % of it"), "{text}");
}

#[test]
fn j2_items_are_listed_by_state_and_page() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        one_of_each(&job).await;
        // Leases are shown a moment after they are taken.
        job.flush().await.unwrap();
        let ids = |state: &[&str]| -> Vec<u64> {
            let listed = place.ok(&[&["list", "out.jsonl.job", "--json"], state].concat());
            json_lines(&listed).iter().map(|item| item["id"].as_u64().unwrap()).collect()
        };
        for (state, expected) in [
            (&[][..], vec![1, 2, 3, 4, 5, 6, 7, 8, 9]),
            (&["--state", "pending"], vec![8]),
            (&["--state", "parked"], vec![5, 6]),
            (&["--state", "leased"], vec![7]),
            (&["--state", "done"], vec![1, 2]),
            (&["--state", "failed"], vec![3, 4, 9]),
            (&["--state", "failed", "--limit", "1"], vec![3]),
            (&["--limit", "0"], vec![]),
        ] {
            assert_eq!(ids(state), expected, "{state:?}");
        }
        let listed = json_lines(&place.ok(&["list", "out.jsonl.job", "--json"]));
        assert_eq!(listed[0].get("attempts"), None, "only the record knows");
        assert_eq!((&listed[2]["attempts"], &listed[2]["state"]), (&5.into(), &"failed".into()));
        assert_eq!((&listed[3]["state"], &listed[3]["reason"]), (&"unknown".into(), &"reset".into()));
        assert_eq!((&listed[4]["limited"], &listed[4]["reason"]), (&3.into(), &"told 3600 s".into()));
        assert_eq!(listed[4]["until"], forbear::record::rfc3339(in_an_hour()));
        assert_eq!(listed[4]["url"], "http://h/5?api_key=***");
        assert_eq!((&listed[8]["url"], &listed[8]["state"]), (&Value::Null, &"failed".into()));

        let text = place.ok(&["list", "out.jsonl.job"]);
        assert_eq!(text.lines().count(), 10, "{text}");
        assert!(text.starts_with("id        state "), "{text}");
        let parked = text.lines().nth(6).unwrap();
        assert_eq!(
            parked,
            "6         parked          0        3  credentials of shop   http://h/6?api_key=***  401"
        );
        assert!(!text.contains('\u{1b}'), "nothing from outside reaches a terminal as it is: {text:?}");
        job.close().await.unwrap();
    });
    let leased = place.ok(&["list", "out.jsonl.job", "--state", "leased", "--json"]);
    assert_eq!(leased, "", "nobody has anything in hand");
    let pending = json_lines(&place.ok(&["list", "out.jsonl.job", "--state", "pending", "--json"]));
    assert_eq!(pending.len(), 2);
}

#[test]
fn k1_names_in_the_configuration_are_secret_here_too() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        let mut batch = items(1, "http://h");
        batch.items[0].request.url = format!("http://h/?mine={SECRET}");
        job.import(batch).unwrap();
        job.close().await.unwrap();
    });
    fs::write(place.path("forbear.toml"), "[secrets]\nquery = [\"mine\"]\n").unwrap();
    for command in ["list", "export"] {
        assert!(place.ok(&[command, "out.jsonl.job"]).contains("mine=***"), "{command}");
    }
    fs::rename(place.path("forbear.toml"), place.path("other.toml")).unwrap();
    for command in ["list", "export"] {
        assert!(
            place.ok(&[command, "out.jsonl.job", "--config", "other.toml"]).contains("mine=***"),
            "{command}"
        );
        let out = place.job(&[command, "out.jsonl.job", "--config", "none.toml"]);
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "names that cannot be read hide nothing");
    }
}

#[test]
fn j2_export_gives_every_item_once_in_the_order_of_the_input() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        one_of_each(&job).await;
        let lines = place.export();
        let seen: Vec<_> =
            lines.iter().map(|r| (r["id"].as_u64().unwrap(), r["outcome"].as_str().unwrap())).collect();
        let expected =
            ["done", "done", "failed", "unknown", "parked", "parked", "leased", "pending", "failed"];
        assert_eq!(seen, (1..).zip(expected).collect::<Vec<_>>());
        assert_eq!((&lines[0]["body"], &lines[1]["body"]), (&"page 1".into(), &"page 2".into()));
        let parked = &lines[4];
        assert_eq!(parked["not_before"], forbear::record::rfc3339(in_an_hour()));
        assert_eq!((&parked["reason"], &parked["limited"]), (&"told 3600 s".into(), &3.into()));
        assert_eq!(parked["url"], "http://h/5?api_key=***");
        assert!(lines[5].get("not_before").is_none(), "no time is known");
        assert_eq!(lines[8]["error"], "no URL");
        // Parked lines are found by their text, too.
        let text = place.ok(&["export", "out.jsonl.job"]);
        assert_eq!(text.matches("\"outcome\":\"parked\"").count(), 2);
        job.close().await.unwrap();
    });
    assert_eq!(place.export().len(), 9);
}

#[test]
fn j4_an_output_that_is_gone_or_changed_is_said() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        one_of_each(&job).await;
        job.close().await.unwrap();
    });
    let good = fs::read(place.path("out.jsonl")).unwrap();
    for text in
        [None, Some(b"".to_vec()), Some(vec![b'x'; good.len()]), Some(good[..good.len() - 9].to_vec())]
    {
        match &text {
            None => fs::remove_file(place.path("out.jsonl")).unwrap(),
            Some(bytes) => fs::write(place.path("out.jsonl"), bytes).unwrap(),
        }
        let out = place.job(&["export", "out.jsonl.job"]);
        assert_eq!(out.status, 2);
        assert!(out.stderr.contains("out.jsonl is missing or was changed: "), "{}", out.stderr);
        let lines = json_lines(&out.stdout);
        assert_eq!(lines.len(), 9, "every item is there all the same");
        let last = lines.iter().find(|r| r["reason"] == "its record is not where the job put it").unwrap();
        assert!(last["outcome"] != "parked", "{last}");
    }
    fs::write(place.path("out.jsonl"), good).unwrap();
    assert_eq!(place.export().len(), 9);
}

#[test]
fn j1_what_went_into_a_stream_is_exported_as_far_as_it_is_known() {
    let place = Place::new();
    let sink = place.path("sink");
    assert!(std::process::Command::new("mkfifo").arg(&sink).status().unwrap().success());
    let reader = std::thread::spawn({
        let sink = sink.clone();
        move || fs::read(sink).unwrap()
    });
    block_on(async {
        let job = place.open(OutputTarget::File(sink.clone()));
        one_of_each(&job).await;
        job.close().await.unwrap();
    });
    assert!(!reader.join().unwrap().is_empty());
    let out = place.job(&["export", "out.jsonl.job"]);
    assert_eq!(out.status, 0, "{}", out.stderr);
    let lines = json_lines(&out.stdout);
    assert_eq!(lines.len(), 9);
    assert_eq!(
        (&lines[0]["outcome"], &lines[0]["reason"]),
        (&"done".into(), &"its record went into a stream".into())
    );
    assert!(out.stderr.contains("5 records went into a stream"), "{}", out.stderr);
}

#[test]
fn br_077_what_failed_is_pending_again_and_what_was_done_is_not() {
    for (flags, words, states) in [
        (&[][..], "1 failed item is pending again\n", ["pending", "unknown", "parked"]),
        (&["--unknown"], "2 failed or unknown items are pending again\n", ["pending", "pending", "parked"]),
        (
            &["--unknown", "--parked"],
            "2 failed or unknown items are pending again, and 2 parked\n",
            ["pending", "pending", "pending"],
        ),
    ] {
        let place = Place::new();
        block_on(async {
            let job = place.open_file();
            one_of_each(&job).await;
            let refused = place.job(&[&["retry", "out.jsonl.job"], flags].concat());
            assert_eq!((refused.status, refused.stdout.as_str()), (2, ""));
            let by = format!("out.jsonl.job is in use by process {}", std::process::id());
            assert!(refused.stderr.contains(&by), "{}", refused.stderr);
            job.close().await.unwrap();
        });
        let out = place.job(&[&["retry", "out.jsonl.job"], flags].concat());
        assert_eq!((out.status, out.stdout.as_str()), (0, words));
        assert!(out.stderr.contains("forbear fetch -o out.jsonl"), "{}", out.stderr);
        let lines = place.export();
        assert_eq!([2, 3, 4].map(|n: usize| lines[n]["outcome"].as_str().unwrap()), states);
        assert_eq!((&lines[0]["outcome"], &lines[8]["outcome"]), (&"done".into(), &"failed".into()));
        let again = place.job(&[&["retry", "out.jsonl.job"], flags].concat());
        assert!(again.stdout.starts_with("0 "), "{}", again.stdout);
        assert_eq!(again.stderr.contains("--unknown"), flags.is_empty(), "{}", again.stderr);
        // And the job is as whole as before.
        let file = inspect::JobFile::open(place.path("out.jsonl.job")).unwrap();
        assert!(file.is_consistent().unwrap());
        block_on(async {
            let job = place.open_file();
            assert_eq!(job.counts().imported, 9);
            job.close().await.unwrap();
        });
    }
}

#[test]
fn j4_what_is_no_job_is_refused_with_path_and_remedy() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        one_of_each(&job).await;
        job.close().await.unwrap();
    });
    fs::write(place.path("empty.job"), b"").unwrap();
    fs::write(place.path("zeros.job"), vec![0; 8192]).unwrap();
    let mut broken = fs::read(place.path("out.jsonl.job")).unwrap();
    broken[100..].fill(0xa5);
    fs::write(place.path("broken.job"), broken).unwrap();
    for (name, words) in [
        ("none.job", "there is no job none.job; without --job, the job of `forbear fetch -o OUT` is OUT.job"),
        ("out.jsonl", "out.jsonl is not a forbear job; give another --job; its job is out.jsonl.job"),
        ("empty.job", "there is no job empty.job; the file is empty"),
        ("zeros.job", "zeros.job is damaged: it holds only zeros; restore it from a copy"),
        ("broken.job", "broken.job is damaged; restore it from a copy"),
    ] {
        for command in ["show", "list", "export", "retry"] {
            let out = place.job(&[command, name]);
            assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{command} {name}: {}", out.stderr);
            assert!(out.stderr.contains(words), "{command} {name}: {}", out.stderr);
        }
    }
}

#[test]
fn a_reader_that_goes_away_is_a_clean_stop() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        job.import(items(20_000, "http://h")).unwrap();
        job.close().await.unwrap();
    });
    for args in
        [&["list", "out.jsonl.job"][..], &["list", "out.jsonl.job", "--json"], &["export", "out.jsonl.job"]]
    {
        let mut child = forbear(&[&["job"], args].concat())
            .current_dir(place.0.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut first = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap(); // and drops it
        assert!(!first.is_empty());
        let out = child.wait_with_output().unwrap();
        assert_eq!(
            (out.status.code(), String::from_utf8(out.stderr).unwrap().as_str()),
            (Some(0), ""),
            "{args:?}"
        );
    }
}

#[test]
fn j3_looking_at_items_reads_no_bodies() {
    let place = Place::new();
    block_on(async {
        let job = place.open_file();
        let mut batch = items(2000, "http://h");
        batch.items[1].request.method = Some("POST".into());
        batch.items[1].request.body = Some(SECRET.as_bytes().to_vec());
        job.import(batch).unwrap();
        job.close().await.unwrap();
    });
    // A thousand of them make a page, and each may have megabytes.
    let file = inspect::JobFile::open(place.path("out.jsonl.job")).unwrap();
    let page = file.list(inspect::Which::All, Seq(1), 1).unwrap();
    let request = page[0].request.as_ref().unwrap();
    assert_eq!((request.method.as_deref(), &request.body), (Some("POST"), &None));
    let lines = place.export();
    assert_eq!(lines.len(), 2000, "more than a page");
    assert_eq!(lines[1999]["id"], 2000);
}
