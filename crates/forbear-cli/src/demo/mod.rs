//! `forbear demo`: a throttling server on loopback, a fetch against it, and the same with a client that retries naively.

mod seen;
mod view;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    path::Path,
    sync::Arc,
    time::Duration,
};

use forbear::{
    config::Settings,
    engine::{FetchOptions, KeepBodies, Run, Stop},
    input::Source,
};
use forbear_store::queue::OutputTarget;
use forbear_zoo::{Log, Server, ServerOptions, Spec, naive};

use self::{seen::Seen, view::View};
use crate::{
    args::DemoArgs,
    exit::{Exit, Failure, written},
    table::aligned,
};

/// The limiter where none is named: 20 a second at most, and hits inside a pause extend it, as many sites have it. Whoever
/// only retries never gets out of it; 200 pages take some ten seconds.
pub(crate) const LIMITER: &str = "sliding-log:limit=20/1s,penalty=2s,hint=seconds";

/// Fetches pages from one server with forbear and from its twin with a naive client, and compares what the servers saw.
///
/// # Errors
/// A limiter that cannot be read; no port, no temporary directory.
pub(crate) async fn run(args: DemoArgs) -> Result<Exit, Failure> {
    if args.limiter == "list" {
        return written(io::stdout().write_all(list().as_bytes()));
    }
    let spec = spec(&args.limiter)?;
    let paths: Vec<String> = (1..=args.pages).map(|page| format!("/page/{page}")).collect();
    let stop = Stop::default();
    let asked = interrupted(stop.clone());
    tokio::pin!(asked);

    let mut view = View::new(args.pages);
    view.say(&format!("a server on loopback stands behind {spec}; the clients are not told"));
    let (log, left) = {
        let fetched = fetch(&spec, &paths, &mut view, &stop);
        tokio::pin!(fetched);
        let mut caught = false;
        loop {
            tokio::select! {
                ended = &mut fetched => break ended?,
                // It has two seconds to end tidily, so that the temporary directory goes with it.
                () = &mut asked, if !caught => caught = true,
            }
        }
    };
    if stopped(&left) {
        return Ok(Exit::Interrupted);
    }
    let ours = Seen::of(&log);
    let theirs = tokio::select! {
        log = retry_naively(&spec, paths, &mut view, ours.took) => Seen::of(&log?),
        () = &mut asked => return Ok(Exit::Interrupted),
    };
    view.end();
    written(io::stdout().write_all(report(&ours, &theirs, args.pages).as_bytes()))?;
    Ok(left.unwrap_or(Exit::Done))
}

/// What is left of a fetch, if anything is.
type Left = Option<Exit>;

fn stopped(left: &Left) -> bool {
    *left == Some(Exit::Interrupted)
}

/// Ends once the user wants to leave; the fetch is asked to stop.
async fn interrupted(stop: Stop) {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return std::future::pending().await;
        };
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    }
    #[cfg(not(unix))]
    if tokio::signal::ctrl_c().await.is_err() {
        return std::future::pending().await;
    }
    stop.ask();
}

fn spec(text: &str) -> Result<Spec, Failure> {
    if let Some(spec) = Spec::example(text) {
        return Ok(spec);
    }
    text.parse()
        .map_err(|e| Failure::usage(format!("--limiter: {e}; `forbear demo --limiter list` shows examples")))
}

fn list() -> String {
    let mut text = String::new();
    let width = Spec::all_examples().map(|(example, _)| example.name.len()).max().unwrap_or(0);
    for (example, _) in Spec::all_examples() {
        let _ = writeln!(text, "{:width$}  {}", example.name, example.stands_for);
        let _ = writeln!(text, "{:width$}  {}", "", example.text);
    }
    text
}

/// Fetches every path as `forbear fetch` would, into a directory that goes away.
async fn fetch(spec: &Spec, paths: &[String], view: &mut View, stop: &Stop) -> Result<(Log, Left), Failure> {
    let server = start(spec).await?;
    let dir = tempfile::Builder::new()
        .prefix("forbear-demo-")
        .tempdir()
        .map_err(|e| Failure::internal(format!("cannot make a temporary directory: {e}")))?;
    let input = dir.path().join("urls.txt");
    let urls: String = paths.iter().map(|path| server.url(path) + "\n").collect();
    std::fs::write(&input, urls)
        .map_err(|e| Failure::internal(format!("cannot write {}: {e}", input.display())))?;

    let told = view.teller();
    let run = Run::open(options(dir.path(), input), Arc::new(move |event| told.event(&event)))
        .await
        .map_err(|e| Failure::of(&e, Exit::Internal))?;
    let summary = view
        .follow("fetch", &server, run.run(stop.clone()))
        .await
        .map_err(|e| Failure::of(&e, Exit::Internal))?;
    if let Some(why) = summary.broken {
        return Err(Failure::internal(why));
    }
    let counts = summary.counts;
    let left = match summary.end {
        forbear::engine::End::Interrupted => Some(Exit::Interrupted),
        _ if counts.open() > 0 => Some(Exit::WorkLeft),
        _ if counts.failed + counts.unknown > 0 => Some(Exit::SomeFailed),
        _ => None,
    };
    Ok((server.stop().await, left))
}

fn options(dir: &Path, input: std::path::PathBuf) -> FetchOptions {
    let mut settings = Settings::default();
    settings.workers = WORKERS;
    settings.run_for = Some(LONGEST);
    FetchOptions {
        settings,
        job: dir.join("out.jsonl.job").into(),
        output: OutputTarget::File(dir.join("out.jsonl")),
        input: Some(Source::File(input)),
        bodies: KeepBodies::Inline,
    }
}

/// Gets the same paths from an identical server, each worker retrying for itself. Some limiters never let such a client
/// finish, so it has a limit of time.
async fn retry_naively(
    spec: &Spec,
    paths: Vec<String>,
    view: &mut View,
    ours: Duration,
) -> Result<Log, Failure> {
    let server = start(spec).await?;
    let options = naive::NaiveOptions {
        workers: WORKERS.get() as usize,
        retry: naive::Retry::AsTold { otherwise: Duration::from_secs(1) },
        ..naive::NaiveOptions::default()
    };
    let work = naive::run(server.addr(), paths, options);
    let longest = (ours * 3 / 2).clamp(Duration::from_secs(15), LONGEST);
    let _ = view.follow("naive", &server, tokio::time::timeout(longest, work)).await;
    Ok(server.stop().await)
}

async fn start(spec: &Spec) -> Result<Server, Failure> {
    let options = ServerOptions { body_size: 1000, latency: LATENCY, ..ServerOptions::default() };
    Server::start(spec.clone(), options)
        .await
        .map_err(|e| Failure::internal(format!("cannot listen on loopback: {e}")))
}

/// What the servers saw, side by side, and what that means.
fn report(ours: &Seen, theirs: &Seen, pages: u32) -> String {
    let row = |name: &str, of: &dyn Fn(&Seen) -> String| vec![name.to_owned(), of(ours), of(theirs)];
    let rows = [
        vec!["seen by the server".to_owned(), "forbear".to_owned(), "naive retries".to_owned()],
        row("pages done", &|s| s.pages.to_string()),
        row("time in seconds", &|s| format!("{:.1}", s.took.as_secs_f64())),
        row("requests sent", &|s| s.sent.to_string()),
        row("refused", &|s| s.refused.to_string()),
        row("pauses told", &|s| s.pauses.to_string()),
        row("sent into a pause", &|s| s.into_pause.to_string()),
        row("most within 0.1 s", &|s| s.herd.to_string()),
    ];
    let per_page = |s: &Seen| s.sent as f64 / s.pages.max(1) as f64;
    let mut text = format!("\n{}\n", aligned(&rows));
    let _ = writeln!(
        text,
        "forbear sent {:.2} requests for each page and {}; the naive client sent {:.2} and {}{}.",
        per_page(ours),
        times(ours.refused),
        per_page(theirs),
        times(theirs.refused),
        match theirs.into_pause {
            0 => String::new(),
            n => format!(", {n} of its requests while it had been asked to wait"),
        }
    );
    if (theirs.pages as u64) < u64::from(pages) {
        let _ = writeln!(text, "It was stopped with {} of {pages} pages done.", theirs.pages);
    }
    text +=
        "Next: forbear demo --limiter list, or with URLs of your own: forbear fetch urls.txt -o out.jsonl\n";
    text
}

fn times(n: usize) -> String {
    match n {
        0 => "was never refused".to_owned(),
        1 => "was refused once".to_owned(),
        n => format!("was refused {n} times"),
    }
}

/// Of both clients.
const WORKERS: std::num::NonZeroU32 = std::num::NonZeroU32::new(50).expect("not zero");
/// A page takes its server as long as a near API does.
const LATENCY: Duration = Duration::from_millis(20);
const LONGEST: Duration = Duration::from_secs(120);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limiters_are_names_or_descriptions() {
        assert!(spec(LIMITER).is_ok());
        assert!(spec("penalty").is_ok());
        let error = spec("token-bucket:rate=x").unwrap_err().to_string();
        assert!(error.starts_with("--limiter: ") && error.contains("--limiter list"), "{error}");
        for (example, _) in Spec::all_examples() {
            assert!(list().contains(example.text), "{}", example.name);
        }
    }

    #[test]
    fn the_report_says_what_the_servers_saw() {
        let ours = Seen {
            pages: 200,
            sent: 204,
            refused: 1,
            pauses: 1,
            into_pause: 0,
            herd: 6,
            took: Duration::from_millis(9876),
        };
        let theirs = Seen {
            pages: 150,
            sent: 600,
            refused: 450,
            pauses: 20,
            into_pause: 77,
            herd: 50,
            took: Duration::from_secs(30),
        };
        let text = report(&ours, &theirs, 200);
        for part in [
            "9.9",
            "sent 1.02 requests for each page and was refused once; the naive client sent 4.00 and was refused 450 times, 77 of",
            "It was stopped with 150 of 200 pages done.",
            "Next: forbear demo --limiter list",
        ] {
            assert!(text.contains(part), "{part}\n{text}");
        }
    }
}
