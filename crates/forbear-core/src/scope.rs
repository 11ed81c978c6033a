//! What one limit counts: origins, and origins with an account, an endpoint, an exit or a group (S1-S3, S5).
//!
//! A request belongs to several scopes at once. [`ScopePlan`] says which, from the widest to the narrowest; the first is
//! the one that an unexplained refusal falls on (S3).

use std::{fmt, str::FromStr, sync::Arc};

use crate::hint::ScopeHint;

/// More scopes than this a request cannot have: the run's, its exit's own, the origin behind a plan that narrows to the
/// exit, and one for each of the combinations of a policy.
pub const MAX_SCOPES: usize = 8;
/// More combinations than this a policy cannot name.
pub const MAX_COMBINATIONS: usize = MAX_SCOPES - 3;

/// The canonical name of a scope, as shown to people and as kept by the stores.
///
/// Built by [`ScopePlan::scopes`] alone, from parts that are canonical already (S2): an origin has a lower-case host
/// without trailing dot and always a port, an account is a given name or a keyed hash, never a credential (K1).
#[derive(Clone, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ScopeKey(Arc<str>);

impl ScopeKey {
    /// A key from its text, as a store has kept it.
    #[must_use]
    pub fn from_text(text: &str) -> ScopeKey {
        ScopeKey(text.into())
    }

    /// The scope of everything that one run sends: it bears the configured total rate, and no refusal ever falls on it.
    #[must_use]
    pub fn run() -> ScopeKey {
        ScopeKey("run".into())
    }

    /// The text of the key.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it counts by exit, so that a request has it only once its exit is chosen.
    #[must_use]
    pub fn is_by_exit(&self) -> bool {
        // The last part, and no exit's name has a space.
        self.0.rsplit(' ').next().is_some_and(|part| part.starts_with(EXIT))
    }
}

impl From<&ScopeKey> for ScopeKey {
    fn from(key: &ScopeKey) -> ScopeKey {
        key.clone()
    }
}

impl fmt::Display for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for ScopeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ScopeKey({})", self.0)
    }
}

/// What the name of an exit stands behind in a key.
const EXIT: &str = "exit=";

/// What a request is about, as far as limits can count it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Parts<'a> {
    /// `scheme://host:port`, canonical.
    pub origin: &'a str,
    /// The name or keyed hash of whoever the credentials belong to.
    pub account: Option<&'a str>,
    /// The name of the path pattern.
    pub endpoint: Option<&'a str>,
    /// The name of the group of origins that share one limit.
    pub group: Option<&'a str>,
    /// The name of the exit, without its credentials; none for the direct way.
    pub exit: Option<&'a str>,
}

/// One combination of parts that a limit counts by, such as `origin+endpoint`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Combination {
    /// By origin.
    pub origin: bool,
    /// By account.
    pub account: bool,
    /// By endpoint.
    pub endpoint: bool,
    /// By group.
    pub group: bool,
    /// By exit.
    pub exit: bool,
}

impl Combination {
    const NOTHING: Combination =
        Combination { origin: false, account: false, endpoint: false, group: false, exit: false };
    /// Every request to one origin.
    pub const ORIGIN: Combination = Combination { origin: true, ..Combination::NOTHING };
    /// Every request to one group of origins.
    pub const GROUP: Combination = Combination { group: true, ..Combination::NOTHING };
    /// Every request through one exit, to whatever origin.
    pub const EXIT: Combination = Combination { exit: true, ..Combination::NOTHING };
    /// Every request through one exit to one origin.
    pub const ORIGIN_EXIT: Combination = Combination { exit: true, ..Combination::ORIGIN };
    /// Every request of one account to one origin.
    pub const ORIGIN_ACCOUNT: Combination = Combination { account: true, ..Combination::ORIGIN };
    /// Every request to one endpoint of one origin.
    pub const ORIGIN_ENDPOINT: Combination = Combination { endpoint: true, ..Combination::ORIGIN };

    fn key(&self, parts: &Parts<'_>) -> Option<ScopeKey> {
        let mut text = String::new();
        let mut part = |wanted: bool, label: &str, value: Option<&str>| {
            if wanted {
                let value = value?;
                if !text.is_empty() {
                    text.push(' ');
                }
                text.push_str(label);
                text.push_str(value);
            }
            Some(())
        };
        part(self.group, "group=", parts.group)?;
        part(self.origin, "", Some(parts.origin))?;
        part(self.account, "account=", parts.account)?;
        part(self.endpoint, "endpoint=", parts.endpoint)?;
        part(self.exit, EXIT, parts.exit)?;
        Some(ScopeKey(text.into()))
    }

    fn narrowness(&self) -> u8 {
        // What counts over all origins is wider than an origin; what an origin is split by is narrower.
        u8::from(self.origin) * 2
            + u8::from(self.account)
            + u8::from(self.endpoint) * 2
            + u8::from(self.exit) * 3
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = [
            (self.group, "group"),
            (self.origin, "origin"),
            (self.account, "account"),
            (self.endpoint, "endpoint"),
            (self.exit, "exit"),
        ];
        let words: Vec<&str> = words.iter().filter(|(on, _)| *on).map(|(_, word)| *word).collect();
        f.write_str(&words.join("+"))
    }
}

/// Why a text is no combination of scopes.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CombinationError {
    /// A word that names no part.
    #[error("`{0}` is no part of a scope; use origin, account, endpoint, exit or group, joined by `+`")]
    Word(String),
    /// The same part twice, or nothing at all.
    #[error("a scope names each of origin, account, endpoint, exit and group at most once, and at least one")]
    Count,
    /// A path pattern says nothing without its origin.
    #[error("`endpoint` belongs to an origin: write `origin+endpoint`")]
    EndpointAlone,
}

impl FromStr for Combination {
    type Err = CombinationError;

    fn from_str(text: &str) -> Result<Combination, CombinationError> {
        let mut c = Combination::NOTHING;
        for word in text.split('+').map(str::trim) {
            let slot = match word {
                "origin" => &mut c.origin,
                "account" => &mut c.account,
                "endpoint" => &mut c.endpoint,
                "group" => &mut c.group,
                "exit" => &mut c.exit,
                "" => return Err(CombinationError::Count),
                other => return Err(CombinationError::Word(other.chars().take(40).collect())),
            };
            if std::mem::replace(slot, true) {
                return Err(CombinationError::Count);
            }
        }
        if c.endpoint && !c.origin {
            return Err(CombinationError::EndpointAlone);
        }
        Ok(c)
    }
}

/// Which scopes a policy lets a request belong to.
///
/// ```
/// use forbear_core::scope::{Parts, ScopePlan};
/// let plan = ScopePlan::default();
/// let parts = Parts { origin: "https://api.example:443", account: Some("k1"), ..Parts::default() };
/// let keys: Vec<String> = plan.scopes(&parts).iter().map(|s| s.key.to_string()).collect();
/// assert_eq!(keys, ["https://api.example:443", "https://api.example:443 account=k1"]);
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ScopePlan(Vec<Combination>);

/// A scope of a request, with what it counts by.
#[derive(Clone, Debug)]
pub struct Scope {
    /// Its name.
    pub key: ScopeKey,
    /// What it counts by; none for the run's own scope.
    pub by: Option<Combination>,
    /// Which refusals fall on it.
    pub role: Role,
}

/// Which refusals fall on a scope.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Role {
    /// Those that the plan gives it (S3).
    #[default]
    Planned,
    /// The origin behind a plan that narrows to the exit: those of a limit that a second exit met while the first one
    /// was still paused, and that therefore is not the exit's.
    Behind,
    /// An exit's own: only what the exit itself answers.
    Exit,
    /// The run's own: none.
    Run,
}

impl Default for ScopePlan {
    /// The origin, and the origin with account, endpoint or exit where a request has one.
    fn default() -> ScopePlan {
        ScopePlan(vec![
            Combination::ORIGIN,
            Combination::ORIGIN_ACCOUNT,
            Combination::ORIGIN_ENDPOINT,
            Combination::ORIGIN_EXIT,
        ])
    }
}

impl ScopePlan {
    /// A plan of these combinations; the origin alone if there are none. At most
    /// [`MAX_COMBINATIONS`] are kept, the widest.
    #[must_use]
    pub fn new(mut combinations: Vec<Combination>) -> ScopePlan {
        combinations.sort_by_key(Combination::narrowness);
        combinations.dedup();
        combinations.truncate(MAX_COMBINATIONS);
        if combinations.is_empty() {
            combinations.push(Combination::ORIGIN);
        }
        ScopePlan(combinations)
    }

    /// The scopes of a request, widest first, never none: where no combination applies (an account plan, and a request
    /// without one) it is the origin's.
    ///
    /// Through an exit there are more. The exit's own scope bears what the exit itself answers. And where the plan has
    /// nothing wider than the exit at the origin, the origin stands behind it, for the limit that turns out not to be the
    /// exit's (S5).
    #[must_use]
    pub fn scopes(&self, parts: &Parts<'_>) -> Vec<Scope> {
        let scope = |by: Combination, role| Some(Scope { key: by.key(parts)?, by: Some(by), role });
        let mut scopes: Vec<Scope> = self.0.iter().filter_map(|by| scope(*by, Role::Planned)).collect();
        if scopes.is_empty() {
            scopes.extend(scope(Combination::ORIGIN, Role::Planned));
        }
        if parts.exit.is_some() {
            if scopes.iter().all(|scope| scope.by.is_some_and(|by| by.exit)) {
                scopes.splice(0..0, scope(Combination::ORIGIN, Role::Behind));
            }
            if !self.0.contains(&Combination::EXIT) {
                scopes.extend(scope(Combination::EXIT, Role::Exit));
            }
        }
        scopes
    }
}

/// Which of a request's scopes an origin's own rate and concurrency are meant for: what the plan counts at the origin,
/// whoever asks. For a plan that counts by exit that is each exit.
///
/// ```
/// use forbear_core::scope::{Combination, Parts, ScopePlan, origins_own};
/// let parts = Parts { origin: "http://a:80", exit: Some("http://p:1"), ..Parts::default() };
/// let scopes = ScopePlan::new(vec![Combination::ORIGIN_EXIT]).scopes(&parts);
/// let own = origins_own(&scopes).unwrap();
/// assert_eq!(scopes[own].key.as_str(), "http://a:80 exit=http://p:1");
/// ```
#[must_use]
pub fn origins_own(scopes: &[Scope]) -> Option<usize> {
    let find = |wanted: &dyn Fn(&Combination) -> bool| {
        scopes.iter().position(|s| s.role == Role::Planned && s.by.as_ref().is_some_and(wanted))
    };
    let plain = |by: &Combination| !by.account && !by.endpoint && !by.group;
    find(&|by| plain(by) && by.origin && !by.exit).or_else(|| find(&|by| plain(by)))
}

/// What is known about whom a refusal concerns.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Blame {
    /// What the response names.
    pub named: Option<ScopeHint>,
    /// What evidence has found the limits of this origin to count by (L6).
    pub narrowed: Option<Combination>,
    /// Another exit was refused by the same origin meanwhile: it is not this exit's limit.
    pub not_the_exits: bool,
    /// The exit itself has answered.
    pub by_exit: bool,
}

/// Which of a request's scopes a refusal falls on: the one that the response names, else the one that evidence has found
/// (L6), else the widest that the plan gives it to (S3, B2). The run's own scope is never blamed.
#[must_use]
pub fn blamed<'a>(
    scopes: impl ExactSizeIterator<Item = (Option<&'a Combination>, Role)> + Clone,
    blame: Blame,
) -> usize {
    let find = |wanted: &dyn Fn(&Combination, Role) -> bool| {
        scopes.clone().position(|(by, role)| by.is_some_and(|by| wanted(by, role)))
    };
    let planned = |role: Role| role == Role::Planned;
    let widest = || {
        let wide = blame.not_the_exits.then(|| find(&|by, role| role != Role::Exit && !by.exit)).flatten();
        wide.or_else(|| find(&|_, role| planned(role))).unwrap_or(0)
    };
    let narrowed = || {
        let by = blame.narrowed.filter(|by| !(by.exit && blame.not_the_exits))?;
        find(&|other, role| planned(role) && *other == by)
    };
    if blame.by_exit {
        return find(&|by, _| *by == Combination::EXIT).unwrap_or_else(widest);
    }
    let named = match blame.named {
        Some(ScopeHint::Endpoint) => find(&|by, role| planned(role) && by.endpoint),
        Some(ScopeHint::Account) => find(&|by, role| planned(role) && by.account && !by.endpoint),
        // It is told to be everyone's: no exit is spared (S5).
        Some(ScopeHint::Global | ScopeHint::Service) => find(&|by, role| role != Role::Exit && !by.exit),
        // The address that it counts is the exit's.
        Some(ScopeHint::Ip) => find(&|by, role| planned(role) && by.exit),
        Some(ScopeHint::App) => None,
        None => narrowed(),
    };
    named.unwrap_or_else(widest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(plan: &[&str], parts: Parts<'_>) -> Vec<String> {
        let plan = ScopePlan::new(plan.iter().map(|c| c.parse().unwrap()).collect());
        plan.scopes(&parts).iter().map(|s| s.key.to_string()).collect()
    }

    #[test]
    fn s1_a_request_has_several_scopes_widest_first() {
        let parts = Parts {
            origin: "http://a:80",
            account: Some("k"),
            endpoint: Some("search"),
            group: Some("shop"),
            exit: None,
        };
        for (plan, expected) in [
            (vec!["origin"], vec!["http://a:80"]),
            (vec!["origin+endpoint", "origin"], vec!["http://a:80", "http://a:80 endpoint=search"]),
            (vec!["account"], vec!["account=k"]),
            (vec!["origin", "group"], vec!["group=shop", "http://a:80"]),
            (vec!["origin+account+endpoint"], vec!["http://a:80 account=k endpoint=search"]),
            (vec![], vec!["http://a:80"]),
        ] {
            assert_eq!(keys(&plan, parts), expected);
        }
        let bare = Parts { origin: "http://a:80", ..Parts::default() };
        assert_eq!(keys(&["account"], bare), ["http://a:80"], "nobody is without a scope");
    }

    #[test]
    fn s1_a_key_tells_whether_it_counts_by_exit() {
        for (key, by_exit) in [
            ("exit=http://p:1", true),
            ("http://a:80 exit=http://p:1#2~7", true),
            ("http://a:80 account=k exit=socks5://[::1]:1080", true),
            ("http://a:80", false),
            ("http://a:80 endpoint=/way?exit=1", false),
            ("account=exit=", false),
            ("run", false),
        ] {
            assert_eq!(ScopeKey::from_text(key).is_by_exit(), by_exit, "{key}");
        }
    }

    #[test]
    fn s3_a_limit_of_unknown_scope_falls_on_the_widest() {
        let scopes = [
            (None, Role::Run),
            (Some(Combination::ORIGIN), Role::Planned),
            (Some(Combination::ORIGIN_ACCOUNT), Role::Planned),
            (Some(Combination::ORIGIN_ENDPOINT), Role::Planned),
        ];
        let blamed = |named| {
            let scopes = scopes.iter().map(|(by, role)| (by.as_ref(), *role));
            blamed(scopes, Blame { named, ..Blame::default() })
        };
        for (named, expected) in [
            (None, 1),
            (Some(ScopeHint::Account), 2),
            (Some(ScopeHint::Endpoint), 3),
            (Some(ScopeHint::Global), 1),
            (Some(ScopeHint::Service), 1),
        ] {
            assert_eq!(blamed(named), expected, "{named:?}");
        }
    }

    #[test]
    fn l6_evidence_narrows_what_the_server_does_not_name() {
        let parts = Parts {
            origin: "http://a:80",
            account: Some("k"),
            endpoint: Some("s"),
            exit: Some("p"),
            ..Parts::default()
        };
        let scopes = ScopePlan::default().scopes(&parts);
        let fell = |blame: Blame| {
            scopes[blamed(scopes.iter().map(|s| (s.by.as_ref(), s.role)), blame)].by.unwrap().to_string()
        };
        let (account, exit) = (Some(Combination::ORIGIN_ACCOUNT), Some(Combination::ORIGIN_EXIT));
        let endpoint = Some(ScopeHint::Endpoint);
        for (blame, expected) in [
            (Blame { narrowed: account, ..Blame::default() }, "origin+account"),
            (Blame { narrowed: account, named: endpoint, ..Blame::default() }, "origin+endpoint"),
            (Blame { narrowed: account, named: Some(ScopeHint::Global), ..Blame::default() }, "origin"),
            (Blame { narrowed: account, by_exit: true, ..Blame::default() }, "exit"),
            (Blame { narrowed: exit, ..Blame::default() }, "origin+exit"),
            (Blame { narrowed: exit, not_the_exits: true, ..Blame::default() }, "origin"),
        ] {
            assert_eq!(fell(blame), expected, "{blame:?}");
        }
        let bare = Parts { origin: "http://a:80", ..Parts::default() };
        let scopes = ScopePlan::default().scopes(&bare);
        let blame = Blame { narrowed: account, ..Blame::default() };
        let fell = blamed(scopes.iter().map(|s| (s.by.as_ref(), s.role)), blame);
        assert_eq!(fell, 0, "a request without an account falls on the origin");
    }

    #[test]
    fn s5_a_refusal_is_the_exits_only_where_the_plan_says_so() {
        let parts = Parts { origin: "http://a:80", exit: Some("http://p:1"), ..Parts::default() };
        let with = |plan: &[&str], blame: Blame| {
            let scopes = ScopePlan::new(plan.iter().map(|c| c.parse().unwrap()).collect()).scopes(&parts);
            let of = blamed(scopes.iter().map(|s| (s.by.as_ref(), s.role)), blame);
            scopes[of].key.to_string()
        };
        let (plain, widened) = (Blame::default(), Blame { not_the_exits: true, ..Blame::default() });
        let by_exit = Blame { by_exit: true, ..Blame::default() };
        let global = Blame { named: Some(ScopeHint::Global), ..Blame::default() };
        let endpoint = Blame { named: Some(ScopeHint::Endpoint), ..Blame::default() };
        let (origin, pair, exit) = ("http://a:80", "http://a:80 exit=http://p:1", "exit=http://p:1");
        for (plan, blame, expected) in [
            (&["origin", "origin+exit"][..], plain, origin),
            (&["origin", "origin+exit"], by_exit, exit),
            (&["origin+exit"], plain, pair),
            (&["origin+exit"], widened, origin),
            (&["origin+exit"], global, origin),
            (&["origin+exit"], endpoint, pair),
            (&["origin+exit"], by_exit, exit),
            (&["exit"], plain, exit),
            (&["exit"], widened, origin),
        ] {
            assert_eq!(with(plan, blame), expected, "{plan:?} {blame:?}");
        }
    }

    #[test]
    fn s2_combinations_are_read_strictly() {
        for text in ["", "origin+", "origin+origin", "host", "endpoint", "account+endpoint"] {
            assert!(text.parse::<Combination>().is_err(), "{text}");
        }
        assert_eq!("endpoint + origin".parse::<Combination>().unwrap().to_string(), "origin+endpoint");
    }
}
