//! Tests on etcd.

mod access;
mod conformance_34;
mod conformance_35;
mod faults;
