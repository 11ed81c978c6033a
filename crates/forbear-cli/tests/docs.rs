//! The texts hold: their links lead somewhere, their commands run, their TOML loads, their tables agree with the code.

mod common;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use common::{Output, forbear, run};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Files below `dir` whose names end in `ending`, as paths from the root; what was built or installed is left out.
fn files(dir: &str, ending: &str) -> BTreeMap<String, String> {
    fn walk(root: &Path, dir: &Path, ending: &str, found: &mut BTreeMap<String, String>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    walk(root, &path, ending, found);
                }
            } else if name.ends_with(ending) {
                let from_root = path.strip_prefix(root).unwrap().to_string_lossy().into_owned();
                found.insert(from_root, fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut found = BTreeMap::new();
    walk(&root(), &root().join(dir), ending, &mut found);
    found
}

/// The list of exits that the pages speak of.
const PROXIES: &str = "http://user:password@203.0.113.7:8080\n";

/// A fenced block: its language and its lines.
struct Block<'a> {
    language: &'a str,
    lines: Vec<&'a str>,
}

/// A page apart: its fenced blocks, and the lines outside of them.
fn parts(text: &str) -> (Vec<Block<'_>>, Vec<&str>) {
    let (mut blocks, mut outside) = (Vec::new(), Vec::new());
    let mut inside: Option<Block<'_>> = None;
    for line in text.lines() {
        match (line.trim_start().strip_prefix("```"), inside.take()) {
            (Some(language), None) => inside = Some(Block { language: language.trim(), lines: Vec::new() }),
            (Some(_), Some(block)) => blocks.push(block),
            (None, Some(mut block)) => {
                block.lines.push(line);
                inside = Some(block);
            }
            (None, None) => outside.push(line),
        }
    }
    assert!(inside.is_none(), "a block has no end");
    (blocks, outside)
}

/// The spans of inline code, and the line without them.
fn spans(line: &str) -> (Vec<&str>, String) {
    let mut pieces = line.split('`');
    let mut rest = pieces.next().unwrap_or("").to_owned();
    let mut spans = Vec::new();
    while let Some(span) = pieces.next() {
        spans.push(span);
        rest.push_str("code");
        rest.push_str(pieces.next().unwrap_or(""));
    }
    (spans, rest)
}

/// The targets of `[text](target)`.
fn links(line: &str) -> Vec<String> {
    let (_, plain) = spans(line);
    plain
        .split("](")
        .skip(1)
        .filter_map(|rest| rest.split_once(')'))
        .map(|(target, _)| target.to_owned())
        .collect()
}

/// The names under which a page's headings can be linked to, as GitHub makes them.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = parts(text).1.into_iter().filter(|line| line.starts_with('#'));
    headings
        .map(|line| {
            let words = line.trim_start_matches('#').trim().to_lowercase();
            let kept = words.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
            kept.map(|c| if c == ' ' { '-' } else { c }).collect()
        })
        .collect()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let pages = files("", ".md");
    assert!(pages.len() > 10, "where are the pages?");
    let mut wrong = Vec::new();
    for (page, text) in &pages {
        for target in parts(text).1.iter().flat_map(|line| links(line)) {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let dir = root().join(page).parent().unwrap().to_owned();
            let file = if path.is_empty() { root().join(page) } else { dir.join(path) };
            let there = file.exists()
                && (anchor.is_empty()
                    || fs::read_to_string(&file).is_ok_and(|text| anchors(&text).contains(anchor)));
            if !there {
                wrong.push(format!("{page}: {target}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The simple commands of a line of shell, as words. Substitutions stay as they are: no command here is made by one.
fn commands(line: &str) -> Vec<Vec<String>> {
    let (mut all, mut words, mut word) = (Vec::new(), Vec::new(), None::<String>);
    let mut quote = None;
    for c in line.chars() {
        match (quote, c) {
            (Some(q), c) if c == q => quote = None,
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, '|' | ';' | '&' | '<' | '>') => {
                words.extend(word.take());
                all.push(std::mem::take(&mut words));
            }
            (None, ' ') => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    all.push(words);
    all
}

/// A directory in which what the pages show can be run: their files are there, and have nothing to fetch.
fn playground() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["examples/api", "policies"] {
        fs::create_dir_all(dir.path().join(name)).unwrap();
        for entry in fs::read_dir(root().join(name)).unwrap() {
            let file = entry.unwrap();
            fs::copy(file.path(), dir.path().join(name).join(file.file_name())).unwrap();
        }
    }
    fs::copy(dir.path().join("policies/polite.toml"), dir.path().join("ours.toml")).unwrap();
    for name in ["urls.txt", "forbear.toml", "examples/api/items.jsonl"] {
        fs::write(dir.path().join(name), "").unwrap();
    }
    fs::write(dir.path().join("proxies.txt"), PROXIES).unwrap();
    let made = within(&dir, &["fetch", "urls.txt", "-o", "out.jsonl"]);
    assert_eq!(made.status, 0, "{}", made.stderr);
    dir
}

fn within(dir: &tempfile::TempDir, args: &[&str]) -> Output {
    run(forbear(args).current_dir(dir.path()), b"HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\n\r\n")
}

#[test]
fn every_command_shown_runs() {
    let dir = playground();
    let (mut wrong, mut ran) = (Vec::new(), BTreeSet::new());
    for (page, text) in files("", ".md") {
        let lines: Vec<&str> =
            parts(&text).0.into_iter().filter(|b| b.language == "sh").flat_map(|b| b.lines).collect();
        for words in lines.iter().flat_map(|line| commands(line)) {
            if words.first().is_none_or(|word| word != "forbear") || !ran.insert(words.clone()) {
                continue;
            }
            let mut args: Vec<&str> = words[1..].iter().map(String::as_str).collect();
            let takes_long = args.first() == Some(&"demo");
            let reads_lines = args.contains(&"--jsonl") || args.contains(&"-");
            // A database of a fleet is not on the machine that runs the tests; cli_queue.rs has one of its own.
            let is_elsewhere = args.iter().any(|word| word.starts_with("postgres://"));
            if takes_long || is_elsewhere {
                args.push("--help");
            }
            let out = if reads_lines {
                run(forbear(&args).current_dir(dir.path()), b"")
            } else {
                within(&dir, &args)
            };
            if out.status != 0 {
                wrong.push(format!("{page}: {}: status {}: {}", words.join(" "), out.status, out.stderr));
            }
        }
    }
    assert!(ran.len() > 15, "where are the commands? {ran:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_command_named_exists() {
    let (mut wrong, mut seen) = (Vec::new(), BTreeSet::new());
    for (page, text) in files("", ".md") {
        for span in parts(&text).1.iter().flat_map(|line| spans(line).0) {
            let Some(rest) = span.strip_prefix("forbear ") else { continue };
            // `forbear COMMAND -h` stands for all of them.
            if rest.starts_with(|c: char| c.is_uppercase()) || !seen.insert(span.to_owned()) {
                continue;
            }
            let words = commands(rest).swap_remove(0);
            let mut args: Vec<&str> = words.iter().map(String::as_str).collect();
            args.push("--help");
            let out = run(&mut forbear(&args), b"");
            if out.status != 0 {
                wrong.push(format!("{page}: {span}: {}", out.stderr));
            }
        }
    }
    assert!(seen.len() > 5, "where are the commands? {seen:?}");
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn every_toml_block_and_example_is_a_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("shown.toml");
    fs::write(dir.path().join("proxies.txt"), PROXIES).unwrap();
    let pages = files("docs", ".md").into_iter().chain(files("", "README.md"));
    let mut found = 0;
    for (page, text) in pages {
        for block in parts(&text).0.into_iter().filter(|block| block.language == "toml") {
            found += 1;
            fs::write(&path, block.lines.join("\n")).unwrap();
            let out = run(&mut forbear(&["check", "--config", path.to_str().unwrap()]), b"");
            assert_eq!(out.status, 0, "{page}: {}", out.stderr);
        }
    }
    assert!(found >= 4, "where are the blocks?");
    for (name, text) in files("examples", ".toml") {
        fs::write(&path, text).unwrap();
        let out = run(&mut forbear(&["check", "--config", path.to_str().unwrap()]), b"");
        assert_eq!(out.status, 0, "{name}: {}", out.stderr);
    }
}

#[test]
fn every_line_of_the_example_is_an_item() {
    let items = root().join("examples/api/items.jsonl");
    let out = run(&mut forbear(&["fetch", "--plan", items.to_str().unwrap()]), b"");
    assert_eq!(out.status, 0, "{}", out.stderr);
    let lines = fs::read_to_string(&items).unwrap();
    let wanted = lines.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).count();
    assert!(out.stdout.contains(&format!("{wanted} items on 1 host")), "{}", out.stdout);
    assert!(out.stdout.contains("endpoint=search"), "the file beside it is read: {}", out.stdout);
    assert!(!out.stdout.contains("cannot"), "{}", out.stdout);
    let secrets = ["put-your-token-here", "not-shown"];
    assert!(secrets.iter().all(|secret| !out.stdout.contains(secret)), "K1: {}", out.stdout);
}

/// Rows of the tables in a page, each as its cells.
fn rows(text: &str) -> Vec<Vec<&str>> {
    let rows = parts(text).1.into_iter().filter_map(|line| line.strip_prefix("| ")?.strip_suffix(" |"));
    rows.map(|row| row.split(" | ").map(str::trim).collect()).collect()
}

#[test]
fn architecture_lists_every_dependency_with_its_version() {
    let manifest: toml::Table =
        fs::read_to_string(root().join("Cargo.toml")).unwrap().parse().expect("a manifest");
    let version =
        |value: &toml::Value| value.as_str().or_else(|| value.get("version")?.as_str()).map(str::to_owned);
    let mut wanted: BTreeMap<String, String> = manifest["workspace"]["dependencies"]
        .as_table()
        .unwrap()
        .iter()
        .filter_map(|(name, value)| Some((name.clone(), version(value)?)))
        .collect();
    // Dependencies of one crate alone.
    for (_, text) in files("crates", "Cargo.toml") {
        let manifest: toml::Table = text.parse().unwrap();
        let platforms = manifest.get("target").and_then(|t| t.as_table()).into_iter().flatten();
        let tables = std::iter::once(&manifest).chain(platforms.filter_map(|(_, p)| p.as_table()));
        for (name, value) in tables.filter_map(|t| t.get("dependencies")?.as_table()).flatten() {
            wanted.extend(version(value).map(|version| (name.clone(), version)));
        }
    }
    let text = fs::read_to_string(root().join("ARCHITECTURE.md")).unwrap();
    let told: BTreeMap<&str, &str> = rows(&text)
        .into_iter()
        .filter(|row| row.len() == 4 && row[1].starts_with(|c: char| c.is_ascii_digit()))
        .map(|row| (row[0], row[1]))
        .collect();
    let tests_alone = text.lines().skip_while(|line| !line.starts_with("For tests and")).collect::<String>();
    for (name, version) in &wanted {
        let in_table = told.get(name.as_str()).is_some_and(|told| told == version);
        assert!(
            in_table || tests_alone.contains(&format!("{name} {version} (")),
            "ARCHITECTURE.md does not say why {name} {version} is there"
        );
    }
    for name in told.keys() {
        assert!(wanted.contains_key(*name), "ARCHITECTURE.md lists {name}, which nobody uses");
    }
}

#[test]
fn l1_that_fetch_learns_by_default_is_said_and_is_so() {
    let checked = within(&tempfile::tempdir().unwrap(), &["check", "--json"]);
    let keys: Vec<serde_json::Value> = serde_json::from_str(&checked.stdout).unwrap();
    let pace = keys.iter().find(|key| key["key"] == "pace").unwrap();
    assert_eq!((&pace["value"], &pace["origin"]), (&"learned".into(), &"policy polite".into()), "{pace}");
    for (page, words) in [
        ("README.md", "by default, [learned](docs/concepts/learning.md)"),
        ("docs/concepts/learning.md", "`forbear fetch` learns by default"),
    ] {
        assert!(
            fs::read_to_string(root().join(page)).unwrap().contains(words),
            "{page} does not say: {words}"
        );
    }
}

#[test]
fn every_rule_that_is_cited_is_in_the_table() {
    let text = fs::read_to_string(root().join("docs/reference/rules.md")).unwrap();
    let table: BTreeMap<String, &str> = rows(&text)
        .into_iter()
        .filter(|row| row.len() == 3 && row[0] != "rule" && !row[0].starts_with('-'))
        .map(|row| (row[0].to_lowercase(), row[2]))
        .collect();
    assert_eq!(table.len(), 57, "every rule has one row");
    for (rule, state) in &table {
        let known = ["built", "part: ", "not yet"].iter().any(|word| state.starts_with(word));
        assert!(known, "{rule}: what is `{state}`?");
    }
    let letters = "shpbclvxejktf";
    for (path, text) in files("crates", ".rs") {
        for name in text.lines().filter_map(|line| line.trim_start().split_once("fn ")).map(|(_, rest)| rest)
        {
            let rule = name.split('_').next().unwrap_or_default();
            let is_rule = rule.len() == 2
                && rule.starts_with(|c: char| letters.contains(c))
                && rule.ends_with(|c: char| c.is_ascii_digit());
            if is_rule && name.contains("()") {
                let state = table.get(rule);
                assert!(state.is_some(), "{path}: {name}: there is no such rule");
                assert!(!state.unwrap().starts_with("not yet"), "{path}: {name}: the table says `not yet`");
            }
        }
    }
}

#[test]
fn the_readers_of_pages_read() {
    let page = "# A page, `with` code\n[a](b.md#c) and `[no](link)`\n```sh\nforbear x | cat # y\n```\n";
    let (blocks, outside) = parts(page);
    assert_eq!((blocks.len(), blocks[0].language, outside.len()), (1, "sh", 2));
    assert_eq!(links(outside[1]), ["b.md#c"]);
    assert!(anchors(page).contains("a-page-with-code"));
    let words = commands("curl -si x | forbear explain -H 'A: b c' --y=\"z\" # 'w");
    assert_eq!(words[1], ["forbear", "explain", "-H", "A: b c", "--y=z"]);
}
