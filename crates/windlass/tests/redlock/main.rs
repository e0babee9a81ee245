//! Tests on a majority of independent Redis servers.

mod conformance;
mod diagnose;
mod faults;
mod options;
mod read_repair;
