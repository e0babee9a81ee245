//! Clients and their store under random faults, checked by what the clients recorded.
//!
//! A [`FaultScenario`] starts worker processes that take turns under one lock, and injects faults:
//! into the workers (kill, freeze), into commands under `windlass run` (kill, stop of the whole
//! process group), and into the store (its [`StoreUnderTest::faults`]). All processes record what
//! they do by one clock, and the [history checker](crate::history) decides afterwards. So the verdict
//! does not depend on what the library believes.
//!
//! A worker is the program itself, started again with `WINDLASS_TEST_ROLE` set: see
//! [`run_if_worker`].

mod commands;
mod report;
mod scenario;
mod stores;
mod worker;

pub use report::ChaosReport;
pub use scenario::FaultScenario;
pub use stores::{Fault, NAMES, StoreUnderTest, start_store};
pub use worker::{ClientBehaviour, LOCK, run_if_worker};
