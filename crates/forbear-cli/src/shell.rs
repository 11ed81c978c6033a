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
        say(bug(&place, info.payload_as_str().unwrap_or("no text"), verbose));
    }));
}

fn bug(place: &str, text: &str, verbose: u8) -> String {
    let line = format!("internal error at {place}. This is a bug in forbear; -vv shows more.");
    if verbose > 1 { format!("{line}\n{text}\n{}", Backtrace::force_capture()) } else { line }
}

/// Prints a line for people. Where nobody listens any more there is nobody to tell that, either.
pub(crate) fn say(text: impl Display) {
    let _ = writeln!(io::stderr().lock(), "forbear: {text}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_a_bug_is_one_line_without_the_text_of_the_panic() {
        for verbose in [0, 1] {
            let line = bug("src/x.rs:1:2", "s3cret", verbose);
            assert!(
                line.contains("src/x.rs:1:2") && !line.contains("s3cret") && !line.contains('\n'),
                "{line}"
            );
        }
        assert!(bug("src/x.rs:1:2", "text", 2).lines().count() > 2, "-vv has text and backtrace");
    }
}
