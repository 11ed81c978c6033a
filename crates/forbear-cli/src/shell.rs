//! What surrounds every command: words on stderr, and what a bug looks like to the person who meets it.

use std::{
    backtrace::Backtrace,
    fmt::Display,
    io::{self, IsTerminal, Write},
    panic,
};

use tracing_subscriber::{EnvFilter, Layer, filter::filter_fn, layer::SubscriberExt};

use crate::exit::Failure;

/// Sends forbear's own words to stderr: warnings, with `-v` what happens, with `-vv` why. `FORBEAR_LOG` (in the form of
/// `RUST_LOG`) decides where it is set.
///
/// # Errors
/// A `FORBEAR_LOG` that cannot be read: it was set for a reason.
pub(crate) fn log(verbose: u8) -> Result<(), Failure> {
    let filter = match std::env::var("FORBEAR_LOG").ok().filter(|text| !text.trim().is_empty()) {
        Some(text) => EnvFilter::try_new(text).map_err(|e| Failure::usage(format!("FORBEAR_LOG: {e}")))?,
        None => EnvFilter::new(["warn", "info", "debug"][usize::from(verbose.min(2))]),
    };
    // The libraries below print whole frames and headers at their lower levels, and those hold secrets (K1).
    let ours = filter_fn(|m| m.target().starts_with("forbear") || *m.level() <= tracing::Level::WARN);
    let colour = io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
    let lines =
        tracing_subscriber::fmt::layer().with_writer(io::stderr).with_ansi(colour).with_target(verbose > 1);
    let subscriber = tracing_subscriber::registry().with(lines.with_filter(ours)).with(filter);
    // Fails only if something in this process has set one already; then that one holds.
    let _ = tracing::subscriber::set_global_default(subscriber);
    Ok(())
}

/// Makes a panic one clear line. Its own text may hold anything, so it is shown only to who asked for all.
pub(crate) fn set_panic_hook(verbose: u8) {
    panic::set_hook(Box::new(move |info| {
        let place = info.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string);
        say(format_args!("internal error at {place}. This is a bug in forbear; -vv shows more."));
        if verbose > 1 {
            say(format_args!(
                "{}\n{}",
                info.payload_as_str().unwrap_or("no text"),
                Backtrace::force_capture()
            ));
        }
    }));
}

/// Prints a line for people. Where nobody listens any more there is nobody to tell that, either.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "forbear: {text}");
}
