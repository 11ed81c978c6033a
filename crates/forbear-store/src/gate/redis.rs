//! Gates in Redis or Valkey, for a fleet on any number of machines.

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
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, IntoConnectionInfo, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value, aio::MultiplexedConnection,
};

use super::{
    SharedEvent, SharedOptions, StoreError,
    shared::{Link, LinkError, Page, Push, Reply, SharedGates, Write, member_of_a_fleet},
};

/// Gates that every process shares that uses the same Redis (6.2 or later) or Valkey.
///
/// A scope is one key with a time to live. The server compares and sets; every rule is run here. Should it be lost, each
/// member goes on with its share, and says so ([`SharedOptions::events`]).
pub struct RedisGates(SharedGates<RedisLink>);

impl RedisGates {
    /// Joins the fleet on the server of this URL: `redis://[USER[:PASSWORD]@]HOST[:PORT][/DB]`, or `rediss://` for TLS.
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
    let info = url.into_connection_info().map_err(|_| StoreError::Address)?;
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    let client = Client::open(info.set_redis_settings(settings)).map_err(|_| StoreError::Address)?;
    let link = RedisLink {
        client,
        patience,
        connection: Mutex::new(None),
        listener: Arc::default(),
        generation: Arc::default(),
    };
    let connected = tokio::time::timeout(patience, link.reconnect()).await;
    connected.unwrap_or(Err(LinkError::Hung))?;
    Ok(link)
}

/// Whether this is the URL of a Redis.
pub(super) fn is_url(url: &str) -> bool {
    url.into_connection_info().is_ok()
}

type Listener = Box<dyn Fn(Push) + Send + Sync>;

pub(super) struct RedisLink {
    client: Client,
    patience: Duration,
    /// The connection, and what the server calls the script.
    connection: Mutex<Option<(MultiplexedConnection, Arc<str>)>>,
    listener: Arc<OnceLock<Listener>>,
    /// Which connection is the present one: what an old one calls out is of no interest.
    generation: Arc<AtomicU64>,
}

impl Link for RedisLink {
    async fn swap(&self, writes: &[Write], tell: bool) -> Result<Reply, LinkError> {
        let connection = self.connection.lock().clone();
        let Some((mut connection, sha)) = connection else {
            return Err(LinkError::Io(io::ErrorKind::NotConnected.into()));
        };
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
        let answer = command("EVALSHA", &sha).query_async::<Vec<Value>>(&mut connection).await;
        let answer = match answer {
            // The server has forgotten it: restarted, or told to. Sent whole it is known again.
            Err(error) if error.code() == Some("NOSCRIPT") => {
                command("EVAL", SCRIPT).query_async::<Vec<Value>>(&mut connection).await
            }
            other => other,
        };
        let mut answer = answer.map_err(fault)?.into_iter();
        let time = moment(answer.next(), answer.next())?;
        let found: Vec<Option<Vec<u8>>> = answer.map(bytes).collect();
        Ok(Reply { time, found: (!found.is_empty()).then_some(found) })
    }

    async fn page(&self, cursor: Option<&str>) -> Result<Page, LinkError> {
        let connection = self.connection.lock().clone();
        let Some((mut connection, _)) = connection else {
            return Err(LinkError::Io(io::ErrorKind::NotConnected.into()));
        };
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor.unwrap_or("0")).arg("MATCH").arg(format!("{PREFIX}*")).arg("COUNT").arg(500);
        let (next, keys): (String, Vec<String>) = scan.query_async(&mut connection).await.map_err(fault)?;
        let mut values = Vec::new();
        if !keys.is_empty() {
            let mut get = redis::cmd("MGET");
            get.arg(&keys);
            let found: Vec<Option<Vec<u8>>> = get.query_async(&mut connection).await.map_err(fault)?;
            let scopes = keys.iter().map(|key| scope_of(key));
            values.extend(scopes.zip(found).filter_map(|(scope, value)| Some((scope?.to_owned(), value?))));
        }
        Ok((values, (next != "0").then_some(next)))
    }

    async fn reconnect(&self) -> Result<(), LinkError> {
        let generation = self.generation.fetch_add(1, Relaxed) + 1;
        let (listener, present) = (self.listener.clone(), self.generation.clone());
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.patience))
            .set_response_timeout(Some(self.patience))
            .set_push_sender(move |push: PushInfo| {
                if present.load(Relaxed) == generation
                    && let Some(push) = call(push)
                    && let Some(listener) = listener.get()
                {
                    listener(push);
                }
                Ok::<(), std::convert::Infallible>(())
            });
        *self.connection.lock() = None;
        let mut connection =
            self.client.get_multiplexed_async_connection_with_config(&config).await.map_err(fault)?;
        let sha: String =
            redis::cmd("SCRIPT").arg("LOAD").arg(SCRIPT).query_async(&mut connection).await.map_err(fault)?;
        connection.subscribe(CHANNEL).await.map_err(fault)?;
        *self.connection.lock() = Some((connection, sha.into()));
        Ok(())
    }
}

impl RedisLink {
    /// The name of a policy by which it throws away what it keeps before its time. A server that does not tell is not asked twice.
    async fn evicts(&self) -> Option<String> {
        let (mut connection, _) = self.connection.lock().clone()?;
        let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await.ok()?;
        let value = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let policy = value("maxmemory_policy:").filter(|policy| *policy != "noeviction")?;
        // Every key of ours has its time to live, so policies about those alone take them just as well.
        (value("maxmemory:") != Some("0") || policy.starts_with("allkeys-")).then(|| policy.to_owned())
    }
}

/// The key of a scope. The scopes of one origin, or of one group, share a slot of a cluster (S1).
fn key_of(scope: &str) -> String {
    let is_place = |word: &&str| word.starts_with("group=") || word.contains("://");
    let place = scope.split(' ').find(is_place).unwrap_or(scope);
    let place: String = place.chars().filter(|c| !matches!(c, '{' | '}')).collect();
    format!("{PREFIX}{{{place}}}{scope}")
}

/// The scope of a key.
fn scope_of(key: &str) -> Option<&str> {
    Some(key.strip_prefix(PREFIX)?.split_once('}')?.1)
}

fn call(push: PushInfo) -> Option<Push> {
    match push.kind {
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

const SCRIPT: &str = include_str!("redis.lua");
/// Where pauses and openings are called out.
const CHANNEL: &str = "forbear:news";
const PREFIX: &str = "forbear:gate:";

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
