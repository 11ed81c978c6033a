//! Exits: what is set about them, and where they are found.

use std::{
    num::NonZeroU32,
    path::{Path, PathBuf},
    time::Duration,
};

pub use forbear_core::exit::{Rotate, Sticky};
use toml::de::DeValue;

use super::{
    Origin, Secret, Value,
    error::Place,
    given::Given,
    load::{Build, Doc, Entry as KeyValue, Table, in_order},
    source::Show,
};
use crate::exit::{
    ENTRIES_MAX, Entry, EnvProxies, Environment, ExitUrl, GivenBy, ListError, Names, PRICE_MAX, is_price,
    read_list, without_repeats,
};

/// The ways out, and how they are used.
///
/// Without any, and with nothing in the environment, requests go directly.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ExitSettings {
    /// The exits, each once, in the order in which they were given. With one or more of them no request goes directly (E5).
    pub list: Vec<Entry>,
    /// What the environment says; empty where `list` is not.
    pub environment: EnvProxies,
    /// A ceiling on requests in flight through one exit. Default none: up to `workers`.
    pub concurrency: Option<NonZeroU32>,
    /// What stays together. Default [`Sticky::Session`].
    pub sticky: Sticky,
    /// When another exit is taken. Default [`Rotate::Retries`].
    pub rotate: Rotate,
    /// So many other exits may try an item for which one was told that it is unwanted. Default 0: it fails.
    pub blocked_retries: u32,
    /// After an exit fault an item waits for this times the tries so far, and up to twice this by chance, before another
    /// exit has it. Default none.
    pub fault_wait: Duration,
    /// What a gigabyte costs through an exit that says nothing itself; already filled in in `list`. Default none.
    pub price_per_gb: Option<f64>,
    /// What a request costs through an exit that says nothing itself; already filled in in `list`. Default none.
    pub price_per_request: Option<f64>,
    /// Exits that succeed less often than this are set aside while more than half of the pool remains. A share, from 0 to 1.
    /// Default 0.5.
    pub min_success: f64,
}

impl Default for ExitSettings {
    fn default() -> ExitSettings {
        ExitSettings {
            list: Vec::new(),
            environment: EnvProxies::default(),
            concurrency: None,
            sticky: Sticky::Session,
            rotate: Rotate::Retries,
            blocked_retries: 0,
            fault_wait: Duration::ZERO,
            price_per_gb: None,
            price_per_request: None,
            min_success: 0.5,
        }
    }
}

impl ExitSettings {
    /// Fills in what single exits left to all of them.
    pub(super) fn fill_in(&mut self) {
        for entry in &mut self.list {
            entry.price_per_gb = entry.price_per_gb.or(self.price_per_gb);
            entry.price_per_request = entry.price_per_request.or(self.price_per_request);
        }
    }
}

impl Build {
    /// The table `[exits]`. Its list and its file together replace those of whoever spoke before.
    pub(super) fn exits(&mut self, doc: &Doc, table: &Table<'_>) {
        let mut found = None;
        for (key, value) in in_order(table) {
            match key.get_ref().as_ref() {
                "list" => self.exit_list(doc, (key, value), found.get_or_insert_default()),
                "file" => self.exit_file(doc, (key, value), found.get_or_insert_default()),
                name => self.top_key(doc, &format!("exits.{name}"), (key, value)),
            }
        }
        let key = |name| table.get_key_value(name);
        if let (Some(found), Some((key, _))) = (found, key("list").or_else(|| key("file"))) {
            let place = doc.place(key.span(), Show::NoTexts);
            self.take_exits(found, doc.origin(key.span().start), place);
        }
    }

    /// `--proxy` and `--proxies`, which together replace what is configured.
    pub(super) fn exit_flags(&mut self, proxies: &[Secret], file: Option<&Path>) {
        let mut found = Vec::new();
        for (index, text) in proxies.iter().enumerate() {
            match ExitUrl::parse(text.expose()) {
                Ok(url) => found.push(Entry::new(url, GivenBy::Flag(index + 1))),
                Err(error) => {
                    let which =
                        if proxies.len() > 1 { format!("number {}: ", index + 1) } else { String::new() };
                    self.problem(Place::Flag("--proxy"), format!("{which}{error}"), None);
                }
            }
        }
        if let Some(path) = file {
            let place = Place::Flag("--proxies");
            self.read_exits(path, place, &mut found);
        }
        let flag = if file.is_some() { "--proxies" } else { "--proxy" };
        if file.is_some() || !proxies.is_empty() {
            self.take_exits(found, Origin::Flag(flag), Place::Flag(flag));
        }
    }

    /// What the environment says, where nobody has said anything.
    pub(super) fn exit_environment(&mut self, environment: &Environment) {
        let exits = &mut self.draft.settings.exits;
        if self.problems.is_empty() && exits.list.is_empty() {
            match EnvProxies::read(environment) {
                Ok(proxies) => exits.environment = proxies,
                Err(error) => {
                    let help = Some("set it right, or leave it aside with --no-env-proxy".to_owned());
                    self.problem(Place::Nowhere, error.to_string(), help);
                }
            }
        }
    }

    fn take_exits(&mut self, found: Vec<Entry>, origin: Origin, place: Place) {
        if found.len() > ENTRIES_MAX {
            return self.problem(place, ListError::TooMany.to_string(), None);
        }
        let (list, repeats) = without_repeats(found);
        self.notes = repeats
            .iter()
            .take(NOTES_MAX)
            .map(|(twice, first)| format!("{twice}: the same exit as {first}, counted once"))
            .collect();
        if let Some(more) = repeats.len().checked_sub(NOTES_MAX).filter(|more| *more > 0) {
            self.notes.push(format!("{more} more exits stand twice, counted once"));
        }
        let mistyped = list.iter().filter(|entry| has_other_braces(&entry.url)).take(NOTES_MAX);
        self.notes.extend(mistyped.map(|entry| {
            format!("{}: the user name has braces, but no {{session}}; it goes out as it is", entry.from)
        }));
        self.draft.settings.exits.list = list;
        self.origins.insert(LIST.to_owned(), origin);
    }

    fn read_exits(&mut self, path: &Path, place: Place, found: &mut Vec<Entry>) {
        let name = path.display();
        match read_list(path) {
            Ok(entries) => found.extend(entries),
            Err(ListError::Lines(lines)) => {
                for (line, error) in lines {
                    self.problem(Place::File(format!("{name}:{line}").into()), error.to_string(), None);
                }
            }
            Err(ListError::NotUtf8 { line }) => {
                self.problem(Place::File(format!("{name}:{line}").into()), "not UTF-8".to_owned(), None);
            }
            // Not a path, and not shown: it may hold a password (K1).
            Err(ListError::Io(_)) if looks_like_exit(path) => {
                let help = Some("a single exit is given by `--proxy`, or stands in `exits.list`".to_owned());
                self.problem(place, "expected the name of a file, found an exit".to_owned(), help);
            }
            Err(error) => self.problem(place, format!("{name}: {error}"), None),
        }
    }

    fn exit_file(&mut self, doc: &Doc, (key, value): KeyValue<'_, '_>, found: &mut Vec<Entry>) {
        let Some(path) = value.get_ref().as_str().filter(|path| !path.is_empty()) else {
            let help = Some("write file = \"proxies.txt\"; it counts from this file".to_owned());
            let place = doc.place(key.span(), Show::NoTexts);
            return self.problem(place, "exits.file: expected a path".to_owned(), help);
        };
        let path: PathBuf = doc.directory().map_or_else(|| path.into(), |directory| directory.join(path));
        self.read_exits(&path, doc.place(key.span(), Show::NoTexts), found);
    }

    fn exit_list(&mut self, doc: &Doc, (key, value): KeyValue<'_, '_>, found: &mut Vec<Entry>) {
        let items = match value.get_ref() {
            DeValue::Array(items) if !items.is_empty() => items,
            DeValue::Array(_) => {
                let help = "leave it out; `--no-env-proxy` leaves the environment's exits aside";
                let place = doc.place(key.span(), Show::NoTexts);
                return self.problem(
                    place,
                    "exits.list: there is no exit in it".to_owned(),
                    Some(help.to_owned()),
                );
            }
            _ => {
                let place = doc.place(key.span(), Show::NoTexts);
                return self.problem(
                    place,
                    "exits.list: expected a list".to_owned(),
                    Some(LIST_HELP.to_owned()),
                );
            }
        };
        for item in items.iter() {
            let place = doc.place(item.span(), Show::NoTexts);
            let from = GivenBy::Line(doc.path(), doc.line(item.span().start));
            let entry = match item.get_ref() {
                DeValue::String(text) => exit(text, from),
                DeValue::Table(table) => entry_of(table, from),
                _ => Err("expected an exit".to_owned()),
            };
            match entry {
                Ok(entry) => found.push(entry),
                Err(message) => {
                    self.problem(place, format!("exits.list: {message}"), Some(LIST_HELP.to_owned()));
                }
            }
        }
    }

    /// The exits as they hold, for people: a line for all of them, and one for each of the first few.
    pub(super) fn exit_values(&self) -> Vec<Value> {
        let exits = &self.draft.settings.exits;
        let row = |key: String, value: String, origin| Value { key, value, origin };
        let origin = self.origins.get(LIST).cloned().unwrap_or(Origin::Default);
        if exits.list.is_empty() {
            let variables = exits.environment.shown().map(|(scheme, exit, variable)| {
                row(format!("{LIST} for {scheme}"), exit.name(), Origin::Variable(variable))
            });
            let mut rows = vec![row(LIST.to_owned(), "none".to_owned(), origin)];
            rows.extend(variables);
            rows.extend(
                exits.environment.directly().map(|(hosts, variable)| {
                    row(format!("{LIST} not for"), hosts, Origin::Variable(variable))
                }),
            );
            return rows;
        }
        let count = exits.list.len();
        let count = if count == 1 { "1 exit".to_owned() } else { format!("{count} exits") };
        let mut rows = vec![row(LIST.to_owned(), count, origin)];
        let mut names = Names::default();
        rows.extend(exits.list.iter().take(SHOWN_MAX).map(|entry| {
            let origin = match &entry.from {
                GivenBy::Flag(_) => Origin::Flag("--proxy"),
                GivenBy::Line(path, line) => Origin::File(path.to_path_buf(), *line),
                GivenBy::Other => Origin::Default,
            };
            row(format!("{LIST}.\"{}\"", names.of(&entry.url)), about(entry), origin)
        }));
        rows
    }
}

/// Whether a user name looks as if it was meant to have a place for a session.
fn has_other_braces(url: &ExitUrl) -> bool {
    let user = url.credentials().map_or(&b""[..], |(user, _)| user);
    user.contains(&b'{') && user.contains(&b'}') && !url.has_session()
}

/// What is known of an exit, without its credentials.
fn about(entry: &Entry) -> String {
    let price = |price: Option<f64>, per| price.map(|price| format!("{price} {per}"));
    let words = [
        entry.url.credentials().map(|_| "with credentials".to_owned()),
        entry.url.has_session().then(|| "sessions".to_owned()),
        entry.gateway.then(|| "gateway".to_owned()),
        price(entry.price_per_gb, "per GB"),
        price(entry.price_per_request, "per request"),
    ];
    words.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn looks_like_exit(path: &Path) -> bool {
    let text = path.to_string_lossy();
    text.contains("://") || text.contains('@') || text.matches(':').count() >= 3
}

fn exit(text: &str, from: GivenBy) -> Result<Entry, String> {
    ExitUrl::parse(text).map(|url| Entry::new(url, from)).map_err(|e| e.to_string())
}

/// `{ url = "...", gateway = true, price_per_gb = 5 }`.
fn entry_of(table: &Table<'_>, from: GivenBy) -> Result<Entry, String> {
    let url =
        table.get("url").and_then(|url| url.get_ref().as_str()).ok_or("an exit needs a `url`, a text")?;
    let mut entry = exit(url, from)?;
    for (key, value) in in_order(table) {
        let given = Given::File(value.get_ref());
        match key.get_ref().as_ref() {
            "url" => {}
            "gateway" => entry.gateway = given.yes()?,
            "price_per_gb" => entry.price_per_gb = Some(price(given)?),
            "price_per_request" => entry.price_per_request = Some(price(given)?),
            _ => return Err("its keys are url, gateway, price_per_gb and price_per_request".to_owned()),
        }
    }
    Ok(entry)
}

/// A price that an exit can have.
pub(super) fn price(given: Given<'_>) -> Result<f64, String> {
    let found = given.float().ok().filter(|found| is_price(*found));
    found.ok_or_else(|| format!("a price is a number from 0 to {PRICE_MAX}"))
}

/// The key under which all exits are shown, wherever they are from.
const LIST: &str = "exits.list";
const LIST_HELP: &str =
    "it takes exits, like [\"http://user:password@host:8080\", { url = \"host:3128\", gateway = true }]";
/// So many exits are shown one by one; a pool may have thousands.
const SHOWN_MAX: usize = 20;
/// So many repeats are named.
const NOTES_MAX: usize = 3;

#[cfg(test)]
mod tests {
    use std::fs;

    use super::{
        super::{
            Config, ConfigError, Sources,
            tests::{error, load, shown},
        },
        *,
    };
    use crate::client::Target;

    fn names(config: &Config) -> Vec<String> {
        config.settings.exits.list.iter().map(|entry| entry.url.name()).collect()
    }

    fn proxies(texts: &[&str]) -> Vec<Secret> {
        texts.iter().map(|text| Secret::new((*text).to_owned())).collect()
    }

    fn variables(set: &'static [(&str, &str)]) -> Environment {
        Environment::of(|name| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into()))
    }

    #[test]
    fn e6_exits_of_a_file_are_texts_and_tables() {
        let text = "[exits]\nconcurrency = 3\nsticky = \"account\"\nrotate = \"never\"\nblocked_retries = 2\n\
                    fault_wait = \"500ms\"\nmin_success = 0.8\nprice_per_gb = 4\nlist = [\n  \"http://u:p@a:1\",\n  \
                    { url = \"b:2\", gateway = true, price_per_gb = 5, price_per_request = 0.001 },\n]\n";
        let config = load(text).unwrap();
        let exits = &config.settings.exits;
        assert_eq!(names(&config), ["http://a:1", "http://b:2"]);
        let (a, b) = (&exits.list[0], &exits.list[1]);
        assert_eq!((a.gateway, a.price_per_gb, a.price_per_request), (false, Some(4.0), None));
        assert_eq!((b.gateway, b.price_per_gb, b.price_per_request), (true, Some(5.0), Some(0.001)));
        assert_eq!((exits.sticky, exits.rotate), (Sticky::Account, Rotate::Never));
        assert_eq!((exits.concurrency.map(NonZeroU32::get), exits.min_success), (Some(3), 0.8));
        let item = config.settings.item_policy();
        assert_eq!((item.blocked_retries, item.exit_wait), (2, Duration::from_millis(500)));
        let value = |key: &str| config.values.iter().find(|v| v.key == key).unwrap();
        assert_eq!(value("exits.list").value, "2 exits");
        assert_eq!(value("exits.list.\"http://a:1\"").value, "with credentials");
        assert!(value("exits.list.\"http://a:1\"").origin.to_string().ends_with("forbear.toml:10"));
        assert_eq!(value("exits.list.\"http://b:2\"").value, "gateway, 5 per GB, 0.001 per request");
        assert_eq!(shown(&config, "exits.fault_wait"), ("500ms".to_owned(), "file"));
    }

    #[test]
    fn e6_flags_beat_the_file_and_the_file_beats_the_environment() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("proxies.txt"), "p:1 gateway\n# no\nq:2\n").unwrap();
        fs::write(dir.path().join("forbear.toml"), "[exits]\nlist = [\"a:1\"]\nfile = \"proxies.txt\"\n")
            .unwrap();
        let config = |change: &dyn Fn(&mut Sources)| {
            let environment = variables(&[("http_proxy", "e:9"), ("NO_PROXY", "x.example")]);
            let mut sources = Sources { beside: Some(dir.path().into()), environment, ..Sources::default() };
            change(&mut sources);
            sources.load().unwrap()
        };
        let from = |config: &Config| shown(config, "exits.list");
        // A path in a file counts from there.
        let file = config(&|_| {});
        assert_eq!(names(&file), ["http://a:1", "http://p:1", "http://q:2"]);
        assert_eq!(from(&file), ("3 exits".to_owned(), "file"));
        assert!(file.settings.exits.environment.is_empty());
        let flags = config(&|s| s.proxies = proxies(&["b:1", "c:1"]));
        assert_eq!(
            (names(&flags), from(&flags)),
            (vec!["http://b:1".into(), "http://c:1".into()], ("2 exits".into(), "flag"))
        );
        let both = config(&|s| {
            s.proxies = proxies(&["b:1"]);
            s.proxies_file = Some(dir.path().join("proxies.txt"));
        });
        assert_eq!(names(&both), ["http://b:1", "http://p:1", "http://q:2"]);
        let environment = config(&|s| s.beside = None);
        assert_eq!((names(&environment).len(), from(&environment)), (0, ("none".to_owned(), "default")));
        assert_eq!(shown(&environment, "exits.list for http"), ("http://e:9".to_owned(), "variable"));
        let target = |url| Target::parse(url).unwrap();
        let exits = &environment.settings.exits.environment;
        assert!(exits.for_target(&target("http://y.example/")).is_some());
        assert!(exits.for_target(&target("http://x.example/")).is_none());
        assert!(exits.for_target(&target("https://y.example/")).is_none());
    }

    #[test]
    fn e6_a_mistake_about_exits_has_its_place_and_a_remedy() {
        for (text, place, part) in [
            ("exits = 1", ":1:1: ", "`exits` is a table"),
            ("[exits]\nlist = \"a:1\"", ":2:1: ", "expected a list"),
            ("[exits]\nlist = []", ":2:1: ", "no exit in it"),
            ("[exits]\nlist = [\"a:1\",\n 7]", ":3:2: ", "expected an exit"),
            ("[exits]\nlist = [\"socks4://a\"]", ":2:9: ", "http, https, socks5, socks5h"),
            ("[exits]\nlist = [{ gateway = true }]", ":2:9: ", "needs a `url`"),
            ("[exits]\nlist = [{ url = \"a\", fast = true }]", ":2:9: ", "its keys are"),
            ("[exits]\nlist = [{ url = \"a\", gateway = 1 }]", ":2:9: ", "`true` or `false`"),
            ("[exits]\nlist = [{ url = \"a\", price_per_gb = -1 }]", ":2:9: ", "a price is"),
            ("[exits]\nprice_per_gb = inf", ":2:16: ", "a price is"),
            ("[exits]\nmin_success = 2", ":2:15: ", "from 0 to 1"),
            ("[exits]\nconcurrency = 0", ":2:15: ", "at least 1"),
            ("[exits]\nblocked_retries = -1", ":2:19: ", "whole number"),
            ("[exits]\nsticky = \"on\"", ":2:10: ", "\"off\", \"session\", \"account\""),
            ("[exits]\nlits = [\"a\"]", ":2:1: ", "did you mean `list`?"),
            ("[exits]\nfile = 1", ":2:1: ", "expected a path"),
            ("[exits]\nfile = \"http://a\"", ":2:1: ", "expected the name of a file"),
            ("[exits]\nfile = \"none.txt\"", ":2:1: ", "none.txt: cannot be read"),
        ] {
            let said = error(text);
            assert!(said.contains(&format!("forbear.toml{place}")) && said.contains(part), "{text}: {said}");
        }
    }

    #[test]
    fn e6_a_bad_line_is_named_by_file_and_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxies.txt");
        let said = |text: &[u8]| {
            fs::write(&path, text).unwrap();
            let sources = Sources { proxies_file: Some(path.clone()), ..Sources::default() };
            sources.load().map(|_| ()).map_err(|e: ConfigError| e.to_string()).unwrap_err()
        };
        let two = said(b"a:1\nhttp://u:S3cr3t@:1\n\nb:2 fast\n");
        for place in ["proxies.txt:2: the host", "proxies.txt:4: after the exit"] {
            assert!(two.contains(place) && !two.contains("S3cr3t"), "{two}");
        }
        assert!(said(b"a\n\xff").contains("proxies.txt:2: not UTF-8"));
        assert!(said(b"# none\n").contains("--proxies: ") && said(b"").contains("no exit in it"));
        let flags = Sources { proxies: proxies(&["a:1", "socks4://u:S3cr3t@b"]), ..Sources::default() };
        let error = flags.load().unwrap_err().to_string();
        assert!(error.starts_with("--proxy: number 2: the scheme is none of"), "{error}");
        assert!(!format!("{error} {flags:?}").contains("S3cr3t"), "{flags:?}");
    }

    #[test]
    fn s2_the_same_exit_twice_is_said_and_counted_once() {
        let texts = ["http://u:p@a:80", "u:q@a", "a:80:u:p", "HTTP://u:p@A", "u:p@a", "u:p@a:80/", "u:p@a."];
        let config = Sources { proxies: proxies(&texts), ..Sources::default() }.load().unwrap();
        assert_eq!(config.settings.exits.list.len(), 2);
        assert_eq!(config.notes[0], "--proxy number 3: the same exit as --proxy number 1, counted once");
        assert_eq!(config.notes.len(), 4);
        assert_eq!(config.notes[3], "2 more exits stand twice, counted once");
        let shown: Vec<_> = config.values.iter().filter(|v| v.key.starts_with("exits.list.")).collect();
        assert_eq!(shown.len(), 2, "two accounts at one address");
        assert_eq!(shown[1].key, "exits.list.\"http://a:80#2\"", "as in tables and records");
    }

    #[test]
    fn e4_a_place_for_a_session_that_is_none_is_said() {
        let texts = ["u-{sesion}:p@a", "u-{session}-{x}:p@b", "u:{p}@c", "{x:y}@d"];
        let config = Sources { proxies: proxies(&texts), ..Sources::default() }.load().unwrap();
        let note = "--proxy number 1: the user name has braces, but no {session}; it goes out as it is";
        assert_eq!(config.notes, [note]);
    }

    #[test]
    fn c4_a_long_list_is_shown_in_short() {
        let texts: Vec<Secret> = (1..=50).map(|n| Secret::new(format!("h{n}:1"))).collect();
        let config = Sources { proxies: texts, ..Sources::default() }.load().unwrap();
        assert_eq!(shown(&config, "exits.list"), ("50 exits".to_owned(), "flag"));
        let rows = config.values.iter().filter(|v| v.key.starts_with("exits.list.")).count();
        assert_eq!(rows, SHOWN_MAX);
    }

    #[test]
    fn k1_no_password_of_an_exit_is_shown_whatever_is_wrong_with_the_file() {
        for text in [
            "[exits]\nlist = [\"http://u:S3cr3t@a/S3cr3t\"]",
            "[exits]\nlist = [{ url = \"http://u:S3cr3t@\" }]",
            "[exits]\nlist = [{ url = \"http://u:S3cr3t@a\", gateway = \"S3cr3t\" }]",
            "[exits]\nlist = [{ url = \"http://u:S3cr3t@a\" } \"http://u:S3cr3t@a\"]",
            "[exits]\nlist = [\n\"http://u:S3cr3t@a\n]",
            "[exits]\nlist = [\nhttp://u:S3cr3t@a\n]",
            "[exits]\n\"http://u:S3cr3t@a:1\" = { gateway = true }",
            "[exits]\nlits = [\"http://u:S3cr3t@a\"]",
            "[exits]\nfile = [\"http://u:S3cr3t@a\"]",
            "[exits]\nfile = \"http://u:S3cr3t@a\"",
            "[exits]\nfile = \"a:1:u:S3cr3t\"",
            "exits = [\"http://u:S3cr3t@a\"]",
            "exits = { list = [\"http://u:S3cr3t@a\"], fast = 1 }",
            "\"http://u:S3cr3t@a\" = 1",
        ] {
            let said = error(text);
            assert!(!said.contains("S3cr3t"), "{text}: {said}");
        }
        let config = load("[exits]\nlist = [\"http://us3r:S3cr3t@a\"]").unwrap();
        let all = format!("{config:?}");
        assert!(!all.contains("S3cr3t") && !all.contains("us3r"), "{all}");
        let environment = variables(&[("all_proxy", "http://u:S3cr3t@")]);
        let sources = Sources { environment, ..Sources::default() };
        let said = sources.load().unwrap_err().to_string();
        assert!(
            said.starts_with("all_proxy: ") && !format!("{said}{sources:?}").contains("S3cr3t"),
            "{said}"
        );
    }
}
