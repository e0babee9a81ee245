//! Small documents that outlive sessions: latches and gates.
//!
//! A document is changed by reading it, deciding, and writing it if it is still the same. ZooKeeper has
//! no expiry that every server offers, so a document says how long it is kept, by the server's clock;
//! whoever writes one now and then takes away some whose time is over.
//!
//! A node that was removed and came again counts its versions from the beginning, so who has read the old
//! one could write over the new one. So a document whose time is over is first emptied, which ends its
//! version, and removed long after: later than anybody could still write who has read it. Who has read
//! one writes within [`FRESH`], through the session through which it was read; and a request that is
//! later than a session's timeout finds that session ended.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use zookeeper_client::{CreateMode, Error as ZkError};

use super::errors::{is_lost, translate};
use super::session::Session;
use super::{LARGEST, Store, paths};
use windlass_core::Moment;
use windlass_core::error::{Error, ErrorKind, Result};

/// One in so many writes looks for documents to take away.
const SWEEP_EACH: u32 = 32;
/// And looks at no more than so many.
const SWEEP_MOST: usize = 64;
/// How long after it was read a document may be written.
const FRESH: Duration = Duration::from_secs(60);
/// How long an empty one stays: much longer than that and the timeout of the session for asking.
const EMPTY_FOR: Duration = Duration::from_secs(600);

/// What the servers' clock says, at least: from what they have written, and the time since.
#[derive(Debug, Default)]
pub(super) struct ServerClock {
    last: Mutex<Option<(i64, Instant)>>,
}

impl ServerClock {
    /// A server wrote this time just now.
    pub(super) fn told(&self, millis: i64) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = Some((millis, Instant::now()));
    }

    fn known(&self) -> Option<i64> {
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.map(|(millis, at)| millis + at.elapsed().as_millis() as i64)
    }

    /// For showing ages: our own clock, as long as no server has told its time.
    pub(super) fn now(&self) -> i64 {
        self.known().unwrap_or_else(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH);
            since.unwrap_or_default().as_millis() as i64
        })
    }
}

/// A document as it was read.
pub(super) struct Found<D> {
    /// `None` if it was emptied.
    document: Option<D>,
    version: i32,
    written: i64,
}

/// What is kept for a while.
pub(super) trait Document: Serialize + DeserializeOwned {
    /// The word in its path.
    const FAMILY: &'static str;

    /// How long it is kept after it was written.
    fn keep(&self) -> Duration;
}

/// How long any document is kept.
#[derive(serde::Deserialize)]
struct Kept {
    keep: u64,
}

impl Store {
    /// Reads, decides, and writes what the decision gives, until nobody was faster.
    ///
    /// What is decided upon is `None` once its time is over.
    pub(super) async fn decide<D: Document, T>(
        &self,
        name: &str,
        mut decision: impl FnMut(Option<&D>, Moment) -> (T, Option<D>),
    ) -> Result<T> {
        let session = self.any_session().await?;
        let path = paths::document(D::FAMILY, name);
        loop {
            let now = self.server_time::<D>(&session).await?;
            let asked = Instant::now();
            let found: Option<Found<D>> = self.read(&session, &path).await?;
            let alive = found.as_ref().and_then(|found| found.kept(now));
            let moment = Moment::from_nanos(now as u64 * 1_000_000);
            let (outcome, changed) = decision(alive, moment);
            let Some(document) = changed else {
                return Ok(outcome);
            };
            let version = found.as_ref().map(|found| found.version);
            session.ready().await?;
            // Whoever awaits this may have let it lie.
            if asked.elapsed() > FRESH {
                continue;
            }
            if self.write(&session, &path, &document, version).await? {
                return Ok(outcome);
            }
        }
    }

    /// Looks at one.
    pub(super) async fn peek<D: Document>(&self, name: &str) -> Result<Option<D>> {
        let session = self.any_session().await?;
        let found: Option<Found<D>> = self
            .read(&session, &paths::document(D::FAMILY, name))
            .await?;
        let Some(found) = found else {
            return Ok(None);
        };
        let now = self.server_time::<D>(&session).await?;
        Ok(found
            .kept(now)
            .is_some()
            .then_some(found.document)
            .flatten())
    }

    async fn read<D: Document>(&self, session: &Session, path: &str) -> Result<Option<Found<D>>> {
        match session.ask(|client| client.get_data(path)).await? {
            Ok((bytes, stat)) => {
                let document = match bytes.is_empty() {
                    true => None,
                    false => Some(serde_json::from_slice(&bytes).map_err(|error| {
                        let message = format!("{path} holds something else");
                        Error::new(ErrorKind::WrongType, "use the store", message)
                            .with_source(error)
                    })?),
                };
                Ok(Some(Found {
                    document,
                    version: stat.version,
                    written: stat.mtime,
                }))
            }
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(translate(error)),
        }
    }

    /// Writes it, if it is still what was read. `false` if not, or if that is not known. It is sent at
    /// once, so the session has to be ready.
    async fn write<D: Document>(
        &self,
        session: &Session,
        path: &str,
        document: &D,
        version: Option<i32>,
    ) -> Result<bool> {
        let bytes = serde_json::to_vec(document)
            .map_err(|e| Error::new(ErrorKind::Store, "use the store", e.to_string()))?;
        if bytes.len() > LARGEST {
            let message = format!("{path} would be larger than a server accepts");
            return Err(
                Error::new(ErrorKind::InvalidInput, "use the store", message)
                    .with_hint("begin a new generation, or count down by more at once"),
            );
        }
        let client = session.client();
        let written = match version {
            Some(version) => client.set_data(path, &bytes, Some(version)).await,
            None => {
                let options = CreateMode::Persistent.with_acls(self.acls());
                let made = client.create(path, &bytes, &options).await;
                made.map(|(stat, _)| stat)
            }
        };
        match written {
            Ok(stat) => {
                self.clock.told(stat.mtime);
                if rand::random_ratio(1, SWEEP_EACH) {
                    self.sweep::<D>(session).await;
                }
                Ok(true)
            }
            Err(ZkError::NoNode) if version.is_none() => {
                let root = paths::family_root(D::FAMILY);
                self.make_parents(session, &root, b"").await?;
                Ok(false)
            }
            Err(ZkError::BadVersion | ZkError::NodeExists | ZkError::NoNode) => Ok(false),
            Err(error) if is_lost(&error) => Ok(false),
            Err(error) => Err(translate(error)),
        }
    }

    /// The time by the servers' clock. If none has told it yet, one is asked, by writing.
    async fn server_time<D: Document>(&self, session: &Session) -> Result<i64> {
        if let Some(known) = self.clock.known() {
            return Ok(known);
        }
        self.ask_time::<D>(session).await
    }

    /// What the clock of whoever leads says, in milliseconds since 1970: by writing, which it dates.
    pub(super) async fn ask_time<D: Document>(&self, session: &Session) -> Result<i64> {
        let root = paths::family_root(D::FAMILY);
        loop {
            match session
                .ask(|client| client.set_data(&root, b"", None))
                .await?
            {
                Ok(stat) => {
                    self.clock.told(stat.mtime);
                    return Ok(stat.mtime);
                }
                Err(ZkError::NoNode) => self.make_parents(session, &root, b"").await?,
                Err(error) => return Err(translate(error)),
            }
        }
    }

    /// Takes away some documents whose time is over. What goes wrong is left to the next one.
    pub(super) async fn sweep<D: Document>(&self, session: &Session) {
        let root = paths::family_root(D::FAMILY);
        let Ok(mut children) = session.client().list_children(&root).await else {
            return;
        };
        let now = self.clock.now();
        for _ in 0..SWEEP_MOST.min(children.len()) {
            let child = children.swap_remove(rand::random_range(0..children.len()));
            let path = format!("{root}/{child}");
            let Ok((bytes, stat)) = session.client().get_data(&path).await else {
                continue;
            };
            let over = |keep: u64| stat.mtime.saturating_add_unsigned(keep) < now;
            let (client, version) = (session.client(), Some(stat.version));
            if bytes.is_empty() {
                if over(EMPTY_FOR.as_millis() as u64) {
                    let _ = client.delete(&path, version).await;
                }
            } else if serde_json::from_slice(&bytes).is_ok_and(|kept: Kept| over(kept.keep)) {
                let _ = client.set_data(&path, b"", version).await;
            }
        }
    }
}

impl<D: Document> Found<D> {
    /// What it says, unless its time is over.
    fn kept(&self, now: i64) -> Option<&D> {
        let document = self.document.as_ref()?;
        let keep = u64::try_from(document.keep().as_millis()).unwrap_or(u64::MAX);
        (self.written.saturating_add_unsigned(keep) > now).then_some(document)
    }
}
