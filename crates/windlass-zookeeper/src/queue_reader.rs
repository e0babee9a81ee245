//! Reading the queue of a name, once for all concurrent callers.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Mutex as AsyncMutex;
use zookeeper_client::Error as ZkError;

use super::claim_data::ClaimData;
use super::errors::from_client;
use super::node_name::NodeLayout;
use super::paths;
use super::pool::{PoolData, has_pool};
use super::queue::{QueueParent, QueueView};
use super::session::Session;
use windlass_core::error::Result;
use windlass_core::store::Kind;

/// A session, and the path of a queue.
type ReadKey = (i64, String);

/// Reads queues.
pub(super) struct QueueReader {
    pub(super) layout: NodeLayout,
    reads: Mutex<HashMap<ReadKey, Arc<SharedRead>>>,
}

/// The reads of one queue through one session.
#[derive(Default)]
struct SharedRead {
    /// How many callers have requested it.
    requests: AtomicU64,
    /// The last view, and the value of `requests` when its read began.
    latest: AsyncMutex<Option<(u64, Arc<QueueView>)>>,
}

impl QueueReader {
    pub(super) fn new(layout: NodeLayout) -> QueueReader {
        QueueReader {
            layout,
            reads: Mutex::default(),
        }
    }

    /// Reads a queue through this session, so that the view shows all that the session did before.
    ///
    /// Concurrent callers share a read that began after they called: 5,000 claims that arrive together
    /// do not each read a list of 5,000.
    pub(super) async fn read(
        &self,
        session: &Session,
        kind: Kind,
        name: &str,
    ) -> Result<Arc<QueueView>> {
        let parent = paths::queue(kind, name);
        let reader = self.join((session.id(), parent.clone()));
        let request = reader.shared.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let mut latest = reader.shared.latest.lock().await;
        if let Some((began, view)) = &*latest
            && *began >= request
        {
            return Ok(Arc::clone(view));
        }
        let began = reader.shared.requests.load(Ordering::SeqCst);
        let view = Arc::new(read_queue(session, self.layout, kind, &parent).await?);
        *latest = Some((began, Arc::clone(&view)));
        Ok(view)
    }

    fn join(&self, key: ReadKey) -> ActiveReader<'_> {
        let shared = Arc::clone(self.reads().entry(key.clone()).or_default());
        ActiveReader {
            queues: self,
            key,
            shared,
        }
    }

    fn reads(&self) -> MutexGuard<'_, HashMap<ReadKey, Arc<SharedRead>>> {
        self.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for QueueReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueReader")
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// A caller of [`QueueReader::read`]. The last one removes the map entry, also when cancelled.
struct ActiveReader<'a> {
    queues: &'a QueueReader,
    key: ReadKey,
    shared: Arc<SharedRead>,
}

impl Drop for ActiveReader<'_> {
    fn drop(&mut self) {
        let mut reads = self.queues.reads();
        // One reference is the map's, one is this caller's.
        if Arc::strong_count(&self.shared) == 2 {
            reads.remove(&self.key);
        }
    }
}

/// One read: the children, and the parent's data where the kind has a pool.
async fn read_queue(
    session: &Session,
    layout: NodeLayout,
    kind: Kind,
    parent: &str,
) -> Result<QueueView> {
    let view = loop {
        let read = session.retry(|client| {
            // Both requests are sent before the first reply is awaited.
            let pool = has_pool(kind).then(|| client.get_data(parent));
            let children = client.get_children(parent);
            async move {
                let pool = match pool {
                    Some(pool) => Some(pool.await?),
                    None => None,
                };
                Ok((pool, children.await?))
            }
        });
        match read.await? {
            Ok((Some((data, stat)), (children, children_stat))) => {
                // The parent was written between the two reads: its old size does not belong to these
                // children.
                if children_stat.mzxid != stat.mzxid {
                    continue;
                }
                let parent = QueueParent {
                    pool: PoolData::read(&data),
                    version: stat.version,
                    changed_zxid: stat.mzxid,
                };
                break QueueView::new(layout, kind, children, parent);
            }
            Ok((None, (children, _))) => {
                break QueueView::new(layout, kind, children, QueueParent::default());
            }
            Err(ZkError::NoNode) => return Ok(QueueView::missing()),
            Err(error) => return Err(from_client(error)),
        }
    };
    if !view.is_out_of_numbers() {
        return Ok(view);
    }
    let created = created_zxids(session, parent, &view).await?;
    Ok(view.ordered_by_zxid(kind, &created))
}

/// The zxids that created the claims, by node name. A node that replaced another one contains the other's.
async fn created_zxids(
    session: &Session,
    parent: &str,
    view: &QueueView,
) -> Result<HashMap<String, i64>> {
    let mut created = HashMap::new();
    for node in &view.nodes {
        let path = format!("{parent}/{}", node.name);
        match session.retry(|client| client.get_data(&path)).await? {
            Ok((bytes, stat)) => {
                let data = ClaimData::read(&bytes);
                let earlier = data.and_then(|data| data.fence).map(|fence| fence as i64);
                let first = earlier.map_or(stat.czxid, |earlier| earlier.min(stat.czxid));
                created.insert(node.name.clone(), first);
            }
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(from_client(error)),
        }
    }
    Ok(created)
}
