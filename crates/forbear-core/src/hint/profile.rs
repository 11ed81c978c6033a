//! Profiles: what one service calls its limits, as data (H2), and the small machine that applies them.

use std::time::Duration;

use super::body::{self, Found};
use super::fields::{Key, Role};
use super::gather::Gathered;
use super::value::{self, Unit};
use super::{Kind, Response, ScopeHint, services};

/// What one service calls its limits: its hosts, headers, codes and sentences. See the reference page for the list.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub(crate) name: &'static str,
    /// Domains; their subdomains belong to them.
    pub(crate) hosts: &'static [&'static str],
    /// It refuses with a success status, so the bodies of successes must be read.
    pub(crate) bodies: bool,
    /// Whose limit it is when nothing finer is said.
    pub(crate) scope: Option<ScopeHint>,
    /// A request passes while any of the budgets has something left (the others: while all have).
    pub(crate) any_left: bool,
    pub(crate) fields: &'static [Field],
    pub(crate) body: &'static [BodyField],
    pub(crate) dims: &'static [Dim],
    pub(crate) rules: &'static [Rule],
}

/// One line of a table, for the services.
pub(crate) const fn field(name: &'static str, means: Means) -> Field {
    Field { name, means }
}

/// One line of a table, for the services.
pub(crate) const fn rule(when: &'static [When], then: &'static [Then]) -> Rule {
    Rule { when, then }
}

/// A profile that says nothing, to build others from.
pub(crate) const BASE: Profile = Profile {
    name: "",
    hosts: &[],
    bodies: false,
    scope: None,
    any_left: false,
    fields: &[],
    body: &[],
    dims: &[],
    rules: &[],
};

/// A header of the service. The name is in lower case; a trailing `*` stands for anything.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) means: Means,
}

/// What a header's value is.
#[derive(Debug)]
pub(crate) enum Means {
    /// One number or time of a budget; the text names the budget, empty for the plain `x-ratelimit` one.
    Part(Role, &'static str, Unit),
    /// `39/40`: used, then limit; a `name=` may stand before.
    UsedOfLimit(&'static str),
    /// `200,2000`: one number for each of these budgets.
    Each(Role, &'static [&'static str]),
    /// `20:1,100:120`: number and window in seconds; the text names the group of budgets.
    Windows(Role, &'static str),
    /// `name;107,other;0`: a number for each named budget; the text names the group.
    Named(Role, &'static str),
    /// Whole budgets: `total=10; remaining=0; resets=37`. The text names them.
    Budgets(&'static str),
    /// A time to wait that counts on served responses too; of a list `60:a:b, 2700:c:d` the longest.
    Hold(Unit),
    /// JSON with a time to wait under this key, zero for none.
    JsonHold(&'static str, Unit),
    /// Not what its name says.
    Nothing,
}

/// A field of the body that tells of a budget.
#[derive(Debug)]
pub(crate) struct BodyField {
    pub(crate) path: &'static str,
    pub(crate) role: Role,
    pub(crate) dim: &'static str,
}

/// What is known of a budget by its name: the words of its header, the vendor's prefix, or the name in its value.
#[derive(Debug)]
pub(crate) struct Dim {
    pub(crate) name: &'static str,
    pub(crate) scope: Option<ScopeHint>,
    pub(crate) kind: Option<Kind>,
    pub(crate) window_s: Option<u64>,
}

/// If everything in `when` holds, everything in `then` is so. Of several rules the first to say a thing has said it.
#[derive(Debug)]
pub(crate) struct Rule {
    pub(crate) when: &'static [When],
    pub(crate) then: &'static [Then],
}

#[derive(Debug)]
pub(crate) enum When {
    Status(u16),
    /// A header has this value, letter case aside.
    HeaderIs(&'static str, &'static str),
    /// A header contains this, letter case aside.
    HeaderHas(&'static str, &'static str),
    Header(&'static str),
    NoHeader(&'static str),
    /// A number in a JSON header is at least this.
    HeaderAtLeast(&'static str, &'static str, f64),
    /// A field of the body is one of these. A path counts from the root, arrays leave no trace; `*.` stands for any
    /// way down.
    Code(&'static str, &'static [&'static str]),
    /// A field of the body begins with this.
    Starts(&'static str, &'static str),
    /// A field of the body contains this, letter case aside.
    Contains(&'static str, &'static str),
    /// The body's text contains this, letter case aside.
    Text(&'static str),
}

#[derive(Debug)]
pub(crate) enum Then {
    /// This response is of that kind: refused for the kinds that a wait cures, not a hold for the others.
    Is(Kind),
    /// If it is a refusal or a hold, it is of that kind.
    IfLimited(Kind),
    /// Served, but nothing is left.
    Spent,
    /// The limit counts this.
    By(ScopeHint),
    /// The time to wait stands in the body's text behind these words.
    WaitAfter(&'static str, Unit),
    /// The time to wait stands in this field of the body.
    WaitIn(&'static str, Unit),
    /// The same, and it counts on a served response too.
    HoldIn(&'static str, Unit),
    /// What the budget headers say is not about this refusal.
    NoBudget,
    Limit(f64),
    Window(u64),
}

/// What the rules of a profile, or the general codes, made of a response.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) marked: Option<Kind>,
    pub(crate) kind: Option<Kind>,
    pub(crate) scope: Option<ScopeHint>,
    pub(crate) no_budget: bool,
    pub(crate) spent: bool,
    pub(crate) limit: Option<f64>,
    pub(crate) window: Option<Duration>,
    /// The field that marked it, and its value.
    pub(crate) mark: Option<(String, Vec<u8>)>,
}

impl Profile {
    /// The profile of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<&'static Profile> {
        Profile::all().iter().find(|p| p.name == name)
    }

    /// The profile whose domains hold this host name (no port, any case, a trailing dot is ignored). The longest
    /// domain decides, so `youtube.googleapis.com` may differ from `googleapis.com`.
    #[must_use]
    pub fn for_host(host: &str) -> Option<&'static Profile> {
        let host = host.strip_suffix('.').unwrap_or(host);
        let inside = |domain: &&&str| {
            let Some(at) = host.len().checked_sub(domain.len()) else { return false };
            let (head, tail) = (host.as_bytes().get(..at), host.as_bytes().get(at..));
            tail.is_some_and(|t| t.eq_ignore_ascii_case(domain.as_bytes()))
                && head.is_some_and(|h| h.is_empty() || h.ends_with(b"."))
        };
        Profile::all()
            .iter()
            .filter_map(|p| Some((p.hosts.iter().filter(inside).map(|d| d.len()).max()?, p)))
            .max_by_key(|(len, _)| *len)
            .map(|(_, p)| p)
    }

    /// All profiles, in alphabetical order.
    #[must_use]
    pub fn all() -> &'static [Profile] {
        services::ALL
    }

    /// The service's name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The domains whose responses this profile describes.
    #[must_use]
    pub fn hosts(&self) -> &'static [&'static str] {
        self.hosts
    }

    /// Whose limit it is when the response says nothing finer.
    #[must_use]
    pub fn scope(&self) -> Option<ScopeHint> {
        self.scope
    }

    /// Whether this service refuses with a success status, so that the bodies of successes must be read too.
    #[must_use]
    pub fn reads_success_bodies(&self) -> bool {
        self.bodies
    }

    pub(crate) fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|f| match f.name.strip_suffix('*') {
            Some(start) => name.starts_with(start),
            None => f.name == name,
        })
    }

    pub(crate) fn dimension(&self, key: &Key<'_>, name: Option<&[u8]>) -> Option<&'static Dim> {
        self.dims
            .iter()
            .find(|d| key.is_named(d.name) || key.prefix == d.name || name == Some(d.name.as_bytes()))
    }

    /// Whether a body field of this last key is looked at by any rule.
    pub(crate) fn wants(&self, key: &[u8]) -> bool {
        // A key may hold dots itself (Dropbox's `.tag`), so paths are compared from their ends.
        let last = |path: &str| {
            path.as_bytes().strip_suffix(key).is_some_and(|head| head.is_empty() || head.ends_with(b"."))
        };
        self.body.iter().any(|b| last(b.path))
            || self.rules.iter().any(|r| {
                r.when.iter().any(|w| match w {
                    When::Code(path, _) | When::Starts(path, _) | When::Contains(path, _) => last(path),
                    _ => false,
                }) || r
                    .then
                    .iter()
                    .any(|t| matches!(t, Then::WaitIn(path, _) | Then::HoldIn(path, _) if last(path)))
            })
    }

    /// Applies the rules. Instructions that they find go to `seen`.
    pub(crate) fn apply<'a>(
        &self,
        response: &Response<'a>,
        found: &[Found<'a>],
        seen: &mut Gathered<'a>,
        verdict: &mut Verdict,
    ) {
        let text = response.body.unwrap_or_default();
        for field in self.body {
            for f in found.iter().filter(|f| on_path(&f.path, field.path)) {
                seen.body_part(field, f.text);
            }
        }
        for rule in self.rules {
            if !rule.when.iter().all(|when| holds(when, response, found, text)) {
                continue;
            }
            for then in rule.then {
                match then {
                    Then::Is(kind) => {
                        if verdict.marked.is_none() {
                            verdict.mark = mark(rule.when, response, found);
                        }
                        verdict.marked = verdict.marked.or(Some(*kind));
                    }
                    Then::IfLimited(kind) => verdict.kind = verdict.kind.or(Some(*kind)),
                    Then::By(scope) => verdict.scope = verdict.scope.or(Some(*scope)),
                    Then::NoBudget => verdict.no_budget = true,
                    Then::Spent => verdict.spent = true,
                    Then::Limit(limit) => verdict.limit = verdict.limit.or(Some(*limit)),
                    Then::Window(s) => verdict.window = verdict.window.or(Some(Duration::from_secs(*s))),
                    Then::WaitIn(path, unit) | Then::HoldIn(path, unit) => {
                        let hold = matches!(then, Then::HoldIn(..));
                        for f in found.iter().filter(|f| on_path(&f.path, path)) {
                            if let Some(wait) = value::wait(f.text, *unit, &seen.clock()) {
                                seen.instruct_from_body(f, wait, hold);
                            }
                        }
                    }
                    Then::WaitAfter(words, unit) => {
                        if let Some(wait) = body::after(text, words).and_then(|t| seen.in_sentence(t, *unit))
                        {
                            seen.instruct_from_text(words, wait);
                        }
                    }
                }
            }
        }
    }
}

/// Whether a found path fits a pattern.
pub(crate) fn on_path(path: &str, pattern: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(tail) => path.strip_suffix(tail).is_some_and(|head| head.is_empty() || head.ends_with('.')),
        None => path == pattern,
    }
}

fn holds(when: &When, response: &Response<'_>, found: &[Found<'_>], text: &[u8]) -> bool {
    let header = |name: &str| response.headers.get(name).map(|v| value::trim(v.as_bytes()));
    let field = |path: &str, test: &dyn Fn(&[u8]) -> bool| {
        found.iter().any(|f| on_path(&f.path, path) && test(f.text))
    };
    match when {
        When::Status(status) => response.status == *status,
        When::HeaderIs(name, wanted) => {
            header(name).is_some_and(|v| v.eq_ignore_ascii_case(wanted.as_bytes()))
        }
        When::HeaderHas(name, part) => header(name).is_some_and(|v| body::after(v, part).is_some()),
        When::Header(name) => header(name).is_some(),
        When::NoHeader(name) => header(name).is_none(),
        When::HeaderAtLeast(name, key, least) => header(name).is_some_and(|v| {
            body::find(v, |k| k == key.as_bytes())
                .iter()
                .any(|f| value::Number::read(f.text).is_some_and(|n| n.as_f64() >= *least))
        }),
        When::Code(path, codes) => field(path, &|text| codes.iter().any(|c| c.as_bytes() == text)),
        When::Starts(path, start) => field(path, &|text| text.starts_with(start.as_bytes())),
        When::Contains(path, part) => field(path, &|text| body::after(text, part).is_some()),
        When::Text(part) => body::after(text, part).is_some(),
    }
}

/// The field that the first telling condition looked at, for the evidence.
fn mark(when: &[When], response: &Response<'_>, found: &[Found<'_>]) -> Option<(String, Vec<u8>)> {
    when.iter().find_map(|w| match w {
        When::HeaderIs(name, _)
        | When::HeaderHas(name, _)
        | When::Header(name)
        | When::HeaderAtLeast(name, ..) => {
            let value = response.headers.get(*name)?;
            Some(((*name).to_owned(), value.as_bytes().to_vec()))
        }
        When::Code(path, _) | When::Starts(path, _) | When::Contains(path, _) => {
            let f = found.iter().find(|f| on_path(&f.path, path))?;
            Some((format!("body:{}", f.path), f.text.to_vec()))
        }
        When::Text(part) => Some(("body".to_owned(), part.as_bytes().to_vec())),
        When::Status(_) | When::NoHeader(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h2_profiles_are_well_formed() {
        let names: Vec<_> = Profile::all().iter().map(Profile::name).collect();
        assert!(names.is_sorted_by(|a, b| a < b), "{names:?}");
        let lower = |s: &str| !s.bytes().any(|b| b.is_ascii_uppercase());
        let mut hosts: Vec<&str> = Vec::new();
        for profile in Profile::all() {
            assert!(profile.hosts.iter().all(|h| lower(h) && !h.ends_with('.')), "{}", profile.name);
            assert!(profile.fields.iter().all(|f| lower(f.name)), "{}", profile.name);
            let named = |w: &When| match w {
                When::HeaderIs(n, _) | When::HeaderHas(n, _) | When::HeaderAtLeast(n, ..) => Some(*n),
                When::Header(n) | When::NoHeader(n) => Some(*n),
                _ => None,
            };
            assert!(
                profile.rules.iter().flat_map(|r| r.when).filter_map(named).all(lower),
                "{}",
                profile.name
            );
            assert!(
                profile.rules.iter().all(|r| !r.when.is_empty() && !r.then.is_empty()),
                "{}",
                profile.name
            );
            hosts.extend(profile.hosts);
        }
        let count = hosts.len();
        hosts.sort_unstable();
        hosts.dedup();
        assert_eq!(hosts.len(), count, "a host with two profiles");
    }

    #[test]
    fn h2_a_host_finds_its_profile() {
        for (host, expected) in [
            ("api.github.com", Some("github")),
            ("API.GitHub.com.", Some("github")),
            ("github.com", Some("github")),
            ("notgithub.com", None),
            ("github.com.example.net", None),
            ("shop.myshopify.com", Some("shopify")),
            ("sheets.googleapis.com", Some("google")),
            ("maps.googleapis.com", Some("google-maps")),
            ("dynamodb.eu-west-1.amazonaws.com", Some("aws")),
            ("com", None),
            ("", None),
            ("caf\u{e9}.example", None),
        ] {
            assert_eq!(Profile::for_host(host).map(Profile::name), expected, "{host}");
        }
        assert!(Profile::by_name("slack").is_some_and(Profile::reads_success_bodies));
        assert!(Profile::by_name("nobody").is_none());
    }

    #[test]
    fn h2_paths_are_matched_from_the_root_or_from_anywhere() {
        assert!(on_path("error.code", "error.code"));
        assert!(!on_path("data.error.code", "error.code"));
        assert!(on_path("data.error.code", "*.error.code"));
        assert!(on_path("code", "*.code"));
        assert!(!on_path("xcode", "*.code"));
    }
}
