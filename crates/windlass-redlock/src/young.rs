//! Claims that are on a majority so far, because nobody else was asked.
//!
//! Each is here from its grant until its first renewal has asked the other nodes, too, or it is released.
//! A claim that is not here may be on any node.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::nodes::NodeSet;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, Kind, Renewal};
use windlass_core::{Moment, Owner};

/// No more are looked through for those that have ended, however few there are.
const FEW: usize = 1024;

#[derive(Clone, Copy, Debug)]
pub(super) struct Young {
    /// Which claim: another one of the same owner may come before this one is given up.
    pub(super) claim: u64,
    /// The nodes that were asked for it when it was granted.
    pub(super) granted: NodeSet,
    /// The nodes that were asked for it up to now.
    pub(super) asked: NodeSet,
    /// Until when it is valid if nothing more becomes of it.
    pub(super) until: Moment,
}

/// All of this client.
#[derive(Debug, Default)]
pub(super) struct Nursery(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    claims: HashMap<(Name, Owner), Young>,
    /// When there are more, those that have ended go: who is abandoned is neither renewed nor released.
    full: usize,
}

impl Nursery {
    /// It was granted by those who were asked, and is valid until then.
    pub(super) fn insert(&self, ask: &AcquireRequest, asked: NodeSet, until: Moment, now: Moment) {
        let young = Young {
            claim: ask.wake.claim,
            granted: asked,
            asked,
            until,
        };
        let mut table = self.table();
        if table.claims.len() >= table.full.max(FEW) {
            table.claims.retain(|_, young| now < young.until);
            table.full = 2 * table.claims.len();
        }
        let key = (ask.name.clone(), ask.owner.clone());
        table.claims.insert(key, young);
    }

    /// From now on it may be anywhere, or nowhere. With a `claim`, only if it is no later than that one.
    pub(super) fn take(&self, name: &Name, owner: &Owner, claim: Option<u64>) -> Option<Young> {
        let mut table = self.table();
        if table.claims.is_empty() {
            return None;
        }
        let key = (name.clone(), owner.clone());
        let young = table.claims.get(&key)?;
        match claim.is_none_or(|claim| young.claim <= claim) {
            true => table.claims.remove(&key),
            false => None,
        }
    }

    pub(super) fn get(&self, claim: &Renewal) -> Option<Young> {
        let table = self.table();
        if table.claims.is_empty() {
            return None;
        }
        let young = table.claims.get(&(claim.name.clone(), claim.owner.clone()));
        young
            .filter(|young| young.claim == claim.wake.claim)
            .copied()
    }

    /// Asks a node for each of these claims that it was not asked for yet, and was not released. It
    /// cannot be released meanwhile, so its release comes after, and goes there too.
    ///
    /// `ask` is told which.
    pub(super) fn ask_of<R>(
        &self,
        node: usize,
        claims: &[Renewal],
        ask: impl FnOnce(&dyn Fn(usize) -> bool) -> R,
    ) -> R {
        let mut table = self.table();
        if table.claims.is_empty() {
            return ask(&|_| false);
        }
        let mut is_new = |claim: &Renewal| {
            let key = (claim.name.clone(), claim.owner.clone());
            let young = table.claims.get_mut(&key);
            let is_it =
                |young: &mut Young| young.claim == claim.wake.claim && young.asked.add(node);
            claim.kind == Kind::Lock && young.is_some_and(is_it)
        };
        let new: Vec<bool> = claims.iter().map(&mut is_new).collect();
        ask(&|claim| new[claim])
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
