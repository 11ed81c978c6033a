//! `forbear demo`: small ones, for the whole takes as long as its limiter wants.

mod common;

use std::fs;

use common::{forbear, run};

/// The numbers of a row: forbear's, and the naive client's.
fn row(report: &str, name: &str) -> (f64, f64) {
    let line =
        report.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{name}: {report}"));
    let mut numbers = line.split_whitespace().rev().map(|n| n.parse().unwrap());
    let theirs = numbers.next().unwrap();
    (numbers.next().unwrap(), theirs)
}

#[test]
fn a_small_demo_does_every_page_and_leaves_nothing_behind() {
    let temporary = tempfile::tempdir().unwrap();
    let limiter = "token-bucket:rate=60/s,burst=10,hint=seconds";
    let out = run(
        forbear(&["demo", "--pages", "60", "--limiter", limiter])
            .env("TMPDIR", temporary.path())
            .env("NO_COLOR", "1"),
        b"",
    );
    assert_eq!(out.status, 0, "{}{}", out.stdout, out.stderr);
    assert_eq!(fs::read_dir(temporary.path()).unwrap().count(), 0, "files left behind");
    assert!(!out.stdout.contains('\u{1b}') && !out.stderr.contains('\u{1b}'), "no terminal, no control");
    assert!(out.stderr.contains(limiter), "{}", out.stderr);

    assert_eq!(row(&out.stdout, "pages done"), (60.0, 60.0));
    let (ours, theirs) = row(&out.stdout, "requests sent");
    let (our_refusals, their_refusals) = row(&out.stdout, "refused");
    assert_eq!(
        (ours - our_refusals, theirs - their_refusals),
        (60.0, 60.0),
        "every request is accounted for"
    );
    assert!(our_refusals < their_refusals, "{}", out.stdout);
    assert_eq!(row(&out.stdout, "sent into a pause").0, 0.0, "{}", out.stdout);
    let last: Vec<_> = out.stdout.trim_end().lines().rev().take(2).collect();
    assert!(last[0].starts_with("Next: forbear demo --limiter list"), "{}", out.stdout);
    assert!(last[1].starts_with("forbear sent 1."), "{}", out.stdout);
}

#[test]
fn limiters_are_listed_and_junk_is_a_usage_error() {
    let out = run(&mut forbear(&["demo", "--limiter", "list"]), b"");
    assert_eq!((out.status, out.stderr.as_str()), (0, ""));
    for part in ["sliding-log", "fixed-window:limit=20/1s,hint=seconds", "SEC EDGAR"] {
        assert!(out.stdout.contains(part), "{part}");
    }
    for args in [&["--limiter", "nonsense"][..], &["--limiter", "token-bucket:rate=0/s"], &["--pages", "0"]] {
        let out = run(&mut forbear(&[&["demo"], args].concat()), b"");
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{args:?}");
        assert!(!out.stderr.is_empty());
    }
}
