//! `forbear sim`: policies against a described limiter, in virtual time; a table, and pictures.

mod exits;
mod habit;
mod keys;
mod replay;
mod report;

use std::{
    fs,
    io::{self, Write},
    num::NonZeroU32,
    path::Path,
};

use forbear::{config::Sources, engine::origin_scopes};
use forbear_core::policy::BoundScope;
use forbear_sim::{
    Gated, Played, Scenario, Trace,
    fleet::{self, Fleet},
    observe,
    picture::{Column, side_by_side},
};

use self::{habit::Habit, keys::Said};
use crate::{
    args::SimArgs,
    exit::{Exit, Failure, written},
    shell,
};

/// Who is between the workers and the origin.
enum Client {
    /// A policy: the scopes that a run would ask.
    Policy(std::sync::Arc<[BoundScope]>),
    /// A policy that goes by exits.
    Exits(Box<Fleet>),
    Habit(Habit),
}

/// One client's run.
struct Run {
    name: String,
    is_policy: bool,
    played: Played,
    /// Pages that were put off until another run.
    put_off: u32,
    trace: Option<Trace>,
}

/// Plays every client, and prints what came of each.
///
/// # Errors
/// Whatever is wrong with the scenario, the flags or a policy; a directory that cannot be written; a promise that was broken.
pub(crate) fn run(args: &SimArgs) -> Result<Exit, Failure> {
    let said = Said::of(args)?;
    let scenario = said.scenario();
    let clients = clients(&said, &scenario, args)?;
    let pictures = args.pictures.as_deref();
    if said.exits > 0 && pictures.is_some() {
        return Err(Failure::usage(
            "--pictures: not together with exits, each of which has a gate of its own",
        ));
    }
    if let Some(dir) = pictures {
        fs::create_dir_all(dir).map_err(|e| cannot(dir, &e))?;
    }
    let mut runs = Vec::new();
    for (name, client) in clients {
        let mut trace = pictures.map(|_| Trace::new());
        let mut put_off = 0;
        let played = match &client {
            Client::Exits(fleet) => {
                let (played, summary) = fleet::observe(fleet);
                put_off = summary.map_or(0, |summary| summary.put_off);
                played
            }
            Client::Policy(scopes) => observe(&scenario, &mut Gated::over(scopes.clone()), trace.as_mut()),
            Client::Habit(habit) => habit.play(&scenario, trace.as_mut()),
        };
        runs.push(Run { name, is_policy: !matches!(client, Client::Habit(_)), played, put_off, trace });
    }
    let replay = said.replay.as_ref();
    let text = if args.json {
        report::json(&scenario, &runs, replay)
    } else {
        report::table(&scenario, &runs, replay)
    };
    written(io::stdout().write_all(text.as_bytes()))?;
    if let Some(dir) = pictures {
        draw(dir, &scenario, &runs)?;
    }
    match runs.iter().find_map(|run| Some((run, run.played.broken.as_ref()?))) {
        None => Ok(Exit::Done),
        Some((run, broken)) => Err(Failure::internal(format!(
            "{} broke a promise, {broken}. This is a bug in forbear; the same command shows it again.",
            run.name
        ))),
    }
}

/// The policies, each as settings make it, and what they are compared with.
fn clients(said: &Said, scenario: &Scenario, args: &SimArgs) -> Result<Vec<(String, Client)>, Failure> {
    let mut clients: Vec<(String, Client)> = Vec::new();
    for policy in &said.policies {
        let sources =
            Sources { config: args.config.clone(), policy: Some(policy.clone()), ..Sources::default() };
        let mut settings = sources.load()?.settings;
        settings.workers = NonZeroU32::new(scenario.workers).unwrap_or(settings.workers);
        let stem =
            Path::new(policy).file_stem().map_or_else(|| policy.clone(), |s| s.to_string_lossy().into());
        clients.push((
            stem,
            match said.exits {
                0 => Client::Policy(origin_scopes(&settings, &format!("https://{}", said.host))),
                exits => Client::Exits(Box::new(exits::fleet(&settings, &said.host, scenario, exits))),
            },
        ));
    }
    clients.extend(said.against.iter().map(|habit| (habit.to_string(), Client::Habit(*habit))));
    for at in 1..clients.len() {
        // Two files of one name, or one policy twice.
        if clients[..at].iter().any(|(name, _)| *name == clients[at].0) {
            clients[at].0 = format!("{}-{}", clients[at].0, at + 1);
        }
    }
    Ok(clients)
}

/// One picture of each run, and one of all side by side.
fn draw(dir: &Path, scenario: &Scenario, runs: &[Run]) -> Result<(), Failure> {
    let title = report::title(scenario);
    let notes: Vec<String> = runs.iter().map(|run| report::note(scenario, run)).collect();
    let columns: Vec<(&str, Column<'_>)> = runs
        .iter()
        .zip(&notes)
        .filter_map(|(run, note)| {
            Some((run.name.as_str(), Column { name: &run.name, note, trace: run.trace.as_ref()? }))
        })
        .collect();
    let save = |name: &str, columns: &[Column<'_>]| {
        let svg = side_by_side(&title, columns).map_err(|e| Failure::of(&e, Exit::Internal))?;
        let path = dir.join(format!("{name}.svg"));
        fs::write(&path, svg).map_err(|e| cannot(&path, &e))?;
        shell::say(format!("wrote {}", path.display()));
        Ok::<(), Failure>(())
    };
    for (name, column) in &columns {
        save(name, &[*column])?;
    }
    if columns.len() > 1 {
        let all: Vec<Column<'_>> = columns.iter().map(|(_, column)| *column).collect();
        save("side-by-side", &all)?;
    }
    Ok(())
}

fn cannot(path: &Path, error: &io::Error) -> Failure {
    Failure::usage(format!("--pictures: cannot write {}: {error}", path.display()))
}
