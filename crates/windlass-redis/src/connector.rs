//! Making connections: to which server, and whether it is the kind of server that the URL means.
//!
//! Every new connection asks `HELLO`, `INFO replication` and, of a cluster node, `CLUSTER INFO`
//! (the [`Handshake`]).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use super::cluster::Cluster;
use super::connection::shut_down;
use super::errors::{CommandError, Rejection};
use super::first_enough::first_enough;
use super::master_epoch::MasterEpoch;
use super::sentinel::{NamedMaster, Sentinels};
use windlass_core::error::ErrorKind;

/// The target of a connection.
pub(super) enum Connector {
    /// One server.
    Server(redis::Client),
    /// The master that Sentinel names.
    Master(Arc<Sentinels>),
    /// One node of a cluster, at its address.
    Node(redis::Client),
    /// Any node of a cluster, for push messages and commands without a key.
    AnyNode(Weak<Cluster>),
}

/// What a server says about itself.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    mode: Option<String>,
    role: Option<String>,
    /// `None` without permission to read it.
    pub(super) epoch: Option<MasterEpoch>,
    /// Set if Sentinel has named the server.
    pub(super) named_master: Option<NamedMaster>,
}

impl Handshake {
    /// Whether the server is a replica. Then `epoch` is that of its master.
    pub(super) fn is_replica(&self) -> bool {
        matches!(self.role.as_deref(), Some("replica" | "slave"))
    }
}

impl Connector {
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Handshake), CommandError> {
        match self {
            Connector::Server(client) | Connector::Node(client) => {
                self.connect_to(client, config).await
            }
            Connector::Master(sentinels) => {
                let (master, client) = sentinels.master().await?;
                match self.connect_to(&client, config).await {
                    Ok((connection, mut handshake)) => {
                        if let Some(epoch) = &mut handshake.epoch {
                            epoch.number = Some(master.config_epoch);
                        }
                        handshake.named_master = Some(master);
                        Ok((connection, handshake))
                    }
                    Err(e) => Err(e.of_master(&master.address)),
                }
            }
            Connector::AnyNode(cluster) => {
                let cluster = cluster.upgrade().ok_or_else(shut_down)?;
                let node = first_to_answer(cluster.clients(), cluster.call_timeout()).await?;
                self.connect_to(&node, config).await
            }
        }
    }

    async fn connect_to(
        &self,
        client: &redis::Client,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Handshake), CommandError> {
        let mut connection = client
            .get_multiplexed_async_connection_with_config(config)
            .await
            .map_err(CommandError::NotSent)?;
        let is_node = matches!(self, Connector::Node(_));
        let handshake = handshake(&mut connection, is_node).await;
        let handshake = handshake.map_err(CommandError::NotSent)?;
        self.check(&handshake)?;
        Ok((connection, handshake))
    }

    /// Whether a master that cannot reach its replicas may have been replaced.
    pub(super) fn may_be_replaced(&self) -> bool {
        matches!(self, Connector::Master(_))
    }

    /// Rejects a server that is not what the URL means.
    fn check(&self, handshake: &Handshake) -> Result<(), CommandError> {
        let mode = handshake.mode.as_deref().unwrap_or("unknown");
        let reject = |kind, message: &str, hint| {
            Err(CommandError::Rejected(Rejection {
                kind,
                message: message.to_owned(),
                hint,
            }))
        };
        match (self, mode) {
            (_, "sentinel") => reject(
                ErrorKind::InvalidInput,
                "this is a sentinel, not a server that stores data",
                "name the sentinels and the service: redis+sentinel://HOST,HOST/SERVICE",
            ),
            (Connector::Server(_) | Connector::Master(_), "cluster") => reject(
                ErrorKind::InvalidInput,
                "the server is part of a Redis Cluster",
                "use redis+cluster://HOST,HOST",
            ),
            (Connector::Node(_) | Connector::AnyNode(_), "standalone") => reject(
                ErrorKind::InvalidInput,
                "the server is not part of a Redis Cluster",
                "use redis://HOST for one server, redis+sentinel://HOST,HOST/SERVICE for Sentinel",
            ),
            (Connector::Master(_), _) if handshake.is_replica() => reject(
                ErrorKind::Unreachable,
                "the server that Sentinel names as master is a replica: a failover is in progress",
                "try again in a moment",
            ),
            _ => Ok(()),
        }
    }
}

/// The first node that answers. Each next node is asked a little later, so that usually the first
/// one answers before a second is asked, and several silent nodes do not use up the whole timeout.
///
/// The probes do not receive push messages: the end of those that are dropped would be reported as
/// a disconnection.
async fn first_to_answer(
    nodes: Vec<redis::Client>,
    call_timeout: Duration,
) -> Result<redis::Client, CommandError> {
    let apart = call_timeout / 16;
    let probe = |(i, client): (u32, redis::Client)| {
        Box::pin(async move {
            tokio::time::sleep(apart * i).await;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(call_timeout))
                .set_response_timeout(Some(call_timeout));
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            handshake(&mut connection, false).await?;
            redis::RedisResult::Ok(client)
        })
    };
    let probes = (0..).zip(nodes).map(probe).collect();
    let one = |replies: &[redis::RedisResult<redis::Client>]| replies.iter().any(Result::is_ok);
    let replies = first_enough(probes, call_timeout, Duration::ZERO, one).await;
    let mut failed = None;
    for reply in replies {
        match reply {
            Ok(client) => return Ok(client),
            Err(e) => failed = Some(e),
        }
    }
    let no_reply = || (redis::ErrorKind::Io, "no node of the cluster answers").into();
    Err(CommandError::NotSent(failed.unwrap_or_else(no_reply)))
}

async fn handshake(
    connection: &mut MultiplexedConnection,
    is_cluster_node: bool,
) -> redis::RedisResult<Handshake> {
    let mut commands = redis::Pipeline::new();
    commands.cmd("HELLO");
    commands.cmd("INFO").arg("replication");
    if is_cluster_node {
        commands.cmd("CLUSTER").arg("INFO");
    }
    let count = commands.len();
    let replies = connection.send_packed_commands(&commands, 0, count).await?;
    let mut handshake = Handshake::default();
    // The user may lack permission for any of them; the fields are then unknown.
    if let Some(hello) = replies.first() {
        let mut fields = fields(hello);
        handshake.mode = fields.remove("mode");
        handshake.role = fields.remove("role");
    }
    let text = |reply: usize| match replies.get(reply)? {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    };
    let replication = |name: &str| info_field(&text(1)?, name).map(str::to_owned);
    handshake.role = handshake.role.or_else(|| replication("role:"));
    handshake.epoch = replication("master_replid:").map(|id| MasterEpoch {
        replication_id: Arc::from(id),
        is_cluster_node,
        number: text(2).as_deref().and_then(epoch_number),
    });
    Ok(handshake)
}

/// The failover number of a cluster node, in its `CLUSTER INFO`.
pub(super) fn epoch_number(info: &str) -> Option<u64> {
    info_field(info, "cluster_my_epoch:")?.parse().ok()
}

/// The value of `name:` in the text of an `INFO` command.
pub(super) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = info.lines();
    lines
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// The fields of a map, or of a flat list of keys and values, whose values are text.
pub(super) fn fields(value: &Value) -> HashMap<String, String> {
    let text = |value: &Value| match value {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::SimpleString(text) => Some(text.clone()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        Value::Int(number) => Some(number.to_string()),
        _ => None,
    };
    let pair = |key: &Value, value: &Value| Some((text(key)?, text(value)?));
    match value {
        Value::Map(pairs) => pairs.iter().filter_map(|(k, v)| pair(k, v)).collect(),
        Value::Array(flat) => {
            let pairs = flat.as_chunks::<2>().0.iter();
            pairs.filter_map(|[k, v]| pair(k, v)).collect()
        }
        _ => HashMap::new(),
    }
}
