//! Keeping claims alive: those that are [held](super::held), and those that wait.
//!
//! Whoever waits, waits in the lines of several nodes, and may be ahead of the others on some of them. As
//! soon as one claim is handed a majority, all is well, and the others go on waiting where they are.
//! But several may be handed a minority each; then nobody holds, and nobody would ever let go. So a
//! claim that finds no holder of a majority gives way on the nodes where it is ahead, unless it has
//! most of them: it goes to the end of the line there. All see the same claims ahead, so all but one
//! give way.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::supported;
use super::node::Node;
use super::nodes::NodeSet;
use super::tally::sooner;
use super::{Confirmed, Failures, Over, Quorum, Round, Shared};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::quorum::{agreed, next_proposal};
use windlass_core::store::{AcquireRequest, Renewal, Renewed};

/// What the nodes said in one round of confirming a claim.
#[derive(Default)]
pub(super) struct Confirmation {
    /// Those who have answered.
    spoken: NodeSet,
    /// The nodes that it holds, and the numbers drawn there.
    pub(super) held: Vec<(usize, u64)>,
    /// Who is ahead of it, on each node where it waits.
    ahead: Vec<String>,
    held_for: Option<Duration>,
    gone: Vec<usize>,
    pub(super) failures: Failures,
}

impl Confirmation {
    fn numbers(&self) -> Vec<u64> {
        self.held.iter().map(|(_, number)| *number).collect()
    }

    fn take(&mut self, node: usize, answer: Result<Confirmed>) {
        self.spoken.add(node);
        match answer {
            Ok(Confirmed::Held(number)) => self.held.push((node, number.get())),
            Ok(Confirmed::Waiting { held_for, holder }) => {
                self.ahead.push(holder);
                self.held_for = sooner(self.held_for, held_for);
            }
            Ok(Confirmed::Gone) => self.gone.push(node),
            Err(e) => self.failures.add(node, e),
        }
    }

    /// How many nodes each of the others is ahead on.
    fn others(&self) -> HashMap<&str, usize> {
        let mut votes = HashMap::new();
        for owner in &self.ahead {
            *votes.entry(owner.as_str()).or_default() += 1;
        }
        votes
    }

    /// Whether somebody else has a majority, and will want the rest of the nodes, should some of those fail;
    /// or nobody has one, and somebody else has more of a claim to it than `owner`.
    fn should_give_way(&self, owner: &str, majority: usize) -> bool {
        let mine = self.held.len();
        let others = self.others();
        let ahead =
            |(other, votes): (&&str, &usize)| *votes > mine || *votes == mine && **other < *owner;
        let has_it = others.values().any(|votes| *votes >= majority);
        mine > 0 && (has_it || self.is_split(majority) && others.iter().any(ahead))
    }

    /// Whether nobody has a majority.
    fn is_split(&self, majority: usize) -> bool {
        self.held.len() < majority && self.others().values().all(|votes| *votes < majority)
    }
}

impl Quorum {
    pub(super) async fn keep_alive(
        shared: Arc<Shared>,
        claims: Vec<Renewal>,
    ) -> Result<Vec<Result<Renewed>>> {
        let mut outcomes: Vec<Option<Result<Renewed>>> = claims.iter().map(|_| None).collect();
        let (mut waiting, mut held) = (Vec::new(), Vec::new());
        for (i, claim) in claims.into_iter().enumerate() {
            // Somebody who takes a claim over may ask for another ttl than it was granted with.
            let checked = supported(claim.kind).and_then(|()| shared.check_ttl("renew", claim.ttl));
            if let Err(e) = checked {
                outcomes[i] = Some(Err(e));
                continue;
            }
            match shared.ballots.waiting(claim.wake.claim, claim.fence) {
                Some((ask, turn)) => {
                    let shared = Arc::clone(&shared);
                    let look = async move { shared.look(ask, turn, claim).await };
                    // A task of its own, so that many do not poll each other's answers.
                    waiting.push((i, tokio::spawn(look)));
                }
                None => held.push((i, claim)),
            }
        }
        if !held.is_empty() {
            let (places, held): (Vec<usize>, Vec<Renewal>) = held.into_iter().unzip();
            let renewed = shared.renew_held(held).await;
            for (i, outcome) in places.into_iter().zip(renewed) {
                outcomes[i] = Some(outcome);
            }
        }
        for (i, look) in waiting {
            outcomes[i] = look.await.ok();
        }
        let ended = || {
            let message = "the runtime is shutting down";
            Err(Error::new(ErrorKind::OutcomeUnknown, "renew", message))
        };
        Ok(outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or_else(ended))
            .collect())
    }
}

impl Shared {
    /// Has all nodes confirm a claim, and draw a number where it is held.
    pub(super) async fn confirm(
        self: &Arc<Shared>,
        claim: &Renewal,
        proposal: u64,
    ) -> Confirmation {
        let proposal = Fence::new(proposal);
        let limit = self.limit(claim.ttl);
        let over = Over::default();
        let question = |node: &Arc<Node>| {
            let claim = claim.clone();
            node.ask(self, &over, move |voter| voter.confirm(&claim, proposal))
        };
        let mut round = Round::new(self.nodes.iter().map(question));
        let mut heard = Confirmation::default();
        let patience = self.pace.patience(limit);
        for time in [patience, limit - patience] {
            let enough = round.hear(|node, answer| {
                heard.take(node, answer);
                match self.is_enough(&heard) {
                    true => ControlFlow::Break(()),
                    false => ControlFlow::Continue(()),
                }
            });
            if self.clock.within(time, enough).await.is_some() {
                break;
            }
            // So that the next one does not wait for them as well.
            let late = round.silent();
            late.for_each(|node| self.nodes[node].doubt());
            if self.is_enough(&heard) {
                break;
            }
        }
        heard.failures.silent(round.silent());
        self.finish(round, &over, limit);
        heard
    }

    /// Whether it does not matter what the others say.
    fn is_enough(&self, heard: &Confirmation) -> bool {
        let mine = heard.held.len() >= self.majority;
        // Somebody has it, or all have spoken: before that, it cannot be told whether nobody has.
        let theirs = heard.ahead.len() >= self.majority && !heard.is_split(self.majority);
        // Those who would make it whole were not asked for it yet, and the others may never answer.
        let may_be_whole = heard.held.len() + heard.gone.len() >= self.majority;
        let unheard = self.everybody().without(heard.spoken);
        let in_vain = || unheard.iter().all(|node| self.nodes[node].is_in_doubt());
        mine || theirs || unheard.len() == 0 || may_be_whole && in_vain()
    }

    /// Looks after a claim that waits.
    ///
    /// Whoever asked may have given up when the answer is here, and then asks again: so that it holds is
    /// also remembered.
    async fn look(
        self: &Arc<Shared>,
        ask: AcquireRequest,
        turn: u64,
        claim: Renewal,
    ) -> Result<Renewed> {
        let id = claim.wake.claim;
        let mut heard = self.confirm(&claim, self.propose(0)).await;
        if heard.held.len() >= self.majority {
            let numbers = heard.numbers();
            if let Some(fence) = agreed(&numbers, self.majority) {
                self.saw(fence);
                return Ok(self.has_come_to_hold(&ask, turn, Fence::new(fence)));
            }
            numbers.iter().for_each(|number| self.saw(*number));
            for tries in 0..4 {
                let proposal = self.propose(next_proposal(&heard.numbers(), tries));
                heard = self.confirm(&claim, proposal).await;
                heard.numbers().iter().for_each(|number| self.saw(*number));
                if let Some(fence) = agreed(&heard.numbers(), self.majority) {
                    return Ok(self.has_come_to_hold(&ask, turn, Fence::new(fence)));
                }
                if heard.held.len() < self.majority {
                    break;
                }
            }
            if heard.held.len() >= self.majority {
                self.look_soon(id);
            }
        }
        let placed = heard.held.len() + heard.ahead.len();
        if placed + heard.gone.len() < self.majority {
            return Err(heard.failures.error(self, placed));
        }
        if placed < self.majority && heard.gone.len() >= self.majority {
            self.ballots.remove(id, turn);
            return Ok(Renewed::Gone);
        }
        // As long as somebody has it, the nodes that nobody asked yet are left to that one.
        let everywhere = heard.is_split(self.majority) || heard.held.len() >= self.majority;
        self.line_up_on(heard.gone.iter().copied().collect(), &ask, everywhere);
        self.ballots
            .holds(id, heard.held.iter().map(|(node, _)| *node));
        if heard.should_give_way(claim.owner.as_str(), self.majority) {
            self.give_way(&heard, &claim).await;
        }
        if heard.is_split(self.majority) && heard.held.len() < self.majority {
            // Until somebody has it, whoever is ahead somewhere looks again and again.
            if !heard.held.is_empty() {
                self.look_soon(id);
            }
        }
        Ok(Renewed::Waiting {
            held_for: heard.held_for.or(Some(claim.ttl / 3)),
        })
    }

    /// Goes to the end of the line wherever the claim is ahead.
    async fn give_way(self: &Arc<Shared>, heard: &Confirmation, claim: &Renewal) {
        let proposal = Fence::new(self.propose(0));
        let question = |&(node, number): &(usize, u64)| {
            let voter = &self.nodes[node].voter;
            voter.line_up_again(claim, Fence::new(number), proposal)
        };
        let mut round = Round::new(heard.held.iter().map(question));
        let all = round.hear(|_, _| ControlFlow::<()>::Continue(()));
        self.clock.within(self.limit(claim.ttl), all).await;
    }

    /// A claim that waited holds: now it is asked for where it was not yet, so that the loss of some
    /// nodes does no harm.
    fn has_come_to_hold(
        self: &Arc<Shared>,
        ask: &AcquireRequest,
        turn: u64,
        fence: Fence,
    ) -> Renewed {
        self.ballots.has(ask.wake.claim, turn, fence);
        self.ballots.ask_of(ask.wake.claim, |asked| {
            self.ask_in_passing(self.everybody().without(*asked), ask, asked);
        });
        Renewed::Held { fence }
    }

    /// Nodes that know nothing of a waiting claim get it again, unless it was given up meanwhile; those
    /// that were never asked for it only if it is to be `everywhere`.
    fn line_up_on(self: &Arc<Shared>, nodes: NodeSet, ask: &AcquireRequest, everywhere: bool) {
        self.ballots.ask_of(ask.wake.claim, |asked| {
            let nodes = nodes.iter().filter(|node| everywhere || asked.has(*node));
            self.ask_in_passing(nodes.collect(), ask, asked);
        });
    }

    /// Asks some nodes for a claim, and does not wait for what they say.
    fn ask_in_passing(
        self: &Arc<Shared>,
        nodes: NodeSet,
        ask: &AcquireRequest,
        asked: &mut NodeSet,
    ) {
        for node in nodes.iter() {
            // One without a vote is left for the next look.
            if self.nodes[node].cleared().is_some() {
                asked.add(node);
                let proposal = Fence::new(self.propose(0));
                let answer = self.nodes[node].voter.vote(ask, proposal);
                self.finish(Round::new([answer]), &Over::default(), self.limit(ask.ttl));
            }
        }
    }
}
