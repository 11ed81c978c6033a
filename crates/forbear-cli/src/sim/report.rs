//! What came of the runs: a table for people, JSON for programs, a line for a picture.

use std::{fmt::Write as _, time::Duration};

use forbear::config::show_duration;
use forbear_sim::{Report, Scenario, Work};
use serde_json::{Value, json};

use super::{Run, replay::Replay};
use crate::table::aligned;

/// What is simulated, in a line.
pub(super) fn title(scenario: &Scenario) -> String {
    let work = match scenario.work {
        Work::Endless => format!("as many pages as go within {}", show_duration(scenario.run_for)),
        Work::Pages(1) => "1 page".to_owned(),
        Work::Pages(pages) => format!("{pages} pages"),
        Work::Stream(rate) => format!("{rate} pages a second for {}", show_duration(scenario.run_for)),
    };
    let latency = show_duration(whole_ms(scenario.latency.mean()));
    format!("{}; {} workers, {latency} an answer, {work}", scenario.spec, scenario.workers)
}

/// What came of a run, below its name.
pub(super) fn note(scenario: &Scenario, run: &Run) -> String {
    let report = &run.played.report;
    let end = match is_done(scenario, report) {
        true => format!("{} pages in {:.1} s", report.done, report.took.as_secs_f64()),
        false => format!("stopped with {} pages", report.done),
    };
    format!("{end}, {} refused", report.whole.refused)
}

/// The table, and what it means.
pub(super) fn table(scenario: &Scenario, runs: &[Run], replay: Option<&Replay>) -> String {
    let best = scenario.optimum();
    let by_time = matches!(scenario.work, Work::Pages(_));
    let head = [
        "client",
        "pages",
        "seconds",
        if by_time { "of best time" } else { "of best pages" },
        "refused",
        "refused %",
        "retries",
        "sent a page",
        "herd",
        "paused s",
    ];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    rows.extend(replay.map(|replay| recorded(scenario, replay)));
    rows.extend(runs.iter().map(|run| row(scenario, run)));
    let mut text = format!("{}; seed {}\n", title(scenario), scenario.seed);
    let _ = match by_time {
        true => writeln!(text, "at best {} pages in {:.1} s", best.pages, best.time.as_secs_f64()),
        false => writeln!(text, "at best {} pages", best.pages),
    };
    let _ = write!(text, "\n{}", aligned(&rows));
    for run in runs.iter().filter(|run| !is_done(scenario, &run.played.report)) {
        if run.put_off > 0 {
            let _ = writeln!(text, "{} has put off {} pages for another run.", run.name, run.put_off);
        } else if let Work::Pages(pages) = scenario.work {
            let (done, end) = (run.played.report.done, show_duration(whole_ms(scenario.run_for)));
            let _ = writeln!(text, "{} was stopped after {end} with {done} of {pages} pages.", run.name);
        }
    }
    text
}

/// The real run, as far as its records tell.
fn recorded(scenario: &Scenario, replay: &Replay) -> Vec<String> {
    let (pages, seconds) = (u64::from(replay.pages), replay.took.as_secs_f64());
    let sent = pages + replay.refused + replay.faults;
    let best = scenario.optimum();
    let of_best = match scenario.work {
        Work::Pages(wanted) if wanted == replay.pages => format!("{:.2}", seconds / best.time.as_secs_f64()),
        _ => "-".to_owned(),
    };
    vec![
        "(recorded)".to_owned(),
        pages.to_string(),
        format!("{seconds:.1}"),
        of_best,
        replay.refused.to_string(),
        format!("{:.2}", 100.0 * replay.refused as f64 / (pages + replay.refused) as f64),
        (sent - pages).to_string(),
        format!("{:.3}", sent as f64 / pages as f64),
        "-".to_owned(),
        "-".to_owned(),
    ]
}

fn row(scenario: &Scenario, run: &Run) -> Vec<String> {
    let report = &run.played.report;
    let none = || "-".to_owned();
    vec![
        run.name.clone(),
        report.done.to_string(),
        format!("{:.1}", report.took.as_secs_f64()),
        of_best(scenario, report).map_or_else(none, |share| format!("{share:.2}")),
        report.whole.refused.to_string(),
        format!("{:.2}", 100.0 * report.whole.refused_share()),
        report.retries().to_string(),
        report.multiplier().map_or_else(none, |multiplier| format!("{multiplier:.3}")),
        report.herd.to_string(),
        report.paused.map_or_else(none, |paused| format!("{:.1}", paused.as_secs_f64())),
    ]
}

/// The runs as one object.
pub(super) fn json(scenario: &Scenario, runs: &[Run], replay: Option<&Replay>) -> String {
    let best = scenario.optimum();
    let pages = match scenario.work {
        Work::Pages(pages) => Some(pages),
        _ => None,
    };
    let finite = |rate: f64| rate.is_finite().then_some(rate);
    let object = json!({
        "limiter": scenario.spec.to_string(),
        "limit_per_s": finite(scenario.truth.rate),
        "workers": scenario.workers,
        "latency_ms": scenario.latency.mean().as_secs_f64() * 1000.0,
        "pages": pages,
        "run_for_s": scenario.run_for.as_secs_f64(),
        "seed": scenario.seed,
        "best": { "pages": finite(best.pages), "seconds": best.time.as_secs_f64() },
        "recorded": replay.map(|replay| json!({
            "host": replay.host,
            "pages": replay.pages,
            "seconds": replay.took.as_secs_f64(),
            "refused": replay.refused,
            "faults": replay.faults,
            "latency_ms": replay.latency.map(|latency| latency.as_secs_f64() * 1000.0),
            "limiter": replay.limiter.as_ref().map(ToString::to_string),
        })),
        "runs": runs.iter().map(|run| run_json(scenario, run)).collect::<Vec<_>>(),
    });
    format!("{object:#}\n")
}

fn run_json(scenario: &Scenario, run: &Run) -> Value {
    let report = &run.played.report;
    json!({
        "client": run.name,
        "kind": if run.is_policy { "policy" } else { "habit" },
        "done": is_done(scenario, report),
        "pages": report.done,
        "seconds": report.took.as_secs_f64(),
        "of_best": of_best(scenario, report),
        "sent": report.sent,
        "refused": report.whole.refused,
        "refused_share": report.whole.refused_share(),
        "faults": report.faults,
        "put_off": run.put_off,
        "retries": report.retries(),
        "retry_multiplier": report.multiplier(),
        "herd": report.herd,
        "paused_s": report.paused.map(|paused| paused.as_secs_f64()),
        "pace_per_s": report.pace,
        "broken_promise": run.played.broken.as_ref().map(ToString::to_string),
    })
}

/// The time as a multiple of the best; where there is no last page, the pages as a share of the best.
fn of_best(scenario: &Scenario, report: &Report) -> Option<f64> {
    let best = scenario.optimum();
    match scenario.work {
        Work::Pages(_) => {
            is_done(scenario, report).then(|| report.took.as_secs_f64() / best.time.as_secs_f64())
        }
        _ => (best.pages > 0.0 && best.pages.is_finite()).then(|| report.done as f64 / best.pages),
    }
}

fn is_done(scenario: &Scenario, report: &Report) -> bool {
    match scenario.work {
        Work::Pages(pages) => report.done >= u64::from(pages),
        _ => true,
    }
}

fn whole_ms(time: Duration) -> Duration {
    Duration::from_millis(time.as_millis() as u64)
}
