//! Tests on a replicated Redis with sentinels.

mod conformance;
mod failover;
mod prefix;
mod sentinels;
