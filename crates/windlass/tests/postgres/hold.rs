//! `windlass.hold(name, fence)`: a transaction that commits only while the lock is held.

use std::time::Duration;

use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, NoTls};
use windlass::{Attempt, Coordinator, ErrorKind};
use windlass_testkit::conformance::{SOON, TestStore, wait_for_waiters};
use windlass_testkit::eventually;

const STALE: &str = "WL001";

/// A session of the application, beside Windlass.
async fn session(store: &TestStore) -> Client {
    let url = store.url().split('?').next().unwrap();
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Begins a transaction that checks the lock, as a user would.
async fn begin_and_hold(
    session: &Client,
    check: &windlass::SqlCheck,
) -> Result<(), tokio_postgres::Error> {
    session.batch_execute("BEGIN").await?;
    let row = session
        .query(check.statement(), &[&check.name(), &check.fence()])
        .await;
    row.map(drop)
}

async fn is_free(w: &Coordinator, name: &str) -> bool {
    let attempt = w.lock(name).ttl(Duration::from_secs(5)).try_acquire().await;
    match attempt.unwrap() {
        Attempt::Acquired(guard) => guard.release().await.unwrap().was_held(),
        Attempt::Busy(_) => false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_the_present_fence_passes() {
    let store = TestStore::postgres();
    let (w, app) = (store.connect().await, session(&store).await);
    let first = w.lock("stock").acquire().await.unwrap();
    let stale = first.sql_check().unwrap();
    begin_and_hold(&app, &stale).await.unwrap();
    app.batch_execute("COMMIT").await.unwrap();
    assert!(first.release().await.unwrap().was_held());

    let e = begin_and_hold(&app, &stale).await.unwrap_err();
    assert_eq!(
        e.code(),
        Some(&SqlState::from_code(STALE)),
        "released: {e:?}"
    );
    app.batch_execute("ROLLBACK").await.unwrap();

    let second = w.lock("stock").acquire().await.unwrap();
    let e = begin_and_hold(&app, &stale).await.unwrap_err();
    assert_eq!(
        e.code(),
        Some(&SqlState::from_code(STALE)),
        "replaced: {e:?}"
    );
    app.batch_execute("ROLLBACK").await.unwrap();
    begin_and_hold(&app, &second.sql_check().unwrap())
        .await
        .unwrap();
    app.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_claim_does_not_pass_and_is_not_granted_while_a_transaction_uses_it() {
    let store = TestStore::postgres();
    let (w, app) = (store.connect().await, session(&store).await);
    let ttl = Duration::from_millis(300);
    let lock = w.lock("stock").ttl(ttl).without_renewal();
    let guard = lock.acquire().await.unwrap();
    let check = guard.sql_check().unwrap();
    begin_and_hold(&app, &check).await.unwrap();
    guard.lost().await;
    // Its TTL has passed, but the transaction has not ended.
    tokio::time::sleep(ttl).await;
    assert!(
        !is_free(&w, "stock").await,
        "granted while a transaction relies on the lock"
    );
    app.batch_execute("COMMIT").await.unwrap();
    assert!(is_free(&w, "stock").await, "the transaction has ended");
    let e = begin_and_hold(&app, &check).await.unwrap_err();
    assert_eq!(e.code(), Some(&SqlState::from_code(STALE)), "{e:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_during_the_transaction_takes_effect_at_its_end() {
    let store = TestStore::postgres();
    let (w, other) = (store.connect().await, store.connect().await);
    let app = session(&store).await;
    let guard = w.lock("stock").acquire().await.unwrap();
    begin_and_hold(&app, &guard.sql_check().unwrap())
        .await
        .unwrap();
    let waiter = tokio::spawn(async move {
        other
            .lock("stock")
            .ttl(Duration::from_secs(2))
            .acquire()
            .await
    });
    wait_for_waiters(&w, "stock", 1).await;
    assert!(guard.release().await.unwrap().was_held());
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(
        !waiter.is_finished(),
        "granted before the transaction has ended"
    );
    app.batch_execute("COMMIT").await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.unwrap().unwrap();
    assert!(next.unwrap().release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_does_not_delay_renewals_or_other_locks() {
    let store = TestStore::postgres();
    let (w, app) = (store.connect().await, session(&store).await);
    let ttl = Duration::from_millis(600);
    let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    begin_and_hold(&app, &guard.sql_check().unwrap())
        .await
        .unwrap();
    tokio::time::sleep(ttl * 3).await;
    assert!(guard.is_held(), "a renewal waited for the transaction");
    for n in 0..16 {
        assert!(is_free(&w, &format!("other-{n}")).await);
    }
    app.batch_execute("COMMIT").await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rolled_back_transaction_frees_the_lock() {
    let store = TestStore::postgres();
    let (w, app) = (store.connect().await, session(&store).await);
    let guard = w.lock("stock").acquire().await.unwrap();
    begin_and_hold(&app, &guard.sql_check().unwrap())
        .await
        .unwrap();
    assert!(guard.release().await.unwrap().was_held());
    assert!(!is_free(&w, "stock").await);
    drop(app);
    assert!(eventually(SOON, || is_free(&w, "stock")).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn snapshot_isolation_is_refused_because_it_would_read_the_past() {
    let store = TestStore::postgres();
    let (w, app) = (store.connect().await, session(&store).await);
    let guard = w.lock("stock").acquire().await.unwrap();
    let check = guard.sql_check().unwrap();
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        let begin = format!("BEGIN ISOLATION LEVEL {level}");
        app.batch_execute(&begin).await.unwrap();
        let e = app.batch_execute(&check.to_string()).await.unwrap_err();
        assert_eq!(
            e.code(),
            Some(&SqlState::FEATURE_NOT_SUPPORTED),
            "{level}: {e:?}"
        );
        app.batch_execute("ROLLBACK").await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_is_quoted_and_other_stores_have_none() {
    let store = TestStore::postgres();
    let (w, app) = (store.connect().await, session(&store).await);
    let guard = w.lock("o'clock \\ \"x\"").acquire().await.unwrap();
    app.batch_execute(&guard.sql_check().unwrap().to_string())
        .await
        .unwrap();
    let memory = windlass::connect("memory:").await.unwrap();
    let guard = memory.lock("stock").acquire().await.unwrap();
    assert_eq!(
        guard.sql_check().unwrap_err().kind(),
        ErrorKind::Unsupported
    );
}
