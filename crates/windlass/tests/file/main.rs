//! Tests on `file:`, which need no server.

mod compatibility;
mod conformance;
mod limit;
mod store;
