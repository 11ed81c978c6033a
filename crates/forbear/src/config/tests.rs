//! The loader as a whole: layers, origins, errors, the shipped policies, the reference page.

use std::{collections::BTreeSet, fs, path::Path, time::Duration};

use forbear_core::{
    backoff::{Backoff, Jitter},
    pace::RateList,
    policy::OnNoHint,
    scope::Combination,
};

use super::{
    Config, ConfigError, Flag, Origin, Pace, Rotate, Settings, Sources, Sticky,
    cost::COST,
    keys::{ENDPOINT, HOST, TOP},
    policy_names,
};

/// Loads with this text as the configuration file.
pub(super) fn load(text: &str) -> Result<Config, ConfigError> {
    load_with(text, None, &[])
}

fn load_with(
    text: &str,
    policy: Option<&str>,
    flags: &[(&'static str, &'static str, &str)],
) -> Result<Config, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("forbear.toml"), text).unwrap();
    let flags = flags
        .iter()
        .map(|(flag, key, value)| Flag { flag, host: None, key, value: (*value).to_owned() })
        .collect();
    Sources {
        beside: Some(dir.path().to_owned()),
        policy: policy.map(str::to_owned),
        flags,
        ..Sources::default()
    }
    .load()
}

pub(super) fn error(text: &str) -> String {
    match load(text) {
        Ok(_) => panic!("taken: {text}"),
        Err(e) => e.to_string(),
    }
}

/// The value of a key as shown, and whether policy, file or flag gave it.
pub(super) fn shown(config: &Config, key: &str) -> (String, &'static str) {
    let value = config.values.iter().find(|v| v.key == key).unwrap_or_else(|| panic!("no {key}"));
    let from = match &value.origin {
        Origin::Default => "default",
        Origin::Policy(_) => "policy",
        Origin::File(..) => "file",
        Origin::Flag(_) => "flag",
        Origin::Variable(_) => "variable",
    };
    (value.value.clone(), from)
}

#[test]
fn flags_beat_the_file_the_file_beats_the_policy_the_policy_beats_the_defaults() {
    let file = "backoff_cap = \"40s\"\nworkers = 7\nmax_attempts = 3\n";
    let flags = [("--workers", "workers", "9"), ("--rate", "rate", "5/15s")];
    let config = load_with(file, Some("jitter-bucket"), &flags).unwrap();
    for (key, value, from) in [
        ("policy", "jitter-bucket", "flag"),
        ("workers", "9", "flag"),
        ("rate", "5/15s", "flag"),
        ("backoff_cap", "40s", "file"),
        ("max_attempts", "3", "file"),
        ("pace", "configured", "policy"),
        ("hosts.\"*\".rate", "5/s burst 2", "policy"),
        ("cookies", "false", "default"),
        ("host_concurrency", "learned", "default"),
    ] {
        assert_eq!(shown(&config, key), (value.to_owned(), from), "{key}");
    }
    assert_eq!(config.settings.workers.get(), 9);
    assert_eq!(config.settings.backoff.cap(), Duration::from_secs(40));
    let origin = &config.values.iter().find(|v| v.key == "workers").unwrap().origin;
    assert_eq!(origin.to_string(), "flag --workers");
}

#[test]
fn the_origin_of_a_file_is_its_line() {
    let config = load("# one\n\nworkers = 7\n[circuit]\npause = \"5m\"\n").unwrap();
    let line = |key: &str| match &config.values.iter().find(|v| v.key == key).unwrap().origin {
        Origin::File(path, line) => (path.file_name().unwrap().to_owned(), *line),
        other => panic!("{other:?}"),
    };
    assert_eq!(line("workers"), ("forbear.toml".into(), 3));
    assert_eq!(line("circuit.pause"), ("forbear.toml".into(), 5));
}

#[test]
fn polite_is_the_default_and_the_defaults_are_polite() {
    let config = Sources::default().load().unwrap();
    assert_eq!(config.settings, Settings::default());
    assert_eq!((config.settings.policy.as_str(), policy_names()[0]), ("polite", "polite"));
    // The engine's own defaults are these too: a fact that stands in two crates is held together here.
    let scope = config.settings.scope_policy(None, None);
    assert_eq!(scope, forbear_core::policy::ScopePolicy::default());
    assert_eq!(config.settings.item_policy(), forbear_core::policy::ItemPolicy::default());
}

#[test]
fn the_shipped_policies_have_the_numbers_that_they_promise() {
    let s = Duration::from_secs;
    let get =
        |name: &str| Sources { policy: Some(name.to_owned()), ..Sources::default() }.load().unwrap().settings;

    let polite = get("polite");
    assert_eq!((polite.workers.get(), polite.timeout, polite.max_attempts.get()), (64, s(30), 5));
    assert_eq!((polite.backoff.base(), polite.backoff.cap()), (s(1), s(60)));
    assert_eq!((polite.probe_lease, polite.body_max), (s(15), 16 << 20));
    assert_eq!((polite.hold_max, polite.pause_cap), (s(30), s(300)));
    assert_eq!(
        (polite.pace, polite.host_concurrency, polite.scope_policy(None, None).concurrency_start),
        (Pace::Learned, None, 4)
    );

    let shared = get("shared-gate");
    assert_eq!((shared.probe_lease, shared.on_no_hint, shared.pause_cap), (s(15), OnNoHint::Hold, s(300)));
    assert!(shared.scope.iter().any(|c| c.account && c.endpoint), "token and route may count together");

    let obey = get("retry-after");
    assert_eq!(obey.pad.over(s(100)), s(25), "told x 1.25");
    assert_eq!((obey.hold_max, obey.pause_cap, obey.on_no_hint), (s(30), s(300), OnNoHint::Park));
    let longest = obey.backoff.delay(20, 0.999_999);
    assert!(longest > s(89) && longest <= s(90), "min(60 s, 2^attempt) x 0.5 to 1.5: {longest:?}");
    assert_eq!((obey.refusals_per_item.get(), obey.host_concurrency.unwrap().get()), (4, 4));
    assert_eq!((obey.circuit.refusals, obey.circuit.incidents, obey.circuit.pause), (25, 3, s(600)));

    let bucket = get("jitter-bucket");
    assert_eq!((bucket.backoff.base(), bucket.backoff.cap(), bucket.max_attempts.get()), (s(1), s(30), 5));
    assert_eq!(bucket.pace, Pace::Configured);
    let rate = bucket.for_host("api.example.com", 443).rate.expect("a bucket in front");
    assert_eq!(rate.to_string(), "5/s burst 2");

    let queue = get("proxy-queue");
    assert_eq!((queue.max_attempts.get(), queue.refusals_per_item.get(), queue.timeout), (5, 4, s(30)));
    let decorrelated = Backoff::new(s(1), s(60), Jitter::Decorrelated);
    assert_eq!((Ok(queue.backoff), queue.on_no_hint), (decorrelated, OnNoHint::Hold));
    assert_eq!((queue.exits.rotate, queue.exits.sticky), (Rotate::Retries, Sticky::Session));
    assert_eq!((queue.exits.min_success, queue.exits.blocked_retries), (0.5, 0));

    let state = get("exit-state");
    assert_eq!((state.max_attempts.get(), state.refusals_per_item.get()), (5, 4), "at most four retries");
    assert_eq!(Ok(state.backoff), Backoff::new(s(1), s(60), Jitter::Half));
    let item = state.item_policy();
    assert_eq!((item.blocked_retries, item.exit_wait), (4, Duration::from_millis(500)));
    for by_exit in [&queue, &state] {
        assert_eq!(by_exit.scope, [Combination::ORIGIN_EXIT]);
        assert!(by_exit.exits.list.is_empty(), "whose exits they are the policy cannot know");
    }
    for name in policy_names() {
        assert!(get(name).jitter > 0.0, "{name}: chance takes part in every backoff");
    }
}

#[test]
fn br_101_zero_is_zero_or_refused_with_a_word() {
    let taken = load(
        "hold_max = \"0s\"\npause_cap = 0\nstall_after = \"0s\"\njitter = 0\nbody_max = \"0B\"\nuser_agent = \"\"\n[pad]\nfixed = \"0s\"\n",
    );
    let config = taken.unwrap();
    for (key, value) in [
        ("hold_max", "0s"),
        ("pause_cap", "0s"),
        ("stall_after", "0s"),
        ("jitter", "0"),
        ("body_max", "0B"),
        ("user_agent", ""),
        ("pad.fixed", "0s"),
    ] {
        assert_eq!(shown(&config, key), (value.to_owned(), "file"), "{key}");
    }
    assert_eq!(
        config.settings.backoff.delay(3, 0.0),
        config.settings.backoff.delay(3, 0.9),
        "no chance at all"
    );
    let all: Vec<&str> = TOP.iter().map(|k| k.name).collect();
    for (key, value) in [
        ("workers", "0"),
        ("timeout", "\"0s\""),
        ("run_for", "\"0s\""),
        ("max_attempts", "0"),
        ("refusals_per_item", "0"),
        ("backoff_base", "\"0s\""),
        ("backoff_cap", "\"0s\""),
        ("pad.factor", "0"),
        ("probe_lease", "0"),
        ("rate", "\"0/s\""),
        ("rate", "\"10/s, 0/h\""),
        ("host_concurrency", "0"),
        ("circuit.refusals", "0"),
        ("circuit.incidents", "0"),
        ("circuit.pause", "\"0s\""),
        ("hosts.\"a\".rate", "\"0/s\""),
        ("hosts.\"a\".concurrency", "0"),
        ("scope", "[]"),
    ] {
        assert!(key.starts_with("hosts") || all.contains(&key));
        let said = error(&format!("{key} = {value}"));
        assert!(
            said.contains("at least")
                || said.contains("longer than nothing")
                || said.contains("from 1 to 10"),
            "{key}: {said}"
        );
    }
}

#[test]
fn unset_and_switched_off_are_two_things() {
    let off = load_with(
        "rate = \"none\"\nrun_for = \"none\"\nhost_concurrency = \"learned\"",
        Some("retry-after"),
        &[],
    );
    let off = off.unwrap();
    assert_eq!(off.settings.host_concurrency, None);
    assert_eq!(shown(&off, "host_concurrency"), ("learned".to_owned(), "file"));
    assert_eq!(shown(&off, "run_for"), ("none".to_owned(), "file"));
    let unset = load_with("", Some("retry-after"), &[]).unwrap();
    assert_eq!(shown(&unset, "host_concurrency"), ("4".to_owned(), "policy"));
}

#[test]
fn every_mistake_has_its_place_and_a_remedy() {
    for (text, place, parts) in [
        ("wrokers = 5", ":1:1: ", &["unknown key `wrokers`", "did you mean `workers`?"][..]),
        ("[secrets]\nworkers = 5", ":2:1: ", &["unknown key `workers`", "above the first [table]"]),
        ("[hosts.a]\ntimeout = \"5s\"", ":2:1: ", &["unknown key `timeout`", "top level"]),
        ("a = 1\n", ":1:1: ", &["the keys here are policy, hosts"]),
        ("robots = true", ":1:1: ", &["unknown key `robots`"]),
        ("timeout = 30", ":1:11: ", &["needs a unit", "`30s`", "^^"]),
        ("timeout = \"5 parsecs\"", ":1:11: ", &["expected a time", "5 parsecs"]),
        ("timeout = true", ":1:11: ", &["found true or false"]),
        ("body_max = 16", ":1:12: ", &["needs a unit", "`16MiB`"]),
        ("workers = \"64\"", ":1:11: ", &["expected a whole number, found a text"]),
        ("workers = -1", ":1:11: ", &["expected a whole number"]),
        ("workers = 70000", ":1:11: ", &["at most 65535"]),
        ("jitter = 1.5", ":1:10: ", &["from 0 to 1"]),
        ("jitter = nan", ":1:10: ", &["from 0 to 1"]),
        ("[pad]\nfactor = 0.5", ":2:10: ", &["never shortened"]),
        ("backoff = \"fulll\"", ":1:11: ", &["\"full\", \"decorrelated\", \"equal\", \"half\""]),
        ("scope = \"origin\"", ":1:9: ", &["expected a list"]),
        ("scope = [\"exits\"]", ":1:9: ", &["exit"]),
        ("scope = [\"origin\", \"origin\"]", ":1:9: ", &["twice"]),
        ("rate = \"fast\"", ":1:8: ", &["10/s"]),
        ("rate = 10", ":1:8: ", &["expected a rate in words", "found a bare number", "rates"]),
        ("rate = \"10/s; 9/m\"", ":1:8: ", &["expected a rate like"]),
        ("rate = []", ":1:8: ", &["at least one", "rates"]),
        ("rate = [\"10/s\", 9]", ":1:8: ", &["expected a list of texts"]),
        ("rate = [\"10/s, 9/m\"]", ":1:8: ", &["expected a rate like"]),
        (
            "rate = \"1/s, 2/s, 3/s, 4/s, 5/s\"",
            ":1:8: ",
            &["at most 4 rates can hold together, and these are 5"],
        ),
        (
            "[hosts.a]\nrate = [\"1/s\", \"2/s\", \"3/s\", \"4/s\", \"5/s\"]",
            ":2:8: ",
            &["at most 4 rates", "these are 5"],
        ),
        ("[hosts.a]\nrate = [\"60/m\", \"60/1min\"]", ":2:8: ", &["`60/min` stands twice"]),
        (
            "[[hosts.a.endpoints]]\nmatch = \"/\"\nrate = \"1/s, 2/s, 3/s, 4/s, 5/s\"",
            ":3:8: ",
            &["at most 4 rates"],
        ),
        ("backoff_base = \"2m\"", ":1:16: ", &["backoff_cap (1m) is shorter than backoff_base (2m)"]),
        ("user_agent = \"a\\nb\"", ":1:14: ", &["legal header value"]),
        ("cookies = \"yes\"", ":1:11: ", &["`true` or `false`"]),
        ("policy = \"politte\"", ":1:10: ", &["no policy `politte`", "did you mean \"polite\"?"]),
        ("policy = 7", ":1:10: ", &["expected a text"]),
        ("hosts = 1", ":1:1: ", &["`hosts` is a table"]),
        ("[hosts]\na = 1", ":2:1: ", &["a table"]),
        ("[hosts.\"a*b\"]", ":1:8: ", &["`*` stands alone or in front"]),
        ("[hosts.a]\nservice = \"githbu\"", ":2:11: ", &["service"]),
        ("[hosts.a]\nheaders = [1]", ":2:1: ", &["headers are a table"]),
        ("[hosts.a.headers]\n\"a b\" = \"x\"", ":2:1: ", &["not a header name"]),
        ("[hosts.a.headers]\nHost = \"x\"", ":2:1: ", &["`host` is set by the connection"]),
        ("[hosts.a.headers]\nX = 1", ":2:1: ", &["a header's value is a text"]),
        ("[hosts.a.headers]\nA = \"x\"\na = \"y\"", ":3:1: ", &["`hosts.\"a\".headers.a` stands twice"]),
        (
            "[hosts.a]\nrate = \"1/s\"\n[hosts.A]\nrate = \"2/s\"",
            ":4:8: ",
            &["`hosts.\"a\".rate` stands twice"],
        ),
        ("[[hosts.a.endpoints]]\nrate = \"1/s\"", ":1:1: ", &["needs a `match`"]),
        ("[[hosts.a.endpoints]]\nmatch = \"v1\"", ":2:9: ", &["starts with `/`"]),
        ("[hosts.a]\nendpoints = 1", ":2:1: ", &["list of tables"]),
        ("[groups]\ng = []", ":2:5: ", &["at least one host"]),
        ("[groups]\ng = [\"a\"]\nh = [\"a\"]", ":3:5: ", &["is in the group `g` too"]),
        ("scope = [\"origin\"]\n[groups]\ng = [\"a\"]", ":3:1: ", &["add `group` to `scope`"]),
        ("workers = 5\nworkers = 6", ":2:1: ", &["not TOML", "duplicate key"]),
        ("workers = ", ":1:", &["not TOML"]),
    ] {
        let said = error(text);
        assert!(said.contains(&format!("forbear.toml{place}")), "{text}: {said}");
        for part in parts {
            assert!(said.contains(part), "{text}: no {part:?} in {said}");
        }
    }
}

#[test]
fn all_mistakes_are_told_at_once_but_not_without_end() {
    let e = load("wrokers = 5\ntimeout = 30\njitter = 2\n").unwrap_err();
    let lines: Vec<_> = e.problems().iter().map(super::Problem::line).collect();
    assert_eq!(lines, [Some(1), Some(2), Some(3)]);
    assert!(e.problems().iter().all(|p| !p.message().is_empty()));
    let many: String = (0..100).map(|i| format!("unknown{i} = 1\n")).collect();
    assert_eq!(load(&many).unwrap_err().problems().len(), 10);
}

#[test]
fn k1_no_secret_of_a_file_is_shown_whatever_is_wrong_with_it() {
    for text in [
        "[hosts.a]\nheaders = { Authorization = \"Bearer s3cret\" }\ntimeuot = \"s3cret\"",
        "[hosts.a]\nheaders = { \"Author ization\" = \"Bearer s3cret\" }",
        "[hosts.a]\nheaders = { Authorization = \"Bearer s3cret\\u0000\" }",
        "[hosts.a]\nheaders = { Authorization = 1, X = \"s3cret\" }",
        "[hosts.a]\nheaders = \"s3cret\"",
        "[hosts.a]\nheaders = { Authorization = \"Bearer s3cret }",
        "[hosts.a]\nheaders = { Authorization = Bearer s3cret }",
        "hosts.a = { rate = \"x\", headers = { Authorization = \"s3cret\" } }",
        "hosts.a = { rate = x, headers = { Authorization = \"s3cret\" } }",
        "Authorization = \"s3cret\"",
        "Authorization = s3cret",
        "[hosts.\"https://user:s3cret@a\"]\nrate = \"1/s\"",
        "[hosts.\"user:s3cret@a\"]\nrate = \"1/s\"",
        "[groups]\ng = [\"https://u:s3cret@a\"]",
        "[hosts.a.headers]\nA = \"\"\"\ns3cret\n\"\"\"\nA = 1",
        "[hosts.a.headers]\nA = \"\"\"\nx\n s3cret",
        "timeout = 5 # s3cret",
        "x = { a = \"s3cret\" ",
    ] {
        let said = error(text);
        assert!(!said.contains("s3cret"), "{text}: {said}");
    }
    let flags = [("--rate", "rate", "s3cret"), ("--workers", "workers", "s3cret")];
    assert!(!load_with("", None, &flags).unwrap_err().to_string().contains("s3cret"));
    let host = Some("https://u:s3cret@a".to_owned());
    let flag = Flag { flag: "--host-rate", host, key: "rate", value: "1/s".to_owned() };
    let said = Sources { flags: vec![flag], ..Sources::default() }.load().unwrap_err().to_string();
    assert!(said.starts_with("--host-rate: ") && !said.contains("s3cret"), "{said}");
}

#[test]
fn k1_header_values_cannot_be_printed() {
    let config = load("[hosts.a]\nheaders = { Authorization = \"Bearer s3cret\" }").unwrap();
    assert!(!format!("{config:?}").contains("s3cret"));
    assert_eq!(shown(&config, "hosts.\"a\".headers.authorization"), ("***".to_owned(), "file"));
    let header = &config.settings.for_host("a", 80).headers[0];
    assert_eq!(header.to_value().as_bytes(), b"Bearer s3cret");
    assert!(!format!("{:?}", header.to_value()).contains("s3cret"));
}

#[test]
fn the_table_about_fewer_hosts_wins_key_by_key() {
    let text = r#"
        [hosts."*"]
        rate = "1/s"
        headers = { A = "any", B = "any" }
        [hosts."*.example.com"]
        rate = "2/s"
        concurrency = 2
        [hosts."*.api.example.com"]
        concurrency = 3
        [hosts."x.api.example.com"]
        rate = "4/s"
        headers = { a = "exact" }
        [hosts."x.api.example.com:8443"]
        rate = "5/s"
        [hosts."127.1"]
        rate = "6/s"
        [hosts."[::1]"]
        rate = "7/s"
        [hosts."bücher.example"]
        rate = "8/s"
    "#;
    let settings = load(text).unwrap().settings;
    for (host, port, rate, concurrency) in [
        ("other.org", 443, "1/s", None),
        ("example.com", 443, "1/s", None),
        ("www.example.com", 443, "2/s", Some(2)),
        ("y.api.example.com", 443, "2/s", Some(3)),
        ("X.API.Example.com.", 443, "4/s", Some(3)),
        ("x.api.example.com", 8443, "5/s", Some(3)),
        ("127.0.0.1", 80, "6/s", None),
        ("[0:0:0:0:0:0:0:1]", 80, "7/s", None),
        ("::1", 80, "7/s", None),
        ("xn--bcher-kva.example", 80, "8/s", None),
        ("BÜCHER.example", 80, "8/s", None),
    ] {
        let found = settings.for_host(host, port);
        let got = (found.rate.unwrap().to_string(), found.concurrency.map(|n| n.get()));
        assert_eq!(got, (rate.to_owned(), concurrency), "{host}:{port}");
    }
    let headers = settings.for_host("x.api.example.com", 443).headers;
    let values: Vec<_> = headers.iter().map(|h| (h.name.as_str(), h.value.expose())).collect();
    assert_eq!(values, [("b", "any"), ("a", "exact")]);
}

#[test]
fn endpoints_and_groups_are_found() {
    let text = r#"
        [[hosts."api.example.com".endpoints]]
        match = "/v1/search"
        name = "search"
        rate = "1/s"
        [[hosts."api.example.com".endpoints]]
        match = "/v1/**"
        concurrency = 2
        [groups]
        shop = ["a.example", "*.b.example"]
        inner = ["x.b.example"]
    "#;
    let settings = load(text).unwrap().settings;
    let host = settings.for_host("api.example.com", 443);
    let name = |path: &str| host.endpoint_of(path).map(|e| e.name.clone());
    assert_eq!(name("/v1/search").as_deref(), Some("search"));
    assert_eq!(name("/v1/search/7").as_deref(), Some("/v1/**"));
    assert_eq!(name("/"), None);
    assert_eq!(host.endpoint_named("search").unwrap().rate.unwrap().to_string(), "1/s");
    for (host, group) in [
        ("a.example", Some("shop")),
        ("y.b.example", Some("shop")),
        ("x.b.example", Some("inner")),
        ("b.example", None),
    ] {
        assert_eq!(settings.group_of(host, 443).map(|g| g.name.as_str()), group, "{host}");
    }
}

#[test]
fn path_patterns_match_whole_paths() {
    for (pattern, path, expected) in [
        ("/", "/", true),
        ("/", "/a", false),
        ("/a*", "/abc", true),
        ("/a*", "/a/b", false),
        ("/*/b", "/a/b", true),
        ("/*/b", "/a/x/b", false),
        ("/**/b", "/a/x/b", true),
        ("/v1/**", "/v1/", true),
        ("/v1/**", "/v1", false),
        ("/a**z", "/a/x/z", true),
        ("/é*", "/éa", true),
    ] {
        assert_eq!(
            pattern.parse::<super::PathPattern>().unwrap().matches(path),
            expected,
            "{pattern} {path}"
        );
    }
    let slow = "/**/a".repeat(20).parse::<super::PathPattern>().unwrap();
    assert!(!slow.matches(&"/a".repeat(2000)[..3999]), "no pattern is slow");
}

#[test]
fn host_patterns_are_read_strictly() {
    for (text, expected) in [
        ("API.Example.com.", Some("api.example.com")),
        ("api.example.com:8443", Some("api.example.com:8443")),
        ("*", Some("*")),
        ("*:80", Some("*:80")),
        ("*.Example.com", Some("*.example.com")),
        ("::1", Some("::1")),
        ("[::1]:80", Some("[::1]:80")),
        ("127.0.0.1", Some("127.0.0.1")),
        ("0x7f.1", Some("127.0.0.1")),
        ("", None),
        ("*a.example", None),
        ("a.*.example", None),
        ("a b", None),
        ("a:0", None),
        ("a:99999", None),
        ("http://a", None),
        ("u@a", None),
        ("a/b", None),
    ] {
        let found = text.parse::<super::HostPattern>().ok();
        assert_eq!(found.as_ref().map(ToString::to_string).as_deref(), expected, "{text}");
        if let Some(found) = found {
            assert_eq!(found.to_string().parse(), Ok(found), "{text} is written as it is read");
        }
    }
}

#[test]
fn the_file_is_the_named_one_else_beside_the_input_else_the_users() {
    let (near, far) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let write = |dir: &Path, name: &str, workers: u32| {
        fs::write(dir.join(name), format!("workers = {workers}")).unwrap();
        dir.join(name)
    };
    write(far.path(), "forbear.toml", 3);
    let mut sources =
        Sources { beside: Some(near.path().into()), user: Some(far.path().into()), ..Sources::default() };
    let workers = |s: &Sources| s.load().unwrap().settings.workers.get();
    assert_eq!(workers(&sources), 3);
    write(near.path(), "forbear.toml", 2);
    assert_eq!(workers(&sources), 2);
    sources.config = Some(write(near.path(), "own.toml", 1));
    assert_eq!(workers(&sources), 1);
    sources.config = Some(near.path().join("none.toml"));
    let said = sources.load().unwrap_err().to_string();
    assert!(said.contains("none.toml: "), "a named file must exist: {said}");
}

#[test]
fn a_file_that_cannot_be_a_configuration_is_refused_with_a_word() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.toml");
    let said = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Sources { config: Some(path.clone()), ..Sources::default() }
            .load()
            .map(|_| ())
            .map_err(|e| e.to_string())
    };
    assert!(said(b"workers = 1\n\xff").unwrap_err().contains("line 2 is not UTF-8"));
    assert!(said(&vec![b'#'; 5 << 20]).unwrap_err().contains("larger than 4 MiB"));
    assert_eq!(said(b"\xef\xbb\xbfworkers = 1\r\n"), Ok(()));
    assert_eq!(said(b""), Ok(()));
    let e = Sources { config: Some(dir.path().to_owned()), ..Sources::default() }.load().unwrap_err();
    assert_eq!(e.problems().len(), 1);
}

#[test]
fn a_policy_may_be_a_file_named_from_where_it_is_named() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("mine.toml"), "workers = 5\npause_cap = \"1m\"\n").unwrap();
    fs::write(dir.path().join("forbear.toml"), "policy = \"mine.toml\"\nworkers = 6\n").unwrap();
    let config = Sources { beside: Some(dir.path().into()), ..Sources::default() }.load().unwrap();
    assert_eq!(shown(&config, "workers"), ("6".to_owned(), "file"));
    assert_eq!(shown(&config, "pause_cap"), ("1m".to_owned(), "policy"));
    assert_eq!(shown(&config, "policy"), ("mine.toml".to_owned(), "file"));

    fs::write(dir.path().join("mine.toml"), "policy = \"polite\"\nwrokers = 1\n").unwrap();
    let said =
        Sources { beside: Some(dir.path().into()), ..Sources::default() }.load().unwrap_err().to_string();
    assert!(
        said.contains("a policy cannot name another") && said.contains("mine.toml:2:1: unknown key"),
        "{said}"
    );
}

#[test]
fn c1_two_rates_hold_together_however_they_are_written() {
    let (shown_as, list) = ("10/s, 1000/h burst 100", "10/s,1000/h burst 100".parse::<RateList>().unwrap());
    for value in
        ["\"10/s, 1000/h burst 100\"", "\"10/s,1000/1h burst 100\"", "[\"10/s\", \"1000/h burst 100\"]"]
    {
        let text = format!(
            "rate = {value}\n[hosts.a]\nrate = {value}\n[[hosts.a.endpoints]]\nmatch = \"/s\"\nrate = {value}\n"
        );
        let config = load(&text).unwrap();
        for key in ["rate", "hosts.\"a\".rate", "hosts.\"a\".endpoints.\"/s\".rate"] {
            assert_eq!(shown(&config, key), (shown_as.to_owned(), "file"), "{key}");
        }
        let host = config.settings.for_host("a", 80);
        for found in [config.settings.rate, host.rate, host.endpoint_named("/s").unwrap().rate] {
            assert_eq!(found, Some(list));
        }
        let policy = config.settings.scope_policy(host.rate, None);
        assert_eq!(policy.rates, list.into(), "they reach the machine");
    }
    let config = load_with("rate = \"1/s\"", None, &[("--rate", "rate", "10/s,1000/h burst 100")]).unwrap();
    assert_eq!(shown(&config, "rate"), (shown_as.to_owned(), "flag"));
    let said = load_with("", None, &[("--rate", "rate", "1/s,2/s,3/s,4/s,5/s")]).unwrap_err().to_string();
    assert!(said.starts_with("--rate: at most 4 rates can hold together, and these are 5"), "{said}");
}

#[test]
fn no_hint_and_forms_reach_the_machines() {
    let config = load("on_no_hint = \"park\"\nbackoff = \"decorrelated\"\nhold_max = \"1h\"\npause_cap = \"3s\"\nhost_concurrency = 2\npace = \"configured\"").unwrap();
    let item = config.settings.item_policy();
    assert_eq!(
        (item.on_no_hint, item.hold_max),
        (OnNoHint::Park, Duration::from_secs(3)),
        "P7: over the cap it parks"
    );
    let scope = config.settings.scope_policy(Some("2/s".parse().unwrap()), config.settings.host_concurrency);
    assert_eq!((scope.concurrency_start, scope.concurrency_max, scope.learn), (2, 2, false));
    assert!(!scope.rates.is_empty());
    let same = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), Jitter::Decorrelated);
    assert_eq!(Ok(item.backoff), same);
}

#[test]
fn the_example_of_the_reference_page_is_taken() {
    let page = include_str!("../../../../docs/reference/config.md");
    let example =
        page.split("```toml\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let config = load(example).unwrap();
    assert_eq!(shown(&config, "workers"), ("32".to_owned(), "file"));
    assert_eq!(config.settings.group_of("a.shop.example", 443).map(|g| g.name.as_str()), Some("shop"));
}

/// Every key is in the page, with what it takes and its default, and no other.
#[test]
fn the_reference_page_has_every_key_and_no_other() {
    let page = include_str!("../../../../docs/reference/config.md");
    let config = Sources::default().load().unwrap();
    let mut expected = BTreeSet::new();
    for key in TOP {
        let (value, _) = shown(&config, key.name);
        // The page need not change with every release.
        let value = value.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        expected.insert((key.name.to_owned(), key.takes.to_owned(), value));
    }
    let rest = HOST.iter().map(|k| ("hosts.NAME.", k.name, k.takes));
    let rest = rest.chain(ENDPOINT.iter().map(|k| ("hosts.NAME.endpoints.", k.name, k.takes)));
    let rest = rest.chain(COST.iter().map(|k| ("cost.", k.name, k.takes)));
    expected
        .extend(rest.map(|(table, name, takes)| (format!("{table}{name}"), takes.to_owned(), String::new())));

    let cells = |line: &str| {
        line.split(" | ").map(|c| c.trim_matches(['|', ' ', '`']).to_owned()).collect::<Vec<_>>()
    };
    let found: BTreeSet<_> = page
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(cells)
        .map(|c| (c[0].clone(), c[1].clone(), c[2].clone()))
        .filter(|(name, ..)| {
            !["policy", "hosts.NAME.headers", "groups.NAME", "exits.list", "exits.file"]
                .contains(&name.as_str())
        })
        .collect();
    assert_eq!(found, expected);
    for name in policy_names() {
        assert!(page.contains(&format!("`{name}`")), "{name} is not in the page");
    }
}

#[test]
fn c1_what_requests_cost_is_said_for_all_and_for_a_host() {
    let config = load(
        "[cost]\nestimate = 700\nbody = [\"/usage/in\", \"/usage/out\"]\nper_byte = 0.25\n[hosts.a.cost]\nestimate = 3000000\n\
         header = \"X-Cost\"\nfactor = 0.001\nrequest = \"/max_tokens\"\n",
    )
    .unwrap();
    for (key, value) in [
        ("cost.estimate", "700"),
        ("cost.per_byte", "0.25"),
        ("cost.body", "/usage/in, /usage/out"),
        ("hosts.\"a\".cost.estimate", "3000000"),
        ("hosts.\"a\".cost.header", "x-cost"),
        ("hosts.\"a\".cost.factor", "0.001"),
        ("hosts.\"a\".cost.request", "/max_tokens"),
    ] {
        assert_eq!(shown(&config, key), (value.to_owned(), "file"), "{key}");
    }
    let settings = &config.settings;
    let at_a = settings.cost.under(&settings.for_host("a", 80).cost);
    assert_eq!(
        (at_a.estimate.unwrap().get(), at_a.per_byte, at_a.body),
        (3_000_000, Some(0.25), settings.cost.body.clone())
    );
    assert_eq!(settings.cost.under(&settings.for_host("b", 80).cost), settings.cost);
    for (text, words) in [
        ("[cost]\nestimate = 0", "paced"),
        ("[cost]\nestimate = 4294967296", "at most 4294967295"),
        ("[cost]\nbody = \"usage\"", "begins with `/`"),
        ("[cost]\nbody = []", "from one to 8"),
        ("[cost]\nrequest = \"/a~2\"", "`~0`"),
        ("[cost]\nfactor = 0", "above 0"),
        ("[cost]\nper_byte = -1", "at least 0"),
        ("[cost]\nheader = \"x y\"", "not a header's name"),
        ("[cost]\nestimte = 1", "did you mean `estimate`?"),
        ("[hosts.a.cost]\nfaktor = 1", "did you mean `factor`?"),
        ("[hosts.a]\ncost = 5", "`cost` is a table"),
        ("cost = 5", "`cost` is a table"),
    ] {
        let said = load(text).unwrap_err().to_string();
        assert!(said.contains(words), "{text}: {said}");
    }
}
