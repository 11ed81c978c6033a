//! Which hosts and paths a table is about, and what it says of them.

use std::{fmt, num::NonZeroU32, str::FromStr};

use forbear_core::{pace::RateList, scope::Combination};

use super::{CostSettings, SecretHeader};

/// Which hosts a `[hosts."NAME"]` table or a group's member is about.
///
/// `api.example.com` is that host on every port; `api.example.com:8443` on that port alone; `*.example.com` every host below
/// it (not itself); `*` every host. Spellings are canonical (S2): case, trailing dot, IDN, IPv6.
///
/// ```
/// use forbear::config::HostPattern;
/// let below: HostPattern = "*.Example.com.".parse().unwrap();
/// assert!(below.matches("api.example.com", 443) && !below.matches("example.com", 443));
/// ```
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct HostPattern {
    host: Host,
    port: Option<u16>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Host {
    /// Canonical, an IPv6 address without brackets.
    Exact(String),
    /// `.example.com`: every name that ends so.
    Below(String),
    Any,
}

/// Why a text is no [`HostPattern`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum HostPatternError {
    /// A URL, or a part of one.
    #[error("write the host alone, without scheme, path or user name")]
    NotAHost,
    /// A star elsewhere than in front.
    #[error("`*` stands alone or in front, as in `*.example.com`")]
    Star,
    /// Not a number from 1 to 65535.
    #[error("a port is a number from 1 to 65535")]
    Port,
    /// Nothing that a resolver could be asked for.
    #[error("not a host name or address")]
    Name,
}

impl HostPattern {
    /// Whether `host` (canonical or not, an IPv6 address with or without brackets) on `port` is meant.
    #[must_use]
    pub fn matches(&self, host: &str, port: u16) -> bool {
        self.matches_canonical(&canonical(host).unwrap_or_else(|| host.to_owned()), port)
    }

    fn matches_canonical(&self, host: &str, port: u16) -> bool {
        let name = match &self.host {
            Host::Exact(name) => name == host,
            Host::Below(tail) => host.len() > tail.len() && host.ends_with(tail.as_str()),
            Host::Any => true,
        };
        name && self.port.is_none_or(|p| p == port)
    }

    /// Orders patterns from the most general to the most particular; what the latter says wins.
    fn rank(&self) -> (u8, usize, bool) {
        match &self.host {
            Host::Any => (0, 0, self.port.is_some()),
            Host::Below(tail) => (1, tail.len(), self.port.is_some()),
            Host::Exact(_) => (2, 0, self.port.is_some()),
        }
    }
}

impl FromStr for HostPattern {
    type Err = HostPatternError;

    fn from_str(text: &str) -> Result<HostPattern, HostPatternError> {
        if text.contains(['/', '@', '?', '#']) {
            return Err(HostPatternError::NotAHost);
        }
        let (host, port) = match text.rsplit_once(':') {
            // More than one colon and no bracket: an IPv6 address, and no port.
            Some((host, port)) if host.ends_with(']') || !host.contains(':') => {
                let port = port.parse::<u16>().ok().filter(|p| *p > 0).ok_or(HostPatternError::Port)?;
                (host, Some(port))
            }
            _ => (text, None),
        };
        let host = match host.strip_prefix('*') {
            Some("") => Host::Any,
            Some(tail) => {
                let tail = tail.strip_prefix('.').ok_or(HostPatternError::Star)?;
                let tail = canonical(tail).filter(|t| !t.contains('*')).ok_or(HostPatternError::Star)?;
                Host::Below(format!(".{tail}"))
            }
            None if host.contains('*') => return Err(HostPatternError::Star),
            None => Host::Exact(canonical(host).ok_or(HostPatternError::Name)?),
        };
        Ok(HostPattern { host, port })
    }
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.host {
            Host::Exact(host) if host.contains(':') && self.port.is_some() => write!(f, "[{host}]")?,
            Host::Exact(host) => f.write_str(host)?,
            Host::Below(tail) => write!(f, "*{tail}")?,
            Host::Any => f.write_str("*")?,
        }
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// Lower-case, IDN in ASCII, no trailing dot, addresses in their shortest form, IPv6 without brackets; `None` if it is no
/// host at all.
fn canonical(host: &str) -> Option<String> {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
    if let Ok(address) = bare.parse::<std::net::Ipv6Addr>() {
        return Some(address.to_string());
    }
    let name = bare.strip_suffix('.').unwrap_or(bare);
    match url::Host::parse(name).ok()? {
        url::Host::Domain(name) => Some(name),
        url::Host::Ipv4(address) => Some(address.to_string()),
        url::Host::Ipv6(_) => None,
    }
}

/// A pattern for the path of a URL: `*` stands for any run of characters but `/`, `**` for any run at all.
///
/// The query is not looked at.
///
/// ```
/// use forbear::config::PathPattern;
/// let pattern: PathPattern = "/v1/users/*/photos".parse().unwrap();
/// assert!(pattern.matches("/v1/users/7/photos") && !pattern.matches("/v1/users/7/8/photos"));
/// ```
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct PathPattern(String);

/// Why a text is no [`PathPattern`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathPatternError {
    /// Paths of `http` URLs start so, hence a pattern without it would never match.
    #[error("a path pattern starts with `/`, as in `/v1/search` or `/v1/**`")]
    NoSlash,
    /// Queries and fragments take no part.
    #[error("a path pattern has no query or fragment; leave out what follows the path")]
    Query,
}

impl PathPattern {
    /// Whether `path` (without query, as it goes on the wire) is meant.
    #[must_use]
    pub fn matches(&self, path: &str) -> bool {
        glob(self.0.as_bytes(), path.as_bytes())
    }

    /// The pattern as it was written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for PathPattern {
    type Err = PathPatternError;

    fn from_str(text: &str) -> Result<PathPattern, PathPatternError> {
        match text {
            _ if !text.starts_with('/') => Err(PathPatternError::NoSlash),
            _ if text.contains(['?', '#']) => Err(PathPatternError::Query),
            _ => Ok(PathPattern(text.to_owned())),
        }
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Row by row over the pattern instead of by backtracking: a path of 64 KiB against `/**/**/**` must not hang a run.
fn glob(pattern: &[u8], path: &[u8]) -> bool {
    // reach[i]: the pattern so far can match the first i bytes of the path.
    let mut reach = vec![false; path.len() + 1];
    reach[0] = true;
    let mut at = 0;
    while at < pattern.len() {
        if pattern[at] == b'*' {
            let deep = pattern.get(at + 1) == Some(&b'*');
            for i in 0..path.len() {
                if reach[i] && (deep || path[i] != b'/') {
                    reach[i + 1] = true;
                }
            }
            at += if deep { 2 } else { 1 };
        } else {
            for i in (0..path.len()).rev() {
                reach[i + 1] = reach[i] && path[i] == pattern[at];
            }
            reach[0] = false;
            at += 1;
        }
    }
    reach[path.len()]
}

/// A named path pattern of a host, with what is known of its limit (`[[hosts."NAME".endpoints]]`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Endpoint {
    /// What the endpoint is called in scopes, messages and in an item's `endpoint`. Default: the pattern.
    pub name: String,
    /// Which paths belong to it.
    pub matches: PathPattern,
    /// Ceilings on its starts, each over its window (C1). Default: none.
    pub rate: Option<RateList>,
    /// A ceiling on its requests in flight. Default: none.
    pub concurrency: Option<NonZeroU32>,
}

/// What the configuration says about one host.
///
/// Every origin that the pattern matches has these limits for itself; see [`Group`] for a shared one.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct HostSettings {
    /// Ceilings on the origin's starts, each over its window (C1). Default: none, the pace is learned.
    pub rate: Option<RateList>,
    /// A ceiling on the origin's requests in flight; `None` leaves it to `host_concurrency`.
    pub concurrency: Option<NonZeroU32>,
    /// What limits count here; `None` leaves it to the top level's `scope`.
    pub scope: Option<Vec<Combination>>,
    /// Headers that each request to the host carries, unless the item has its own of that name.
    pub headers: Vec<SecretHeader>,
    /// The profile by which limit headers are read; `None` goes by the host's name.
    pub service: Option<String>,
    /// What requests to the host cost; what it leaves out is as at the top level.
    pub cost: CostSettings,
    /// Endpoints in the order in which they are tried.
    pub endpoints: Vec<Endpoint>,
}

impl HostSettings {
    /// The endpoint that `path` belongs to: the first whose pattern matches.
    #[must_use]
    pub fn endpoint_of(&self, path: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|e| e.matches.matches(path))
    }

    /// The endpoint of that name, for items that name theirs.
    #[must_use]
    pub fn endpoint_named(&self, name: &str) -> Option<&Endpoint> {
        self.endpoints.iter().find(|e| e.name == name)
    }

    /// Puts what `other`, about fewer hosts, says over what stands here.
    fn overlay(&mut self, other: &HostSettings) {
        self.rate = other.rate.or(self.rate);
        self.concurrency = other.concurrency.or(self.concurrency);
        self.scope = other.scope.clone().or(self.scope.take());
        self.service = other.service.clone().or(self.service.take());
        self.cost = self.cost.under(&other.cost);
        self.headers.retain(|h| other.headers.iter().all(|o| o.name != h.name));
        self.headers.extend(other.headers.iter().cloned());
        self.endpoints.retain(|e| other.endpoints.iter().all(|o| o.name != e.name));
        self.endpoints.splice(0..0, other.endpoints.iter().cloned());
    }
}

/// All that `tables` say about one host: of two that match, the one about fewer hosts wins, key by key.
pub(super) fn merge(tables: &[(HostPattern, HostSettings)], host: &str, port: u16) -> HostSettings {
    let host = canonical(host).unwrap_or_else(|| host.to_owned());
    let mut found: Vec<_> = tables.iter().filter(|(p, _)| p.matches_canonical(&host, port)).collect();
    found.sort_by_key(|(p, _)| p.rank());
    let mut merged = HostSettings::default();
    for (_, settings) in found {
        merged.overlay(settings);
    }
    merged
}

/// Origins that share one limit (`[groups] NAME = ["a.example", "b.example"]`).
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Group {
    /// What the group is called in scopes and messages.
    pub name: String,
    /// Whose requests are counted together.
    pub members: Vec<HostPattern>,
}

/// The group that a host belongs to: the one with the most particular member that matches.
pub(super) fn group_of<'a>(groups: &'a [Group], host: &str, port: u16) -> Option<&'a Group> {
    let host = canonical(host).unwrap_or_else(|| host.to_owned());
    groups
        .iter()
        .filter_map(|g| {
            let best =
                g.members.iter().filter(|m| m.matches_canonical(&host, port)).map(HostPattern::rank).max();
            best.map(|rank| (rank, g))
        })
        .max_by_key(|(rank, _)| *rank)
        .map(|(_, group)| group)
}
