//! Acquires, renews and releases claims that stay held after windlass has exited, until their TTL.

mod acquire;
mod known_owners;
mod renew;

use serde::Serialize;
use windlass::Detached;

pub(super) use self::acquire::acquire;
pub(super) use self::known_owners::KnownOwners;
pub(super) use self::renew::{release, renew};
use crate::humanize;

/// What a manual command acts on.
pub(super) struct ManualTarget<'a> {
    pub(super) name: &'a str,
    /// The command group: `lock`, `sem` or `rw`.
    pub(super) group: &'static str,
    /// The command line to acquire it, for suggestions.
    pub(super) acquire: String,
}

/// The JSON answer of a claim that is held now.
#[derive(Serialize)]
struct HeldAnswer<'a> {
    name: &'a str,
    owner: &'a str,
    fence: u64,
    ttl_ms: u64,
}

impl<'a> HeldAnswer<'a> {
    fn new(name: &'a str, kept: &'a Detached) -> HeldAnswer<'a> {
        HeldAnswer {
            name,
            owner: kept.owner.as_str(),
            fence: kept.fence.get(),
            ttl_ms: humanize::millis(kept.ttl),
        }
    }
}
