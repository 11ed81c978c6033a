//! `forbear check`: the effective configuration, and where each value comes from.

use std::{
    io::{self, Write},
    path::Path,
};

use forbear::config::{Config, Value};
use serde_json::json;

use crate::{
    args::CheckArgs,
    exit::{Exit, Failure, written},
    shell,
};

/// Reads the configuration as `fetch` would, and prints it.
///
/// # Errors
/// Whatever is wrong with the configuration, each with its place.
pub(crate) fn run(args: &CheckArgs) -> Result<Exit, Failure> {
    let config = args.settings.sources(Path::new("."))?.load()?;
    config.notes.iter().for_each(shell::say);
    let mut out = io::stdout().lock();
    let result =
        if args.json { print_json(&mut out, &config) } else { print_table(&mut out, &config.values) };
    written(result.and_then(|()| out.flush()))
}

fn print_table(out: &mut impl Write, values: &[Value]) -> io::Result<()> {
    let width = |of: fn(&Value) -> usize| values.iter().map(of).max().unwrap_or(0);
    // A long list in one line must not push the other lines' origins off the screen.
    let (keys, texts) = (width(|v| v.key.chars().count()), width(|v| v.value.chars().count()).min(40));
    for v in values {
        writeln!(out, "{:keys$}  {:texts$}  {}", v.key, v.value, v.origin)?;
    }
    Ok(())
}

fn print_json(out: &mut impl Write, config: &Config) -> io::Result<()> {
    let values: Vec<_> = config
        .values
        .iter()
        .map(|v| json!({ "key": v.key, "value": v.value, "origin": v.origin.to_string() }))
        .collect();
    serde_json::to_writer_pretty(&mut *out, &values)?;
    writeln!(out)
}
