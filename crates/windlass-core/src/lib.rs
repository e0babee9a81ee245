//! The core of Windlass: what every store and every primitive shares. Programs use the `windlass`
//! crate; this one is for authors of stores.
//!
//! | module | contents |
//! |---|---|
//! | [`store`] | the traits that a store implements; each call is one atomic decision. The terms (claim, pool, weight, ticket, fence) are defined in [`store::claims`] |
//! | [`rules`] | the decisions themselves, as pure functions: the executable specification |
//! | [`memory`] | the `memory:` store: the rules under a mutex |
//! | [`Name`], [`Owner`], [`Fence`], [`Clock`], [`Drift`], [`Error`] | the values that cross the store traits |
//! | [`bloom`], [`permissions`], [`seen`], [`decision`] | the values of single primitives |
//!
//! The feature `serde` implements `Serialize` and `Deserialize` for the values that programs send
//! over the wire.
//!
//! # How to add a store
//!
//! 1. Create a crate `windlass-NAME` that depends on this one only, with the file names of the
//!    other stores (the table is in `ARCHITECTURE.md`).
//! 2. Implement [`store::Backend`], and the traits that it returns:
//!    - required: [`store::ClaimStore`], [`store::GateStore`], [`store::LatchStore`],
//!      [`store::NotificationStore`];
//!    - optional, unsupported by default: [`store::limit::LimitStore`],
//!      [`store::counter::CounterStore`], [`store::BloomStore`], [`store::PermissionStore`],
//!      [`store::SeenStore`], [`store::OnceStore`], [`store::TopicStore`]. A required primitive
//!      that the store cannot decide soundly returns [`store::unsupported::unsupported`].
//!
//!    If the store runs Rust code in a transaction, call the [`rules`]: implement
//!    [`rules::wait_queue::WaitQueue`] on the transaction, and the claims are done (`windlass-file`
//!    is the example). If it runs code of its own, such as a script, take the same decisions there,
//!    and compare them with the rules in an equivalence test on random sequences of operations
//!    (`windlass-redis` is the example).
//! 3. Use the store's clock for expiry, never the client's. Report grants to the
//!    [`store::GrantListener`] that is given to the store when it is opened. Return
//!    [`ErrorKind::OutcomeUnknown`] for a request that was sent and not answered, so that it is
//!    undone by owner.
//! 4. Add the URL scheme to `windlass`, behind a feature: `store_url.rs` parses it and opens the store.
//!    Enable the feature in `windlass-cli` and `windlass-testkit`, and add it to the features that
//!    `cargo xtask ci` checks alone. Name the store in the hints of [`store::unsupported`].
//! 5. Add its server to `windlass-testkit` (and to `xtask/src/servers.rs`, which installs it), and a
//!    constructor of `TestStore`. Run the conformance suite on it: one line,
//!    `windlass_testkit::conformance!(…)`, in a folder of `crates/windlass/tests`
//!    (`conformance_without_flow_and_data!` for a store without limiters and the like,
//!    `majority_conformance!` for a quorum). Add its faults to `windlass-testkit/src/chaos/stores/`,
//!    and mutants for its promises to `xtask/src/mutants/`.
//! 6. Describe it in `docs/choose-a-backend.md` and `docs/keys.md`.
//!
//! # How to add a limiter algorithm
//!
//! All in [`rules::limit`], then in the two places that take the same decision elsewhere:
//!
//! 1. Add a variant to [`Rule`](rules::limit::Rule) (the quota) and to
//!    [`RuleState`](rules::limit::RuleState) (what is stored, with a new letter in its text
//!    format). The compiler points to most `match`es that need an arm. It does not point to
//!    `Rule::is_of`, to the wildcards in `step_back.rs` (a clock that is set back), `lease.rs` and
//!    `state.rs`, nor to `limit/survey.rs` of `windlass`. A state that is a list is bounded by
//!    its quota and shared, not copied (`log.rs` is the example).
//! 2. Write the algorithm in a file of its own beside `bucket.rs`, `window.rs` and `log.rs`: the
//!    state as of now, the state after a charge, the status; in `lease.rs` how long leased units are
//!    valid and how they are returned.
//! 3. Add the variant to the `rule()` strategy of the property tests in `rules/limit/tests`. They
//!    check that the quota is never exceeded, and that `retry_after` and `remaining` are exact, for
//!    every algorithm.
//! 4. `memory:` and `file:` work now. Implement the same in the limiter script of `windlass-redis`
//!    (`lower` in `states.lua` too), and extend its equivalence test.
//! 5. Add it to `windlass::Algorithm` and to the command line (`limit` and `top`), and a case to the
//!    conformance suite: the function, and its name in the list in `conformance/mod.rs`.

pub mod bloom;
mod clock;
pub mod clock_skew;
pub mod connections;
pub mod decision;
pub mod error;
mod fence;
pub mod join;
pub mod memory;
#[cfg(feature = "serde")]
mod millis;
pub mod name;
mod owner;
mod pattern;
pub mod permissions;
pub mod redact;
pub mod rules;
pub mod seen;
pub mod store;
mod ttl;
mod validity;

pub use clock::{Clock, Moment};
pub use error::{Error, ErrorKind, Result};
pub use fence::{Fence, FenceStrength};
pub use name::Name;
pub use owner::{Owner, new_client_id};
pub use ttl::{DEFAULT_TTL, MAX_TTL, MIN_TTL};
pub use validity::Drift;
