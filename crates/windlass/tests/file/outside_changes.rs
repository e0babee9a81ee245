//! Files that other programs remove, restore or damage.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::Connection;
use windlass::{ErrorKind, Fence, connect};
use windlass_testkit::conformance::SOON;
use windlass_testkit::eventually;

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

/// A log whose end is gone would show an earlier state, in which held locks are free.
#[tokio::test]
async fn damaged_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let holder = start(&[], "detach", &path);
    let fence = fence_of(&said(&holder, "detached"));
    holder.kill9().unwrap();
    let files = ["locks.db", "locks.db-wal", "locks.db-shm"];
    let contents = files.map(|file| fs::read(folder.path().join(file)).unwrap());
    let log = contents[1].len();
    let copy = |damage: &dyn Fn(&mut Vec<u8>)| {
        let folder = tempfile::tempdir().unwrap();
        for (file, bytes) in files.iter().zip(&contents) {
            let mut bytes = bytes.clone();
            if file.ends_with("-wal") {
                damage(&mut bytes);
            }
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        folder
    };
    let intact = copy(&|_| {});
    said(&start(&[], "try", &intact.path().join("locks.db")), "busy");
    let mut damaged = Vec::new();
    for at in [9, 60, log / 3, log / 2, log - 100] {
        damaged.push(copy(&|bytes| bytes[at] ^= 0x40));
        damaged.push(copy(&|bytes| bytes.truncate(at)));
    }
    damaged.push(copy(&|bytes| bytes.clear()));
    for folder in damaged {
        // It stays refused: the first attempt to open it must not hide the damage.
        for _ in 0..2 {
            let e = connect(&url(&folder.path().join("locks.db"))).await;
            let e = e.expect_err("refused");
            assert_eq!(e.kind(), ErrorKind::Store, "{e}");
            assert!(e.to_string().contains("damaged"), "{e}");
            assert!(e.hint().unwrap().contains("move it away"), "{e:?}");
        }
        for file in files {
            let _ = fs::remove_file(folder.path().join(file));
        }
        assert!(next_fence(&folder.path().join("locks.db")).await > fence);
    }
}

/// A kill at any moment is no damage, not even if it ends all processes at once.
#[tokio::test]
async fn log_of_killed_processes_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let mut counted = 0;
    for round in 0..20 {
        let children: Vec<_> = (0..3).map(|_| start(&[], "churn", &path)).collect();
        for child in &children {
            said(child, "ready");
        }
        // The kills hit other points of a transaction, of a checkpoint, of a restart of the log.
        tokio::time::sleep(Duration::from_millis(13 * round)).await;
        for child in &children {
            child.kill9().unwrap();
        }
        let w = connect(&url(&path)).await.expect("the log is whole");
        let rounds = w.counter("rounds").get().await.unwrap();
        assert!(rounds >= counted, "{rounds} after {counted}");
        counted = rounds;
    }
    assert!(counted > 0);
}

/// Nothing is left of a file that was emptied: its processes start again with higher fences.
#[tokio::test]
async fn emptied_file_ends_claims() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(3);
    let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    fs::write(&path, "").unwrap();
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
}
