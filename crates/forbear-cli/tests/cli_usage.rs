//! The command line as a whole: help, version, statuses, words on stderr.

mod common;

use std::{
    io::{BufRead, BufReader, Write},
    process::Stdio,
};

use common::{forbear, run};

#[test]
fn help_is_short_and_has_an_example() {
    for command in [&[][..], &["fetch"], &["job"], &["job", "show"], &["explain"], &["check"], &["demo"]] {
        let out = run(&mut forbear(&[command, &["-h"]].concat()), b"");
        assert_eq!((out.status, out.stderr.as_str()), (0, ""), "{command:?}");
        assert!(out.stdout.lines().count() < 60, "{command:?}: {}", out.stdout);
        if command.len() < 2 {
            assert!(
                out.stdout.contains("Example") && out.stdout.contains("  forbear "),
                "{command:?}: {}",
                out.stdout
            );
        }
    }
}

#[test]
fn the_version_is_one_line() {
    let out = run(&mut forbear(&["--version"]), b"");
    assert_eq!((out.status, out.stdout), (0, format!("forbear {}\n", env!("CARGO_PKG_VERSION"))));
}

#[test]
fn usage_errors_end_with_status_2_and_nothing_on_stdout() {
    for args in [
        &[][..],
        &["nonsense"],
        &["fetch", "--nonsense"],
        &["fetch", "--bodies", ""],
        &["fetch", "--progress", "loud"],
        &["fetch", "a", "b"],
        &["check", "--workers"],
        &["job"],
        &["job", "show"],
    ] {
        let out = run(&mut forbear(args), b"");
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{args:?}");
        assert!(!out.stderr.is_empty(), "{args:?}");
    }
}

#[test]
fn a_log_filter_that_cannot_be_read_is_a_usage_error() {
    let out = run(forbear(&["check"]).env("FORBEAR_LOG", "forbear=loudly"), b"");
    assert_eq!(out.status, 2);
    assert!(out.stderr.starts_with("forbear: FORBEAR_LOG: "), "{}", out.stderr);
}

#[test]
fn a_reader_that_goes_away_is_a_clean_stop() {
    // Enough lines that some are still to be written when the reader has gone.
    let lines = "{\"status\":429}\n".repeat(20_000);
    let mut child = forbear(&["explain", "--jsonl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || drop(stdin.write_all(lines.as_bytes())));
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut first).unwrap(); // and drops it
    assert!(first.starts_with("{\"limited\":true"), "{first}");
    let out = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap().as_str()), (Some(0), ""));
}

#[test]
fn nobody_listening_on_stderr_changes_no_status() {
    let mut child = forbear(&["check", "--workers", "0"]).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stderr.take());
    assert_eq!(child.wait().unwrap().code(), Some(2));
}

#[test]
fn colour_stays_away_from_files_and_from_who_does_not_want_it() {
    for args in [&["check", "--nonsense"][..], &["check", "--workers", "0"]] {
        let out = run(forbear(args).env("NO_COLOR", "1"), b"");
        assert!(!out.stderr.contains('\u{1b}'), "{}", out.stderr);
    }
}
