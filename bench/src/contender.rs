//! The libraries under comparison: each acquires and releases one lock.

use std::sync::LazyLock;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, IntoConnectionInfo as _, ProtocolVersion};

use crate::Result;

const TTL: Duration = Duration::from_secs(30);

/// A lock implementation. Cloned once for each task.
pub(crate) trait Contender: Clone + Send + Sync + 'static {
    const NAME: &'static str;

    /// Acquires the lock, waiting as long as needed, calls `held`, and releases immediately.
    fn cycle(
        &self,
        name: &str,
        held: impl FnOnce() + Send,
    ) -> impl Future<Output = Result<()>> + Send;
}

/// Windlass with fences, queue and renewal, as by default.
#[derive(Clone, Debug)]
pub(crate) struct Windlass(windlass::Coordinator);

impl Windlass {
    pub(crate) async fn connect(url: &str) -> Result<Windlass> {
        Ok(Windlass(windlass::connect(url).await?))
    }
}

impl Contender for Windlass {
    const NAME: &'static str = "windlass";

    async fn cycle(&self, name: &str, held: impl FnOnce() + Send) -> Result<()> {
        let guard = self.0.lock(name).ttl(TTL).acquire().await?;
        held();
        match guard.release().await?.was_held() {
            true => Ok(()),
            false => Err("windlass lost a lock within a cycle".into()),
        }
    }
}

/// The Redlock library rslock, on a single server.
#[derive(Clone, Debug)]
pub(crate) struct Rslock(rslock::LockManager);

impl Rslock {
    pub(crate) fn connect(url: &str) -> Rslock {
        // Its defaults: three tries, up to 200 ms apart.
        Rslock(rslock::LockManager::new(vec![url]))
    }
}

impl Contender for Rslock {
    const NAME: &'static str = "rslock";

    async fn cycle(&self, name: &str, held: impl FnOnce() + Send) -> Result<()> {
        // Its `acquire` retries until it succeeds, and is its way to wait.
        let guard = self.0.acquire(name, TTL).await?;
        held();
        guard.release().await;
        Ok(())
    }
}

static RELEASE: LazyLock<redis::Script> = LazyLock::new(|| {
    redis::Script::new(
        "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end \
         return 0",
    )
});

/// The bare minimum of commands, as a baseline: not a usable lock.
#[derive(Clone, Debug)]
pub(crate) struct Bare(MultiplexedConnection);

impl Bare {
    pub(crate) async fn connect(url: &str) -> Result<Bare> {
        let info = url.into_connection_info()?;
        let settings = info.redis_settings().clone();
        let info = info.set_redis_settings(settings.set_protocol(ProtocolVersion::RESP3));
        let limit = Some(windlass::Options::DEFAULT_CALL_TIMEOUT);
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(limit)
            .set_response_timeout(limit);
        let mut connection = redis::Client::open(info)?
            .get_multiplexed_async_connection_with_config(&config)
            .await?;
        RELEASE.prepare_invoke().load_async(&mut connection).await?;
        Ok(Bare(connection))
    }
}

impl Contender for Bare {
    const NAME: &'static str = "bare commands";

    async fn cycle(&self, name: &str, held: impl FnOnce() + Send) -> Result<()> {
        let mut connection = self.0.clone();
        let owner = format!("{:032x}", rand::random::<u128>());
        let taken: bool = redis::cmd("SET")
            .arg(name)
            .arg(&owner)
            .arg("NX")
            .arg("PX")
            .arg(TTL.as_millis() as u64)
            .query_async(&mut connection)
            .await?;
        held();
        let deleted: u32 = redis::cmd("EVALSHA")
            .arg(RELEASE.get_hash())
            .arg(1)
            .arg(name)
            .arg(&owner)
            .query_async(&mut connection)
            .await?;
        match taken && deleted == 1 {
            true => Ok(()),
            false => Err("a bare lock was taken by another client".into()),
        }
    }
}
