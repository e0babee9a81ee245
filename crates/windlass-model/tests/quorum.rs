//! Searches of the models: the protocol keeps all properties, and each variant violates some.
//!
//! Each search is complete within its bounds, which are chosen so that all of them take about a
//! minute. `WINDLASS_MODEL=long` has wider ones.

use windlass_model::search::{breaks, holds, long};
use windlass_model::{QuorumModel, ReducedModel, Variant};

/// The safety properties.
const SAFETY: [&str; 3] = ["unique", "growing", "gated"];

/// The full model with two clients.
fn full(variant: Variant) -> QuorumModel {
    QuorumModel {
        variant,
        clients: 2,
        rounds: 2,
        losses: 0,
        restarts: 0,
        expiries: None,
        writes: true,
    }
}

/// The reduced model, in which any number of claims may expire.
fn reduced(variant: Variant, clients: usize, rounds: usize, losses: u8) -> ReducedModel {
    ReducedModel {
        variant,
        clients,
        rounds,
        losses,
    }
}

#[test]
fn two_clients() {
    holds(full(Variant::Whole));
}

#[test]
fn two_clients_and_a_node_that_forgets() {
    holds(QuorumModel {
        losses: 1,
        expiries: Some(2),
        rounds: if long() { 3 } else { 2 },
        ..full(Variant::Whole)
    });
}

#[test]
fn two_clients_and_two_nodes_that_forget() {
    holds(reduced(Variant::Whole, 2, 3, 2));
}

#[test]
fn three_clients() {
    holds(reduced(Variant::Whole, 3, 3, 0));
}

#[test]
fn three_clients_and_a_node_that_forgets() {
    match long() {
        false => holds(reduced(Variant::Whole, 3, 2, 1)),
        true => {
            holds(reduced(Variant::Whole, 3, 3, 1));
            holds(reduced(Variant::Whole, 3, 2, 2));
        }
    }
}

#[test]
fn without_the_raise_safety_is_violated() {
    breaks(full(Variant::WithoutRaise), &["unique"]);
    breaks(reduced(Variant::WithoutRaise, 2, 2, 0), &["unique"]);
    // The other violations take one more client.
    breaks(reduced(Variant::WithoutRaise, 3, 2, 0), &SAFETY);
}

#[test]
fn without_the_quarantine_safety_is_violated() {
    breaks(reduced(Variant::WithoutQuarantine, 2, 2, 1), &SAFETY);
}

#[test]
fn without_the_counters_safety_is_violated() {
    breaks(reduced(Variant::WithoutCounters, 2, 2, 1), &SAFETY);
}

/// Writes as steps admit a stale write where the reduced model, which has no such steps, says so.
#[test]
fn the_full_model_admits_stale_writes_without_the_counters() {
    let full = QuorumModel {
        losses: 1,
        expiries: Some(2),
        ..full(Variant::WithoutCounters)
    };
    breaks(full, &["growing", "gated"]);
}

#[test]
fn with_validity_from_the_reply_safety_is_violated() {
    breaks(reduced(Variant::ValidFromReply, 2, 2, 1), &SAFETY);
}
