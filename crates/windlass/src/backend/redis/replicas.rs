//! Waiting for replicas.
//!
//! `WAIT` is about what its own connection wrote last, and keeps that connection from all else. So a
//! connection of its own first makes a small write, if the claim is (still) there, and then waits.
//! Replication is in order: whoever has acknowledged that write has the grant before it. All who ask
//! while others wait are asked about together, in the next round.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Value};
use tokio::sync::{mpsc, oneshot};

use super::access::Hosts;
use super::cluster::Cluster;
use super::dialler::Dialler;
use super::link::pipeline;
use super::topology::Redirection;
use super::translate::Failure;
use super::wire::Wire;
use super::{Redis, keys, script};
use crate::backend::{Acknowledged, Kind, Replicas};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Owner;
use crate::name::Name;

/// The usual patience with replicas.
const TIMEOUT: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);
/// Claims asked about in one round.
const MOST: usize = 256;
/// Before somebody else is asked, in a cluster whose slots are on their way.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// How often: nobody has the patience for more.
const TURNS: u32 = 600;

/// What a URL says about replicas.
pub(super) fn from_parameters(
    count: Option<String>,
    timeout: Option<String>,
    on_disk: Option<String>,
) -> Result<Option<Replicas>> {
    let wrong = |what: String| {
        Err(Error::invalid("connect", what)
            .with_hint("for example ?replicas=1&replicas_timeout=100ms"))
    };
    let Some(count) = count else {
        if timeout.is_some() || on_disk.is_some() {
            return wrong("the URL says how to wait for replicas, but not for how many".into());
        }
        return Ok(None);
    };
    let Ok(count) = count.parse() else {
        return wrong(format!("replicas={count} is not a number of replicas"));
    };
    let timeout = match timeout.as_deref().map(duration) {
        None => TIMEOUT,
        Some(Some(timeout)) if timeout <= LONGEST => timeout,
        Some(_) => {
            return wrong("replicas_timeout is not a duration of 1ms to 60s, as in 100ms".into());
        }
    };
    let on_disk = match on_disk.as_deref() {
        None | Some("no") => false,
        Some("yes") => true,
        Some(other) => return wrong(format!("replicas_on_disk={other} is neither yes nor no")),
    };
    Ok(Some(Replicas {
        count,
        timeout,
        on_disk,
    }))
}

/// What the query of a URL says about replicas.
pub(super) fn take(hosts: &mut Hosts) -> Result<Option<Replicas>> {
    from_parameters(
        hosts.take("replicas"),
        hosts.take("replicas_timeout"),
        hosts.take("replicas_on_disk"),
    )
}

fn duration(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit())?);
    let number: u64 = digits.parse().ok().filter(|n| *n > 0)?;
    match unit {
        "ms" => Some(Duration::from_millis(number)),
        "s" => number.checked_mul(1_000).map(Duration::from_millis),
        _ => None,
    }
}

/// A claim to ask about.
#[derive(Debug)]
struct Job {
    check: Cmd,
    wanted: Replicas,
    answer: oneshot::Sender<Result<Acknowledged, Failure>>,
}

/// Asks one server about its replicas, over a connection of its own.
#[derive(Debug)]
pub(super) struct Witness(mpsc::UnboundedSender<Job>);

impl Witness {
    pub(super) fn start(dialler: Arc<Dialler>, call_timeout: Duration) -> Witness {
        let (jobs, inbox) = mpsc::unbounded_channel();
        tokio::spawn(work(dialler, call_timeout, inbox));
        Witness(jobs)
    }

    /// Waits until enough replicas have what `check` finds, or the time is up.
    pub(super) async fn ask(&self, check: Cmd, wanted: Replicas) -> Result<Acknowledged, Failure> {
        let (answer, reply) = oneshot::channel();
        let over = || Failure::Unsent((redis::ErrorKind::Io, "shut down").into());
        let job = Job {
            check,
            wanted,
            answer,
        };
        self.0.send(job).map_err(|_| over())?;
        reply.await.map_err(|_| over())?
    }
}

async fn work(
    dialler: Arc<Dialler>,
    call_timeout: Duration,
    mut inbox: mpsc::UnboundedReceiver<Job>,
) {
    let mut connection = None;
    loop {
        let mut jobs = Vec::new();
        if inbox.recv_many(&mut jobs, MOST).await == 0 {
            return;
        }
        while let Some(wanted) = jobs.first().map(|job| job.wanted) {
            let now: Vec<Job>;
            (now, jobs) = jobs.into_iter().partition(|job| job.wanted == wanted);
            let checks: Vec<Cmd> = now.iter().map(|job| job.check.clone()).collect();
            let limit = wanted.timeout + call_timeout;
            let ask = async |connection: &mut Option<MultiplexedConnection>| {
                let round = round(&dialler, call_timeout, connection, &checks, &wanted);
                let answers = tokio::time::timeout(limit, round).await;
                let late = || Failure::Sent((redis::ErrorKind::Io, "timed out").into());
                let answers = answers.unwrap_or_else(|_| Err(late()));
                if answers.is_err() {
                    *connection = None;
                }
                answers
            };
            let was_open = connection.is_some();
            let mut answers = ask(&mut connection).await;
            if was_open && is_doubtful(&answers) {
                // It broke while nobody used it, or leads to a server that was replaced since. To look and
                // wait a second time does no harm.
                connection = None;
                answers = ask(&mut connection).await;
            }
            let mut answers = answers.map(Vec::into_iter);
            for job in now {
                let answer = match &mut answers {
                    Ok(answers) => answers.next().unwrap_or_else(|| Err(strange())),
                    Err(failure) => Err(failure.clone()),
                };
                // Nobody may be listening any more; then the claim is being withdrawn.
                let _ = job.answer.send(answer);
            }
        }
    }
}

/// Whether another connection might lead to another answer.
fn is_doubtful(answers: &Result<Vec<Result<Acknowledged, Failure>>, Failure>) -> bool {
    match answers {
        Ok(answers) => answers.iter().any(|answer| match answer {
            Ok(found) => !found.is_held,
            Err(failure) => failure.is_no_master(),
        }),
        Err(Failure::Sent(e)) => e.is_connection_dropped() || e.code().is_some(),
        Err(_) => false,
    }
}

async fn round(
    dialler: &Dialler,
    call_timeout: Duration,
    connection: &mut Option<MultiplexedConnection>,
    checks: &[Cmd],
    wanted: &Replicas,
) -> Result<Vec<Result<Acknowledged, Failure>>, Failure> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            // It may wait for longer than any call: the limit is set above.
            let config = AsyncConnectionConfig::new()
                .set_connection_timeout(Some(call_timeout))
                .set_response_timeout(None);
            connection.insert(dialler.connect(&config).await?.0)
        }
    };
    let mut wait = redis::cmd(if wanted.on_disk { "WAITAOF" } else { "WAIT" });
    if wanted.on_disk {
        wait.arg(1);
    }
    // A timeout of zero would mean for ever.
    let millis = u64::try_from(wanted.timeout.as_millis()).unwrap_or(u64::MAX);
    wait.arg(wanted.count).arg(millis.max(1));
    let all = pipeline(checks.iter().cloned().chain([wait]));
    let sent = connection.send_packed_commands(&all, 0, checks.len() + 1);
    let mut answers = sent.await.map_err(Failure::Sent)?;
    let failed = |value: Value| match value {
        Value::ServerError(e) => Err(Failure::Sent(e.into())),
        value => Ok(value),
    };
    let (replicas, on_own_disk) = match failed(answers.pop().ok_or_else(strange)?)? {
        Value::Int(count) => (count, false),
        Value::Array(both) => match both.as_slice() {
            [Value::Int(local), Value::Int(count)] => (*count, *local > 0),
            _ => return Err(strange()),
        },
        _ => return Err(strange()),
    };
    let each = |value: Value| {
        Ok(Acknowledged {
            is_held: failed(value)? == Value::Int(1),
            replicas: u32::try_from(replicas).unwrap_or(0),
            on_own_disk,
        })
    };
    Ok(answers.into_iter().map(each).collect())
}

fn strange() -> Failure {
    Failure::Sent((redis::ErrorKind::Parse, "a strange answer to WAIT").into())
}

impl Redis {
    pub(super) async fn wait_for_replicas(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        wanted: Replicas,
    ) -> Result<Acknowledged> {
        let claim = match kind {
            Kind::Lock => name.as_str().to_owned(),
            kind => {
                let [_, held, _] = keys::room(kind, &name);
                held
            }
        };
        let mut check = redis::cmd("EVAL");
        check.arg(script::WITNESS.source()).arg(2);
        check.arg(claim).arg(keys::wait(&name));
        check.arg(kind.word()).arg(owner.as_str());
        let answer = match &*self.link {
            Wire::One(link) => link.witness().ask(check, wanted).await,
            Wire::Many(cluster) => ask_owner(cluster, keys::slot(&name), check, wanted).await,
        };
        answer.map_err(|failure| explain(failure, &wanted))
    }
}

/// Asks the node that has the slot, which may be another one than a moment ago. Whoever waits for the answer
/// has a limit.
async fn ask_owner(
    cluster: &Arc<Cluster>,
    slot: u16,
    check: Cmd,
    wanted: Replicas,
) -> Result<Acknowledged, Failure> {
    let mut pause = PAUSE;
    for _ in 0..TURNS {
        let link = cluster.owner(slot).await?;
        let answer = link.witness().ask(check.clone(), wanted).await;
        match answer.as_ref().map_err(|f| Redirection::of(f, "")) {
            Err(Redirection::Moved(_) | Redirection::Ask(_) | Redirection::TryAgain) => {}
            Err(Redirection::Unsent) => {
                let _ = cluster.refresh().await;
                if Arc::ptr_eq(&cluster.owner(slot).await?, &link) {
                    return answer;
                }
                continue;
            }
            _ => return answer,
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let _ = cluster.refresh().await;
    }
    Err(strange())
}

fn explain(failure: Failure, wanted: &Replicas) -> Error {
    let unknown = failure.code() == Some("ERR")
        && matches!(&failure, Failure::Sent(e) if e.detail().is_some_and(|d| d.contains("unknown command")));
    if wanted.on_disk && unknown {
        return Error::new(
            ErrorKind::Unsupported,
            "wait for replicas",
            "the server cannot tell what has reached a disk",
        )
        .with_hint("that takes Redis 7.2 or Valkey; without replicas_on_disk, 6.2 will do");
    }
    failure.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_say_how_many_and_how_long() {
        let parse = |count: Option<&str>, timeout: Option<&str>, on_disk: Option<&str>| {
            let own = |text: Option<&str>| text.map(str::to_owned);
            from_parameters(own(count), own(timeout), own(on_disk))
        };
        assert_eq!(parse(None, None, None).unwrap(), None);
        let usual = parse(Some("1"), None, None).unwrap().unwrap();
        assert_eq!(
            (usual.count, usual.timeout, usual.on_disk),
            (1, TIMEOUT, false)
        );
        let long = parse(Some("2"), Some("3s"), Some("yes")).unwrap().unwrap();
        assert_eq!((long.timeout, long.on_disk), (Duration::from_secs(3), true));
        for (count, timeout, on_disk) in [
            (None, Some("1s"), None),
            (Some("x"), None, None),
            (Some("-1"), None, None),
            (Some("1"), Some("5"), None),
            (Some("1"), Some("0ms"), None),
            (Some("1"), Some("61s"), None),
            (Some("1"), None, Some("maybe")),
        ] {
            let refused = parse(count, timeout, on_disk).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        }
    }
}
