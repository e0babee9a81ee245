//! `memory:`: a store in this process. Every decision is one of the shared [rules](crate::rules),
//! taken under a mutex.
//!
//! `memory:` is a separate store for each connection; `memory:NAME` is one store for all
//! connections of the process with this name.

mod bloom;
mod claims;
mod counter;
mod gate;
mod inventory;
mod latch;
mod limit;
mod notifications;
mod once;
mod permissions;
mod seen;
mod topic;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use crate::error::Result;
use crate::name::Name;
use crate::store::notification::SubscriberRegistry;
use crate::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, Kind, LatchStore,
    NotificationStore, Pending, Severity, WakeAddress,
};
use crate::{Clock, Fence, FenceStrength};

/// Shards of each map: enough that threads rarely contend, few enough to sweep.
const SHARDS: usize = 64;

/// The state of one `memory:` store.
pub struct MemoryStore {
    clock: Clock,
    address: String,
    fence: AtomicU64,
    /// Indexed by kind.
    claims: [Shards<crate::rules::wait_queue::MemoryQueue>; Kind::ALL.len()],
    gates: Shards<crate::rules::gate::HighestFence>,
    latches: Shards<crate::rules::latch::LatchRecord>,
    limits: limit::LimitMap,
    subscribers: Arc<SubscriberRegistry>,
    counters: Shards<crate::rules::counter::CounterState>,
    counter_ops: Shards<counter::RecordedOperation>,
    blooms: Shards<bloom::MemoryFilter>,
    spaces: Shards<permissions::StoredSpace>,
    seen: Shards<seen::SeenWindow>,
    onces: Shards<once::KeptRecord>,
    clients: Mutex<HashMap<u64, Weak<dyn GrantListener>>>,
}

impl MemoryStore {
    /// A store that no other connection shares.
    pub fn private(clock: Clock) -> Arc<MemoryStore> {
        MemoryStore::new(clock, "memory:".to_owned())
    }

    /// The store of this name, created on first use. It ends with its last user.
    pub fn shared(clock: Clock, name: &str) -> Arc<MemoryStore> {
        static STORES: LazyLock<Mutex<HashMap<String, Weak<MemoryStore>>>> =
            LazyLock::new(Mutex::default);
        let mut stores = guard(&STORES);
        stores.retain(|_, store| store.strong_count() > 0);
        if let Some(store) = stores.get(name).and_then(Weak::upgrade) {
            return store;
        }
        let store = MemoryStore::new(clock, format!("memory:{name}"));
        stores.insert(name.to_owned(), Arc::downgrade(&store));
        store
    }

    fn new(clock: Clock, address: String) -> Arc<MemoryStore> {
        Arc::new(MemoryStore {
            clock,
            address,
            fence: AtomicU64::new(0),
            claims: Kind::ALL.map(|_| Shards::new()),
            gates: Shards::new(),
            latches: Shards::new(),
            limits: limit::LimitMap::new(),
            subscribers: Arc::default(),
            counters: Shards::new(),
            counter_ops: Shards::new(),
            blooms: Shards::new(),
            spaces: Shards::new(),
            seen: Shards::new(),
            onces: Shards::new(),
            clients: Mutex::default(),
        })
    }

    /// Sends the wake-ups of a client to `listener`.
    pub fn register_client(&self, client: u64, listener: Weak<dyn GrantListener>) {
        let mut clients = guard(&self.clients);
        clients.retain(|_, c| c.strong_count() > 0);
        clients.insert(client, listener);
    }

    fn next_fence(&self) -> Fence {
        Fence::new(self.fence.fetch_add(1, Ordering::Relaxed) + 1)
    }

    fn wake(&self, wakes: &[(WakeAddress, Fence)]) {
        for (to, fence) in wakes {
            let client = guard(&self.clients).get(&to.client).and_then(Weak::upgrade);
            if let Some(client) = client {
                client.granted(to.claim, Some(*fence));
            }
        }
    }
}

/// The `memory:` backend of one client.
#[derive(Debug)]
pub struct Memory(pub Arc<MemoryStore>);

impl Backend for Memory {
    fn address(&self) -> &str {
        &self.0.address
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::clone(&self.0) as _
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::clone(&self.0) as _
    }

    fn inventory(&self) -> Arc<dyn crate::store::InventoryStore> {
        Arc::clone(&self.0) as _
    }

    fn counters(&self) -> Arc<dyn crate::store::counter::CounterStore> {
        Arc::clone(&self.0) as _
    }

    fn limits(&self) -> Arc<dyn crate::store::limit::LimitStore> {
        Arc::clone(&self.0) as _
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::clone(&self.0) as _
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::clone(&self.0) as _
    }

    fn blooms(&self) -> Arc<dyn crate::store::BloomStore> {
        Arc::clone(&self.0) as _
    }

    fn permissions(&self) -> Arc<dyn crate::store::PermissionStore> {
        Arc::clone(&self.0) as _
    }

    fn seen(&self) -> Arc<dyn crate::store::SeenStore> {
        Arc::clone(&self.0) as _
    }

    fn onces(&self) -> Arc<dyn crate::store::OnceStore> {
        Arc::clone(&self.0) as _
    }

    fn topics(&self) -> Arc<dyn crate::store::TopicStore> {
        Arc::clone(&self.0) as _
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(async {
            let mut findings = vec![Finding::new(
                Severity::Fine,
                "reach",
                "state lives in this process alone: other processes do not see these locks",
            )];
            let last = self.0.fence.load(Ordering::Relaxed);
            findings.extend(Finding::of_exhausted_fences(last, "Restart the program"));
            Ok(findings)
        })
    }
}

const CAPABILITIES: Capabilities = Capabilities {
    kind: "memory",
    fences: FenceStrength::Linearizable,
    reach: "tasks of one process",
    durability: "locks end with the process",
};

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryStore({})", self.address)
    }
}

/// A map divided into shards, each behind its own mutex.
struct Shards<T> {
    hasher: std::hash::RandomState,
    shards: Box<[Mutex<Shard<T>>]>,
}

/// One shard. Whenever it has doubled, expired entries are removed, so that claims that are never
/// released do not pile up.
#[derive(Debug)]
struct Shard<T> {
    map: HashMap<Name, T>,
    sweep_at: usize,
}

impl<T> Shards<T> {
    fn new() -> Shards<T> {
        let shard = || {
            Mutex::new(Shard {
                map: HashMap::new(),
                sweep_at: 64,
            })
        };
        Shards {
            hasher: std::hash::RandomState::new(),
            shards: (0..SHARDS).map(|_| shard()).collect(),
        }
    }

    fn of(&self, name: &Name) -> MutexGuard<'_, Shard<T>> {
        guard(&self.shards[self.index(name)])
    }

    fn index(&self, name: &Name) -> usize {
        self.hasher.hash_one(name) as usize % SHARDS
    }

    /// The shards of several names, each once, locked in the same order every time.
    fn of_all(&self, names: &[&Name]) -> BTreeMap<usize, MutexGuard<'_, Shard<T>>> {
        let indices: BTreeSet<usize> = names.iter().map(|name| self.index(name)).collect();
        let locked = |index: usize| (index, guard(&self.shards[index]));
        indices.into_iter().map(locked).collect()
    }

    fn iter(&self) -> impl Iterator<Item = MutexGuard<'_, Shard<T>>> {
        self.shards.iter().map(guard)
    }
}

impl<T> Shard<T> {
    fn sweep(&mut self, mut is_expired: impl FnMut(&T) -> bool) {
        if self.map.len() >= self.sweep_at {
            self.map.retain(|_, value| !is_expired(value));
            self.sweep_at = (self.map.len() * 2).max(64);
        }
    }
}

/// The reply to a call whose decision is already taken. It uses up some of the task's budget: a
/// loop of calls that never wait would keep other tasks from running.
fn reply<'a, T: Send + 'a>(outcome: Result<T>) -> Pending<'a, T> {
    Box::pin(async {
        tokio::task::coop::consume_budget().await;
        outcome
    })
}

/// Locks a mutex. After a panic in a decision the maps are still consistent, because each write is
/// a single insertion or removal.
fn guard<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn highest_fence_is_a_problem() {
        let store = MemoryStore::private(Clock::system());
        let memory = Memory(Arc::clone(&store));
        assert_eq!(memory.diagnose().await.unwrap().len(), 1);
        store.fence.store(Fence::MAX.get(), Ordering::Relaxed);
        let found = memory.diagnose().await.unwrap();
        let found = found.iter().find(|finding| finding.topic == "last fence");
        assert_eq!(found.unwrap().severity, Severity::Problem);
    }
}
