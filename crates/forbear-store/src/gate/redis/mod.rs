//! Gates in Redis or Valkey, for a fleet on any number of machines.

mod address;
mod line;

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use forbear_core::time::Timestamp;
use parking_lot::Mutex;
use redis::{ErrorKind, PushInfo, PushKind, RedisError, Value};

use self::{address::Servers, line::Line};
use super::{
    SharedEvent, SharedOptions, StoreError,
    shared::{Link, LinkError, Page, Push, Reply, SharedGates, Write, member_of_a_fleet},
};

/// Gates that every process shares that uses the same Redis (6.2 or later) or Valkey: one server, one that sentinels watch over, or
/// a cluster.
///
/// A scope is one key with a time to live. The server compares and sets; every rule is run here. Should it be lost, each
/// member goes on with its share, and says so ([`SharedOptions::events`]).
pub struct RedisGates(SharedGates<RedisLink>);

impl RedisGates {
    /// Joins the fleet on the server of this URL: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`,
    /// `redis+sentinel://[USER[:PASSWORD]@]HOST[:PORT],.../NAME[/DB]` for the primary that these sentinels call so, or
    /// `redis+cluster://[USER[:PASSWORD]@]HOST[:PORT],...` for the cluster of these; each with `rediss` for TLS.
    ///
    /// # Errors
    /// [`StoreError::Address`] for what is no such URL, [`StoreError::Unreachable`] if no server answers. Neither shows
    /// the password.
    pub async fn connect(url: &str, options: SharedOptions) -> Result<RedisGates, StoreError> {
        let link = outside(url, options.patience).await?;
        if let Some(policy) = link.evicts().await {
            (options.events)(SharedEvent::Evicts { policy });
        }
        let listener = link.listener.clone();
        let gates = SharedGates::new(link, options);
        let _ = listener.set(Box::new(gates.listener()));
        gates.greet().await?;
        Ok(RedisGates(gates))
    }
}

member_of_a_fleet!(RedisGates);

/// The way to a server, for whoever only looks or calls.
pub(super) async fn outside(url: &str, patience: Duration) -> Result<RedisLink, StoreError> {
    let link = RedisLink {
        servers: Servers::of(url).ok_or(StoreError::Address)?,
        patience,
        connection: Mutex::new(None),
        listener: Arc::default(),
        generation: Arc::default(),
    };
    link.reconnect().await?;
    Ok(link)
}

/// Whether this is the URL of a Redis.
pub(super) fn is_url(url: &str) -> bool {
    Servers::of(url).is_some()
}

type Listener = Box<dyn Fn(Push) + Send + Sync>;

pub(super) struct RedisLink {
    servers: Servers,
    patience: Duration,
    /// The connection, and what the server calls the script.
    connection: Mutex<Option<(Line, Arc<str>)>>,
    listener: Arc<OnceLock<Listener>>,
    /// Which connection is the present one: what an old one calls out is of no interest.
    generation: Arc<AtomicU64>,
}

impl Link for RedisLink {
    async fn swap(&self, writes: &[Write], tell: bool) -> Result<Reply, LinkError> {
        let (mut line, sha) = self.line()?;
        let command = |name: &str, script: &str| {
            let mut command = redis::cmd(name);
            command.arg(script).arg(writes.len());
            for write in writes {
                command.arg(key_of(&write.key));
            }
            command.arg(if tell { CHANNEL } else { "" });
            for write in writes {
                let keep_ms = u64::try_from(write.keep.as_millis()).unwrap_or(u64::MAX).max(1);
                command.arg(&write.expect).arg(&write.value).arg(keep_ms);
            }
            command
        };
        let place = writes.first().map_or_else(|| key_of(CLOCK), |write| key_of(&write.key));
        let answer = line.ask_where::<Vec<Value>>(&place, &command("EVALSHA", &sha)).await;
        let answer = match answer {
            // The server has forgotten it: restarted, or told to. Sent whole it is known again.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                line.ask_where::<Vec<Value>>(&place, &command("EVAL", SCRIPT)).await
            }
            other => other,
        };
        let mut answer = answer.map_err(fault)?.into_iter();
        let time = moment(answer.next(), answer.next())?;
        let found: Vec<Option<Vec<u8>>> = answer.map(bytes).collect();
        // The servers of a cluster have a clock each: the fleet goes by one of them.
        let is_the_clock = !line.is_cluster() || tag_of(&place) == tag_of(&key_of(CLOCK));
        Ok(Reply { time: is_the_clock.then_some(time), found: (!found.is_empty()).then_some(found) })
    }

    async fn call(&self, write: &Write) -> Result<(), LinkError> {
        let (mut line, _) = self.line()?;
        let key = key_of(&write.key);
        let payload = [key.as_bytes(), b"\0", &write.value].concat();
        let publish = redis::cmd("PUBLISH").arg(CHANNEL).arg(payload).clone();
        line.ask_where::<Value>(&key, &publish).await.map_err(fault).map(drop)
    }

    async fn page(&self, cursor: Option<&str>) -> Result<Page, LinkError> {
        let (mut line, _) = self.line()?;
        // Which server, and where on it.
        let (at, cursor) = cursor.and_then(|cursor| cursor.split_once(' ')).unwrap_or(("0", "0"));
        let (at, nodes) = (at.parse().unwrap_or(0usize), line.nodes().await.map_err(fault)?);
        let Some(node) = nodes.get(at) else { return Ok((Vec::new(), None)) };
        let mut scan = redis::pipe();
        scan.cmd("SCAN").arg(cursor).arg("MATCH").arg(format!("{PREFIX}*")).arg("COUNT").arg(500);
        let (next, keys): (String, Vec<String>) =
            line.ask_node(node, &scan).await.map_err(fault)?.into_iter().next().unwrap_or_default();
        let mut values = Vec::new();
        if !keys.is_empty() {
            let mut get = redis::pipe();
            for key in &keys {
                get.cmd("GET").arg(key);
            }
            let found: Vec<Option<Vec<u8>>> = line.ask_node(node, &get).await.map_err(fault)?;
            let scopes = keys.iter().map(|key| scope_of(key));
            values.extend(scopes.zip(found).filter_map(|(scope, value)| Some((scope?.to_owned(), value?))));
        }
        let next = match next.as_str() {
            "0" => (at + 1 < nodes.len()).then(|| format!("{} 0", at + 1)),
            next => Some(format!("{at} {next}")),
        };
        Ok((values, next))
    }

    async fn reconnect(&self) -> Result<(), LinkError> {
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        let (listener, present) = (self.listener.clone(), self.generation.clone());
        let whole = !matches!(self.servers, Servers::Cluster(_));
        let called = move |push: PushInfo| {
            if present.load(Relaxed) == generation
                && let Some(push) = call(push, whole)
                && let Some(listener) = listener.get()
            {
                listener(push);
            }
        };
        *self.connection.lock() = None;
        let connect = async {
            let mut line = Line::connect(&self.servers, self.patience, Arc::new(called)).await?;
            let sha: String = line.ask(redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT)).await?;
            line.subscribe(CHANNEL).await?;
            Ok((line, sha.into()))
        };
        // Sentinels, and the primary that they name, are asked one after the other.
        let connected = tokio::time::timeout(self.patience * CONNECTING, connect).await;
        *self.connection.lock() = Some(connected.map_err(|_| LinkError::Hung)?.map_err(fault)?);
        Ok(())
    }

    fn place(&self, key: &str) -> String {
        match self.servers {
            Servers::Cluster(_) => tag_of(&key_of(key)).to_owned(),
            Servers::One(_) | Servers::Sentinels(_) => String::new(),
        }
    }
}

impl RedisLink {
    fn line(&self) -> Result<(Line, Arc<str>), LinkError> {
        let connection = self.connection.lock().clone();
        connection.ok_or_else(|| LinkError::Io(io::ErrorKind::NotConnected.into()))
    }

    /// The name of a policy by which one of the servers throws away what it keeps before its time. One that does not tell is not
    /// asked twice.
    async fn evicts(&self) -> Option<String> {
        let (mut line, _) = self.line().ok()?;
        for node in line.nodes().await.ok()? {
            let mut ask = redis::pipe();
            ask.cmd("INFO").arg("memory");
            let info: Vec<String> = line.ask_node(&node, &ask).await.ok()?;
            let value = |name: &str| info[0].lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
            let policy = value("maxmemory_policy:").filter(|policy| *policy != "noeviction");
            // Every key of ours has its time to live, so policies about those alone take them just as well.
            let full = |policy: &&str| value("maxmemory:") != Some("0") || policy.starts_with("allkeys-");
            if let Some(policy) = policy.filter(full) {
                return Some(policy.to_owned());
            }
        }
        None
    }
}

/// The key of a scope. The scopes of one origin, or of one group, share a slot of a cluster (S1).
fn key_of(scope: &str) -> String {
    let is_place = |word: &&str| word.starts_with("group=") || word.contains("://");
    let place = scope.split(' ').find(is_place).unwrap_or(scope);
    let place: String = place.chars().filter(|c| !matches!(c, '{' | '}')).collect();
    format!("{PREFIX}{{{place}}}{scope}")
}

/// What says where a key lies in a cluster.
fn tag_of(key: &str) -> &str {
    key.split_once('}').map_or(key, |(tag, _)| tag)
}

/// The scope of a key.
fn scope_of(key: &str) -> Option<&str> {
    Some(key.strip_prefix(PREFIX)?.split_once('}')?.1)
}

/// What was called; `whole`: there is one server, and who loses it has lost all.
fn call(push: PushInfo, whole: bool) -> Option<Push> {
    match push.kind {
        PushKind::Disconnection | PushKind::Subscribe if !whole => Some(Push::Missed),
        PushKind::Disconnection => Some(Push::Gone(LinkError::Io(io::Error::new(
            io::ErrorKind::ConnectionReset,
            "the store hung up",
        )))),
        PushKind::Message => {
            let payload = bytes(push.data.into_iter().nth(1)?)?;
            let end = payload.iter().position(|byte| *byte == 0)?;
            let scope = scope_of(str::from_utf8(&payload[..end]).ok()?)?.to_owned();
            Some(Push::Value(scope, payload[end + 1..].to_vec()))
        }
        _ => None,
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

fn moment(seconds: Option<Value>, micros: Option<Value>) -> Result<Timestamp, LinkError> {
    let number = |value: Option<Value>| {
        let text = String::from_utf8(bytes(value?)?).ok()?;
        text.parse::<u64>().ok()
    };
    match (number(seconds), number(micros)) {
        (Some(s), Some(us)) => Ok(Timestamp::from_micros(s.saturating_mul(1_000_000).saturating_add(us))),
        _ => Err(LinkError::Answer("without its time".into())),
    }
}

/// An error without what it was about: an address may have a password in it.
fn fault(error: RedisError) -> LinkError {
    if error.is_timeout() {
        return LinkError::Hung;
    }
    if error.kind() == ErrorKind::AuthenticationFailed {
        return LinkError::Answer(error.code().unwrap_or("AUTHENTICATION").to_owned());
    }
    match error.code() {
        Some(code) => LinkError::Answer(code.to_owned()),
        None if error.is_connection_refusal() => LinkError::Io(io::ErrorKind::ConnectionRefused.into()),
        None => LinkError::Io(io::Error::other(error.category().to_owned())),
    }
}

const SCRIPT: &str = include_str!("swap.lua");
/// Where pauses and openings are called out.
const CHANNEL: &str = "forbear:news";
const PREFIX: &str = "forbear:gate:";
/// Whoever has this key has the fleet's clock. No scope is called so.
const CLOCK: &str = "account-key";
/// Connecting takes so many answers at most, where sentinels are asked as well.
const CONNECTING: u32 = 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_scopes_of_one_origin_share_a_slot() {
        for (scope, key) in [
            ("http://a:80", "forbear:gate:{http://a:80}http://a:80"),
            ("http://a:80 account=k", "forbear:gate:{http://a:80}http://a:80 account=k"),
            ("http://a:80 exit=http://p:1", "forbear:gate:{http://a:80}http://a:80 exit=http://p:1"),
            ("group=shop", "forbear:gate:{group=shop}group=shop"),
            ("group=shop http://a:80", "forbear:gate:{group=shop}group=shop http://a:80"),
            ("account=}k{", "forbear:gate:{account=k}account=}k{"),
            ("http://[::1]:80", "forbear:gate:{http://[::1]:80}http://[::1]:80"),
        ] {
            assert_eq!(key_of(scope), key);
            assert_eq!(scope_of(key), Some(scope));
        }
        assert_eq!(scope_of("other"), None);
    }

    #[test]
    fn k1_no_error_shows_a_password() {
        for url in ["redis://user:hunter2@", "redis://:hunter2@h:x", "http://u:hunter2@h"] {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let error = runtime.block_on(RedisGates::connect(url, SharedOptions::default())).unwrap_err();
            let all = format!("{error} {error:?}");
            assert!(!all.contains("hunter2"), "{all}");
        }
    }
}
