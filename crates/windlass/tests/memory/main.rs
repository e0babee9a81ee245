//! Tests on `memory:`, which need no server.

mod conformance;
mod counter_buffer;
