//! A replicated Redis whose master goes away, and what must not come of it.
//!
//! `WINDLASS_FIGURES=1 cargo test -p windlass --test redis_failover -- --nocapture` prints what was measured.

mod fences;
mod promotion;
mod replicas;

use std::sync::Arc;
use std::time::Duration;

use windlass::{Coordinator, Options};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{RedisReplicated, eventually_blocking};

const MS: Duration = Duration::from_millis(1);
/// Until sentinels have made another server the master, on a busy machine.
const PROMOTION: Duration = Duration::from_secs(60);
/// What is promised: until everything works again, once there is a new master.
const RESUMED: Duration = Duration::from_secs(10);

async fn connect(redis: &RedisReplicated) -> Coordinator {
    let options = Options::new().call_timeout(500 * MS);
    options.connect(&redis.url()).await.unwrap()
}

fn figure(what: &str, value: impl std::fmt::Debug) {
    if std::env::var_os("WINDLASS_FIGURES").is_some() {
        eprintln!("{what}: {value:?}");
    }
}

/// Cuts the replicas off, so that what the master does from now on is lost with it.
fn cut_replication(redis: &RedisReplicated) {
    for replica in redis.replicas().unwrap() {
        replica
            .command(&["CONFIG", "SET", "masteruser", "nobody"])
            .unwrap();
        replica
            .command(&["CONFIG", "SET", "masterauth", "wrong"])
            .unwrap();
    }
    let master = redis.master().unwrap();
    master
        .command(&["CLIENT", "KILL", "TYPE", "replica"])
        .unwrap();
    let cut = eventually_blocking(SOON, || {
        let info = master.command(&["INFO", "replication"]).unwrap();
        info.contains("connected_slaves:0")
    });
    assert!(cut, "the replicas are cut off");
}

fn heal_replication(redis: &RedisReplicated) {
    for server in redis.servers().iter().filter(|s| s.pid().is_some()) {
        server
            .command(&["CONFIG", "SET", "masteruser", ""])
            .unwrap();
        server
            .command(&["CONFIG", "SET", "masterauth", ""])
            .unwrap();
    }
}

fn blocking<T: Send + 'static>(
    redis: &Arc<RedisReplicated>,
    what: impl FnOnce(&RedisReplicated) -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let redis = Arc::clone(redis);
    tokio::task::spawn_blocking(move || what(&redis))
}
