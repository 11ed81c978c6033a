//! `forbear gate`: the gates that several processes share, looked at and changed while they are in use.

mod change;
mod list;
mod show;

use std::{
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use forbear::config::Flag;
use forbear_core::{gate::Cause, scope::ScopeKey, time::Timestamp};
use forbear_store::{
    gate::{GateAddress, GateDesk, SharedScope, StoreError},
    queue::inspect::JobFile,
};

use crate::{
    args::{GateArgs, GateAt, GateCommand, sources},
    exit::{Exit, Failure},
};

/// Lists, shows, pauses, resumes, clears.
///
/// # Errors
/// No shared store is named, it cannot be reached, or it has no such scope.
pub(crate) async fn run(args: GateArgs) -> Result<Exit, Failure> {
    match args.command {
        GateCommand::List { at, json } => list::run(&Place::open(&at).await?, json).await,
        GateCommand::Show { scope, at, json } => show::run(&Place::open(&at).await?, &scope, json).await,
        GateCommand::Pause { scope, time, at } => {
            let time = change::pause_of(&time)?;
            change::run(&Place::open(&at).await?, &scope, change::What::Pause(time)).await
        }
        GateCommand::Resume { scope, at } => {
            change::run(&Place::open(&at).await?, &scope, change::What::Resume).await
        }
        GateCommand::Clear { scope, at } => {
            change::run(&Place::open(&at).await?, &scope, change::What::Clear).await
        }
    }
}

/// Where the gates are.
#[allow(clippy::large_enum_variant, reason = "a command has one")]
pub(crate) enum Place {
    /// A store that processes share. Its address has no password.
    Shared { desk: GateDesk, address: String },
    /// The job of a run whose gates are in its memory: what it has kept of them.
    Job { file: JobFile, path: PathBuf },
}

impl Place {
    pub(crate) async fn open(at: &GateAt) -> Result<Place, Failure> {
        let mut sources = sources(at.config.as_deref(), None, Path::new("."));
        sources.flags.extend(at.gate.as_ref().map(|gate| Flag {
            flag: "--gate",
            host: None,
            key: "gate",
            value: gate.expose().to_owned(),
        }));
        let address = sources.load()?.settings.gate;
        match &address {
            GateAddress::Memory => return Err(Failure::usage(NO_STORE)),
            GateAddress::File(path) if path.is_file() => {
                if let Ok(file) = JobFile::open(path) {
                    return Ok(Place::Job { file, path: path.clone() });
                }
            }
            _ => {}
        }
        let address_shown = address.to_string();
        let desk = GateDesk::open(&address).await.map_err(|error| unreachable(&address_shown, &error))?;
        Ok(Place::Shared { desk, address: address_shown })
    }

    pub(crate) fn failure(&self, error: &StoreError) -> Failure {
        match self {
            Place::Shared { address, .. } => unreachable(address, error),
            Place::Job { path, .. } => unreachable(&path.display().to_string(), error),
        }
    }
}

fn unreachable(place: &str, error: &StoreError) -> Failure {
    let exit = match error {
        StoreError::Address => Exit::Usage,
        StoreError::Record(_) | StoreError::Contended { .. } => Exit::Internal,
        _ => Exit::StoreUnreachable,
    };
    let told = Failure::of(error, exit);
    let found = told.to_string();
    let text = match found.strip_prefix("cannot reach the gate store") {
        Some(why) => format!("cannot reach the gate store {place}{why}"),
        None => format!("{place}: {found}"),
    };
    Failure::with(exit, text)
}

/// One scope on one line, with wall-clock times.
struct Row {
    scope: String,
    state: &'static str,
    cause: Option<Cause>,
    /// None: it is open, or shut without an end.
    until: Option<Timestamp>,
    endless: bool,
    pace: Option<f32>,
    on_wire: Option<u32>,
    processes: Option<usize>,
    waiting: Option<u64>,
    incidents: u32,
}

impl Row {
    fn of(scope: &SharedScope) -> Row {
        let mut row = Row {
            scope: scope.key.to_string(),
            state: scope.state(),
            cause: None,
            until: None,
            endless: false,
            pace: None,
            on_wire: None,
            processes: Some(scope.members.len()),
            waiting: Some(scope.members.iter().map(|member| u64::from(member.waiting)).sum()),
            incidents: 0,
        };
        let Ok(gate) = &scope.gate else { return row };
        let kept = gate.snapshot();
        if kept.shut {
            row.cause = Some(kept.cause);
            row.endless = kept.paused_until == Timestamp::MAX;
            row.until = (!row.endless).then(|| wall(kept.paused_until, scope.now));
        }
        (row.pace, row.incidents, row.on_wire) = (kept.rate, kept.incidents, Some(gate.in_flight()));
        row
    }
}

/// Finds the one scope that is meant: by its whole name, or by a beginning that no other has.
async fn find(place: &Place, name: &str) -> Result<Option<String>, Failure> {
    if let Place::Shared { desk, .. } = place {
        let whole = desk.scope(&ScopeKey::from_text(name)).await.map_err(|error| place.failure(&error))?;
        if whole.is_some() {
            return Ok(Some(name.to_owned()));
        }
    }
    let mut found: Vec<String> = list::rows(place)
        .await?
        .into_iter()
        .map(|row| row.scope)
        .filter(|scope| scope.starts_with(name))
        .collect();
    found.sort_unstable();
    found.dedup();
    if found.iter().any(|scope| scope == name) {
        return Ok(Some(name.to_owned()));
    }
    if found.len() > 1 {
        let mut text = format!("{} scopes begin like this; say which one:", found.len());
        found.iter().take(SHOWN).for_each(|scope| text += &format!("\n  {scope}"));
        if found.len() > SHOWN {
            text += &format!("\n  and {} more", found.len() - SHOWN);
        }
        return Err(Failure::usage(text));
    }
    Ok(found.pop())
}

fn no_such(name: &str) -> Failure {
    Failure::usage(format!(
        "no scope is called {name}, or begins so; `forbear gate list` shows those that there are"
    ))
}

/// A moment of the store on the wall clock.
fn wall(at: Timestamp, store_now: Timestamp) -> Timestamp {
    let now = wall_now();
    if at > store_now { now.plus(at.since(store_now)) } else { now.minus(store_now.since(at)) }
}

fn wall_now() -> Timestamp {
    Timestamp::ZERO.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn cause_word(cause: Cause) -> &'static str {
    cause.as_str()
}

/// Rounded up to what people read.
fn left(until: Timestamp) -> Duration {
    until.since(wall_now())
}

const NO_STORE: &str = "no shared gate store is named: give --gate FILE or --gate redis://HOST, or `gate` in forbear.toml. \
                        Gates in memory are seen by their own process alone; what a run has kept of them stands in its job: \
                        forbear gate list --gate OUT.job";
/// Scopes that an error lists.
const SHOWN: usize = 10;
