//! Renewing a claim to a lock or an election.

use super::LockQueues;
use crate::keys::QueueKeys;
use crate::proto::TxnOp;
use crate::record::StoredClaim;
use crate::renew::ExpectedClaim;
use crate::txn::{Txn, TxnReply, get, newest_before};
use windlass_core::error::Result;
use windlass_core::store::{Renewal, Renewed, SameOwner};

/// Whether the stored claim must be read, besides the key.
fn needs_stored_claim(renewal: &Renewal) -> bool {
    renewal.same_owner != SameOwner::Impossible || renewal.rewrite_details
}

impl LockQueues {
    /// The reads that check a claim whose lease was renewed.
    pub(crate) fn renewal_reads(
        &self,
        keys: &QueueKeys,
        renewal: &Renewal,
        is_held: bool,
    ) -> Vec<TxnOp> {
        let mut reads = match needs_stored_claim(renewal) {
            false => vec![get(&keys.key)],
            true => keys.gets(),
        };
        if !is_held {
            let ticket = renewal.fence.get() as i64;
            reads.push(TxnOp::Range(newest_before(&keys.prefix, ticket, 1)));
        }
        reads
    }

    /// Evaluates the reply to [those reads](LockQueues::renewal_reads).
    pub(crate) async fn renewed(
        &self,
        keys: &QueueKeys,
        renewal: &Renewal,
        expected: ExpectedClaim,
        mut reply: TxnReply,
    ) -> Result<Renewed> {
        let is_held = expected.held.is_some();
        let found = match needs_stored_claim(renewal) {
            false => reply.take_key()?.map(|kv| (kv, None)),
            true => keys
                .take(&mut reply)?
                .map(|(kv, stored)| (kv, Some(stored))),
        };
        let newest = match is_held {
            true => None,
            false => reply.take_key()?,
        };
        let Some((kv, stored)) = found else {
            return Ok(Renewed::Gone);
        };
        let is_other = |stored: &StoredClaim| !stored.is_of(renewal.wake);
        let is_other = stored.as_ref().is_some_and(is_other);
        if expected.was_recreated(&kv) || (renewal.same_owner == SameOwner::Respect && is_other) {
            return Ok(Renewed::Gone);
        }
        let is_stale = |stored: &StoredClaim| !stored.is_up_to_date(renewal);
        let is_stale = stored.as_ref().is_some_and(is_stale);
        if expected.is_on_other_lease(&kv) || (is_held && renewal.rewrite_details && is_stale) {
            return self.rewrite(keys, renewal).await;
        }
        let created = kv.create_revision;
        let predecessor = if !is_held && created as u64 != renewal.fence.get() {
            // The key was created again: the keys ahead of its earlier position do not matter.
            self.watcher.read_predecessor(keys, created).await?
        } else {
            let predecessor = self
                .watcher
                .predecessor(keys, created, newest, reply.revision);
            predecessor.await?
        };
        let position = self
            .watcher
            .settle(keys, renewal.wake, created, predecessor);
        Ok(position.into())
    }

    /// Writes a claim again: for another claim of the same owner, on another lease, or with another note.
    pub(crate) async fn rewrite(&self, keys: &QueueKeys, renewal: &Renewal) -> Result<Renewed> {
        let mut previous_lease = None;
        loop {
            let read = Txn::new().then_all(keys.gets());
            let mut reply = self.connection.txn(read).await?;
            let Some((kv, stored)) = keys.take(&mut reply)? else {
                return Ok(Renewed::Gone);
            };
            if renewal.same_owner == SameOwner::Respect && !stored.is_of(renewal.wake) {
                return Ok(Renewed::Gone);
            }
            let created = kv.create_revision;
            let begun = self.claims.begin_rewrite(&keys.key, renewal, created);
            let (lease, replaced) = begun.await?;
            previous_lease = previous_lease.or(replaced);
            // A claim that holds keeps holding, whatever other keys exist.
            let predecessor = match self.claims.fence(&keys.key) {
                Some(_) => None,
                None => self.watcher.read_predecessor(keys, created).await?,
            };
            let txn = Txn::new()
                .if_unchanged(&keys.key, kv.mod_revision)
                .then_all(keys.puts(&stored.renewed(renewal), lease.id));
            if self.connection.txn(txn).await?.succeeded {
                // Not before the write: until then the key is on its previous lease.
                self.claims.lease_replaced(previous_lease, &lease);
                let position = self
                    .watcher
                    .settle(keys, renewal.wake, created, predecessor);
                return Ok(position.into());
            }
        }
    }
}
