//! A Redis Cluster whose masters die and whose slots move.
//!
//! `WINDLASS_FIGURES=1 cargo test -p windlass --test cluster -- --nocapture` prints measurements.

mod dead_master;
mod promotion;
mod slots;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use windlass::{Coordinator, Options};
use windlass_testkit::RedisCluster;

const MS: Duration = Duration::from_millis(1);
const PROMOTION: Duration = Duration::from_secs(60);
const RESUMED: Duration = Duration::from_secs(10);

async fn connect(cluster: &RedisCluster) -> Coordinator {
    let options = Options::new().call_timeout(500 * MS);
    options.connect(&cluster.url()).await.unwrap()
}

fn figure(what: &str, value: impl std::fmt::Debug) {
    if std::env::var_os("WINDLASS_FIGURES").is_some() {
        eprintln!("{what}: {value:?}");
    }
}

fn blocking<T: Send + 'static>(
    cluster: &Arc<RedisCluster>,
    what: impl FnOnce(&RedisCluster) -> T + Send + 'static,
) -> tokio::task::JoinHandle<T> {
    let cluster = Arc::clone(cluster);
    tokio::task::spawn_blocking(move || what(&cluster))
}
