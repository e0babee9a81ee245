//! Watches: many, over one stream, which resume where they were when it breaks.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::feed::Feed;
use super::link::Link;
use super::wire::{Event, WatchCancel, WatchCreate, WatchOrder, WatchRequest, WatchResponse};

const WATCH: &str = "/etcdserverpb.Watch/Watch";
/// The pause before a broken stream is opened again, and what it grows to.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What a watch tells.
pub(super) enum Heard<'a> {
    /// In order, none left out.
    Events(&'a [Event]),
    /// Some were left out, and the watch is over: whoever watches must look, and watch from there.
    Lost,
}

type Tell = Arc<dyn Fn(Heard<'_>) + Send + Sync>;

/// All watches of one client.
pub(super) struct Watches {
    table: Mutex<Table>,
    orders: mpsc::UnboundedSender<Order>,
}

#[derive(Default)]
struct Table {
    last: i64,
    by_id: HashMap<i64, Entry>,
}

struct Entry {
    create: WatchCreate,
    tell: Tell,
    /// Who waits for it to begin.
    begun: Option<oneshot::Sender<()>>,
}

enum Order {
    Begin(i64),
    End(i64),
}

/// Watches as long as it lives.
#[must_use = "dropping it ends the watch"]
pub(super) struct Watching {
    id: i64,
    watches: Weak<Watches>,
}

impl Watches {
    pub(super) fn start(link: Arc<Link>) -> Arc<Watches> {
        let (orders, taken) = mpsc::unbounded_channel();
        let watches = Arc::new(Watches {
            table: Mutex::default(),
            orders,
        });
        tokio::spawn(run(Arc::downgrade(&watches), link, taken));
        watches
    }

    /// Watches a key for its deletion, from that revision on.
    pub(super) fn deletion(self: &Arc<Watches>, key: &[u8], from: i64, tell: Tell) -> Watching {
        let create = WatchCreate {
            key: key.to_vec(),
            start_revision: from,
            filters: vec![0],
            ..WatchCreate::default()
        };
        self.begin(create, tell, None)
    }

    /// Watches all that happens from that revision on in a range of keys, or to one key if it has no end.
    pub(super) fn changes(
        self: &Arc<Watches>,
        key: &[u8],
        range_end: Vec<u8>,
        from: i64,
        tell: Tell,
    ) -> Watching {
        let create = WatchCreate {
            key: key.into(),
            range_end,
            start_revision: from,
            ..WatchCreate::default()
        };
        self.begin(create, tell, None)
    }

    /// The same from now on. Nothing that happens after the answer has come is missed.
    pub(super) async fn changes_from_now(
        self: &Arc<Watches>,
        key: &str,
        range_end: Vec<u8>,
        tell: Tell,
    ) -> Watching {
        let create = WatchCreate {
            key: key.into(),
            range_end,
            ..WatchCreate::default()
        };
        let (begun, has_begun) = oneshot::channel();
        let watching = self.begin(create, tell, Some(begun));
        let _ = has_begun.await;
        watching
    }

    fn begin(
        self: &Arc<Watches>,
        mut create: WatchCreate,
        tell: Tell,
        begun: Option<oneshot::Sender<()>>,
    ) -> Watching {
        let mut table = self.table();
        table.last += 1;
        let id = table.last;
        create.watch_id = id;
        let entry = Entry {
            create,
            tell,
            begun,
        };
        table.by_id.insert(id, entry);
        let _ = self.orders.send(Order::Begin(id));
        Watching {
            id,
            watches: Arc::downgrade(self),
        }
    }

    /// Takes an answer: who is told, and what.
    fn take(&self, answer: &WatchResponse) -> Option<(Tell, bool)> {
        let mut table = self.table();
        let entry = table.by_id.get_mut(&answer.watch_id)?;
        let header = answer.header.unwrap_or_default();
        if answer.canceled {
            // Compacted, or refused: either way it does not go on from where it was.
            let entry = table.by_id.remove(&answer.watch_id)?;
            return Some((entry.tell, false));
        }
        if answer.created {
            if entry.create.start_revision == 0 {
                entry.create.start_revision = header.revision + 1;
            }
            if let Some(begun) = entry.begun.take() {
                let _ = begun.send(());
            }
            return None;
        }
        let last = answer.events.iter().filter_map(|event| event.kv.as_ref());
        let last = last.map(|kv| kv.mod_revision).max()?;
        entry.create.start_revision = entry.create.start_revision.max(last + 1);
        Some((Arc::clone(&entry.tell), true))
    }

    fn one(&self, id: i64) -> Option<WatchCreate> {
        self.table()
            .by_id
            .get(&id)
            .map(|entry| entry.create.clone())
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if let Some(watches) = self.watches.upgrade()
            && watches.table().by_id.remove(&self.id).is_some()
        {
            let _ = watches.orders.send(Order::End(self.id));
        }
    }
}

/// Keeps one stream open for as long as anybody watches.
async fn run(watches: Weak<Watches>, link: Arc<Link>, mut orders: mpsc::UnboundedReceiver<Order>) {
    let mut pause = FIRST_PAUSE;
    loop {
        // Nobody watches: wait until somebody does. Orders to end what is over already come as well.
        let nobody = || {
            let watches = watches.upgrade();
            watches.is_none_or(|watches| watches.table().by_id.is_empty())
        };
        while nobody() {
            if orders.recv().await.is_none() {
                return;
            }
        }
        let began = tokio::time::Instant::now();
        if follow(&watches, &link, &mut orders).await.is_none() {
            return;
        }
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..=1.0))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// One stream, from its beginning to its end. `None` when nobody is left to watch for.
async fn follow(
    watches: &Weak<Watches>,
    link: &Arc<Link>,
    orders: &mut mpsc::UnboundedReceiver<Order>,
) -> Option<()> {
    let (requests, feed) = mpsc::unbounded_channel();
    // Orders given until now are carried out by asking for all that is in the table. They are given
    // under its lock, so none of them comes again.
    {
        let watches = watches.upgrade()?;
        let table = watches.table();
        while orders.try_recv().is_ok() {}
        if table.by_id.is_empty() {
            // The server would say nothing, not even that the stream is open, and we would wait for that.
            return Some(());
        }
        for entry in table.by_id.values() {
            let _ = requests.send(begin(entry.create.clone()));
        }
    }
    let mut generations = link.generations();
    let Ok((mut answers, open)) = link.stream::<_, WatchResponse>(WATCH, Feed(feed)).await else {
        return Some(());
    };
    let generation = open.generation;
    loop {
        let answer = tokio::select! {
            order = orders.recv() => {
                let request = match order? {
                    Order::Begin(id) => watches.upgrade()?.one(id).map(begin),
                    Order::End(watch_id) => {
                        let order = Some(WatchOrder::Cancel(WatchCancel { watch_id }));
                        Some(WatchRequest { order })
                    }
                };
                if let Some(request) = request {
                    let _ = requests.send(request);
                }
                continue;
            }
            answer = answers.message() => answer,
            // Not to be used any more.
            _ = generations.wait_for(|now| *now > generation) => return Some(()),
        };
        let answer = match answer {
            Ok(Some(answer)) => answer,
            Ok(None) => return Some(()),
            Err(status) => {
                link.stream_ended(generation, &status);
                return Some(());
            }
        };
        if answer.canceled && answer.watch_id == -1 {
            return Some(()); // a request that made no sense to the server
        }
        let told = watches.upgrade()?.take(&answer);
        match told {
            Some((tell, true)) => tell(Heard::Events(&answer.events)),
            Some((tell, false)) => tell(Heard::Lost),
            None => {}
        }
    }
}

fn begin(create: WatchCreate) -> WatchRequest {
    WatchRequest {
        order: Some(WatchOrder::Create(create)),
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches")
            .field("watches", &self.table().by_id.len())
            .finish()
    }
}

impl fmt::Debug for Watching {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Watching({})", self.id)
    }
}
