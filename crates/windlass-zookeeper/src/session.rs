//! A ZooKeeper session: the connection, and what keeps claims alive.
//!
//! A claim's node is ephemeral: it lives as long as the session that created it, and the server ends a
//! session after the session's timeout without a ping.
//!
//! **How long a claim is valid.** The keeper counts a claim's validity from before it sent a request
//! that the store confirmed, for one TTL. The confirmation is a transaction, to which a majority of
//! servers has agreed, so a server that is cut off confirms nothing. The leader ends sessions, however,
//! by what it knows of their pings: the server that the client is connected to reports them with its
//! replies to the leader's pings, once each half tick, and a report may be as old as the client's last
//! ping. So a session must outlive the TTL by half a tick (1 s at the default tick of 2 s) and by the
//! longest gap between two pings of the client (15 % of the timeout).

use std::sync::Weak;
use std::time::Duration;

use zookeeper_client::{Acls, Client, CreateMode, Error as ZkError, SessionState};

use super::address::EnsembleAddress;
use super::connector;
use super::errors::{from_client, is_connection_loss};
use windlass_core::connections::{connected, connection_failed};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::GrantListener;

/// Half of the default tick.
const HALF_TICK: Duration = Duration::from_secs(1);
/// The longest gap between two pings of the client, in percent of the session timeout.
const PING_GAP_PERCENT: u32 = 15;
/// The client connects to another server after this much silence, in percent of the session timeout.
/// It pings after three eighths of this time and checks its clock each eighth, so the longest gap
/// between two pings is half of it.
const LONGEST_SILENCE_PERCENT: u32 = 2 * PING_GAP_PERCENT;
/// A long session does not tolerate that much: a client whose server is frozen waits for so long before
/// it tries another one, and may have to wait for several frozen servers.
const LONG_SESSION_SILENCE_PERCENT: u32 = 10;
/// A busy server may need this long to answer.
const SHORTEST_SILENCE: Duration = Duration::from_secs(2);
/// The longest timeout that the protocol can express.
const MAX_TIMEOUT: Duration = Duration::from_millis(i32::MAX as u64);

/// The shortest session timeout that keeps claims of this TTL.
pub(super) fn timeout_for_ttl(ttl: Duration) -> Duration {
    ((ttl + HALF_TICK) * 100 / (100 - PING_GAP_PERCENT)).min(MAX_TIMEOUT)
}

/// The longest TTL that a session of this timeout can keep.
pub(super) fn longest_ttl(timeout: Duration) -> Duration {
    (timeout * (100 - PING_GAP_PERCENT) / 100).saturating_sub(HALF_TICK)
}

/// How long the client waits for any message of a server before it connects to another one.
fn longest_silence(timeout: Duration) -> Duration {
    let long_session = timeout * LONG_SESSION_SILENCE_PERCENT / 100;
    long_session
        .max(SHORTEST_SILENCE)
        .min(timeout * LONGEST_SILENCE_PERCENT / 100)
}

/// The session timeout to request: the next of a few steps, so that there are only a few sessions.
pub(super) fn timeout_class(shortest: Duration) -> Duration {
    const STEPS: [u64; 10] = [10, 12, 15, 20, 25, 30, 40, 50, 60, 80];
    let shortest = shortest.as_millis() as u64;
    let mut decade = 1;
    loop {
        let fits = |step: &&u64| **step * decade >= shortest;
        if let Some(step) = STEPS.iter().find(fits) {
            return Duration::from_millis(step * decade).min(MAX_TIMEOUT);
        }
        decade *= 10;
    }
}

/// One open session, shared by all claims of its timeout class.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    call_timeout: Duration,
    chroot: String,
    acls: Acls<'static>,
}

impl Session {
    /// Opens a session within the call timeout.
    pub(super) async fn open(
        address: &EnsembleAddress,
        timeout: Duration,
        call_timeout: Duration,
    ) -> Result<Session> {
        let connector = Client::connector()
            .with_session_timeout(timeout)
            .with_connection_timeout(longest_silence(timeout))
            .with_fail_eagerly();
        let client = connector::connect(address, connector, timeout, call_timeout).await;
        let client = client.inspect_err(|_| connection_failed("zookeeper"))?;
        connected("zookeeper", false);
        let client = client.chroot(address.chroot.clone()).map_err(|_| {
            let message = format!("{:?} is not a path of nodes", address.chroot);
            Error::invalid("connect", message)
        })?;
        Ok(Session {
            client,
            call_timeout,
            chroot: address.chroot.clone(),
            acls: match address.digest {
                Some(_) => Acls::creator_all(),
                None => Acls::anyone_all(),
            },
        })
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// Who may read and write the nodes that this session creates.
    pub(super) fn acls(&self) -> Acls<'static> {
        self.acls
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.state() == SessionState::SyncConnected
    }

    /// Whether the session has ended, and its ephemeral nodes with it.
    pub(super) fn has_ended(&self) -> bool {
        self.client.state().is_terminated()
    }

    /// Fails if this session could end before a claim of this TTL.
    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let timeout = self.client.session_timeout();
        if timeout >= timeout_for_ttl(ttl) {
            return Ok(());
        }
        let longest = longest_ttl(timeout);
        Err(Error::invalid(
            "acquire",
            format!(
                "a ttl of {ttl:?} cannot be kept: this server ends sessions after {timeout:?} without \
                 a ping, which allows a ttl of {longest:?}"
            ),
        )
        .with_hint(
            "use a shorter ttl (a lease is renewed as long as it is held), or raise \
             maxSessionTimeout on the servers",
        ))
    }

    /// Waits until the session is connected. It gives up shortly before the call timeout, so that
    /// nothing is sent after the caller has given up, and the caller learns that nothing was sent.
    pub(super) async fn wait_connected(&self) -> Result<()> {
        if self.is_connected() {
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
            Err(_) => Err(unreachable("no server of the ensemble can be reached")),
        }
    }

    /// Sends an idempotent request, again after each connection loss.
    pub(super) async fn retry<T, F>(
        &self,
        mut request: impl FnMut(&Client) -> F,
    ) -> Result<Result<T, ZkError>>
    where
        F: Future<Output = Result<T, ZkError>>,
    {
        loop {
            self.wait_connected().await?;
            match request(&self.client).await {
                Err(error) if is_connection_loss(&error) => {}
                // The request can fail before the client reports its new state.
                Err(e @ (ZkError::SessionExpired | ZkError::ClientClosed)) => {
                    return Err(from_client(e));
                }
                reply => return Ok(reply),
            }
        }
    }

    /// Whether a node exists, by a transaction that changes nothing: a majority of servers has agreed,
    /// after this call began, that the session is alive and that the node exists.
    pub(super) async fn confirm(&self, path: &str) -> Result<bool> {
        self.wait_connected().await?;
        let mut check = self.client.new_multi_writer();
        check.add_check_version(path, -1).map_err(from_client)?;
        match check.commit().await.map_err(ZkError::from) {
            Ok(_) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(from_client(error)),
        }
    }

    /// Waits until reads through this session show all that a majority had agreed to, or was about to,
    /// when this was called: also a request of this session that was lost with its connection.
    pub(super) async fn catch_up(&self) -> Result<()> {
        match self.confirm("/").await {
            // The chroot may not be read. The refusal is a transaction as well, and its reply comes
            // after all earlier ones.
            Err(error) if error.kind() == ErrorKind::AccessDenied => Ok(()),
            confirmed => confirmed.map(drop),
        }
    }

    /// Deletes a node. Returns whether it existed.
    pub(super) async fn delete(&self, path: &str) -> Result<bool> {
        let mut reply_lost = false;
        loop {
            self.wait_connected().await?;
            match self.client.delete(path, None).await {
                Ok(()) => return Ok(true),
                // The request whose reply was lost may have deleted it.
                Err(ZkError::NoNode) => return Ok(reply_lost),
                Err(error) if is_connection_loss(&error) => reply_lost = true,
                Err(error) => return Err(from_client(error)),
            }
        }
    }

    /// Creates a node with `data`, and its parents, as containers: the server removes a container some
    /// time after its last child.
    pub(super) async fn create_containers(&self, path: &str, data: &[u8]) -> Result<()> {
        self.create_path(path, data, CreateMode::Container).await
    }

    /// Creates a node with `data` in this mode, and its parents as containers.
    pub(super) async fn create_path(
        &self,
        path: &str,
        data: &[u8],
        mode: CreateMode,
    ) -> Result<()> {
        let mut end = 0;
        while end < path.len() {
            end = path[end + 1..]
                .find('/')
                .map_or(path.len(), |at| end + 1 + at);
            let (data, mode) = match end == path.len() {
                true => (data, mode),
                false => (&b""[..], CreateMode::Container),
            };
            let created = self.retry(|client| {
                let client = client.clone();
                let part = path[..end].to_owned();
                let (data, options) = (data.to_vec(), mode.with_acls(self.acls));
                async move { client.create(&part, &data, &options).await }
            });
            match created.await? {
                Ok(_) | Err(ZkError::NodeExists) => {}
                Err(ZkError::NoNode) if !path[1..end].contains('/') => {
                    return Err(self.missing_chroot());
                }
                // The server has just removed an empty parent: start again at the top.
                Err(ZkError::NoNode) => end = 0,
                Err(error) => return Err(from_client(error)),
            }
        }
        Ok(())
    }

    /// Checks that the chroot exists, and creates it if the address says so.
    pub(super) async fn ensure_chroot(&self, address: &EnsembleAddress) -> Result<()> {
        if self.chroot == "/" {
            return Ok(());
        }
        let stat = self.retry(|client| client.check_stat("/")).await?;
        if stat.map_err(from_client)?.is_some() {
            return Ok(());
        }
        if !address.create_chroot {
            return Err(self.missing_chroot());
        }
        let root = self
            .client
            .clone()
            .chroot("/")
            .map_err(|_| Error::new(ErrorKind::Store, "connect", "the client has no root"))?;
        let options = CreateMode::Persistent.with_acls(self.acls);
        root.mkdir(&self.chroot, &options)
            .await
            .map_err(from_client)
    }

    fn missing_chroot(&self) -> Error {
        let message = format!("the chroot {} does not exist", self.chroot);
        Error::new(ErrorKind::NotFound, "connect", message)
            .with_hint("create that node, or add ?chroot=create to the URL to have it created")
    }

    /// Makes the listener check its claims after each reconnection, and when the session ends.
    pub(super) fn monitor(&self, listener: Weak<dyn GrantListener>) {
        let mut watcher = self.client.state_watcher();
        tokio::spawn(async move {
            loop {
                let state = watcher.changed().await;
                match state {
                    SessionState::Disconnected => continue,
                    SessionState::SyncConnected => connected("zookeeper", true),
                    _ => {}
                }
                let Some(listener) = listener.upgrade() else {
                    return;
                };
                listener.missed();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn session_outlives_its_claims() {
        for ms in [10, 500, 4_000, 30_000, 600_000] {
            let ttl = Duration::from_millis(ms);
            let timeout = timeout_class(timeout_for_ttl(ttl));
            assert!(
                timeout * (100 - PING_GAP_PERCENT) / 100 >= ttl + HALF_TICK,
                "{ttl:?}"
            );
            assert!(longest_ttl(timeout) >= ttl);
            let ping_gap = longest_silence(timeout) / 2;
            assert!(ping_gap <= timeout * PING_GAP_PERCENT / 100, "{ttl:?}");
        }
        // The default TTL fits a server's default maximum, which is 40 s.
        assert_eq!(
            timeout_class(timeout_for_ttl(Duration::from_secs(30))),
            Duration::from_secs(40)
        );
    }

    #[test]
    fn timeouts_fall_into_few_classes() {
        let ttls = (1..=120).map(Duration::from_secs);
        let classes: std::collections::BTreeSet<_> = ttls
            .map(|ttl| timeout_class(timeout_for_ttl(ttl)))
            .collect();
        assert!(classes.len() <= 18, "{classes:?}");
    }
}
