//! Passwords, rights, schemas and versions.

use std::time::Duration;

use windlass::{ErrorKind, Options, Severity};
use windlass_testkit::PostgresServer;

fn options() -> Options {
    Options::new().call_timeout(Duration::from_secs(10))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_password_is_denied_and_never_printed() {
    let server = PostgresServer::start().unwrap();
    let e = options()
        .connect(&server.url_of("windlass", "s3cret-typo"))
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e:?}");
    assert!(!format!("{e} {e:?}").contains("s3cret"), "{e:?}");
    let e = options()
        .connect("postgres://ann:s3cret@127.0.0.1:1/x")
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e:?}");
    assert!(!format!("{e} {e:?}").contains("s3cret"), "{e:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unix_socket_works() {
    let server = PostgresServer::start().unwrap();
    let w = options().connect(&server.socket_url()).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
}

/// An application needs no right on the tables.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn role_with_usage_of_the_schema_can_do_everything_but_create_it() {
    let server = PostgresServer::start().unwrap();
    server
        .sql("CREATE ROLE app LOGIN PASSWORD 'app-pw'")
        .unwrap();
    let url = server.url_of("app", "app-pw");
    let e = options().connect(&url).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e:?}");
    assert!(e.hint().unwrap().contains("migrations"), "{e:?}");

    let sql = windlass::postgres::migrations("windlass", None).unwrap();
    server.sql(&sql).unwrap();
    let e = options().connect(&url).await.unwrap_err();
    assert_eq!(
        e.kind(),
        ErrorKind::AccessDenied,
        "no right to use it: {e:?}"
    );

    server.sql("GRANT USAGE ON SCHEMA windlass TO app").unwrap();
    let w = options().connect(&url).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.verify().await.unwrap());
    guard.renew().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    let permit = w.semaphore("jobs", 2).acquire().await.unwrap();
    assert!(permit.release().await.unwrap().was_held());
    assert_eq!(w.counter("visits").add(2).await.unwrap().value, 2);
    assert!(w.seen("mails").first("m1").await.unwrap());
    let admitted = w.gate("g").admit(windlass::Fence::new(5)).await.unwrap();
    assert!(admitted.is_admitted());
    w.diagnose().await.unwrap();
    let denied = server
        .sql("SET ROLE app; SELECT * FROM windlass.lock")
        .unwrap_err();
    assert!(denied.to_string().contains("permission denied"), "{denied}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schemas_are_separate_and_newer_versions_are_refused() {
    let server = PostgresServer::start().unwrap();
    let (a, b) = (
        format!("{}?schema=a", server.url()),
        format!("{}?schema=b%20c", server.url()),
    );
    let (first, second) = (
        options().connect(&a).await.unwrap(),
        options().connect(&b).await.unwrap(),
    );
    let held = first.lock("stock").acquire().await.unwrap();
    let other = second.lock("stock").try_acquire().await.unwrap().acquired();
    assert!(other.is_some(), "another schema, another lock");
    drop(held);
    server
        .sql("UPDATE a.schema_version SET version = version + 1")
        .unwrap();
    let e = options().connect(&a).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Store, "{e:?}");
    assert!(e.to_string().contains("version"), "{e}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_connect_at_once_create_the_schema_once() {
    let server = PostgresServer::start().unwrap();
    let connecting: Vec<_> = (0..8)
        .map(|_| {
            let url = server.url();
            tokio::spawn(async move { options().connect(&url).await })
        })
        .collect();
    for connected in connecting {
        let w = connected.await.unwrap().unwrap();
        let guard = w.lock("stock").acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn doctor_warns_about_lost_commits() {
    let server = PostgresServer::start().unwrap();
    let w = options().connect(&server.url()).await.unwrap();
    let found = w.diagnose().await.unwrap();
    let of = |topic: &str| {
        found
            .iter()
            .find(|it| it.topic == topic)
            .map(|it| it.severity)
    };
    assert_eq!(of("version"), Some(Severity::Fine), "{found:?}");
    assert_eq!(
        of("persistence"),
        Some(Severity::Problem),
        "fsync is off: {found:?}"
    );
    assert_eq!(of("wake-ups"), Some(Severity::Fine), "{found:?}");
    assert_eq!(of("last fence"), Some(Severity::Fine), "{found:?}");
}
