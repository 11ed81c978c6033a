//! `fetch --plan`: what a run would do, and how long it would take at least; nothing is sent.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use forbear_core::{
    pace::Rates,
    scope::{Role, ScopeKey},
};

use super::{
    exits::Pools,
    route::{LaneParts, Routes, host_and_port},
};
use crate::{
    client::Target,
    config::{ExitSettings, Settings},
    cost::estimate,
    input::{ImportError, Line, Source, scan},
    secrets::Accounts,
};

/// What a run would do.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Lines that are items.
    pub items: u64,
    /// Lines that are none.
    pub bad: u64,
    /// How many exits requests would go by; 0 where all go directly.
    pub exits: usize,
    /// The hosts, the slowest first.
    pub hosts: Vec<PlannedHost>,
    /// The least time by the configured rates; none where no rate bounds it.
    pub least: Option<Duration>,
}

/// The items of one host.
#[derive(Clone, Debug)]
pub struct PlannedHost {
    /// Its origin.
    pub origin: String,
    /// How many.
    pub items: u64,
    /// What they are taken to cost together (C1): as many where nothing else is said.
    pub cost: u64,
    /// The scopes that they count for; one that each exit has for itself stands here once, with `*` for the exit.
    pub scopes: Vec<String>,
    /// The configured rates: its own, then those of its endpoints that have items.
    pub rate: Option<String>,
    /// The least time by these rates, the slowest of them.
    pub least: Option<Duration>,
}

/// Reads the whole input, and sends nothing.
///
/// # Errors
/// When the input cannot be read.
pub fn plan(settings: &Settings, source: &Source) -> Result<Plan, ImportError> {
    let settings = Arc::new(settings.clone());
    let routes = Routes::new(settings.clone(), Pools::Direct);
    let accounts = Accounts::new([0; 32], &settings.secrets);
    let mut lanes: BTreeMap<String, Work> = BTreeMap::new();
    let (mut items, mut bad) = (0u64, 0u64);
    scan(source, |_, line| match line {
        Line::Nothing => {}
        Line::Bad(_) => bad += 1,
        Line::Item(item) => {
            items += 1;
            let request = &item.request;
            let of_host = routes.headers(item.target.origin());
            let account = accounts.of(request.account.as_deref(), &request.url, &request.headers, &of_host);
            let endpoint = routes.endpoint(&item.target, request.endpoint.as_deref());
            let origin = item.target.origin();
            let parts = LaneParts { origin, account: account.as_deref(), endpoint: endpoint.as_deref() };
            let rules = routes.cost(item.target.origin());
            lanes.entry(parts.text()).or_default().add(Work::of(estimate(&rules, request, true)));
        }
    })?;
    let mut hosts: BTreeMap<String, PlannedHost> = BTreeMap::new();
    // What each scope with rates has to start: the same scopes and rates that the gates of a run have.
    let mut paced: BTreeMap<ScopeKey, Paced> = BTreeMap::new();
    let mut exits = 0;
    // Lanes of several accounts have the same endpoints.
    let mut endpoints = BTreeSet::new();
    for (text, work) in &lanes {
        let parts = LaneParts::parse(text);
        let (name, port) = host_and_port(parts.origin);
        let of_host = settings.for_host(name, port);
        let host = hosts.entry(parts.origin.to_owned()).or_insert_with(|| PlannedHost {
            origin: parts.origin.to_owned(),
            items: 0,
            cost: 0,
            scopes: Vec::new(),
            rate: of_host.rate.map(|rates| rates.to_string()),
            least: None,
        });
        host.items += work.items;
        host.cost += work.cost;
        let by = exits_for(&settings.exits, parts.origin);
        exits = exits.max(by.map_or(0, |by| by.all));
        let scopes = routes.scopes(parts, &of_host, by.map(|_| "*"));
        // The others of a request with an exit have no rates, and nothing falls on them by the plan.
        for scope in scopes.iter().filter(|scope| matches!(scope.role, Role::Planned | Role::Run)) {
            let shown = scope.key.to_string();
            if !host.scopes.contains(&shown) {
                host.scopes.push(shown);
            }
            let rates = scope.policy.rates;
            if rates.is_empty() {
                continue;
            }
            let share = match by.filter(|_| scope.key.is_by_exit()) {
                None => 1,
                Some(Exits { addresses: Some(n), .. }) => n,
                // There are always more addresses: such a rate takes no time.
                Some(_) => continue,
            };
            let paced = paced.entry(scope.key.clone()).or_insert((Work::default(), share, rates));
            paced.0.add(*work);
            // What all hosts share is no host's own time.
            if scope.by.is_some() {
                host.least = host.least.max(Some(least_time(*paced)));
            }
        }
        let endpoint = parts.endpoint.and_then(|name| of_host.endpoint_named(name));
        if let Some((name, rates)) = endpoint.and_then(|e| Some((&e.name, e.rate?)))
            && endpoints.insert((parts.origin, parts.endpoint))
        {
            let shown = host.rate.get_or_insert_default();
            let between = if shown.is_empty() { "" } else { "; " };
            shown.push_str(&format!("{between}{name}: {rates}"));
        }
    }
    let mut hosts: Vec<PlannedHost> = hosts.into_values().collect();
    hosts.sort_by(|a, b| b.least.cmp(&a.least).then(b.items.cmp(&a.items)));
    let least = paced.into_values().map(least_time).max();
    Ok(Plan { items, bad, exits, hosts, least })
}

/// Items, what they are taken to cost together, and the most that one of them does.
#[derive(Clone, Copy, Default)]
struct Work {
    items: u64,
    cost: u64,
    largest: u32,
}

impl Work {
    fn of(cost: u32) -> Work {
        Work { items: 1, cost: cost.into(), largest: cost }
    }

    fn add(&mut self, other: Work) {
        self.items += other.items;
        self.cost += other.cost;
        self.largest = self.largest.max(other.largest);
    }
}

/// Starts of a scope, among how many exits that have it each for itself, and its rates.
type Paced = (Work, u64, Rates);

/// The exits share the work evenly, at best.
fn least_time((work, exits, rates): Paced) -> Duration {
    rates.least_time(work.items.div_ceil(exits), work.cost.div_ceil(exits), work.largest)
}

/// The exits of an origin.
#[derive(Clone, Copy, Debug)]
struct Exits {
    all: usize,
    /// How many addresses they are; none where one of them is a gateway, each session of which is one.
    addresses: Option<u64>,
}

/// By how many exits requests to an origin go; none for the direct way.
fn exits_for(exits: &ExitSettings, origin: &str) -> Option<Exits> {
    if !exits.list.is_empty() {
        let (all, gateway) = (exits.list.len(), exits.list.iter().any(|exit| exit.gateway));
        return Some(Exits { all, addresses: (!gateway).then_some(all as u64) });
    }
    let target = Target::parse(origin).ok()?;
    exits.environment.for_target(&target).map(|_| Exits { all: 1, addresses: Some(1) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::Sources;

    /// The plan of these lines, under this configuration.
    fn plan_of(config: &str, lines: &[&str]) -> Plan {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("forbear.toml"), config).unwrap();
        let input = dir.path().join("urls.txt");
        fs::write(&input, lines.join("\n")).unwrap();
        let sources = Sources { beside: Some(dir.path().to_owned()), ..Sources::default() };
        plan(&sources.load().unwrap().settings, &Source::named(input)).unwrap()
    }

    #[test]
    fn the_least_time_is_that_of_the_slowest_rate() {
        let pages: Vec<String> = (0..21).map(|page| format!("http://a.example/{page}")).collect();
        let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
        for (config, rate, of_host, of_all) in [
            ("", None, None, None),
            ("hosts.a.rate = '1/s'", None, None, None),
            ("hosts.'*'.rate = '10/s'", Some("10/s"), Some(2000), Some(2000)),
            ("hosts.'*'.rate = '10/s burst 6'", Some("10/s burst 6"), Some(3000), Some(3000)),
            ("hosts.'*'.rate = '10/s, 60/min'", Some("10/s, 60/min"), Some(20_000), Some(20_000)),
            ("hosts.'*'.rate = ['60/min', '10/s']", Some("60/min, 10/s"), Some(20_000), Some(20_000)),
            ("hosts.'*'.rate = '10/s, 100/h burst 41'", Some("10/s, 100/h burst 41"), Some(2000), Some(2000)),
            ("rate = '5/s, 60/min burst 20'", None, None, Some(4000)),
            ("rate = '5/s, 60/min'\nhosts.'*'.rate = '10/s'", Some("10/s"), Some(2000), Some(20_000)),
        ] {
            let plan = plan_of(config, &pages);
            let host = &plan.hosts[0];
            assert_eq!((plan.items, plan.hosts.len(), host.items), (21, 1, 21), "{config}");
            assert_eq!(host.rate.as_deref(), rate, "{config}");
            assert_eq!(host.least, of_host.map(Duration::from_millis), "{config}");
            assert_eq!(plan.least, of_all.map(Duration::from_millis), "{config}");
        }
    }

    #[test]
    fn c1_a_rate_that_counts_by_exit_is_shared_by_the_exits() {
        let pages: Vec<String> = (0..81).map(|page| format!("http://a.example/{page}")).collect();
        let pages: Vec<&str> = pages.iter().map(String::as_str).collect();
        let list = |n: u32, word: &str| {
            let exits: Vec<String> = (1..=n).map(|i| format!("{{ url = 'http://p{i}'{word} }}")).collect();
            format!("[exits]\nlist = [{}]\n[hosts.'*']\nrate = '5/s'\n", exits.join(", "))
        };
        let (plain, gateways) = (list(8, ""), list(8, ", gateway = true"));
        let by_exit = |rest: &str| format!("scope = ['origin+exit']\n{rest}");
        let run = |rest: &str| format!("rate = '10/s'\n{rest}");
        let (all, each) = ("http://a.example", "http://a.example exit=*");
        for (config, scopes, of_host, of_all) in [
            (plain.clone(), &[all, each][..], Some(16), Some(16)),
            (by_exit(&plain), &[each], Some(2), Some(2)),
            (by_exit(&list(1, "")), &[each], Some(16), Some(16)),
            (run(&by_exit(&plain)), &["run", each], Some(2), Some(8)),
            (by_exit(&gateways), &[each], None, None),
            (gateways, &[all, each], Some(16), Some(16)),
            (by_exit("hosts.'*'.rate = '5/s'"), &[all], Some(16), Some(16)),
        ] {
            let plan = plan_of(&config, &pages);
            assert_eq!(plan.exits, config.matches("http://p").count(), "{config}");
            assert_eq!(plan.hosts[0].scopes, scopes, "{config}");
            assert_eq!(plan.hosts[0].least, of_host.map(Duration::from_secs), "{config}");
            assert_eq!(plan.least, of_all.map(Duration::from_secs), "{config}");
        }
    }

    #[test]
    fn endpoints_take_their_own_time_and_the_run_counts_all_hosts() {
        let config = "rate = '2/s'\n[hosts.'a.example']\nrate = '10/s, 60/min burst 60'\n\
                      [[hosts.'a.example'.endpoints]]\nname = 'search'\nmatch = '/s/*'\nrate = '1/s, 6/min'\n\
                      [[hosts.'a.example'.endpoints]]\nmatch = '/unused'\nrate = '1/d'\n";
        let search = |page: u32, key: &str| {
            serde_json::json!({ "url": format!("http://a.example/s/{page}"), "account": key }).to_string()
        };
        let lines = [
            search(1, "one"),
            search(2, "two"),
            search(3, "one"),
            "http://a.example/".into(),
            "http://b.example/".into(),
        ];
        let plan = plan_of(config, &lines.each_ref().map(String::as_str));
        let [a, b] = &plan.hosts[..] else { panic!("{plan:?}") };
        assert_eq!(a.rate.as_deref(), Some("10/s, 60/min burst 60; search: 1/s, 6/min"));
        assert_eq!(
            (a.items, a.least),
            (4, Some(Duration::from_secs(20))),
            "three searches, ten seconds apart"
        );
        assert_eq!((b.rate.as_deref(), b.items, b.least), (None, 1, None));
        assert_eq!(plan.least, a.least, "five starts of the run take two seconds");
    }
}
