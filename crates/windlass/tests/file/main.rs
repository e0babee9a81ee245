//! Tests on `file:`, which need no server.

mod blocked;
mod child;
mod compatibility;
mod conformance;
mod limit;
mod names;
mod outside_changes;
mod store;
