//! Files that other programs remove or replace; [`damaged`] and [`emptied`] ones.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use tempfile::TempDir;
use windlass::{Attempt, ErrorKind, Fence, connect};
use windlass_testkit::conformance::SOON;
use windlass_testkit::eventually;

mod damaged;
mod emptied;

use super::child::{said, start, url};

/// A file with its tables, which no process has open.
async fn create(folder: &Path) -> PathBuf {
    let path = folder.join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    drop(w);
    wait_until_closed(folder).await;
    path
}

async fn wait_until_closed(folder: &Path) {
    let log = folder.join("locks.db-wal");
    assert!(eventually(SOON, async || !log.exists()).await);
}

async fn next_fence(path: &Path) -> Fence {
    let w = connect(&url(path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    let fence = guard.fence();
    assert!(guard.release().await.unwrap().was_held());
    fence
}

fn fence_of(said: &str) -> Fence {
    Fence::new(said.parse().unwrap())
}

/// Processes that still have the old log open would be alone with it.
#[tokio::test]
async fn removed_log_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let holder = start(&[], "hold", &path);
    let fence = fence_of(&said(&holder, "held"));
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(folder.path().join(format!("locks.db{suffix}"))).unwrap();
    }
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.fence() > fence, "{:?} > {fence:?}", guard.fence());
    said(&holder, "lost");
    assert!(guard.release().await.unwrap().was_held());
}

/// The index that is left shows that transactions are missing.
#[tokio::test]
async fn log_removed_without_its_index_is_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let holder = start(&[], "hold", &path);
    said(&holder, "held");
    fs::remove_file(folder.path().join("locks.db-wal")).unwrap();
    let refused = eventually(SOON, async || {
        let e = connect(&url(&path)).await.expect_err("refused");
        // As long as the holder has not noticed, the index is in use and proves nothing.
        assert!(e.to_string().contains("log"), "{e}");
        assert!(
            e.hint().unwrap_or_default().contains("move it away"),
            "{e:?}"
        );
        e.to_string().contains("damaged")
    });
    assert!(refused.await);
    said(&holder, "lost");
    connect(&url(&path)).await.expect_err("still refused");
}

/// The log itself is still there, and a new index is made from it.
#[tokio::test]
async fn removed_index_of_the_log_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    for _ in 0..3 {
        fs::remove_file(folder.path().join("locks.db-shm")).unwrap();
        said(&start(&[], "try", &path), "busy");
        drop(w.lock("other").acquire().await.unwrap());
    }
    assert!(guard.release().await.unwrap().was_held());
    said(&start(&[], "try", &path), "free");
}

/// Clients of one process share the index of the log: none may use a removed one further.
#[tokio::test]
async fn removed_side_files_are_noticed_by_all_clients_of_a_process() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let (w, idle) = (
        connect(&url(&path)).await.unwrap(),
        connect(&url(&path)).await.unwrap(),
    );
    // The index counts frames, which the next log does not have.
    drop(w.lock("other").acquire().await.unwrap());
    assert!(!idle.lock("stock").try_acquire().await.unwrap().is_busy());
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(folder.path().join(format!("locks.db{suffix}"))).unwrap();
    }
    let guard = w.lock("stock").acquire().await.unwrap();
    said(&start(&[], "try", &path), "busy");
    assert!(idle.lock("stock").try_acquire().await.unwrap().is_busy());
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test]
async fn restored_older_copy_has_higher_fences() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let backup = folder.path().join("backup.db");
    fs::copy(&path, &backup).unwrap();
    let before = next_fence(&path).await;
    wait_until_closed(folder.path()).await;
    fs::copy(&backup, &path).unwrap();
    let after = next_fence(&path).await;
    assert!(after > before, "{after:?} after {before:?}");
}

/// The holder's claim is gone with the contents of the file, which is still the same file.
#[tokio::test]
async fn backup_copied_over_an_open_file_ends_claims() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let backup = folder.path().join("backup.db");
    fs::copy(&path, &backup).unwrap();
    let holder = start(&[], "hold", &path);
    let fence = fence_of(&said(&holder, "held"));
    let checkpoint = "PRAGMA wal_checkpoint(TRUNCATE)";
    let database = Connection::open(&path).unwrap();
    let busy = || database.query_row(checkpoint, [], |row| row.get::<_, bool>(0));
    assert!(eventually(SOON, async || !busy().unwrap()).await);
    drop(database);
    fs::copy(&backup, &path).unwrap();
    let after = next_fence(&path).await;
    assert!(after > fence, "{after:?} after {fence:?}");
    said(&holder, "lost");
}

/// The clock may have been set back since a fence was taken.
#[tokio::test]
async fn fences_ahead_of_the_clock_continue() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let database = Connection::open(&path).unwrap();
    let ahead = "UPDATE fences SET last = last + 3600000000, ceiling = ceiling + 3600000000
                 RETURNING last";
    let last: i64 = database.query_row(ahead, [], |row| row.get(0)).unwrap();
    drop(database);
    let first = next_fence(&path).await;
    assert!(first.get() > last as u64, "{first:?} after {last}");
    assert!(next_fence(&path).await > first);
}

/// The next renewal finds out, long before the lease expires.
#[tokio::test]
async fn removed_log_is_noticed_by_the_next_renewal() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(12);
    let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    for suffix in ["-wal", "-shm"] {
        fs::remove_file(folder.path().join(format!("locks.db{suffix}"))).unwrap();
    }
    // The one after it is due after another four seconds.
    let limit = ttl / 3 + Duration::from_secs(3);
    tokio::time::timeout(limit, guard.lost()).await.unwrap();
}
