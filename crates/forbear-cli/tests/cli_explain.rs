//! `forbear explain`, by the real binary.

mod common;

use common::{Output, forbear, run};
use serde_json::{Value, json};

fn explain(args: &[&str], input: &[u8]) -> Output {
    let dir = tempfile::tempdir().unwrap();
    run(forbear(&[&["explain"], args].concat()).current_dir(&dir), input)
}

#[test]
fn a_hint_is_explained_with_what_decided_and_what_would_be_done() {
    for (args, parts) in [
        (
            &["-H", "Retry-After: 20"][..],
            &[
                "status 429",
                "told wait   20s, until",
                "retry-after: 20",
                "kept in hand",
                "then one request probes",
            ][..],
        ),
        (
            &["--status", "503", "-H", "Retry-After: 120"],
            &["overload", "2m, until", "parked until", "over 30s"],
        ),
        (&["-H", "Retry-After: 3600"], &["1h, until", "parked until", "one other item asks after 1s"]),
        (
            &["-H", "Retry-After: soon"],
            &["nothing that can be read", "closed for a backoff, 1s", "kept in hand"],
        ),
        (&["-H", "Retry-After: soon", "--policy", "retry-after"], &["policy retry-after", "parked until"]),
        (&["-H", "Retry-After: 99999999999999999999"], &["too long to hold", "parked for good"]),
        (&["-H", "Retry-After: 0"], &["no leave to come at once", "closed for a backoff"]),
        (&["--status", "401"], &["limited     no", "credentials", "failed"]),
        (&["--status", "404"], &["stays open", "failed: the answer is final"]),
        (&["--status", "502"], &["fewer requests at once", "attempt 2 of 5"]),
        (&["--status", "200"], &["limited     no", "stays open", "item        done"]),
        (
            &["-H", "X-RateLimit-Remaining: 0", "-H", "x-ratelimit-limit: 60", "-H", "X-RateLimit-Reset: 9"],
            &["0 of 60 left"],
        ),
        (&["--url", "https://api.github.com/x", "-H", "Retry-After: 5"], &["profile     github"]),
        (&["--url", "api.github.com", "-H", "Retry-After: 5"], &["profile     github"]),
        (&["--service", "github", "-H", "Retry-After: 5"], &["profile     github"]),
    ] {
        let out = explain(args, b"");
        assert_eq!((out.status, out.stderr.as_str()), (0, ""), "{args:?}");
        for part in parts {
            assert!(out.stdout.contains(part), "{args:?}: no {part:?} in\n{}", out.stdout);
        }
    }
}

#[test]
fn a_response_is_read_as_curl_prints_it() {
    for (printed, parts, said) in [
        ("HTTP/2 429 \r\nretry-after: 7\r\n\r\nslow down", &["status 429", "7s, until"][..], ""),
        (
            "HTTP/1.1 301 Moved\r\nLocation: /b\r\nRetry-After: 9\r\n\r\nHTTP/1.1 503 X\r\nRetry-After: 4\r\n\r\n",
            &["status 503", "4s, until"],
            "",
        ),
        (
            "HTTP/1.1 200 Connection established\r\n\r\nHTTP/1.1 429 X\r\nRetry-After: 3\r\n\r\n",
            &["3s, until"],
            "",
        ),
        ("HTTP/1.1 429 X\r\nContent-Type: application/json\r\n\r\n{\"retry_after\": 6}", &["6s, until"], ""),
        ("Retry-After: 5\n", &["status 429", "5s, until"], ""),
        ("HTTP/1.1 429 X\r\nno header s3cret\r\nRetry-After: 5\r\n\r\n", &["5s, until"], "left out: line 2"),
    ] {
        let out = explain(&[], printed.as_bytes());
        assert_eq!(out.status, 0, "{printed}: {}", out.stderr);
        assert!(out.stderr.contains(said) && !out.stderr.contains("s3cret"), "{}", out.stderr);
        assert_eq!(out.stderr.is_empty(), said.is_empty(), "{}", out.stderr);
        for part in parts {
            assert!(out.stdout.contains(part), "{printed}: no {part:?} in\n{}", out.stdout);
        }
    }
}

#[test]
fn the_hosts_own_settings_name_the_profile() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("forbear.toml"), "[hosts.\"proxy.internal\"]\nservice = \"github\"\n")
        .unwrap();
    let args = ["explain", "--url", "https://proxy.internal/", "-H", "Retry-After: 5"];
    let out = run(forbear(&args).current_dir(&dir), b"");
    assert!(out.stdout.contains("profile     github"), "{}{}", out.stdout, out.stderr);
}

#[test]
fn what_cannot_be_explained_is_refused_with_a_word() {
    for (args, input, part) in [
        (&["-H", "no colon s3cret"][..], "", "-H number 1"),
        (&["-H", "a b: s3cret"], "", "-H number 1"),
        (&["--status", "42"], "", "42"),
        (&["--service", "githubb"], "", "there is no profile `githubb`"),
        (&["--url", "https://u:s3cret@", "--status", "429"], "", "--url"),
        (&["--jsonl", "--status", "429"], "", "cannot be used with"),
        (&[], "", "no response on stdin"),
        (&[], "<html>s3cret</html>", "no response on stdin"),
        (&["--policy", "none", "--status", "429"], "", "no policy `none`"),
    ] {
        let out = explain(args, input.as_bytes());
        assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{args:?}: {}", out.stderr);
        assert!(out.stderr.contains(part) && !out.stderr.contains("s3cret"), "{args:?}: {}", out.stderr);
    }
}

#[test]
fn h1_a_line_of_json_is_answered_with_a_line() {
    let at = "2026-11-29T13:00:00Z";
    let table = [
        (json!([["Retry-After", "120"]]), json!(120)),
        (json!([["Retry-After", "0.5"]]), json!(0.5)),
        (json!([["retry-after-ms", "1500"]]), json!(1.5)),
        (json!([["Retry-After", "Sun, 29 Nov 2026 13:05:00 GMT"]]), json!(300)),
        (json!([["Retry-After", "2"], ["Retry-After", "6"]]), json!(6)),
        (json!([["Retry-After", "99999999999999999999"]]), json!(2_147_483_648u64)),
        (json!([["Retry-After", "120junk"]]), Value::Null),
        (json!([["Retry-After", "\u{b2}"]]), Value::Null),
        (json!([]), Value::Null),
    ];
    let lines: String = table
        .iter()
        .map(|(headers, _)| {
            json!({ "id": 1, "status": 429, "headers": headers, "body": null, "now": at, "service": "http" })
                .to_string()
                + "\n"
        })
        .collect();
    let out = explain(&["--jsonl"], lines.as_bytes());
    assert_eq!((out.status, out.stderr.as_str()), (0, ""));
    let answers: Vec<Value> = out.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), table.len());
    for ((headers, wait), answer) in table.iter().zip(answers) {
        assert_eq!((&answer["wait_s"], &answer["limited"]), (wait, &json!(true)), "{headers}");
    }
}

#[test]
fn a_bad_line_stops_nothing() {
    let out = explain(&["--jsonl"], b"{\"status\":429}\n{s3cret\n\n\xff\n{\"status\":200}");
    let answers: Vec<Value> = out.stdout.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!((out.status, answers.len()), (0, 4), "{}", out.stdout);
    assert!(answers[1]["error"].is_string() && answers[2]["error"].is_string());
    assert_eq!((&answers[0]["limited"], &answers[3]["limited"]), (&json!(true), &json!(false)));
    assert!(!out.stdout.contains("s3cret"));
}
