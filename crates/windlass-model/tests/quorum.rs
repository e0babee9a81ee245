//! The model, searched: nothing goes wrong with all of it, and something does without any part of it.
//!
//! The bounds are such that all of this takes a minute or so. `WINDLASS_MODEL=long` searches further.

use stateright::{Checker, HasDiscoveries, Model};
use windlass_model::{Quorum, Variant};

fn quorum(variant: Variant) -> Quorum {
    Quorum {
        variant,
        clients: 2,
        rounds: 2,
        losses: 0,
        expiries: 2,
    }
}

/// Searches everything within the bounds.
fn holds(model: Quorum) {
    let told = format!("{model:?}");
    let checker = model.checker().symmetry().threads(2).spawn_dfs().join();
    println!("{told}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Searches until one of these is found to be broken.
fn breaks(model: Quorum, properties: &[&'static str]) {
    let told = format!("{model:?}");
    let enough = HasDiscoveries::AnyFailures;
    let checker = model
        .checker()
        .threads(2)
        .finish_when(enough)
        .spawn_bfs()
        .join();
    println!("{told}: {} states", checker.unique_state_count());
    let found = checker.discoveries();
    let broken = properties.iter().find(|name| found.contains_key(*name));
    assert!(broken.is_some(), "{told}: found only {:?}", found.keys());
}

fn long() -> bool {
    std::env::var("WINDLASS_MODEL").is_ok_and(|how| how == "long")
}

#[test]
fn fences_are_unique_and_grow() {
    holds(quorum(Variant::Whole));
}

/// All of it takes long; what is searched otherwise is no more than the beginning.
#[test]
fn with_three_clients_too() {
    let model = Quorum {
        clients: 3,
        expiries: 3,
        ..quorum(Variant::Whole)
    };
    if long() {
        return holds(model);
    }
    let search = model.checker().symmetry().threads(2);
    let checker = search.target_state_count(3_000_000).spawn_dfs().join();
    println!("three clients: {} states", checker.unique_state_count());
    for property in ["unique", "growing", "gated"] {
        checker.assert_no_discovery(property);
    }
}

#[test]
fn a_node_that_forgot_changes_nothing() {
    holds(Quorum {
        losses: 1,
        rounds: if long() { 3 } else { 2 },
        ..quorum(Variant::Whole)
    });
}

#[test]
fn without_the_raise_two_share_a_fence_or_it_goes_back() {
    let whole = quorum(Variant::WithoutRaise);
    breaks(whole, &["unique", "growing"]);
}

#[test]
fn without_the_raise_a_gate_admits_what_is_stale() {
    breaks_gate(Variant::WithoutRaise, 0);
}

#[test]
fn without_the_quarantine_it_goes_back() {
    let whole = Quorum {
        losses: 1,
        ..quorum(Variant::WithoutQuarantine)
    };
    breaks(whole, &["unique", "growing"]);
}

#[test]
fn without_the_counters_it_goes_back() {
    let whole = Quorum {
        losses: 1,
        ..quorum(Variant::WithoutCounters)
    };
    breaks(whole, &["unique", "growing"]);
}

/// Searches on beyond the first breach, until the gate has let something stale pass.
fn breaks_gate(variant: Variant, losses: u8) {
    let model = Quorum {
        losses,
        clients: 3,
        ..quorum(variant)
    };
    let told = format!("{model:?}");
    let gated = HasDiscoveries::AnyOf(["gated"].into_iter().collect());
    let checker = model
        .checker()
        .threads(2)
        .finish_when(gated)
        .spawn_bfs()
        .join();
    println!("{told}: {} states", checker.unique_state_count());
    assert!(checker.discovery("gated").is_some(), "{told}");
}
