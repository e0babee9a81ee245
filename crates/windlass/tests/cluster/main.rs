//! Tests on a Redis Cluster.

mod bloom;
mod conformance;
mod faults;
mod prefix;
