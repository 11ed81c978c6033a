//! A policy that goes by exits, as a whole fleet: its scopes by exit, its choice among them, its parking of items.

use forbear::config::Settings;
use forbear_core::exit::ExitPolicy;
use forbear_sim::{
    Scenario, Work,
    fleet::{Exit, Fleet, Site},
};

/// The fleet of these settings before the scenario's limiter, with so many good exits.
pub(super) fn fleet(settings: &Settings, host: &str, scenario: &Scenario, exits: u32) -> Fleet {
    let (name, port) = match host.rsplit_once(':') {
        Some((name, port)) => (name, port.parse().unwrap_or(443)),
        None => (host, 443),
    };
    let host = settings.for_host(name, port);
    let pages = match scenario.work {
        Work::Pages(pages) => pages,
        Work::Endless | Work::Stream(_) => 0,
    };
    Fleet {
        sites: vec![Site { spec: scenario.spec.clone(), latency: scenario.latency, pages }],
        exits: vec![Exit::Good; exits as usize],
        workers: scenario.workers,
        timeout: settings.timeout,
        scope: host.scope.clone().unwrap_or_else(|| settings.scope.clone()),
        policy: settings.scope_policy(None, host.concurrency.or(settings.host_concurrency)),
        rates: host.rate,
        item: settings.item_policy(),
        by_exit: ExitPolicy {
            rotate: settings.exits.rotate,
            sticky: settings.exits.sticky,
            min_success: settings.exits.min_success,
            ..ExitPolicy::default()
        },
        run_for: scenario.run_for,
        seed: scenario.seed,
        ..Fleet::default()
    }
}
