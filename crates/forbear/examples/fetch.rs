//! Fetches URLs through the library, as `forbear fetch` does: one gate in front of every request, a job that resumes.
//!
//! `cargo run -p forbear --example fetch -- urls.txt out.jsonl`
#![allow(clippy::print_stdout, reason = "it is a program")]

use std::{error::Error, path::PathBuf, process::ExitCode, sync::Arc};

use forbear::{
    config::Sources,
    engine::{End, Event, FetchOptions, KeepBodies, Run, Stop},
    input::Source,
};
use forbear_store::queue::OutputTarget;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(input), Some(output)) = (words.next(), words.next()) else {
        return Err("usage: fetch INPUT OUT".into());
    };

    // Settings as the command has them: policy, then a forbear.toml beside the input. They can also be built in code.
    let sources = Sources { beside: input.parent().map(PathBuf::from), ..Sources::default() };
    let mut settings = sources.load()?.settings;
    settings.rate = Some("20/s".parse()?);

    let mut job = output.clone().into_os_string();
    job.push(".job");
    let options = FetchOptions {
        settings,
        job: PathBuf::from(job).into(),
        output: OutputTarget::File(output),
        input: Some(Source::named(input)),
        bodies: KeepBodies::Inline,
    };

    // Events come from workers: be quick, and leave the rest to a channel.
    let run = Run::open(
        options,
        Arc::new(|event: Event| {
            if let Event::Paused { .. } = event {
                println!("{event}");
            }
        }),
    )
    .await?;

    // Ctrl-C asks it to stop: what is in flight ends or is given back, and the job is saved.
    let stop = Stop::default();
    let asked = stop.clone();
    tokio::spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            asked.ask();
        }
    });

    let summary = run.run(stop).await?;
    let counts = summary.counts;
    println!("{} of {} done, {} failed, {} left", counts.done, counts.imported, counts.failed, counts.open());
    for host in &summary.hosts {
        println!("{}: {} requests, {} refused, {} pauses", host.origin, host.sent, host.refused, host.pauses);
    }
    Ok(if summary.end == End::Complete { ExitCode::SUCCESS } else { ExitCode::from(4) })
}
