//! The model, searched: nothing goes wrong with all of it, and something does without any part of it.
//!
//! Within its bounds, each search is complete. They are such that all of this takes a minute or so;
//! `WINDLASS_MODEL=long` has wider ones.

use stateright::{Checker, HasDiscoveries, Model};
use windlass_model::{Quorum, Variant};

fn quorum(variant: Variant) -> Quorum {
    Quorum {
        variant,
        clients: 2,
        rounds: 2,
        losses: 0,
        expiries: Some(2),
        writes: true,
    }
}

/// Searches everything within the bounds.
fn holds(model: Quorum) {
    let told = format!("{model:?}");
    let checker = model.checker().symmetry().threads(2).spawn_dfs().join();
    println!("{told}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// The same, where too little can happen for all of them to hold one after the other.
fn holds_for_two(model: Quorum) {
    let told = format!("{model:?}");
    let checker = model.checker().symmetry().threads(2).spawn_dfs().join();
    println!("{told}: {} states", checker.unique_state_count());
    for property in ["unique", "growing", "gated"] {
        checker.assert_no_discovery(property);
    }
    checker.assert_any_discovery("two hold");
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

/// Two clients, and any number of claims that expire.
#[test]
fn fences_are_unique_and_grow() {
    holds(Quorum {
        expiries: None,
        ..quorum(Variant::Whole)
    });
}

/// Three clients, one after the other at the least: that takes three claims that expire.
#[test]
fn with_three_clients_too() {
    holds(Quorum {
        clients: 3,
        expiries: Some(3),
        writes: long(),
        ..quorum(Variant::Whole)
    });
}

/// Three clients of whom two complete, in any order, while a node forgets.
#[test]
fn a_node_that_forgot_changes_nothing_for_three_clients() {
    holds_for_two(Quorum {
        clients: 3,
        losses: 1,
        expiries: Some(u8::from(long())),
        ..quorum(Variant::Whole)
    });
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
