//! Where a connection goes, and whether what answers there is what was meant.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use super::cluster::Cluster;
use super::errors::{CommandError, Rejection};
use super::first_enough::first_enough;
use super::master_epoch::MasterEpoch;
use super::sentinel::{NamedMaster, Sentinels};
use windlass_core::error::ErrorKind;

/// Whom to connect to.
pub(super) enum Connector {
    /// One server.
    Server(redis::Client),
    /// The master that sentinels name.
    Master(Arc<Sentinels>),
    /// One node of a cluster, at its address.
    Node(redis::Client),
    /// Any node of a cluster, to listen there.
    AnyNode(Weak<Cluster>),
}

/// What a server says of itself.
#[derive(Debug, Default)]
pub(super) struct Handshake {
    mode: Option<String>,
    role: Option<String>,
    /// Changes whenever a server starts to be a master. Unknown if we may not ask.
    pub(super) reign: Option<MasterEpoch>,
    /// Where it is, and since when it is the master, if that was to be found out.
    pub(super) appointed: Option<NamedMaster>,
}

impl Handshake {
    /// Whether it was a replica: then the reign is another server's.
    pub(super) fn is_replica(&self) -> bool {
        matches!(self.role.as_deref(), Some("replica" | "slave"))
    }
}

impl Connector {
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Handshake), CommandError> {
        let reach = async |client: &redis::Client| {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(config)
                .await
                .map_err(CommandError::NotSent)?;
            let is_node = matches!(self, Connector::Node(_));
            let greeting = greet(&mut connection, is_node).await;
            let greeting = greeting.map_err(CommandError::NotSent)?;
            self.check(&greeting)?;
            Ok((connection, greeting))
        };
        match self {
            Connector::Server(client) | Connector::Node(client) => reach(client).await,
            Connector::Master(sentinels) => {
                let (appointed, client) = sentinels.master().await?;
                match reach(&client).await {
                    Ok((connection, mut greeting)) => {
                        if let Some(reign) = &mut greeting.reign {
                            reign.epoch = Some(appointed.epoch());
                        }
                        greeting.appointed = Some(appointed);
                        Ok((connection, greeting))
                    }
                    Err(failure) => Err(failure.of_master(&appointed.address)),
                }
            }
            Connector::AnyNode(cluster) => {
                let Some(cluster) = cluster.upgrade() else {
                    return Err(CommandError::NotSent(
                        (redis::ErrorKind::Io, "shut down").into(),
                    ));
                };
                let found = first_to_answer(cluster.clients(), cluster.call_timeout()).await?;
                reach(&found).await
            }
        }
    }

    /// Whether a master that cannot reach its replicas may have been replaced.
    pub(super) fn may_be_replaced(&self) -> bool {
        matches!(self, Connector::Master(_))
    }

    fn check(&self, greeting: &Handshake) -> Result<(), CommandError> {
        let mode = greeting.mode.as_deref().unwrap_or("unknown");
        let wrong = |message: &str, hint: &'static str| {
            Err(CommandError::Rejected(Rejection {
                kind: ErrorKind::InvalidInput,
                message: message.to_owned(),
                hint,
            }))
        };
        match (self, mode) {
            (_, "sentinel") => wrong(
                "this is a sentinel, not a server that keeps data",
                "name the sentinels and the service: redis+sentinel://HOST,HOST/SERVICE",
            ),
            (Connector::Server(_) | Connector::Master(_), "cluster") => wrong(
                "the server is part of a Redis Cluster",
                "use redis+cluster://HOST,HOST",
            ),
            (Connector::Node(_) | Connector::AnyNode(_), "standalone") => wrong(
                "the server is not part of a Redis Cluster",
                "use redis://HOST for one server, redis+sentinel://HOST,HOST/SERVICE for sentinels",
            ),
            (Connector::Master(_), _) if greeting.is_replica() => {
                Err(CommandError::Rejected(Rejection {
                    kind: ErrorKind::Unreachable,
                    message: "what the sentinels name as master is a replica: a failover is under \
                              way"
                    .to_owned(),
                    hint: "try again in a moment",
                }))
            }
            _ => Ok(()),
        }
    }
}

/// The node that answers first. Those that are asked later have the less time, and so many of them may be
/// silent without using up all that there is; most of the time the first one answers before a second is asked.
///
/// They are asked over connections that nobody listens to: of several that do, those that are given up would
/// say that they are gone.
async fn first_to_answer(
    nodes: Vec<redis::Client>,
    call_timeout: Duration,
) -> Result<redis::Client, CommandError> {
    let apart = call_timeout / 16;
    let ask = |(i, client): (u32, redis::Client)| {
        Box::pin(async move {
            tokio::time::sleep(apart * i).await;
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(call_timeout))
                .set_response_timeout(Some(call_timeout));
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            greet(&mut connection, false).await?;
            redis::RedisResult::Ok(client)
        })
    };
    let asked = (0..).zip(nodes).map(ask).collect();
    let one = |answers: &[redis::RedisResult<redis::Client>]| answers.iter().any(Result::is_ok);
    let answers = first_enough(asked, call_timeout, Duration::ZERO, one).await;
    let mut failed = None;
    for answer in answers {
        match answer {
            Ok(client) => return Ok(client),
            Err(e) => failed = Some(e),
        }
    }
    let nobody = || (redis::ErrorKind::Io, "no node of the cluster answers").into();
    Err(CommandError::NotSent(failed.unwrap_or_else(nobody)))
}

async fn greet(
    connection: &mut MultiplexedConnection,
    is_node: bool,
) -> redis::RedisResult<Handshake> {
    let mut questions = redis::Pipeline::new();
    questions.cmd("HELLO");
    questions.cmd("INFO").arg("replication");
    if is_node {
        questions.cmd("CLUSTER").arg("INFO");
    }
    let count = questions.len();
    let answers = connection
        .send_packed_commands(&questions, 0, count)
        .await?;
    let mut greeting = Handshake::default();
    // Any of them may be denied to us: then we know less, and go on.
    if let Some(hello) = answers.first() {
        let mut fields = fields(hello);
        greeting.mode = fields.remove("mode");
        greeting.role = fields.remove("role");
    }
    let text = |answer: usize| match answers.get(answer)? {
        Value::BulkString(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        Value::VerbatimString { text, .. } => Some(text.clone()),
        _ => None,
    };
    let field = |answer: usize, name: &str| field(&text(answer)?, name);
    greeting.role = greeting.role.or_else(|| field(1, "role:"));
    greeting.reign = field(1, "master_replid:").map(|id| MasterEpoch {
        id: Arc::from(id),
        is_node,
        epoch: text(2).as_deref().and_then(epoch_of),
    });
    Ok(greeting)
}

/// By which decision a node has its slots, in what it says to `CLUSTER INFO`.
pub(super) fn epoch_of(info: &str) -> Option<u64> {
    field(info, "cluster_my_epoch:")?.parse().ok()
}

fn field(info: &str, name: &str) -> Option<String> {
    let line = info.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().to_owned())
}

/// The fields of a map (or of a list that stands for one) whose values are text.
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
