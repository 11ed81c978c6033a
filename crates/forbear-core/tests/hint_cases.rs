//! 351 response heads of about 120 services, with the reading that a gate should give them (H1-H4).
//!
//! A case whose `why` begins with `[profile]` needs the service's profile; every other must be right without one, too.

#![expect(clippy::print_stdout, reason = "the counts, and the cases that went wrong")]

use std::{fmt::Write, time::Duration};

use forbear_core::{
    hint::{self, Profile, Reading, Response},
    time::Timestamp,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Deserialize;

/// Cases held to be wrong, with the reason.
const DISPUTED: [(&str, &str); 0] = [];

#[derive(Deserialize)]
struct Case {
    id: String,
    service: String,
    status: u16,
    headers: Vec<(String, String)>,
    body: Option<String>,
    now: String,
    expect: Expect,
    why: String,
}

#[derive(Deserialize)]
struct Expect {
    limited: bool,
    wait_s: Option<f64>,
    limit: Option<f64>,
    remaining: Option<f64>,
    window_s: Option<f64>,
    scope_hint: Option<String>,
    should_retry: Option<bool>,
    kind: String,
}

impl Case {
    fn read(&self, profile: Option<&Profile>) -> Reading {
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            // A character of a value is a byte.
            let bytes: Vec<u8> = value.chars().map(|c| u8::try_from(u32::from(c)).unwrap()).collect();
            let name = HeaderName::from_bytes(name.as_bytes()).unwrap();
            headers.append(name, HeaderValue::from_bytes(&bytes).unwrap());
        }
        let body = self.body.as_deref().map(str::as_bytes);
        let clock = hint::value::Clock::local(Timestamp::ZERO);
        let now =
            match hint::value::read(self.now.as_bytes(), hint::value::Unit::Seconds, &clock).unwrap().when {
                hint::value::When::At(at) => at,
                hint::value::When::Delay(_) => panic!("{} is no moment", self.now),
            };
        hint::read(&Response { status: self.status, headers: &headers, body }, profile, now)
    }

    fn is_general(&self) -> bool {
        !self.why.starts_with("[profile]")
    }
}

/// What differs in the parts that need no knowledge of the service.
fn differences(case: &Case, got: &Reading) -> String {
    let mut out = String::new();
    let expect = &case.expect;
    if got.limited != expect.limited {
        write!(out, " limited={}", got.limited).unwrap();
    }
    if !close(got.wait.map(|w| w.as_secs_f64()), expect.wait_s) {
        write!(out, " wait={:?} not {:?}", got.wait, expect.wait_s).unwrap();
    }
    if got.kind.as_str() != expect.kind {
        write!(out, " kind={} not {}", got.kind.as_str(), expect.kind).unwrap();
    }
    if got.should_retry != expect.should_retry {
        write!(out, " should_retry={:?} not {:?}", got.should_retry, expect.should_retry).unwrap();
    }
    out
}

/// What differs in the numbers of the binding budget.
fn budget_differences(case: &Case, got: &Reading) -> String {
    let mut out = String::new();
    let budget = got.budget.unwrap_or_default();
    for (name, got, expected) in [
        ("limit", budget.limit, case.expect.limit),
        ("remaining", budget.remaining, case.expect.remaining),
        ("window", budget.window.map(|w| w.as_secs_f64()), case.expect.window_s),
    ] {
        if !close(got, expected) {
            write!(out, " {name}={got:?} not {expected:?}").unwrap();
        }
    }
    out
}

fn scope_difference(case: &Case, got: &Reading) -> String {
    let got = got.scope_hint.map(|s| s.as_str());
    // Documentation knowledge: where a case names none, to know one is not wrong.
    if case.expect.scope_hint.is_none() || got == case.expect.scope_hint.as_deref() {
        return String::new();
    }
    format!(" scope={got:?} not {:?}", case.expect.scope_hint)
}

fn close(a: Option<f64>, b: Option<f64>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => (a - b).abs() <= 0.001,
        (a, b) => a.is_none() && b.is_none(),
    }
}

fn cases() -> Vec<Case> {
    let cases: Vec<Case> =
        include_str!("data/headers.jsonl").lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(cases.len(), 351);
    cases
}

/// Prints the failures, and returns how many of how many were right.
fn tally(what: &str, only: impl Fn(&Case) -> bool, check: impl Fn(&Case) -> String) -> (usize, usize) {
    let (mut right, mut all) = (0, 0);
    for case in cases().iter().filter(|c| only(c)) {
        all += 1;
        let wrong = check(case);
        if wrong.is_empty() || DISPUTED.iter().any(|(id, _)| *id == case.id) {
            right += 1;
        } else {
            println!("{what} {}:{wrong}    ({})", case.id, case.why);
        }
    }
    println!("{what} {right}/{all}");
    (right, all)
}

fn assert_all((right, all): (usize, usize)) {
    assert_eq!(right, all);
}

#[test]
fn h2_general_cases_need_no_profile() {
    assert_all(tally("generic", Case::is_general, |c| differences(c, &c.read(None))));
}

#[test]
fn h2_all_cases_are_right_with_their_profile() {
    assert_all(tally(
        "profile",
        |_| true,
        |c| {
            let got = c.read(Profile::by_name(&c.service));
            differences(c, &got) + &budget_differences(c, &got)
        },
    ));
}

#[test]
fn h2_scopes_are_named_where_they_are_known() {
    assert_all(tally("scope", |_| true, |c| scope_difference(c, &c.read(Profile::by_name(&c.service)))));
}

#[test]
fn h2_budgets_of_general_headers_need_no_profile() {
    // Numbers in a vendor's own headers need the profile; these are the ones that the general names give.
    let (right, all) = tally("budget", Case::is_general, |c| budget_differences(c, &c.read(None)));
    assert!(right + 9 >= all, "{right}/{all}");
}

#[test]
fn h3_nothing_is_waited_for_too_long() {
    for case in cases() {
        assert!(case.read(None).wait.is_none_or(|w| w <= Duration::from_secs(1 << 31)), "{}", case.id);
    }
}
