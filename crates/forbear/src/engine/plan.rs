//! `fetch --plan`: what a run would do, and how long it would take at least; nothing is sent.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::route::{LaneParts, Routes, host_and_port};
use crate::{
    config::Settings,
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
    /// The scopes that they count for.
    pub scopes: Vec<String>,
    /// The configured rate.
    pub rate: Option<String>,
    /// The least time by that rate.
    pub least: Option<Duration>,
}

/// Reads the whole input, and sends nothing.
///
/// # Errors
/// When the input cannot be read.
pub fn plan(settings: &Settings, source: &Source) -> Result<Plan, ImportError> {
    let settings = Arc::new(settings.clone());
    let routes = Routes::new(settings.clone());
    let accounts = Accounts::new([0; 32], &settings.secrets);
    let mut lanes: BTreeMap<String, u64> = BTreeMap::new();
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
            *lanes.entry(parts.text()).or_default() += 1;
        }
    })?;
    let mut hosts: BTreeMap<String, PlannedHost> = BTreeMap::new();
    for (text, count) in &lanes {
        let parts = LaneParts::parse(text);
        let route = routes.route(parts);
        let host = hosts.entry(parts.origin.to_owned()).or_insert_with(|| PlannedHost {
            origin: parts.origin.to_owned(),
            items: 0,
            scopes: Vec::new(),
            rate: None,
            least: None,
        });
        host.items += count;
        for scope in route.scopes.iter().map(|scope| scope.key.to_string()) {
            if !host.scopes.contains(&scope) {
                host.scopes.push(scope);
            }
        }
        let (name, port) = host_and_port(parts.origin);
        if let Some(rate) = settings.for_host(name, port).rate {
            host.rate = Some(rate.to_string());
            host.least = Some(least(rate.per(), u64::from(rate.count()), host.items));
        }
    }
    let of_run = settings.rate.map(|rate| least(rate.per(), u64::from(rate.count()), items));
    let mut hosts: Vec<PlannedHost> = hosts.into_values().collect();
    hosts.sort_by(|a, b| b.least.cmp(&a.least).then(b.items.cmp(&a.items)));
    let least = hosts.first().and_then(|host| host.least).into_iter().chain(of_run).max();
    Ok(Plan { items, bad, hosts, least })
}

/// `items` starts, evenly spaced: the first of them takes no time.
fn least(per: Duration, count: u64, items: u64) -> Duration {
    Duration::from_secs_f64(per.as_secs_f64() * items.saturating_sub(1) as f64 / count as f64)
}
