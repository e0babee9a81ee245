//! Sessions: what keeps claims alive.
//!
//! A claim's node lives as long as the session that created it. The server ends a session that it has
//! not heard of for the session's timeout; so claims of one ttl share a session whose timeout fits that
//! ttl. Most programs have one ttl, and so one session.
//!
//! **How long a claim may be relied upon.** The keeper counts a claim's validity from before a request
//! was sent that the store confirmed, for one ttl. What confirms is a transaction, which a majority of
//! servers has agreed to: a server that is cut off cannot confirm anything. But *that* the session is
//! alive reaches the leader, who ends sessions, by another way: the server that we are connected to
//! passes it on with its answers to the leader's pings, each half a tick, and what it passes on may be
//! as old as the client's last ping. So a session must outlive the ttl by half a tick (1 s at the usual
//! 2 s) and by the longest pause between two of the client's pings (15 % of the timeout).

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::{Instant, timeout_at};
use zookeeper_client::{Client, Error as ZkError, SessionState};

use super::address::Address;
use super::errors::{is_lost, translate};
use super::{connector, probe};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::GrantListener;

/// Half of the usual tick.
const HALF_TICK: Duration = Duration::from_secs(1);
/// The longest pause between two pings of the client, in percent of the timeout.
const PING_GAP: u32 = 15;
/// After so much silence, in percent of the timeout, another connection is tried. The client pings
/// after three eighths of it, and looks at the clock each eighth: half of it is the longest pause.
const SILENCE: u32 = 2 * PING_GAP;
/// The longest timeout that can be asked for.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

/// The timeout that a session for claims of this ttl must have at least.
pub(super) fn needed(ttl: Duration) -> Duration {
    ((ttl + HALF_TICK) * 100 / (100 - PING_GAP)).min(LONGEST)
}

/// The longest ttl that a session of this timeout can keep.
pub(super) fn longest_ttl(timeout: Duration) -> Duration {
    (timeout * (100 - PING_GAP) / 100).saturating_sub(HALF_TICK)
}

/// The timeout to ask for, of a few that are common: so that there are only a few sessions.
pub(super) fn class(needed: Duration) -> Duration {
    const STEPS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];
    let needed = needed.as_millis() as u64;
    let mut decade = 1;
    loop {
        let fits = |step: &&u64| **step * decade >= needed;
        if let Some(step) = STEPS.iter().find(fits) {
            return Duration::from_millis(step * decade).min(LONGEST);
        }
        decade *= 10;
    }
}

/// One session, shared by all claims of its class.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    call_timeout: Duration,
}

impl Session {
    /// Opens a session. All of it takes no longer than the call timeout.
    pub(super) async fn open(
        address: &Address,
        timeout: Duration,
        call_timeout: Duration,
    ) -> Result<Session> {
        let until = Instant::now() + call_timeout * 9 / 10;
        // One alone is tried by connecting: a server may have room for no more than that.
        let hosts = match address.hosts.as_slice() {
            [_] => address.hosts.clone(),
            _ => probe::reachable(address, call_timeout / 2).await?,
        };
        let mut connector = Client::connector()
            .with_session_timeout(timeout)
            .with_connection_timeout(timeout * SILENCE / 100)
            .with_fail_eagerly();
        if let Some(digest) = &address.digest {
            connector = connector.with_auth("digest", digest.as_bytes());
        }
        let servers = connector::servers(&hosts, address)?;
        if let Some(files) = &address.tls {
            connector = connector::with_tls(connector, files)?;
        }
        let client = match timeout_at(until, connector.connect(&servers)).await {
            Ok(Ok(client)) => client,
            Ok(Err(ZkError::AuthFailed)) => return Err(translate(ZkError::AuthFailed)),
            Ok(Err(error)) => {
                let why = async {
                    let reached = probe::reachable(address, call_timeout / 2).await;
                    reached.err().or(connector::explain(address, &hosts).await)
                };
                let why = timeout_at(until, why).await.ok().flatten();
                return Err(why.unwrap_or_else(|| probe::no_session(&hosts, &error.to_string())));
            }
            Err(_) => return Err(probe::no_session(&hosts, "no answer in time")),
        };
        let client = client.chroot(address.chroot.clone()).map_err(|_| {
            let message = format!("{:?} is not a path of nodes", address.chroot);
            Error::invalid("connect", message)
        })?;
        Ok(Session {
            client,
            call_timeout,
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// Whether it has ended, and all that it kept with it.
    pub(super) fn has_ended(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Fails if this session could end before a claim of that ttl does.
    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let timeout = self.client.session_timeout();
        if timeout >= needed(ttl) {
            return Ok(());
        }
        let longest = longest_ttl(timeout);
        Err(Error::invalid(
            "acquire",
            format!(
                "a ttl of {ttl:?} cannot be kept: this server ends sessions after {timeout:?} of \
                 silence, which allows a ttl of {longest:?}"
            ),
        )
        .with_hint(
            "take a shorter ttl (what is held is renewed for as long as it is held), or raise \
             maxSessionTimeout on the servers",
        ))
    }

    /// Waits until the session is connected, for somewhat less than the call timeout: so nothing is
    /// sent after its caller has given up, and the caller learns that nothing was.
    pub(super) async fn ready(&self) -> Result<()> {
        if self.client.state() == SessionState::SyncConnected {
            return Ok(());
        }
        let mut watcher = self.client.state_watcher();
        let connected = async {
            loop {
                match self.client.state() {
                    SessionState::SyncConnected => return true,
                    state if state.is_terminated() => return false,
                    _ => watcher.changed().await,
                };
            }
        };
        let limit = self.call_timeout * 9 / 10;
        match tokio::time::timeout(limit, connected).await {
            Ok(true) => Ok(()),
            Ok(false) => Err(unreachable("the session has ended")),
            Err(_) => Err(unreachable("none of the servers can be reached now")),
        }
    }

    /// Asks what can be asked twice, again if the connection breaks.
    pub(super) async fn ask<T, F>(
        &self,
        mut question: impl FnMut(&Client) -> F,
    ) -> Result<Result<T, ZkError>>
    where
        F: Future<Output = Result<T, ZkError>>,
    {
        loop {
            self.ready().await?;
            match question(&self.client).await {
                Err(error) if is_lost(&error) => {}
                // A reading may be asked before the state is told.
                Err(e @ (ZkError::SessionExpired | ZkError::ClientClosed)) => {
                    return Err(translate(e));
                }
                answer => return Ok(answer),
            }
        }
    }

    /// A transaction that changes nothing: a majority of servers has agreed, after this was asked, that
    /// the session is alive and that the node is there. `false` if the node is not.
    pub(super) async fn confirm(&self, path: &str) -> Result<bool> {
        self.ready().await?;
        let mut check = self.client.new_multi_writer();
        check.add_check_version(path, -1).map_err(translate)?;
        match check.commit().await.map_err(ZkError::from) {
            Ok(_) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(translate(error)),
        }
    }

    /// Tells waiters to look whenever the session was disconnected or has ended.
    pub(super) fn monitor(&self, wakeups: Weak<dyn GrantListener>) {
        let mut watcher = self.client.state_watcher();
        tokio::spawn(async move {
            loop {
                let state = watcher.changed().await;
                if state == SessionState::Disconnected {
                    continue;
                }
                let Some(wakeups) = wakeups.upgrade() else {
                    return;
                };
                wakeups.missed();
                if state.is_terminated() {
                    return;
                }
            }
        });
    }
}

fn unreachable(message: &str) -> Error {
    Error::new(ErrorKind::Unreachable, "use the store", message)
}

/// Shared sessions are told apart by who they are.
pub(super) fn is_same(a: &Arc<Session>, b: &Arc<Session>) -> bool {
    a.id() == b.id()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_outlives_what_it_keeps() {
        for ms in [10, 500, 4_000, 30_000, 600_000] {
            let ttl = Duration::from_millis(ms);
            let timeout = class(needed(ttl));
            assert!(
                timeout * (100 - PING_GAP) / 100 >= ttl + HALF_TICK,
                "{ttl:?}"
            );
            assert!(longest_ttl(timeout) >= ttl);
        }
        // The usual ttl fits the usual server, which ends sessions after 40 s.
        assert_eq!(
            class(needed(Duration::from_secs(30))),
            Duration::from_secs(40)
        );
    }

    #[test]
    fn there_are_few_classes() {
        let ttls = (1..=120).map(Duration::from_secs);
        let classes: std::collections::BTreeSet<_> = ttls.map(|ttl| class(needed(ttl))).collect();
        assert!(classes.len() <= 18, "{classes:?}");
    }
}
