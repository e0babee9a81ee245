//! `redis+sentinel://`: which server is the master now.
//!
//! **Choosing the master.** All sentinels are asked at once, and the reply with the highest
//! configuration epoch counts: each failover has one, higher than the one before. At first only the
//! sentinel that leads the failover knows it. The others learn of it within seconds, and name the
//! old master until then, which may be back by now and take itself for the master. So the client
//! waits for all sentinels; once a majority has replied, only [`GRACE`] longer. If fewer reply,
//! their answer counts.
//!
//! **Two masters of one epoch.** A failover is not over while its leader waits for the replicas to
//! follow. If the new master fails in that time, and the other sentinels go back to the old one, the
//! leader takes their epoch for its own failover, and names its failed master with it until the next
//! failover. So among masters of the same epoch the one that most sentinels name counts, for clients
//! that connect and for those that are connected.
//!
//! How failovers are noticed: `sentinel/watch.rs`.

mod watch;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisError, RedisResult, Value};

pub(super) use self::watch::{FailoverNotices, watch};
use super::address::{HostPort, MultiHostUrl, ServerOptions, StoreOptions};
use super::connector::fields;
use super::errors::{CommandError, Rejection};
use super::first_enough::first_enough;
use windlass_core::error::{Error, ErrorKind, Result};

const EXAMPLE: &str =
    "for example redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster, with ports if not 26379";
const PORT: u16 = 26379;
/// How long the last sentinels are waited for when a majority has replied.
const GRACE: Duration = Duration::from_millis(250);

/// The sentinels of one service, and how to connect to the servers they name.
pub(super) struct Sentinels {
    service: String,
    sentinels: Vec<(HostPort, redis::Client)>,
    /// The last poll of each sentinel, while the connection to it lasts.
    polled: Mutex<Vec<Option<NamedMaster>>>,
    servers: ServerOptions,
    call_timeout: Duration,
}

/// A master as a sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    pub(super) address: HostPort,
    /// The number of the failover that made it the master.
    pub(super) config_epoch: u64,
}

impl NamedMaster {
    /// The master that counts among those that the sentinels name. The address decides between two
    /// that are named equally often, so that all clients choose the same one.
    fn newest(named: &[NamedMaster]) -> Option<&NamedMaster> {
        let rank = |master: &&NamedMaster| {
            let votes = named.iter().filter(|other| other == master).count();
            (master.config_epoch, votes, master.address.clone())
        };
        named.iter().max_by_key(rank)
    }
}

/// A sentinel's reply about the service.
pub(super) struct SentinelReply {
    pub(super) master: HostPort,
    fields: HashMap<String, String>,
}

impl SentinelReply {
    fn named_master(&self) -> NamedMaster {
        NamedMaster {
            address: self.master.clone(),
            config_epoch: self.number("config-epoch"),
        }
    }

    pub(super) fn number(&self, field: &str) -> u64 {
        let text = self.fields.get(field);
        text.and_then(|text| text.parse().ok()).unwrap_or(0)
    }
}

/// Why a sentinel did not name a master.
#[derive(Debug)]
pub(super) enum SentinelError {
    /// It does not monitor a service of that name.
    UnknownService,
    /// It is a server, not a sentinel.
    NotASentinel,
    Driver(RedisError),
}

impl From<RedisError> for SentinelError {
    fn from(e: RedisError) -> SentinelError {
        SentinelError::Driver(e)
    }
}

type SentinelResult = Result<SentinelReply, SentinelError>;

impl Sentinels {
    /// From a URL; also its options about the store.
    pub(super) fn parse(
        url: &str,
        call_timeout: Duration,
    ) -> Result<(Arc<Sentinels>, StoreOptions)> {
        let mut url = MultiHostUrl::parse(url, PORT, EXAMPLE)?;
        let wrong = |what: String| Err(Error::invalid("connect", what).with_hint(EXAMPLE));
        let (service, database) = match url.path.as_slice() {
            [] => return wrong("the URL names no service".into()),
            [service] => (service.clone(), 0),
            [service, database] => match database.parse() {
                Ok(number) if number >= 0 => (service.clone(), number),
                _ => return wrong(format!("{database:?} is not the number of a database")),
            },
            _ => return wrong("the path of the URL has more than a service and a database".into()),
        };
        let ca = url.take_ca()?;
        let options = url.take_store_options()?;
        let servers = ServerOptions {
            user: url.user.clone(),
            password: url.password.clone(),
            database,
            tls: url.tls,
            ca: ca.clone(),
        };
        let to_sentinels = ServerOptions {
            user: url.take("sentinel_user"),
            password: url.take("sentinel_password"),
            database: 0,
            tls: url.tls,
            ca,
        };
        url.check_all_taken()?;
        let client = |address: &HostPort| match to_sentinels.client(address) {
            Ok(client) => Ok((address.clone(), client)),
            Err(e) => Err(Error::invalid("connect", format!("{address}: {e}"))),
        };
        let sentinels: Result<Vec<_>> = url.hosts.iter().map(client).collect();
        let sentinels: Vec<_> = sentinels?;
        let sentinels = Sentinels {
            service,
            polled: Mutex::new(vec![None; sentinels.len()]),
            sentinels,
            servers,
            call_timeout,
        };
        Ok((Arc::new(sentinels), options))
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// How to connect to the servers.
    pub(super) fn servers(&self) -> &ServerOptions {
        &self.servers
    }

    /// How many sentinels the URL names.
    pub(super) fn count(&self) -> usize {
        self.sentinels.len()
    }

    pub(super) fn majority(&self) -> usize {
        self.count() / 2 + 1
    }

    /// The current master.
    pub(super) async fn master(&self) -> Result<(NamedMaster, redis::Client), CommandError> {
        let replies = self.ask_all(GRACE).await;
        let reply_of = |sentinel: &HostPort| {
            let theirs = |(who, reply): &(HostPort, SentinelResult)| {
                let reply = reply.as_ref().ok().filter(|_| who == sentinel)?;
                Some(reply.named_master())
            };
            replies.iter().find_map(theirs)
        };
        let polled = self.polled().clone();
        let named = self.sentinels.iter().zip(polled);
        let named = named.filter_map(|((who, _), polled)| reply_of(who).or(polled));
        let named: Vec<_> = named.collect();
        let Some(newest) = NamedMaster::newest(&named) else {
            return Err(self.no_master(replies));
        };
        let client = self
            .servers
            .client(&newest.address)
            .map_err(CommandError::NotSent)?;
        Ok((newest.clone(), client))
    }

    /// Whether the last polls name a master that counts instead of this one: another server, or the
    /// same one promoted again, which is another epoch.
    fn have_replaced(&self, ours: &NamedMaster) -> bool {
        let polled: Vec<_> = self.polled().iter().flatten().cloned().collect();
        let votes = |master: &NamedMaster| polled.iter().filter(|other| *other == master).count();
        NamedMaster::newest(&polled).is_some_and(|newest| {
            newest.config_epoch > ours.config_epoch
                || (newest.config_epoch == ours.config_epoch
                    && newest.address != ours.address
                    && votes(newest) >= self.majority())
        })
    }

    /// Asks every sentinel. Those that reply more than `grace` after the majority are left out.
    pub(super) async fn ask_all(&self, grace: Duration) -> Vec<(HostPort, SentinelResult)> {
        let ask = |(address, client): &(HostPort, redis::Client)| {
            let (address, client) = (address.clone(), client.clone());
            let (service, limit) = (self.service.clone(), self.call_timeout);
            Box::pin(async move {
                let config = config(limit);
                let reply = async {
                    let mut connection = client
                        .get_multiplexed_async_connection_with_config(&config)
                        .await?;
                    ask(&mut connection, &service).await
                };
                (address, reply.await)
            })
        };
        let asked = self.sentinels.iter().map(ask).collect();
        let enough = |replies: &[(HostPort, SentinelResult)]| {
            replies.iter().filter(|(_, reply)| reply.is_ok()).count() >= self.majority()
        };
        // Half of the timeout: the rest is for connecting to the master.
        first_enough(asked, self.call_timeout / 2, grace, enough).await
    }

    fn polled(&self) -> MutexGuard<'_, Vec<Option<NamedMaster>>> {
        self.polled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why no sentinel names a master.
    fn no_master(&self, replies: Vec<(HostPort, SentinelResult)>) -> CommandError {
        let rejected = |kind, message, hint| {
            CommandError::Rejected(Rejection {
                kind,
                message,
                hint,
            })
        };
        let errors = || replies.iter().filter_map(|(_, reply)| reply.as_ref().err());
        if errors().any(|e| matches!(e, SentinelError::UnknownService)) {
            return rejected(
                ErrorKind::InvalidInput,
                format!("the sentinels do not know the service {:?}", self.service),
                "use the name after \"sentinel monitor\" in their configuration",
            );
        }
        if errors().any(|e| matches!(e, SentinelError::NotASentinel)) {
            return rejected(
                ErrorKind::InvalidInput,
                "the URL leads to a server, not a sentinel".into(),
                "sentinels have their own port, by default 26379",
            );
        }
        let denied = |e: &SentinelError| {
            matches!(e, SentinelError::Driver(e)
                if e.kind() == redis::ErrorKind::AuthenticationFailed
                    || matches!(e.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")))
        };
        if errors().any(denied) {
            return rejected(
                ErrorKind::AccessDenied,
                "the sentinels refused access".into(),
                "sentinels have their own credentials: ?sentinel_user=…&sentinel_password=…",
            );
        }
        let silent = |(address, _): &(HostPort, redis::Client)| {
            let reply = replies.iter().find(|(who, _)| who == address);
            match reply.and_then(|(_, reply)| reply.as_ref().err()) {
                Some(SentinelError::Driver(e)) => format!("{address}: {e}"),
                _ => format!("{address}: no reply"),
            }
        };
        let each: Vec<String> = self.sentinels.iter().map(silent).collect();
        rejected(
            ErrorKind::Unreachable,
            format!("no sentinel answers ({})", each.join("; ")),
            "check that they are running, and hosts, ports and TLS in the URL",
        )
    }
}

async fn ask(connection: &mut MultiplexedConnection, service: &str) -> SentinelResult {
    let mut questions = redis::Pipeline::new();
    // In this order: if a failover happens between the two, the client gets the new address with
    // the old epoch, and corrects the epoch later. The other way round it would take the old
    // address for that of the new epoch, and keep it.
    for question in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
        questions.cmd("SENTINEL").arg(question).arg(service);
    }
    let replies = connection.send_packed_commands(&questions, 0, 2).await?;
    let fields = match replies.first() {
        Some(Value::ServerError(e)) => {
            let e = e.clone().into();
            return Err(explain(connection, e, replies.get(1)).await);
        }
        Some(reply) => fields(reply),
        None => Default::default(),
    };
    let malformed = || RedisError::from((redis::ErrorKind::Parse, "malformed reply of a sentinel"));
    // The sentinel that leads a failover has the old address among the fields, together with the
    // new epoch, until the other replicas are reconfigured; the second command gives the new
    // address.
    let named = replies.get(1).and_then(|reply| {
        let (host, port): (String, String) = redis::from_redis_value_ref(reply).ok()?;
        Some((host, port))
    });
    let (host, port) = match named {
        Some(named) => named,
        None => (
            fields.get("ip").ok_or_else(malformed)?.clone(),
            fields.get("port").ok_or_else(malformed)?.clone(),
        ),
    };
    let port = port.parse().map_err(|_| malformed())?;
    Ok(SentinelReply {
        master: HostPort { host, port },
        fields,
    })
}

/// Why `SENTINEL MASTER` failed. A sentinel has no error code for an unknown service, but has no
/// address for it either; a server has no error code for a command of sentinels, but tells its
/// mode.
async fn explain(
    connection: &mut MultiplexedConnection,
    error: RedisError,
    address: Option<&Value>,
) -> SentinelError {
    if address == Some(&Value::Nil) {
        return SentinelError::UnknownService;
    }
    let hello: RedisResult<Value> = redis::cmd("HELLO").query_async(connection).await;
    match hello.ok().and_then(|hello| fields(&hello).remove("mode")) {
        Some(mode) if mode != "sentinel" => SentinelError::NotASentinel,
        _ => SentinelError::Driver(error),
    }
}

fn config(limit: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(Some(limit))
}
