//! The model, searched: nothing goes wrong with all of it, and something does without any part of it.
//!
//! Within its bounds, each search is complete. They are such that all of this takes a minute or so;
//! `WINDLASS_MODEL=long` has wider ones.

use windlass_model::search::{breaks, holds, long};
use windlass_model::{Folded, Quorum, Variant};

/// What must always hold.
const SAFETY: [&str; 3] = ["unique", "growing", "gated"];

/// Two clients, with a step for each thing that can happen.
fn plain(variant: Variant) -> Quorum {
    Quorum {
        variant,
        clients: 2,
        rounds: 2,
        losses: 0,
        restarts: 0,
        expiries: None,
        writes: true,
    }
}

/// Any number of claims may expire.
fn folded(variant: Variant, clients: usize, rounds: usize, losses: u8) -> Folded {
    Folded {
        variant,
        clients,
        rounds,
        losses,
    }
}

#[test]
fn two_clients() {
    holds(plain(Variant::Whole));
}

#[test]
fn two_clients_and_a_node_that_forgets() {
    holds(Quorum {
        losses: 1,
        expiries: Some(2),
        rounds: if long() { 3 } else { 2 },
        ..plain(Variant::Whole)
    });
}

#[test]
fn two_clients_and_two_nodes_that_forget() {
    holds(folded(Variant::Whole, 2, 3, 2));
}

#[test]
fn three_clients() {
    holds(folded(Variant::Whole, 3, 3, 0));
}

#[test]
fn three_clients_and_a_node_that_forgets() {
    match long() {
        false => holds(folded(Variant::Whole, 3, 2, 1)),
        true => {
            holds(folded(Variant::Whole, 3, 3, 1));
            holds(folded(Variant::Whole, 3, 2, 2));
        }
    }
}

#[test]
fn without_the_raise_fences_are_shared_and_go_back_and_a_gate_admits_what_is_stale() {
    breaks(plain(Variant::WithoutRaise), &["unique"]);
    breaks(folded(Variant::WithoutRaise, 2, 2, 0), &["unique"]);
    // That they go back takes one more.
    breaks(folded(Variant::WithoutRaise, 3, 2, 0), &SAFETY);
}

#[test]
fn without_the_quarantine_they_do_too() {
    breaks(folded(Variant::WithoutQuarantine, 2, 2, 1), &SAFETY);
}

#[test]
fn without_the_counters_they_do_too() {
    breaks(folded(Variant::WithoutCounters, 2, 2, 1), &SAFETY);
}

/// With a step for each write, a gate admits what is stale where the folded model says that it would.
#[test]
fn a_stale_write_is_admitted_as_foretold() {
    let plain = Quorum {
        losses: 1,
        expiries: Some(2),
        ..plain(Variant::WithoutCounters)
    };
    breaks(plain, &["growing", "gated"]);
}

#[test]
fn with_time_counted_from_the_reply_they_do_too() {
    breaks(folded(Variant::ValidFromReply, 2, 2, 1), &SAFETY);
}
