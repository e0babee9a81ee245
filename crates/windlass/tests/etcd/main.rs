//! Tests on etcd.

mod access;
mod cleanup;
mod conformance_34;
mod conformance_35;
mod diagnose;
mod faults;
mod interop;
mod nested_names;
mod queue;
