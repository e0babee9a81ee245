//! Deletes orphaned keys: keys on a shared lease whose claim is gone.
//!
//! A shared lease lives as long as any claim on it, and would keep such keys alive. They come from claims that
//! were abandoned without a release, and from requests that arrived after their caller gave up.

use std::sync::Arc;
use std::time::Duration;

use super::leases::EtcdLease;
use super::tracked_claims::{TrackedClaim, TrackedClaims};
use super::txn::{Txn, delete, get};
use windlass_core::store::Kind;

/// A claim that is not renewed is abandoned this long after its TTL has passed.
const GRACE: Duration = Duration::from_secs(5);

/// Stops tracking abandoned claims, and deletes in the background the keys on the lease that are not tracked.
/// To be called when the lease was renewed.
pub(super) fn sweep(claims: &Arc<TrackedClaims>, lease: &Arc<EtcdLease>) {
    let now = claims.clock.now();
    let abandoned: Vec<String> = {
        let claims = claims.by_key();
        // Keys on a dedicated lease expire: their claims are only forgotten.
        let is_abandoned = |claim: &TrackedClaim| {
            (claim.lease.id == lease.id || !claim.lease.shared)
                && now > claim.last_used + claim.ttl + GRACE
        };
        let abandoned = claims.iter().filter(|(_, claim)| is_abandoned(claim));
        abandoned.map(|(key, _)| key.clone()).collect()
    };
    for key in &abandoned {
        drop(claims.remove(key, None));
    }
    if abandoned.is_empty() && !lease.may_have_late_keys(now) {
        return;
    }
    let (claims, lease) = (Arc::clone(claims), Arc::clone(lease));
    let runtime = claims.runtime.clone();
    runtime.spawn(async move {
        let Ok(keys) = claims.leases.keys_on(lease.id).await else {
            return; // the next sweep tries again
        };
        for key in keys {
            if let Ok(key) = String::from_utf8(key) {
                delete_if_untracked(&claims, &key, &lease).await;
            }
        }
    });
}

async fn delete_if_untracked(claims: &TrackedClaims, key: &str, lease: &EtcdLease) {
    if is_tracked(claims, key) {
        return;
    }
    let connection = &claims.connection;
    let Ok(mut reply) = connection.txn(Txn::new().then(get(key))).await else {
        return;
    };
    let Ok(Some(kv)) = reply.take_key() else {
        return;
    };
    // Checked again after the read: a claim is tracked before its key is written.
    if kv.lease == lease.id && !is_tracked(claims, key) {
        let txn = Txn::new()
            .if_unchanged(key, kv.mod_revision)
            .then(delete(key));
        let _ = connection.txn(txn).await;
    }
}

fn is_tracked(claims: &TrackedClaims, key: &str) -> bool {
    let by_key = claims.by_key();
    let is_its_record = |claim: &TrackedClaim| {
        claim.kind == Kind::Election && claims.keys.leader_record(&claim.name, &claim.owner) == key
    };
    by_key.contains_key(key) || by_key.values().any(is_its_record)
}
