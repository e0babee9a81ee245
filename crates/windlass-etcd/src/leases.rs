//! Leases: they expire the claims of a client that is gone.
//!
//! All renewed claims with the same TTL share one lease, that of their *TTL class*. A claim that is not
//! renewed has a dedicated lease, so that it expires even while its client keeps others alive.
//!
//! **How long a lease is certain to live.** etcd renews a lease on its leader alone, without consensus. A
//! leader that was deposed and does not know it yet confirms renewals that mean nothing. So a renewal counts
//! only if a linearizable read that was sent after it finds the same raft term as the member that passed it on
//! had reported before: then the cluster had no other leader in between, and the next leader extends every
//! lease by its whole TTL from then on. The earlier term must come from that same member: terms from another
//! member prove nothing about one that is partitioned and still believes that it leads.
//!
//! The read may be of any key, but a user may have access to nothing but its own claims. So callers that need
//! a lease pass the key of the claim.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::connection::EtcdConnection;
use super::errors::{LostReply, is_lease_not_found, unreachable};
use super::keepalive::KeepAliveStream;
use super::proto::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest,
    TimeToLiveRequest, TimeToLiveResponse,
};
use windlass_core::error::Result;
use windlass_core::{Clock, Moment};

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";

/// A shared lease lives at least this much longer than its claims, so that not every claim has to renew it.
const SLACK: Duration = Duration::from_millis(500);

/// How much longer than its claims a shared lease is certain to live. The holder's process may notice the
/// end of its claim late, when its timers run late on a busy machine.
const MARGIN: Duration = Duration::from_millis(100);

/// How long a request without a reply may still arrive and create a key that the client does not track.
const MAX_DELAY: Duration = Duration::from_secs(600);

/// One lease.
#[derive(Debug)]
pub(super) struct EtcdLease {
    pub(super) id: i64,
    pub(super) ttl: Duration,
    /// Whether it is the lease of a TTL class.
    pub(super) shared: bool,
    /// When the last confirmed renewal was sent.
    confirmed: AtomicU64,
    expired: AtomicBool,
    /// Whether a background task is renewing it.
    renewing_early: AtomicBool,
    /// One renewal at a time serves all claims that need it.
    renewal: AsyncMutex<()>,
    /// Until when untracked keys may appear on it.
    late_keys_until: AtomicU64,
    last_sweep: AtomicU64,
}

impl EtcdLease {
    /// A lease granted by a request that was sent at that moment.
    fn granted(id: i64, ttl: Duration, shared: bool, sent: Moment) -> EtcdLease {
        EtcdLease {
            id,
            ttl,
            shared,
            confirmed: AtomicU64::new(sent.as_nanos()),
            expired: AtomicBool::new(false),
            renewing_early: AtomicBool::new(false),
            renewal: AsyncMutex::new(()),
            late_keys_until: AtomicU64::new(0),
            last_sweep: AtomicU64::new(sent.as_nanos()),
        }
    }

    /// Whether it is certain to live for `ttl`, and a margin if it is shared, from `now` on.
    pub(super) fn covers(&self, now: Moment, ttl: Duration) -> bool {
        !self.has_expired() && self.lives_until() >= now + ttl + self.margin()
    }

    /// A dedicated lease has none: it lives for the TTL of its claim.
    fn margin(&self) -> Duration {
        match self.shared {
            true => MARGIN,
            false => Duration::ZERO,
        }
    }

    fn lives_until(&self) -> Moment {
        self.confirmed() + self.ttl
    }

    fn confirmed(&self) -> Moment {
        Moment::from_nanos(self.confirmed.load(Ordering::SeqCst))
    }

    fn confirm(&self, sent: Moment) {
        self.confirmed.fetch_max(sent.as_nanos(), Ordering::SeqCst);
    }

    pub(super) fn has_expired(&self) -> bool {
        self.expired.load(Ordering::SeqCst)
    }

    /// A request to put a key on it got no reply: the key may appear later.
    pub(super) fn expect_late_keys(&self, now: Moment) {
        let until = (now + MAX_DELAY).as_nanos();
        self.late_keys_until.fetch_max(until, Ordering::SeqCst);
    }

    pub(super) fn may_have_late_keys(&self, now: Moment) -> bool {
        self.shared && now.as_nanos() < self.late_keys_until.load(Ordering::SeqCst)
    }

    /// Whether to look for untracked keys now: about as often as claims are renewed. True for one caller.
    pub(super) fn is_sweep_due(&self, now: Moment) -> bool {
        let last = self.last_sweep.load(Ordering::SeqCst);
        let next = (Moment::from_nanos(last) + self.ttl / 3).as_nanos();
        let (order, now) = (Ordering::SeqCst, now.as_nanos());
        now >= next
            && self
                .last_sweep
                .compare_exchange(last, now, order, order)
                .is_ok()
    }
}

/// A renewal that the server has answered, but that is not confirmed by a read yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct UnconfirmedRenewal {
    sent: Moment,
    /// The raft term that the confirming read must find.
    term: u64,
    pub(super) alive: bool,
}

/// The leases of one client.
pub(super) struct Leases {
    connection: Arc<EtcdConnection>,
    clock: Clock,
    runtime: Handle,
    /// By TTL in seconds.
    classes: Mutex<HashMap<u64, Arc<EtcdLease>>>,
    /// For keys that outlive their last use, by retention in seconds.
    retention: Mutex<HashMap<u64, EtcdLease>>,
    granting: AsyncMutex<()>,
    keepalive: KeepAliveStream,
    /// Called with a lease that has expired early.
    on_expiry: OnceLock<Box<dyn Fn(i64) + Send + Sync>>,
}

impl Leases {
    pub(super) fn new(connection: Arc<EtcdConnection>, clock: Clock, runtime: Handle) -> Leases {
        Leases {
            keepalive: KeepAliveStream::default(),
            connection,
            clock,
            runtime,
            classes: Mutex::default(),
            retention: Mutex::default(),
            granting: AsyncMutex::new(()),
            on_expiry: OnceLock::new(),
        }
    }

    pub(super) fn on_expiry(&self, callback: impl Fn(i64) + Send + Sync + 'static) {
        let _ = self.on_expiry.set(Box::new(callback));
    }

    /// The lease of the TTL class, certain to live for `ttl` from now on.
    pub(super) async fn shared(
        self: &Arc<Leases>,
        ttl: Duration,
        key: &str,
    ) -> Result<Arc<EtcdLease>> {
        let class = seconds(ttl + SLACK);
        loop {
            if let Some(lease) = self.class(class) {
                let now = self.clock.now();
                if lease.covers(now, ttl) {
                    self.renew_early(&lease, now, ttl, key);
                    return Ok(lease);
                }
                if self.cover(&lease, ttl, key).await? {
                    return Ok(lease);
                }
            }
            let _one_at_a_time = self.granting.lock().await;
            if self.class(class).is_some() {
                continue;
            }
            let lease = Arc::new(self.grant(class, true).await?);
            self.classes().insert(class, Arc::clone(&lease));
            if lease.covers(self.clock.now(), ttl) {
                return Ok(lease);
            }
            return Err(unreachable("granting a lease took longer than its TTL"));
        }
    }

    /// A lease for one claim alone.
    pub(super) async fn dedicated(&self, ttl: Duration) -> Result<Arc<EtcdLease>> {
        Ok(Arc::new(self.grant(seconds(ttl), false).await?))
    }

    /// A lease for keys that live for `keep` after they were last written. It is never renewed: a new one
    /// replaces it from time to time, so that keys which are no longer written expire.
    pub(super) async fn retention(&self, keep: Duration) -> Result<i64> {
        let period = (keep / 8).max(Duration::from_secs(1));
        let class = seconds(keep);
        let current = |now: Moment| {
            let leases = self.retention_leases();
            let lease = leases.get(&class)?;
            (now < lease.confirmed() + period).then_some(lease.id)
        };
        if let Some(id) = current(self.clock.now()) {
            return Ok(id);
        }
        let _one_at_a_time = self.granting.lock().await;
        if let Some(id) = current(self.clock.now()) {
            return Ok(id);
        }
        let lease = self.grant(seconds(keep + period), false).await?;
        let id = lease.id;
        self.retention_leases().insert(class, lease);
        Ok(id)
    }

    /// Passes on the outcome of a write on a retention lease, and discards that lease if it was gone.
    pub(super) fn after_retained_write<T>(&self, outcome: Result<T>) -> Result<T> {
        if outcome.as_ref().is_err_and(is_lease_not_found) {
            self.discard_retention();
        }
        outcome
    }

    /// A retention lease is gone: the next write on one uses a new one.
    pub(super) fn discard_retention(&self) {
        self.retention_leases().clear();
    }

    fn class(&self, class: u64) -> Option<Arc<EtcdLease>> {
        let lease = self.classes().get(&class).cloned();
        lease.filter(|lease| !lease.has_expired())
    }

    async fn grant(&self, seconds: u64, shared: bool) -> Result<EtcdLease> {
        let sent = self.clock.now();
        let request = LeaseGrantRequest {
            ttl: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        // A lease that was granted without a reply reaching us has no keys, and expires.
        let reply: LeaseGrantResponse = self
            .connection
            .call(GRANT, request, LostReply::Harmless)
            .await?;
        // The server may enforce a longer minimum.
        let ttl = Duration::from_secs(u64::try_from(reply.ttl).unwrap_or(0));
        Ok(EtcdLease::granted(reply.id, ttl, shared, sent))
    }

    /// Renews in the background when half of the slack is used up, before a caller has to wait for it.
    fn renew_early(
        self: &Arc<Leases>,
        lease: &Arc<EtcdLease>,
        now: Moment,
        ttl: Duration,
        key: &str,
    ) {
        let spare = lease.lives_until().since(now + ttl + lease.margin());
        if spare >= (lease.ttl.saturating_sub(ttl)) / 2
            || lease.renewing_early.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let (leases, lease) = (Arc::clone(self), Arc::clone(lease));
        let key = key.to_owned();
        self.runtime.spawn(async move {
            // After a failure, the next caller that needs the lease renews it.
            let _ = leases.renew(&lease, &key).await;
            lease.renewing_early.store(false, Ordering::SeqCst);
        });
    }

    /// Renews the lease unless it is certain to live for `ttl` from now on. False if the lease is gone.
    pub(super) async fn cover(
        &self,
        lease: &Arc<EtcdLease>,
        ttl: Duration,
        key: &str,
    ) -> Result<bool> {
        let _one_at_a_time = lease.renewal.lock().await;
        if !lease.covers(self.clock.now(), ttl) {
            self.renew(lease, key).await?;
        }
        Ok(lease.covers(self.clock.now(), ttl))
    }

    /// Renews the lease and confirms the renewal.
    pub(super) async fn renew(&self, lease: &Arc<EtcdLease>, key: &str) -> Result<()> {
        let renewal = self.keep_alive(lease, key).await?;
        let term = self.read_term(key).await?;
        self.confirm(lease, renewal, term)
    }

    /// The raft term that a linearizable read finds.
    async fn read_term(&self, key: &str) -> Result<u64> {
        let read = RangeRequest {
            key: key.into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let read = self.connection.range(read).await?;
        Ok(read.header.unwrap_or_default().raft_term)
    }

    /// Sends a renewal. It counts only after [`confirm`](Leases::confirm).
    pub(super) async fn keep_alive(
        &self,
        lease: &Arc<EtcdLease>,
        key: &str,
    ) -> Result<UnconfirmedRenewal> {
        for _ in 0..2 {
            let member = self.connection.member().await?;
            if member.term() == 0 {
                self.read_term(key).await?; // this member has not reported a term yet
            }
            let term = member.term();
            let sent = self.clock.now();
            let generation = member.generation;
            let reply = match self.keepalive.renew(&self.connection, lease.id).await {
                Ok(reply) => reply,
                // Newer servers check the token at each renewal, and it may have expired.
                Err(_) if self.connection.was_replaced_with_new_login(generation) => continue,
                Err(e) => return Err(e),
            };
            let alive = reply.ttl > 0;
            if !alive {
                self.mark_expired(lease);
            }
            if !alive || reply.generation == generation {
                return Ok(UnconfirmedRenewal { sent, term, alive });
            }
        }
        Err(unreachable("the connection changed during a renewal"))
    }

    /// Confirms a renewal by the raft term of a read that was sent after the renewal was answered.
    pub(super) fn confirm(
        &self,
        lease: &EtcdLease,
        renewal: UnconfirmedRenewal,
        term: u64,
    ) -> Result<()> {
        if renewal.alive && term != renewal.term {
            return Err(unreachable("the leader changed during a renewal"));
        }
        if renewal.alive {
            lease.confirm(renewal.sent);
        }
        Ok(())
    }

    /// The lease is gone early, and with it all its keys.
    fn mark_expired(&self, lease: &Arc<EtcdLease>) {
        if lease.expired.swap(true, Ordering::SeqCst) {
            return;
        }
        self.classes().retain(|_, class| class.id != lease.id);
        if let Some(callback) = self.on_expiry.get() {
            callback(lease.id);
        }
    }

    /// How long a lease lives unless it is renewed.
    pub(super) async fn time_to_live(&self, id: i64) -> Result<Duration> {
        let reply = self.lease_info(TimeToLiveRequest { id, keys: false });
        let ttl = u64::try_from(reply.await?.ttl).unwrap_or(0);
        Ok(Duration::from_secs(ttl))
    }

    /// The keys on a lease.
    pub(super) async fn keys_on(&self, id: i64) -> Result<Vec<Vec<u8>>> {
        let reply = self.lease_info(TimeToLiveRequest { id, keys: true });
        Ok(reply.await?.keys)
    }

    async fn lease_info(&self, request: TimeToLiveRequest) -> Result<TimeToLiveResponse> {
        let connection = &self.connection;
        connection
            .call(TIME_TO_LIVE, request, LostReply::Harmless)
            .await
    }

    /// Revokes, in the background, a lease without keys. If that fails, the lease expires.
    pub(super) fn revoke(&self, lease: &Arc<EtcdLease>) {
        let (connection, id) = (Arc::clone(&self.connection), lease.id);
        self.runtime.spawn(async move {
            let request = LeaseRevokeRequest { id };
            let _ = connection
                .call::<LeaseRevokeResponse>(REVOKE, request, LostReply::Harmless)
                .await;
        });
    }

    fn classes(&self) -> MutexGuard<'_, HashMap<u64, Arc<EtcdLease>>> {
        // Each change is a single insertion or removal: a panic leaves the map consistent.
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn retention_leases(&self) -> MutexGuard<'_, HashMap<u64, EtcdLease>> {
        // As above.
        self.retention
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The TTL in whole seconds, rounded up.
fn seconds(ttl: Duration) -> u64 {
    ttl.as_secs() + u64::from(ttl.subsec_nanos() > 0)
}

impl fmt::Debug for Leases {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leases")
            .field("classes", &self.classes().len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::EtcdAddress;

    #[tokio::test]
    async fn renewal_counts_only_in_the_term_it_was_sent_in() {
        let address = EtcdAddress::parse("etcd://127.0.0.1:1").unwrap();
        let connection = EtcdConnection::new(&address, Duration::from_secs(1)).unwrap();
        let leases = Leases::new(Arc::new(connection), Clock::system(), Handle::current());
        let granted = leases.clock.now();
        let lease = EtcdLease::granted(1, Duration::from_secs(10), true, granted);
        let later = granted + Duration::from_secs(5);
        let renewal = UnconfirmedRenewal {
            sent: later,
            term: 7,
            alive: true,
        };
        // Another leader was elected in between: the reply of the deposed one means nothing.
        assert!(leases.confirm(&lease, renewal, 8).is_err());
        let ttl = lease.ttl - MARGIN;
        assert!(!lease.covers(later, ttl));
        leases.confirm(&lease, renewal, 7).unwrap();
        assert!(lease.covers(later, ttl));
        assert!(!lease.covers(later, lease.ttl), "the margin is left");
    }

    #[test]
    fn seconds_are_rounded_up() {
        let ms = Duration::from_millis;
        assert_eq!(seconds(ms(1)), 1);
        assert_eq!(seconds(ms(1000)), 1);
        assert_eq!(seconds(ms(1001)), 2);
    }
}
