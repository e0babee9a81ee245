//! Renewing claims: held ones on a majority of the nodes, waiting ones by
//! [heartbeat](super::waiter_heartbeat).
//!
//! A renewal also brings a held claim to nodes that do not have it: to those that were
//! [skipped](super::partial_grants) when it was acquired, and to those that
//! [lost it](super::read_repair). So the later loss of some nodes does not end it.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use super::calls::{NodeCalls, StopFlag};
use super::claims::{ClaimState, check_supported};
use super::errors::NodeFailures;
use super::nodes::NodeSet;
use super::partial_grants::PartialGrant;
use super::read_repair::{ReadRepair, request_again};
use super::release::Release;
use super::waiter_heartbeat::WaiterHeartbeat;
use windlass_core::Moment;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{Acquired, Pending, Renewal, Renewed, Share};
use windlass_redis::NodeClient;

/// How long the missing replies are awaited after a majority has renewed.
const GRACE: Duration = Duration::from_millis(20);

/// Renews many claims, held or waiting. One outcome for each, in order.
pub(super) async fn renew(state: &Arc<ClaimState>, claims: Vec<Renewal>) -> Vec<Result<Renewed>> {
    let mut outcomes: Vec<Option<Result<Renewed>>> = claims.iter().map(|_| None).collect();
    let (mut waiting, mut held) = (Vec::new(), Vec::new());
    for (i, claim) in claims.into_iter().enumerate() {
        // The ttl may differ from that of the grant if another process has taken the claim over.
        let ttl = || state.nodes.check_ttl("renew", claim.ttl);
        if let Err(e) = check_supported(claim.kind).and_then(|()| ttl()) {
            outcomes[i] = Some(Err(e));
            continue;
        }
        match state.waiters.find_waiting(claim.wake.claim, claim.fence) {
            Some((request, generation)) => {
                let heartbeat = WaiterHeartbeat {
                    state: Arc::clone(state),
                    request,
                    generation,
                    claim,
                };
                // In a task each, so that many do not poll each other's replies.
                waiting.push((i, tokio::spawn(heartbeat.run())));
            }
            None => held.push((i, claim)),
        }
    }
    if !held.is_empty() {
        let (positions, held): (Vec<usize>, Vec<Renewal>) = held.into_iter().unzip();
        let renewed = HeldRenewal::new(state, held).run().await;
        for (i, outcome) in positions.into_iter().zip(renewed) {
            outcomes[i] = Some(outcome);
        }
    }
    for (i, heartbeat) in waiting {
        outcomes[i] = heartbeat.await.ok();
    }
    let shutting_down = || {
        let message = "the runtime is shutting down";
        Err(Error::new(ErrorKind::OutcomeUnknown, "renew", message))
    };
    let each = outcomes.into_iter();
    each.map(|outcome| outcome.unwrap_or_else(shutting_down))
        .collect()
}

/// The renewal of held claims, all in one call to each node.
struct HeldRenewal<'a> {
    state: &'a Arc<ClaimState>,
    claims: Arc<[Renewal]>,
}

impl<'a> HeldRenewal<'a> {
    fn new(state: &'a Arc<ClaimState>, claims: Vec<Renewal>) -> HeldRenewal<'a> {
        HeldRenewal {
            state,
            claims: claims.into(),
        }
    }

    async fn run(self) -> Vec<Result<Renewed>> {
        let HeldRenewal { state, claims } = &self;
        let nodes = &state.nodes;
        let shortest = claims.iter().map(|claim| claim.ttl).min();
        // Longer than for an acquire: a late reply still counts.
        let timeout = (shortest.unwrap_or(nodes.node_timeout) / 2).min(nodes.node_timeout);
        let stop = StopFlag::default();
        let call = |node: usize| -> Pending<'static, Vec<Result<Renewed>>> {
            let (state, claims) = (Arc::clone(state), Arc::clone(claims));
            let renew = move |client: &dyn NodeClient| renew_on(node, &state, &claims, client);
            nodes.node(node).call(nodes, &stop, renew)
        };
        let mut calls = NodeCalls::new((0..nodes.len()).map(call));
        let mut tallies: Vec<RenewTally> = claims.iter().map(|_| RenewTally::default()).collect();
        let mut take = |node: usize, reply: Result<Vec<Result<Renewed>>>| {
            add_replies(&mut tallies, node, reply);
            let is_certain = |tally: &RenewTally| tally.is_certain(nodes.len(), nodes.majority);
            match tallies.iter().all(is_certain) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let certain = nodes.clock.within(timeout, calls.receive(&mut take)).await;
        if certain.is_some() {
            // A renewal is not urgent, and a process that hands a claim to another should not leave
            // one in flight.
            let rest = calls.receive(|node, reply| {
                let _ = take(node, reply);
                ControlFlow::<()>::Continue(())
            });
            nodes.clock.within(GRACE.min(timeout), rest).await;
        }
        let unanswered: Vec<usize> = calls.unanswered().collect();
        calls.finish(nodes, &stop, timeout);
        let now = nodes.clock.now();
        let each = claims.iter().zip(tallies);
        each.map(|(claim, tally)| self.outcome(claim, tally, &unanswered, now))
            .collect()
    }

    fn outcome(
        &self,
        claim: &Renewal,
        mut tally: RenewTally,
        unanswered: &[usize],
        now: Moment,
    ) -> Result<Renewed> {
        let state = self.state;
        let nodes = &state.nodes;
        let partial = state.partial_grants.get(claim);
        if tally.is_held(nodes.majority, partial, now) {
            // All nodes were called: not a partial grant any more.
            let id = Some(claim.wake.claim);
            state.partial_grants.take(&claim.name, &claim.owner, id);
            ReadRepair::start(state, claim, tally.gone);
            return Ok(Renewed::Held { fence: claim.fence });
        }
        if tally.not_held > nodes.len() - nodes.majority {
            self.release_rest(claim);
            return Ok(Renewed::Gone);
        }
        tally.failures.add_unanswered(unanswered.iter().copied());
        Err(tally.failures.error(nodes, tally.held.len()))
    }

    /// Releases a claim that lost its majority: it may be left on some nodes, or was just requested
    /// there, and the next holder should not wait for its ttl.
    fn release_rest(&self, claim: &Renewal) {
        let release = Release {
            kind: claim.kind,
            name: claim.name.clone(),
            owner: claim.owner.clone(),
            claim: Some(claim.wake),
        };
        let mut release = Box::pin(release.run(Arc::clone(self.state)));
        // Polled here and not in the task: the same claim may be requested again after this.
        let mut cx = Context::from_waker(Waker::noop());
        if release.as_mut().poll(&mut cx).is_pending() {
            self.state.nodes.runtime.spawn(release);
        }
    }
}

/// Has one node renew claims, and requests those that it was not called for yet, in one batch.
fn renew_on(
    node: usize,
    state: &ClaimState,
    claims: &[Renewal],
    client: &dyn NodeClient,
) -> Pending<'static, Vec<Result<Renewed>>> {
    let (new, renewed, acquired) = state.partial_grants.spread_to(node, claims, |is_new| {
        let (mut new, mut renew, mut acquire) = (Vec::new(), Vec::new(), Vec::new());
        for (i, claim) in claims.iter().enumerate() {
            new.push(is_new(i));
            match is_new(i) {
                true => {
                    let proposal = state.fences.propose(0);
                    acquire.push((request_again(claim, Share::ONLY), proposal));
                }
                false => renew.push(claim.clone()),
            }
        }
        (new, client.renew(renew), client.acquire_each(acquire))
    });
    Box::pin(async move {
        let mut renewed = renewed.await?.into_iter();
        let mut acquired = acquired.await?.into_iter();
        let reply = |new: bool| match new {
            true => acquired.next().map(|reply| reply.map(as_renewed)),
            false => renewed.next(),
        };
        let missing = || {
            let message = "the node sent too few replies";
            Err(Error::new(ErrorKind::Store, "renew", message))
        };
        let each = new.into_iter().map(reply);
        Ok(each.map(|reply| reply.unwrap_or_else(missing)).collect())
    })
}

/// What the reply to a request means for a claim that is held elsewhere.
fn as_renewed(acquired: Acquired) -> Renewed {
    match acquired {
        Acquired::Granted { fence, .. } => Renewed::Held { fence },
        _ => Renewed::Waiting {
            recheck_after: None,
        },
    }
}

/// The nodes' replies about one held claim.
#[derive(Default)]
struct RenewTally {
    held: NodeSet,
    not_held: usize,
    /// The nodes that do not know the claim.
    gone: Vec<usize>,
    failures: NodeFailures,
}

fn add_replies(tallies: &mut [RenewTally], node: usize, reply: Result<Vec<Result<Renewed>>>) {
    let replies = match reply {
        Ok(replies) => replies,
        Err(e) => {
            let same = |tally: &mut RenewTally| tally.failures.add(node, e.duplicate());
            return tallies.iter_mut().for_each(same);
        }
    };
    for (tally, reply) in tallies.iter_mut().zip(replies) {
        match reply {
            Ok(Renewed::Held { .. }) => drop(tally.held.insert(node)),
            Ok(Renewed::Waiting { .. }) => tally.not_held += 1,
            Ok(Renewed::Gone) => {
                tally.not_held += 1;
                tally.gone.push(node);
            }
            Err(e) => tally.failures.add(node, e),
        }
    }
}

impl RenewTally {
    fn is_certain(&self, nodes: usize, majority: usize) -> bool {
        self.held.len() >= majority || self.not_held > nodes - majority
    }

    /// Whether a majority has held the claim without interruption.
    ///
    /// On a node that was called only after the grant, another claim may have been granted in
    /// between. But that claim had no majority while this grant is valid by the clock: until then
    /// the nodes that do not reply still hold this claim, or have no vote.
    fn is_held(&self, majority: usize, partial: Option<PartialGrant>, now: Moment) -> bool {
        let since_grant = match partial {
            Some(partial) => self.held.intersection(partial.granted_on),
            None => self.held,
        };
        let valid = partial.is_some_and(|partial| now < partial.valid_until);
        since_grant.len() >= majority || valid && self.held.len() >= majority
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_called_after_the_grant_count_only_while_the_grant_is_valid() {
        let (now, later) = (Moment::from_nanos(5), Moment::from_nanos(9));
        let granted_on = NodeSet::all(3);
        let partial = |valid_until| PartialGrant {
            claim: 1,
            granted_on,
            sent_to: NodeSet::all(5),
            valid_until,
        };
        let held = |nodes: &[usize], partial| {
            let held = nodes.iter().copied().collect();
            let tally = RenewTally {
                held,
                ..RenewTally::default()
            };
            tally.is_held(3, partial, now)
        };
        assert!(held(&[0, 1, 2], Some(partial(now))));
        assert!(held(&[0, 1, 2, 3, 4], Some(partial(now))));
        assert!(held(&[1, 2, 3], Some(partial(later))));
        assert!(held(&[2, 3, 4], Some(partial(later))));
        assert!(!held(&[1, 2, 3, 4], Some(partial(now))));
        assert!(!held(&[1, 3], Some(partial(later))));
        // Once all nodes were called, they count alike.
        assert!(held(&[2, 3, 4], None));
        assert!(!held(&[3, 4], None));
    }
}
