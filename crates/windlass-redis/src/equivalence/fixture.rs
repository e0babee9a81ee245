//! A server, a store on it, and a runtime for both: each test has its own, which all its cases share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_testkit::RedisServer;

use crate::Redis;
use windlass_core::name::Name;
use windlass_core::store::{Backend, GrantListener, NoListener};

pub(super) struct Fixture {
    runtime: tokio::runtime::Runtime,
    pub(super) server: RedisServer,
    pub(super) backend: Arc<dyn Backend>,
}

impl Fixture {
    pub(super) fn start() -> Fixture {
        let server = RedisServer::start().unwrap();
        let url = server.url();
        Fixture::with(server, &url, NoListener::weak())
    }

    pub(super) fn with(
        server: RedisServer,
        url: &str,
        listener: Weak<dyn GrantListener>,
    ) -> Fixture {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let open = Redis::open(url, Duration::from_secs(5), rand::random(), listener);
        let backend = runtime.block_on(open).unwrap();
        Fixture {
            runtime,
            server,
            backend,
        }
    }

    /// Runs one case under a name of its own: nothing is ever flushed.
    pub(super) fn case<F: Future>(
        &'static self,
        case: impl FnOnce(&'static Fixture, Name) -> F,
    ) -> F::Output {
        let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
        self.runtime.block_on(case(self, name.unwrap()))
    }
}
