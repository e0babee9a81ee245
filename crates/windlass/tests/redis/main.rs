//! Tests on one Redis or Valkey server.

mod access;
mod bloom;
mod compatibility;
mod conformance;
mod conformance_62;
mod conformance_valkey;
mod counter_faults;
mod diagnose;
mod faults;
mod fences;
mod flow_faults;
mod hosts;
mod leased_faults;
mod limit_faults;
mod limit_many;
mod once;
mod permissions;
mod pools;
mod queue;
mod tenants;
mod topic;
