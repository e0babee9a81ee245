//! Renewing many claims at once: each lease once, and one read of the keys of all claims.
//!
//! The read serves two purposes: it confirms the renewals of the leases (see [`leases`](super::leases)), and
//! it shows whether the keys still exist.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use super::connection::EtcdConnection;
use super::keys::ClaimKeys;
use super::leases::{EtcdLease, Leases, UnconfirmedRenewal};
use super::lock_queue::LockQueues;
use super::orphans;
use super::pools::{Pools, SnapshotCache};
use super::proto::{KeyValue, TxnOp};
use super::tracked_claims::TrackedClaims;
use super::txn::{MAX_OPS, Txn};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::store::{Renewal, Renewed, SameOwner};

/// Renews claims in batches.
#[derive(Debug)]
pub(super) struct Renewer {
    connection: Arc<EtcdConnection>,
    leases: Arc<Leases>,
    claims: Arc<TrackedClaims>,
    queues: Arc<LockQueues>,
    pools: Arc<Pools>,
}

/// What a renewal expects to find at the claim's key.
#[derive(Clone, Copy, Debug)]
pub(super) struct ExpectedClaim {
    /// The fence, if the claim holds.
    pub(super) held: Option<Fence>,
    created: i64,
    /// The lease that was renewed.
    lease: i64,
}

impl ExpectedClaim {
    /// Whether the held claim has ended: the same owner's key was created again after that.
    pub(super) fn was_recreated(&self, kv: &KeyValue) -> bool {
        self.held.is_some() && kv.create_revision != self.created
    }

    /// Whether the key is on another lease than the one that was renewed: it was to be moved, and the reply to
    /// that was lost.
    pub(super) fn is_on_other_lease(&self, kv: &KeyValue) -> bool {
        kv.lease != self.lease
    }
}

/// A renewal that needs no write: its key is on the right lease.
struct RenewalCheck {
    at: usize,
    renewal: Renewal,
    keys: ClaimKeys,
    lease: Arc<EtcdLease>,
    expected: ExpectedClaim,
    reads: Vec<TxnOp>,
}

/// A renewal that writes the key again.
struct Rewrite {
    at: usize,
    renewal: Renewal,
    keys: ClaimKeys,
}

/// The renewals of leases, by lease.
type LeaseRenewals = HashMap<i64, Result<UnconfirmedRenewal>>;

impl Renewer {
    pub(super) fn new(
        claims: Arc<TrackedClaims>,
        queues: Arc<LockQueues>,
        pools: Arc<Pools>,
    ) -> Renewer {
        Renewer {
            connection: Arc::clone(&claims.connection),
            leases: Arc::clone(&claims.leases),
            claims,
            queues,
            pools,
        }
    }

    /// Renews claims, held or waiting. One result for each, in order.
    pub(super) async fn renew(&self, renewals: Vec<Renewal>) -> Vec<Result<Renewed>> {
        let mut results: Vec<Option<Result<Renewed>>> = Vec::new();
        results.resize_with(renewals.len(), || None);
        let mut checks = Vec::new();
        let mut rewrites = Vec::new();
        for (at, renewal) in renewals.into_iter().enumerate() {
            match self.plan(at, renewal) {
                Ok(check) => checks.push(check),
                Err(rewrite) => rewrites.push(*rewrite),
            }
        }
        let (leases, renewed) = self.renew_leases(&checks).await;
        let checks = self.fail_without_lease(checks, &renewed, &mut results);
        let snapshots = SnapshotCache::default();
        let batches = batches(&checks).into_iter();
        let batches =
            batches.map(|range| Box::pin(self.check(&checks[range], &renewed, &snapshots)));
        for batch in join_all(batches.collect()).await {
            for (at, result) in batch {
                results[at] = Some(result);
            }
        }
        for lease in leases.iter().filter(|lease| lease.shared) {
            orphans::sweep(&self.claims, lease);
        }
        let rewritten = rewrites
            .into_iter()
            .map(|rewrite| Box::pin(self.rewrite(rewrite)));
        for (at, result) in join_all(rewritten.collect()).await {
            results[at] = Some(result);
        }
        let missing = || {
            let message = "the renewal has no result";
            Err(Error::new(ErrorKind::Store, "renew", message))
        };
        results
            .into_iter()
            .map(|result| result.unwrap_or_else(missing))
            .collect()
    }

    /// A check is enough for a tracked claim whose key is on the right lease with the right content.
    fn plan(&self, at: usize, renewal: Renewal) -> Result<RenewalCheck, Box<Rewrite>> {
        let keys = &self.claims.keys;
        let keys = ClaimKeys::new(keys, renewal.kind, &renewal.name, &renewal.owner);
        let tracked = {
            let mut claims = self.claims.by_key();
            let claim = claims.get_mut(keys.key());
            let claim = claim.filter(|claim| claim.wake == renewal.wake && claim.created != 0);
            claim.map(|claim| {
                claim.last_used = self.claims.clock.now();
                claim.ttl = renewal.ttl;
                (Arc::clone(&claim.lease), claim.fence, claim.created)
            })
        };
        match tracked {
            Some((lease, held, created))
                if renewal.same_owner != SameOwner::Replace
                    && (renewal.renewed || !lease.shared) =>
            {
                let reads = match &keys {
                    ClaimKeys::Queue(keys) => {
                        self.queues.renewal_reads(keys, &renewal, held.is_some())
                    }
                    ClaimKeys::Pool(keys) => self.pools.renewal_reads(keys),
                };
                let expected = ExpectedClaim {
                    held,
                    created,
                    lease: lease.id,
                };
                Ok(RenewalCheck {
                    at,
                    renewal,
                    keys,
                    lease,
                    expected,
                    reads,
                })
            }
            _ => Err(Box::new(Rewrite { at, renewal, keys })),
        }
    }

    /// Renews the leases that the claims need, each once.
    async fn renew_leases(&self, checks: &[RenewalCheck]) -> (Vec<Arc<EtcdLease>>, LeaseRenewals) {
        let now = self.claims.clock.now();
        let mut leases: HashMap<i64, (Arc<EtcdLease>, &str)> = HashMap::new();
        for check in checks {
            if !check.lease.covers(now, check.renewal.ttl) {
                let lease = (Arc::clone(&check.lease), check.keys.key());
                leases.insert(check.lease.id, lease);
            }
        }
        let renewals = leases.values().map(|(lease, key)| {
            Box::pin(async move { (lease.id, self.leases.keep_alive(lease, key).await) })
        });
        let renewals = join_all(renewals.collect()).await.into_iter().collect();
        let leases = leases.into_values().map(|(lease, _)| lease).collect();
        (leases, renewals)
    }

    /// Sets the results of claims whose lease is gone or could not be renewed. Returns the other ones.
    fn fail_without_lease(
        &self,
        checks: Vec<RenewalCheck>,
        renewed: &LeaseRenewals,
        results: &mut [Option<Result<Renewed>>],
    ) -> Vec<RenewalCheck> {
        let mut rest = Vec::with_capacity(checks.len());
        for check in checks {
            let failed = match renewed.get(&check.lease.id) {
                Some(Err(e)) => Some(Err(e.duplicate())),
                Some(Ok(renewal)) if !renewal.alive => Some(Ok(Renewed::Gone)),
                None if check.lease.has_expired() => Some(Ok(Renewed::Gone)),
                _ => None,
            };
            match failed {
                Some(result) => {
                    let result = self.finish(&check.keys, &check.renewal, result);
                    results[check.at] = Some(result);
                }
                None => rest.push(check),
            }
        }
        rest
    }

    /// Reads the keys of some claims, after their leases were renewed.
    async fn check(
        &self,
        checks: &[RenewalCheck],
        renewed: &LeaseRenewals,
        snapshots: &SnapshotCache,
    ) -> Vec<(usize, Result<Renewed>)> {
        let reads = checks.iter().flat_map(|check| &check.reads);
        let txn = Txn::new().then_all(reads.cloned());
        let mut reply = match self.connection.txn(txn).await {
            Ok(reply) => reply,
            Err(e) => {
                let failed = checks.iter().map(|check| (check.at, Err(e.duplicate())));
                return failed.collect();
            }
        };
        let mut results = Vec::with_capacity(checks.len());
        for check in checks {
            let confirmed = match renewed.get(&check.lease.id) {
                Some(Ok(renewal)) => self.leases.confirm(&check.lease, *renewal, reply.term),
                _ => Ok(()),
            };
            let found = reply.split(check.reads.len());
            let (renewal, expected) = (&check.renewal, check.expected);
            let result = match (confirmed, &check.keys) {
                (Err(e), _) => Err(e),
                (Ok(()), ClaimKeys::Queue(keys)) => {
                    self.queues.renewed(keys, renewal, expected, found).await
                }
                (Ok(()), ClaimKeys::Pool(keys)) => {
                    self.pools
                        .renewed(keys, renewal, expected, snapshots, found)
                        .await
                }
            };
            results.push((check.at, self.finish(&check.keys, renewal, result)));
        }
        results
    }

    async fn rewrite(&self, rewrite: Rewrite) -> (usize, Result<Renewed>) {
        let Rewrite { at, renewal, keys } = rewrite;
        let result = match &keys {
            ClaimKeys::Queue(keys) => self.queues.rewrite(keys, &renewal).await,
            ClaimKeys::Pool(keys) => self.pools.rewrite(keys, &renewal).await,
        };
        (at, self.finish(&keys, &renewal, result))
    }

    fn finish(
        &self,
        keys: &ClaimKeys,
        renewal: &Renewal,
        result: Result<Renewed>,
    ) -> Result<Renewed> {
        if matches!(result, Ok(Renewed::Gone))
            && let Some(claim) = self.claims.remove(keys.key(), Some(renewal.wake))
        {
            self.claims.verify_lease(&claim.lease, keys.key());
        }
        result
    }
}

/// Ranges of checks whose reads fit into one transaction each.
fn batches(checks: &[RenewalCheck]) -> Vec<Range<usize>> {
    let (mut batches, mut begin, mut reads) = (Vec::new(), 0, 0);
    for (at, check) in checks.iter().enumerate() {
        if reads + check.reads.len() > MAX_OPS {
            batches.push(begin..at);
            (begin, reads) = (at, 0);
        }
        reads += check.reads.len();
    }
    if begin < checks.len() {
        batches.push(begin..checks.len());
    }
    batches
}
