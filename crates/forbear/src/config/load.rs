//! Policy, file and flags, laid over one another; who said what is kept.

use std::{
    borrow::Cow,
    collections::BTreeMap,
    fmt, fs, io,
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

use forbear_store::gate::GateAddress;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    ConfigError, CostSettings, Problem, Secret, Settings,
    cost::COST,
    error::Place,
    given::Given,
    keys::{Draft, ENDPOINT, EndpointDraft, HOST, Key, TOP},
    source::{Excerpt, Show, line_of},
    suggest,
};
use crate::exit::Environment;

/// Where settings come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// The file that was named (`--config`); it must exist.
    pub config: Option<PathBuf>,
    /// The directory of the input, where `forbear.toml` is looked for if no file was named.
    pub beside: Option<PathBuf>,
    /// The user's own directory for configuration, looked in last; see [`Sources::user_directory`].
    pub user: Option<PathBuf>,
    /// The policy that was named (`--policy`): a shipped name, or a path.
    pub policy: Option<String>,
    /// Values from the command line.
    pub flags: Vec<Flag>,
    /// Exits from the command line (`--proxy`). With those of `proxies_file` they replace what is configured.
    pub proxies: Vec<Secret>,
    /// A file of exits from the command line (`--proxies`).
    pub proxies_file: Option<PathBuf>,
    /// The proxy variables, used where no exit is given otherwise. Empty by default.
    pub environment: Environment,
}

/// A value from the command line. `Debug` does not show it: it may hold a password (K1).
#[derive(Clone)]
pub struct Flag {
    /// The flag, as it is typed: `--host-rate`.
    pub flag: &'static str,
    /// The host that it is about, for flags about one.
    pub host: Option<String>,
    /// The key that it sets: of that host, else of the top level.
    pub key: &'static str,
    /// The value, as it was typed.
    pub value: String,
}

/// Who gave a setting its value.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Origin {
    /// Nobody.
    Default,
    /// A policy, by its name or path.
    Policy(String),
    /// A line of the configuration file, from 1.
    File(PathBuf, usize),
    /// A flag.
    Flag(&'static str),
    /// A variable of the environment.
    Variable(&'static str),
}

/// A setting as it holds, for people and for `forbear check`.
#[derive(Clone, Debug)]
pub struct Value {
    /// The key, with its tables: `hosts."api.example.com".rate`.
    pub key: String,
    /// The value as a file would say it, without quotes; secrets are `***`.
    pub value: String,
    /// Who gave it.
    pub origin: Origin,
}

/// Checked settings, and where each came from.
#[derive(Clone, Debug)]
pub struct Config {
    /// What the engine reads.
    pub settings: Settings,
    /// Every key with its value, in a fixed order.
    pub values: Vec<Value>,
    /// The file that was read, if any.
    pub file: Option<PathBuf>,
    /// What is no mistake and yet worth a word to whoever runs it, one line each.
    pub notes: Vec<String>,
}

impl Sources {
    /// `$XDG_CONFIG_HOME/forbear`, else `~/.config/forbear`; `None` if neither variable is set.
    #[must_use]
    pub fn user_directory() -> Option<PathBuf> {
        let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|p| p.is_absolute());
        absolute("XDG_CONFIG_HOME")
            .or_else(|| Some(absolute("HOME")?.join(".config")))
            .map(|p| p.join("forbear"))
    }

    /// Reads everything and lays it together.
    ///
    /// # Errors
    /// All that is wrong, in files and flags alike.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let mut build = Build::default();
        let file = build.find_file(self);
        let doc = file.as_ref().and_then(|path| build.read(path));
        let parsed = doc.as_ref().and_then(|doc| build.parse(doc));

        let (policy, said_by) = build.policy_name(self, doc.as_ref(), parsed.as_ref());
        if let Some(doc) = build.read_policy(&policy, &said_by, file.as_deref())
            && let Some(table) = build.parse(&doc)
        {
            build.apply(&doc, &table);
        }
        if let (Some(doc), Some(table)) = (&doc, &parsed) {
            build.apply(doc, table);
        }
        for flag in &self.flags {
            build.flag(flag);
        }
        build.exit_flags(&self.proxies, self.proxies_file.as_deref());
        build.exit_environment(&self.environment);
        build.origins.insert("policy".to_owned(), said_by);
        build.draft.settings.policy = policy;
        build.finish(file)
    }
}

/// The names of the shipped policies, the default first.
#[must_use]
pub fn policy_names() -> Vec<&'static str> {
    POLICIES.iter().map(|(name, _)| *name).collect()
}

impl fmt::Debug for Flag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flag").field("flag", &self.flag).field("host", &self.host).finish_non_exhaustive()
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::Policy(name) => write!(f, "policy {name}"),
            Origin::File(path, line) => write!(f, "{}:{line}", path.display()),
            Origin::Flag(flag) => write!(f, "flag {flag}"),
            Origin::Variable(name) => write!(f, "variable {name}"),
        }
    }
}

impl Origin {
    fn rank(&self) -> u8 {
        match self {
            Origin::Default => 0,
            Origin::Policy(_) => 1,
            Origin::File(..) => 2,
            Origin::Flag(_) | Origin::Variable(_) => 3,
        }
    }
}

/// A file's text while it is read.
pub(super) struct Doc {
    name: PathBuf,
    text: String,
    /// The policy's name, if it is one.
    policy: Option<String>,
}

pub(super) type Table<'a> = DeTable<'a>;
pub(super) type Entry<'e, 'a> = (&'e Spanned<Cow<'a, str>>, &'e Spanned<DeValue<'a>>);

#[derive(Default)]
pub(super) struct Build {
    pub(super) draft: Draft,
    pub(super) origins: BTreeMap<String, Origin>,
    /// Where a key stands, for problems that only show once all is read.
    pub(super) places: BTreeMap<String, Place>,
    pub(super) problems: Vec<Problem>,
    pub(super) notes: Vec<String>,
}

impl Build {
    fn find_file(&mut self, sources: &Sources) -> Option<PathBuf> {
        if let Some(path) = &sources.config {
            return Some(path.clone());
        }
        // A file that is there but cannot be read is an error later on, not a reason to look further.
        let here = |dir: &PathBuf| {
            let path =
                if dir.as_path() == Path::new(".") { PathBuf::from(FILE_NAME) } else { dir.join(FILE_NAME) };
            Some(path).filter(|path| path.symlink_metadata().is_ok())
        };
        sources.beside.as_ref().and_then(here).or_else(|| sources.user.as_ref().and_then(here))
    }

    pub(super) fn read(&mut self, path: &Path) -> Option<Doc> {
        let problem = match read_bounded(path) {
            Ok(bytes) => match String::from_utf8(bytes) {
                Ok(text) => {
                    let text = text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text);
                    return Some(Doc { name: path.to_owned(), text, policy: None });
                }
                Err(e) => {
                    let good = e.utf8_error().valid_up_to();
                    let line = e.as_bytes()[..good].iter().filter(|b| **b == b'\n').count() + 1;
                    format!("line {line} is not UTF-8")
                }
            },
            Err(e) => e.to_string(),
        };
        self.problem(Place::File(path.to_owned()), problem, None);
        None
    }

    pub(super) fn parse<'a>(&mut self, doc: &'a Doc) -> Option<Table<'a>> {
        let (table, errors) = DeTable::parse_recoverable(&doc.text);
        if errors.is_empty() {
            return Some(table.into_inner());
        }
        for error in errors.iter().take(PROBLEMS_MAX) {
            // The parser's own words may quote the file; what stands before is enough.
            let words = error
                .message()
                .split(['`', '"', '\n'])
                .next()
                .unwrap_or("")
                .trim_end_matches([' ', ',', ':']);
            let excerpt = Excerpt::new(&doc.text, error.span().unwrap_or(0..0), Show::Keys(is_plain_key));
            let message = if words.is_empty() { "not TOML" } else { words };
            self.problem(Place::Text(doc.shown(), excerpt), format!("not TOML: {message}"), None);
        }
        None
    }

    /// Flag, else file, else the default.
    fn policy_name(
        &mut self,
        sources: &Sources,
        doc: Option<&Doc>,
        table: Option<&Table<'_>>,
    ) -> (String, Origin) {
        if let Some(name) = &sources.policy {
            self.places.insert("policy".to_owned(), Place::Flag("--policy"));
            return (name.clone(), Origin::Flag("--policy"));
        }
        if let (Some(doc), Some((key, value))) = (doc, table.and_then(|t| t.get_key_value("policy"))) {
            match value.get_ref().as_str() {
                Some(name) => {
                    self.places.insert("policy".to_owned(), doc.place(value.span(), Show::Marked));
                    return (name.to_owned(), doc.origin(key.span().start));
                }
                None => {
                    let help = Some("write a name or a path in quotes, like \"polite\"".to_owned());
                    self.problem(
                        doc.place(value.span(), Show::NoTexts),
                        "policy: expected a text".to_owned(),
                        help,
                    );
                }
            }
        }
        (POLICIES[0].0.to_owned(), Origin::Default)
    }

    fn read_policy(&mut self, name: &str, said_by: &Origin, file: Option<&Path>) -> Option<Doc> {
        if let Some((_, text)) = POLICIES.iter().find(|(n, _)| *n == name) {
            let text = (*text).to_owned();
            return Some(Doc { name: PathBuf::from(name), text, policy: Some(name.to_owned()) });
        }
        if !name.contains(['/', '\\']) && !name.ends_with(".toml") {
            let help = suggest::nearest(name, policy_names()).map_or_else(
                || {
                    format!(
                        "the policies are {}; a path has a `/` or ends in `.toml`",
                        policy_names().join(", ")
                    )
                },
                |near| format!("did you mean \"{near}\"?"),
            );
            let place = self.places.get("policy").cloned().unwrap_or(Place::Nowhere);
            self.problem(place, format!("there is no policy `{name}`"), Some(help));
            return None;
        }
        // A path in a file is meant from where the file stands.
        let base = file.filter(|_| matches!(said_by, Origin::File(..))).and_then(Path::parent);
        let path = base.map_or_else(|| PathBuf::from(name), |dir| dir.join(name));
        Some(Doc { policy: Some(name.to_owned()), ..self.read(&path)? })
    }

    fn apply(&mut self, doc: &Doc, table: &Table<'_>) {
        for (key, value) in in_order(table) {
            let name = key.get_ref().as_ref();
            match (name, value.get_ref()) {
                ("policy", _) if doc.policy.is_none() => {}
                ("policy", _) => {
                    let place = doc.place(key.span(), Show::Marked);
                    self.problem(place, "a policy cannot name another".to_owned(), None);
                }
                ("hosts", DeValue::Table(hosts)) => self.hosts(doc, hosts),
                ("groups", DeValue::Table(groups)) => self.groups(doc, groups),
                ("exits", DeValue::Table(exits)) => self.exits(doc, exits),
                ("cost", DeValue::Table(cost)) => {
                    self.cost(doc, cost, ("cost", "cost"), |build| &mut build.draft.settings.cost);
                }
                ("pad" | "secrets" | "circuit", DeValue::Table(inner)) => {
                    for (key, value) in in_order(inner) {
                        self.top_key(doc, &format!("{name}.{}", key.get_ref()), (key, value));
                    }
                }
                ("hosts" | "groups" | "pad" | "secrets" | "circuit" | "exits" | "cost", _) => {
                    let place = doc.place(key.span(), Show::Marked);
                    self.problem(
                        place,
                        format!("`{name}` is a table"),
                        Some(format!("write [{name}] in a line of its own")),
                    );
                }
                _ => self.top_key(doc, name, (key, value)),
            }
        }
    }

    pub(super) fn top_key(&mut self, doc: &Doc, name: &str, (key, value): Entry<'_, '_>) {
        let Some(known) = TOP.iter().find(|k| k.name == name) else {
            return self.unknown(doc, name, key.span());
        };
        // An address may have a password in it (K1).
        let place = doc.place(value.span(), if name == GATE { Show::NoTexts } else { Show::Marked });
        self.set(
            known,
            |b| &mut b.draft,
            Given::File(value.get_ref()),
            name,
            place,
            doc.origin(key.span().start),
        );
        if let (GATE, GateAddress::File(path), Some(dir)) =
            (name, &mut self.draft.settings.gate, doc.directory())
        {
            *path = dir.join(&path); // a path in a file is meant from where the file stands
        }
    }

    fn flag(&mut self, flag: &Flag) {
        let (place, origin, given) =
            (Place::Flag(flag.flag), Origin::Flag(flag.flag), Given::Flag(&flag.value));
        match &flag.host {
            None => {
                let known = TOP.iter().find(|k| k.name == flag.key).expect("a flag sets a key that exists");
                self.set(known, |b| &mut b.draft, given, flag.key, place, origin);
            }
            Some(host) => {
                let known = HOST.iter().find(|k| k.name == flag.key).expect("a flag sets a key that exists");
                let Some(at) = self.host(host, place.clone()) else { return };
                let full = format!("{}.{}", self.host_key(at), flag.key);
                self.set(known, |b| &mut b.draft.settings.hosts[at].1, given, &full, place, origin);
            }
        }
    }

    pub(super) fn set<T>(
        &mut self,
        key: &Key<T>,
        target: impl Fn(&mut Build) -> &mut T,
        given: Given<'_>,
        full: &str,
        place: Place,
        origin: Origin,
    ) {
        match (key.set)(target(self), given) {
            Ok(()) if self.stands_twice(full, &origin) => self.twice(place, full),
            Ok(()) => {
                self.origins.insert(full.to_owned(), origin);
                self.places.insert(full.to_owned(), place);
            }
            Err(message) => {
                let message = match place {
                    Place::Flag(_) => message,
                    _ => format!("{}: {message}", key.name),
                };
                self.problem(place, message, Some(format!("it takes {}", key.takes)));
            }
        }
    }

    /// Whether this file has said it already. TOML refuses the same key twice; two spellings of one host or header get by it.
    pub(super) fn stands_twice(&self, full: &str, origin: &Origin) -> bool {
        matches!((self.origins.get(full), origin), (Some(Origin::File(a, _)), Origin::File(b, _)) if a == b)
    }

    pub(super) fn twice(&mut self, place: Place, full: &str) {
        let help = Some("two spellings of one name are one; keep one of them".to_owned());
        self.problem(place, format!("`{full}` stands twice"), help);
    }

    pub(super) fn unknown(&mut self, doc: &Doc, name: &str, span: Range<usize>) {
        let (table, word) = name.rsplit_once('.').unwrap_or(("", name));
        // A key that must stand in quotes is a value in the wrong place, perhaps a secret one (K1).
        if !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
            return self.problem(doc.place(span, Show::NoTexts), "unknown key".to_owned(), None);
        }
        let help = suggest::key(table, word);
        self.problem(doc.place(span, Show::Marked), format!("unknown key `{word}`"), help);
    }

    pub(super) fn problem(&mut self, place: Place, message: String, help: Option<String>) {
        self.problems.push(Problem { place, message, help });
    }

    fn finish(mut self, file: Option<PathBuf>) -> Result<Config, ConfigError> {
        let values = self.values();
        if self.problems.is_empty() {
            match self.draft.clone().build() {
                Ok(settings) => return Ok(Config { settings, values, file, notes: self.notes }),
                Err(e) => {
                    // Whoever spoke last brought it about: the flag, else the file, else the policy.
                    let culprit =
                        e.keys().iter().rev().max_by_key(|key| self.origins.get(**key).map(Origin::rank));
                    let place = culprit.and_then(|key| self.places.get(*key)).cloned();
                    self.problem(place.unwrap_or(Place::Nowhere), e.to_string(), None);
                }
            }
        }
        self.problems.truncate(PROBLEMS_MAX);
        Err(ConfigError { problems: self.problems })
    }

    fn values(&self) -> Vec<Value> {
        let origin = |key: &str| self.origins.get(key).cloned().unwrap_or(Origin::Default);
        let value = |key: String, value: String| Value { origin: origin(&key), key, value };
        let mut found = vec![value("policy".to_owned(), self.draft.settings.policy.clone())];
        found.extend(TOP.iter().filter_map(|k| Some(value(k.name.to_owned(), (k.show)(&self.draft)?))));
        let costs = |table: &str, cost: &CostSettings| -> Vec<Value> {
            let shown = COST.iter().filter_map(|k| Some((k.name, (k.show)(cost)?)));
            shown.map(|(name, shown)| value(format!("{table}.{name}"), shown)).collect()
        };
        found.extend(costs("cost", &self.draft.settings.cost));
        found.extend(self.exit_values());
        for (at, (_, host)) in self.draft.settings.hosts.iter().enumerate() {
            let table = self.host_key(at);
            found.extend(
                HOST.iter().filter_map(|k| Some(value(format!("{table}.{}", k.name), (k.show)(host)?))),
            );
            found.extend(costs(&format!("{table}.cost"), &host.cost));
            found.extend(
                host.headers.iter().map(|h| value(format!("{table}.headers.{}", h.name), "***".to_owned())),
            );
            for endpoint in &host.endpoints {
                let table = format!("{table}.endpoints.\"{}\"", endpoint.name);
                let draft = EndpointDraft::from(endpoint);
                found.extend(
                    ENDPOINT
                        .iter()
                        .filter(|k| k.name != "name")
                        .filter_map(|k| Some(value(format!("{table}.{}", k.name), (k.show)(&draft)?))),
                );
            }
        }
        for group in &self.draft.settings.groups {
            let members: Vec<_> = group.members.iter().map(ToString::to_string).collect();
            found.push(value(format!("groups.{}", group.name), members.join(", ")));
        }
        found
    }
}

impl Doc {
    fn shown(&self) -> String {
        match &self.policy {
            Some(name) if self.name == Path::new(name) => format!("policy {name}"),
            _ => self.name.display().to_string(),
        }
    }

    pub(super) fn place(&self, span: Range<usize>, show: Show) -> Place {
        Place::Text(self.shown(), Excerpt::new(&self.text, span, show))
    }

    pub(super) fn origin(&self, at: usize) -> Origin {
        match &self.policy {
            Some(name) => Origin::Policy(name.clone()),
            None => Origin::File(self.name.clone(), self.line(at)),
        }
    }

    pub(super) fn line(&self, at: usize) -> usize {
        line_of(&self.text, at)
    }

    pub(super) fn path(&self) -> Arc<Path> {
        self.name.as_path().into()
    }

    /// Where paths in it count from.
    pub(super) fn directory(&self) -> Option<&Path> {
        self.name.parent()
    }
}

/// A table's entries as they stand in the file; the parser sorts them by name.
pub(super) fn in_order<'e, 'a>(table: &'e Table<'a>) -> Vec<Entry<'e, 'a>> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

/// Whether a line that sets this key can be shown although its file cannot be read.
fn is_plain_key(name: &str) -> bool {
    name == "policy" || name != GATE && TOP.iter().any(|k| k.name.rsplit('.').next() == Some(name))
}

fn read_bounded(path: &Path) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::new(
            io::ErrorKind::FileTooLarge,
            "larger than 4 MiB, so hardly a configuration",
        ));
    }
    Ok(bytes)
}

/// The key whose value may have a password in it.
const GATE: &str = "gate";
/// What a configuration file is called, beside the input and in the user's directory.
const FILE_NAME: &str = "forbear.toml";
/// Nobody writes a longer one; a log or a body taken for one is found out quickly.
const FILE_MAX: u64 = 4 << 20;
/// More is noise: the first few explain the rest.
pub(super) const PROBLEMS_MAX: usize = 10;
/// The shipped policies, the default first.
const POLICIES: &[(&str, &str)] = &[
    ("polite", include_str!("../../../../policies/polite.toml")),
    ("shared-gate", include_str!("../../../../policies/shared-gate.toml")),
    ("retry-after", include_str!("../../../../policies/retry-after.toml")),
    ("jitter-bucket", include_str!("../../../../policies/jitter-bucket.toml")),
    ("proxy-queue", include_str!("../../../../policies/proxy-queue.toml")),
    ("exit-state", include_str!("../../../../policies/exit-state.toml")),
];
