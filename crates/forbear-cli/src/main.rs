//! The command `forbear`.

mod args;
mod check;
mod command;
mod demo;
mod exit;
mod explain;
mod fetch;
mod gate;
mod job;
mod progress;
mod shell;
mod sim;
mod table;
mod words;

use std::{panic, process::ExitCode};

use args::{Cli, Command};
use clap::Parser;
use exit::{Exit, Failure};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refused(&error),
    };
    shell::set_panic_hook(cli.verbose);
    let ended = panic::catch_unwind(|| shell::log(cli.verbose).and_then(|()| run(cli.command)));
    match ended {
        Ok(Ok(exit)) => exit.code(),
        Ok(Err(failure)) => {
            shell::say(&failure);
            failure.exit.code()
        }
        Err(_panic) => Exit::Internal.code(), // the hook has said it
    }
}

/// Help, or what is wrong with the command line: its text goes where clap would send it, without what it must not show (K1).
fn refused(error: &clap::Error) -> ExitCode {
    let plain = error.to_string();
    let shown = command::without_secrets(&plain);
    if shown == plain {
        let _ = error.print();
    } else {
        shell::say(shown.trim_start_matches("error: ").trim_end());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(Exit::Usage.status()))
}

fn run(command: Command) -> Result<Exit, Failure> {
    match command {
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => on_runtime(explain::run(&args)),
        Command::Fetch(args) => on_runtime(fetch::run(args)),
        Command::Gate(args) => on_runtime(gate::run(args)),
        Command::Job(args) => on_runtime(job::run(args)),
        Command::Demo(args) => on_runtime(demo::run(args)),
        Command::Sim(args) => sim::run(&args),
    }
}

fn on_runtime(work: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|e| Failure::internal(format!("cannot start: {e}")))?;
    let ended = runtime.block_on(work);
    // A thread that still waits for a line of stdin must not keep the process; what had to be written is written.
    runtime.shutdown_background();
    ended
}
