//! Claims that were granted by a majority while the other nodes were not called.
//!
//! A claim is here from its grant until its first renewal has requested it from the other nodes
//! too, or until it is released. A claim that is not here may be on any node.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::nodes::NodeSet;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Renewal};
use windlass_core::{Moment, Owner};

/// Expired grants are not looked for below this number.
const MIN_SWEEP: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct PartialGrant {
    /// Which claim: the same owner may acquire again before this one is released.
    pub(super) claim: u64,
    /// The nodes that were called when it was granted.
    pub(super) granted_on: NodeSet,
    /// The nodes that were called for it up to now.
    pub(super) sent_to: NodeSet,
    /// Unless it is renewed.
    pub(super) valid_until: Moment,
}

/// The partial grants of this client.
#[derive(Debug, Default)]
pub(super) struct PartialGrants(Mutex<GrantTable>);

#[derive(Debug, Default)]
struct GrantTable {
    grants: HashMap<(Name, Owner), PartialGrant>,
    /// At this size expired grants are removed: an abandoned claim is neither renewed nor released.
    sweep_at: usize,
}

impl PartialGrants {
    pub(super) fn insert(
        &self,
        request: &AcquireRequest,
        sent_to: NodeSet,
        valid_until: Moment,
        now: Moment,
    ) {
        let grant = PartialGrant {
            claim: request.wake.claim,
            granted_on: sent_to,
            sent_to,
            valid_until,
        };
        let mut table = self.table();
        if table.grants.len() >= table.sweep_at.max(MIN_SWEEP) {
            table.grants.retain(|_, grant| now < grant.valid_until);
            table.sweep_at = 2 * table.grants.len();
        }
        let key = (request.name.clone(), request.owner.clone());
        table.grants.insert(key, grant);
    }

    /// Removes a grant: from now on the claim may be on any node, or on none. With a `claim`, only
    /// a grant of that claim or an earlier one.
    pub(super) fn take(
        &self,
        name: &Name,
        owner: &Owner,
        claim: Option<u64>,
    ) -> Option<PartialGrant> {
        let mut table = self.table();
        if table.grants.is_empty() {
            return None;
        }
        let key = (name.clone(), owner.clone());
        let grant = table.grants.get(&key)?;
        match claim.is_none_or(|claim| grant.claim <= claim) {
            true => table.grants.remove(&key),
            false => None,
        }
    }

    pub(super) fn get(&self, claim: &Renewal) -> Option<PartialGrant> {
        let table = self.table();
        if table.grants.is_empty() {
            return None;
        }
        let grant = table.grants.get(&(claim.name.clone(), claim.owner.clone()));
        let is_same = |grant: &&PartialGrant| grant.claim == claim.wake.claim;
        grant.filter(is_same).copied()
    }

    /// Calls `send` with the claims (by index) that `node` was not called for yet, and notes that
    /// it is now.
    ///
    /// No claim can be released while `send` runs. So a release is sent after the request, and to
    /// this node too.
    pub(super) fn spread_to<R>(
        &self,
        node: usize,
        claims: &[Renewal],
        send: impl FnOnce(&dyn Fn(usize) -> bool) -> R,
    ) -> R {
        let mut table = self.table();
        if table.grants.is_empty() {
            return send(&|_| false);
        }
        let mut is_new = |claim: &Renewal| {
            let key = (claim.name.clone(), claim.owner.clone());
            let grant = table.grants.get_mut(&key);
            let is_new = |grant: &mut PartialGrant| {
                grant.claim == claim.wake.claim && grant.sent_to.insert(node)
            };
            claim.kind == Kind::Lock && grant.is_some_and(is_new)
        };
        let new: Vec<bool> = claims.iter().map(&mut is_new).collect();
        send(&|claim| new[claim])
    }

    fn table(&self) -> MutexGuard<'_, GrantTable> {
        // Each change is a single insertion or removal, so a panic leaves the table consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
