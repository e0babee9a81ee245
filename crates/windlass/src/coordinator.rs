//! [`Coordinator`]: the connection to a store, from which all primitives are created.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::runtime::Handle;

use crate::barrier::Barrier;
use crate::counter::Counter;
use crate::election::Election;
use crate::gate::Gate;
use crate::latch::Latch;
use crate::lease::{Clock, Drift, Keeper};
use crate::limit::{Limiter, LimiterRuntime, Quotas};
use crate::lock::{Lock, LockState};
use crate::locks::Locks;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use crate::store_url::StoreUrl;
use crate::telemetry::{MetricOptions, Telemetry};
use windlass_core::error::{Error, Result};
use windlass_core::memory::{Memory, MemoryStore};
use windlass_core::name::Name;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, Kind, LatchStore,
    NotificationStore, Occupancy, Replicas,
};

/// Connects to the store that `url` names, with the default options.
///
/// | URL | where the state is |
/// |---|---|
/// | `memory:` | this process, for this connection alone; `memory:NAME` is shared within the process |
/// | `file:PATH` | a SQLite file, for the processes of one machine |
/// | `redis://HOST:PORT/DB` | one Redis or Valkey server; `rediss://` for TLS, `redis+unix://` for a socket |
/// | `redis+sentinel://HOST,HOST/SERVICE` | the master that sentinels name; `rediss+sentinel://` for TLS |
/// | `redis+cluster://HOST,HOST` | a Redis Cluster; `rediss+cluster://` for TLS |
/// | `redlock://HOST,HOST,HOST` | a majority of independent Redis servers; coordination only |
/// | `etcd://HOST:PORT,HOST:PORT` | an etcd cluster; coordination only; `etcds://` for TLS |
/// | `zookeeper://HOST:PORT,HOST:PORT/CHROOT` | a ZooKeeper ensemble; coordination only; `zookeeper+tls://` for TLS |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let guard = w.lock("invoice/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
///
/// # Errors
///
/// If the URL is invalid, the store's feature is not compiled in, or the store cannot be reached.
///
/// # Panics
///
/// Outside a tokio runtime.
pub async fn connect(url: &str) -> Result<Coordinator> {
    Options::new().connect(url).await
}

/// Options of a connection.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until connect is called"]
pub struct Options {
    pub(crate) namespace: Option<String>,
    pub(crate) call_timeout: Duration,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) drift: Option<f64>,
    pub(crate) clock: Clock,
    pub(crate) metrics: MetricOptions,
}

impl Options {
    /// The limit on one round trip, unless another [call timeout](Options::call_timeout) is set.
    pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(2);

    /// The default options.
    pub fn new() -> Options {
        Options {
            namespace: None,
            call_timeout: Options::DEFAULT_CALL_TIMEOUT,
            replicas: None,
            drift: None,
            clock: Clock::system(),
            metrics: MetricOptions::default(),
        }
    }

    /// A prefix for all names, so that several programs can share a store: `NS:name`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Options {
        self.namespace = Some(namespace.into());
        self
    }

    /// Prefixes the namespace with another one: `OUTER:NS:name`.
    pub fn within(mut self, outer: &str) -> Options {
        self.namespace = Some(match self.namespace {
            Some(namespace) => format!("{outer}:{namespace}"),
            None => outer.to_owned(),
        });
        self
    }

    /// Every grant counts only when `count` replicas have acknowledged it within `timeout`; otherwise it
    /// is released, and acquiring fails.
    ///
    /// For `redis://`, `redis+sentinel://` and `redis+cluster://`; acquiring fails on any other store. This narrows
    /// the window in which a failover can lose a grant, and does not close it: see [`Replicas`]. Overrides the URL
    /// (`?replicas=1&replicas_timeout=100ms`).
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Options {
        self.replicas = Some(Replicas {
            count,
            timeout,
            on_disk: false,
        });
        self
    }

    /// As [`replicas`](Options::replicas), and the grant must be on the disks of the master and of `count` replicas.
    ///
    /// For Redis 7.2 or later, or Valkey, with an append-only file.
    pub fn replicas_on_disk(mut self, count: u32, timeout: Duration) -> Options {
        self.replicas = Some(Replicas {
            count,
            timeout,
            on_disk: true,
        });
        self
    }

    /// The limit on one round trip; 2 s by default. When it is reached, the outcome is unknown: what may have been
    /// granted is released.
    pub fn call_timeout(mut self, limit: Duration) -> Options {
        self.call_timeout = limit;
        self
    }

    /// The clock drift to allow for, as a fraction of the TTL: more than 0 and less than 0.5; 0.01 by default.
    ///
    /// A claim counts as lost that fraction of its TTL, and 2 ms, before its TTL ends. Overrides the URL
    /// (`redlock://…?drift=0.02`).
    pub fn drift(mut self, factor: f64) -> Options {
        self.drift = Some(factor);
        self
    }

    /// Uses another clock, for tests on `memory:`.
    pub fn clock(mut self, clock: Clock) -> Options {
        self.clock = clock;
        self
    }

    /// Whether this connection records metrics; true by default. An exporter must be installed before connecting.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, on: bool) -> Options {
        self.metrics.off = !on;
        self
    }

    /// Gives metrics of locks and other leases a label `name`: what `label` returns for the name, without the
    /// namespace. By default there is none.
    ///
    /// Each label is a series of its own, in this process and in the monitoring system, so their number is bounded:
    /// once a connection has used `max` labels, all further ones become `other`. Return a prefix, not a name with an
    /// identifier in it. Keys of limiters and of idempotent executions are never labels.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let options = windlass::Options::new()
    ///     .metric_name_label(20, |name| name.split('/').next().unwrap_or_default());
    /// let w = options.connect("memory:").await?;
    /// let guard = w.lock("invoice/42").acquire().await?; // name="invoice"
    /// # drop(guard); Ok(()) }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metric_name_label(
        mut self,
        max: usize,
        label: impl Fn(&str) -> &str + Send + Sync + 'static,
    ) -> Options {
        let label = std::sync::Arc::new(label);
        self.metrics.names = Some(crate::telemetry::NameLabels { max, label });
        self
    }

    /// Connects to the store that `url` names.
    ///
    /// # Errors
    ///
    /// See [`connect`](crate::connect).
    pub async fn connect(self, url: &str) -> Result<Coordinator> {
        if let Some(namespace) = &self.namespace {
            Name::new("use the namespace", None, namespace)?;
        }
        let store = StoreUrl::parse(url)?;
        let drift = self.drift.map(Drift::new).transpose()?;
        let keeper = Keeper::start(self.clock.clone(), self.call_timeout, Handle::current());
        let backend: Arc<dyn Backend> = match store {
            StoreUrl::Memory { name } => {
                let store = match name {
                    Some(name) => MemoryStore::shared(self.clock.clone(), &name),
                    None => MemoryStore::private(self.clock.clone()),
                };
                store.register_client(keeper.client(), grant_listener(&keeper));
                Arc::new(Memory(store))
            }
            #[cfg(feature = "file")]
            StoreUrl::File { path } => {
                use windlass_file::File;
                File::open(path, keeper.client(), grant_listener(&keeper)).await?
            }
            #[cfg(not(feature = "file"))]
            StoreUrl::File { .. } => {
                return Err(windlass_core::store::unsupported::not_in_this_build(
                    "file", "file",
                ));
            }
            #[cfg(feature = "redis")]
            StoreUrl::Redis { url } => {
                use windlass_redis::Redis;
                Redis::open(
                    &url,
                    self.call_timeout,
                    keeper.client(),
                    grant_listener(&keeper),
                )
                .await?
            }
            #[cfg(not(feature = "redis"))]
            StoreUrl::Redis { .. } => {
                return Err(windlass_core::store::unsupported::not_in_this_build(
                    "redis", "redis",
                ));
            }
            #[cfg(feature = "zookeeper")]
            StoreUrl::ZooKeeper { url } => {
                use windlass_zookeeper::ZooKeeper;
                ZooKeeper::open(&url, self.call_timeout, grant_listener(&keeper)).await?
            }
            #[cfg(not(feature = "zookeeper"))]
            StoreUrl::ZooKeeper { .. } => {
                return Err(windlass_core::store::unsupported::not_in_this_build(
                    "zookeeper",
                    "zookeeper",
                ));
            }
            #[cfg(feature = "redlock")]
            StoreUrl::Redlock { url } => {
                use windlass_redlock::{Quorum, RedlockAddress};
                let mut address = RedlockAddress::parse(&url)?;
                address.drift = drift.or(address.drift);
                Quorum::open(
                    address,
                    windlass_core::redact::redact(&url),
                    self.clock.clone(),
                    self.call_timeout,
                    keeper.client(),
                    grant_listener(&keeper),
                )
                .await?
            }
            #[cfg(not(feature = "redlock"))]
            StoreUrl::Redlock { .. } => {
                return Err(windlass_core::store::unsupported::not_in_this_build(
                    "redlock", "redlock",
                ));
            }
            #[cfg(feature = "etcd")]
            StoreUrl::Etcd { url } => {
                use windlass_etcd::Etcd;
                let clock = self.clock.clone();
                Etcd::open(&url, self.call_timeout, clock, grant_listener(&keeper)).await?
            }
            #[cfg(not(feature = "etcd"))]
            StoreUrl::Etcd { .. } => {
                return Err(windlass_core::store::unsupported::not_in_this_build(
                    "etcd", "etcd",
                ));
            }
        };
        keeper.store_opened(
            drift.or_else(|| backend.drift()).unwrap_or_default(),
            Telemetry::new(backend.capabilities().kind, &self.metrics),
        );
        Ok(Coordinator {
            inner: Arc::new(CoordinatorInner {
                claims: backend.claims(),
                gates: backend.gates(),
                latches: backend.latches(),
                counters: backend.counters(),
                notifications: backend.notifications(),
                replicas: self.replicas.or_else(|| backend.replicas()),
                limits: LimiterRuntime::new(backend.limits(), keeper.clock().clone()),
                backend,
                keeper,
                namespace: self.namespace,
            }),
        })
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

/// A connection to a store, from which all primitives are created. Cheap to clone; one is enough for a program.
///
/// A coordinator may be dropped before its guards: they keep what they need alive.
#[derive(Clone)]
pub struct Coordinator {
    inner: Arc<CoordinatorInner>,
}

struct CoordinatorInner {
    backend: Arc<dyn Backend>,
    claims: Arc<dyn ClaimStore>,
    gates: Arc<dyn GateStore>,
    latches: Arc<dyn LatchStore>,
    counters: Arc<dyn windlass_core::store::counter::CounterStore>,
    notifications: Arc<dyn NotificationStore>,
    limits: Arc<LimiterRuntime>,
    replicas: Option<Replicas>,
    keeper: Arc<Keeper>,
    namespace: Option<String>,
}

impl Coordinator {
    /// The longest name of a primitive, in bytes, namespace included.
    pub const MAX_NAME_BYTES: usize = windlass_core::Name::MAX_BYTES;

    /// A distributed lock. Nothing is sent until it is acquired.
    pub fn lock(&self, name: &str) -> Lock {
        Lock::new(self.clone(), name)
    }

    /// Several locks to acquire together: all or none.
    pub fn locks<S: Into<String>>(&self, names: impl IntoIterator<Item = S>) -> Locks {
        let names = names.into_iter().map(Into::into).collect();
        Locks::new(self.clone(), names)
    }

    /// A read-write lock: many readers, or one writer.
    pub fn rwlock(&self, name: &str) -> RwLock {
        RwLock::new(self.clone(), name)
    }

    /// A semaphore with `permits` permits.
    pub fn semaphore(&self, name: &str, permits: u32) -> Semaphore {
        Semaphore::new(self.clone(), name, permits)
    }

    /// A leader election.
    pub fn election(&self, name: &str) -> Election {
        Election::new(self.clone(), name)
    }

    /// A count-down latch.
    pub fn latch(&self, name: &str) -> Latch {
        Latch::new(self.clone(), name)
    }

    /// A double barrier for `parties` parties.
    pub fn barrier(&self, name: &str, parties: u32) -> Barrier {
        Barrier::new(self.clone(), name, parties)
    }

    /// A gate, which rejects stale fencing tokens on the side of the resource.
    pub fn gate(&self, name: &str) -> Gate {
        Gate::new(self.clone(), name)
    }

    /// A shared counter.
    pub fn counter(&self, name: &str) -> Counter {
        Counter::new(self.clone(), name)
    }

    /// A rate limiter with one quota or several.
    pub fn limiter(&self, name: &str, quotas: impl Into<Quotas>) -> Limiter {
        Limiter::new(self.clone(), name, quotas.into())
    }

    /// A Bloom filter. Nothing is sent until it is created or opened.
    pub fn bloom(&self, name: &str) -> crate::bloom::Bloom {
        crate::bloom::Bloom::new(self.clone(), name)
    }

    /// A permission space. Nothing is sent until it is defined or opened.
    pub fn permissions(&self, name: &str) -> crate::permissions::Permissions {
        crate::permissions::Permissions::new(self.clone(), name)
    }

    /// Exact deduplication within a time window.
    pub fn seen(&self, name: &str) -> crate::seen::Seen {
        crate::seen::Seen::new(self.clone(), name)
    }

    /// A pub/sub topic with messages of type `T`.
    pub fn topic<T>(&self, name: &str) -> crate::topic::Topic<T> {
        crate::topic::Topic::new(self.clone(), name)
    }

    /// Idempotent execution under a key. Nothing is sent until it begins.
    pub fn once(&self, key: &str) -> crate::once::Once {
        crate::once::Once::new(self.clone(), key)
    }

    /// The locks that are held or waited for and whose names match `pattern`, where `*` matches any text and `?` any
    /// character.
    ///
    /// On Redis, locks of other libraries are not listed: nothing distinguishes their keys from other data.
    pub async fn list_locks(&self, pattern: &str) -> Result<Vec<LockState>> {
        let found = self.list(&[Kind::Lock], pattern, 1).await?;
        Ok(found.into_iter().map(LockState::from).collect())
    }

    /// Everything that is held or waited for, of any kind, whose name matches `pattern`; each with at most
    /// `max_holders` of its holders.
    pub async fn survey(&self, pattern: &str, max_holders: usize) -> Result<Vec<Occupancy>> {
        self.list(&Kind::ALL, pattern, max_holders).await
    }

    async fn list(
        &self,
        kinds: &'static [Kind],
        pattern: &str,
        max_holders: usize,
    ) -> Result<Vec<Occupancy>> {
        let pattern = match &self.inner.namespace {
            Some(namespace) => format!("{namespace}:{pattern}"),
            None => pattern.to_owned(),
        };
        let reply = self.inner.claims.list(kinds, pattern, max_holders);
        let mut found = reply
            .await
            .map_err(|e| self.describe(e.with_operation("list locks")))?;
        for state in &mut found {
            self.strip_namespace(&mut state.name);
        }
        Ok(found)
    }

    /// What the store is, and what it guarantees.
    pub fn capabilities(&self) -> Capabilities {
        self.inner.backend.capabilities()
    }

    /// The store's URL, without credentials.
    pub fn address(&self) -> &str {
        self.inner.backend.address()
    }

    /// Diagnoses the store: what it is, what it guarantees, what is misconfigured.
    pub async fn diagnose(&self) -> Result<Vec<Finding>> {
        let findings = self.inner.backend.diagnose().await;
        findings.map_err(|e| self.describe(e.with_operation("diagnose the store")))
    }

    pub(crate) fn backend(&self) -> &Arc<dyn Backend> {
        &self.inner.backend
    }

    /// How many replicas must acknowledge a grant, unless a request overrides it.
    pub(crate) fn replicas(&self) -> Option<Replicas> {
        self.inner.replicas
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.inner.keeper
    }

    pub(crate) fn claims(&self) -> &Arc<dyn ClaimStore> {
        &self.inner.claims
    }

    pub(crate) fn latches(&self) -> &Arc<dyn LatchStore> {
        &self.inner.latches
    }

    pub(crate) fn notifications(&self) -> &Arc<dyn NotificationStore> {
        &self.inner.notifications
    }

    /// Awaits a store's reply, at most for the call timeout; an error names the operation and the store.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        name: &str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let reply = self.keeper().call(operation, name, reply).await;
        reply.map_err(|e| self.describe(e))
    }

    pub(crate) fn gates(&self) -> &Arc<dyn GateStore> {
        &self.inner.gates
    }

    pub(crate) fn counters(&self) -> &Arc<dyn windlass_core::store::counter::CounterStore> {
        &self.inner.counters
    }

    pub(crate) fn limits(&self) -> &Arc<LimiterRuntime> {
        &self.inner.limits
    }

    pub(crate) fn namespace(&self) -> Option<&str> {
        self.inner.namespace.as_deref()
    }

    pub(crate) fn strip_namespace(&self, name: &mut String) {
        if let Some(namespace) = &self.inner.namespace
            && let Some(rest) = name
                .strip_prefix(namespace.as_str())
                .and_then(|rest| rest.strip_prefix(':'))
        {
            *name = rest.to_owned();
        }
    }

    /// Adds the store to the error.
    pub(crate) fn describe(&self, error: Error) -> Error {
        error.with_backend(self.inner.backend.address().to_owned())
    }
}

#[cfg(test)]
impl Coordinator {
    /// The same connection with another store of claims.
    pub(crate) fn with_claims(
        mut self,
        store: impl FnOnce(Arc<dyn ClaimStore>) -> Arc<dyn ClaimStore>,
    ) -> Coordinator {
        let inner = Arc::get_mut(&mut self.inner).expect("it is not shared yet");
        inner.claims = store(Arc::clone(&inner.claims));
        self
    }

    /// The same connection with another store of limiters.
    pub(crate) fn with_limits(
        mut self,
        store: Arc<dyn windlass_core::store::limit::LimitStore>,
    ) -> Coordinator {
        let clock = self.keeper().clock().clone();
        let inner = Arc::get_mut(&mut self.inner).expect("it is not shared yet");
        inner.limits = LimiterRuntime::new(store, clock);
        self
    }
}

impl fmt::Debug for Coordinator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordinator")
            .field("store", &self.address())
            .field("namespace", &self.inner.namespace)
            .finish()
    }
}

fn grant_listener(keeper: &Arc<Keeper>) -> Weak<dyn GrantListener> {
    let weak: Weak<Keeper> = Arc::downgrade(keeper);
    weak
}
