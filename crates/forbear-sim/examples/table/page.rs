//! The page with all figures.

use std::{fmt::Write, process::ExitCode, time::Duration};

use forbear_sim::{TrueKind, sets::Kind};

use crate::{
    play::{self, CLIENTS, Row, Set},
    show::{self, Names},
};

/// The page, from the root of the repository.
const PATH: &str = "docs/reference/learning-figures.md";

/// Whose figures these are, and how that client is described.
const MAIN: &str = "learner";

const HEAD: &str = "# Learning: figures

How near the learner comes to limits that it is not told, and what it costs (rules L2 to L4). Everything here was written by one
command, in virtual time and from fixed seeds, so it says the same on every machine:

```sh
cargo run --release -p forbear-sim --example table -- write
```

The limiters are those of `forbear-zoo`. The client is the learner behind a pause and a probe of its own, as the gate's are. What a
run *used* is what was let through as a share of what the limit allows over the run; it can be above 1, for a burst that
was there at the start comes on top. *Both targets*: at least 95 % used, at most 1 % refused. A run that breaks a promise
(nothing into a told pause, one probe, nothing lost) stops the command and prints the line that replays it.

Set A has 16 instances of each of 8 kinds, drawn from the ranges in
[sets](../../crates/forbear-sim/src/sets/mod.rs). The learner was tuned on them. The *held-out* set is drawn the same way from
other seeds, and nothing was ever tuned on it.
";

/// Plays everything and writes the page.
pub(crate) fn write(path: Option<&str>) -> ExitCode {
    let mut text = String::from(HEAD);
    for told in [false, true] {
        one_hint(&mut text, told);
    }
    text += "\n## Set B\n\nLimits of 0.2 to 2,000 a second, windows of a second to an hour, round trips of 5 ms to 2 s. Nobody can avoid three \
             refusals for a limit, what is on the wire when the first is heard, and where nobody tells how long a window is, one for \
             each doubling of the wait at two of its ends. The last column is the gap: what is missing to 1.\n";
    for told in [false, true] {
        let kinds: Vec<Kind> =
            Set::Wide.kinds().iter().copied().filter(|kind| !told || kind.tells()).collect();
        let rows = play::play(MAIN, Set::Wide, &kinds, told, None);
        let (table, kept, all) = show::wide(&rows);
        let _ =
            write!(text, "\n{}: refused no more than that in {kept} of {all} runs.\n\n{table}", hint(told));
    }
    text += "\n## Short jobs\n\n300 pages by 16 workers, limits of 2, 5, 10, 20 and 50 a second. The oracle knows the limit and is charged with one \
             exhaustion: its wait, told or real, and a start that doubles from two a second. Refused may be 1 %, 3 more, and what was on \
             the wire at the first refusal.\n\n";
    text += &show::jobs(MAIN, false);
    text += "\n## Bans, two limits, other tenants, several nodes\n\nAn hour each. The share is of what the limit leaves for this client; of several nodes \
             each takes its part by chance, so all of it cannot be had without being refused by the one that is ahead.\n\n";
    text += &show::rows(MAIN);
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

fn one_hint(text: &mut String, told: bool) {
    let kinds: Vec<Kind> = Kind::ALL.into_iter().filter(|kind| !told || kind.tells()).collect();
    let _ = write!(text, "\n## {}\n\nSet A:\n\n", hint(told));
    let tuned = play::play(MAIN, Set::A, &kinds, told, None);
    *text += &show::set(&kinds, &tuned);
    *text += "\nThe held-out set:\n\n";
    let held = play::play(MAIN, Set::Held, &kinds, told, None);
    *text += &show::set(&kinds, &held);
    *text += "\nEverybody, on all of these instances:\n\n\
              | client | set | used: median | p10 | worst | refused %: median | worst | both targets, whole run | after the first quarter |\n\
              | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
    client_line(text, MAIN, "A", &tuned);
    client_line(text, MAIN, "held-out", &held);
    for client in CLIENTS.iter().filter(|client| **client != MAIN) {
        let rows = play::play(client, Set::A, &kinds, told, None);
        client_line(text, words(client), "A", &rows);
    }
    *text += &format!("\n{}\n", reach(&tuned, told));
    for (name, rows) in [("Set A", &tuned), ("The held-out set", &held)] {
        let Names { all, named, right, with_number, numbers, with_window, windows } =
            Names::count(&rows.iter().collect::<Vec<_>>());
        let _ = write!(
            text,
            "\n{name}: of {all} limits that stay as they are {named} were named, {right} of them right. Of those, {numbers} of \
             {with_number} have the number within 3 %, and {windows} of {with_window} the window within 5 %.\n",
        );
    }
}

fn words(client: &str) -> &str {
    match client {
        "every-2s" => "each worker again after 2 s",
        "jitter" => "each worker by full jitter, after Retry-After",
        "gate" => "the gate, without the learner",
        "aimd" => "additive increase, multiplicative decrease",
        "cubic" => "AWS adaptive (CUBIC)",
        other => other,
    }
}

fn client_line(text: &mut String, client: &str, set: &str, rows: &[Row]) {
    let rows: Vec<&Row> = rows.iter().collect();
    let ((median, p10, worst, refused, most), (whole, late, n)) = (show::spread(&rows), show::met(&rows));
    let _ = writeln!(
        text,
        "| {client} | {set} | {median:.3} | {p10:.3} | {worst:.3} | {refused:.2} | {most:.2} | {whole}/{n} | {late}/{n} |"
    );
}

/// What can be reached at all, and how many of what cannot were missed.
fn reach(rows: &[Row], told: bool) -> String {
    let bounds: Vec<(&Row, f64)> = rows.iter().map(|row| (row, bound(row, told))).collect();
    let out: Vec<&(&Row, f64)> = bounds.iter().filter(|(_, bound)| *bound < 0.95).collect();
    let mut text = format!(
        "Out of reach of whoever only reacts are {} of these. A limit that moves by the share p in a second, and costs c seconds of work \
         each time that it is met, costs at least the share sqrt(2cp); and a counter of two windows that allows fewer than 20 refuses an \
         even pace of 95 %, because it counts in whole requests. How near the learner came to these bounds:\n\n",
        out.len(),
    );
    text += "| instance | bound | used | after the first quarter |\n| --- | --- | --- | --- |\n";
    for (row, bound) in out {
        if let Ok(report) = &row.result {
            let _ = writeln!(
                text,
                "| {} {} | {bound:.3} | {:.3} | {:.3} |",
                row.kind,
                row.index,
                report.whole.used(),
                report.late.used()
            );
        }
    }
    text
}

/// The most that an even pace which only reacts can use.
fn bound(row: &Row, told: bool) -> f64 {
    let (scenario, truth) = (&row.scenario, &row.scenario.truth);
    match row.kind {
        Kind::SlidingCounter if truth.kind == TrueKind::Sliding => (truth.number - 1.0) / truth.number,
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
