//! Sessions that are ended, servers that restart, standbys, poolers and short timeouts.

use std::time::Duration;

use windlass::{Coordinator, ErrorKind, Options};
use windlass_testkit::conformance::{SOON, wait_for_waiters};
use windlass_testkit::{PgBouncer, PoolMode, PostgresServer, eventually};

fn options() -> Options {
    Options::new().call_timeout(Duration::from_secs(5))
}

async fn cycle(w: &Coordinator, name: &str) -> windlass::Result<u64> {
    let guard = w.lock(name).acquire().await?;
    let fence = guard.fence().get();
    assert!(guard.release().await?.was_held());
    Ok(fence)
}

/// A waiter of another client is woken by the release, not by its heartbeat.
async fn hand_over_is_prompt(a: &Coordinator, b: &Coordinator, limit: Duration) {
    let ttl = Duration::from_secs(60);
    let guard = a.lock("hand-over").ttl(ttl).acquire().await.unwrap();
    let b = b.clone();
    let waiter = tokio::spawn(async move { b.lock("hand-over").ttl(ttl).acquire().await });
    wait_for_waiters(a, "hand-over", 1).await;
    assert!(guard.release().await.unwrap().was_held());
    let next = tokio::time::timeout(limit, waiter)
        .await
        .expect("woken")
        .unwrap()
        .unwrap();
    assert!(next.release().await.unwrap().was_held());
}

const END_SESSIONS: &str = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
                            WHERE application_name = 'windlass'";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_survives_ended_sessions() {
    let server = PostgresServer::start().unwrap();
    let (a, b) = (
        options().connect(&server.url()).await.unwrap(),
        options().connect(&server.url()).await.unwrap(),
    );
    let guard = a
        .lock("stock")
        .ttl(Duration::from_secs(3))
        .acquire()
        .await
        .unwrap();
    hand_over_is_prompt(&a, &b, SOON).await;
    for _ in 0..3 {
        server.sql(END_SESSIONS).unwrap();
        tokio::time::sleep(Duration::from_millis(400)).await;
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(
        guard.is_held() && guard.verify().await.unwrap(),
        "renewed on a new connection"
    );
    // The connection for wake-ups is back as well.
    let back = || async {
        let found = b.diagnose().await.unwrap();
        found
            .iter()
            .any(|it| it.topic == "wake-ups" && it.severity == windlass::Severity::Fine)
    };
    assert!(eventually(SOON * 2, back).await);
    hand_over_is_prompt(&a, &b, SOON).await;
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_survive_a_crash_and_fences_grow() {
    let server = PostgresServer::builder().durable().start().unwrap();
    let w = options().connect(&server.url()).await.unwrap();
    let before = cycle(&w, "fences").await.unwrap();
    let guard = w
        .lock("stock")
        .ttl(Duration::from_secs(30))
        .acquire()
        .await
        .unwrap();
    server.restart().unwrap();
    let verified = || async { guard.verify().await.is_ok_and(|held| held) };
    assert!(eventually(SOON * 2, verified).await, "the lock survives");
    let after = || async { cycle(&w, "fences").await.is_ok_and(|fence| fence > before) };
    assert!(eventually(SOON, after).await);
    // Raised to the clock: what a crash may have lost counts for nothing.
    let fence = cycle(&w, "fences").await.unwrap();
    assert!(fence > before + 100_000, "{fence} after {before}");
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_standby_continues_with_higher_fences() {
    let primary = PostgresServer::start().unwrap();
    let w = options().connect(&primary.url()).await.unwrap();
    cycle(&w, "fences").await.unwrap();
    let standby = PostgresServer::standby_of(&primary).unwrap();
    let e = options().connect(&standby.url()).await;
    // It has the schema, so connecting may succeed; a decision cannot.
    if let Ok(read_only) = e {
        let e = read_only.lock("stock").try_acquire().await.unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Unreachable, "{e:?}");
        assert!(e.hint().unwrap().contains("read-write"), "{e:?}");
    }
    let last = cycle(&w, "fences").await.unwrap();
    primary.kill().unwrap();
    standby.promote().unwrap();
    let after = options().connect(&standby.url()).await.unwrap();
    let fence = cycle(&after, "fences").await.unwrap();
    assert!(fence > last, "{fence} after {last}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_hosts_lead_to_the_primary() {
    let primary = PostgresServer::start().unwrap();
    let standby = PostgresServer::standby_of(&primary).unwrap();
    let url = primary.url();
    let hosts = format!("{},{}", standby.addr(), primary.addr());
    let url = url.replace(&primary.addr().to_string(), &hosts);
    let w = options()
        .connect(&format!("{url}?target_session_attrs=read-write"))
        .await
        .unwrap();
    cycle(&w, "stock").await.unwrap();
    let e = options()
        .connect(&format!("{url}?target_session_attrs=sideways"))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn transaction_pooling_works_with_and_without_a_direct_connection() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start(&server, PoolMode::Transaction, 3).unwrap();
    let direct = server
        .url()
        .replace(':', "%3A")
        .replace('/', "%2F")
        .replace('@', "%40");
    let with_listen = format!("{}?listen={direct}", pooler.url());
    // Without wake-ups, each hand-over takes up to a second.
    for (url, limit, clients) in [(with_listen, SOON, 20), (pooler.url(), SOON * 3, 2)] {
        let (a, b) = (
            options().connect(&url).await.unwrap(),
            options().connect(&url).await.unwrap(),
        );
        hand_over_is_prompt(&a, &b, limit).await;
        let tasks: Vec<_> = (0..clients)
            .map(|n| {
                let w = if n % 2 == 0 { a.clone() } else { b.clone() };
                tokio::spawn(async move {
                    for _ in 0..3 {
                        let guard = w
                            .lock("counted")
                            .ttl(Duration::from_secs(20))
                            .acquire()
                            .await
                            .unwrap();
                        assert!(guard.release().await.unwrap().was_held());
                        assert!(w.counter("cycles").add(1).await.unwrap().added);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(a.counter("cycles").reset().await.unwrap(), clients * 3);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_pooler_is_found_again() {
    let server = PostgresServer::start().unwrap();
    let pooler = PgBouncer::start(&server, PoolMode::Session, 20).unwrap();
    let w = options().connect(&pooler.url()).await.unwrap();
    let guard = w
        .lock("stock")
        .ttl(Duration::from_secs(20))
        .acquire()
        .await
        .unwrap();
    pooler.restart().unwrap();
    let verified = || async { guard.verify().await.is_ok_and(|held| held) };
    assert!(eventually(SOON, verified).await);
    assert!(guard.release().await.unwrap().was_held());
}

/// A statement that the server cancels has done nothing, and is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_statements_and_lock_timeouts_are_retryable() {
    let server = PostgresServer::start().unwrap();
    server
        .sql("CREATE ROLE hasty LOGIN SUPERUSER PASSWORD 'pw'")
        .unwrap();
    let first = options().connect(&server.url()).await.unwrap();
    cycle(&first, "stock").await.unwrap();
    for setting in ["statement_timeout", "lock_timeout"] {
        server
            .sql(&format!(
                "ALTER ROLE hasty RESET ALL; ALTER ROLE hasty SET {setting} = 300"
            ))
            .unwrap();
        let w = options()
            .connect(&server.url_of("hasty", "pw"))
            .await
            .unwrap();
        cycle(&w, "stock").await.unwrap();
        // Someone's transaction keeps the row.
        let (blocker, connection) = tokio_postgres::connect(&server.url(), tokio_postgres::NoTls)
            .await
            .unwrap();
        tokio::spawn(connection);
        blocker
            .batch_execute("BEGIN; SELECT * FROM windlass.lock WHERE name = 'stock' FOR UPDATE")
            .await
            .unwrap();
        let e = w.lock("stock").try_acquire().await.unwrap_err();
        assert!(e.is_retryable(), "{setting}: {e:?}");
        blocker.batch_execute("ROLLBACK").await.unwrap();
        cycle(&w, "stock").await.unwrap();
    }
}
