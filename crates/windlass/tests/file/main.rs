//! Tests on `file:`, which need no server.

mod conformance;
mod limit;
mod store;
