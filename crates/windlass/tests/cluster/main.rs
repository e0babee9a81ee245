//! Tests on a Redis Cluster.

mod conformance;
mod faults;
