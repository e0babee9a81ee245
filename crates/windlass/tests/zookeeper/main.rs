//! Tests on ZooKeeper.

mod access;
mod conformance;
mod faults;
mod limits;
mod recovery;
mod tls;
