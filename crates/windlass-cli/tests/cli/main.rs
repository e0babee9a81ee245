//! Tests of the real `windlass` binary, one module per topic.
//!
//! Tests that need a server have `redis` in their path: those of `docs`, which run the examples of the documentation,
//! need more. `cargo test -p windlass-cli --test cli -- --skip redis --skip docs` runs those that need none.

#[macro_use]
#[path = "../fixture/mod.rs"]
mod fixture;

mod acl;
mod barrier;
#[cfg(feature = "bench")]
mod bench;
mod bloom;
mod completions;
mod config;
mod counter;
#[cfg(all(feature = "bench", feature = "demo"))]
mod docs;
mod doctor;
mod elect;
mod flock;
mod gate;
mod inventory;
mod json;
mod latch;
mod lease_loss;
mod limit;
mod lock;
mod metrics_file;
mod once;
mod output_errors;
mod perm;
mod redis;
mod run;
mod run_permits;
mod run_several;
mod sem;
mod signals;
mod store_url;
mod top;
mod topic;
mod usage;
mod waiting;
mod warden;
