//! Searching a model to its end, or until it breaks.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Representative};

/// Whether the wider bounds are to be searched, which takes many minutes: `WINDLASS_MODEL=long`.
pub fn long() -> bool {
    std::env::var("WINDLASS_MODEL").is_ok_and(|how| how == "long")
}

/// Searches everything within the bounds.
///
/// # Panics
///
/// If something does not hold that always must, or something never happens that should sometimes.
pub fn holds<M>(model: M)
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Representative + Debug + Hash + PartialEq + Clone + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let told = format!("{model:?}");
    let checker = model.checker().symmetry().threads(2).spawn_dfs().join();
    println!("{told}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Searches until all of these were found to be broken.
///
/// # Panics
///
/// If one of them is not.
pub fn breaks<M>(model: M, properties: &[&'static str])
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Representative + Debug + Hash + PartialEq + Clone + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let told = format!("{model:?}");
    let enough = HasDiscoveries::AllOf(properties.iter().copied().collect());
    let search = model.checker().symmetry().threads(2).finish_when(enough);
    let checker = search.spawn_dfs().join();
    println!("{told}: {} states", checker.unique_state_count());
    for property in properties {
        let found = checker.discovery(property);
        assert!(found.is_some(), "{told}: {property} holds all the same");
    }
}
