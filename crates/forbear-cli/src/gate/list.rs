//! `forbear gate list`.

use std::io::{self, Write};

use forbear::record::rfc3339;
use forbear_core::{gate::Cause, policy::ScopePolicy, time::Timestamp};
use forbear_store::gate::GateRecord;
use serde_json::json;

use super::{Place, Row, cause_word, left, wall_now};
use crate::{
    exit::{Exit, Failure, written},
    job::{due, failure, plain},
    table::aligned,
    words,
};

pub(super) async fn run(place: &Place, as_json: bool) -> Result<Exit, Failure> {
    let mut rows = rows(place).await?;
    // What is shut first, and of that what opens last.
    rows.sort_by(|a, b| {
        let key = |row: &Row| (row.cause.is_none(), std::cmp::Reverse((row.endless, row.until)));
        key(a).cmp(&key(b)).then_with(|| a.scope.cmp(&b.scope))
    });
    rows.dedup_by(|a, b| a.scope == b.scope);
    let text = if as_json { as_lines(&rows) } else { as_table(&rows) };
    written(io::stdout().write_all(text.as_bytes()))
}

/// Every scope that there is.
pub(super) async fn rows(place: &Place) -> Result<Vec<Row>, Failure> {
    let mut rows = Vec::new();
    match place {
        Place::Shared { desk, .. } => {
            let each = |scope| rows.push(Row::of(&scope));
            desk.scopes(each).await.map_err(|error| place.failure(&error))?;
        }
        Place::Job { file, path } => {
            let mut after = String::new();
            loop {
                let page = file.gates(&after, PAGE).map_err(|error| failure(&path.into(), &error))?;
                let last = page.len() < PAGE;
                if let Some(gate) = page.last() {
                    after.clone_from(&gate.key);
                }
                rows.extend(page.into_iter().map(|kept| of_job(kept.key, &kept.record)));
                if last {
                    break;
                }
            }
        }
    }
    Ok(rows)
}

/// What a run has kept of a gate in its memory.
fn of_job(scope: String, record: &[u8]) -> Row {
    let now = wall_now();
    let mut row = Row {
        scope,
        state: "unreadable",
        cause: None,
        until: None,
        endless: false,
        pace: None,
        on_wire: None,
        processes: None,
        waiting: None,
        incidents: 0,
    };
    // Only moments and numbers are wanted, and no policy changes those.
    if let Ok(gate) = GateRecord::decode(record, &ScopePolicy::default(), now) {
        let kept = gate.snapshot();
        row.state = gate.state(now);
        row.cause = kept.shut.then_some(kept.cause);
        row.endless = kept.shut && kept.paused_until == Timestamp::MAX;
        row.until = (kept.shut && !row.endless).then_some(kept.paused_until);
        (row.pace, row.incidents) = (kept.rate, kept.incidents);
    }
    row
}

fn as_lines(rows: &[Row]) -> String {
    let objects: Vec<_> = rows
        .iter()
        .map(|row| {
            json!({
                "scope": row.scope,
                "state": row.state,
                "cause": row.cause.map(cause_word),
                "until": row.until.map(due),
                "pace_per_s": row.pace,
                "on_the_wire": row.on_wire,
                "processes": row.processes,
                "waiting": row.waiting,
                "incidents": row.incidents,
            })
        })
        .collect();
    format!("{:#}\n", json!({ "at": rfc3339(wall_now()), "scopes": objects }))
}

fn as_table(rows: &[Row]) -> String {
    if rows.is_empty() {
        return "no scope is known\n".to_owned();
    }
    let header =
        ["scope", "state", "cause", "until", "pace", "on the wire", "processes", "waiting", "incidents"];
    let mut lines = vec![header.map(str::to_owned).to_vec()];
    let dash = || "-".to_owned();
    lines.extend(rows.iter().take(ROWS).map(|row| {
        vec![
            plain(&row.scope).into_owned(),
            row.state.to_owned(),
            row.cause.map_or_else(dash, |cause| cause_word(cause).to_owned()),
            until(row),
            row.pace.map_or_else(dash, |pace| format!("{pace:.1}/s")),
            row.on_wire.map_or_else(dash, |n| n.to_string()),
            row.processes.map_or_else(dash, |n| n.to_string()),
            row.waiting.map_or_else(dash, |n| n.to_string()),
            row.incidents.to_string(),
        ]
    }));
    let mut text = aligned(&lines);
    if rows.len() > ROWS {
        text += &format!("and {} more; --json has all\n", rows.len() - ROWS);
    }
    text
}

/// Until when a scope is shut, for people.
pub(super) fn until(row: &Row) -> String {
    match (row.cause, row.until) {
        (None, _) => "-".to_owned(),
        (Some(Cause::Credentials), None) => "its credentials change".to_owned(),
        (Some(_), None) => "for ever".to_owned(),
        (Some(_), Some(at)) if left(at).is_zero() => "over: a probe is next".to_owned(),
        (Some(_), Some(at)) => words::moment(at),
    }
}

/// More is no table.
const ROWS: usize = 100;
const PAGE: usize = 1000;
