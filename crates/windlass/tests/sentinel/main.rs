//! Tests on a replicated Redis with sentinels.

mod conformance;
mod failover;
mod fakes;
mod prefix;
mod sentinels;
