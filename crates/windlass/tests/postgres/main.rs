//! The `postgres://` store on a real PostgreSQL.

mod access;
mod conformance;
mod faults;
mod hold;
