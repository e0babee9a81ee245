//! Searches of a model: complete, or until a property is violated.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker, HasDiscoveries, Model, Representative};

/// Whether to search the wider bounds, which takes many minutes: `WINDLASS_MODEL=long`.
pub fn long() -> bool {
    std::env::var("WINDLASS_MODEL").is_ok_and(|how| how == "long")
}

/// Searches all states within the bounds.
///
/// # Panics
///
/// If a property is violated, or a state that should be reachable is not.
pub fn holds<M>(model: M)
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Representative + Debug + Hash + PartialEq + Clone + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let described = format!("{model:?}");
    let checker = model.checker().symmetry().threads(2).spawn_dfs().join();
    println!("{described}: {} states", checker.unique_state_count());
    checker.assert_properties();
}

/// Searches until all of these properties were violated.
///
/// # Panics
///
/// If one of them is not violated.
pub fn breaks<M>(model: M, properties: &[&'static str])
where
    M: Model + Debug + Send + Sync + 'static,
    M::State: Representative + Debug + Hash + PartialEq + Clone + Send + Sync + 'static,
    M::Action: Debug + Clone + PartialEq + Send + Sync,
{
    let described = format!("{model:?}");
    let enough = HasDiscoveries::AllOf(properties.iter().copied().collect());
    let search = model.checker().symmetry().threads(2).finish_when(enough);
    let checker = search.spawn_dfs().join();
    println!("{described}: {} states", checker.unique_state_count());
    for property in properties {
        let found = checker.discovery(property);
        assert!(found.is_some(), "{described}: {property} holds");
    }
}
