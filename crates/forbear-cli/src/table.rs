//! Tables for people: what a run did, and what it would do.

use std::{
    io::{self, Write},
    time::Duration,
};

use forbear::{
    config::show_duration,
    engine::{Plan, Summary},
};
use forbear_store::queue::ExitRow;

use crate::exit::{Exit, Failure, written};

/// Hosts, and exits, with a row of their own; the others are one row.
const ROWS: usize = 20;
/// Of these, how many are kept for exits that cannot be used, however little went through them.
const ROWS_FOR_BROKEN: usize = 10;

/// The end of a run, on stderr: a row for each host and each exit, and the sum that must come out even (J5).
pub(crate) fn summary(summary: &Summary) {
    // What requests cost is of interest where one cost more, or less, than a request.
    let costs = summary.hosts.iter().any(|host| host.cost != host.sent);
    let mut header =
        vec!["host", "done", "failed", "requests", "refused", "faults", "pauses", "probes", "MiB"];
    header.extend(costs.then_some("cost"));
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    let shown = summary.hosts.iter().take(ROWS);
    rows.extend(shown.filter(|host| host.sent > 0).map(|host| {
        let mut row = vec![host.origin.clone()];
        row.extend(
            [host.done, host.failed, host.sent, host.refused, host.faults, host.pauses, host.probes]
                .map(|n| n.to_string()),
        );
        row.push(mib(host.bytes));
        row.extend(costs.then(|| host.cost.to_string()));
        row
    }));
    if summary.hosts.len() > ROWS {
        rows.push(vec![format!("and {} more hosts", summary.hosts.len() - ROWS)]);
    }
    let mut text = if rows.len() > 1 { aligned(&rows) } else { String::new() };
    if !summary.exits.is_empty() {
        let rows: Vec<ExitRow> = summary.exits.iter().map(ExitRow::from).collect();
        let gap = if text.is_empty() { "" } else { "\n" };
        text.push_str(&format!("{gap}{}\n", exits(rows)));
    }
    let c = &summary.counts;
    let took = summary.elapsed.as_secs_f64();
    let sent: u64 = summary.hosts.iter().map(|host| host.sent).sum();
    text.push_str(&format!("{sent} requests in {took:.1} s"));
    if let Some(multiplier) = summary.retry_multiplier() {
        text.push_str(&format!(", {multiplier:.2} for each item that ended"));
    }
    text.push('\n');
    let sum = c.done + c.failed + c.unknown + c.parked + c.pending + c.leased;
    text.push_str(&format!("{} in = {sum} accounted for: {} done, {} failed", c.imported, c.done, c.failed));
    for (n, word) in [(c.unknown, "unknown"), (c.parked, "parked"), (c.pending + c.leased, "pending")] {
        if n > 0 {
            text.push_str(&format!(", {n} {word}"));
        }
    }
    // Nobody may be there to read it; the records are.
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// What went through each exit, the busiest first. Those that fail or are out are shown before others, and what was paid
/// where a price is known: in the currency of the price, which is not known.
pub(crate) fn exits(mut all: Vec<ExitRow>) -> String {
    all.sort_by(|a, b| b.requests.cmp(&a.requests).then_with(|| a.name.cmp(&b.name)));
    let count = all.len();
    let priced = all.iter().any(|exit| exit.cost.is_some());
    let cost = |exit: &ExitRow| exit.cost.map_or_else(String::new, |cost| format!("{cost:.4}"));
    let row = |name: String, exit: &ExitRow| {
        let mut row = vec![name, exit.state.clone()];
        let numbers = [exit.requests, exit.done, exit.refused, exit.blocked, exit.faults];
        row.extend(numbers.map(|n| n.to_string()));
        row.push(mib(exit.bytes));
        row.extend(priced.then(|| cost(exit)));
        row
    };
    let mut header = vec!["exit", "state", "requests", "done", "refused", "blocked", "faults", "MiB"];
    header.extend(priced.then_some("cost"));
    let mut rows = vec![header.into_iter().map(str::to_owned).collect()];

    let is_broken = |exit: &ExitRow| matches!(exit.state.as_str(), "failing" | "out");
    let mut for_broken = all.iter().filter(|exit| is_broken(exit)).count().min(ROWS_FOR_BROKEN);
    let mut for_others = ROWS - for_broken;
    let (mut others, mut broken_others) = (ExitRow::new("", ""), 0);
    let mut sum = ExitRow::new("", "");
    for exit in &all {
        sum.add(exit);
        let take = |room: &mut usize| std::mem::replace(room, room.saturating_sub(1)) > 0;
        if (is_broken(exit) && take(&mut for_broken)) || take(&mut for_others) {
            rows.push(row(exit.name.clone(), exit));
        } else {
            others.add(exit);
            broken_others += usize::from(is_broken(exit));
        }
    }
    if count > ROWS {
        if broken_others > 0 {
            others.state = format!("{broken_others} not usable");
        }
        rows.push(row(format!("{} more exits", count - ROWS), &others));
    }
    if priced && count > 1 {
        rows.push(row(format!("all {count} exits"), &sum));
    }
    aligned(&rows)
}

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// What a run would do, on stdout.
pub(crate) fn plan(plan: &Plan) -> Result<Exit, Failure> {
    let costs = plan.hosts.iter().any(|host| host.cost != host.items);
    let mut header = vec!["host", "items", "rate", "at least", "scopes"];
    if costs {
        header.insert(2, "cost");
    }
    let mut rows = vec![header.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    rows.extend(plan.hosts.iter().map(|host| {
        let mut row = vec![host.origin.clone(), host.items.to_string()];
        row.extend(costs.then(|| host.cost.to_string()));
        row.extend([
            host.rate.clone().unwrap_or_else(|| "learned".to_owned()),
            host.least.map_or_else(|| "unknown".to_owned(), shown),
            host.scopes.join(", "),
        ]);
        row
    }));
    let mut text = aligned(&rows);
    let items = count(plan.items, "item");
    let hosts = count(plan.hosts.len() as u64, "host");
    text.push_str(&format!("{items} on {hosts}"));
    if plan.exits > 0 {
        text.push_str(&format!(", by {}", count(plan.exits as u64, "exit")));
    }
    match plan.bad {
        0 => {}
        1 => text.push_str(", 1 line that is none"),
        bad => text.push_str(&format!(", {bad} lines that are none")),
    }
    match plan.least {
        Some(least) => text.push_str(&format!(", at least {} by the configured rates", shown(least))),
        None => text.push_str(", no configured rate bounds the time: it depends on what the servers allow"),
    }
    text.push_str("; nothing was sent\n");
    written(io::stdout().write_all(text.as_bytes()))
}

fn count(n: u64, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// To the second, or finer where it is short.
fn shown(d: Duration) -> String {
    let step = if d < Duration::from_secs(10) { 100 } else { 1000 };
    let ms = d.as_millis().div_ceil(step) * step;
    show_duration(Duration::from_millis(u64::try_from(ms).unwrap_or(u64::MAX)))
}

/// Rows under each other: the first column to the left, numbers to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |i: usize| {
        rows.iter()
            .filter(|row| row.len() > 1)
            .filter_map(|row| row.get(i))
            .map(|cell| cell.chars().count())
            .max()
            .unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (i, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let gap = " ".repeat(width.saturating_sub(cell.chars().count()));
            let number = i > 0 && cell.chars().all(|c| c.is_ascii_digit() || c == '.');
            let header = i > 0
                && text.is_empty()
                && rows
                    .get(1)
                    .and_then(|r| r.get(i))
                    .is_some_and(|c| c.chars().all(|c| c.is_ascii_digit() || c == '.'));
            if i > 0 {
                line.push_str("  ");
            }
            line.push_str(&if number || header { format!("{gap}{cell}") } else { format!("{cell}{gap}") });
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exit(n: u64, state: &str) -> ExitRow {
        ExitRow {
            requests: n,
            done: n,
            bytes: n << 20,
            ..ExitRow::new(format!("http://10.0.0.{n}:8080"), state)
        }
    }

    fn rows(text: &str) -> Vec<Vec<&str>> {
        text.lines().map(|line| line.split_whitespace().collect()).collect()
    }

    #[test]
    fn e1_broken_exits_have_a_row_though_others_are_busier() {
        let all = (1..=100).map(|n| exit(n, if n % 25 == 0 { "out" } else { "ok" })).collect();
        let text = exits(all);
        let rows = rows(&text);
        assert_eq!(rows.len(), 1 + ROWS + 1, "{text}");
        let shown: Vec<u64> = rows[1..=ROWS].iter().map(|row| row[2].parse().unwrap()).collect();
        assert!(shown.is_sorted_by(|a, b| a > b), "the busiest first: {shown:?}");
        assert!([25, 50, 75, 100].iter().all(|n| shown.contains(n)), "{shown:?}");
        let rest: u64 = 5050 - shown.iter().sum::<u64>();
        assert_eq!(rows[ROWS + 1][..5], ["80", "more", "exits", &rest.to_string(), &rest.to_string()]);
    }

    #[test]
    fn c4_however_many_are_broken_the_table_has_twenty_rows_and_one() {
        for (state, of_the_rest) in
            [("failing", "80 more exits 80 not usable 3240"), ("ok", "80 more exits 3240")]
        {
            let text = exits((1..=100).map(|n| exit(n, state)).collect());
            let rows = rows(&text);
            assert_eq!(rows.len(), 1 + ROWS + 1, "{text}");
            assert!(rows[ROWS + 1].join(" ").starts_with(of_the_rest), "{text}");
        }
        let many = (1..=100).map(|n| exit(n, if n <= 60 { "out" } else { "ok" })).collect();
        let text = exits(many);
        assert_eq!(text.matches(" out ").count(), ROWS_FOR_BROKEN, "{text}");
    }

    #[test]
    fn e2_what_was_paid_is_shown_for_each_and_for_all() {
        let priced = |n, cost| ExitRow { cost, ..exit(n, "ok") };
        let text = exits(vec![priced(1, Some(0.5)), priced(3, Some(0.25)), priced(2, None)]);
        let rows = rows(&text);
        let last: Vec<&str> = rows.iter().map(|row| *row.last().unwrap()).collect();
        assert_eq!(last, ["cost", "0.2500", "2.0", "0.5000", "0.7500"], "{text}");
        assert_eq!(rows[4][..4], ["all", "3", "exits", "6"], "{text}");
        assert!(!exits(vec![priced(2, None)]).contains("cost"), "no price, no cost");
    }
}
