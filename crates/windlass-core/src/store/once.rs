//! Idempotent execution: results by idempotency key.

use std::fmt;
use std::time::Duration;

use super::Pending;
use crate::Fence;
use crate::name::Name;

/// Stores one record for each idempotency key. The holder of the key's [claim](super::Kind::Once)
/// executes.
pub trait OnceStore: Send + Sync + fmt::Debug {
    /// Reads the record of a key.
    fn get(&self, key: Name) -> Pending<'_, Option<OnceRecord>>;

    /// Starts an execution by the holder of the key's claim with this fence.
    fn start(
        &self,
        key: Name,
        fence: Fence,
        payload: [u8; 32],
        keep: Duration,
    ) -> Pending<'_, OnceStart>;

    /// Stores the result of the execution that started with this fence, unless one with a higher
    /// fence has started since.
    fn finish(
        &self,
        key: Name,
        fence: Fence,
        result: Vec<u8>,
        keep: Duration,
    ) -> Pending<'_, OnceFinish>;

    /// Removes the record. With a fence, only if the execution with this fence was the last to
    /// start and has no result.
    fn forget(&self, key: Name, fence: Option<Fence>) -> Pending<'_, bool>;
}

/// The record of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnceRecord {
    /// The fence of the last execution that started.
    pub fence: Fence,
    /// The digest of the request.
    pub payload: [u8; 32],
    /// The result; `None` while it is executing, or if the executing process has died.
    pub result: Option<Vec<u8>>,
}

/// The decision about a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceStart {
    /// Execute.
    Go,
    /// It was done before, with this result.
    Done(Vec<u8>),
    /// The key was used for another request.
    OtherPayload,
    /// An execution with a higher fence has started.
    Stale,
}

/// The decision about a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OnceFinish {
    /// The result is stored.
    Stored,
    /// Another execution stored this result before.
    Done(Vec<u8>),
    /// An execution with a higher fence has started, or the record was removed.
    Stale,
}
