//! A Redis server with a store on it, and a runtime for both. Each test keeps one for all its
//! cases.

use std::sync::{Arc, Weak};
use std::time::Duration;

use windlass_testkit::RedisServer;

use crate::Redis;
use windlass_core::name::Name;
use windlass_core::store::{Backend, GrantListener, NoListener};

pub(super) struct RedisFixture {
    runtime: tokio::runtime::Runtime,
    pub(super) server: RedisServer,
    pub(super) url: String,
    pub(super) backend: Arc<dyn Backend>,
}

impl RedisFixture {
    pub(super) fn start() -> RedisFixture {
        let server = RedisServer::start().unwrap();
        let url = server.url();
        RedisFixture::with(server, &url, NoListener::weak())
    }

    pub(super) fn with(
        server: RedisServer,
        url: &str,
        listener: Weak<dyn GrantListener>,
    ) -> RedisFixture {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let open = Redis::open(url, Duration::from_secs(5), rand::random(), listener);
        let backend = runtime.block_on(open).unwrap();
        RedisFixture {
            runtime,
            server,
            url: url.to_owned(),
            backend,
        }
    }

    /// Runs one case under a name of its own: nothing is ever flushed.
    pub(super) fn case<F: Future>(
        &'static self,
        case: impl FnOnce(&'static RedisFixture, Name) -> F,
    ) -> F::Output {
        let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
        self.runtime.block_on(case(self, name.unwrap()))
    }

    /// The server's time in microseconds.
    pub(super) fn micros(&self) -> u64 {
        let script = "local t = redis.call('TIME') return t[1] .. ' ' .. t[2]";
        let text = self.server.command(&["EVAL", script, "0"]).unwrap();
        let (seconds, micros) = text.split_once(' ').unwrap();
        seconds.parse::<u64>().unwrap() * 1_000_000 + micros.parse::<u64>().unwrap()
    }
}
