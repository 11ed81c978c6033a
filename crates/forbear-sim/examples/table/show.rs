//! Tables in Markdown.

use std::fmt::Write;

use forbear_core::learn::Kind as Named;
use forbear_sim::{
    Report, TrueKind, Violation,
    sets::{self, Job, RowCase},
};

use crate::play::{self, Row};

const NONE: &str = "-";
/// A job is quick that takes no longer than this, by the oracle's time.
const QUICK: f64 = 1.15;

fn sorted(reports: &[&Report], of: impl Fn(&Report) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = reports.iter().map(|report| of(report)).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// Whole runs and late ones that met both targets, of all.
pub(crate) fn met(rows: &[Row]) -> (usize, usize, usize) {
    let reports = rows.iter().filter_map(|row| row.result.as_ref().ok());
    reports.fold((0, 0, rows.len()), |(whole, late, all), report| {
        (
            whole + usize::from(report.whole.meets_targets()),
            late + usize::from(report.late.meets_targets()),
            all,
        )
    })
}

/// Median, tenth percentile and worst of what was used; median and worst of what was refused, in percent.
pub(crate) fn spread(rows: &[Row]) -> (f64, f64, f64, f64, f64) {
    let reports: Vec<&Report> = rows.iter().filter_map(|row| row.result.as_ref().ok()).collect();
    let used = sorted(&reports, |report| report.whole.used());
    let refused = sorted(&reports, |report| 100.0 * report.whole.refused_share());
    let at = |values: &[f64], part: usize| values.get(part).copied().unwrap_or(f64::NAN);
    let n = used.len();
    (
        at(&used, n / 2),
        at(&used, n / 10),
        at(&used, 0),
        at(&refused, n / 2),
        at(&refused, n.saturating_sub(1)),
    )
}

/// One set, a line for each kind.
pub(crate) fn set(rows: &[Row]) -> String {
    let mut text = String::from(
        "| kind | used: median | p10 | worst | refused %: median | worst | both targets, whole run | after the first quarter |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    let line = |name: &str, rows: &[Row]| {
        let ((median, p10, worst, refused, most), (whole, late, n)) = (spread(rows), met(rows));
        format!(
            "| {name} | {median:.3} | {p10:.3} | {worst:.3} | {refused:.2} | {most:.2} | {whole}/{n} | {late}/{n} |\n"
        )
    };
    for rows in rows.chunk_by(|a, b| a.kind == b.kind) {
        text += &line(rows[0].kind.name(), rows);
    }
    text += &line("**together**", rows);
    text
}

/// Each instance, to the standard error.
pub(crate) fn each(rows: &[Row]) {
    for row in rows {
        let Ok(report) = &row.result else { continue };
        let mark = |meets: bool| if meets { '+' } else { '-' };
        eprintln!(
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
        );
    }
}

/// What was named, of limits that stay as they are.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names {
    pub(crate) all: u32,
    pub(crate) named: u32,
    pub(crate) right: u32,
    pub(crate) with_number: u32,
    pub(crate) numbers: u32,
    pub(crate) with_window: u32,
    pub(crate) windows: u32,
}

impl Names {
    pub(crate) fn count(rows: &[Row]) -> Names {
        let mut names = Names::default();
        for row in rows.iter().filter(|row| row.kind.is_static() && row.belief.is_some()) {
            names.all += 1;
            let (truth, Some(belief)) = (&row.scenario.truth, row.belief) else { continue };
            let Some(kind) = belief.kind else { continue };
            names.named += 1;
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
            names.right += 1;
            let close = |says: f64, is: f64, share: f64| (says / is - 1.0).abs() <= share;
            if belief.number > 0.0 {
                names.with_number += 1;
                names.numbers += u32::from(close(belief.number, truth.number, 0.03));
            }
            if let (Some(says), Some(is)) = (belief.window, truth.window) {
                names.with_window += 1;
                names.windows += u32::from(close(says.as_secs_f64(), is.as_secs_f64(), 0.05));
            }
        }
        names
    }
}

/// How often a kind was named, and named right, with the right numbers (L4).
pub(crate) fn names(rows: &[Row]) -> String {
    let names = Names::count(rows);
    if names.all == 0 {
        return String::new();
    }
    format!(
        "Of {} limits that stay as they are {} were named, {} of them right. Of those, {} of {} have the number within 3 %, \
         {} of {} the window within 5 %.",
        names.all,
        names.named,
        names.right,
        names.numbers,
        names.with_number,
        names.windows,
        names.with_window,
    )
}

/// Set B, a line for each instance: what was refused, and what could not be avoided.
pub(crate) fn wide(rows: &[Row]) -> (String, usize, usize) {
    let mut text = String::from(
        "| limiter | round trip | used | refused | 1 % and what nobody can avoid | used, after the first quarter |\n\
         | --- | --- | --- | --- | --- | --- |\n",
    );
    let (mut kept, mut all) = (0, 0);
    for row in rows {
        let Ok(report) = &row.result else { continue };
        let bound = wide_bound(row, report);
        all += 1;
        kept += usize::from(report.whole.refused as f64 <= bound);
        let _ = writeln!(
            text,
            "| `{}` | {:.0?} | {:.3} | {} | {bound:.0} | {:.3} |",
            row.scenario.spec,
            row.scenario.latency.mean(),
            report.whole.used(),
            report.whole.refused,
            report.late.used(),
        );
    }
    (text, kept, all)
}

/// One in a hundred; three for a limit; what was on the wire at the first refusal; and where nobody tells how long a window is,
/// one for each doubling of the wait at two of its ends.
pub(crate) fn wide_bound(row: &Row, report: &Report) -> f64 {
    let seen = (report.whole.served + report.whole.refused) as f64;
    let told = row.scenario.spec.to_string().contains("hint=");
    let window = row.scenario.truth.window.map_or(1.0, |window| window.as_secs_f64().max(1.0));
    let doublings = if told { 0.0 } else { 2.0 * window.log2().ceil() };
    0.01 * seen + 3.0 + f64::from(report.first_flight) + doublings
}

/// A short job, and what came of it.
pub(crate) type JobRun = (Job, Result<Report, Violation>);

pub(crate) fn play_jobs(client: &str) -> Vec<JobRun> {
    let jobs = sets::jobs();
    let runs = play::spread(&jobs, |job| play::one(client, &job.scenario).0);
    jobs.into_iter().zip(runs).collect()
}

/// Its time by the oracle's, and whether it was refused no more than 1 %, 3, and what was on the wire.
fn judged(job: &Job, report: &Report) -> (f64, bool) {
    let seen = (report.whole.served + report.whole.refused) as f64;
    let allowed = 0.01 * seen + 3.0 + f64::from(report.first_flight);
    (report.took.as_secs_f64() / job.oracle(), report.whole.refused as f64 <= allowed)
}

/// Jobs within 1.15 of the oracle's time, jobs that were refused no more than they may be, and all; a job that never ended is
/// neither.
pub(crate) fn jobs_met(runs: &[JobRun]) -> (usize, usize, usize) {
    let done = runs.iter().filter_map(|(job, run)| Some(judged(job, run.as_ref().ok()?)));
    done.fold((0, 0, runs.len()), |(fast, few, all), (ratio, calm)| {
        (fast + usize::from(ratio <= QUICK), few + usize::from(calm), all)
    })
}

/// Each job, to the standard error.
pub(crate) fn each_job(runs: &[JobRun]) {
    for (job, run) in runs {
        match run {
            Ok(report) => eprintln!(
                "{} at {}/s: {:.1} s, oracle {:.1} s, {:.2}; {} refused, {} on the wire",
                job.name,
                job.rate,
                report.took.as_secs_f64(),
                job.oracle(),
                judged(job, report).0,
                report.whole.refused,
                report.first_flight,
            ),
            Err(violation) => eprintln!("{} at {}/s: {violation}", job.name, job.rate),
        }
    }
}

/// Short jobs: a line for each limiter.
pub(crate) fn jobs(runs: &[JobRun]) -> String {
    let mut text = String::from(
        "| limiter | time by the oracle's: best | worst | within 1.15 | refused: most | within 1 % + 3 + in flight | bans |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for runs in runs.chunk_by(|a, b| a.0.name == b.0.name) {
        let reports = || runs.iter().filter_map(|(job, run)| Some((job, run.as_ref().ok()?)));
        let ratios = || reports().map(|(job, report)| judged(job, report).0);
        let (best, worst) = (ratios().fold(f64::INFINITY, f64::min), ratios().fold(0.0, f64::max));
        let (fast, few, all) = jobs_met(runs);
        let most = reports().map(|(_, report)| report.whole.refused).max().unwrap_or(0);
        let name = runs[0].0.name;
        let bans = reports().map(|(_, report)| report.bans).max().filter(|_| name.contains("ban"));
        let bans = bans.map_or(NONE.to_owned(), |bans| bans.to_string());
        let _ = writeln!(
            text,
            "| {name} | {best:.2} | {worst:.2} | {fast}/{all} | {most} | {few}/{all} | {bans} |"
        );
    }
    let (fast, few, all) = jobs_met(runs);
    let _ = writeln!(text, "| **together** | | | {fast}/{all} | | {few}/{all} | |");
    text
}

/// The cases that are like none of the sets, as others meet them: used, and refused in percent.
pub(crate) fn rows_of_all(clients: &[&str]) -> String {
    let cases = sets::rows();
    let pairs: Vec<(&RowCase, &str)> =
        cases.iter().flat_map(|case| clients.iter().map(move |client| (case, *client))).collect();
    let runs = play::spread(&pairs, |(case, client)| play::one(client, &case.scenario).0);
    let mut text = format!("| case | {} |\n|{}\n", clients.join(" | "), " --- |".repeat(clients.len() + 1));
    for (case, runs) in cases.iter().zip(runs.chunks(clients.len())) {
        text += &format!("| {} |", case.name);
        for run in runs {
            text += &match run {
                Ok(report) => {
                    let refused = 100.0 * report.whole.refused_share();
                    format!(" {:.2}, {refused:.1} % |", report.whole.used())
                }
                Err(_) => " never got on |".to_owned(),
            };
        }
        text.push('\n');
    }
    text
}

/// The cases that are like none of the sets.
pub(crate) fn rows(client: &str) -> String {
    let cases = sets::rows();
    let runs = play::spread(&cases, |case| play::one(client, &case.scenario).0);
    let mut text = String::from(
        "| case | used | after the first quarter | refused | % | most together after a reopening (on the wire) | bans |\n\
         | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (case, run) in cases.iter().zip(runs) {
        match run {
            Ok(report) => {
                let _ = writeln!(
                    text,
                    "| {} | {:.3} | {:.3} | {} | {:.2} | {} ({}) | {} |",
                    case.name,
                    report.whole.used(),
                    report.late.used(),
                    report.whole.refused,
                    100.0 * report.whole.refused_share(),
                    report.spike.refused,
                    report.spike.in_flight,
                    report.bans,
                );
            }
            Err(violation) => {
                let _ = writeln!(text, "| {} | {violation} | | | | | |", case.name);
            }
        }
    }
    text
}
