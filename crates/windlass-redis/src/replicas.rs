//! Waiting for replicas: how many the URL asks for, and which server is asked about them.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;

use super::address::MultiHostUrl;
use super::claims::RedisClaims;
use super::cluster::Cluster;
use super::errors::CommandError;
use super::replica_ack::strange;
use super::router::Router;
use super::topology::Redirection;
use super::{keys, script};
use windlass_core::Owner;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Acknowledged, Kind, Replicas};

/// The usual patience with replicas.
const TIMEOUT: Duration = Duration::from_millis(100);
/// The longest.
const LONGEST: Duration = Duration::from_secs(60);
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
pub(super) fn take(hosts: &mut MultiHostUrl) -> Result<Option<Replicas>> {
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

impl RedisClaims {
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
                let [_, held, _] = keys::pool(kind, &name);
                held
            }
        };
        let mut check = redis::cmd("EVAL");
        check.arg(script::REPLICA_ACK.source()).arg(2);
        check.arg(claim).arg(keys::wait(&name));
        check.arg(kind.word()).arg(owner.as_str());
        let answer = match &*self.router {
            Router::Single(link) => link.witness().ask(check, wanted).await,
            Router::Cluster(cluster) => ask_owner(cluster, keys::slot(&name), check, wanted).await,
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
) -> Result<Acknowledged, CommandError> {
    let mut pause = PAUSE;
    for _ in 0..TURNS {
        let link = cluster.owner(slot).await?;
        let answer = link.witness().ask(check.clone(), wanted).await;
        match answer.as_ref().map_err(|f| Redirection::of(f, "")) {
            Err(Redirection::Moved(_) | Redirection::Ask(_) | Redirection::TryAgain) => {}
            Err(Redirection::NotSent) => {
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

fn explain(failure: CommandError, wanted: &Replicas) -> Error {
    let unknown = failure.code() == Some("ERR")
        && matches!(&failure, CommandError::Sent(e) if e.detail().is_some_and(|d| d.contains("unknown command")));
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
