//! What proofs against a real server need: the server, a backend on it, and a runtime for both.

use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_testkit::RedisServer;

use super::Redis;
use windlass_core::Fence;
use windlass_core::name::Name;
use windlass_core::store::{Backend, GrantListener};

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}
    fn missed(&self) {}
}

/// A server of its own for each proof.
pub(super) struct Bed {
    runtime: tokio::runtime::Runtime,
    pub(super) server: RedisServer,
    pub(super) backend: Arc<dyn Backend>,
}

impl Bed {
    pub(super) fn start() -> Bed {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = RedisServer::start().unwrap();
        let (url, nobody): (_, Weak<Deaf>) = (server.url(), Weak::new());
        let open = Redis::open(&url, Duration::from_secs(5), rand::random(), nobody);
        let backend = runtime.block_on(open).unwrap();
        Bed {
            runtime,
            server,
            backend,
        }
    }

    /// Runs one case, on a name of its own.
    pub(super) fn case<F: Future>(
        &'static self,
        case: impl FnOnce(&'static Bed, Name) -> F,
    ) -> F::Output {
        let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
        self.runtime.block_on(case(self, name.unwrap()))
    }
}
