//! The folded model loses nothing and adds nothing: for two clients, it reaches exactly what the plain
//! one does, whole or broken.

use std::collections::{BTreeSet, HashSet};
use std::hash::Hash;

use stateright::{Model, Representative};
use windlass_model::folded::{self, Folded};
use windlass_model::search::long;
use windlass_model::{Attempt, Quorum, Variant};

/// How far one client has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    NotBegun,
    /// The highest fence that was complete when it began.
    Asking(u8),
    /// Its fence.
    Held(u8),
    Over,
}

/// What can be seen from outside: how far all have come, in no order; and if one of them is complete just
/// now, with which fence, and after which.
type Seen = (Vec<Stage>, Option<(u8, u8)>);

/// All that can ever be seen.
fn reached<M>(model: &M, stages: impl Fn(&M::State) -> Vec<Stage>) -> BTreeSet<Seen>
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
                (Stage::Asking(after), Stage::Held(fence)) => Some((*fence, *after)),
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

fn plain_stages(state: &windlass_model::State) -> Vec<Stage> {
    let stage = |client: &windlass_model::Client| match client.attempt {
        Attempt::NotBegun => Stage::NotBegun,
        Attempt::Asking { .. } => Stage::Asking(client.after),
        Attempt::Held { fence, .. } => Stage::Held(fence),
        Attempt::Over => Stage::Over,
    };
    state.clients.iter().map(stage).collect()
}

fn folded_stages(state: &folded::State) -> Vec<Stage> {
    let stage = |client: &folded::Client| match client.attempt {
        folded::Attempt::Absent => None,
        folded::Attempt::NotBegun => Some(Stage::NotBegun),
        folded::Attempt::Asking { .. } => Some(Stage::Asking(client.after)),
        folded::Attempt::Held { fence } => Some(Stage::Held(fence)),
        folded::Attempt::Over => Some(Stage::Over),
    };
    state.clients.iter().filter_map(stage).collect()
}

/// The plain model, for two clients.
fn plain(variant: Variant) -> Quorum {
    Quorum {
        variant,
        clients: 2,
        rounds: 2,
        losses: 0,
        restarts: 0,
        expiries: None,
        writes: false,
    }
}

/// Restarts with memory and a bound on expiries are for the plain model alone: folded, the former are no
/// steps, and the latter is not known. With such a bound, the folded one must still reach all that the plain one does.
fn folding_changes_nothing(plain: Quorum) {
    let told = format!("{plain:?}");
    let folded = Folded {
        variant: plain.variant,
        clients: plain.clients,
        rounds: plain.rounds.into(),
        losses: plain.losses,
    };
    let bounded = plain.expiries.is_some();
    let plain = reached(&plain, plain_stages);
    let folded = reached(&folded, folded_stages);
    println!("{told}: {} and {} to see", plain.len(), folded.len());
    let lost: Vec<_> = plain.difference(&folded).collect();
    assert!(lost.is_empty(), "{told}: folded away: {lost:?}");
    if !bounded {
        let added: Vec<_> = folded.difference(&plain).collect();
        assert!(added.is_empty(), "{told}: made up: {added:?}");
    }
}

/// Any number of expiries takes minutes when a node forgets.
fn when_a_node_forgets(variant: Variant) -> Quorum {
    Quorum {
        losses: 1,
        expiries: (!long()).then_some(1),
        ..plain(variant)
    }
}

#[test]
fn folded_the_same_can_be_seen() {
    folding_changes_nothing(plain(Variant::Whole));
}

#[test]
fn a_restart_with_memory_is_no_more_than_messages_lost() {
    folding_changes_nothing(Quorum {
        restarts: 1,
        ..plain(Variant::Whole)
    });
}

#[test]
fn folded_the_same_can_be_seen_when_a_node_forgets() {
    folding_changes_nothing(when_a_node_forgets(Variant::Whole));
}

#[test]
fn folded_the_same_can_be_seen_without_the_raise() {
    folding_changes_nothing(plain(Variant::WithoutRaise));
}

#[test]
fn folded_the_same_can_be_seen_without_the_quarantine() {
    folding_changes_nothing(when_a_node_forgets(Variant::WithoutQuarantine));
}

#[test]
fn folded_the_same_can_be_seen_without_the_counters() {
    folding_changes_nothing(when_a_node_forgets(Variant::WithoutCounters));
}

#[test]
fn folded_the_same_can_be_seen_when_time_is_counted_from_the_reply() {
    folding_changes_nothing(when_a_node_forgets(Variant::ValidFromReply));
}
