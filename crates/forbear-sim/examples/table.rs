//! Plays set A and writes its table: how much of each limit was used, and how much was refused, per client and kind.
//!
//! ```text
//! cargo run --release -p forbear-sim --example table                        # all of it
//! cargo run --release -p forbear-sim --example table -- told learner        # with Retry-After, one client
//! cargo run --release -p forbear-sim --example table -- silent learner fixed-window      # each instance of one kind
//! cargo run --release -p forbear-sim --example table -- silent gate fixed-window 7       # one instance: a replay
//! cargo run --release -p forbear-sim --example table -- load                # a hundred thousand workers for an hour
//! ```

#![allow(clippy::print_stdout, reason = "a table is what it is for")]

use std::{
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use forbear_core::{
    learn::{Belief, Kind as Named},
    policy::ScopePolicy,
};
use forbear_sim::{
    Gated, Learned, Report, Scenario, TrueKind, Violation, Work,
    habits::{Aimd, Alone, Cubic, Oracle, Retry},
    run,
    sets::{self, Kind},
};

const CLIENTS: [&str; 7] = ["learner", "gate", "every-2s", "jitter", "aimd", "cubic", "oracle"];

/// One run, and what the learner said in the end.
struct Row {
    kind: Kind,
    index: u32,
    scenario: Scenario,
    result: Result<Report, Violation>,
    belief: Option<Belief>,
}

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.first().is_some_and(|arg| arg == "load") {
        return load();
    }
    let hints = args.first().map_or(vec![false, true], |arg| vec![arg == "told"]);
    let clients = match args.get(1) {
        Some(one) => match CLIENTS.iter().find(|client| *client == one) {
            Some(client) => vec![*client],
            None => {
                eprintln!("no client `{one}`; there are {}", CLIENTS.join(", "));
                return ExitCode::from(2);
            }
        },
        None => CLIENTS.to_vec(),
    };
    let kinds = match args.get(2).map(|name| Kind::by_name(name)) {
        Some(Some(kind)) => vec![kind],
        Some(None) => {
            eprintln!("no kind of that name; there are {}", Kind::ALL.map(Kind::name).join(", "));
            return ExitCode::from(2);
        }
        None => Kind::ALL.to_vec(),
    };
    let only: Option<u32> = args.get(3).and_then(|n| n.parse().ok());
    let mut broken = 0;
    for told in hints {
        for client in &clients {
            let kinds: Vec<Kind> = kinds.iter().copied().filter(|kind| !told || kind.tells()).collect();
            let rows = play(client, &kinds, told, only);
            broken += show(client, &kinds, told, &rows, args.len() > 2);
        }
    }
    if broken == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Plays every instance, on as many threads as the machine has.
fn play(client: &str, kinds: &[Kind], told: bool, only: Option<u32>) -> Vec<Row> {
    let jobs: Vec<(Kind, u32)> = kinds
        .iter()
        .flat_map(|kind| (0..sets::EACH).map(|index| (*kind, index)))
        .filter(|(_, index)| only.is_none_or(|only| only == *index))
        .collect();
    let (next, rows) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((kind, index)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let row = play_one(client, *kind, *index, told);
                    rows.lock().unwrap_or_else(|broken| broken.into_inner()).push(row);
                }
            });
        }
    });
    let mut rows = rows.into_inner().unwrap_or_else(|broken| broken.into_inner());
    rows.sort_by_key(|row| (row.kind as u32, row.index));
    rows
}

fn play_one(client: &str, kind: Kind, index: u32, told: bool) -> Row {
    let mut scenario = sets::set_a(kind, index, told);
    let mut belief = None;
    let result = match client {
        "learner" => {
            let mut learned = Learned::new();
            let result = run(&scenario, &mut learned);
            belief = Some(learned.learner().belief());
            result
        }
        "gate" => run(&scenario, &mut Gated::new(ScopePolicy::default(), scenario.workers)),
        "every-2s" => {
            scenario.workers = 50;
            run(&scenario, &mut Alone::new(Retry::Every(Duration::from_secs(2)), 50))
        }
        "jitter" => {
            scenario.workers = 50;
            let retry = Retry::FullJitter { base: Duration::from_secs(1), cap: Duration::from_secs(60) };
            run(&scenario, &mut Alone::new(retry, 50))
        }
        "aimd" => {
            scenario.workers = 100;
            run(&scenario, &mut Aimd::new())
        }
        "cubic" => {
            scenario.workers = 100;
            run(&scenario, &mut Cubic::new())
        }
        _ => run(&scenario, &mut Oracle::new(scenario.truth.clone())),
    };
    Row { kind, index, scenario, result, belief }
}

/// Prints the table; returns how many runs broke a promise.
fn show(client: &str, kinds: &[Kind], told: bool, rows: &[Row], each: bool) -> usize {
    let hint = if told { "told" } else { "silent" };
    println!("\n{client}, {hint}\n");
    println!(
        "| kind | used: median | p10 | worst | refused %: median | worst | both targets | after the first quarter |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- |");
    let (mut whole, mut late, mut broken) = (0, 0, 0);
    for kind in kinds {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.kind == *kind).collect();
        let reports: Vec<&Report> = rows.iter().filter_map(|row| row.result.as_ref().ok()).collect();
        for row in &rows {
            match &row.result {
                Err(violation) => {
                    broken += 1;
                    eprintln!("{} {}: {violation}", row.kind, row.index);
                    eprintln!("  replay: table -- {hint} {client} {} {}", row.kind, row.index);
                }
                Ok(report) if each => eprintln!("{}", line(row, report)),
                Ok(_) => {}
            }
        }
        let sorted = |of: fn(&Report) -> f64| {
            let mut values: Vec<f64> = reports.iter().map(|report| of(report)).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let used = sorted(|report| report.whole.used());
        let refused = sorted(|report| 100.0 * report.whole.refused_share());
        let met = |of: fn(&Report) -> bool| reports.iter().filter(|report| of(report)).count();
        let (all, after) =
            (met(|report| report.whole.meets_targets()), met(|report| report.late.meets_targets()));
        if used.is_empty() {
            continue;
        }
        println!(
            "| {kind} | {:.3} | {:.3} | {:.3} | {:.2} | {:.2} | {all}/{n} | {after}/{n} |",
            used[used.len() / 2],
            used[used.len() / 10],
            used[0],
            refused[refused.len() / 2],
            refused[refused.len() - 1],
            n = rows.len(),
        );
        (whole, late) = (whole + all, late + after);
    }
    println!("| **together** | | | | | | {whole}/{n} | {late}/{n} |", n = rows.len());
    if client == "learner" {
        names(rows);
    }
    broken
}

fn line(row: &Row, report: &Report) -> String {
    let mark = |meets: bool| if meets { '+' } else { '-' };
    format!(
        "{}{} {:2} used {:.3} refused {:.2} %, late {:.3} {:.2} %, {:?}: {} {}",
        mark(report.whole.meets_targets()),
        mark(report.late.meets_targets()),
        row.index,
        report.whole.used(),
        100.0 * report.whole.refused_share(),
        report.late.used(),
        100.0 * report.late.refused_share(),
        row.scenario.run_for,
        row.scenario.spec,
        row.belief.map_or(String::new(), |belief| format!("-> {belief:?}")),
    )
}

/// How often a kind was named, and named right, with the right numbers (L4).
fn names(rows: &[Row]) {
    let (mut all, mut named, mut right, mut numbers, mut windows) = (0, 0, 0, 0, 0);
    let mut windowed = 0;
    for row in rows.iter().filter(|row| row.kind.is_static()) {
        all += 1;
        let (truth, Some(belief)) = (&row.scenario.truth, row.belief) else { continue };
        let Some(kind) = belief.kind else { continue };
        named += 1;
        let true_kind = match truth.kind {
            TrueKind::Bucket => Named::Bucket,
            TrueKind::Fixed => Named::FixedWindow,
            TrueKind::Sliding => Named::SlidingWindow,
            TrueKind::Concurrency => Named::Concurrency,
            TrueKind::Penalty => Named::Penalty,
        };
        if kind != true_kind {
            eprintln!("{} {} was called a {}", row.kind, row.index, kind.as_str());
            continue;
        }
        right += 1;
        let close = |says: f64, is: f64, share: f64| (says / is - 1.0).abs() <= share;
        numbers += u32::from(close(belief.number, truth.number, 0.03));
        if let (Some(says), Some(is)) = (belief.window, truth.window) {
            windowed += 1;
            windows += u32::from(close(says.as_secs_f64(), is.as_secs_f64(), 0.05));
        }
    }
    println!(
        "\nOf {all} limits that stay as they are {named} were named, {right} of them right; of those {numbers} with the number \
         within 3 %, and {windows} of {windowed} with the window within 5 %."
    );
}

/// A hundred thousand workers for an hour of virtual time.
fn load() -> ExitCode {
    let mut scenario = sets::set_a(Kind::TokenBucket, 7, true);
    (scenario.workers, scenario.run_for, scenario.work) = (100_000, Duration::from_secs(3600), Work::Endless);
    let begun = Instant::now();
    let result = run(&scenario, &mut Gated::new(ScopePolicy::default(), scenario.workers));
    match result {
        Ok(report) => println!("{} requests in {:.1?}", report.sent, begun.elapsed()),
        Err(violation) => eprintln!("{violation}"),
    }
    ExitCode::SUCCESS
}
