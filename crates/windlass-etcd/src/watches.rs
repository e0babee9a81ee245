//! Watches: all of a client share one stream. When it breaks, each resumes at its revision.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::connection::EtcdConnection;
use super::proto::{
    WatchCancel, WatchCreate, WatchEvent, WatchRequest, WatchRequestUnion, WatchResponse,
};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// The pause before a broken stream is reopened doubles from the first to the second.
const MIN_PAUSE: Duration = Duration::from_millis(20);
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// What a watch reports.
pub(super) enum WatchUpdate<'a> {
    /// Consecutive events.
    Events(&'a [WatchEvent]),
    /// Events are missing and the watch has ended: the watcher must read the state, and watch from there.
    Lost,
}

type WatchCallback = Arc<dyn Fn(WatchUpdate<'_>) + Send + Sync>;

/// All watches of one client.
pub(super) struct Watches {
    table: Mutex<WatchTable>,
    commands: mpsc::UnboundedSender<WatchCommand>,
}

#[derive(Default)]
struct WatchTable {
    last_id: i64,
    by_id: HashMap<i64, WatchEntry>,
}

struct WatchEntry {
    create: WatchCreate,
    callback: WatchCallback,
    /// Signalled when the server confirms the watch.
    created: Option<oneshot::Sender<()>>,
}

enum WatchCommand {
    Start(i64),
    Stop(i64),
}

/// A running watch.
#[must_use = "dropping it ends the watch"]
pub(super) struct WatchHandle {
    id: i64,
    watches: Weak<Watches>,
}

impl Watches {
    pub(super) fn start(connection: Arc<EtcdConnection>) -> Arc<Watches> {
        let (commands, receiver) = mpsc::unbounded_channel();
        let watches = Arc::new(Watches {
            table: Mutex::default(),
            commands,
        });
        tokio::spawn(run(Arc::downgrade(&watches), connection, receiver));
        watches
    }

    /// Watches a key for its deletion, from a revision on.
    pub(super) fn deletion(
        self: &Arc<Watches>,
        key: &[u8],
        from: i64,
        callback: WatchCallback,
    ) -> WatchHandle {
        let create = WatchCreate {
            key: key.to_vec(),
            start_revision: from,
            filters: vec![0],
            ..WatchCreate::default()
        };
        self.add(create, callback, None)
    }

    /// Watches a range of keys, or one key if `range_end` is empty, from a revision on.
    pub(super) fn changes(
        self: &Arc<Watches>,
        key: &[u8],
        range_end: Vec<u8>,
        from: i64,
        callback: WatchCallback,
    ) -> WatchHandle {
        let create = WatchCreate {
            key: key.into(),
            range_end,
            start_revision: from,
            ..WatchCreate::default()
        };
        self.add(create, callback, None)
    }

    /// Watches from now on: every change after this returns is reported.
    pub(super) async fn changes_from_now(
        self: &Arc<Watches>,
        key: &str,
        range_end: Vec<u8>,
        callback: WatchCallback,
    ) -> WatchHandle {
        let create = WatchCreate {
            key: key.into(),
            range_end,
            ..WatchCreate::default()
        };
        let (sender, created) = oneshot::channel();
        let handle = self.add(create, callback, Some(sender));
        let _ = created.await;
        handle
    }

    fn add(
        self: &Arc<Watches>,
        mut create: WatchCreate,
        callback: WatchCallback,
        created: Option<oneshot::Sender<()>>,
    ) -> WatchHandle {
        let mut table = self.table();
        table.last_id += 1;
        let id = table.last_id;
        create.watch_id = id;
        let entry = WatchEntry {
            create,
            callback,
            created,
        };
        table.by_id.insert(id, entry);
        let _ = self.commands.send(WatchCommand::Start(id));
        WatchHandle {
            id,
            watches: Arc::downgrade(self),
        }
    }

    /// Updates the table by a response and calls the watch's callback.
    fn dispatch(&self, response: &WatchResponse) {
        let mut table = self.table();
        let Some(entry) = table.by_id.get_mut(&response.watch_id) else {
            return;
        };
        if response.canceled {
            // Compacted or refused: either way it cannot resume at its revision.
            let entry = table.by_id.remove(&response.watch_id);
            drop(table);
            if let Some(entry) = entry {
                (entry.callback)(WatchUpdate::Lost);
            }
            return;
        }
        if response.created {
            if entry.create.start_revision == 0 {
                let header = response.header.unwrap_or_default();
                entry.create.start_revision = header.revision + 1;
            }
            if let Some(created) = entry.created.take() {
                let _ = created.send(());
            }
            return;
        }
        let kvs = response.events.iter().filter_map(|event| event.kv.as_ref());
        let Some(last) = kvs.map(|kv| kv.mod_revision).max() else {
            return;
        };
        entry.create.start_revision = entry.create.start_revision.max(last + 1);
        let callback = Arc::clone(&entry.callback);
        drop(table);
        callback(WatchUpdate::Events(&response.events));
    }

    fn create_request(&self, id: i64) -> Option<WatchRequest> {
        let table = self.table();
        table
            .by_id
            .get(&id)
            .map(|entry| create_request(&entry.create))
    }

    fn table(&self) -> MutexGuard<'_, WatchTable> {
        // Each change is a single insertion or removal: a panic leaves the table consistent.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WatchHandle {
    fn drop(&mut self) {
        if let Some(watches) = self.watches.upgrade()
            && watches.table().by_id.remove(&self.id).is_some()
        {
            let _ = watches.commands.send(WatchCommand::Stop(self.id));
        }
    }
}

/// Keeps one stream open for as long as there are watches.
async fn run(
    watches: Weak<Watches>,
    connection: Arc<EtcdConnection>,
    mut commands: mpsc::UnboundedReceiver<WatchCommand>,
) {
    let mut pause = MIN_PAUSE;
    loop {
        // Wait for a watch. Commands to stop watches that are gone arrive here as well.
        let is_empty = || {
            let watches = watches.upgrade();
            watches.is_none_or(|watches| watches.table().by_id.is_empty())
        };
        while is_empty() {
            if commands.recv().await.is_none() {
                return;
            }
        }
        let began = tokio::time::Instant::now();
        if run_stream(&watches, &connection, &mut commands)
            .await
            .is_none()
        {
            return;
        }
        if began.elapsed() > MAX_PAUSE {
            pause = MIN_PAUSE;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
        pause = (pause * 2).min(MAX_PAUSE);
    }
}

/// Runs one stream until it ends. `None` if the client is gone.
async fn run_stream(
    watches: &Weak<Watches>,
    connection: &Arc<EtcdConnection>,
    commands: &mut mpsc::UnboundedReceiver<WatchCommand>,
) -> Option<()> {
    let (requests, receiver) = mpsc::unbounded_channel();
    // Requesting every watch of the table carries out all commands sent so far. Commands are sent under the
    // table's lock, so none of these is read again later.
    {
        let watches = watches.upgrade()?;
        let table = watches.table();
        while commands.try_recv().is_ok() {}
        if table.by_id.is_empty() {
            // Without a request the server never confirms the stream, and opening it would block.
            return Some(());
        }
        for entry in table.by_id.values() {
            let _ = requests.send(create_request(&entry.create));
        }
    }
    let mut generations = connection.generations();
    let opened = connection.stream::<_, WatchResponse>(WATCH, receiver).await;
    let Ok((mut responses, member)) = opened else {
        return Some(());
    };
    let generation = member.generation;
    loop {
        let response = tokio::select! {
            command = commands.recv() => {
                let request = match command? {
                    WatchCommand::Start(id) => watches.upgrade()?.create_request(id),
                    WatchCommand::Stop(id) => Some(cancel_request(id)),
                };
                if let Some(request) = request {
                    let _ = requests.send(request);
                }
                continue;
            }
            response = responses.message() => response,
            _ = generations.wait_for(|now| *now > generation) => return Some(()),
        };
        let response = match response {
            Ok(Some(response)) => response,
            Ok(None) => return Some(()),
            Err(status) => {
                connection.stream_ended(generation, &status);
                return Some(());
            }
        };
        if response.canceled && response.watch_id == -1 {
            return Some(()); // the server did not understand a request
        }
        watches.upgrade()?.dispatch(&response);
    }
}

fn create_request(create: &WatchCreate) -> WatchRequest {
    let create = WatchRequestUnion::Create(create.clone());
    WatchRequest {
        request_union: Some(create),
    }
}

fn cancel_request(watch_id: i64) -> WatchRequest {
    let cancel = WatchRequestUnion::Cancel(WatchCancel { watch_id });
    WatchRequest {
        request_union: Some(cancel),
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches")
            .field("watches", &self.table().by_id.len())
            .finish()
    }
}

impl fmt::Debug for WatchHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WatchHandle({})", self.id)
    }
}
