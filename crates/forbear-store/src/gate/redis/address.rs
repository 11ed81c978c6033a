//! The forms in which an address of Redis is written.

use redis::{ConnectionInfo, IntoConnectionInfo, ProtocolVersion};

/// Who is asked.
#[derive(Clone, Debug)]
pub(super) enum Servers {
    /// This one.
    One(Box<ConnectionInfo>),
    /// Whoever these sentinels say is the primary at the moment.
    Sentinels(Box<Sentinels>),
    /// The cluster that these belong to.
    Cluster(Vec<ConnectionInfo>),
}

#[derive(Clone, Debug)]
pub(super) struct Sentinels {
    pub(super) nodes: Vec<ConnectionInfo>,
    /// What they call the primary.
    pub(super) name: String,
    /// How the primary is connected to: all but its host and port.
    pub(super) primary: ConnectionInfo,
}

impl Servers {
    /// `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`; `redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],.../NAME[/DB]` with
    /// `?sentinel_password=` and `?sentinel_user=` where the sentinels want them; `redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],...`.
    /// Each with `rediss` for TLS. None for anything else.
    pub(super) fn of(url: &str) -> Option<Servers> {
        let (scheme, rest) = url.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        let Some((scheme, form)) = scheme.split_once('+') else {
            return Some(Servers::One(Box::new(connection(url)?)));
        };
        if !matches!(scheme, "redis" | "rediss") {
            return None;
        }
        // A password may have any character in it but for those that end the hosts, which are written %2F and %3F.
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
        let (user, hosts) = hosts.rsplit_once('@').unwrap_or(("", hosts));
        let each = |user: &str, port: u16, rest: &str| {
            let url = |host: &str| {
                let port = if has_port(host) { String::new() } else { format!(":{port}") };
                let at = if user.is_empty() { "" } else { "@" };
                connection(&format!("{scheme}://{user}{at}{host}{port}{rest}"))
            };
            hosts.split(',').map(|host| (!host.is_empty()).then(|| url(host))?).collect::<Option<Vec<_>>>()
        };
        match form {
            "cluster" if path.is_empty() && query.is_empty() => {
                Some(Servers::Cluster(each(user, REDIS, "")?))
            }
            "sentinel" => {
                let (name, db) = path.split_once('/').unwrap_or((path, ""));
                let rest = if db.is_empty() { String::new() } else { format!("/{db}") };
                let primary = each(user, REDIS, &rest)?.into_iter().next()?;
                let nodes = each(&sentinel_user(query)?, SENTINEL, "")?;
                let name = name.to_owned();
                (!name.is_empty()).then(|| Servers::Sentinels(Box::new(Sentinels { nodes, name, primary })))
            }
            _ => None,
        }
    }
}

/// Who the sentinels are told that we are, as it stands in a URL.
fn sentinel_user(query: &str) -> Option<String> {
    let (mut user, mut password) = ("", "");
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        match pair.split_once('=')? {
            ("sentinel_user", value) => user = value,
            ("sentinel_password", value) => password = value,
            _ => return None,
        }
    }
    Some(if password.is_empty() { user.to_owned() } else { format!("{user}:{password}") })
}

fn has_port(host: &str) -> bool {
    // Not the colons of an IPv6 address.
    host.rsplit_once(':')
        .is_some_and(|(_, port)| !port.is_empty() && port.bytes().all(|b| b.is_ascii_digit()))
        && (!host.starts_with('[') || host.contains("]:"))
}

fn connection(url: &str) -> Option<ConnectionInfo> {
    let info = url.into_connection_info().ok()?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    Some(info.set_redis_settings(settings))
}

const REDIS: u16 = 6379;
const SENTINEL: u16 = 26379;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_every_form_of_an_address_is_read() {
        let places = |nodes: &[ConnectionInfo]| {
            nodes.iter().map(|node| node.addr().to_string()).collect::<Vec<_>>().join(" ")
        };
        let Some(Servers::One(one)) = Servers::of("redis://u:p%40ss@h/3") else { panic!("one") };
        assert_eq!((one.addr().to_string().as_str(), one.redis_settings().db()), ("h:6379", 3));
        let url = "rediss+sentinel://u:p@h1,h2:26380,[::1],[::2]:5/main/2?sentinel_password=s%2Fs";
        let Some(Servers::Sentinels(s)) = Servers::of(url) else { panic!("sentinels") };
        assert_eq!(places(&s.nodes), "h1:26379 h2:26380 ::1:26379 ::2:5");
        assert_eq!(s.name, "main");
        let (node, primary) = (s.nodes[1].redis_settings(), s.primary.redis_settings());
        assert_eq!((node.username(), node.password(), node.db()), (None, Some("s/s"), 0));
        assert_eq!((primary.username(), primary.password(), primary.db()), (Some("u"), Some("p"), 2));
        let Some(Servers::Cluster(nodes)) = Servers::of("REDIS+CLUSTER://:p@h1:7000,h2") else {
            panic!("cluster")
        };
        assert_eq!(places(&nodes), "h1:7000 h2:6379");
        for url in [
            "redis",
            "http://h",
            "http+cluster://h",
            "redis+tls://h",
            "redis+sentinel://h",
            "redis+sentinel://h,/main",
            "redis+sentinel:///main",
            "redis+sentinel://h/main?password=x",
            "redis+sentinel://h/main/db",
            "redis+cluster://",
            "redis+cluster://h/1",
            "redis+cluster://h:x",
        ] {
            assert!(Servers::of(url).is_none(), "{url}");
        }
    }
}
