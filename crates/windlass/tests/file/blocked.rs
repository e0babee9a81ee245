//! A process that stops within a transaction keeps the file to itself.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::Connection;
use windlass::{ErrorKind, connect};

use super::child::url;

/// A transaction that stays open, as that of a frozen process.
fn block(path: &Path) -> Connection {
    let database = Connection::open(path).unwrap();
    database.busy_timeout(Duration::from_secs(5)).unwrap();
    database.execute_batch("BEGIN IMMEDIATE").unwrap();
    database
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leases_outlast_a_blocked_file_and_the_blocker_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(60);
    let guard = w.lock("bystander").ttl(ttl).acquire().await.unwrap();
    let blocker = block(&path);
    let started = Instant::now();
    let e = w.lock("stock").try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    let pid = std::process::id().to_string();
    assert!(e.to_string().contains(&format!("process {pid}")), "{e}");
    assert!(e.hint().unwrap().contains(&pid), "{e:?}");
    assert!(started.elapsed() < ttl / 3, "{:?}", started.elapsed());
    // To open the file is no different.
    let e = connect(&url(&path)).await.unwrap_err();
    assert!(e.to_string().contains(&format!("process {pid}")), "{e}");
    assert!(guard.is_held());
    drop(blocker);
    assert!(guard.release().await.unwrap().was_held());
}
