//! A PostgreSQL server with a store on it, and a runtime for both. Each test keeps one for all its
//! cases.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::NoTls;
use windlass_testkit::PostgresServer;

use crate::Postgres;
use windlass_core::name::Name;
use windlass_core::store::{Backend, GrantListener, NoListener};

pub(super) struct PostgresFixture {
    runtime: tokio::runtime::Runtime,
    _server: PostgresServer,
    pub(super) backend: Arc<dyn Backend>,
    /// A connection beside the store.
    pub(super) direct: tokio_postgres::Client,
}

impl PostgresFixture {
    pub(super) fn start() -> PostgresFixture {
        PostgresFixture::with(NoListener::weak())
    }

    pub(super) fn with(listener: Weak<dyn GrantListener>) -> PostgresFixture {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let server = PostgresServer::start().unwrap();
        let url = server.url();
        // The wake-ups of the operations go to client 0.
        let open = Postgres::open(&url, Duration::from_secs(10), 0, listener);
        let backend = runtime.block_on(open).unwrap();
        let direct = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
            tokio::spawn(connection);
            client
        });
        PostgresFixture {
            runtime,
            _server: server,
            backend,
            direct,
        }
    }

    /// Runs one case under a name of its own: nothing is ever dropped.
    pub(super) fn case<F: Future>(
        &'static self,
        case: impl FnOnce(&'static PostgresFixture, Name) -> F,
    ) -> F::Output {
        let name = Name::new("test", None, &format!("case-{:x}", rand::random::<u128>()));
        self.runtime.block_on(case(self, name.unwrap()))
    }
}
