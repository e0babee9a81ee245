//! Tests against a real server.

mod concurrent_changes;
mod faults;
