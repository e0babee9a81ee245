//! [`OnceGuard`]: the right to run the work, and how its result is stored.

use super::{Finished, Once, unpack};
use crate::lease::{Fence, RetryPolicy};
use crate::lock::LockGuard;
use crate::telemetry::OnceRecord;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::OnceFinish;

/// The backoff of storing a result, which is retried while the lease is held.
const STORE_RESULT_RETRY: RetryPolicy = RetryPolicy::tries(u32::MAX);

/// The right to run the work once. Dropping it lets the next caller run it.
#[derive(Debug)]
#[must_use = "dropping the guard lets others run the work"]
pub struct OnceGuard {
    /// Boxed, to keep [`Begun`] small.
    pub(super) once: Box<Once>,
    pub(super) name: Name,
    pub(super) lock: LockGuard,
    pub(super) record: OnceRecord,
}

impl OnceGuard {
    /// The fencing token: send it to what the work writes to.
    pub fn fence(&self) -> Fence {
        self.lock.fence()
    }

    /// The lease under which the work runs, with its loss signal.
    pub fn lease(&self) -> &LockGuard {
        &self.lock
    }

    /// Stores the result, and serves it to the waiters. Returns the result that counts: another caller's, if the lease
    /// was lost and that one was faster. A store that cannot be reached, or is full, is retried while
    /// the lease is held.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the result may or may not be stored; if not, the next caller runs the work again.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`] if the lease was lost and another caller has begun; [`ErrorKind::InvalidInput`] for a
    /// result of more than 16 MiB; the store's last error if the result cannot be stored. The work was done but its
    /// result is not stored then: for the rest of the TTL, which the error states, the work does not run again.
    pub async fn finish(self, result: &[u8]) -> Result<Finished> {
        self.store_result(b'+', result).await
    }

    /// Stores that the work failed, and the reason.
    ///
    /// # Errors and cancel safety
    ///
    /// As [`finish`](OnceGuard::finish).
    pub async fn fail(self, reason: &str) -> Result<Finished> {
        self.store_result(b'-', reason.as_bytes()).await
    }

    /// Forgets that the work began: the next caller starts again, with any payload.
    pub async fn forget(mut self) -> Result<()> {
        let (key, fence) = (&self.once.key, self.lock.fence());
        let reply = self.once.store.forget(self.name.clone(), Some(fence));
        self.once.coordinator.call("forget", key, reply).await?;
        self.record.outcome("forgotten");
        self.lock.release().await.map(drop)
    }

    async fn store_result(mut self, mark: u8, result: &[u8]) -> Result<Finished> {
        let once = &self.once;
        if result.len() > Once::MAX_RESULT_BYTES {
            let message = format!("a result of {} bytes exceeds 16 MiB", result.len());
            let error = Error::invalid("store the result", message);
            return Err(self.give_up(error));
        }
        let packed = [&[mark], result].concat();
        let (name, fence) = (self.name.clone(), self.lock.fence());
        let mut failures = 0;
        let reply = loop {
            let finish = once
                .store
                .finish(name.clone(), fence, packed.clone(), once.retention);
            let finish = once.coordinator.call("store the result", &once.key, finish);
            match finish.await {
                Ok(reply) => break reply,
                // Without a stored result the work would run again. Storing it twice is harmless.
                Err(e) if is_worth_retrying(&e, failures) && self.lock.is_held() => {
                    failures += 1;
                    let Some(pause) = STORE_RESULT_RETRY.pause_after(failures) else {
                        return Err(self.give_up(e));
                    };
                    once.coordinator.keeper().clock().sleep(pause).await;
                }
                Err(e) => return Err(self.give_up(e)),
            }
        };
        let finished = match reply {
            OnceFinish::Stored => {
                let outcome = if mark == b'+' { "done" } else { "failed" };
                self.record.outcome(outcome);
                unpack(packed)
            }
            OnceFinish::Done(other) => {
                self.record.outcome("replayed");
                unpack(other)
            }
            OnceFinish::Stale => {
                self.record.outcome("lost");
                return Err(once.lost());
            }
        };
        // The result is stored: it does not matter whether the lease was still held.
        let _ = self.lock.release().await;
        Ok(finished)
    }

    /// The work is done and its result is lost: keeps others from running it for the rest of the TTL.
    fn give_up(mut self, cause: Error) -> Error {
        self.record.outcome("error");
        let once = self.once;
        let kind = cause.kind();
        let held = self.lock.abandon();
        let message =
            format!("it was done, but its result cannot be stored; locked for {held:.0?} more");
        once.error(kind, &message)
            .with_hint("check what the work did before then: the next caller runs it again")
            .with_source(cause)
    }
}

/// A store that is full, for example, may accept the result a little later.
fn is_worth_retrying(e: &Error, failures: u32) -> bool {
    const MAX_STORE_FAILURES: u32 = 40;
    e.is_retryable() || (e.kind() == ErrorKind::Store && failures < MAX_STORE_FAILURES)
}
