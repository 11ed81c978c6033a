//! The shape of the workspace, kept by a test: who may use whom, what the core may touch, which licences come along,
//! and which rule has which test.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// The crates, each allowed to use those above it.
const ORDER: [&str; 8] = [
    "forbear-core",
    "forbear-store",
    "forbear",
    "forbear-zoo",
    "forbear-sim",
    "forbear-gateway",
    "forbear-cli",
    "forbear-py",
];
/// Stands below others in the order, yet uses none of them: limiters that knew forbear would prove nothing.
const ALONE: &str = "forbear-zoo";

/// All that the rules need: HTTP's types, its dates, and error texts.
const CORE_MAY_USE: [&str; 3] = ["http", "httpdate", "thiserror"];

/// What has no place in a pure state machine: clocks, waiting, I/O, locks, chance, async.
const NOT_IN_CORE: [&str; 15] = [
    "SystemTime",
    "Instant::now",
    "std::fs",
    "std::io",
    "std::thread",
    "std::env",
    "std::process",
    "TcpStream",
    "Mutex",
    "RwLock",
    "Atomic",
    "async fn",
    ".await",
    "println!",
    "RandomState",
];

/// More than this in one file is more than one idea. Blank lines, comments and unit tests do not count.
const CODE_LINES_MAX: usize = 700;
/// Files that are longer all the same, each with its reason.
const LONGER: [(&str, &str); 0] = [];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Every file under `dir` that a commit could hold, with its path from the root.
fn files(dir: &str) -> BTreeMap<String, String> {
    fn walk(root: &Path, dir: &Path, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            // Built or installed, not written: what .gitignore names.
            if ["target", ".git", ".cache", ".venv", "node_modules", "__pycache__"].contains(&name.as_str()) {
                continue;
            }
            if path.is_dir() {
                walk(root, &path, found);
            } else if let Ok(text) = fs::read_to_string(&path) {
                found.insert(path.strip_prefix(root).unwrap().to_string_lossy().replace('\\', "/"), text);
            }
        }
    }
    let (root, mut found) = (root(), BTreeMap::new());
    if root.join(dir).is_dir() {
        walk(&root, &root.join(dir), &mut found);
    }
    found
}

/// The manifests of the crates, by crate name.
fn manifests() -> BTreeMap<String, toml::Table> {
    let manifest = |(path, text): (String, String)| {
        let is_crate = path.strip_suffix("/Cargo.toml").is_some_and(|dir| dir.matches('/').count() == 1);
        let table: toml::Table = is_crate.then(|| text.parse().unwrap())?;
        Some((table["package"]["name"].as_str().unwrap().to_owned(), table))
    };
    files("crates").into_iter().filter_map(manifest).collect()
}

/// Names in a section of a manifest, those for one platform included.
fn dependencies(manifest: &toml::Table, section: &str) -> BTreeSet<String> {
    let platforms = manifest.get("target").and_then(|t| t.as_table()).into_iter().flat_map(|t| t.values());
    let tables = std::iter::once(manifest.get(section)).chain(platforms.map(|p| p.get(section))).flatten();
    tables.flat_map(|table| table.as_table().unwrap().keys().cloned()).collect()
}

/// The lines of `text` that are code: no comments, no blank lines, and nothing from the unit tests at the end on.
fn code(text: &str) -> impl Iterator<Item = &str> {
    let body = text.split("\n#[cfg(test)]\nmod ").next().unwrap_or_default();
    body.lines().filter(|line| !line.trim_start().starts_with("//") && !line.trim().is_empty())
}

#[test]
fn crates_use_only_crates_above_them() {
    for (name, manifest) in manifests() {
        let place = ORDER
            .iter()
            .position(|n| *n == name)
            .unwrap_or_else(|| panic!("`{name}` has no place in the order"));
        for section in ["dependencies", "build-dependencies"] {
            for used in dependencies(&manifest, section) {
                let Some(other) = ORDER.iter().position(|n| *n == used) else { continue };
                assert!(other < place && name != ALONE, "`{name}` must not use `{used}`");
            }
        }
        // A test may also use what stands alone, and its own crate with another feature: no circle can come of it.
        for used in dependencies(&manifest, "dev-dependencies") {
            let Some(other) = ORDER.iter().position(|n| *n == used) else { continue };
            assert!(
                used == ALONE || used == name || other < place && name != ALONE,
                "tests of `{name}` must not use `{used}`"
            );
        }
    }
}

#[test]
fn core_has_no_clock_no_io_no_lock_and_few_dependencies() {
    let manifest = &manifests()["forbear-core"];
    for section in ["dependencies", "build-dependencies"] {
        for name in dependencies(manifest, section) {
            assert!(CORE_MAY_USE.contains(&name.as_str()), "core must not depend on `{name}`");
        }
    }
    for (path, text) in files("crates/forbear-core/src") {
        for line in code(&text) {
            let found = NOT_IN_CORE.iter().find(|word| line.contains(*word));
            assert!(found.is_none(), "{path}: `{}` in the core: {line}", found.unwrap());
        }
    }
}

#[test]
fn every_crate_says_what_it_is() {
    for (path, text) in files("crates") {
        if path.ends_with("/src/lib.rs") || path.ends_with("/src/main.rs") {
            assert!(text.starts_with("//! "), "{path} does not begin with its documentation");
        }
    }
    for (name, manifest) in manifests() {
        assert!(manifest["package"].get("description").is_some(), "`{name}` has no description");
        assert_eq!(
            manifest["lints"]["workspace"].as_bool(),
            Some(true),
            "`{name}` leaves out the workspace's lints"
        );
    }
}

#[test]
fn a_file_is_one_idea() {
    for (path, text) in files("crates") {
        let lines = code(&text).count();
        if path.contains("/src/") && path.ends_with(".rs") && !LONGER.iter().any(|(known, _)| *known == path)
        {
            assert!(
                lines <= CODE_LINES_MAX,
                "{path}: {lines} lines of code; split it, or say in LONGER why not"
            );
        }
    }
    for (path, reason) in LONGER {
        assert!(root().join(path).is_file() && !reason.is_empty(), "LONGER names {path}, which is gone");
    }
}

#[test]
fn nothing_unfinished_and_no_path_of_one_machine() {
    // In halves, so that this file does not name what it looks for.
    let words = [
        ("to", "do!("),
        ("unimple", "mented!("),
        ("db", "g!("),
        ("#[ig", "nore"),
        ("FIX", "ME"),
        ("assert!(", "true)"),
        ("sub", "agent"),
        ("coding ", "agent"),
        ("/ro", "ot/."),
        ("../sha", "red"),
    ]
    .map(|(a, b)| format!("{a}{b}"));
    let here = format!("{}/", root().display());
    for (path, text) in files("") {
        for word in words.iter().chain([&here]) {
            let line = text.lines().position(|line| line.contains(word.as_str()));
            assert!(line.is_none(), "{path}:{}: `{word}`", line.unwrap() + 1);
        }
    }
}

/// What cargo knows of the whole tree of dependencies.
fn metadata() -> Value {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let out =
        cargo.current_dir(root()).args(["metadata", "--format-version", "1", "--locked"]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

fn deny() -> toml::Table {
    fs::read_to_string(root().join("deny.toml")).unwrap().parse().unwrap()
}

/// Whether an SPDX expression can be satisfied with `allowed` alone. `A/B` is the old way to write `A OR B`.
fn permits(expression: &str, allowed: &BTreeSet<String>) -> bool {
    /// `AND` binds closer than `OR`; a term is a name or a parenthesis.
    fn holds<'a>(words: &mut impl Iterator<Item = &'a str>, allowed: &BTreeSet<String>) -> bool {
        let (mut any, mut all) = (false, true);
        while let Some(word) = words.next() {
            match word {
                "AND" => {}
                "OR" => (any, all) = (any || all, true),
                "(" => all &= holds(words, allowed),
                ")" => break,
                name => all &= allowed.contains(name),
            }
        }
        any || all
    }
    let spaced =
        expression.replace(" WITH ", "+").replace('(', " ( ").replace(')', " ) ").replace('/', " OR ");
    holds(&mut spaced.split_whitespace(), allowed)
}

#[test]
fn licences_and_bans_of_deny_toml_hold() {
    let (deny, metadata) = (deny(), metadata());
    let allowed: BTreeSet<String> = deny["licenses"]["allow"]
        .as_array()
        .unwrap()
        .iter()
        .map(|name| name.as_str().unwrap().replace(" WITH ", "+"))
        .collect();
    for (expression, expected) in [
        ("MIT", true),
        ("GPL-3.0", false),
        ("GPL-3.0 OR MIT", true),
        ("MIT/Apache-2.0", true),
        ("(MIT OR GPL-3.0) AND ISC", true),
        ("(MIT OR ISC) AND GPL-3.0", false),
        ("GPL-3.0 AND ISC OR MIT", true),
        ("Apache-2.0 WITH LLVM-exception", true),
        ("GPL-2.0 WITH Classpath-exception-2.0", false),
    ] {
        assert_eq!(permits(expression, &allowed), expected, "{expression}");
    }

    let packages = metadata["packages"].as_array().unwrap();
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(permits(licence, &allowed), "{}: licence {licence}", package["name"]);
    }

    let name_of: BTreeMap<&str, &str> =
        packages.iter().map(|p| (p["id"].as_str().unwrap(), p["name"].as_str().unwrap())).collect();
    for ban in deny["bans"]["deny"].as_array().unwrap() {
        let banned = ban["crate"].as_str().unwrap();
        let wrappers: Vec<&str> = ban
            .get("wrappers")
            .map_or(vec![], |w| w.as_array().unwrap().iter().map(|w| w.as_str().unwrap()).collect());
        for node in metadata["resolve"]["nodes"].as_array().unwrap() {
            let user = name_of[node["id"].as_str().unwrap()];
            let uses = node["dependencies"]
                .as_array()
                .unwrap()
                .iter()
                .any(|id| name_of[id.as_str().unwrap()] == banned);
            assert!(!uses || wrappers.contains(&user), "`{user}` must not use `{banned}`: {}", ban["reason"]);
        }
    }
}
