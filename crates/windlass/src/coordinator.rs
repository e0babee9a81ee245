//! [`Coordinator`]: the connection to a store, from which all primitives are created.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::barrier::Barrier;
use crate::counter::Counter;
use crate::election::Election;
use crate::gate::Gate;
use crate::latch::Latch;
use crate::lease::{Keeper, Lease};
use crate::limit::{Limiter, LimiterRuntime, Quotas};
use crate::lock::{Lock, LockState};
use crate::locks::Locks;
use crate::rwlock::RwLock;
use crate::semaphore::Semaphore;
use windlass_core::error::{Error, Result};
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, DataKind, Finding, GateStore, Kind, LatchStore, NamePage,
    NotificationStore, Occupancy, Replicas,
};

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
    default_ttl: Duration,
    keeper: Arc<Keeper>,
    namespace: Option<String>,
}

impl Coordinator {
    /// The longest name of a primitive, in bytes, namespace included.
    pub const MAX_NAME_BYTES: usize = windlass_core::Name::MAX_BYTES;

    /// `replicas` overrides what the store's URL says.
    pub(crate) fn new(
        backend: Arc<dyn Backend>,
        keeper: Arc<Keeper>,
        namespace: Option<String>,
        replicas: Option<Replicas>,
    ) -> Coordinator {
        Coordinator {
            inner: Arc::new(CoordinatorInner {
                claims: backend.claims(),
                gates: backend.gates(),
                latches: backend.latches(),
                counters: backend.counters(),
                notifications: backend.notifications(),
                replicas: replicas.or_else(|| backend.replicas()),
                limits: LimiterRuntime::new(backend.limits(), keeper.clock().clone()),
                default_ttl: backend
                    .max_ttl()
                    .map_or(Lease::DEFAULT_TTL, |max| max.min(Lease::DEFAULT_TTL)),
                backend,
                keeper,
                namespace,
            }),
        }
    }

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

    /// As [`survey`](Coordinator::survey), for one kind.
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without this kind.
    pub async fn survey_kind(
        &self,
        kind: Kind,
        pattern: &str,
        max_holders: usize,
    ) -> Result<Vec<Occupancy>> {
        let all: &'static [Kind] = &Kind::ALL;
        let index = all.iter().position(|each| *each == kind);
        let one = index.map_or(&[][..], |index| &all[index..=index]);
        self.list(one, pattern, max_holders).await
    }

    /// At most `max` of the names under which the store keeps data of this kind, in order, whose names match `pattern`.
    /// Claims and limiters have lists of their own: [`survey`](Coordinator::survey) and
    /// [`survey_limiters`](Coordinator::survey_limiters).
    ///
    /// # Errors
    ///
    /// [`Unsupported`](crate::ErrorKind::Unsupported) on a store without this kind.
    ///
    /// ```
    /// use windlass::DataKind;
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let w = windlass::connect("memory:").await?;
    /// w.counter("visits/home").add(1).await?;
    /// let found = w.names(DataKind::Counter, "visits/*", 100).await?;
    /// assert_eq!(found.names, ["visits/home"]);
    /// # Ok(()) }
    /// ```
    pub async fn names(&self, kind: DataKind, pattern: &str, max: usize) -> Result<NamePage> {
        let inventory = self.inner.backend.inventory();
        let found = inventory
            .names(kind, self.with_namespace(pattern), max)
            .await;
        let mut found = found.map_err(|e| self.describe(e.with_operation("list names")))?;
        for name in &mut found.names {
            self.strip_namespace(name);
        }
        Ok(found)
    }

    fn with_namespace(&self, pattern: &str) -> String {
        match &self.inner.namespace {
            Some(namespace) => format!("{namespace}:{pattern}"),
            None => pattern.to_owned(),
        }
    }

    async fn list(
        &self,
        kinds: &'static [Kind],
        pattern: &str,
        max_holders: usize,
    ) -> Result<Vec<Occupancy>> {
        let pattern = self.with_namespace(pattern);
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

    /// The TTL of a claim, unless the request sets another: 30 s, or the longest that the store allows
    /// (`redlock://…?max_ttl=10s`).
    pub fn default_ttl(&self) -> Duration {
        self.inner.default_ttl
    }

    /// Waits for the releases that run in the background: those of dropped guards, of cancelled acquires, and of
    /// acquires that failed after the store may have granted them.
    ///
    /// A program that ends earlier leaves these claims to their TTL. An unreachable store gets retries for up to one TTL:
    /// use a timeout.
    pub async fn finish_releases(&self) {
        self.inner.keeper.finish_releases().await;
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
