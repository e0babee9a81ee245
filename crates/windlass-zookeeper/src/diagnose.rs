//! `windlass doctor`: what an operator should know about an ensemble that keeps locks.

use std::time::Duration;

use super::documents::Documents;
use super::four_letter::four_letter_word;
use super::gate::GateDocument;
use super::session::{Session, longest_ttl, timeout_for_ttl};
use super::sessions::Sessions;
use windlass_core::DEFAULT_TTL;
use windlass_core::clock_skew::{LocalClock, Reading, Spread};
use windlass_core::error::Result;
use windlass_core::join::join_all;
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Problem, Warning};

/// How long to wait for one server's reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(1);

/// A server's reply to `srvr`.
#[derive(Debug, Default, PartialEq)]
struct SrvrReply {
    version: Option<String>,
    mode: Option<String>,
    zxid: Option<u64>,
}

pub(super) async fn diagnose(sessions: &Sessions, documents: &Documents) -> Result<Vec<Finding>> {
    let address = &sessions.address;
    let session = sessions.default_session().await?;
    let requests = address.hosts.iter().map(|host| {
        Box::pin(async move {
            let request = four_letter_word(address, host, "srvr");
            let reply = tokio::time::timeout(REPLY_TIMEOUT, request).await;
            (host, reply.ok().and_then(|reply| reply.ok()))
        })
    });
    let replies = join_all(requests.collect()).await;
    let config = session.retry(|client| client.get_config()).await?;
    let voters = config.map_or(0, |(text, _)| voters(&String::from_utf8_lossy(&text)));
    let mut findings = Vec::new();
    let (mut modes, mut zxid) = (Vec::new(), None);
    for (host, reply) in &replies {
        let info = reply.as_deref().map(parse).unwrap_or_default();
        findings.push(server(host, reply.is_some(), &info));
        modes.extend(info.mode);
        zxid = zxid.max(info.zxid);
    }
    findings.extend(zxid.map(last_fence));
    findings.push(ensemble(voters, replies.len(), &modes));
    findings.push(session_timeout(session.client().session_timeout()));
    findings.push(clock(documents, &session).await);
    findings.push(access(address.digest.is_some()));
    findings.push(encryption(address.tls.is_some()));
    Ok(findings)
}

fn parse(reply: &str) -> SrvrReply {
    let line = |name: &str| {
        let mut lines = reply.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let version = line("Zookeeper version:");
    SrvrReply {
        version: version.and_then(|v| Some(v.split(['-', ',']).next()?.to_owned())),
        mode: line("Mode:"),
        zxid: line("Zxid:").and_then(|zxid| u64::from_str_radix(zxid.strip_prefix("0x")?, 16).ok()),
    }
}

fn server(host: &str, replied: bool, info: &SrvrReply) -> Finding {
    match (&info.version, &info.mode) {
        (Some(version), Some(mode)) => {
            let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
            match (numbers.next(), numbers.next()) >= (Some(3), Some(5)) {
                true => Finding::new(
                    Fine,
                    "server",
                    format!("{host}: ZooKeeper {version}, {mode}"),
                ),
                false => Finding::new(
                    Problem,
                    "server",
                    format!("{host}: ZooKeeper {version} is not supported: it is older than 3.5"),
                ),
            }
        }
        _ if replied => Finding::new(
            Fine,
            "server",
            format!(
                "{host}: answers, but hides its version and role (srvr is not in 4lw.commands.whitelist)"
            ),
        ),
        _ => Finding::new(
            Warning,
            "server",
            format!(
                "{host}: cannot be reached; without a majority of servers no lock can be acquired"
            ),
        ),
    }
}

/// A fence is a transaction id, which has the number of the leader's election in its upper half: the
/// highest exact one comes after two million elections.
fn last_fence(zxid: u64) -> Finding {
    let advice = "Move to a new ensemble";
    Finding::of_exhausted_fences(zxid, advice).unwrap_or_else(|| {
        let message = format!("at most {zxid}, the last transaction: fences grow with it");
        Finding::new(Fine, "last fence", message)
    })
}

/// How many servers vote, by the ensemble's configuration.
fn voters(config: &str) -> usize {
    let server = |line: &&str| line.starts_with("server.") && !line.contains(":observer");
    config.lines().filter(server).count()
}

fn ensemble(voters: usize, named: usize, modes: &[String]) -> Finding {
    let alone = modes.iter().any(|mode| mode == "standalone");
    match voters.max(named) {
        _ if alone => Finding::new(
            Warning,
            "ensemble",
            "a single server: if it is down, no lock can be acquired; if its disk is lost, fences may decrease",
        ),
        0..=2 => Finding::new(
            Warning,
            "ensemble",
            format!("{voters} servers vote: the failure of one stops the ensemble"),
        ),
        count => Finding::new(
            Fine,
            "ensemble",
            format!(
                "{count} servers vote: locks keep working if {} of them fail",
                (count - 1) / 2
            ),
        ),
    }
}

fn session_timeout(timeout: Duration) -> Finding {
    let longest = longest_ttl(timeout);
    match timeout >= timeout_for_ttl(DEFAULT_TTL) {
        true => Finding::new(
            Fine,
            "sessions",
            format!("end after {timeout:?} without a ping: enough for a ttl of {longest:?}"),
        ),
        false => Finding::new(
            Problem,
            "sessions",
            format!(
                "end after at most {timeout:?} without a ping: a ttl of more than {longest:?}, such as \
                 the default of {DEFAULT_TTL:?}, is refused; raise maxSessionTimeout"
            ),
        ),
    }
}

/// The leader's clock against the local one. A server's clock is visible only in the time stamps of
/// writes, which the leader sets.
async fn clock(documents: &Documents, session: &Session) -> Finding {
    let ours = LocalClock::new();
    let sent = ours.now();
    match documents.leader_time::<GateDocument>(session).await {
        Ok(millis) => {
            let between = (sent, ours.now());
            let step = Duration::from_millis(1);
            let micros = millis.saturating_mul(1000);
            skew(Reading::new("the leader", micros, step, between))
        }
        Err(e) => Finding::new(
            Warning,
            "clock skew",
            format!("the leader's clock could not be read ({e}); {LOCKS}"),
        ),
    }
}

const LOCKS: &str =
    "sessions, and therefore locks, are timed by server ticks, which do not depend on the clock";

fn skew(leader: Reading) -> Finding {
    let clocks = [leader, Reading::ours()];
    let Some(spread) = Spread::of(&clocks).filter(Spread::matters) else {
        let apart = Spread::of(&clocks).map_or(0, |spread| spread.possible);
        let message = format!(
            "the leader's clock is within {apart} ms of this machine's, those of the other servers are not \
             visible; {LOCKS}; the leader's clock decides how long gates and latches are kept"
        );
        return Finding::new(Fine, "clock skew", message);
    };
    let Spread {
        ahead,
        behind,
        certain,
        ..
    } = spread;
    let message = format!(
        "{ahead} is at least {certain} ms ahead of {behind}: {LOCKS}; but the leader's clock decides how long gates \
         and latches are kept: longer or shorter by this difference after another server becomes the leader, if its \
         clock is right"
    );
    Finding::new(Warning, "clock skew", message)
}

fn access(digest: bool) -> Finding {
    match digest {
        true => Finding::new(
            Fine,
            "access",
            "only this user can read and change the nodes",
        ),
        false => Finding::new(
            Warning,
            "access",
            "without a user, every client that reaches the servers can break a lock",
        ),
    }
}

fn encryption(tls: bool) -> Finding {
    match tls {
        true => Finding::new(Fine, "encryption", "connections use TLS"),
        false => Finding::new(
            Warning,
            "encryption",
            "connections are not encrypted: use zookeeper+tls:// outside a trusted network",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use windlass_core::Fence;

    #[test]
    fn parses_server_replies() {
        let info = parse(
            "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on x\n\
             Latency min/avg/max: 0/0.0/0\nZxid: 0x100000003\nMode: follower\n",
        );
        assert_eq!(info.zxid, Some((1 << 32) + 3));
        assert_eq!(info.version.as_deref(), Some("3.8.0"));
        assert_eq!(info.mode.as_deref(), Some("follower"));
        assert_eq!(
            parse("srvr is not executed because it is not in the whitelist."),
            SrvrReply::default()
        );
        let config = "server.1=a:1:2:participant\nserver.2=b:1:2:observer\nversion=0\n";
        assert_eq!(voters(config), 1);
    }

    #[test]
    fn severity_follows_the_effect_on_locks() {
        let modes = |mode: &str| vec![mode.to_owned()];
        assert_eq!(ensemble(0, 1, &modes("standalone")).severity, Warning);
        assert_eq!(last_fence((1 << 32) + 3).severity, Fine);
        assert_eq!(last_fence(Fence::MAX.get()).severity, Problem);
        let five = ensemble(5, 3, &modes("leader"));
        assert!(five.severity == Fine && five.message.contains("if 2 of them"));
        assert_eq!(session_timeout(Duration::from_secs(40)).severity, Fine);
        assert_eq!(session_timeout(Duration::from_secs(20)).severity, Problem);
    }
}
