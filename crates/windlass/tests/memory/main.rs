//! Tests on `memory:`, which need no server.

mod conformance;
mod cooperation;
mod counter_buffer;
