//! SIGKILL at any moment: no item lost, none twice, and no more fetched again than was in flight (J1, J2, J5).
//!
//! Four rounds by default; `./test --campaign sigkill 200` for many.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

use serde_json::Value;
use support::{Nginx, Server, forbear};

const PAGES: usize = 2000;
const WORKERS: usize = 16;
/// Slow enough that what came and was not written yet, for a millisecond or for the time of a commit, is less than what
/// one kill may cost: as many as there are workers. Seen: two.
const PACE: &str = "500/s";
/// How often a round's run is killed before it may end.
const KILLS: u64 = 4;

fn spawn(dir: &Path, paced: bool) -> Child {
    let workers = WORKERS.to_string();
    forbear(dir)
        .args(["fetch", "urls.txt", "-o", "out.jsonl", "--job", "job", "--progress", "plain"])
        .args(["--workers", &workers, "--host-concurrency", &workers])
        .args(if paced { &["--rate", PACE][..] } else { &[] })
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(File::options().create(true).append(true).open(dir.join("stderr.log")).unwrap())
        .spawn()
        .unwrap()
}

/// One job, killed several times, then left to end. Returns how many kills met a living run. Every other round goes as fast
/// as it can; in the others, a pace makes what a kill may cost a number that no busy machine changes.
#[expect(clippy::disallowed_methods, reason = "the moment of the kill is what is tried")]
fn round(seed: u64) -> usize {
    let server = Nginx::start("", "");
    let dir = tempfile::tempdir().unwrap();
    let urls: String = (1..=PAGES).map(|page| format!("{}/p/{page}\n", server.base())).collect();
    fs::write(dir.path().join("urls.txt"), urls).unwrap();
    let said = |what: String| {
        format!(
            "round {seed}: {what}; it said:\n{}",
            fs::read_to_string(dir.path().join("stderr.log")).unwrap()
        )
    };

    let (mut struck, paced) = (0, seed % 2 == 1);
    for kill in 0..KILLS {
        let mut child = spawn(dir.path(), paced);
        // Spread over the first half second, another place in every round (a golden-ratio sequence).
        let share = (0.618_034 * (seed * KILLS + kill + 1) as f64).fract();
        std::thread::sleep(Duration::from_secs_f64(0.01 + 0.5 * share));
        child.kill().unwrap();
        struck += usize::from(!child.wait().unwrap().success());
    }
    let status = spawn(dir.path(), paced).wait().unwrap();
    assert!(status.success(), "{}", said(format!("ended with {status}")));

    let out = String::from_utf8_lossy(&fs::read(dir.path().join("out.jsonl")).unwrap()).into_owned();
    let mut ids = BTreeSet::new();
    for line in out.lines() {
        let record: Value =
            serde_json::from_str(line).unwrap_or_else(|e| panic!("{}", said(format!("{e}: {line}"))));
        assert_eq!(record["outcome"], "done", "{}", said(line.to_owned()));
        let id = record["id"].to_string();
        assert!(ids.insert(id.clone()), "{}", said(format!("{id} stands twice in the output")));
    }
    assert_eq!(ids.len(), PAGES, "{}", said("items are lost".to_owned()));

    let answers = server.answers();
    let again = answers.served.values().map(|&n| n as usize).sum::<usize>() - PAGES;
    eprintln!("round {seed}: {again} pages again after {struck} kills");
    assert!(
        !paced || again <= struck * WORKERS,
        "{}",
        said(format!("{again} pages were fetched again after {struck} kills"))
    );
    struck
}

#[test]
fn j1_sigkill_at_any_moment_loses_nothing_and_writes_nothing_twice() {
    let rounds =
        std::env::var("FORBEAR_ROUNDS").map_or(4, |n| n.parse().expect("FORBEAR_ROUNDS is a number"));
    let struck: usize = (0..rounds).map(round).sum();
    assert!(struck > 0, "no kill met a living run: nothing was tried");
}
