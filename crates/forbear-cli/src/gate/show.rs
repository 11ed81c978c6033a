//! `forbear gate show`: everything that is known of one scope.

use std::io::{self, Write};

use forbear::record::rfc3339;
use forbear_core::{gate::Gate, learn::Belief, scope::ScopeKey, time::Timestamp};
use forbear_store::gate::SharedScope;
use serde_json::json;

use super::{Place, Row, cause_word, find, left, list, no_such, wall, wall_now};
use crate::{
    exit::{Exit, Failure, written},
    job::{belief_json, due, plain},
    table::aligned,
    words,
};

pub(super) async fn run(place: &Place, name: &str, as_json: bool) -> Result<Exit, Failure> {
    let Some(scope) = find(place, name).await? else { return Err(no_such(name)) };
    let text = match place {
        Place::Shared { desk, .. } => {
            let key = ScopeKey::from_text(&scope);
            let found = desk.scope(&key).await.map_err(|error| place.failure(&error))?;
            let found = found.ok_or_else(|| no_such(name))?;
            if as_json { json_of(&found) } else { text_of(&found) }
        }
        Place::Job { .. } => {
            let row = list::rows(place).await?.into_iter().find(|row| row.scope == scope);
            let row = row.ok_or_else(|| no_such(name))?;
            if as_json { json_of_row(&row) } else { aligned(&lines_of_row(&row)) }
        }
    };
    written(io::stdout().write_all(text.as_bytes()))
}

fn lines_of_row(row: &Row) -> Vec<Vec<String>> {
    let mut lines = Vec::new();
    let mut line = |word: &str, value: String| lines.push(vec![word.to_owned(), value]);
    line("scope", plain(&row.scope).into_owned());
    line("state", row.state.to_owned());
    if let Some(cause) = row.cause {
        line("cause", cause_word(cause).to_owned());
        let wait = row.until.map(left).filter(|left| !left.is_zero());
        let wait = wait.map_or_else(String::new, |wait| format!(", in {}", words::wait(wait)));
        line("until", format!("{}{wait}", list::until(row)));
    }
    if let Some(pace) = row.pace {
        line("pace", format!("{pace:.2}/s"));
    }
    line("incidents", row.incidents.to_string());
    lines
}

fn text_of(scope: &SharedScope) -> String {
    let row = Row::of(scope);
    let mut lines = lines_of_row(&row);
    let mut line = |word: &str, value: String| lines.push(vec![word.to_owned(), value]);
    match &scope.gate {
        Err(why) => line("record", why.clone()),
        Ok(gate) => facts(gate, scope, &mut line),
    }
    if let Some(belief) = known(scope) {
        line("believed", words::belief(belief));
        for why in words::why(belief, wall(belief.evidence.since, scope.now)) {
            line("", why);
        }
    }
    if let Some(owner) = scope.owner {
        line("learned by", format!("{owner:016x}"));
    }
    line("processes", scope.members.len().to_string());
    for member in &scope.members {
        let left = words::wait(member.until.since(scope.now));
        line(
            "",
            format!(
                "{:016x}: {} places on the wire, {} wait, alive for {left} at least",
                member.id, member.places, member.waiting,
            ),
        );
    }
    let age = scope.now.since(scope.written);
    line("written", format!("{} ago", words::wait(age)));
    aligned(&lines)
}

/// What is believed, where that is more than that there is a scope.
fn known(scope: &SharedScope) -> Option<&Belief> {
    scope.belief.as_ref().filter(|belief| belief.evidence.incidents > 0 || belief.evidence.stated)
}

fn facts(gate: &Gate, scope: &SharedScope, line: &mut impl FnMut(&str, String)) {
    let state = gate.to_state();
    if state.shut && gate.told_until() < state.paused_until && gate.told_until() > Timestamp::ZERO {
        line("told until", words::moment(wall(gate.told_until(), scope.now)));
    }
    if state.shut {
        line("backoff", format!("step {}", state.level));
    }
    if let Some(bad) = state.bad_rate {
        line("refused at", format!("{bad:.2}/s"));
    }
    line("on the wire", format!("{} of {}", gate.in_flight(), gate.concurrency()));
    if state.cap_ceiling != u16::MAX {
        line(
            "went well with",
            format!("{} on the wire, was refused above {}", state.cap_good, state.cap_ceiling),
        );
    }
    if state.stated_rate > 0.0 {
        line("server's rate", format!("{:.2}/s", state.stated_rate));
    }
    if state.budget_left != u16::MAX {
        let resets = words::moment(wall(state.budget_resets, scope.now));
        line("budget", format!("{} left until {resets}", state.budget_left));
    }
    if state.circuit_refusals > 0 {
        let (refusals, incidents) = (state.circuit_refusals, state.circuit_incidents);
        line("in a row", format!("{refusals} refusals in {incidents} incidents"));
    }
    if !gate.round_trip_mean().is_zero() {
        line("round trip", words::wait(gate.round_trip_mean()));
    }
}

fn json_of_row(row: &Row) -> String {
    let value = json!({
        "scope": row.scope, "state": row.state, "cause": row.cause.map(cause_word),
        "until": row.until.map(due), "pace_per_s": row.pace, "incidents": row.incidents,
    });
    format!("{value:#}\n")
}

fn json_of(scope: &SharedScope) -> String {
    let row = Row::of(scope);
    let moment =
        |at: Timestamp| (at != Timestamp::ZERO && at != Timestamp::MAX).then(|| due(wall(at, scope.now)));
    let gate = scope.gate.as_ref().ok().map(|gate| {
        let s = gate.to_state();
        json!({
            "told_until": if s.shut { moment(gate.told_until()) } else { None },
            "backoff_step": s.level,
            "refused_at_per_s": s.bad_rate,
            "concurrency": gate.concurrency(),
            "concurrency_good": s.cap_good,
            "concurrency_ceiling": (s.cap_ceiling != u16::MAX).then_some(s.cap_ceiling),
            "stated_per_s": (s.stated_rate > 0.0).then_some(s.stated_rate),
            "budget_left": (s.budget_left != u16::MAX).then_some(s.budget_left),
            "budget_resets": moment(s.budget_resets),
            "refusals_in_a_row": s.circuit_refusals,
            "incidents_in_a_row": s.circuit_incidents,
            "round_trip_s": gate.round_trip_mean().as_secs_f64(),
            "probe_until": if s.probe_held > 0 { moment(s.probe_until) } else { None },
        })
    });
    let value = json!({
        "at": rfc3339(wall_now()),
        "scope": row.scope, "state": row.state, "cause": row.cause.map(cause_word),
        "until": row.until.map(due), "pace_per_s": row.pace, "incidents": row.incidents,
        "on_the_wire": row.on_wire,
        "gate": gate,
        "believed": known(scope)
            .map(|belief| belief_json(belief, &rfc3339(wall(belief.evidence.since, scope.now)))),
        "learned_by": scope.owner.map(|owner| format!("{owner:016x}")),
        "unreadable": scope.gate.as_ref().err(),
        "processes": scope.members.iter().map(|member| json!({
            "id": format!("{:016x}", member.id), "places": member.places, "waiting": member.waiting,
            "until": moment(member.until),
        })).collect::<Vec<_>>(),
        "written": moment(scope.written),
    });
    format!("{value:#}\n")
}
