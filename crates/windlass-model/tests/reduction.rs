//! The reduced model loses and adds nothing: for two clients, it reaches exactly the outcomes of
//! the full one, for the protocol and for each variant.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;

use stateright::{Model, Representative};
use windlass_model::reduced::{self, ReducedModel};
use windlass_model::search::long;
use windlass_model::{ModelAttempt, QuorumModel, Variant};

/// The progress of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    NotBegun,
    /// The highest fence that was complete when it began.
    Requesting(u8),
    /// Its fence.
    Held(u8),
    Over,
}

/// An observable outcome: the progress of all clients, in any order; and if one of them is complete
/// just now, its fence and the one before.
type Outcome = (Vec<Stage>, Option<(u8, u8)>);

/// All reachable outcomes.
fn reached<M>(model: &M, stages: impl Fn(&M::State) -> Vec<Stage>) -> BTreeSet<Outcome>
where
    M: Model,
    M::State: Representative + Eq + Hash + Clone,
{
    let mut seen = BTreeSet::new();
    let mut todo = model.init_states();
    let mut known: HashSet<M::State> = todo.iter().map(M::State::representative).collect();
    let mut actions = Vec::new();
    while let Some(state) = todo.pop() {
        let before = stages(&state);
        seen.insert((sorted(&before), None));
        model.actions(&state, &mut actions);
        for action in actions.drain(..) {
            let Some(next) = model.next_state(&state, action) else {
                continue;
            };
            let after = stages(&next);
            let completed = before.iter().zip(&after).find_map(|pair| match pair {
                (Stage::Requesting(after), Stage::Held(fence)) => Some((*fence, *after)),
                _ => None,
            });
            if completed.is_some() {
                seen.insert((sorted(&after), completed));
            }
            if known.insert(next.representative()) {
                todo.push(next);
            }
        }
    }
    seen
}

fn sorted(stages: &[Stage]) -> Vec<Stage> {
    let mut stages = stages.to_vec();
    stages.sort_unstable();
    stages
}

fn full_stages(state: &windlass_model::ModelState) -> Vec<Stage> {
    let stage = |client: &windlass_model::ModelClient| match client.attempt {
        ModelAttempt::NotBegun => Stage::NotBegun,
        ModelAttempt::Requesting { .. } => Stage::Requesting(client.after),
        ModelAttempt::Held { fence, .. } => Stage::Held(fence),
        ModelAttempt::Over => Stage::Over,
    };
    state.clients.iter().map(stage).collect()
}

fn reduced_stages(state: &reduced::ReducedState) -> Vec<Stage> {
    let stage = |client: &reduced::ReducedClient| match client.attempt {
        reduced::ReducedAttempt::Absent => None,
        reduced::ReducedAttempt::NotBegun => Some(Stage::NotBegun),
        reduced::ReducedAttempt::Requesting { .. } => Some(Stage::Requesting(client.after)),
        reduced::ReducedAttempt::Held { fence } => Some(Stage::Held(fence)),
        reduced::ReducedAttempt::Over => Some(Stage::Over),
    };
    state.clients.iter().filter_map(stage).collect()
}

/// The full model, for two clients.
fn full(variant: Variant) -> QuorumModel {
    QuorumModel {
        variant,
        clients: 2,
        rounds: 2,
        losses: 0,
        restarts: 0,
        expiries: None,
        writes: false,
    }
}

/// Restarts with memory and a bound on expiries exist only in the full model. With such a bound,
/// the reduced model must still reach all outcomes of the full one, and may reach more.
fn reduction_changes_nothing(full: QuorumModel) {
    let described = format!("{full:?}");
    let reduced = ReducedModel {
        variant: full.variant,
        clients: full.clients,
        rounds: full.rounds.into(),
        losses: full.losses,
    };
    let bounded = full.expiries.is_some();
    let full = reached(&full, full_stages);
    let reduced = reached(&reduced, reduced_stages);
    println!("{described}: {} and {} outcomes", full.len(), reduced.len());
    let lost: Vec<_> = full.difference(&reduced).collect();
    assert!(lost.is_empty(), "{described}: lost: {lost:?}");
    if !bounded {
        let added: Vec<_> = reduced.difference(&full).collect();
        assert!(added.is_empty(), "{described}: added: {added:?}");
    }
}

/// With a loss of memory, an unbounded number of expiries takes minutes.
fn with_a_loss(variant: Variant) -> QuorumModel {
    QuorumModel {
        losses: 1,
        expiries: (!long()).then_some(1),
        ..full(variant)
    }
}

#[test]
fn two_clients() {
    reduction_changes_nothing(full(Variant::Whole));
}

#[test]
fn a_restart_with_memory_only_loses_messages() {
    reduction_changes_nothing(QuorumModel {
        restarts: 1,
        ..full(Variant::Whole)
    });
}

#[test]
fn a_node_that_forgets() {
    reduction_changes_nothing(with_a_loss(Variant::Whole));
}

#[test]
fn without_the_raise() {
    reduction_changes_nothing(full(Variant::WithoutRaise));
}

#[test]
fn without_the_quarantine() {
    reduction_changes_nothing(with_a_loss(Variant::WithoutQuarantine));
}

#[test]
fn without_the_counters() {
    reduction_changes_nothing(with_a_loss(Variant::WithoutCounters));
}

#[test]
fn with_validity_from_the_reply() {
    reduction_changes_nothing(with_a_loss(Variant::ValidFromReply));
}
