//! Renewing claims: one transaction per session confirms that the session is alive, and one read per
//! claim that its node exists.
//!
//! The reads are sent after the transaction through the same session, so their replies are at least as
//! recent.

use std::sync::Arc;

use zookeeper_client::Error as ZkError;

use super::claim_table::{LocalClaim, LocalClaimState};
use super::claims::ZooKeeperClaims;
use super::errors::from_client;
use super::node_name::ProtectionId;
use super::pool::begin_complete_round;
use super::replace::replace_node;
use super::session::Session;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::store::{Renewal, Renewed, SameOwner};

/// Claims of one session, each with its index in the request.
type SessionGroup = Vec<(usize, LocalClaim, Renewal)>;

/// Renews claims.
pub(super) struct Renewals<'a> {
    claims: &'a ZooKeeperClaims,
}

impl<'a> Renewals<'a> {
    pub(super) fn new(claims: &'a ZooKeeperClaims) -> Renewals<'a> {
        Renewals { claims }
    }

    /// One result for each renewal, in order.
    pub(super) async fn renew(&self, renewals: Vec<Renewal>) -> Vec<Result<Renewed>> {
        let table = &self.claims.table;
        let mut results: Vec<Option<Result<Renewed>>> = Vec::new();
        let mut groups: Vec<(Arc<Session>, SessionGroup)> = Vec::new();
        for (index, renewal) in renewals.into_iter().enumerate() {
            let result = match table.get(renewal.wake.claim) {
                Some(claim) if claim.session.has_ended() => {
                    table.forget(&claim);
                    Some(Ok(Renewed::Gone))
                }
                Some(claim) if claim.node.is_none() => Some(Err(unknown())),
                Some(claim) => {
                    let id = claim.session.id();
                    match groups.iter_mut().find(|(session, _)| session.id() == id) {
                        Some((_, group)) => group.push((index, claim, renewal)),
                        None => {
                            let session = Arc::clone(&claim.session);
                            groups.push((session, vec![(index, claim, renewal)]));
                        }
                    }
                    None
                }
                None if renewal.same_owner == SameOwner::Replace => {
                    Some(self.replace(&renewal).await)
                }
                None => Some(Ok(Renewed::Gone)),
            };
            results.push(result);
        }
        let groups = groups.into_iter().map(|(session, group)| {
            Box::pin(async move { self.renew_group(&session, group).await })
        });
        for (index, result) in join_all(groups.collect()).await.into_iter().flatten() {
            results[index] = Some(result);
        }
        let results = results.into_iter();
        results
            .map(|result| result.unwrap_or_else(|| Err(unknown())))
            .collect()
    }

    async fn renew_group(
        &self,
        session: &Session,
        group: SessionGroup,
    ) -> Vec<(usize, Result<Renewed>)> {
        let mut results = Vec::with_capacity(group.len());
        let mut confirmed = false;
        let mut rest = group.into_iter();
        // A claim that is gone confirms nothing for the others: the next one is tried.
        for (index, claim, renewal) in rest.by_ref() {
            match confirm(session, &claim).await {
                Ok(true) => {
                    results.push((index, self.renewed(session, &claim, &renewal).await));
                    confirmed = true;
                    break;
                }
                Ok(false) => results.push((index, self.gone(&claim))),
                Err(error) => {
                    let others = error.duplicate();
                    results.push((index, Err(error)));
                    results.extend(rest.map(|(index, ..)| (index, Err(others.duplicate()))));
                    return results;
                }
            }
        }
        if !confirmed {
            return results;
        }
        // All reads are sent before the first reply is awaited.
        let reads: Vec<_> = rest
            .map(|(index, claim, renewal)| {
                let path = claim.node.as_ref().map_or("", |node| &node.path);
                let stat = session.client().check_stat(path);
                (index, claim, renewal, stat)
            })
            .collect();
        for (index, claim, renewal, stat) in reads {
            let result = match stat.await {
                Ok(Some(_)) => self.renewed(session, &claim, &renewal).await,
                Ok(None) => self.gone(&claim),
                Err(error) => Err(from_client(error)),
            };
            results.push((index, result));
        }
        results
    }

    /// Forgets a claim whose node is gone. A replacement of the node whose reply was lost may have left
    /// another node, which the session would keep alive.
    fn gone(&self, claim: &LocalClaim) -> Result<Renewed> {
        self.claims.table.abandon(claim);
        Ok(Renewed::Gone)
    }

    /// The state of a claim whose node exists.
    async fn renewed(
        &self,
        session: &Session,
        claim: &LocalClaim,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        let (table, number) = (&self.claims.table, claim.number);
        table.extend(number, renewal.ttl);
        let state = table.get(number).map(|claim| claim.state);
        if state != Some(LocalClaimState::Held) {
            let (kind, name) = (claim.kind, &claim.name);
            let view = self.claims.queues.read(session, kind, name).await?;
            begin_complete_round(session, kind, name, &view).await?;
            let Some(index) = view.index_of(claim.id) else {
                table.forget(claim);
                return Ok(Renewed::Gone);
            };
            if !view.held[index] {
                if view.is_too_heavy(kind, claim.weight) {
                    return self.gone(claim);
                }
                return Ok(Renewed::Waiting {
                    recheck_after: None,
                });
            }
            let granted = self.claims.grants.grant(claim, &view, index).await?;
            if granted.is_none() {
                return self.gone(claim);
            }
        }
        let note = renewal.note.as_deref();
        if renewal.rewrite_details || claim.data.note.as_deref() != note {
            self.write_data(claim, renewal).await?;
        }
        match table.get(number).and_then(|claim| claim.node) {
            Some(node) => Ok(Renewed::Held { fence: node.fence }),
            None => Ok(Renewed::Gone),
        }
    }

    /// Writes the note and the age of the claim, for inspection.
    async fn write_data(&self, claim: &LocalClaim, renewal: &Renewal) -> Result<()> {
        let clock = &self.claims.clock;
        let since = clock.now() - renewal.age.as_millis() as i64;
        let changed = self.claims.table.change(claim.number, |claim| {
            claim.data.note = renewal.note.as_deref().map(str::to_owned);
            claim.data.since = Some(since);
            (claim.node.clone(), claim.data.bytes())
        });
        let Some((Some(node), data)) = changed else {
            return Ok(());
        };
        let client = claim.session.client();
        match client.set_data(&node.path, &data, None).await {
            Ok(stat) => clock.observe(stat.mtime),
            // The next renewal reports that the node is gone.
            Err(ZkError::NoNode) => {}
            Err(error) => return Err(from_client(error)),
        }
        Ok(())
    }

    /// Replaces a claim of the same owner that this client does not know: see `Lock::attach`.
    async fn replace(&self, renewal: &Renewal) -> Result<Renewed> {
        let (kind, name, number) = (renewal.kind, &renewal.name, renewal.wake.claim);
        let table = &self.claims.table;
        let session = self.claims.sessions.for_ttl(renewal.ttl).await?;
        session.check_ttl(renewal.ttl)?;
        let id = ProtectionId::new(&renewal.owner, renewal.wake);
        loop {
            let view = self.claims.queues.read(&session, kind, name).await?;
            let Some(index) = view.of_owner(id).next() else {
                return Ok(Renewed::Gone);
            };
            let weight = view.nodes[index].weight;
            let claim = LocalClaim::for_renewal(renewal, id, weight, Arc::clone(&session));
            table.insert(claim.clone());
            let replaced = replace_node(self.claims, &session, &claim, &view, index).await?;
            let Some(replaced) = replaced else {
                continue;
            };
            if view.held[index] {
                table.set_held(&claim, replaced.fence);
                let fence = replaced.fence;
                return Ok(Renewed::Held { fence });
            }
            table.set_waiting(number);
            self.claims.watches.ensure(kind, name);
            return Ok(Renewed::Waiting {
                recheck_after: None,
            });
        }
    }
}

async fn confirm(session: &Session, claim: &LocalClaim) -> Result<bool> {
    match &claim.node {
        Some(node) => session.confirm(&node.path).await,
        None => Err(unknown()),
    }
}

fn unknown() -> Error {
    let message = "the outcome of the claim's last request is not known yet";
    Error::new(ErrorKind::OutcomeUnknown, "renew", message)
}
