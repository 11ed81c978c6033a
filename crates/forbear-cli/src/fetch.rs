//! `forbear fetch`.

use std::{
    io::{self, IsTerminal},
    path::{Path, PathBuf},
    process,
    sync::Arc,
    time::Duration,
};

use forbear::{
    engine::{Broken, End, FetchError, FetchOptions, KeepBodies, Run, Stop, Summary, plan},
    input::Source,
};
use forbear_store::{
    gate::StoreError,
    queue::{InputEnd, JobAddress, OutputTarget, QueueAddress},
};

use crate::{
    args::{Bodies, FetchArgs, Progress},
    command,
    exit::{Exit, Failure},
    progress::Display,
    shell, table,
};

/// Fetches every item of the input, or goes on where an earlier run ended.
pub(crate) async fn run(args: FetchArgs) -> Result<Exit, Failure> {
    let config = args.settings.sources(args.beside())?.load()?;
    config.notes.iter().for_each(shell::say);
    let settings = config.settings;
    let source = args.input.clone().map(Source::named);
    if args.plan {
        let source = source.ok_or_else(|| Failure::usage("--plan needs an INPUT to look at"))?;
        let planned = plan(&settings, &source).map_err(|error| Failure::of(&error, Exit::Usage))?;
        return table::plan(&planned);
    }
    let (job, temporary) = job_address(&args, settings.queue.as_ref())?;
    let output = match args.output.as_path() {
        path if path == Path::new("-") => OutputTarget::Stdout,
        path => OutputTarget::File(path.to_owned()),
    };
    let bodies = match args.bodies {
        Bodies::Inline => KeepBodies::Inline,
        Bodies::Directory(dir) => KeepBodies::Dir(dir),
        Bodies::None => KeepBodies::None,
    };
    let display = Arc::new(Display::new(args.progress, io::stderr().is_terminal()));
    let shown = display.clone();
    let options = FetchOptions { settings, job: job.clone(), output, input: source, bodies };
    let run = Run::open(options, Arc::new(move |event| shown.event(&event))).await.map_err(failure)?;
    let stop = Stop::default();
    listen(&stop, display.clone());
    display.watch(run.watch());
    let ended = run.run(stop).await;
    display.end();
    let summary = ended.map_err(failure)?;
    let closed = summary.broken == Some(Broken::OutputClosed);
    if temporary
        && (closed || summary.end == End::Complete)
        && let Some(job) = job.file()
    {
        remove_job(job);
    }
    let losses = summary.gate_losses;
    if losses.times > 0 {
        let alone = shown_seconds(losses.alone);
        shell::say(format_args!("the gate store was lost {}, for {alone} in all", times(losses.times)));
    }
    if closed {
        return Ok(Exit::Done); // whoever read the output has seen enough
    }
    if args.progress != Progress::None {
        table::summary(&summary);
    }
    last_line(&summary);
    Ok(exit_of(&summary))
}

/// The job, and whether it goes away with a complete run.
fn job_address(args: &FetchArgs, queue: Option<&QueueAddress>) -> Result<(JobAddress, bool), Failure> {
    match (queue, &args.job) {
        (None, _) => {
            let (path, temporary) = job_path(args);
            Ok((path.into(), temporary))
        }
        (Some(QueueAddress::File(path)), None) => Ok((path.into(), false)),
        (Some(QueueAddress::File(path)), Some(_)) => Err(Failure::usage(format!(
            "the queue {} is a file, and holds one job: leave --job out",
            path.display()
        ))),
        (Some(QueueAddress::Postgres(queue)), Some(name)) => Ok((queue.job(name.to_string_lossy()), false)),
        (Some(QueueAddress::Postgres(_)), None) => {
            Err(Failure::usage("a queue in a database holds many jobs: give this one's name by --job"))
        }
    }
}

/// The job's file, and whether it goes away with a complete run: what went to a pipe is nobody's to resume.
fn job_path(args: &FetchArgs) -> (PathBuf, bool) {
    let beside = |path: &Path| {
        let mut name = path.as_os_str().to_owned();
        name.push(".job");
        PathBuf::from(name)
    };
    match (&args.job, args.output.as_path(), args.input.as_deref()) {
        (Some(job), ..) => (job.clone(), false),
        (None, out, _) if out != Path::new("-") => (beside(out), false),
        (None, _, Some(input)) if input != Path::new("-") => (beside(input), true),
        _ => (PathBuf::from("forbear.job"), true),
    }
}

fn times(n: u64) -> String {
    if n == 1 { "once".to_owned() } else { format!("{n} times") }
}

fn shown_seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn remove_job(job: &Path) {
    for suffix in ["", "-wal", "-shm", ".lock", "-lock"] {
        let mut name = job.as_os_str().to_owned();
        name.push(suffix);
        let _ = std::fs::remove_file(PathBuf::from(name));
    }
}

/// The first Ctrl-C ends the run tidily, the second at once (J6): what was acknowledged is safe in either case.
#[expect(clippy::disallowed_methods, reason = "at once: the queue survives a kill, and so it does this")]
fn listen(stop: &Stop, display: Arc<Display>) {
    let stop = stop.clone();
    tokio::spawn(async move {
        if asked().await.is_err() {
            return;
        }
        stop.ask();
        display.say("stopping: nothing more is started; once more to leave at once");
        if asked().await.is_ok() {
            display.end();
            process::exit(i32::from(Exit::Interrupted.status()));
        }
    });
}

async fn asked() -> io::Result<()> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (mut interrupt, mut terminate) =
            (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
        tokio::select! {
            _ = interrupt.recv() => Ok(()),
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    tokio::signal::ctrl_c().await
}

fn exit_of(summary: &Summary) -> Exit {
    let counts = &summary.counts;
    match summary.end {
        End::Interrupted => Exit::Interrupted,
        End::Broken if matches!(summary.broken, Some(Broken::Input(_))) => Exit::Usage,
        End::Broken => Exit::Internal,
        _ if summary.no_exit => Exit::NoWayOut,
        _ if counts.open() > 0 => Exit::WorkLeft,
        _ if counts.failed + counts.unknown > 0 => Exit::SomeFailed,
        _ => Exit::Done,
    }
}

/// What is left, from when it can be done, and how (X2).
fn last_line(summary: &Summary) {
    let why = match summary.end {
        End::Complete => return,
        End::OutOfTime | End::Stalled | End::NothingDue if summary.no_exit => "no exit can be used",
        End::OutOfTime => "the time of this run is over",
        End::Stalled => "nothing is due for longer than stall_after",
        End::NoExit => "no exit can be used",
        End::NothingDue => "what is left waits for the next run or for new credentials",
        End::Interrupted => "interrupted",
        End::Broken => "the run could not go on",
    };
    if let Some(broken) = &summary.broken {
        shell::say(broken);
    }
    let unread = summary.counts.input == InputEnd::More;
    if summary.counts.open() == 0 && !unread {
        return;
    }
    let due = match summary.resume_at {
        Some(at) => format!(", the next is due at {}", forbear::record::rfc3339(at)),
        None => String::new(),
    };
    let rest = if unread { ", and the input has more" } else { "" };
    shell::say(format_args!("{why}{due}{rest}; go on with: {}", command::line()));
}

fn failure(error: FetchError) -> Failure {
    let exit = match &error {
        FetchError::Gate { source: StoreError::Address, .. } => Exit::Usage,
        FetchError::Gate { .. } => Exit::StoreUnreachable,
        FetchError::Job(error) if error.is_unreachable() => Exit::StoreUnreachable,
        FetchError::Thread(_) => Exit::Internal,
        // A job, an input or a place for bodies that cannot be used: the message says which, and what to do.
        _ => Exit::Usage,
    };
    Failure::of(&error, exit)
}
