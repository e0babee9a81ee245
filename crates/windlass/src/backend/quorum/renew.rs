//! Keeping claims alive: those that are held, and those that wait.
//!
//! Whoever waits, waits in the lines of all nodes, and may be ahead of the others on some of them. As
//! soon as one claim is handed a majority, all is well, and the others go on waiting where they are.
//! But several may be handed a minority each; then nobody holds, and nobody would ever let go. So a
//! claim that finds no holder of a majority gives way on the nodes where it is ahead, unless it has
//! most of them: it goes to the end of the line there. All see the same claims ahead, so all but one
//! give way.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::acquire::sooner;
use super::node::Node;
use super::{Confirmed, Failures, Over, Quorum, Round, Shared};
use crate::backend::rules::vote::{agreed, next_proposal};
use crate::backend::{Ask, Pending, Renewal, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::Fence;

/// How long the others are waited for when a majority has renewed.
const GRACE: Duration = Duration::from_millis(20);

/// What the nodes said in one round of confirming a claim.
#[derive(Default)]
pub(super) struct Confirmation {
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

    fn answered(&self) -> usize {
        self.held.len() + self.ahead.len() + self.gone.len() + self.failures.len()
    }

    /// How many nodes each of the others is ahead on.
    fn others(&self) -> HashMap<&str, usize> {
        let mut votes = HashMap::new();
        for owner in &self.ahead {
            *votes.entry(owner.as_str()).or_default() += 1;
        }
        votes
    }

    /// Whether nobody has a majority, and somebody else has more of a claim to it than `owner`.
    fn should_give_way(&self, owner: &str, majority: usize) -> bool {
        let mine = self.held.len();
        let others = self.others();
        let ahead =
            |(other, votes): (&&str, &usize)| *votes > mine || *votes == mine && **other < *owner;
        mine > 0 && self.is_split(majority) && others.iter().any(ahead)
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
            if let Err(e) = shared.check_ttl("renew", claim.ttl) {
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
        let enough = round.hear(|node, answer| {
            match answer {
                Ok(Confirmed::Held(number)) => heard.held.push((node, number.get())),
                Ok(Confirmed::Waiting { held_for, holder }) => {
                    heard.ahead.push(holder);
                    heard.held_for = sooner(heard.held_for, held_for);
                }
                Ok(Confirmed::Gone) => heard.gone.push(node),
                Err(e) => heard.failures.add(node, e),
            }
            let mine = heard.held.len() >= self.majority;
            // Somebody has it, or all have spoken: before that, it cannot be told whether nobody has.
            let theirs = heard.ahead.len() >= self.majority && !heard.is_split(self.majority);
            match mine || theirs || heard.answered() == self.nodes.len() {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        });
        self.clock.within(limit, enough).await;
        heard.failures.silent(round.silent());
        self.finish(round, &over, limit);
        heard
    }

    /// Looks after a claim that waits.
    ///
    /// Whoever asked may have given up when the answer is here, and then asks again: so that it holds is
    /// also remembered.
    async fn look(self: &Arc<Shared>, ask: Ask, turn: u64, claim: Renewal) -> Result<Renewed> {
        let id = claim.wake.claim;
        let mut heard = self.confirm(&claim, self.propose(0)).await;
        if heard.held.len() >= self.majority {
            let numbers = heard.numbers();
            if let Some(fence) = agreed(&numbers, self.majority) {
                self.saw(fence);
                let fence = Fence::new(fence);
                self.ballots.has(id, turn, fence);
                return Ok(Renewed::Held { fence });
            }
            numbers.iter().for_each(|number| self.saw(*number));
            for tries in 0..4 {
                let proposal = self.propose(next_proposal(&heard.numbers(), tries));
                heard = self.confirm(&claim, proposal).await;
                heard.numbers().iter().for_each(|number| self.saw(*number));
                if let Some(fence) = agreed(&heard.numbers(), self.majority) {
                    let fence = Fence::new(fence);
                    self.ballots.has(id, turn, fence);
                    return Ok(Renewed::Held { fence });
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
        self.line_up_on(&heard.gone, &ask);
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

    /// Nodes that know nothing of a waiting claim get it again, unless it was given up meanwhile.
    fn line_up_on(self: &Arc<Shared>, nodes: &[usize], ask: &Ask) {
        // One without a vote is left for the next look.
        let voting = nodes.iter().map(|node| &self.nodes[*node]);
        for node in voting.filter(|node| node.cleared().is_some()) {
            self.ballots.if_waiting(ask.wake.claim, || {
                let answer = node.voter.vote(ask, Fence::new(self.propose(0)));
                self.finish(Round::new([answer]), &Over::default(), self.limit(ask.ttl));
            });
        }
    }

    /// Keeps what is held alive: each claim on a majority.
    async fn renew_held(self: &Arc<Shared>, claims: Vec<Renewal>) -> Vec<Result<Renewed>> {
        let shortest = claims.iter().map(|claim| claim.ttl).min();
        // Longer than a vote may take: whoever is late has renewed all the same.
        let limit = (shortest.unwrap_or(self.node_timeout) / 2).min(self.node_timeout);
        let over = Over::default();
        let question = |node: &Arc<Node>| -> Pending<'static, Vec<Result<Renewed>>> {
            let claims = claims.clone();
            node.ask(self, &over, move |voter| voter.renew(claims))
        };
        let mut round = Round::new(self.nodes.iter().map(question));
        let mut tallies: Vec<Held> = claims.iter().map(|_| Held::default()).collect();
        let (nodes, majority) = (self.nodes.len(), self.majority);
        let mut take = |node: usize, answer: Result<Vec<Result<Renewed>>>| {
            let mut answers = match answer {
                Ok(answers) => answers.into_iter(),
                Err(e) => {
                    let same = |tally: &mut Held| tally.failures.add(node, e.again());
                    tallies.iter_mut().for_each(same);
                    Vec::new().into_iter()
                }
            };
            for (tally, answer) in tallies.iter_mut().zip(&mut answers) {
                match answer {
                    Ok(Renewed::Held { .. }) => tally.held += 1,
                    Ok(Renewed::Waiting { .. }) => tally.not += 1,
                    Ok(Renewed::Gone) => {
                        tally.not += 1;
                        tally.gone.push(node);
                    }
                    Err(e) => tally.failures.add(node, e),
                }
            }
            match tallies
                .iter()
                .all(|tally| tally.is_certain(nodes, majority))
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        let certain = self.clock.within(limit, round.hear(&mut take)).await;
        if certain.is_some() {
            // Nobody is in a hurry to hear of a renewal, and whoever hands a claim on to another
            // process should not have one under way.
            let rest = round.hear(|node, answer| {
                let _ = take(node, answer);
                ControlFlow::<()>::Continue(())
            });
            self.clock.within(GRACE.min(limit), rest).await;
        }
        let silent: Vec<usize> = round.silent().collect();
        self.finish(round, &over, limit);
        let each = claims.into_iter().zip(tallies);
        each.map(|(claim, mut tally)| {
            if tally.held >= majority {
                self.come_back(&claim, tally.gone);
                return Ok(Renewed::Held { fence: claim.fence });
            }
            if tally.not > nodes - majority {
                return Ok(Renewed::Gone);
            }
            tally.failures.silent(silent.iter().copied());
            Err(tally.failures.error(self, tally.held))
        })
        .collect()
    }
}

/// What the nodes said of one held claim.
#[derive(Default)]
struct Held {
    held: usize,
    not: usize,
    gone: Vec<usize>,
    failures: Failures,
}

impl Held {
    fn is_certain(&self, nodes: usize, majority: usize) -> bool {
        self.held >= majority || self.not > nodes - majority
    }
}
