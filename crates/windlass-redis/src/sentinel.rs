//! `redis+sentinel://`: which server is the master now.
//!
//! **Choosing the master.** All sentinels are asked at once, and the reply with the highest
//! configuration epoch counts: each failover has one, higher than the one before. At first only the
//! sentinel that leads the failover knows it. The others learn of it within seconds, and name the
//! old master until then, which may be back by now and take itself for the master. So the client
//! waits for all sentinels; once a majority has replied, only [`GRACE`] longer. If fewer reply,
//! their answer counts.
//!
//! **Noticing a failover.** A task for each sentinel subscribes to its announcements and also polls
//! it ([`watch`]): a single sentinel might be the one that is cut off. When one of them names a
//! newer master, the connection to the old one is dropped, although the old one may still answer.
//! The last poll of each sentinel also stands in for its reply when that is late: it may be the
//! only one that knows of the failover, and a client that connected by the word of the others would
//! have to leave again at once, over and over.
//!
//! **While connecting.** A failover that is announced while a connection is being made is kept in
//! [`FailoverNotices`] and compared with the master that was reached, before the connection is
//! used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, RedisError, RedisResult, Value};

use super::address::{HostPort, MultiHostUrl, ServerOptions, StoreOptions};
use super::connection::Connection;
use super::connector::fields;
use super::errors::{CommandError, Rejection};
use super::first_enough::first_enough;
use windlass_core::error::{Error, ErrorKind, Result};

const EXAMPLE: &str =
    "for example redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster, with ports if not 26379";
const PORT: u16 = 26379;
/// How long the last sentinels are waited for when a majority has replied.
const GRACE: Duration = Duration::from_millis(250);
/// Between two polls of a sentinel, and between two attempts to connect to it.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The sentinels of one service, and how to connect to the servers they name.
pub(super) struct Sentinels {
    service: String,
    sentinels: Vec<(HostPort, redis::Client)>,
    /// The last poll of each sentinel, while the connection to it lasts.
    polled: Mutex<Vec<Option<NamedMaster>>>,
    servers: ServerOptions,
    call_timeout: Duration,
}

/// The age of a sentinel's knowledge: the configuration epoch, and whether the sentinel is about to
/// tell the others. The higher, the newer.
type ConfigAge = (u64, bool);

/// A master as a sentinel names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    pub(super) address: HostPort,
    age: ConfigAge,
}

impl NamedMaster {
    /// The number of the failover that made it the master.
    pub(super) fn config_epoch(&self) -> u64 {
        self.age.0
    }

    /// Whether it became the master later: another server, or the same one promoted again, which is
    /// another epoch.
    fn replaces(&self, ours: &NamedMaster) -> bool {
        self.config_epoch() > ours.config_epoch()
    }
}

/// The masters that sentinels have named since the current attempt to connect started.
#[derive(Debug, Default)]
pub(super) struct FailoverNotices(Mutex<Vec<FailoverNotice>>);

/// A master, and the age of the notice if it is known.
type FailoverNotice = (HostPort, Option<ConfigAge>);

impl FailoverNotices {
    /// An attempt to connect starts.
    pub(super) fn clear(&self) {
        self.notices().clear();
    }

    fn add(&self, address: HostPort, age: Option<ConfigAge>) {
        let mut notices = self.notices();
        // Polls repeat the same notice, possibly for a long time without any attempt to connect.
        if !notices.contains(&(address.clone(), age)) {
            notices.push((address, age));
        }
    }

    /// Whether another server has been named as a newer master.
    pub(super) fn contradict(&self, ours: &NamedMaster) -> bool {
        let is_newer = |(address, age): &FailoverNotice| {
            *address != ours.address && age.is_none_or(|age| age > ours.age)
        };
        self.notices().iter().any(is_newer)
    }

    fn notices(&self) -> MutexGuard<'_, Vec<FailoverNotice>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A sentinel's reply about the service.
pub(super) struct SentinelReply {
    pub(super) master: HostPort,
    fields: HashMap<String, String>,
}

impl SentinelReply {
    /// Whether this sentinel leads a failover: until the other replicas follow the new master, its
    /// fields name the old one.
    fn is_leading(&self) -> bool {
        let port = self.master.port.to_string();
        let differs = |field: &str, now: &str| self.fields.get(field).is_some_and(|was| was != now);
        differs("ip", &self.master.host) || differs("port", &port)
    }

    fn named_master(&self) -> NamedMaster {
        NamedMaster {
            address: self.master.clone(),
            age: (self.number("config-epoch"), self.is_leading()),
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
        let masters = self.sentinels.iter().zip(polled);
        let masters = masters.filter_map(|((who, _), polled)| reply_of(who).or(polled));
        let Some(newest) = masters.max_by_key(|master| master.age) else {
            return Err(self.no_master(replies));
        };
        let client = self
            .servers
            .client(&newest.address)
            .map_err(CommandError::NotSent)?;
        Ok((newest, client))
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

/// Receives the failovers that a sentinel announces, so that an old master that still answers is
/// left at once.
struct FailoverListener {
    connection: Weak<Connection>,
    service: String,
}

impl AsyncPushSender for FailoverListener {
    fn send(&self, info: PushInfo) -> std::result::Result<(), SendError> {
        let Some(connection) = self.connection.upgrade() else {
            return Err(SendError);
        };
        if info.kind == PushKind::Message
            && let Some(Value::BulkString(text)) = info.data.get(1)
            && let Some(new) = switched_to(&String::from_utf8_lossy(text), &self.service)
        {
            // Noted before the current connection is compared: one that is being made is compared
            // with the notice.
            connection.failover_notices().add(new.clone(), None);
            let ours = connection.named_master();
            if ours.is_some_and(|ours| ours.address != new) {
                connection.abandon();
            }
        }
        Ok(())
    }
}

/// The new address in `SERVICE OLD-HOST OLD-PORT NEW-HOST NEW-PORT`, if it is about that service.
fn switched_to(announcement: &str, service: &str) -> Option<HostPort> {
    let words = announcement.strip_prefix(service)?.strip_prefix(' ')?;
    let words: Vec<&str> = words.split(' ').collect();
    let [_, _, host, port] = words[..] else {
        return None;
    };
    Some(HostPort {
        host: host.to_owned(),
        port: port.parse().ok()?,
    })
}

/// Watches all sentinels for failovers, as long as the connection to the master exists.
pub(super) fn watch(sentinels: &Arc<Sentinels>, connection: &Arc<Connection>) {
    for which in 0..sentinels.count() {
        tokio::spawn(watch_one(
            Arc::clone(sentinels),
            which,
            Arc::downgrade(connection),
        ));
    }
}

async fn watch_one(sentinels: Arc<Sentinels>, which: usize, connection: Weak<Connection>) {
    let mut was_lost = false;
    while connection.strong_count() > 0 {
        if let Err(e) = listen_and_poll(&sentinels, which, &connection, was_lost).await {
            tracing::debug!(error = ?e, "the connection to a sentinel was lost");
            sentinels.polled()[which] = None;
            was_lost = true;
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Until the connection to the sentinel breaks, or the one to the master is gone.
async fn listen_and_poll(
    sentinels: &Sentinels,
    which: usize,
    connection: &Weak<Connection>,
    was_lost: bool,
) -> Result<(), SentinelError> {
    let (_, client) = &sentinels.sentinels[which];
    let listener = FailoverListener {
        connection: connection.clone(),
        service: sentinels.service.clone(),
    };
    let config = config(sentinels.call_timeout).set_push_sender(listener);
    let mut to_sentinel = client
        .get_multiplexed_async_connection_with_config(&config)
        .await?;
    to_sentinel.subscribe("+switch-master").await?;
    if was_lost {
        // It may have been set up again, and count configuration epochs from the beginning.
        let master = sentinels.master().await;
        if let (Ok((master, _)), Some(connection)) = (master, connection.upgrade())
            && let Some(ours) = connection.named_master()
            && ours.address != master.address
        {
            connection.abandon();
        }
    }
    // Polled as well: an announcement may be missed, the connection may have been made by the word
    // of sentinels that did not know of the failover yet, and a sentinel that hangs must be
    // noticed.
    while connection.strong_count() > 0 {
        let reply = ask(&mut to_sentinel, &sentinels.service).await?;
        let now = reply.named_master();
        // Before the connection is abandoned, because the reconnect reads it.
        sentinels.polled()[which] = Some(now.clone());
        if let Some(connection) = connection.upgrade() {
            let notices = connection.failover_notices();
            notices.add(now.address.clone(), Some(now.age));
            let ours = connection.named_master();
            if ours.is_some_and(|ours| now.replaces(&ours)) {
                connection.abandon();
            }
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_notices_are_stored_once() {
        let notices = FailoverNotices::default();
        let master = |port| HostPort {
            host: "10.0.0.1".to_owned(),
            port,
        };
        for _ in 0..1000 {
            notices.add(master(1), Some((7, false)));
            notices.add(master(2), None);
        }
        assert_eq!(notices.notices().len(), 2);
        let ours = NamedMaster {
            address: master(1),
            age: (7, false),
        };
        assert!(notices.contradict(&ours));
        notices.clear();
        assert!(!notices.contradict(&ours));
    }

    #[test]
    fn failover_announcements_are_parsed() {
        let to = |text, service| switched_to(text, service).map(|a| a.to_string());
        let text = "main one 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(to(text, "main one").as_deref(), Some("10.0.0.2:6380"));
        assert_eq!(to(text, "main"), None);
        assert_eq!(to("main2 a 1 b 2", "main"), None);
        assert_eq!(to("main a 1 ::1 2", "main").as_deref(), Some("[::1]:2"));
        assert_eq!(to("main a 1", "main"), None);
    }
}
