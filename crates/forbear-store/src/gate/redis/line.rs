//! A connection to one server, or to all of a cluster.

use std::{sync::Arc, time::Duration};

use redis::{
    AsyncConnectionConfig, Client, Cmd, FromRedisValue, PushInfo, RedisError, RedisResult, Value,
    aio::MultiplexedConnection,
    cluster::ClusterClientBuilder,
    cluster_async::ClusterConnection,
    cluster_routing::{Route, RoutingInfo, SingleNodeRoutingInfo, SlotAddr},
    sentinel::{Sentinel, SentinelNodeConnectionInfo},
};

use super::address::{Sentinels, Servers};

/// Where commands go.
#[derive(Clone)]
pub(super) enum Line {
    One(MultiplexedConnection),
    Cluster(ClusterConnection),
}

/// Who hears what a connection calls out.
pub(super) type Called = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// A server of a cluster that keeps keys; the only one there is, without.
#[derive(Clone, Debug)]
pub(super) struct Node(Option<(String, u16)>);

impl Line {
    /// Connects; `called` hears what is called out. Each server has `patience` to answer.
    pub(super) async fn connect(servers: &Servers, patience: Duration, called: Called) -> RedisResult<Line> {
        let hear = move |push: PushInfo| {
            called(push);
            Ok::<(), std::convert::Infallible>(())
        };
        let client = match servers {
            Servers::Cluster(nodes) => {
                let builder = ClusterClientBuilder::new(nodes.iter().cloned())
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(patience)
                    .response_timeout(patience)
                    .retries(CLUSTER_RETRIES)
                    .push_sender(hear);
                return Ok(Line::Cluster(builder.build()?.get_async_connection().await?));
            }
            Servers::One(info) => Client::open((**info).clone())?,
            Servers::Sentinels(sentinels) => primary(sentinels).await?,
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(Some(patience))
            .set_push_sender(hear);
        Ok(Line::One(client.get_multiplexed_async_connection_with_config(&config).await?))
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self, Line::Cluster(_))
    }

    /// Sends a command, in a cluster to whoever has its keys.
    pub(super) async fn ask<T: FromRedisValue>(&mut self, command: &Cmd) -> RedisResult<T> {
        match self {
            Line::One(connection) => command.query_async(connection).await,
            Line::Cluster(connection) => command.query_async(connection).await,
        }
    }

    /// Sends a command that names no key, in a cluster to whoever has this one.
    pub(super) async fn ask_where<T: FromRedisValue>(&mut self, key: &str, command: &Cmd) -> RedisResult<T> {
        match self {
            Line::One(connection) => command.query_async(connection).await,
            Line::Cluster(connection) => {
                let route = SingleNodeRoutingInfo::SpecificNode(Route::with_key(key, SlotAddr::Master));
                let value = connection.route_command(command.clone(), RoutingInfo::SingleNode(route)).await?;
                Ok(redis::from_redis_value(value)?)
            }
        }
    }

    /// Sends commands to one server, which is to have all that they name.
    pub(super) async fn ask_node<T: FromRedisValue>(
        &mut self,
        node: &Node,
        commands: &redis::Pipeline,
    ) -> RedisResult<Vec<T>> {
        let values = match (self, &node.0) {
            (Line::Cluster(connection), Some(address)) => {
                let (host, port) = address.clone();
                let route = SingleNodeRoutingInfo::ByAddress { host, port };
                connection.route_pipeline(commands.clone(), 0, commands.len(), route).await?
            }
            (Line::Cluster(connection), None) => commands.query_async(connection).await?,
            (Line::One(connection), _) => commands.query_async(connection).await?,
        };
        Ok(values.into_iter().map(redis::from_redis_value).collect::<Result<_, _>>()?)
    }

    /// All servers that keep keys, always in the same order while they are the same.
    pub(super) async fn nodes(&mut self) -> RedisResult<Vec<Node>> {
        let Line::Cluster(_) = self else { return Ok(vec![Node(None)]) };
        // From the first slot of a range to its last one, then who has it: the primary first.
        let ranges: Vec<Vec<Value>> = self.ask(redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let primary = |range: Vec<Value>| -> Option<(String, u16)> {
            let Value::Array(primary) = range.into_iter().nth(2)? else { return None };
            let mut fields = primary.into_iter();
            let (host, port) = (fields.next()?, fields.next()?);
            Some((redis::from_redis_value(host).ok()?, redis::from_redis_value(port).ok()?))
        };
        let mut nodes: Vec<(String, u16)> = ranges.into_iter().filter_map(primary).collect();
        nodes.sort();
        nodes.dedup();
        Ok(nodes.into_iter().map(|node| Node(Some(node))).collect())
    }

    /// Hears what is called on a channel. In a cluster one server is enough: each has it from all others.
    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Line::One(connection) => connection.subscribe(channel).await,
            Line::Cluster(connection) => connection.subscribe(channel).await,
        }
    }
}

/// The server that the sentinels name, which says itself that it is the primary.
async fn primary(sentinels: &Sentinels) -> Result<Client, RedisError> {
    let how = SentinelNodeConnectionInfo::default()
        .set_redis_connection_info(sentinels.primary.redis_settings().clone());
    let how = match sentinels.primary.addr() {
        redis::ConnectionAddr::TcpTls { .. } => how.set_tls_mode(redis::TlsMode::Secure),
        _ => how,
    };
    Sentinel::build(sentinels.nodes.clone())?.async_master_for(&sentinels.name, Some(&how)).await
}

/// So often a command follows a slot that has moved, or waits for one that is moving.
const CLUSTER_RETRIES: u32 = 3;
