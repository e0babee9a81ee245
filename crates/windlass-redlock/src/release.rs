//! Giving up claims: on all nodes where they may be, whether they answer or not.

use std::ops::ControlFlow;
use std::sync::Arc;

use super::node::{Debt, Node};
use super::young::Young;
use super::{Failures, Over, Quorum, Round, Shared};
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Pending, Released, WakeAddress};

/// What a node is owed unless it has answered, also if nobody waits for its answer any more.
struct Owed {
    node: Arc<Node>,
    shared: Arc<Shared>,
    debt: Option<Debt>,
}

impl Owed {
    fn is_paid(&mut self) {
        self.debt = None;
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(debt) = self.debt.take() {
            self.node.owe(&self.shared, debt);
        }
    }
}

impl Quorum {
    pub(super) async fn give_up(
        shared: Arc<Shared>,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Result<Released> {
        let id = claim.map(|claim| claim.claim);
        let waited = shared.ballots.forget(kind, &name, &owner, id);
        let young = match kind {
            Kind::Lock => shared.young.take(&name, &owner, id),
            _ => None,
        };
        let asked = young.map_or(shared.everybody(), |young| young.asked);
        let few = asked != shared.everybody();
        // Whatever a node has of the claim has ended by then.
        let until = shared.clock.now() + shared.max_ttl;
        let question = |node: usize| -> Pending<'static, Released> {
            let node = &shared.nodes[node];
            // Whether it has a vote does not matter: it may have the claim.
            let answer = node.voter.release(kind, name.clone(), owner.clone(), claim);
            let mut owed = Owed {
                node: Arc::clone(node),
                shared: Arc::clone(&shared),
                debt: Some(Debt {
                    kind,
                    name: name.clone(),
                    owner: owner.clone(),
                    claim,
                    until,
                }),
            };
            Box::pin(async move {
                let answer = answer.await;
                if answer.is_ok() {
                    owed.is_paid();
                }
                answer
            })
        };
        let mut round = Round::to_nobody(shared.nodes.len());
        asked
            .iter()
            .for_each(|node| round.ask(node, question(node)));
        let (mut held, mut waiting, mut nothing) = (0, 0, 0);
        let mut failures = Failures::default();
        let (nodes, majority) = (asked.len(), shared.majority);
        let patience = shared.pace.patience(shared.node_timeout);
        for time in [patience, shared.node_timeout - patience] {
            let heard = round.hear(|node, answer| {
                match answer {
                    Ok(Released::WasHeld) => held += 1,
                    Ok(Released::WasWaiting) => waiting += 1,
                    Ok(Released::WasGone) => nothing += 1,
                    Err(e) => failures.add(node, e),
                }
                let answered = held + waiting + nothing;
                // What was held on too few is not to be told from what was waited for, or is gone.
                let not_held = held + (nodes - answered - failures.len()) < majority;
                match held >= majority || not_held && answered >= majority {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            if shared.clock.within(time, heard).await.is_some() {
                break;
            }
            // Of a few, every one is waited for. But it is enough if what is left is no majority.
            if few && nodes - (held + waiting + nothing) < majority {
                // So that the next one does not wait for them as well.
                round.silent().for_each(|node| shared.nodes[node].doubt());
                break;
            }
        }
        let answered = held + waiting + nothing;
        let unknown = nodes - answered;
        failures.silent(round.silent());
        // Those that have not answered are waited for, and are owed it if they never do.
        shared.finish(round, &Over::default(), 2 * shared.node_timeout);
        // What is left must not be a majority.
        if unknown >= majority {
            return Err(failures.error_of(&shared, nodes, answered));
        }
        // Nobody says that it was not held, and by the clock it was.
        let is_valid = |young: Young| shared.clock.now() < young.until;
        if few && held > 0 && held + unknown >= majority && young.is_some_and(is_valid) {
            return Ok(Released::WasHeld);
        }
        Ok(match (held, waiting) {
            (held, _) if held >= majority => Released::WasHeld,
            (0, 0) => Released::WasGone,
            // One that was held, and has a minority left: of what it asked for again, or never lost.
            _ if claim.is_some() && !waited => Released::WasGone,
            _ => Released::WasWaiting,
        })
    }
}
