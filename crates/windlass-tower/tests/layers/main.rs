//! The layers around real services, on memory and on a real Redis. `nginx` needs nginx too.

#[path = "../../../../examples/axum-api/app.rs"]
mod axum_api;
mod concurrency;
mod example;
mod fixture;
mod frameworks;
mod idempotency;
mod idempotency_faults;
mod limit;
mod limit_charge;
mod limit_faults;
mod lock;
mod nginx;
mod recorded_metrics;
mod stacked;
