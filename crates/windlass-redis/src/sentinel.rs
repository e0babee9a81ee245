//! `redis+sentinel://`: which server is the master now.
//!
//! All sentinels are asked at once. A failover has a number, the configuration epoch, and the answer with
//! the highest one counts. At first only the sentinel that leads the failover knows of it: the others hear
//! of it within seconds, and name the old master until then, which may have come back by now and believe
//! itself a master. So all are waited for, but when most have answered, the others only for a moment. If
//! fewer answer, what they say has to do.
//!
//! All are listened to as well: the one that was chosen to listen to might be the one that is cut off. What
//! one of them has said there lately stands for its answer, if that is late: it may be the only one that knows, and
//! whoever dialled by the word of the others would be told by it to leave again, over and over.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{AsyncConnectionConfig, PushInfo, PushKind, Value};

use super::address::{HostPort, MultiHostUrl, ServerOptions};
use super::connection::Connection;
use super::connector::fields;
use super::errors::{CommandError, Rejection};
use super::first_enough::first_enough;
use super::replicas;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::Replicas;

const EXAMPLE: &str =
    "for example redis+sentinel://10.0.0.1,10.0.0.2,10.0.0.3/mymaster, with ports if not 26379";
const PORT: u16 = 26379;
/// How long the last sentinels are waited for, when most have answered.
const GRACE: Duration = Duration::from_millis(250);
/// Between two looks at a sentinel that is listened to, and two tries to listen to it.
const PAUSE: Duration = Duration::from_millis(500);

/// The sentinels of one service, and how to reach what they name.
pub(super) struct Sentinels {
    service: String,
    sentinels: Vec<(HostPort, redis::Client)>,
    /// What each of them said last over the connection on which it is listened to, while that lasts.
    said: Mutex<Vec<Option<NamedMaster>>>,
    servers: ServerOptions,
    call_timeout: Duration,
}

/// A server that sentinels have made the master, and by which of their decisions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedMaster {
    pub(super) address: HostPort,
    /// The higher, the newer: the number, and whether whoever says so is just about to tell the others.
    age: (u64, bool),
}

impl NamedMaster {
    /// The number of the decision.
    pub(super) fn epoch(&self) -> u64 {
        self.age.0
    }

    /// Whether it was appointed later: another master, or the same made so anew, which is another reign.
    fn replaces(&self, ours: &NamedMaster) -> bool {
        self.epoch() > ours.epoch()
    }
}

/// What was heard of masters since a dial was begun: by its end, whom it reached may have been replaced.
#[derive(Debug, Default)]
pub(super) struct FailoverNotices(Mutex<Vec<Heard>>);

/// Who is the master, and by which decision, if that was said.
type Heard = (HostPort, Option<(u64, bool)>);

impl FailoverNotices {
    /// A dial begins.
    pub(super) fn begin(&self) {
        self.heard().clear();
    }

    fn add(&self, address: HostPort, age: Option<(u64, bool)>) {
        let mut heard = self.heard();
        // Nobody may dial for a long time, and the same is said again and again.
        if !heard.contains(&(address.clone(), age)) {
            heard.push((address, age));
        }
    }

    /// Whether somebody else has been made the master since that one.
    pub(super) fn contradicts(&self, ours: &NamedMaster) -> bool {
        let is_other = |(address, age): &Heard| {
            *address != ours.address && age.is_none_or(|age| age > ours.age)
        };
        self.heard().iter().any(is_other)
    }

    fn heard(&self) -> MutexGuard<'_, Vec<Heard>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a sentinel knows of the service.
pub(super) struct SentinelReply {
    pub(super) master: HostPort,
    pub(super) fields: std::collections::HashMap<String, String>,
}

impl SentinelReply {
    /// Among the fields, the leader of a failover tells of the old address until the other replicas follow
    /// the new master.
    fn is_leading(&self) -> bool {
        let port = self.master.port.to_string();
        let differs = |field: &str, now: &str| self.fields.get(field).is_some_and(|was| was != now);
        differs("ip", &self.master.host) || differs("port", &port)
    }

    fn appointed(&self) -> NamedMaster {
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

impl Sentinels {
    /// From a URL; also what it says about replicas.
    pub(super) fn parse(
        url: &str,
        call_timeout: Duration,
    ) -> Result<(Arc<Sentinels>, Option<Replicas>)> {
        let mut hosts = MultiHostUrl::parse(url, PORT, EXAMPLE)?;
        let wrong = |what: String| Err(Error::invalid("connect", what).with_hint(EXAMPLE));
        let (service, database) = match hosts.path.as_slice() {
            [] => return wrong("the URL names no service".into()),
            [service] => (service.clone(), 0),
            [service, database] => match database.parse() {
                Ok(number) if number >= 0 => (service.clone(), number),
                _ => return wrong(format!("{database:?} is not the number of a database")),
            },
            _ => return wrong("after the service and the database, nothing follows".into()),
        };
        let ca = hosts.take_ca()?;
        let replicas = replicas::take(&mut hosts)?;
        let servers = ServerOptions {
            user: hosts.user.clone(),
            password: hosts.password.clone(),
            database,
            tls: hosts.tls,
            ca: ca.clone(),
        };
        let to_sentinels = ServerOptions {
            user: hosts.take("sentinel_user"),
            password: hosts.take("sentinel_password"),
            database: 0,
            tls: hosts.tls,
            ca,
        };
        hosts.nothing_left()?;
        let client = |address: &HostPort| match to_sentinels.client(address) {
            Ok(client) => Ok((address.clone(), client)),
            Err(e) => Err(Error::invalid("connect", format!("{address}: {e}"))),
        };
        let sentinels: Result<Vec<_>> = hosts.hosts.iter().map(client).collect();
        let sentinels: Vec<_> = sentinels?;
        let found = Sentinels {
            service,
            said: Mutex::new(vec![None; sentinels.len()]),
            sentinels,
            servers,
            call_timeout,
        };
        Ok((Arc::new(found), replicas))
    }

    pub(super) fn service(&self) -> &str {
        &self.service
    }

    /// How the servers are reached.
    pub(super) fn servers(&self) -> &ServerOptions {
        &self.servers
    }

    /// How many the URL names.
    pub(super) fn count(&self) -> usize {
        self.sentinels.len()
    }

    /// How many are more than half.
    pub(super) fn most(&self) -> usize {
        self.count() / 2 + 1
    }

    /// Who is the master.
    pub(super) async fn master(&self) -> Result<(NamedMaster, redis::Client), CommandError> {
        let answers = self.ask_all(GRACE).await;
        let answer_of = |sentinel: &HostPort| {
            let theirs = |(who, answer): &(HostPort, redis::RedisResult<SentinelReply>)| {
                let known = answer.as_ref().ok().filter(|_| who == sentinel)?;
                Some(known.appointed())
            };
            answers.iter().find_map(theirs)
        };
        let said = self.said().clone();
        let known = self.sentinels.iter().zip(said);
        let known = known.filter_map(|((who, _), said)| answer_of(who).or(said));
        let Some(best) = known.max_by_key(|known| known.age) else {
            return Err(self.nobody_knows(answers));
        };
        let client = self
            .servers
            .client(&best.address)
            .map_err(CommandError::NotSent)?;
        Ok((best, client))
    }

    /// What each sentinel says; those that come later than most by more than `grace` are left out.
    pub(super) async fn ask_all(
        &self,
        grace: Duration,
    ) -> Vec<(
        HostPort,
        std::result::Result<SentinelReply, redis::RedisError>,
    )> {
        let ask = |(address, client): &(HostPort, redis::Client)| {
            let (address, client) = (address.clone(), client.clone());
            let (service, limit) = (self.service.clone(), self.call_timeout);
            Box::pin(async move {
                let config = config(limit);
                let answer = async {
                    let mut connection = client
                        .get_multiplexed_async_connection_with_config(&config)
                        .await?;
                    look(&mut connection, &service).await
                };
                (address, answer.await)
            })
        };
        let asked = self.sentinels.iter().map(ask).collect();
        let known = |answers: &[(HostPort, redis::RedisResult<SentinelReply>)]| {
            answers.iter().filter(|(_, answer)| answer.is_ok()).count() >= self.most()
        };
        // Those who do not answer must not take all the time that the caller has.
        first_enough(asked, self.call_timeout / 2, grace, known).await
    }

    fn said(&self) -> MutexGuard<'_, Vec<Option<NamedMaster>>> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn nobody_knows(
        &self,
        answers: Vec<(HostPort, redis::RedisResult<SentinelReply>)>,
    ) -> CommandError {
        let refused = |kind, message, hint| {
            CommandError::Rejected(Rejection {
                kind,
                message,
                hint,
            })
        };
        let errors = || {
            answers
                .iter()
                .filter_map(|(_, answer)| answer.as_ref().err())
        };
        if errors().any(is_unknown_service) {
            return refused(
                ErrorKind::InvalidInput,
                format!("the sentinels know no service {:?}", self.service),
                "the name is what stands behind \"sentinel monitor\" in their configuration",
            );
        }
        if errors().any(is_no_sentinel) {
            return refused(
                ErrorKind::InvalidInput,
                "what answers is a server, not a sentinel".into(),
                "sentinels listen on a port of their own, 26379 unless told otherwise",
            );
        }
        let denied = |e: &redis::RedisError| {
            e.kind() == redis::ErrorKind::AuthenticationFailed
                || matches!(e.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM"))
        };
        if errors().any(denied) {
            return refused(
                ErrorKind::AccessDenied,
                "the sentinels refused access".into(),
                "sentinels have credentials of their own: ?sentinel_user=…&sentinel_password=…",
            );
        }
        let silent = |(address, _): &(HostPort, Client)| {
            let heard = answers.iter().find(|(who, _)| who == address);
            match heard.and_then(|(_, answer)| answer.as_ref().err()) {
                Some(e) => format!("{address}: {e}"),
                None => format!("{address}: no answer"),
            }
        };
        type Client = redis::Client;
        let each: Vec<String> = self.sentinels.iter().map(silent).collect();
        refused(
            ErrorKind::Unreachable,
            format!("no sentinel answers ({})", each.join("; ")),
            "are they running, and are hosts, ports and TLS right?",
        )
    }
}

async fn look(
    connection: &mut MultiplexedConnection,
    service: &str,
) -> redis::RedisResult<SentinelReply> {
    let mut questions = redis::Pipeline::new();
    // In this order: of a failover between the two answers, the new address must be heard, if with an old number.
    // The other way round, the old address would be believed by the new number, and by no later one be left.
    for question in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
        questions.cmd("SENTINEL").arg(question).arg(service);
    }
    let answers = connection.send_packed_commands(&questions, 0, 2).await?;
    let fields = match answers.first() {
        Some(Value::ServerError(e)) => return Err(e.clone().into()),
        Some(answer) => fields(answer),
        None => Default::default(),
    };
    let strange = || redis::RedisError::from((redis::ErrorKind::Parse, "a strange answer"));
    // The sentinel that leads a failover tells of the old address among the fields, with the epoch of the
    // new one, for as long as the other replicas are being told; asked for the address alone, of the new.
    let named = answers.get(1).and_then(|answer| {
        let (host, port): (String, String) = redis::from_redis_value_ref(answer).ok()?;
        Some((host, port))
    });
    let (host, port) = match named {
        Some(named) => named,
        None => (
            fields.get("ip").ok_or_else(strange)?.clone(),
            fields.get("port").ok_or_else(strange)?.clone(),
        ),
    };
    let port = port.parse().map_err(|_| strange())?;
    Ok(SentinelReply {
        master: HostPort { host, port },
        fields,
    })
}

fn config(limit: Duration) -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(limit))
        .set_response_timeout(Some(limit))
}

fn is_unknown_service(e: &redis::RedisError) -> bool {
    e.to_string().contains("No such master")
}

fn is_no_sentinel(e: &redis::RedisError) -> bool {
    let text = e.to_string();
    text.contains("unknown command") && text.to_ascii_uppercase().contains("SENTINEL")
}

/// Subscriber of failovers, so that an old master that still answers is left at once.
struct Ear(Weak<Connection>, String);

impl AsyncPushSender for Ear {
    fn send(&self, info: PushInfo) -> std::result::Result<(), SendError> {
        let Some(link) = self.0.upgrade() else {
            return Err(SendError);
        };
        if info.kind == PushKind::Message
            && let Some(Value::BulkString(text)) = info.data.get(1)
            && let Some(new) = switched_to(&String::from_utf8_lossy(text), &self.1)
        {
            // Before the look at whom we have: whoever is about to be taken is compared with it.
            link.hearsay().add(new.clone(), None);
            if link.appointed().is_some_and(|ours| ours.address != new) {
                link.leave();
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

/// Listens to all sentinels, for as long as the link lives.
pub(super) fn watch(sentinels: &Arc<Sentinels>, link: &Arc<Connection>) {
    for which in 0..sentinels.count() {
        tokio::spawn(watch_one(
            Arc::clone(sentinels),
            which,
            Arc::downgrade(link),
        ));
    }
}

async fn watch_one(sentinels: Arc<Sentinels>, which: usize, link: Weak<Connection>) {
    let (_, client) = &sentinels.sentinels[which];
    let mut was_lost = false;
    while link.strong_count() > 0 {
        let ear = Ear(link.clone(), sentinels.service.clone());
        let config = config(sentinels.call_timeout).set_push_sender(ear);
        let listening = async {
            let mut connection = client
                .get_multiplexed_async_connection_with_config(&config)
                .await?;
            connection.subscribe("+switch-master").await?;
            if was_lost {
                // It may have been set up anew, and count its decisions from the beginning.
                let master = sentinels.master().await;
                if let (Ok((master, _)), Some(link)) = (master, link.upgrade())
                    && link
                        .appointed()
                        .is_some_and(|ours| ours.address != master.address)
                {
                    link.leave();
                }
            }
            // Until it breaks, or the link is gone. An announcement may have been missed, or the link have
            // been dialled since by the word of those who had not heard of it; and a sentinel that hangs is
            // noticed.
            while link.strong_count() > 0 {
                let known = look(&mut connection, &sentinels.service).await?;
                let now = known.appointed();
                // Before anybody leaves for it, and so asks.
                sentinels.said()[which] = Some(now.clone());
                if let Some(link) = link.upgrade() {
                    link.hearsay().add(now.address.clone(), Some(now.age));
                    if link.appointed().is_some_and(|ours| now.replaces(&ours)) {
                        link.leave();
                    }
                }
                tokio::time::sleep(PAUSE).await;
            }
            redis::RedisResult::Ok(())
        };
        if let Err(e) = listening.await {
            tracing::debug!(error = %e, "a sentinel was lost");
            sentinels.said()[which] = None;
            was_lost = true;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_sentinels_say_again_and_again_is_kept_once() {
        let hearsay = FailoverNotices::default();
        let master = |port| HostPort {
            host: "10.0.0.1".to_owned(),
            port,
        };
        // Nobody dials all the while.
        for _ in 0..1000 {
            hearsay.add(master(1), Some((7, false)));
            hearsay.add(master(2), None);
        }
        assert_eq!(hearsay.heard().len(), 2);
        let ours = NamedMaster {
            address: master(1),
            age: (7, false),
        };
        assert!(hearsay.contradicts(&ours));
        hearsay.begin();
        assert!(!hearsay.contradicts(&ours));
    }

    #[test]
    fn announcements_are_understood() {
        let to = |text, service| switched_to(text, service).map(|a| a.to_string());
        let text = "main one 10.0.0.1 6379 10.0.0.2 6380";
        assert_eq!(to(text, "main one").as_deref(), Some("10.0.0.2:6380"));
        assert_eq!(to(text, "main"), None);
        assert_eq!(to("main2 a 1 b 2", "main"), None);
        assert_eq!(to("main a 1 ::1 2", "main").as_deref(), Some("[::1]:2"));
        assert_eq!(to("main a 1", "main"), None);
    }
}
