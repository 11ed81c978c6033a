//! From a lane to what holds for its requests: scopes, policies, headers, the profile of its service.

use std::{
    collections::HashMap,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use forbear_core::{
    evidence::Evidence,
    exit::{ExitId, Pick},
    hint::Profile,
    pace::{Rate, Rates},
    policy::{BoundScope, ItemPolicy, ScopePolicy},
    scope::{Combination, Parts, Role, Scope, ScopeKey, ScopePlan, origins_own},
};
use parking_lot::Mutex;

use super::exits::{Pool, Pools, waits_for_exits};
use crate::{
    client::Target,
    config::{CostSettings, Endpoint, HostSettings, SecretHeader, Settings},
    exit::Members,
};

/// The text that names a lane in the job: its origin, account and endpoint. Items with the same text share all scopes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct LaneParts<'a> {
    /// `scheme://host[:port]`.
    pub origin: &'a str,
    /// Whoever the credentials belong to.
    pub account: Option<&'a str>,
    /// The name of the path pattern.
    pub endpoint: Option<&'a str>,
}

impl<'a> LaneParts<'a> {
    /// The lane's text. Neither origins nor names have control characters.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = self.origin.to_owned();
        for part in [self.account, self.endpoint] {
            text.push('\t');
            text.extend(part.unwrap_or("").chars().filter(|c| !c.is_control()));
        }
        text
    }

    /// The parts of a lane's text.
    #[must_use]
    pub fn parse(text: &'a str) -> LaneParts<'a> {
        let mut parts = text.split('\t');
        let origin = parts.next().unwrap_or("");
        let mut part = || parts.next().filter(|part| !part.is_empty());
        LaneParts { origin, account: part(), endpoint: part() }
    }
}

/// Everything that holds for the requests of one lane.
pub(crate) struct Route {
    /// The text of its origin.
    pub(crate) origin: Arc<str>,
    /// Widest first; the run's own before them where it has a rate. Of the direct way: an exit has its own beside them.
    pub(crate) scopes: Arc<[BoundScope]>,
    /// The exits that it goes by; none for the direct way.
    pub(super) pool: Option<Arc<Pool>>,
    /// Where its lane waits for an exit.
    pub(super) waits_for_exits: ScopeKey,
    /// A hash of the account's name.
    pub(super) account: Option<u64>,
    parts: Box<str>,
    by_exit: Mutex<ByExit>,
    pub(crate) profile: Option<&'static Profile>,
    /// Its requests carry credentials that belong to somebody: a 401 is about those.
    pub(crate) has_account: bool,
    pub(super) headers: Vec<SecretHeader>,
    pub(super) stats: Arc<HostStats>,
    /// What its requests cost.
    pub(super) cost: CostSettings,
    /// The configured rates that a request must fit in, by whichever exit it goes.
    ceilings: Vec<Rates>,
    /// Whose the origin's limits are (L6); none where all its requests are alike.
    pub(super) evidence: Option<SharedEvidence>,
}

/// One for all lanes of an origin.
pub(super) type SharedEvidence = Arc<Mutex<Evidence>>;

/// The scopes of requests by address: an exit, or a session of a gateway.
type ByExit = HashMap<(ExitId, u64), Arc<[BoundScope]>, foldhash::fast::RandomState>;

impl std::fmt::Debug for Route {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Route").field("scopes", &self.scopes).finish_non_exhaustive()
    }
}

impl Route {
    /// The rate that a request of this cost is too large for, so that it would wait for ever.
    pub(super) fn never(&self, cost: u32) -> Option<Rate> {
        self.ceilings.iter().find_map(|rates| rates.never(cost))
    }

    /// The scopes of a request that goes by an exit, where they are at hand.
    pub(super) fn through(&self, exits: &Members, pick: &Pick) -> Option<Arc<[BoundScope]>> {
        self.by_exit.lock().get(&exits.address(pick)).cloned()
    }

    /// Keeps them at hand, once their gates are as the last run left them.
    pub(super) fn keep(&self, exits: &Members, pick: &Pick, scopes: Arc<[BoundScope]>) -> Arc<[BoundScope]> {
        let mut by_exit = self.by_exit.lock();
        if by_exit.len() >= EXITS_AT_HAND {
            by_exit.clear();
        }
        by_exit.entry(exits.address(pick)).or_insert(scopes).clone()
    }
}

/// What was seen of one origin: the row of the table at the end.
#[derive(Debug, Default)]
pub struct HostStats {
    /// Requests sent.
    pub sent: AtomicU64,
    /// Items done.
    pub done: AtomicU64,
    /// Items failed.
    pub failed: AtomicU64,
    /// Requests refused.
    pub refused: AtomicU64,
    /// Requests that failed otherwise, by no fault of their exit.
    pub faults: AtomicU64,
    /// Bytes of body received.
    pub bytes: AtomicU64,
    /// Times the origin's scopes closed.
    pub pauses: AtomicU64,
    /// Probes sent.
    pub probes: AtomicU64,
    /// What the requests have cost, as far as it is known (C1).
    pub cost: AtomicU64,
}

impl HostStats {
    pub(super) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// What holds for requests to an origin that go directly and carry no credentials: the scopes that a run would ask, each with
/// its policy, the widest first.
///
/// ```
/// let settings = forbear::config::Settings::default();
/// let scopes = forbear::engine::origin_scopes(&settings, "https://api.example.com");
/// assert_eq!(scopes.len(), 1);
/// ```
#[must_use]
pub fn origin_scopes(settings: &Settings, origin: &str) -> Arc<[BoundScope]> {
    let (host, port) = host_and_port(origin);
    let of_host = settings.for_host(host, port);
    let routes = Routes::new(Arc::new(settings.clone()), Pools::Direct);
    routes.scopes(LaneParts { origin, account: None, endpoint: None }, &of_host, None)
}

/// Makes routes, and remembers what several of them share.
pub(crate) struct Routes {
    settings: Arc<Settings>,
    pub(crate) item: ItemPolicy,
    run: Option<BoundScope>,
    pools: Pools,
    shared: Mutex<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    stats: HashMap<Arc<str>, Arc<HostStats>>,
    evidence: HashMap<Arc<str>, SharedEvidence>,
    /// Most origins are treated alike: their policies are one.
    policies: Vec<Arc<ScopePolicy>>,
}

impl Routes {
    pub(super) fn new(settings: Arc<Settings>, pools: Pools) -> Routes {
        let item = settings.item_policy();
        let run = settings.rate.map(|rate| BoundScope {
            key: ScopeKey::run(),
            by: None,
            role: Role::Run,
            policy: Arc::new(ScopePolicy { rates: rate.into(), ..unbounded(ScopePolicy::default()) }),
        });
        Routes { settings, item, run, pools, shared: Mutex::default() }
    }

    /// Routes on which nothing goes by an exit.
    pub(crate) fn direct(settings: Settings) -> Routes {
        Routes::new(Arc::new(settings), Pools::Direct)
    }

    /// The exits of the run.
    pub(super) fn pools(&self) -> &Pools {
        &self.pools
    }

    /// The route of a lane. It walks all host tables: once a lane, not once a request.
    pub(crate) fn route(&self, parts: LaneParts<'_>) -> Route {
        let (host, port) = host_and_port(parts.origin);
        let of_host = self.settings.for_host(host, port);
        let profile =
            of_host.service.as_deref().and_then(Profile::by_name).or_else(|| Profile::for_host(host));
        let (scopes, pool) = (self.scopes(parts, &of_host, None), self.pools.of(parts.origin));
        // A scope that names the exit is the same for all exits, as far as rates go.
        let by_any_exit = pool.is_some().then(|| self.scopes(parts, &of_host, Some("*")));
        let ceilings = by_any_exit.as_ref().unwrap_or(&scopes).iter();
        let ceilings = ceilings.map(|scope| scope.policy.rates).filter(|rates| !rates.is_empty()).collect();
        let hash = |name: &str| foldhash::fast::FixedState::default().hash_one(name);
        Route {
            origin: parts.origin.into(),
            scopes,
            pool,
            ceilings,
            cost: self.settings.cost.under(&of_host.cost),
            waits_for_exits: waits_for_exits(parts.origin),
            account: parts.account.map(hash),
            parts: parts.text().into(),
            by_exit: Mutex::default(),
            profile,
            has_account: parts.account.is_some(),
            headers: of_host.headers,
            stats: self.stats(parts.origin),
            evidence: self.evidence(parts),
        }
    }

    /// The scopes of a route's request that goes by an exit, put together anew.
    pub(super) fn through(&self, route: &Route, exits: &Members, pick: &Pick) -> Arc<[BoundScope]> {
        let parts = LaneParts::parse(&route.parts);
        let (host, port) = host_and_port(parts.origin);
        self.scopes(parts, &self.settings.for_host(host, port), Some(&exits.scope_name(pick)))
    }

    /// The scopes of a lane's requests through an exit of this name, or on the direct way.
    pub(super) fn scopes(
        &self,
        parts: LaneParts<'_>,
        of_host: &HostSettings,
        exit: Option<&str>,
    ) -> Arc<[BoundScope]> {
        let (host, port) = host_and_port(parts.origin);
        let endpoint = parts.endpoint.and_then(|name| of_host.endpoint_named(name));
        let plan = ScopePlan::new(of_host.scope.clone().unwrap_or_else(|| self.settings.scope.clone()));
        let group = self.settings.group_of(host, port).map(|group| group.name.as_str());
        let (origin, account) = (parts.origin, parts.account);
        let scopes = plan.scopes(&Parts { origin, account, endpoint: parts.endpoint, group, exit });
        let of_the_host = origins_own(&scopes);
        let bound = scopes.into_iter().enumerate().map(|(i, scope)| {
            let policy = self.policy(of_host, endpoint, &scope, of_the_host == Some(i));
            BoundScope { key: scope.key, by: scope.by, role: scope.role, policy }
        });
        self.run.clone().into_iter().chain(bound).collect()
    }

    /// The name of the endpoint that a target belongs to: the item's own word, else the first pattern that matches.
    pub(crate) fn endpoint(&self, target: &Target, given: Option<&str>) -> Option<String> {
        if let Some(given) = given {
            return Some(given.to_owned());
        }
        let (host, port) = host_and_port(target.origin());
        let of_host = self.settings.for_host(host, port);
        let path = target.path_and_query();
        of_host.endpoint_of(path.path()).map(|endpoint| endpoint.name.clone())
    }

    /// The headers that a host's table adds to every request there.
    pub(super) fn headers(&self, origin: &str) -> Vec<SecretHeader> {
        let (host, port) = host_and_port(origin);
        self.settings.for_host(host, port).headers
    }

    /// How what requests to an origin cost is reckoned.
    pub(super) fn cost(&self, origin: &str) -> CostSettings {
        let (host, port) = host_and_port(origin);
        self.settings.cost.under(&self.settings.for_host(host, port).cost)
    }

    /// What was seen of each origin so far.
    pub(super) fn all_stats(&self) -> Vec<(Arc<str>, Arc<HostStats>)> {
        self.shared.lock().stats.iter().map(|(origin, stats)| (origin.clone(), stats.clone())).collect()
    }

    /// The evidence of each origin that has any.
    pub(super) fn all_evidence(&self) -> Vec<(Arc<str>, SharedEvidence)> {
        let shared = self.shared.lock();
        shared.evidence.iter().map(|(origin, evidence)| (origin.clone(), evidence.clone())).collect()
    }

    fn policy(
        &self,
        host: &HostSettings,
        endpoint: Option<&Endpoint>,
        scope: &Scope,
        of_the_host: bool,
    ) -> Arc<ScopePolicy> {
        let s = &self.settings;
        let by = scope.by.unwrap_or(Combination::ORIGIN);
        let (rate, concurrency) = match scope.role {
            Role::Exit => (None, s.exits.concurrency),
            Role::Behind | Role::Run => (None, None),
            Role::Planned if by.endpoint => {
                (endpoint.and_then(|e| e.rate), endpoint.and_then(|e| e.concurrency))
            }
            Role::Planned if of_the_host => (host.rate, host.concurrency.or(s.host_concurrency)),
            Role::Planned => (None, None),
        };
        let mut policy = s.scope_policy(rate, concurrency);
        // What a configured number bounds, or an origin, starts small; the others follow from the origins below them.
        if scope.role == Role::Exit || (!of_the_host && concurrency.is_none()) {
            policy = policy.beside(scope.role);
        }
        let mut shared = self.shared.lock();
        if let Some(same) = shared.policies.iter().find(|known| ***known == policy) {
            return same.clone();
        }
        let policy = Arc::new(policy);
        if shared.policies.len() < POLICIES_SHARED {
            shared.policies.push(policy.clone());
        }
        policy
    }

    fn evidence(&self, parts: LaneParts<'_>) -> Option<SharedEvidence> {
        let pool = self.pools.of(parts.origin);
        if parts.account.is_none() && parts.endpoint.is_none() && pool.is_none() {
            return None;
        }
        let mut shared = self.shared.lock();
        if let Some(evidence) = shared.evidence.get(parts.origin) {
            return Some(evidence.clone());
        }
        // Of origins beyond these nothing is found out: their refusals fall on the origin.
        (shared.evidence.len() < HOSTS_APART)
            .then(|| shared.evidence.entry(parts.origin.into()).or_default().clone())
    }

    fn stats(&self, origin: &str) -> Arc<HostStats> {
        let mut shared = self.shared.lock();
        if let Some(stats) = shared.stats.get(origin) {
            return stats.clone();
        }
        let name: Arc<str> = if shared.stats.len() < HOSTS_APART { origin.into() } else { OTHERS.into() };
        shared.stats.entry(name).or_default().clone()
    }
}

/// A policy that bounds nothing but what is written in it.
fn unbounded(policy: ScopePolicy) -> ScopePolicy {
    ScopePolicy { learn: false, concurrency_start: u32::MAX, concurrency_max: u32::MAX, ..policy }
}

/// Host and port of an origin's text.
pub(super) fn host_and_port(origin: &str) -> (&str, u16) {
    let (scheme, authority) = origin.split_once("://").unwrap_or(("http", origin));
    let default = if scheme == "https" { 443 } else { 80 };
    match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().unwrap_or(default)),
        _ => (authority, default),
    }
}

/// Origins with a row of their own; what comes after them is counted together.
const HOSTS_APART: usize = 10_000;
const OTHERS: &str = "(other hosts)";
/// Exits whose scopes a route keeps at hand; those of others are put together anew.
const EXITS_AT_HAND: usize = 1024;
/// Different policies that are looked through for an equal one; beyond it each route has its own.
const POLICIES_SHARED: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_are_named_by_their_parts() {
        for parts in [
            LaneParts { origin: "http://a", account: None, endpoint: None },
            LaneParts { origin: "http://a:81", account: Some("k"), endpoint: None },
            LaneParts { origin: "https://a", account: None, endpoint: Some("/v1/*") },
            LaneParts { origin: "https://a", account: Some("~ab"), endpoint: Some("search") },
        ] {
            assert_eq!(LaneParts::parse(&parts.text()), parts);
        }
        let odd = LaneParts { origin: "http://a", account: Some("x\ty\n"), endpoint: None };
        assert_eq!(LaneParts::parse(&odd.text()).account, Some("xy"));
    }

    #[test]
    fn c1_rates_belong_to_the_scope_that_names_them() {
        let mut settings = Settings::default();
        let rate = "5/s".parse().unwrap();
        settings
            .hosts
            .push(("a".parse().unwrap(), HostSettings { rate: Some(rate), ..HostSettings::default() }));
        settings.rate = Some("100/s".parse().unwrap());
        let routes = Routes::new(Arc::new(settings), Pools::Direct);
        let route = routes.route(LaneParts { origin: "http://a:81", account: Some("k"), endpoint: None });
        let names: Vec<&str> = route.scopes.iter().map(|s| s.key.as_str()).collect();
        assert_eq!(names, ["run", "http://a:81", "http://a:81 account=k"]);
        let rates: Vec<bool> = route.scopes.iter().map(|s| !s.policy.rates.is_empty()).collect();
        assert_eq!(rates, [true, true, false]);
    }

    #[test]
    fn s2_host_and_port_of_an_origin() {
        for (origin, expected) in [
            ("http://a", ("a", 80)),
            ("https://a", ("a", 443)),
            ("http://a:8080", ("a", 8080)),
            ("http://[::1]", ("[::1]", 80)),
            ("https://[::1]:9", ("[::1]", 9)),
        ] {
            assert_eq!(host_and_port(origin), expected);
        }
    }
}
