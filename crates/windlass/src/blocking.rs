//! For programs without async code: a coordinator with a runtime of its own.
//!
//! ```
//! # fn main() -> windlass::Result<()> {
//! let w = windlass::blocking::connect("memory:")?; // or file:locks.db, or redis://127.0.0.1
//! let guard = w.run(w.lock("invoice/42").acquire())?;
//! // … the work, for as long as it takes; send guard.fence() along with every write …
//! let _released = w.run(guard.release())?; // whether it was still held
//! # Ok(()) }
//! ```
//!
//! Every primitive is available, as in async code: [`run`](BlockingCoordinator::run) waits for any of their futures in
//! the calling thread. Leases are renewed by one thread in the background, also while the program does not call `run`.
//! Guards are the same as in async code, so a guard that is dropped is released in the background, and a guard can be
//! moved to another thread.

use std::future::Future;
use std::ops::Deref;
use std::sync::Arc;

use tokio::runtime::{Builder, Handle, Runtime};

use crate::{Coordinator, Options};
use windlass_core::error::{Error, ErrorKind, Result};

/// A [`Coordinator`] and the runtime that renews its leases. Clones share both; when the last one is dropped, leases that
/// are still held are no longer renewed, and end with their TTL.
#[derive(Clone, Debug)]
pub struct BlockingCoordinator {
    coordinator: Coordinator,
    runtime: Arc<RuntimeThread>,
}

/// Connects to the store that `url` names, as [`windlass::connect`](crate::connect) does.
///
/// # Errors
///
/// As [`windlass::connect`](crate::connect); also if it is called from async code, or the thread cannot be started.
pub fn connect(url: &str) -> Result<BlockingCoordinator> {
    connect_with(Options::new(), url)
}

/// The same, with options.
///
/// # Errors
///
/// See [`connect`].
pub fn connect_with(options: Options, url: &str) -> Result<BlockingCoordinator> {
    refuse_async_callers("connect")?;
    let mut runtime = Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).thread_name("windlass");
    let runtime = runtime.enable_all().build().map_err(|e| {
        Error::new(
            ErrorKind::Store,
            "connect",
            "the thread that renews leases cannot be started",
        )
        .with_source(e)
    })?;
    let coordinator = runtime.block_on(options.connect(url))?;
    let runtime = RuntimeThread {
        keeper_of: coordinator.clone(),
        runtime: Some(runtime),
    };
    Ok(BlockingCoordinator {
        coordinator,
        runtime: Arc::new(runtime),
    })
}

impl BlockingCoordinator {
    /// Waits in the calling thread until the future is done, and returns its result.
    ///
    /// A future that cannot fail is wrapped: `w.run(async { Ok(guard.lost().await) })`.
    ///
    /// # Errors
    ///
    /// The error of the future; or [`ErrorKind::InvalidInput`] if this is called from async code, where waiting would keep
    /// a thread of that runtime from working.
    pub fn run<T, E: From<Error>>(
        &self,
        future: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        refuse_async_callers("wait")?;
        self.runtime.get().block_on(future)
    }
}

/// All primitives.
impl Deref for BlockingCoordinator {
    type Target = Coordinator;

    fn deref(&self) -> &Coordinator {
        &self.coordinator
    }
}

fn refuse_async_callers(operation: &'static str) -> Result<()> {
    match Handle::try_current() {
        Err(_) => Ok(()),
        Ok(_) => Err(Error::invalid(
            operation,
            "windlass::blocking is for code that is not async, and a tokio runtime is running here",
        )
        .with_hint("use windlass::connect and .await")),
    }
}

#[derive(Debug)]
struct RuntimeThread {
    keeper_of: Coordinator,
    /// Always there until this is dropped.
    runtime: Option<Runtime>,
}

impl RuntimeThread {
    fn get(&self) -> &Handle {
        match &self.runtime {
            Some(runtime) => runtime.handle(),
            None => unreachable!("the runtime is taken on drop"),
        }
    }
}

impl Drop for RuntimeThread {
    /// Waits for releases of dropped guards, each bounded by the call timeout. In async code nothing may wait: there the
    /// leases end with their TTL.
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if Handle::try_current().is_err() {
            runtime.block_on(self.keeper_of.finish_releases());
        }
        // Dropping a runtime in async code panics; this does not.
        runtime.shutdown_background();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;
    use crate::{Attempt, Clock};

    #[test]
    fn lock_excludes_until_released() {
        let w = connect("memory:").unwrap();
        let guard = w.run(w.lock("l").acquire()).unwrap();
        let busy = w.run(w.lock("l").try_acquire()).unwrap();
        assert!(matches!(busy, Attempt::Busy(_)));
        let _ = w.run(guard.release()).unwrap();
        let again = w.run(w.lock("l").try_acquire()).unwrap();
        assert!(matches!(again, Attempt::Acquired(_)));
    }

    #[test]
    fn lease_is_renewed_while_nothing_is_run() {
        let clock = Clock::manual();
        let w = connect_with(Options::new().clock(clock.clone()), "memory:").unwrap();
        let lock = w.lock("l").ttl(Duration::from_secs(9));
        let guard = w.run(lock.acquire()).unwrap();
        // Three times the TTL.
        for _ in 0..9 {
            let (before, end) = (clock.now(), Instant::now() + Duration::from_secs(20));
            clock.advance(Duration::from_secs(3));
            assert_ne!(before, clock.now());
            while guard.remaining() < Duration::from_secs(7) {
                assert!(Instant::now() < end, "not renewed: {:?}", guard.remaining());
                std::thread::yield_now();
            }
        }
        assert!(w.run(guard.verify()).unwrap());
    }

    #[test]
    fn dropped_guard_is_released_before_the_runtime_ends() {
        let first = connect("memory:blocking-drop").unwrap();
        let second = connect("memory:blocking-drop").unwrap();
        drop(first.run(first.lock("l").acquire()).unwrap());
        drop(first);
        let attempt = second.run(second.lock("l").try_acquire()).unwrap();
        assert!(matches!(attempt, Attempt::Acquired(_)));
    }

    #[test]
    fn async_callers_are_refused() {
        let w = connect("memory:").unwrap();
        let runtime = Runtime::new().unwrap();
        runtime.block_on(async {
            let error = connect("memory:").unwrap_err();
            assert!(error.hint().unwrap().contains(".await"), "{error:?}");
            let error = w.run(w.lock("l").acquire()).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput);
            // Dropped in async code: does not panic.
            drop(w);
        });
    }
}
