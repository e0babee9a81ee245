//! Where a connection goes, and whether what answers there is what was meant.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Value};

use super::cluster::Cluster;
use super::sentinel::{Appointed, Sentinels};
use super::translate::{Failure, Refused};
use crate::error::ErrorKind;

/// Whom to connect to.
pub(super) enum Dialler {
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
pub(super) struct Greeting {
    mode: Option<String>,
    role: Option<String>,
    /// Changes whenever a server starts to be a master. Unknown if we may not ask.
    pub(super) reign: Option<Arc<str>>,
    /// Where it is, and since when it is the master, if that was to be found out.
    pub(super) appointed: Option<Appointed>,
}

impl Greeting {
    /// Whether it was a replica: then the reign is another server's.
    pub(super) fn is_replica(&self) -> bool {
        matches!(self.role.as_deref(), Some("replica" | "slave"))
    }
}

impl Dialler {
    pub(super) async fn connect(
        &self,
        config: &AsyncConnectionConfig,
    ) -> Result<(MultiplexedConnection, Greeting), Failure> {
        let reach = async |client: &redis::Client| {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(config)
                .await
                .map_err(Failure::Unsent)?;
            let greeting = greet(&mut connection).await.map_err(Failure::Unsent)?;
            self.check(&greeting)?;
            Ok((connection, greeting))
        };
        match self {
            Dialler::Server(client) | Dialler::Node(client) => reach(client).await,
            Dialler::Master(sentinels) => {
                let (appointed, client) = sentinels.master().await?;
                match reach(&client).await {
                    Ok((connection, mut greeting)) => {
                        greeting.appointed = Some(appointed);
                        Ok((connection, greeting))
                    }
                    Err(failure) => Err(failure.of_master(&appointed.address)),
                }
            }
            Dialler::AnyNode(cluster) => {
                let Some(cluster) = cluster.upgrade() else {
                    return Err(Failure::Unsent((redis::ErrorKind::Io, "shut down").into()));
                };
                let mut failed = None;
                for client in cluster.clients() {
                    match reach(&client).await {
                        Ok(connected) => return Ok(connected),
                        Err(failure) => failed = Some(failure),
                    }
                }
                Err(failed.unwrap_or_else(|| {
                    Failure::Unsent((redis::ErrorKind::Io, "no node is known").into())
                }))
            }
        }
    }

    /// Whether a master that cannot reach its replicas may have been replaced.
    pub(super) fn may_be_replaced(&self) -> bool {
        matches!(self, Dialler::Master(_))
    }

    fn check(&self, greeting: &Greeting) -> Result<(), Failure> {
        let mode = greeting.mode.as_deref().unwrap_or("unknown");
        let wrong = |message: &str, hint: &'static str| {
            Err(Failure::Refused(Refused {
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
            (Dialler::Server(_) | Dialler::Master(_), "cluster") => wrong(
                "the server is part of a Redis Cluster",
                "use redis+cluster://HOST,HOST",
            ),
            (Dialler::Node(_) | Dialler::AnyNode(_), "standalone") => wrong(
                "the server is not part of a Redis Cluster",
                "use redis://HOST for one server, redis+sentinel://HOST,HOST/SERVICE for sentinels",
            ),
            (Dialler::Master(_), _) if greeting.is_replica() => Err(Failure::Refused(Refused {
                kind: ErrorKind::Unreachable,
                message: "what the sentinels name as master is a replica: a failover is under \
                              way"
                .to_owned(),
                hint: "try again in a moment",
            })),
            _ => Ok(()),
        }
    }
}

async fn greet(connection: &mut MultiplexedConnection) -> redis::RedisResult<Greeting> {
    let mut questions = redis::Pipeline::new();
    questions.cmd("HELLO");
    questions.cmd("INFO").arg("replication");
    let answers = connection.send_packed_commands(&questions, 0, 2).await?;
    let mut greeting = Greeting::default();
    // Either may be denied to us: then we know less, and go on.
    if let Some(hello) = answers.first() {
        let mut fields = fields(hello);
        greeting.mode = fields.remove("mode");
        greeting.role = fields.remove("role");
    }
    if let Some(Value::BulkString(_) | Value::VerbatimString { .. }) = answers.get(1) {
        let info: String = redis::from_redis_value_ref(&answers[1])?;
        let field = |name: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(name))?;
            Some(line.trim().to_owned())
        };
        greeting.reign = field("master_replid:").map(Arc::from);
        greeting.role = greeting.role.or_else(|| field("role:"));
    }
    Ok(greeting)
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
