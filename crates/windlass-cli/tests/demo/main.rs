//! Tests of `windlass demo`. Those that need Redis have `redis` in their path; `nginx` and `page` need nginx and Chromium.

#[macro_use]
#[path = "../fixture/mod.rs"]
mod fixture;

mod guards;
mod nginx;
mod page;
