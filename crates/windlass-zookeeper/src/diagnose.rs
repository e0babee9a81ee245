//! What an operator should know about an ensemble that keeps locks.

use std::time::Duration;

use super::gate::GateDocument;
use super::session::Session;
use super::{Store, connector, session};
use windlass_core::DEFAULT_TTL;
use windlass_core::clock_skew::{OurClock, Reading, Spread};
use windlass_core::error::Result;
use windlass_core::join::join_all;
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Problem, Warning};

/// How long one server is given to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// What a server told of itself.
#[derive(Debug, Default, PartialEq)]
struct Told {
    version: Option<String>,
    mode: Option<String>,
}

pub(super) async fn examine(store: &Store) -> Result<Vec<Finding>> {
    let session = store.any_session().await?;
    let asked = store.address.hosts.iter().map(|host| {
        Box::pin(async move {
            let asked = connector::four_letters(&store.address, host, "srvr");
            let told = tokio::time::timeout(PATIENCE, asked).await;
            (host.clone(), told.ok().and_then(|told| told.ok()))
        })
    });
    let answers = join_all(asked.collect()).await;
    let config = session.ask(|client| client.get_config()).await?;
    let voters = config.map_or(0, |(text, _)| voters(&String::from_utf8_lossy(&text)));
    let mut findings = Vec::new();
    let mut modes = Vec::new();
    for (host, answer) in &answers {
        let told = answer.as_deref().map(read).unwrap_or_default();
        findings.push(server(host, answer.is_some(), &told));
        modes.extend(told.mode);
    }
    findings.push(ensemble(voters, answers.len(), &modes));
    findings.push(sessions(session.client().session_timeout()));
    findings.push(clock(store, &session).await);
    findings.push(access(store.address.digest.is_some()));
    findings.push(encryption(store.address.tls.is_some()));
    Ok(findings)
}

fn read(answer: &str) -> Told {
    let line = |name: &str| {
        let mut lines = answer.lines();
        lines.find_map(|line| Some(line.strip_prefix(name)?.trim().to_owned()))
    };
    let version = line("Zookeeper version:");
    Told {
        version: version.and_then(|v| Some(v.split(['-', ',']).next()?.to_owned())),
        mode: line("Mode:"),
    }
}

fn server(host: &str, answers: bool, told: &Told) -> Finding {
    match (&told.version, &told.mode) {
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
                    format!("{host}: ZooKeeper {version} is older than 3.5: not supported"),
                ),
            }
        }
        _ if answers => Finding::new(
            Fine,
            "server",
            format!(
                "{host}: answers, but tells nothing of itself (srvr is not in 4lw.commands.whitelist)"
            ),
        ),
        _ => Finding::new(
            Warning,
            "server",
            format!("{host}: cannot be reached; with too few servers left, nobody gets a lock"),
        ),
    }
}

/// How many servers have a vote, by the configuration that they keep.
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
            "a single server: if it is down nobody gets a lock, and if its disk is lost, fences may go back",
        ),
        0..=2 => Finding::new(
            Warning,
            "ensemble",
            format!("{voters} servers vote: the failure of one stops them all"),
        ),
        count => Finding::new(
            Fine,
            "ensemble",
            format!(
                "{count} servers vote: locks go on if {} of them fail",
                (count - 1) / 2
            ),
        ),
    }
}

fn sessions(timeout: Duration) -> Finding {
    let longest = session::longest_ttl(timeout);
    match timeout >= session::needed(DEFAULT_TTL) {
        true => Finding::new(
            Fine,
            "sessions",
            format!("end after {timeout:?} of silence: enough for a ttl of {longest:?}"),
        ),
        false => Finding::new(
            Problem,
            "sessions",
            format!(
                "end after {timeout:?} of silence at the latest: a ttl of more than {longest:?}, such \
                 as the usual {DEFAULT_TTL:?}, is refused; raise maxSessionTimeout"
            ),
        ),
    }
}

/// The clock of whoever leads, against ours: servers tell theirs only by what they date, and only the leader
/// dates anything.
async fn clock(store: &Store, session: &Session) -> Finding {
    let ours = OurClock::new();
    let asked = ours.now();
    match store.ask_time::<GateDocument>(session).await {
        Ok(told) => {
            let between = (asked, ours.now());
            let step = Duration::from_millis(1);
            let told = told.saturating_mul(1000);
            skew(Reading::new("the leader", told, step, between))
        }
        Err(e) => Finding::new(
            Warning,
            "clock skew",
            format!("the leader's clock is not known ({e}); {LOCKS}"),
        ),
    }
}

const LOCKS: &str = "sessions, and with them locks, are timed by ticks that no clock changes";

fn skew(leader: Reading) -> Finding {
    let clocks = [leader, Reading::ours()];
    let Some(spread) = Spread::of(&clocks).filter(Spread::matters) else {
        let apart = Spread::of(&clocks).map_or(0, |spread| spread.possible);
        let told = format!(
            "the leader's is within {apart} ms of this machine's, the others do not tell theirs; {LOCKS}; gates and \
             latches are remembered for so long by the clock of whoever leads"
        );
        return Finding::new(Fine, "clock skew", told);
    };
    let Spread {
        ahead,
        behind,
        certain,
        ..
    } = spread;
    let told = format!(
        "{ahead} is at least {certain} ms ahead of {behind}: {LOCKS}; but gates and latches are remembered by the \
         clock of whoever leads, and if the other servers' are right, longer or shorter by that when another one does"
    );
    Finding::new(Warning, "clock skew", told)
}

fn access(digest: bool) -> Finding {
    match digest {
        true => Finding::new(Fine, "access", "nodes can be used by this user alone"),
        false => Finding::new(
            Warning,
            "access",
            "without a user, anybody who reaches the servers can break a lock",
        ),
    }
}

fn encryption(tls: bool) -> Finding {
    match tls {
        true => Finding::new(Fine, "encryption", "connections use TLS"),
        false => Finding::new(
            Warning,
            "encryption",
            "connections are not encrypted: fine within one network that you trust, else use \
             zookeeper+tls://",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_servers_tell() {
        let told = read(
            "Zookeeper version: 3.8.0-5a02a05eddb59aee6ac762f7ea82e92a68eb9c0f, built on x\n\
             Latency min/avg/max: 0/0.0/0\nMode: follower\n",
        );
        assert_eq!(told.version.as_deref(), Some("3.8.0"));
        assert_eq!(told.mode.as_deref(), Some("follower"));
        assert_eq!(
            read("srvr is not executed because it is not in the whitelist."),
            Told::default()
        );
        let config = "server.1=a:1:2:participant\nserver.2=b:1:2:observer\nversion=0\n";
        assert_eq!(voters(config), 1);
    }

    #[test]
    fn says_what_it_means_for_a_lock() {
        let modes = |mode: &str| vec![mode.to_owned()];
        assert_eq!(ensemble(0, 1, &modes("standalone")).severity, Warning);
        let five = ensemble(5, 3, &modes("leader"));
        assert!(five.severity == Fine && five.message.contains("if 2 of them"));
        assert_eq!(sessions(Duration::from_secs(40)).severity, Fine);
        assert_eq!(sessions(Duration::from_secs(20)).severity, Problem);
    }
}
