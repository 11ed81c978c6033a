//! The page with all figures.

use std::{fmt::Write, process::ExitCode, time::Duration};

use forbear_sim::{TrueKind, sets::Kind};

use crate::{
    play::{CLIENTS, Row, Set},
    show::{self, JobRun, Names},
};

/// The page, from the root of the repository.
const PATH: &str = "docs/reference/learning-figures.md";

/// Whose figures these are, and how that client is described.
const MAIN: &str = "gate";

const HEAD: &str = "# Learning: figures

How near `forbear` comes to limits that it is not told, and what finding them costs (rules L2 to L4; how it does that is in
[Learning](../concepts/learning.md)). One command has written this page, in virtual time and from fixed seeds, so it says the same on
every machine:

```sh
cargo run --release -p forbear-sim --example table -- write
```

The limiters are those of `forbear-zoo`, which also answer in the tests with real servers. The client is the gate of the engine with
its learner: slots, pause, probe, and what it reads in headers. What a run *used* is what was let through as a share of what the limit
allows over the run; it can be above 1, for a burst that was there at the start comes on top. *Both targets*: at least 95 % used, at
most 1 % refused; *after the first quarter* is the same without the time in which most is learned. A run that breaks a promise
(nothing into a told pause, one probe, nothing lost) would stop the command and print the line that replays it.

*Set A* has 16 limiters of each of 8 kinds with random numbers: limits of 2 to 300 a second, bursts of a twentieth of a second to a
minute of that, windows of a second to five minutes, bans of five seconds to a minute, steps to a third or to three times, waves of 10 to
50 % over five minutes to an hour, round trips of 10 to 150 ms, runs of half an hour to two hours
([sets](../../crates/forbear-sim/src/sets/mod.rs)). With `Retry-After` in whole seconds it has the six kinds that can tell one. *Set A'* is
drawn the same way from other seeds. The learner's constants were chosen by what set A says; set A' shows what that owes to
chance.
";

/// Plays everything and writes the page.
pub(crate) fn write(path: Option<&str>) -> ExitCode {
    let (silent, told) = (Set::A.rows(MAIN, false), Set::A.rows(MAIN, true));
    let jobs = show::play_jobs(MAIN);
    let mut text = String::from(HEAD);
    text += "\n## Side by side\n\nAll on set A. Runs that met both targets, of all; a short job counts that took at most 1.15 of \
             the oracle's time, and one that was refused no more than it may (see [short jobs](#short-jobs)).\n\n\
             | client | silent: whole run | after the first quarter | told: whole run | after the first quarter | jobs: quick | little refused |\n\
             | --- | --- | --- | --- | --- | --- | --- |\n";
    side_line(&mut text, MAIN, &silent, &told, &jobs);
    let (mut spreads, mut kinds) = ([String::new(), String::new()], [String::new(), String::new()]);
    for client in CLIENTS.iter().filter(|client| **client != MAIN) {
        let rows = [Set::A.rows(client, false), Set::A.rows(client, true)];
        side_line(&mut text, client, &rows[0], &rows[1], &show::play_jobs(client));
        for (i, rows) in rows.iter().enumerate() {
            spread_line(&mut spreads[i], words(client), rows);
            kinds_line(&mut kinds[i], words(client), rows);
        }
    }
    for (hint, tuned, i) in [(false, &silent, 0), (true, &told, 1)] {
        one_hint(&mut text, hint, tuned, &spreads[i], &kinds[i]);
    }
    text += "\n## Set B\n\nLimits of 0.2 to 2,000 a second, windows of a second to an hour, round trips of 5 ms to 2 s. Nobody can avoid three \
             refusals for a limit, what is on the wire when the first is heard, and where nobody tells how long a window is, one for \
             each doubling of the wait at two of its ends. The gap is what is missing to the bound, 1.\n";
    for told in [false, true] {
        let rows = Set::Wide.rows(MAIN, told);
        let (table, kept, all) = show::wide(&rows);
        let _ =
            write!(text, "\n{}: refused no more than that in {kept} of {all} runs.\n\n{table}", hint(told));
    }
    text += "\n## Short jobs\n\n300 pages by 16 workers, limits of 2, 5, 10, 20 and 50 a second. The oracle knows the limit and is charged with one \
             exhaustion: its wait, told or real, and a start that doubles from two a second. Refused may be 1 %, 3 more, and what was on \
             the wire at the first refusal.\n\n";
    text += &show::jobs(&jobs);
    text += "\n## Bans, two limits, other tenants, several nodes\n\nAn hour each. The share is of what the limit leaves for this client; of several nodes \
             each takes its part by chance, so all of it cannot be had without being refused by the one that is ahead.\n\n";
    text += &show::rows(MAIN);
    text += "\nThe same with others: used, and refused.\n\n";
    text += &show::rows_of_all(&CLIENTS);
    let path = path.unwrap_or(PATH);
    match std::fs::write(path, text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{path}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn hint(told: bool) -> &'static str {
    if told { "With Retry-After" } else { "Without hints" }
}

fn one_hint(text: &mut String, told: bool, tuned: &[Row], spreads: &str, kinds: &str) {
    let all = Set::A.kinds_of(told);
    let held = Set::Held.rows(MAIN, told);
    let _ = write!(text, "\n## {}\n\nSet A:\n\n{}", hint(told), show::set(tuned));
    let _ = write!(text, "\nSet A':\n\n{}", show::set(&held));
    *text += "\nEverybody, on set A:\n\n\
              | client | used: median | p10 | worst | refused %: median | worst | both targets, whole run | after the first quarter |\n\
              | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    spread_line(text, words(MAIN), tuned);
    *text += spreads;
    let names: Vec<&str> = all.iter().map(|kind| kind.name()).collect();
    let _ = write!(
        text,
        "\nOf 16 of each kind, how many met both targets over the whole run:\n\n| client | {} |\n|{}\n",
        names.join(" | "),
        " --- |".repeat(names.len() + 1)
    );
    kinds_line(text, words(MAIN), tuned);
    *text += kinds;
    *text += &format!("\n{}\n", reach(tuned, told));
    for (name, rows) in [("Set A", tuned), ("Set A'", &held[..])] {
        let Names { all, named, right, with_number, numbers, with_window, windows } = Names::count(rows);
        let _ = write!(
            text,
            "\n{name}: of {all} limits that stay as they are {named} were named, {right} of them right. Of those, {numbers} of \
             {with_number} have the number within 3 %, and {windows} of {with_window} the window within 5 %.\n",
        );
    }
}

fn words(client: &str) -> &str {
    match client {
        "gate" => "forbear",
        "every-2s" => "each worker again after 2 s",
        "jitter" => "each worker by full jitter, `Retry-After` first",
        "aimd" => "additive increase, multiplicative decrease",
        "cubic" => "AWS adaptive (CUBIC)",
        "oracle" => "an oracle that sends evenly",
        other => other,
    }
}

fn side_line(text: &mut String, client: &str, silent: &[Row], told: &[Row], jobs: &[JobRun]) {
    let ((sw, sl, sn), (tw, tl, tn)) = (show::met(silent), show::met(told));
    let (fast, few, all) = show::jobs_met(jobs);
    let _ = writeln!(
        text,
        "| {} | {sw}/{sn} | {sl}/{sn} | {tw}/{tn} | {tl}/{tn} | {fast}/{all} | {few}/{all} |",
        words(client)
    );
}

fn spread_line(text: &mut String, client: &str, rows: &[Row]) {
    let ((median, p10, worst, refused, most), (whole, late, n)) = (show::spread(rows), show::met(rows));
    let _ = writeln!(
        text,
        "| {client} | {median:.3} | {p10:.3} | {worst:.3} | {refused:.2} | {most:.2} | {whole}/{n} | {late}/{n} |"
    );
}

fn kinds_line(text: &mut String, client: &str, rows: &[Row]) {
    *text += &format!("| {client} |");
    for rows in rows.chunk_by(|a, b| a.kind == b.kind) {
        *text += &format!(" {} |", show::met(rows).0);
    }
    text.push('\n');
}

/// The runs that missed a target, and the most that can be reached there.
fn reach(rows: &[Row], told: bool) -> String {
    let missed: Vec<&Row> =
        rows.iter().filter(|row| row.result.as_ref().is_ok_and(|r| !r.whole.meets_targets())).collect();
    let out = rows.iter().filter(|row| bound(row, told) < 0.95).count();
    let mut text = format!(
        "Missed over the whole run by {} of these, beside the most that anybody can use who only reacts; for {out} of all {} that is \
         less than 95 %.\n\n\
         - *A limit that moves* by the share p in a second, and costs c seconds of work each time that it is met, costs at least the share \
         sqrt(2cp): whoever looks rarely is behind it, whoever looks often pays for looking. A refusal costs the round trips and the told \
         second, less what the burst bears.\n\
         - *A counter of two windows* that allows N counts in whole requests, so an even pace gets N - 1.\n\
         - *A penalty* must be met twice before its rate is known to a few per cent, since what a burst let through says little of it: two \
         bans of the run. Without hints the first one costs two at least, since each probe that comes too early begins it anew: waits that \
         double are in vain for about its length, and then it must be waited for.\n\
         - For the others it is 1: one exhaustion of a window costs nothing, for all of it was used.\n\n",
        missed.len(),
        rows.len(),
    );
    text += "| instance | limiter | at most | used | refused % | used after the first quarter |\n| --- | --- | --- | --- | --- | --- |\n";
    for row in missed {
        let Ok(report) = &row.result else { continue };
        let _ = writeln!(
            text,
            "| {} {} | `{}` | {:.3} | {:.3} | {:.2} | {:.3} |",
            row.kind,
            row.index,
            row.scenario.spec,
            bound(row, told),
            report.whole.used(),
            100.0 * report.whole.refused_share(),
            report.late.used()
        );
    }
    text
}

/// The most that an even pace which only reacts can use.
fn bound(row: &Row, told: bool) -> f64 {
    let (scenario, truth) = (&row.scenario, &row.scenario.truth);
    match row.kind {
        Kind::SlidingCounter if truth.kind == TrueKind::Sliding => (truth.number - 1.0) / truth.number,
        Kind::Penalty => {
            let ban = truth.window.map_or(0.0, |ban| ban.as_secs_f64());
            1.0 - if told { 2.0 } else { 3.0 } * ban / scenario.run_for.as_secs_f64()
        }
        Kind::Waves => {
            // A refusal shuts for what is told, in whole seconds, and for what is on the way.
            let shut = if told { 1.0 } else { 0.0 } + 2.0 * scenario.latency.round_trip.as_secs_f64();
            // What a burst bears is not lost.
            let lost = (shut - truth.number / truth.rate).max(scenario.latency.round_trip.as_secs_f64());
            let tick = Duration::from_secs(1);
            let rate = |at: u64| truth.allowed(Duration::from_secs(at), Duration::from_secs(at) + tick);
            let seconds = scenario.run_for.as_secs().saturating_sub(2);
            let loss: f64 =
                (0..seconds).map(|at| (2.0 * lost * (rate(at + 1) / rate(at)).ln().abs()).sqrt()).sum();
            1.0 - loss / seconds as f64
        }
        _ => 1.0,
    }
}
