//! What a store decides about what is to be done once.

use std::fmt;
use std::time::Duration;

use super::Pending;
use crate::Fence;
use crate::name::Name;

/// Records of what was done, and is not to be done again.
pub trait OnceStore: Send + Sync + fmt::Debug {
    /// Looks at the record of a key.
    fn look(&self, key: Name) -> Pending<'_, Option<OnceRecord>>;

    /// Whoever holds the key with this fence is about to begin.
    fn start(
        &self,
        key: Name,
        fence: Fence,
        payload: [u8; 32],
        keep: Duration,
    ) -> Pending<'_, OnceStart>;

    /// Keeps the result of whoever began with this fence, unless somebody with a higher one began since.
    fn finish(
        &self,
        key: Name,
        fence: Fence,
        result: Vec<u8>,
        keep: Duration,
    ) -> Pending<'_, OnceFinish>;

    /// Forgets the key: with a fence, only if whoever began with it was the last to begin and has no result.
    fn forget(&self, key: Name, fence: Option<Fence>) -> Pending<'_, bool>;
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceRecord {
    /// The fence of whoever began last.
    pub fence: Fence,
    /// The digest of what it was asked to do.
    pub payload: [u8; 32],
    /// What came of it; `None` while it is being done, or if whoever began has died.
    pub result: Option<Vec<u8>>,
}

/// What a store says to whoever wants to begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceStart {
    /// Go ahead.
    Go,
    /// It was done before.
    Done(Vec<u8>),
    /// The key was used for something else.
    OtherPayload,
    /// Somebody with a higher fence has begun.
    Stale,
}

/// What a store says to whoever has a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceFinish {
    /// It is kept.
    OnceFinish,
    /// Somebody else's was kept before.
    Done(Vec<u8>),
    /// Somebody with a higher fence has begun, or the key was forgotten.
    Stale,
}
