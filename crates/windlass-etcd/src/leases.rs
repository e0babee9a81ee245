//! Leases: what ends claims whose client is gone.
//!
//! All claims of one ttl that are being renewed share one lease, a *class*. Claims that nobody will renew have
//! a lease of their own, so that they end whatever else their client keeps alive.
//!
//! **How long a lease is certain to live.** etcd renews a lease on its leader alone, without asking the
//! others. A leader that was deposed and does not know it yet would say yes, and mean nothing. So a renewal
//! counts only if a linearizable read that was sent after it has seen the same raft term as the member
//! that passed it on had told of before: then the cluster had no other leader in the meantime, and whoever
//! leads next lets every lease live for its whole ttl from then on. It must be that member's own word. What
//! another one has told says nothing about a member that was cut off, and still takes itself for the leader.
//! What is read does not matter, but a user may not be allowed to read anything else than its own claims: so
//! whoever needs a lease says for which key.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex as AsyncMutex;

use super::lane::Lane;
pub(super) use super::lease::Lease;
use super::link::{Changes, Link};
use super::translate::unreachable;
use super::wire::{
    LeaseGrantRequest, LeaseGrantResponse, LeaseRevokeRequest, LeaseRevokeResponse, RangeRequest,
    TimeToLiveRequest, TimeToLiveResponse,
};
use windlass_core::error::Result;
use windlass_core::{Clock, Moment};

const GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
const REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
const TIME_TO_LIVE: &str = "/etcdserverpb.Lease/LeaseTimeToLive";

/// A lease lives so much longer than the claims on it, at least, that not every claim needs a renewal of it.
const SLACK: Duration = Duration::from_millis(500);

/// A renewal that was answered, but does not count yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Renewing {
    sent: Moment,
    /// What a read that is sent from now on must find.
    pub(super) term: u64,
    pub(super) alive: bool,
}

pub(super) struct Leases {
    link: Arc<Link>,
    clock: Clock,
    runtime: Handle,
    /// By their ttl in seconds.
    classes: Mutex<HashMap<u64, Arc<Lease>>>,
    /// For what is remembered, by how long in seconds.
    memories: Mutex<HashMap<u64, Lease>>,
    granting: AsyncMutex<()>,
    lane: Lane,
    /// Told of a lease that has ended before its time.
    on_end: OnceLock<Box<dyn Fn(i64) + Send + Sync>>,
}

impl Leases {
    pub(super) fn new(link: Arc<Link>, clock: Clock, runtime: Handle) -> Leases {
        Leases {
            lane: Lane::default(),
            link,
            clock,
            runtime,
            classes: Mutex::new(HashMap::new()),
            memories: Mutex::new(HashMap::new()),
            granting: AsyncMutex::new(()),
            on_end: OnceLock::new(),
        }
    }

    pub(super) fn on_end(&self, tell: impl Fn(i64) + Send + Sync + 'static) {
        let _ = self.on_end.set(Box::new(tell));
    }

    /// The lease that claims of this ttl share, certain to live for as long as one that begins now.
    pub(super) async fn shared(self: &Arc<Leases>, ttl: Duration, key: &str) -> Result<Arc<Lease>> {
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
            return Err(unreachable(
                "a lease took longer to get than it lives".into(),
            ));
        }
    }

    /// A lease for what is remembered for `keep` after it was last written. It is never renewed: another
    /// one takes its place from time to time, so that what is not written any more ends.
    pub(super) async fn memory(&self, keep: Duration) -> Result<i64> {
        let period = (keep / 8).max(Duration::from_secs(1));
        let class = seconds(keep);
        let current = |now: Moment| {
            let memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
            let lease = memories.get(&class)?;
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
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.insert(class, lease);
        Ok(id)
    }

    /// One of these leases has ended before its time: others take their place when they are needed.
    pub(super) fn forget_memories(&self) {
        let mut memories = self.memories.lock().unwrap_or_else(PoisonError::into_inner);
        memories.clear();
    }

    /// A lease for one claim alone.
    pub(super) async fn own(&self, ttl: Duration) -> Result<Arc<Lease>> {
        Ok(Arc::new(self.grant(seconds(ttl), false).await?))
    }

    fn class(&self, class: u64) -> Option<Arc<Lease>> {
        let lease = self.classes().get(&class).cloned();
        lease.filter(|lease| !lease.has_ended())
    }

    async fn grant(&self, seconds: u64, shared: bool) -> Result<Lease> {
        let sent = self.clock.now();
        let request = LeaseGrantRequest {
            ttl: i64::try_from(seconds).unwrap_or(i64::MAX),
        };
        // Without a key on it, a lease that was granted unheard does no harm.
        let granted: LeaseGrantResponse = self.link.call(GRANT, request, Changes::Nothing).await?;
        // A server may not let leases live as short as that.
        let ttl = Duration::from_secs(u64::try_from(granted.ttl).unwrap_or(0));
        Ok(Lease::granted(granted.id, ttl, shared, sent))
    }

    /// Renews in the background what would soon have to be renewed while somebody waits.
    fn renew_early(self: &Arc<Leases>, lease: &Arc<Lease>, now: Moment, ttl: Duration, key: &str) {
        let spare = lease.lives_until().since(now + ttl);
        if spare >= (lease.ttl.saturating_sub(ttl)) / 2
            || lease.renewing.swap(true, Ordering::SeqCst)
        {
            return;
        }
        let (leases, lease) = (Arc::clone(self), Arc::clone(lease));
        let key = key.to_owned();
        self.runtime.spawn(async move {
            // Whoever needs it hears of a failure then.
            let _ = leases.renew(&lease, &key).await;
            lease.renewing.store(false, Ordering::SeqCst);
        });
    }

    /// Renews if need be, so that the lease is certain to live for `ttl` from now on. False if it is gone.
    pub(super) async fn cover(&self, lease: &Arc<Lease>, ttl: Duration, key: &str) -> Result<bool> {
        let _one_at_a_time = lease.turn.lock().await;
        if !lease.covers(self.clock.now(), ttl) {
            self.renew(lease, key).await?;
        }
        Ok(lease.covers(self.clock.now(), ttl))
    }

    /// Renews, and makes sure that it counts.
    pub(super) async fn renew(&self, lease: &Arc<Lease>, key: &str) -> Result<()> {
        let renewing = self.keep_alive(lease, key).await?;
        let term = self.read_term(key).await?;
        self.count(lease, renewing, term)
    }

    /// A linearizable read, for the term that it finds.
    async fn read_term(&self, key: &str) -> Result<u64> {
        let read = RangeRequest {
            key: key.into(),
            count_only: true,
            ..RangeRequest::default()
        };
        let read = self.link.range(read).await?;
        Ok(read.header.unwrap_or_default().raft_term)
    }

    /// Asks to let the lease live on. That counts only when a later read has found the same term:
    /// see [`count`](Leases::count).
    pub(super) async fn keep_alive(&self, lease: &Arc<Lease>, key: &str) -> Result<Renewing> {
        for _ in 0..2 {
            let open = self.link.open().await?;
            if open.term() == 0 {
                self.read_term(key).await?; // this member has not told of any yet
            }
            let term = open.term();
            let sent = self.clock.now();
            let (ttl, by) = match self.lane.keep_alive(&self.link, lease.id).await {
                Ok(answer) => answer,
                // Newer servers look at the token with each renewal, and it may have ended.
                Err(_) if self.link.must_log_in_again(open.generation) => continue,
                Err(e) => return Err(e),
            };
            if ttl <= 0 {
                self.has_ended(lease);
            }
            if ttl <= 0 || by == open.generation {
                let alive = ttl > 0;
                return Ok(Renewing { sent, term, alive });
            }
        }
        Err(unreachable("the connection has changed".to_owned()))
    }

    /// A read that was sent after the renewal was answered has found this term.
    pub(super) fn count(&self, lease: &Lease, renewing: Renewing, term: u64) -> Result<()> {
        if renewing.alive && term != renewing.term {
            return Err(unreachable("the leader has changed".to_owned()));
        }
        if renewing.alive {
            lease.confirm(renewing.sent);
        }
        Ok(())
    }

    /// The lease is gone before its time: so is all that was on it.
    fn has_ended(&self, lease: &Arc<Lease>) {
        if !lease.end() {
            return;
        }
        self.classes().retain(|_, class| class.id != lease.id);
        if let Some(tell) = self.on_end.get() {
            tell(lease.id);
        }
    }

    /// How long a lease lives unless renewed, and which keys are on it if that matters.
    pub(super) async fn look(&self, id: i64, keys: bool) -> Result<(Duration, Vec<Vec<u8>>)> {
        let request = TimeToLiveRequest { id, keys };
        let answer: TimeToLiveResponse = self
            .link
            .call(TIME_TO_LIVE, request, Changes::Nothing)
            .await?;
        let ttl = Duration::from_secs(u64::try_from(answer.ttl).unwrap_or(0));
        Ok((ttl, answer.keys))
    }

    /// Lets go, in the background, of a lease that nothing is on any more. If that fails, it ends by itself.
    pub(super) fn revoke(&self, lease: &Arc<Lease>) {
        let (link, id) = (Arc::clone(&self.link), lease.id);
        self.runtime.spawn(async move {
            let request = LeaseRevokeRequest { id };
            let _ = link
                .call::<LeaseRevokeResponse>(REVOKE, request, Changes::Nothing)
                .await;
        });
    }

    fn classes(&self) -> MutexGuard<'_, HashMap<u64, Arc<Lease>>> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.classes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whole seconds, never fewer.
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

    #[tokio::test]
    async fn a_renewal_counts_only_in_the_term_it_was_sent_in() {
        let address = super::super::address::Address::parse("etcd://127.0.0.1:1").unwrap();
        let link = Arc::new(Link::new(&address, Duration::from_secs(1)).unwrap());
        let leases = Leases::new(link, Clock::system(), Handle::current());
        let granted = leases.clock.now();
        let lease = Lease::granted(1, Duration::from_secs(10), true, granted);
        let later = granted + Duration::from_secs(5);
        let renewing = Renewing {
            sent: later,
            term: 7,
            alive: true,
        };
        // Another leader came before or after: what the one before it said means nothing.
        assert!(leases.count(&lease, renewing, 8).is_err());
        assert!(!lease.covers(later, lease.ttl));
        leases.count(&lease, renewing, 7).unwrap();
        assert!(lease.covers(later, lease.ttl));
    }

    #[test]
    fn seconds_are_never_fewer() {
        let ms = Duration::from_millis;
        assert_eq!(seconds(ms(1)), 1);
        assert_eq!(seconds(ms(1000)), 1);
        assert_eq!(seconds(ms(1001)), 2);
    }
}
