//! The lane of an item: found once for each origin, account and endpoint, then remembered.

use std::{collections::HashMap, sync::Arc};

use forbear_store::queue::Request;

use super::line::ItemSpec;
use crate::{
    client::{Target, URL_BYTES_MAX},
    config::{HostSettings, Settings},
    secrets::Accounts,
};

/// More than this is forgotten and found again: an input may have ten million hosts.
const REMEMBERED_MAX: usize = 1 << 16;

type Map<K, V> = HashMap<K, V, foldhash::fast::RandomState>;

/// Finds lanes.
pub(super) struct Lanes<F> {
    settings: Arc<Settings>,
    accounts: Accounts,
    lane_of: F,
    /// By scheme and authority as they are written, for origins where the URL decides nothing else.
    plain: Map<Box<[u8]>, Arc<str>>,
    hosts: Map<Box<str>, Arc<HostSettings>>,
    /// By origin, account and endpoint.
    lanes: Map<String, Arc<str>>,
}

impl<F> Lanes<F>
where
    F: Fn(&Target, Option<&str>, Option<&str>) -> Arc<str>,
{
    pub(super) fn new(settings: Arc<Settings>, account_key: [u8; 32], lane_of: F) -> Lanes<F> {
        let accounts = Accounts::new(account_key, &settings.secrets);
        let (plain, hosts, lanes) = Default::default();
        Lanes { settings, accounts, lane_of, plain, hosts, lanes }
    }

    /// A line that is a URL of an origin that is known, and where nothing but the origin matters: no need to read the rest,
    /// for a path cannot be wrong. `None` says nothing.
    pub(super) fn plain(&self, line: &[u8]) -> Option<(Arc<str>, Request)> {
        let line = line.trim_ascii();
        let lane = self.plain.get(prefix(line)?)?;
        if line.len() > URL_BYTES_MAX {
            return None;
        }
        let url = std::str::from_utf8(line).ok()?;
        Some((Arc::clone(lane), Request::get(url)))
    }

    /// The lane of an item.
    pub(super) fn of(&mut self, item: &ItemSpec) -> Arc<str> {
        let ItemSpec { request, target, .. } = item;
        let host = self.host(target);
        let account =
            self.accounts.of(request.account.as_deref(), &request.url, &request.headers, &host.headers);
        let endpoint = match &request.endpoint {
            Some(given) => Some(given.as_str()),
            None => host.endpoint_of(target.path_and_query().path()).map(|endpoint| endpoint.name.as_str()),
        };
        // Neither has a tab: names may have no control characters.
        let key = [target.origin(), account.as_deref().unwrap_or(""), endpoint.unwrap_or("")].join("\t");
        let lane = match self.lanes.get(&key) {
            Some(lane) => Arc::clone(lane),
            None => {
                let lane = (self.lane_of)(target, account.as_deref(), endpoint);
                remember(&mut self.lanes, key, Arc::clone(&lane));
                lane
            }
        };
        let only_origin = *request == Request::get(request.url.as_str())
            && host.endpoints.is_empty()
            && !self.accounts.look_at_queries();
        if only_origin && let Some(prefix) = prefix(request.url.as_bytes()) {
            remember(&mut self.plain, prefix.into(), Arc::clone(&lane));
        }
        lane
    }

    fn host(&mut self, target: &Target) -> Arc<HostSettings> {
        if let Some(host) = self.hosts.get(target.origin()) {
            return Arc::clone(host);
        }
        let authority = target.authority();
        let port = format!(":{}", target.port());
        let host = authority.strip_suffix(&port).unwrap_or(authority);
        let host = Arc::new(self.settings.for_host(host, target.port()));
        remember(&mut self.hosts, target.origin().into(), Arc::clone(&host));
        host
    }
}

fn remember<K: std::hash::Hash + Eq, V>(map: &mut Map<K, V>, key: K, value: V) {
    if map.len() >= REMEMBERED_MAX {
        map.clear();
    }
    map.insert(key, value);
}

/// Scheme and authority of a URL as they are written, if they hold no user name.
fn prefix(url: &[u8]) -> Option<&[u8]> {
    let slashes = if url.get(4) == Some(&b':') { 5 } else { 6 };
    let rest = url.get(slashes..)?.strip_prefix(b"//")?;
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?' | b'#' | b'@')).unwrap_or(rest.len());
    (rest.get(end) != Some(&b'@')).then(|| &url[..slashes + 2 + end])
}
