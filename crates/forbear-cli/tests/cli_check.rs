//! `forbear check`, by the real binary.

mod common;

use common::{forbear, run};
use serde_json::Value;

#[test]
fn the_table_has_key_value_and_origin() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("forbear.toml"), "policy = \"retry-after\"\nworkers = 8\n").unwrap();
    let out = run(
        forbear(&["check", "--max-attempts", "2", "--host-rate", "api.example.com=9/s"]).current_dir(&dir),
        b"",
    );
    assert_eq!((out.status, out.stderr.as_str()), (0, ""));
    let row = |key: &str| {
        let line = out
            .stdout
            .lines()
            .find(|l| l.split_whitespace().next() == Some(key))
            .unwrap_or_else(|| panic!("no {key}"));
        line.split("  ").map(str::trim).filter(|c| !c.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(row("workers"), ["workers", "8", "forbear.toml:2"]);
    assert_eq!(row("policy"), ["policy", "retry-after", "forbear.toml:1"]);
    assert_eq!(row("on_no_hint"), ["on_no_hint", "park", "policy retry-after"]);
    assert_eq!(row("max_attempts"), ["max_attempts", "2", "flag --max-attempts"]);
    assert_eq!(row("cookies"), ["cookies", "false", "default"]);
    assert_eq!(row("hosts.\"api.example.com\".rate")[1..], ["9/s", "flag --host-rate"]);
}

#[test]
fn json_says_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let out = run(forbear(&["check", "--json", "--timeout", "90s"]).current_dir(&dir), b"");
    assert_eq!(out.status, 0, "{}", out.stderr);
    let values: Vec<Value> = serde_json::from_str(&out.stdout).unwrap();
    let timeout = values.iter().find(|v| v["key"] == "timeout").unwrap();
    assert_eq!((&timeout["value"], &timeout["origin"]), (&"1m30s".into(), &"flag --timeout".into()));
    assert!(values.iter().all(|v| v["key"].is_string() && v["value"].is_string() && v["origin"].is_string()));
}

#[test]
fn br_101_zero_is_refused_with_a_word_and_status_2() {
    let dir = tempfile::tempdir().unwrap();
    for (flag, value) in [
        ("--max-attempts", "0"),
        ("--workers", "0"),
        ("--timeout", "0s"),
        ("--rate", "0/s"),
        ("--run-for", "0s"),
        ("--host-concurrency", "0"),
        ("--host-rate", "a=0/s"),
        ("--timeout", "30"),
        ("--workers", "many"),
        ("--host-rate", "5/s"),
        ("--policy", "politte"),
        ("--config", "none.toml"),
    ] {
        for command in ["check", "fetch"] {
            let out = run(forbear(&[command, flag, value]).current_dir(&dir), b"");
            assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{command} {flag} {value}");
            let place = if flag == "--config" { "none.toml: " } else { &format!("{flag}: ") };
            assert!(out.stderr.starts_with(&format!("forbear: {place}")), "{}", out.stderr);
        }
    }
    let out = run(forbear(&["check", "--stall-after", "0s"]).current_dir(&dir), b"");
    assert!(out.stdout.lines().any(|l| l.starts_with("stall_after") && l.contains(" 0s ")), "{}", out.stdout);
}

#[test]
fn a_mistake_is_shown_with_its_line_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("forbear.toml"), "workers = 8\ntimeuot = \"5s\"\n").unwrap();
    let out = run(forbear(&["check"]).current_dir(&dir), b"");
    assert_eq!((out.status, out.stdout.as_str()), (2, ""));
    let expected = "forbear: forbear.toml:2:1: unknown key `timeuot`\n\
                    2 | timeuot = \"***\"\n  | ^^^^^^^\n  help: did you mean `timeout`?\n";
    assert_eq!(out.stderr, expected);
}

#[test]
fn k1_no_secret_is_printed() {
    let dir = tempfile::tempdir().unwrap();
    let good = "[hosts.\"a.example\"]\nheaders = { Authorization = \"Bearer s3cret\" }\n";
    for text in [good, &format!("{good}x = 1\n"), &format!("{good}x = \"s3cret"), &good.replace('}', "")] {
        std::fs::write(dir.path().join("forbear.toml"), text).unwrap();
        for args in [&["check"][..], &["check", "--json"], &["check", "-vv"]] {
            let out = run(forbear(args).env("FORBEAR_LOG", "trace").current_dir(&dir), b"");
            assert!(
                !out.stdout.contains("s3cret") && !out.stderr.contains("s3cret"),
                "{}{}",
                out.stdout,
                out.stderr
            );
        }
    }
    let out = run(forbear(&["check", "--host-rate", "https://u:s3cret@a=5/s"]).current_dir(&dir), b"");
    assert!(out.status == 2 && !out.stderr.contains("s3cret"), "{}", out.stderr);
}

#[test]
fn the_users_file_is_found() {
    let (dir, home) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (variable, below) in [("XDG_CONFIG_HOME", "forbear"), ("HOME", ".config/forbear")] {
        std::fs::create_dir_all(home.path().join(below)).unwrap();
        std::fs::write(home.path().join(below).join("forbear.toml"), "workers = 3\n").unwrap();
        let out = run(forbear(&["check"]).env(variable, home.path()).current_dir(&dir), b"");
        assert!(
            out.stdout.lines().any(|l| l.starts_with("workers") && l.contains(" 3 ")),
            "{variable}: {}",
            out.stdout
        );
        std::fs::remove_dir_all(home.path().join(below)).unwrap();
    }
}

/// Rows of the table whose key begins with this, their columns with one space between.
fn rows(stdout: &str, key: &str) -> Vec<String> {
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    stdout.lines().filter(|line| line.starts_with(key)).map(words).collect()
}

#[test]
fn e6_exits_are_shown_with_where_they_are_from() {
    let dir = tempfile::tempdir().unwrap();
    let list = "\u{feff}# mine\r\nhttp://u:S3cr3t@a.example:1 gateway\r\n\r\nb.example:2:u:S3cr3t\r\n";
    std::fs::write(dir.path().join("proxies.txt"), list).unwrap();
    std::fs::write(dir.path().join("forbear.toml"), "[exits]\nlist = [\"c.example\"]\n").unwrap();
    let out = run(forbear(&["check", "--proxies", "proxies.txt"]).current_dir(&dir), b"");
    assert_eq!((out.status, out.stderr.as_str()), (0, ""));
    assert_eq!(
        rows(&out.stdout, "exits.list"),
        [
            "exits.list 2 exits flag --proxies",
            "exits.list.\"http://a.example:1\" with credentials, gateway proxies.txt:2",
            "exits.list.\"http://b.example:2\" with credentials proxies.txt:4",
        ]
    );
    assert!(!out.stdout.contains("S3cr3t"), "{}", out.stdout);
    let out = run(forbear(&["check"]).env("HTTP_PROXY", "e.example:9").current_dir(&dir), b"");
    assert_eq!(
        rows(&out.stdout, "exits.list"),
        ["exits.list 1 exit forbear.toml:2", "exits.list.\"http://c.example:80\" forbear.toml:2",]
    );
    let twice = ["check", "--proxy", "http://u:p@d.example", "--proxy", "d.example:80:u:p"];
    let out = run(forbear(&twice).current_dir(&dir), b"");
    assert_eq!(rows(&out.stdout, "exits.list ")[0], "exits.list 1 exit flag --proxy");
    let note = "forbear: --proxy number 2: the same exit as --proxy number 1, counted once\n";
    assert_eq!((out.status, out.stderr.as_str()), (0, note));
}

#[test]
fn e6_variables_count_where_no_exit_is_given() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        let out = run(forbear(&["check"]).env(name, "http://u:S3cr3t@e.example:9").current_dir(&dir), b"");
        let row = format!("exits.list for http http://e.example:9 variable {name}");
        assert_eq!(rows(&out.stdout, "exits.list for http ").concat(), row, "{}", out.stderr);
        assert!(!out.stdout.contains("S3cr3t"), "{}", out.stdout);
        for args in [&["check", "--no-env-proxy"][..], &["check", "--proxy", "h:1"]] {
            let out = run(forbear(args).env(name, "http://u:S3cr3t@e.example:9").current_dir(&dir), b"");
            assert!(out.status == 0 && rows(&out.stdout, "exits.list for").is_empty(), "{}", out.stdout);
            let out = run(forbear(args).env(name, "socks4://u:S3cr3t@e").current_dir(&dir), b"");
            assert_eq!(out.status, 0, "what is left aside is not read: {}", out.stderr);
        }
        let out = run(forbear(&["check"]).env(name, "socks4://u:S3cr3t@e").current_dir(&dir), b"");
        assert_eq!((out.status, out.stdout.as_str()), (2, ""));
        assert!(out.stderr.starts_with(&format!("forbear: {name}: ")), "{}", out.stderr);
        assert!(!out.stderr.contains("S3cr3t"), "{}", out.stderr);
    }
    let mut direct = forbear(&["check"]);
    direct.envs([("http_proxy", "e.example:9"), ("no_proxy", "a.example,10.0.0.0/8")]);
    let out = run(direct.current_dir(&dir), b"");
    let row = "exits.list not for a.example, 10.0.0.0/8 variable no_proxy";
    assert_eq!(rows(&out.stdout, "exits.list not for").concat(), row, "{}", out.stderr);
    let cgi = |name| {
        let mut command = forbear(&["check"]);
        run(command.env("REQUEST_METHOD", "GET").env(name, "e.example:9").current_dir(&dir), b"")
    };
    assert!(rows(&cgi("HTTP_PROXY").stdout, "exits.list for").is_empty());
    assert_eq!(rows(&cgi("http_proxy").stdout, "exits.list for").len(), 1);
}

#[test]
fn k1_no_password_of_an_exit_is_printed_whatever_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("list.txt");
    std::fs::write(&path, "http://u:S3cr3t@h/S3cr3t\nh:1:u:S3cr3t S3cr3t\nu:S3cr3t@h # S3cr3t@S3cr3t\n")
        .unwrap();
    for args in [
        &["--proxies", "list.txt"][..],
        &["--proxy", "http://u:S3cr3t@"],
        &["--proxy", "socks9://u:S3cr3t@h"],
        &["--proxy=ftp://u:S3cr3t@h"],
        &["--proxy", "h:S3cr3t:u:S3cr3t"],
        // Slips at which the command line itself fails.
        &["--proxi", "http://u:S3cr3t@h"],
        &["--proxi=http://u:S3cr3t@h"],
        &["--proxies", "http://u:S3cr3t@h"],
        &["--workers", "2", "--proxy", "http://u:S3cr3t@h", "--workers", "3"],
        &["one", "two", "http://u:S3cr3t@h", "h:80:u:S3cr3t"],
        &["--job", "x", "--job", "u:S3cr3t@h", "--proxy", "u:S3cr3t@h"],
        &["--bodies", "", "--proxy", "u:S3cr3t@h"],
        &["--no-env-proxy=http://u:S3cr3t@h"],
    ] {
        for command in ["check", "fetch"] {
            let out = run(forbear(&[&[command, "-vv"], args].concat()).current_dir(&dir), b"");
            assert_eq!((out.status, out.stdout.as_str()), (2, ""), "{command} {args:?}");
            assert!(
                out.stderr.starts_with("forbear: ") || out.stderr.starts_with("error: "),
                "{}",
                out.stderr
            );
            assert!(!out.stderr.contains("S3cr3t"), "{args:?}: {}", out.stderr);
        }
    }
    let out = run(forbear(&["check", "--proxies", "list.txt"]).current_dir(&dir), b"");
    for place in ["list.txt:1: ", "list.txt:2: ", "list.txt:3: "] {
        assert!(out.stderr.contains(place), "{}", out.stderr);
    }
}
