//! What real limiters say, as `forbear explain` reads it: the heads come off the wire.

mod support;

use std::io::Write as _;
use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use support::{Express, Nginx, Server, forbear, get};

/// Gets `count` pages one after the other and returns what `explain --jsonl` makes of each answer.
fn explained(server: &impl Server, count: u32) -> Vec<Value> {
    let port = server.base().rsplit_once(':').unwrap().1.parse().unwrap();
    let lines: String = (1..=count)
        .map(|page| format!("{}\n", as_json(&get(port, &format!("/p/{page}")).unwrap())))
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let mut child = forbear(dir.path())
        .args(["explain", "--jsonl"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success());
    String::from_utf8(out.stdout).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// A head as `explain --jsonl` takes it.
fn as_json(head: &str) -> Value {
    let mut lines = head.lines();
    let status: u16 = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(": ")).collect();
    json!({ "status": status, "headers": headers })
}

/// Three pages a window of four seconds: the third takes the last, the fourth is refused. All drafts say the same.
fn check_express(headers: &str) {
    let read = explained(&Express::start(headers, 3, Duration::from_secs(4)), 4);
    for (n, answer) in read.iter().enumerate() {
        assert_eq!(answer["limit"], 3, "{headers}, answer {n}: {answer}");
        assert_eq!(answer["remaining"], [2, 1, 0, 0][n], "{headers}, answer {n}: {answer}");
        assert_eq!(answer["limited"], n >= 2, "{headers}, answer {n}: {answer}");
        // The window began with the first request, and the machine may have been slow since. An epoch is rounded up and
        // `Date` down, which is a second between them.
        let wait = answer["wait_s"].as_f64();
        assert_eq!(wait.is_some(), n >= 2, "{headers}, answer {n}: {answer}");
        assert!(wait.is_none_or(|wait| (0.0..=5.0).contains(&wait)), "{headers}, answer {n}: {answer}");
    }
}

#[test]
fn h2_real_express_draft_6_is_read() {
    check_express("draft-6");
}

#[test]
fn h2_real_express_draft_7_is_read() {
    check_express("draft-7");
}

#[test]
fn h2_real_express_draft_8_is_read() {
    check_express("draft-8");
}

#[test]
fn h2_real_express_legacy_headers_are_read() {
    check_express("legacy");
}

#[test]
fn h1_real_nginx_refusals_are_read_with_and_without_a_hint() {
    for (flags, wait) in [
        ("", None),
        ("limit_req_status 429; add_header Retry-After $wait always;", Some(7.0)),
        ("limit_req_status 429;", None),
    ] {
        let server = Nginx::start(
            "limit_req_zone $binary_remote_addr zone=pages:1m rate=1r/m; map $status $wait { 429 7; }",
            &format!("limit_req zone=pages; {flags}"),
        );
        let read = explained(&server, 2);
        assert_eq!(read[0]["limited"], false, "{flags}: {}", read[0]);
        assert_eq!(read[0]["wait_s"], Value::Null, "{flags}: {}", read[0]);
        assert_eq!(read[1]["limited"], true, "{flags}: {}", read[1]);
        assert_eq!(read[1]["wait_s"].as_f64(), wait, "{flags}: {}", read[1]);
    }
}
