//! The reference page of hints lists what the code knows, no more and no less.

use std::fmt::Write;

use forbear_core::hint::{INSTRUCTIONS, Profile, ROLES, Role, value::Unit};

const PAGE: &str = include_str!("../../../docs/reference/hints.md");

/// The rows of the table under a heading, without its head.
fn table(heading: &str) -> String {
    let (_, section) = PAGE.split_once(&format!("\n## {heading}\n")).expect("the heading");
    let section = section.split("\n## ").next().unwrap_or(section);
    section
        .lines()
        .filter(|line| line.starts_with('|'))
        .skip(2)
        .fold(String::new(), |all, line| all + line + "\n")
}

#[test]
fn h2_the_page_lists_every_profile() {
    let expected = Profile::all().iter().fold(String::new(), |mut rows, p| {
        let hosts = if p.hosts().is_empty() { "by name only".to_owned() } else { p.hosts().join(", ") };
        let scope = p.scope().map_or("", |s| s.as_str());
        let bodies = if p.reads_success_bodies() { "yes" } else { "" };
        writeln!(rows, "| {} | {hosts} | {scope} | {bodies} |", p.name()).unwrap();
        rows
    });
    assert!(table("Service profiles") == expected, "the table should be:\n{expected}");
}

#[test]
fn h2_the_page_lists_every_instruction() {
    let expected = INSTRUCTIONS.iter().fold(String::new(), |mut rows, (name, unit)| {
        let unit = match unit {
            Unit::Millis => "milliseconds",
            Unit::Seconds => "seconds",
            Unit::Minutes => "minutes",
        };
        writeln!(rows, "| `{name}` | {unit} |").unwrap();
        rows
    });
    assert!(table("Instructions") == expected, "the table should be:\n{expected}");
}

#[test]
fn h2_the_page_lists_every_word_of_a_budget() {
    let mut expected = String::new();
    for (role, what) in [
        (Role::Remaining, "how many are left"),
        (Role::Reset, "when the counter is refilled"),
        (Role::Used, "how many are gone"),
        (Role::Window, "how long a window is"),
        (Role::Limit, "how many there are"),
    ] {
        let words: Vec<_> = ROLES.iter().filter(|(_, r)| *r == role).map(|(w, _)| format!("`{w}`")).collect();
        writeln!(expected, "| {what} | {} |", words.join(" ")).unwrap();
    }
    assert!(table("Budgets") == expected, "the table should be:\n{expected}");
}
