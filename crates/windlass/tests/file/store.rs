//! Behaviour specific to the file store.

use std::fs;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use windlass::{ErrorKind, Fence, Severity, connect};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::eventually;

fn url(path: &Path) -> String {
    format!("file:{}", path.display())
}

#[tokio::test]
async fn foreign_files_are_rejected() {
    let folder = tempfile::tempdir().unwrap();
    let text = folder.path().join("notes.txt");
    fs::write(
        &text,
        "not a database, but long enough to have been one".repeat(50),
    )
    .unwrap();
    let before = fs::read(&text).unwrap();
    let e = connect(&url(&text)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
    assert_eq!(fs::read(&text).unwrap(), before, "left as it was");

    let foreign = folder.path().join("app.db");
    let app = Connection::open(&foreign).unwrap();
    app.execute_batch("CREATE TABLE customers (id INTEGER); INSERT INTO customers VALUES (1)")
        .unwrap();
    drop(app);
    let e = connect(&url(&foreign)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
    assert!(e.to_string().contains("another program"), "{e}");
    let app = Connection::open(&foreign).unwrap();
    let mode: String = app
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .unwrap();
    assert_eq!(mode, "delete", "not even the journal mode was changed");

    let newer = folder.path().join("newer.db");
    connect(&url(&newer)).await.unwrap();
    Connection::open(&newer)
        .unwrap()
        .pragma_update(None, "user_version", 99)
        .unwrap();
    let e = connect(&url(&newer)).await.unwrap_err();
    assert!(e.to_string().contains("99"), "{e}");
}

/// A damaged file grants nothing, and the error says what to do.
#[tokio::test]
async fn damaged_file_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("before").acquire().await.unwrap();
    let fence = guard.fence();
    assert!(guard.release().await.unwrap().was_held());
    let database = Connection::open(&path).unwrap();
    let sql = "PRAGMA wal_checkpoint(TRUNCATE)";
    let busy = || database.query_row(sql, [], |row| row.get::<_, bool>(0));
    assert!(eventually(SOON, async || !busy().unwrap()).await);
    // All but the first page, which identifies the database.
    let mut bytes = fs::read(&path).unwrap();
    assert!(bytes.len() > 8192);
    bytes[4096..].fill(0xff);
    let path = folder.path().join("damaged.db");
    fs::write(&path, bytes).unwrap();
    let e = match connect(&url(&path)).await {
        Ok(w) => w.lock("after").acquire().await.unwrap_err(),
        Err(e) => e,
    };
    assert_eq!(e.kind(), ErrorKind::Store, "{e}");
    assert!(e.to_string().contains("the file is damaged"), "{e}");
    assert!(e.hint().unwrap().contains("move it away"), "{e:?}");
    // Following the hint helps.
    for name in ["damaged.db", "damaged.db-wal", "damaged.db-shm"] {
        let _ = fs::rename(
            folder.path().join(name),
            folder.path().join(name.to_owned() + ".old"),
        );
    }
    let w = connect(&url(&path)).await.unwrap();
    assert!(w.lock("after").acquire().await.unwrap().fence() > fence);
}

#[tokio::test]
async fn unusable_paths_are_explained() {
    let folder = tempfile::tempdir().unwrap();
    let e = connect(&url(folder.path())).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    let e = connect(&url(&folder.path().join("no/such/folder.db")))
        .await
        .unwrap_err();
    assert!(e.to_string().contains("does not exist"), "{e}");
    // Not even root can write there.
    let e = connect("file:/sys/kernel/windlass.db").await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
    assert!(e.hint().unwrap().contains("writable"), "{e:?}");
}

/// The worst case of a power failure: every commit since the last sync is lost.
#[tokio::test]
async fn fences_survive_a_power_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let files = ["windlass.db", "windlass.db-wal"];
    drop(connect(&url(&path)).await.unwrap());
    // Ahead of the clock, which may be wrong after the failure.
    let ahead = "UPDATE fences SET last = last + 3600000000, ceiling = last + 3660000000";
    let database = Connection::open(&path).unwrap();
    database.execute(ahead, []).unwrap();
    drop(database);
    let w = connect(&url(&path)).await.unwrap();
    let synced: Vec<_> = files
        .iter()
        .map(|f| fs::read(folder.path().join(f)).unwrap())
        .collect();
    let mut last = None;
    for _ in 0..50 {
        let guard = w.lock("stock").acquire().await.unwrap();
        last = Some(guard.fence());
        assert!(guard.release().await.unwrap().was_held());
    }
    drop(w);

    let after = tempfile::tempdir().unwrap();
    for (file, bytes) in files.iter().zip(synced) {
        fs::write(after.path().join(file), bytes).unwrap();
    }
    let path = after.path().join("windlass.db");
    another_boot(&path);
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(
        Some(guard.fence()) > last,
        "{:?} after {last:?}",
        guard.fence()
    );
}

#[tokio::test]
async fn fences_too_high_to_be_exact_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let w = connect(&url(&path)).await.unwrap();
    let set = "UPDATE fences SET last = ?1, ceiling = ?1 + 1000000";
    let database = Connection::open(&path).unwrap();
    database
        .execute(set, [Fence::MAX.get() as i64 - 1])
        .unwrap();
    drop(database);
    let guard = w.lock("stock").acquire().await.unwrap();
    assert_eq!(guard.fence(), Fence::MAX);
    let e = w.lock("other").acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Store, "{e}");
    assert!(e.to_string().contains("above the highest"), "{e}");
    let found = w.diagnose().await.unwrap();
    let found = found.iter().find(|finding| finding.topic == "last fence");
    assert_eq!(found.unwrap().severity, Severity::Problem);
}

#[tokio::test]
async fn reboot_frees_locks_and_keeps_gates() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    let fence = guard.fence();
    assert!(w.gate("stock").admit(fence).await.unwrap().is_admitted());
    let detached = guard.detach().await.unwrap();
    let jobs = w.semaphore("jobs", 3).without_renewal();
    std::mem::forget(jobs.acquire_many(3).await.unwrap());
    w.latch("ready").reset(2).await.unwrap();
    w.latch("ready").count_down().await.unwrap();
    drop((w, jobs));
    another_boot(&path);
    let w = connect(&url(&path)).await.unwrap();
    let permits = w.semaphore("jobs", 4).try_acquire_many(4).await.unwrap();
    assert!(!permits.is_busy(), "nobody can hold it, or needs its size");
    assert_eq!(w.latch("ready").count_down().await.unwrap(), 0, "counted");
    let guard = w
        .lock("stock")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .expect("nobody can hold it");
    assert!(guard.fence() > detached.fence);
    assert!(
        w.gate("stock")
            .admit(guard.fence())
            .await
            .unwrap()
            .is_admitted()
    );
    assert!(
        !w.gate("stock").admit(fence).await.unwrap().is_admitted(),
        "remembered"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_first_opens_succeed() {
    for _ in 0..20 {
        let folder = tempfile::tempdir().unwrap();
        let url = url(&folder.path().join("windlass.db"));
        let opening: Vec<_> = (0..12)
            .map(|_| {
                let url = url.clone();
                tokio::spawn(async move { connect(&url).await.map(drop) })
            })
            .collect();
        for opened in opening {
            opened
                .await
                .unwrap()
                .expect("no matter who creates the tables");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_concurrent_wake_ups_all_arrive() {
    const LOCKS: u64 = 200;
    let folder = tempfile::tempdir().unwrap();
    let url = url(&folder.path().join("windlass.db"));
    let (a, b) = (connect(&url).await.unwrap(), connect(&url).await.unwrap());
    let mut held = Vec::new();
    for i in 0..LOCKS {
        held.push(a.lock(&format!("stock-{i}")).acquire().await.unwrap());
    }
    let waiting: Vec<_> = (0..LOCKS)
        .map(|i| {
            let b = b.clone();
            tokio::spawn(async move { b.lock(&format!("stock-{i}")).acquire().await.map(drop) })
        })
        .collect();
    for i in 0..LOCKS {
        wait_for_waiters(&a, &format!("stock-{i}"), 1).await;
    }
    drop(held);
    let all = async {
        for waiter in waiting {
            waiter.await.unwrap().unwrap();
        }
    };
    // Heartbeats would take ten seconds.
    tokio::time::timeout(SOON, all)
        .await
        .expect("woken, all of them");
}

#[tokio::test]
async fn fences_are_reserved_again_when_exhausted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let w = connect(&url(&path)).await.unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
    let database = Connection::open(&path).unwrap();
    database
        .execute("UPDATE fences SET last = ceiling", [])
        .unwrap();
    // At most one rejection, because fences above the reserved ceiling would not survive a power
    // failure.
    let first = w.lock("x").try_acquire().await.map(drop);
    let second = w.lock("y").try_acquire().await.map(drop);
    assert!(second.is_ok(), "{first:?}, then {second:?}");
}

/// A file of the first format, with a held lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_file_format_is_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(60);
    let held = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    let detached = held.detach().await.unwrap();
    drop(w);
    {
        // Removes what later versions have added.
        let database = Connection::open(&path).unwrap();
        let tables = "SELECT name FROM sqlite_schema
                      WHERE type = 'table' AND name NOT IN ('claims', 'gates', 'fences')";
        let mut query = database.prepare(tables).unwrap();
        let added = query.query_map([], |row| row.get(0)).unwrap();
        let added: Vec<String> = added.map(Result::unwrap).collect();
        drop(query);
        for table in added {
            let drop = format!("DROP TABLE {table}");
            database.execute_batch(&drop).unwrap();
        }
        database.execute_batch("PRAGMA user_version = 1").unwrap();
    }
    let w = connect(&url(&path)).await.unwrap();
    assert!(w.lock("stock").try_acquire().await.unwrap().is_busy());
    let taken = w.lock("stock").attach(detached.owner.as_str()).await;
    assert_eq!(taken.unwrap().fence(), detached.fence);
    drop(w.semaphore("jobs", 2).acquire().await.unwrap());
    w.latch("ready").reset(1).await.unwrap();
    let version =
        Connection::open(&path)
            .unwrap()
            .pragma_query_value(None, "user_version", |row| row.get::<_, i32>(0));
    assert!(version.unwrap() > 1);
}

/// The second format lacks the holds of limiters, and encodes a few values in another way.
#[tokio::test]
async fn second_file_format_is_upgraded() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.db");
    let w = connect(&url(&path)).await.unwrap();
    let space = w.permissions("repos").levels(["no", "read"]);
    let space = space.resources(["repo1"]).define().await.unwrap();
    space.set("piers", "repo1", "read").await.unwrap();
    let added = w.counter("hits").add_once("first", 5).await.unwrap();
    assert_eq!(added.value, 5);
    let limiter = w.limiter("api", windlass::Quota::per_hour(1).fixed_window());
    assert!(limiter.check("ann").await.unwrap().is_allowed());
    drop((space, w));
    Connection::open(&path)
        .unwrap()
        .execute_batch(
            "DROP TABLE limit_holds;
             ALTER TABLE counter_ops DROP COLUMN number;
             ALTER TABLE counter_ops DROP COLUMN added;
             UPDATE limits SET state = 'w1';
             UPDATE spaces SET schema = replace(schema, 'windlass-perm-2 ', 'windlass-perm-1 ');
             PRAGMA user_version = 2",
        )
        .unwrap();

    let w = connect(&url(&path)).await.unwrap();
    let space = w.permissions("repos").open().await.unwrap();
    assert!(space.check("piers", "repo1", "read").await.unwrap());
    let again = w.counter("hits").add_once("first", 5).await.unwrap();
    assert_eq!((again.value, again.repeated), (5, true));
    let limiter = w.limiter("api", windlass::Quota::per_hour(1).fixed_window());
    assert!(limiter.check("ann").await.unwrap().is_allowed());
    assert!(!limiter.check("ann").await.unwrap().is_allowed());
}

/// The boot clock starts again, and with it the windows: what a hold has charged can still be refunded.
#[tokio::test]
async fn hold_is_settled_after_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("budget.db");
    let ttl = Duration::from_secs(600);
    let quotas = [
        windlass::Quota::per_day(100).fixed_window(),
        windlass::Quota::per_day(100),
        windlass::Quota::per_day(100).sliding_log(),
    ];
    let w = connect(&url(&path)).await.unwrap();
    let limiter = w.limiter("tokens", quotas);
    let held = limiter.reserve_estimate("ann", 60, ttl).await.unwrap();
    let owner = held.held().unwrap().owner().clone();
    drop((limiter, w));
    another_boot(&path);
    let w = connect(&url(&path)).await.unwrap();
    let limiter = w.limiter("tokens", quotas);
    let settled = limiter.settle("ann", &owner, 10).await.unwrap();
    let settled = settled.settled().unwrap();
    assert!(settled.quotas().iter().all(|quota| quota.charged == 10));
    assert_eq!(settled.remaining(), 90);
}

/// A killed subscriber is removed at the next notification for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_subscribers_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("news.db");
    let w = connect(&url(&path)).await.unwrap();
    let database = Connection::open(&path).unwrap();
    let insert = "INSERT INTO watchers (channel, client) VALUES ('latch ready', 12345)";
    database.execute(insert, []).unwrap();
    w.latch("ready").reset(1).await.unwrap();
    let forgotten = eventually(Duration::from_secs(5), || async {
        let count = "SELECT count(*) FROM watchers";
        database.query_row(count, [], |row| row.get::<_, i64>(0)) == Ok(0)
    });
    assert!(forgotten.await);
}

fn another_boot(path: &Path) {
    let database = Connection::open(path).unwrap();
    database
        .execute("UPDATE fences SET boot = 'an earlier one'", [])
        .unwrap();
}

/// A client with a deleted file open would be alone with it.
#[tokio::test]
async fn deleted_file_is_detected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(3);
    let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    for file in ["windlass.db", "windlass.db-wal", "windlass.db-shm"] {
        fs::remove_file(folder.path().join(file)).unwrap();
    }

    let other = connect(&url(&path)).await.unwrap();
    let second = other.lock("stock").acquire().await.unwrap();
    assert!(second.fence() > guard.fence(), "a new file counts on");
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    let busy = w.lock("stock").try_acquire().await.unwrap();
    assert!(busy.is_busy(), "both look at the same file again");
    assert!(second.release().await.unwrap().was_held());
    let third = w.lock("stock").acquire().await.unwrap();
    assert!(third.release().await.unwrap().was_held());
}
