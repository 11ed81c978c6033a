//! `forbear sim`: its table, its JSON, its mistakes, its pictures; and that the same seed is the same run.

mod common;

use std::{collections::BTreeMap, fs, path::Path};

use common::{Output, forbear, run};
use serde_json::Value;

fn sim(args: &[&str]) -> Output {
    run(&mut forbear(&[&["sim"], args].concat()), b"")
}

fn json(args: &[&str]) -> Value {
    let out = sim(&[args, &["--json"]].concat());
    assert_eq!(out.status, 0, "{}", out.stderr);
    serde_json::from_str(&out.stdout).unwrap()
}

/// The runs of the JSON by client.
fn runs(json: &Value) -> BTreeMap<String, Value> {
    let runs = json["runs"].as_array().unwrap().iter();
    runs.map(|run| (run["client"].as_str().unwrap().to_owned(), run.clone())).collect()
}

#[test]
fn the_table_has_a_row_for_each_client_and_says_the_best() {
    let out = sim(&[
        "--limiter",
        "token-bucket:rate=20/s,burst=10,hint=seconds",
        "--pages",
        "300",
        "--policy",
        "polite",
        "--policy",
        "retry-after",
        "--against",
        "every-2s,oracle",
    ]);
    assert_eq!((out.status, out.stderr.as_str()), (0, ""), "{}", out.stdout);
    let lines: Vec<Vec<&str>> = out.stdout.lines().map(|line| line.split_whitespace().collect()).collect();
    // Ten at once, 290 at twenty a second, and the last one's answer.
    assert!(out.stdout.contains("at best 300 pages in 14.6 s"), "{}", out.stdout);
    let row = |name: &str| lines.iter().find(|words| words.first() == Some(&name)).unwrap().clone();
    for name in ["polite", "retry-after", "every-2s", "oracle"] {
        let row = row(name);
        assert_eq!((row.len(), row[1]), (10, "300"), "{row:?}");
        let of_best: f64 = row[3].parse().unwrap();
        assert!((0.95..5.0).contains(&of_best), "{row:?}");
    }
    let share = |name: &str| row(name)[5].parse::<f64>().unwrap();
    assert!(share("every-2s") > 20.0 && share("polite") < 10.0, "{}", out.stdout);
    assert_eq!((row("oracle")[4], row("oracle")[9]), ("0", "-"), "{}", out.stdout);
    assert_eq!(row("every-2s")[9], "-");
}

#[test]
fn the_json_has_the_same_numbers_and_a_policy_is_its_settings() {
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("ours.toml");
    fs::write(&ours, "pace = \"configured\"\n[hosts.\"api.example.com\"]\nrate = \"4/s\"\n").unwrap();
    let limiter = "token-bucket:rate=5/s,burst=5,hint=seconds";
    let all = json(&[
        "--limiter",
        limiter,
        "--pages",
        "100",
        "--policy",
        ours.to_str().unwrap(),
        "--policy",
        "polite",
    ]);
    assert_eq!((all["limiter"].as_str(), all["limit_per_s"].as_f64()), (Some(limiter), Some(5.0)));
    let runs_of = runs(&all);
    let (ours_run, polite) = (&runs_of["ours"], &runs_of["polite"]);
    assert_eq!(
        (ours_run["refused"].as_u64(), ours_run["retry_multiplier"].as_f64()),
        (Some(0), Some(1.0)),
        "{all:#}"
    );
    let seconds = ours_run["seconds"].as_f64().unwrap();
    assert!((24.5..26.0).contains(&seconds), "a hundred pages at 4/s: {seconds}");
    assert!(polite["refused"].as_u64().unwrap() > 0 && polite["paused_s"].as_f64().unwrap() > 0.0, "{all:#}");
    let other_host = [
        "--limiter",
        limiter,
        "--pages",
        "100",
        "--policy",
        ours.to_str().unwrap(),
        "--host",
        "other.example",
    ];
    assert!(runs(&json(&other_host))["ours"]["refused"].as_u64().unwrap() > 0, "no rate, no restraint");
}

#[test]
fn the_same_seed_is_the_same_run_to_the_byte() {
    let dirs = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let all = |dir: &Path, seed: &str| {
        let dir = dir.to_str().unwrap();
        let args = [
            "--pages",
            "200",
            "--against",
            "jitter",
            "--policy",
            "polite",
            "--seed",
            seed,
            "--pictures",
            dir,
        ];
        sim(&args).stdout
    };
    let texts = [all(dirs[0].path(), "7"), all(dirs[1].path(), "7")];
    assert_eq!(texts[0], texts[1]);
    for name in ["polite.svg", "jitter.svg", "side-by-side.svg"] {
        let [one, two] = dirs.each_ref().map(|dir| fs::read(dir.path().join(name)).unwrap());
        assert!(one == two && one.len() < 200_000, "{name}: {}", one.len());
        let text = String::from_utf8(one).unwrap();
        let document = roxmltree::Document::parse(&text).unwrap();
        let words: Vec<&str> = document.descendants().filter_map(|node| node.text()).map(str::trim).collect();
        for word in ["refused", "paused", "starts/s", "seconds"] {
            assert!(words.contains(&word), "{name}: {word}");
        }
    }
    assert_ne!(all(dirs[1].path(), "8"), texts[0]);
}

#[test]
fn a_scenario_is_a_file_and_flags_beat_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("scenario.toml");
    fs::copy(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../policies/polite.toml"),
        dir.path().join("mine.toml"),
    )
    .unwrap();
    fs::write(
        &path,
        "limiter = \"fixed-window:limit=30/10s,hint=seconds\"\npolicy = [\"mine.toml\"]\nagainst = [\"oracle\"]\nworkers = 8\n\
         latency = \"60ms\"\nround_trip = \"20ms\"\nspread = 0.5\npages = 50\nnodes = 2\nothers = \"1/s\"\ncrashes = [\"3s\"]\nseed = 3\n",
    )
    .unwrap();
    let path = path.to_str().unwrap();
    let all = json(&[path]);
    assert_eq!(
        (all["workers"].as_u64(), all["pages"].as_u64(), all["latency_ms"].as_f64()),
        (Some(8), Some(50), Some(60.0))
    );
    assert_eq!(runs(&all).keys().collect::<Vec<_>>(), ["mine", "oracle"]);
    let fewer = json(&[path, "--pages", "20", "--policy", "polite"]);
    assert_eq!((fewer["pages"].as_u64(), fewer["workers"].as_u64()), (Some(20), Some(8)));
    assert!(runs(&fewer).contains_key("polite"));
}

#[test]
fn every_mistake_is_told_with_its_place_and_the_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("scenario.toml");
    let with = |text: &str, args: &[&str]| {
        fs::write(&path, text).unwrap();
        sim(&[&[path.to_str().unwrap()], args].concat())
    };
    for (text, args, wanted) in [
        (
            "limitr = \"open\"\n",
            &[][..],
            &["scenario.toml:1:1: unknown key `limitr`", "did you mean `limiter`?"][..],
        ),
        ("\nworkers = 0\n", &[], &["scenario.toml:2:11: workers: not from 1 to 1000000", "2 | workers = 0"]),
        ("limiter = \"sieve\"\n", &[], &["unknown kind of limiter `sieve`", "forbear demo --limiter list"]),
        ("against = [\"hope\"]\n", &[], &["there is no habit `hope`; there are every-2s"]),
        ("pages = 5\nstream = \"1/s\"\n", &[], &["pages and stream", "keep one of them"]),
        ("latency = \"10ms\"\nround_trip = \"20ms\"\n", &[], &["round_trip is a part of latency"]),
        ("limiter = \"sentence\"\n", &[], &["a rule about paths has no effect here"]),
        ("policy = [\"polit\"]\n", &[], &["there is no policy `polit`", "did you mean \"polite\"?"]),
        ("", &["--latency", "5"], &["--latency: a time needs a unit: write `5s`"]),
        ("", &["--seed", "x"], &["--seed: expected a whole number"]),
        ("", &["--policy", "none.toml"], &["none.toml: "]),
        ("run_for = \"10s\"\ncrashes = [\"20s\"]\n", &[], &["crashes: 20s is after the end of the run"]),
    ] {
        let out = with(text, args);
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{text}{args:?}: {}", out.stderr);
        for part in wanted {
            assert!(out.stderr.contains(part), "{text}{args:?}: {part}\n{}", out.stderr);
        }
    }
    let out = sim(&["/nowhere/scenario.toml"]);
    assert!(out.status == 2 && out.stderr.contains("/nowhere/scenario.toml: "), "{}", out.stderr);
    let out = sim(&["--pages", "5", "--pictures", "/proc/nowhere"]);
    assert!(
        out.status == 2 && out.stderr.contains("--pictures: cannot write /proc/nowhere"),
        "{}",
        out.stderr
    );
}

#[test]
fn a_client_that_never_gets_done_is_stopped_and_said_so() {
    let penalty = "token-bucket:rate=5/s,burst=1,penalty=10s";
    let args = [
        "--limiter",
        penalty,
        "--pages",
        "100",
        "--run-for",
        "5m",
        "--against",
        "every-2s",
        "--policy",
        "polite",
    ];
    let out = sim(&args);
    assert_eq!(out.status, 0, "{}", out.stderr);
    assert!(out.stdout.contains("every-2s was stopped after 5m with "), "{}", out.stdout);
    let all = runs(&json(&args));
    assert_eq!((all["every-2s"]["done"].as_bool(), &all["every-2s"]["of_best"]), (Some(false), &Value::Null));
}

#[test]
fn without_pages_the_measure_is_how_many_are_got() {
    let all =
        json(&["--limiter", "token-bucket:rate=10/s,burst=5", "--run-for", "10m", "--against", "oracle"]);
    let oracle = &runs(&all)["oracle"];
    let share = oracle["of_best"].as_f64().unwrap();
    assert!((0.97..=1.0).contains(&share), "{all:#}");
    assert_eq!((all["pages"].as_u64(), oracle["seconds"].as_f64()), (None, Some(600.0)));
}

#[test]
fn many_workers_are_no_trouble() {
    let all = json(&[
        "--workers",
        "100000",
        "--run-for",
        "1m",
        "--limiter",
        "token-bucket:rate=100/s,burst=100,hint=seconds",
    ]);
    assert!(runs(&all)["polite"]["pages"].as_u64().unwrap() > 3000, "{all:#}");
}

/// Records as `fetch` writes them: `pages` of them, `each` a second, of which one in ten was refused before.
fn records(dir: &Path, name: &str, pages: u32, each: f64, limited: bool) -> String {
    let start = 1_795_957_200.0;
    let line = |n: u32| {
        let at = start + f64::from(n) / each;
        let moment = |at: f64| {
            let ms = (at * 1000.0).round() as u64;
            let (s, ms) = (ms / 1000 - 1_795_957_200, ms % 1000);
            format!("2026-11-29T13:{:02}:{:02}.{ms:03}Z", s / 60, s % 60)
        };
        let refused = limited && n % 10 == 9;
        serde_json::json!({
            "id": n, "url": format!("https://site.test/p/{n}"), "outcome": "done", "status": 200, "attempts": 1,
            "limited": u32::from(refused), "waited_s": if refused { 1.0 } else { 0.0 },
            "started_at": moment(at), "finished_at": moment(at + 0.04),
        })
        .to_string()
    };
    let path = dir.join(name);
    fs::write(&path, (0..pages).map(|n| line(n) + "\n").collect::<String>()).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_real_run_is_replayed_against_the_limit_that_it_met() {
    let dir = tempfile::tempdir().unwrap();
    let log = records(dir.path(), "out.jsonl", 400, 8.0, true);
    let all = json(&["--replay", &log, "--policy", "polite"]);
    let recorded = &all["recorded"];
    assert_eq!(
        (recorded["host"].as_str(), recorded["pages"].as_u64()),
        (Some("site.test"), Some(400)),
        "{all:#}"
    );
    assert_eq!(
        (recorded["refused"].as_u64(), recorded["latency_ms"].as_f64()),
        (Some(40), Some(40.0)),
        "{all:#}"
    );
    let limit = all["limit_per_s"].as_f64().unwrap();
    assert!((7.8..8.3).contains(&limit), "eight a second came: {limit}");
    assert_eq!(all["pages"].as_u64(), Some(400), "{all:#}");
    assert_eq!(all["latency_ms"].as_f64(), Some(40.0), "{all:#}");
    let polite = &runs(&all)["polite"];
    assert_eq!((polite["done"].as_bool(), polite["pages"].as_u64()), (Some(true), Some(400)), "{all:#}");
    // What is said beats what is seen.
    let said = json(&["--replay", &log, "--limiter", "token-bucket:rate=50/s,burst=5", "--pages", "100"]);
    assert_eq!((said["limit_per_s"].as_f64(), said["pages"].as_u64()), (Some(50.0), Some(100)), "{said:#}");
    let table = sim(&["--replay", &log]).stdout;
    let row = table.lines().find(|line| line.starts_with("(recorded)")).unwrap_or_else(|| panic!("{table}"));
    assert_eq!(row.split_whitespace().nth(4), Some("40"), "{table}");
}

#[test]
fn records_that_show_no_limit_are_said_to() {
    let dir = tempfile::tempdir().unwrap();
    let free = records(dir.path(), "free.jsonl", 100, 8.0, false);
    let few = records(dir.path(), "few.jsonl", 5, 8.0, true);
    let junk = dir.path().join("junk.jsonl");
    fs::write(&junk, "junk\n").unwrap();
    for (args, words) in [
        (
            &["--replay", &free][..],
            "nothing was refused, so the records do not show the limit; say it by --limiter",
        ),
        (&["--replay", &few], "5 pages of site.test came; at least 20 are needed to see a pace"),
        (&["--replay", &free, "--host", "other.test"], "there is no record of that host"),
        (&["--replay", junk.to_str().unwrap()], "line 1 is no record of `forbear fetch`"),
        (&["--replay", "none.jsonl"], "none.jsonl: "),
    ] {
        let out = sim(args);
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains(words), "{args:?}: {}", out.stderr);
    }
    let said = json(&["--replay", &free, "--limiter", "token-bucket:rate=20/s,burst=5"]);
    assert_eq!(said["recorded"]["limiter"], Value::Null, "{said:#}");
}

#[test]
fn exits_are_worth_what_the_limit_counts() {
    let by_address = "token-bucket:rate=5/s,burst=5,scope=client,hint=seconds";
    let policy = ["--policy", "proxy-queue", "--pages", "600", "--workers", "16"];
    let played = |exits: &str, limiter: &str| {
        let all = json(&[&policy[..], &["--exits", exits, "--limiter", limiter]].concat());
        let run = runs(&all)["proxy-queue"].clone();
        assert_eq!((run["pages"].as_u64(), run["put_off"].as_u64()), (Some(600), Some(0)), "{all:#}");
        assert_eq!(run["broken_promise"], Value::Null, "{all:#}");
        (run["seconds"].as_f64().unwrap(), all["limit_per_s"].as_f64().unwrap())
    };
    let (one, limit_of_one) = played("1", by_address);
    let (four, limit_of_four) = played("4", by_address);
    assert_eq!((limit_of_one, limit_of_four), (5.0, 20.0), "one limiter for each address");
    assert!(four < one / 2.0, "{four} s by four exits, {one} s by one");
    let (everyones, limit) = played("4", "token-bucket:rate=5/s,burst=5,hint=seconds");
    assert!(limit == 5.0 && everyones > 100.0, "they buy nothing where all count together: {everyones} s");
}

#[test]
fn exits_refuse_what_they_cannot_do() {
    for (args, words) in [
        (
            &["--exits", "2", "--against", "jitter", "--policy", "polite"][..],
            "exits: not together with against",
        ),
        (&["--exits", "2", "--run-for", "1m"], "exits: not together with work without a number of pages"),
        (&["--exits", "2", "--pictures", "pictures"], "--pictures: not together with exits"),
        (&["--exits", "20000"], "not from 0 to 10000"),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let out = run(forbear(&[&["sim"], args].concat()).current_dir(&dir), b"");
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains(words), "{args:?}: {}", out.stderr);
    }
}
