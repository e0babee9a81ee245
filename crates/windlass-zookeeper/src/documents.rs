//! Documents: nodes that outlive sessions, changed by compare-and-set. Gates and latches are documents.
//!
//! A client reads a document, decides, and writes it if its version is unchanged. No expiry is available
//! on every ZooKeeper server, so a document says how long it is kept, by the server's clock, and clients
//! that write documents now and then remove some that have expired.
//!
//! A node that is removed and created again counts its versions from the start, so a client that has read
//! the old one could overwrite the new one. So an expired document is first emptied, which changes its
//! version, and removed much later, when no client that has read it can still write: a client writes
//! within [`MAX_READ_AGE`], through the session by which it read, and a request that is delayed for
//! longer than the session's timeout finds that session ended.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use zookeeper_client::{CreateMode, Error as ZkError};

use super::errors::{from_client, is_connection_loss};
use super::server_clock::ServerClock;
use super::session::Session;
use super::sessions::Sessions;
use super::{MAX_REQUEST, paths};
use windlass_core::Moment;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::matches;

/// One in this many writes searches for expired documents,
const SWEEP_RATIO: u32 = 32;
/// and checks at most this many.
const SWEEP_LIMIT: usize = 64;
/// How long after it was read a document may be written.
const MAX_READ_AGE: Duration = Duration::from_secs(60);
/// How long an emptied document stays: much longer than [`MAX_READ_AGE`] and the timeout of the default
/// session together.
const EMPTY_FOR: Duration = Duration::from_secs(600);

/// A kind of document.
pub(super) trait Document: Serialize + DeserializeOwned {
    /// The word in its path.
    const FAMILY: &'static str;

    /// How long it is kept after it was written.
    fn keep(&self) -> Duration;
}

/// A document as it was read.
struct StoredDocument<D> {
    /// `None` if it was emptied.
    document: Option<D>,
    version: i32,
    written: i64,
}

impl<D: Document> StoredDocument<D> {
    /// The document, unless it has expired.
    fn unexpired(&self, now: i64) -> Option<&D> {
        self.remaining(now).and(self.document.as_ref())
    }

    /// How long the document is still kept.
    fn remaining(&self, now: i64) -> Option<Duration> {
        let keep = u64::try_from(self.document.as_ref()?.keep().as_millis()).unwrap_or(u64::MAX);
        let remaining = self
            .written
            .saturating_add_unsigned(keep)
            .saturating_sub(now);
        let remaining = u64::try_from(remaining).ok().filter(|millis| *millis > 0)?;
        Some(Duration::from_millis(remaining))
    }
}

/// The part that all documents have in common.
#[derive(serde::Deserialize)]
struct DocumentRetention {
    keep: u64,
}

/// Reads and changes documents.
#[derive(Debug)]
pub(super) struct Documents {
    sessions: Arc<Sessions>,
    clock: Arc<ServerClock>,
}

impl Documents {
    pub(super) fn new(sessions: Arc<Sessions>, clock: Arc<ServerClock>) -> Documents {
        Documents { sessions, clock }
    }

    /// Reads, decides and writes what the decision returns, until the document has not changed between
    /// read and write. The decision receives `None` for a document that does not exist or has expired.
    pub(super) async fn update<D: Document, T>(
        &self,
        name: &str,
        mut decide: impl FnMut(Option<&D>, Moment) -> (T, Option<D>),
    ) -> Result<T> {
        let session = self.sessions.default_session().await?;
        let path = paths::document(D::FAMILY, name);
        loop {
            let now = self.server_time::<D>(&session).await?;
            let read_at = Instant::now();
            let stored: Option<StoredDocument<D>> = self.load(&session, &path).await?;
            let current = stored.as_ref().and_then(|stored| stored.unexpired(now));
            let moment = Moment::from_nanos(now as u64 * 1_000_000);
            let (outcome, changed) = decide(current, moment);
            let Some(document) = changed else {
                return Ok(outcome);
            };
            let version = stored.as_ref().map(|stored| stored.version);
            session.wait_connected().await?;
            // The caller may have polled this future late.
            if read_at.elapsed() > MAX_READ_AGE {
                continue;
            }
            if self.write(&session, &path, &document, version).await? {
                return Ok(outcome);
            }
        }
    }

    /// Empties a document, and returns what it was; `None` if it did not exist or had expired.
    pub(super) async fn clear<D: Document>(&self, name: &str) -> Result<Option<D>> {
        let session = self.sessions.default_session().await?;
        let path = paths::document(D::FAMILY, name);
        // Remembered in case the reply to the write is lost.
        let mut found = None;
        loop {
            let now = self.server_time::<D>(&session).await?;
            let read_at = Instant::now();
            let stored: Option<StoredDocument<D>> = self.load(&session, &path).await?;
            let Some(stored) = stored.filter(|stored| stored.unexpired(now).is_some()) else {
                return Ok(found);
            };
            found = stored.document;
            session.wait_connected().await?;
            if read_at.elapsed() > MAX_READ_AGE {
                continue;
            }
            let version = Some(stored.version);
            if self.write_bytes::<D>(&session, &path, b"", version).await? {
                return Ok(found);
            }
        }
    }

    /// Reads a document; `None` if it does not exist or has expired.
    pub(super) async fn read<D: Document>(&self, name: &str) -> Result<Option<D>> {
        let found = self.read_kept(name).await?;
        Ok(found.map(|(document, _)| document))
    }

    /// The same, with how long the document is still kept.
    pub(super) async fn read_kept<D: Document>(&self, name: &str) -> Result<Option<(D, Duration)>> {
        let session = self.sessions.default_session().await?;
        let path = paths::document(D::FAMILY, name);
        let stored: Option<StoredDocument<D>> = self.load(&session, &path).await?;
        let Some(stored) = stored else {
            return Ok(None);
        };
        let now = self.server_time::<D>(&session).await?;
        Ok(stored
            .remaining(now)
            .and_then(|remaining| Some((stored.document?, remaining))))
    }

    /// The names of all documents of this kind that match the pattern and have not expired.
    pub(super) async fn names<D: Document>(&self, pattern: &str) -> Result<Vec<String>> {
        let session = self.sessions.default_session().await?;
        let root = paths::family_root(D::FAMILY);
        let listed = session.retry(|client| {
            let (client, root) = (client.clone(), root.clone());
            async move { client.list_children(&root).await }
        });
        let children = match listed.await? {
            Ok(children) => children,
            Err(ZkError::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(from_client(error)),
        };
        let mut names = Vec::new();
        let known = children
            .iter()
            .filter_map(|child| paths::document_name(child));
        for name in known.filter(|name| matches(pattern, name)) {
            if self.read::<D>(&name).await?.is_some() {
                names.push(name);
            }
        }
        Ok(names)
    }

    async fn load<D: Document>(
        &self,
        session: &Session,
        path: &str,
    ) -> Result<Option<StoredDocument<D>>> {
        match session.retry(|client| client.get_data(path)).await? {
            Ok((bytes, stat)) => {
                let document = match bytes.is_empty() {
                    true => None,
                    false => Some(serde_json::from_slice(&bytes).map_err(|error| {
                        let message = format!("{path} contains other data");
                        Error::new(ErrorKind::WrongType, "use the store", message)
                            .with_source(error)
                    })?),
                };
                Ok(Some(StoredDocument {
                    document,
                    version: stat.version,
                    written: stat.mtime,
                }))
            }
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(from_client(error)),
        }
    }

    /// Writes the document if it still has the version that was read. `false` if it does not, or if the
    /// outcome is unknown. The request is sent at once, so the session must be connected.
    async fn write<D: Document>(
        &self,
        session: &Session,
        path: &str,
        document: &D,
        version: Option<i32>,
    ) -> Result<bool> {
        let bytes = serde_json::to_vec(document)
            .map_err(|e| Error::new(ErrorKind::Store, "use the store", e.to_string()))?;
        if bytes.len() > MAX_REQUEST {
            let message = format!("{path} would be larger than a server accepts");
            return Err(
                Error::new(ErrorKind::InvalidInput, "use the store", message)
                    .with_hint("begin a new generation, or count down by more at once"),
            );
        }
        self.write_bytes::<D>(session, path, &bytes, version).await
    }

    async fn write_bytes<D: Document>(
        &self,
        session: &Session,
        path: &str,
        bytes: &[u8],
        version: Option<i32>,
    ) -> Result<bool> {
        let client = session.client();
        let written = match version {
            Some(version) => client.set_data(path, bytes, Some(version)).await,
            None => {
                let options = CreateMode::Persistent.with_acls(session.acls());
                let created = client.create(path, bytes, &options).await;
                created.map(|(stat, _)| stat)
            }
        };
        match written {
            Ok(stat) => {
                self.clock.observe(stat.mtime);
                if rand::random_ratio(1, SWEEP_RATIO) {
                    self.sweep::<D>(session).await;
                }
                Ok(true)
            }
            Err(ZkError::NoNode) if version.is_none() => {
                let root = paths::family_root(D::FAMILY);
                session.create_containers(&root, b"").await?;
                Ok(false)
            }
            Err(ZkError::BadVersion | ZkError::NodeExists | ZkError::NoNode) => Ok(false),
            Err(error) if is_connection_loss(&error) => Ok(false),
            Err(error) => Err(from_client(error)),
        }
    }

    /// The servers' time, from the leader if none was observed yet.
    async fn server_time<D: Document>(&self, session: &Session) -> Result<i64> {
        if let Some(observed) = self.clock.observed() {
            return Ok(observed);
        }
        self.leader_time::<D>(session).await
    }

    /// The leader's time in milliseconds since 1970: a write, to which the leader adds a time stamp.
    pub(super) async fn leader_time<D: Document>(&self, session: &Session) -> Result<i64> {
        let root = paths::family_root(D::FAMILY);
        loop {
            match session
                .retry(|client| client.set_data(&root, b"", None))
                .await?
            {
                Ok(stat) => {
                    self.clock.observe(stat.mtime);
                    return Ok(stat.mtime);
                }
                Err(ZkError::NoNode) => session.create_containers(&root, b"").await?,
                Err(error) => return Err(from_client(error)),
            }
        }
    }

    /// Empties or removes some expired documents. A failure is left to the next sweep.
    pub(super) async fn sweep<D: Document>(&self, session: &Session) {
        let root = paths::family_root(D::FAMILY);
        let Ok(mut children) = session.client().list_children(&root).await else {
            return;
        };
        let now = self.clock.now();
        for _ in 0..SWEEP_LIMIT.min(children.len()) {
            let child = children.swap_remove(rand::random_range(0..children.len()));
            let path = format!("{root}/{child}");
            let Ok((bytes, stat)) = session.client().get_data(&path).await else {
                continue;
            };
            let is_over = |keep: u64| stat.mtime.saturating_add_unsigned(keep) < now;
            let (client, version) = (session.client(), Some(stat.version));
            if bytes.is_empty() {
                if is_over(EMPTY_FOR.as_millis() as u64) {
                    let _ = client.delete(&path, version).await;
                }
            } else if serde_json::from_slice(&bytes)
                .is_ok_and(|kept: DocumentRetention| is_over(kept.keep))
            {
                let _ = client.set_data(&path, b"", version).await;
            }
        }
    }
}
