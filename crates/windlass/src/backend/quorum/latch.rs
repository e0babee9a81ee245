//! Latches over a quorum: refused.

use super::{KIND, Quorum};
use crate::backend::refused::unsupported;
use crate::backend::{CountedDown, LatchState, LatchStore, LatchTerms, Pending, Reset};
use crate::error::Error;
use crate::name::Name;

fn refused() -> Error {
    unsupported(
        KIND,
        "latches",
        "each node counts for itself, and counts that meet on no common node add up on none",
    )
}

impl LatchStore for Quorum {
    fn reset(&self, _: LatchTerms, _: u32) -> Pending<'_, Reset> {
        Box::pin(std::future::ready(Err(refused())))
    }

    fn count_down(&self, _: LatchTerms, _: u32, _: u128) -> Pending<'_, CountedDown> {
        Box::pin(std::future::ready(Err(refused())))
    }

    fn look(&self, _: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(std::future::ready(Err(refused())))
    }
}
