//! Tables for people: what a run did, and what it would do.

use std::{
    io::{self, Write},
    time::Duration,
};

use forbear::{
    config::show_duration,
    engine::{Plan, Summary},
};

use crate::exit::{Exit, Failure, written};

/// Hosts with a row of their own; the others are one row.
const ROWS: usize = 20;

/// The end of a run, on stderr: a row for each host, and the sum that must come out even (J5).
pub(crate) fn summary(summary: &Summary) {
    let mut rows = vec![
        ["host", "done", "failed", "requests", "refused", "faults", "pauses", "probes", "MiB"]
            .map(str::to_owned)
            .to_vec(),
    ];
    let shown = summary.hosts.iter().take(ROWS);
    rows.extend(shown.filter(|host| host.sent > 0).map(|host| {
        let mut row = vec![host.origin.clone()];
        row.extend(
            [host.done, host.failed, host.sent, host.refused, host.faults, host.pauses, host.probes]
                .map(|n| n.to_string()),
        );
        row.push(format!("{:.1}", host.bytes as f64 / f64::from(1 << 20)));
        row
    }));
    if summary.hosts.len() > ROWS {
        rows.push(vec![format!("and {} more hosts", summary.hosts.len() - ROWS)]);
    }
    let mut text = if rows.len() > 1 { aligned(&rows) } else { String::new() };
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

/// What a run would do, on stdout.
pub(crate) fn plan(plan: &Plan) -> Result<Exit, Failure> {
    let mut rows = vec![["host", "items", "rate", "at least", "scopes"].map(str::to_owned).to_vec()];
    rows.extend(plan.hosts.iter().map(|host| {
        vec![
            host.origin.clone(),
            host.items.to_string(),
            host.rate.clone().unwrap_or_else(|| "learned".to_owned()),
            host.least.map_or_else(|| "unknown".to_owned(), shown),
            host.scopes.join(", "),
        ]
    }));
    let mut text = aligned(&rows);
    text.push_str(&format!("{} items on {} hosts", plan.items, plan.hosts.len()));
    if plan.bad > 0 {
        text.push_str(&format!(", {} lines that are none", plan.bad));
    }
    match plan.least {
        Some(least) => text.push_str(&format!(", at least {} by the configured rates", shown(least))),
        None => text.push_str(", no rate is configured: the time depends on what the servers allow"),
    }
    text.push_str("; nothing was sent\n");
    written(io::stdout().write_all(text.as_bytes()))
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
