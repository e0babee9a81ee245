//! By hand: what stays when windlass has ended, until its ttl is over.

mod acquire;
mod renew;

use serde::Serialize;
use windlass::Detached;

pub(super) use self::acquire::acquire;
pub(super) use self::renew::{release, renew};
use crate::words;

/// What a command by hand is about.
pub(super) struct Subject<'a> {
    pub(super) name: &'a str,
    /// The command for things of this kind: `lock`, `sem`, `rw`.
    pub(super) group: &'static str,
    /// What to type to acquire it, for suggestions.
    pub(super) acquire: String,
}

/// The answer to whoever holds it now.
#[derive(Serialize)]
struct Held<'a> {
    name: &'a str,
    owner: &'a str,
    fence: u64,
    ttl_ms: u64,
}

impl<'a> Held<'a> {
    fn new(name: &'a str, kept: &'a Detached) -> Held<'a> {
        Held {
            name,
            owner: kept.owner.as_str(),
            fence: kept.fence.get(),
            ttl_ms: words::millis(kept.ttl),
        }
    }
}
