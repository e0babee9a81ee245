//! A Redis server that stops answering, and comes back.

use std::time::Duration;

use windlass::Options;
use windlass_testkit::{RedisServer, eventually};

use super::Recorded;

#[tokio::test]
async fn outage_shows_as_failed_renewals_a_loss_and_a_reconnect() {
    let recorded = Recorded::start();
    let server = RedisServer::start().unwrap();
    let options = Options::new().call_timeout(Duration::from_millis(500));
    let w = options.connect(&server.url()).await.unwrap();
    let connections = recorded.sum("windlass_connections_total", "redis");
    assert!(connections >= 1.0);
    assert_eq!(recorded.sum("windlass_reconnects_total", "redis"), 0.0);
    let ttl = Duration::from_secs(2);
    let guard = w.lock("a").ttl(ttl).acquire().await.unwrap();
    server.kill().unwrap();
    guard.lost().await;
    assert_eq!(recorded.sum("windlass_lost_total", "lock expired"), 1.0);
    assert!(recorded.sum("windlass_renewal_failures_total", "lock") >= 1.0);
    let calls = |values| recorded.sum("windlass_store_call_seconds_count", values);
    assert!(calls("redis renew error") + calls("redis renew timeout") >= 1.0);
    assert!(recorded.sum("windlass_connection_failures_total", "redis") >= 1.0);
    server.restart().unwrap();
    let limit = Duration::from_secs(20);
    let back = eventually(limit, async || w.lock("b").acquire().await.is_ok()).await;
    assert!(back);
    assert!(recorded.sum("windlass_reconnects_total", "redis") >= 1.0);
    assert!(recorded.sum("windlass_connections_total", "redis") > connections);
    drop(guard);
    assert_eq!(recorded.sum("windlass_lost_total", ""), 1.0);
}
