//! The Rust examples of the guides, compiled and run as doctests. Not part of any build.

#[doc = include_str!("../../../README.md")]
mod readme {}

#[doc = include_str!("../../../docs/bloom.md")]
mod bloom {}

#[doc = include_str!("../../../docs/budgets.md")]
mod budgets {}

#[doc = include_str!("../../../docs/choose-a-backend.md")]
mod choose_a_backend {}

#[doc = include_str!("../../../docs/choose-a-primitive.md")]
mod choose_a_primitive {}

#[doc = include_str!("../../../docs/elect-a-leader.md")]
mod elect_a_leader {}

#[doc = include_str!("../../../docs/errors.md")]
mod errors {}

#[doc = include_str!("../../../docs/fencing.md")]
mod fencing {}

#[doc = include_str!("../../../docs/idempotent-jobs.md")]
mod idempotent_jobs {}

#[doc = include_str!("../../../docs/limit-calls.md")]
mod limit_calls {}

#[doc = include_str!("../../../docs/migration.md")]
mod migration {}

#[cfg(feature = "metrics")]
#[doc = include_str!("../../../docs/monitor-windlass.md")]
mod monitor_windlass {}

#[doc = include_str!("../../../docs/once.md")]
mod once {}

#[doc = include_str!("../../../docs/permissions.md")]
mod permissions {}

#[doc = include_str!("../../../docs/recipes.md")]
mod recipes {}

#[cfg(feature = "redis")]
#[doc = include_str!("../../../docs/redlock.md")]
mod redlock {}

#[doc = include_str!("../../../docs/semaphores.md")]
mod semaphores {}

#[doc = include_str!("../../../docs/start.md")]
mod start {}

#[doc = include_str!("../../../docs/testing.md")]
mod testing {}

#[doc = include_str!("../../../docs/topics.md")]
mod topics {}
