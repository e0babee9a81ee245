//! `IdempotencyLayer` when handlers are interrupted, clients go away, and the store fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::post;
use http::StatusCode;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use windlass::OnFailure;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

use crate::fixture::{MS, Reply, SOON, Server, Store, ask};
use crate::idempotency::{layer, payment};

/// The first call ends as `first` says; later ones succeed.
fn once_interrupted<F, Fut>(first: F) -> (Router, Arc<AtomicU64>)
where
    F: Fn() -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = ()> + Send,
{
    let count = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&count);
    let handler = move || async move {
        if counted.fetch_add(1, Ordering::Relaxed) == 0 {
            first().await;
        }
        "done"
    };
    (Router::new().route("/pay", post(handler)), count)
}

/// Repeats until the key is not in flight any more, and the store answers: an interrupted request ends in the background.
async fn settled(app: &Router) -> Reply {
    let reply = std::sync::Mutex::new(None);
    let settled = eventually(SOON, || async {
        let repeat = ask(app, payment("key", "a")).await;
        let unsettled = [StatusCode::CONFLICT, StatusCode::SERVICE_UNAVAILABLE];
        let is_settled = !unsettled.contains(&repeat.status);
        *reply.lock().unwrap() = Some(repeat);
        is_settled
    });
    assert!(settled.await, "{reply:?}");
    reply.into_inner().unwrap().unwrap()
}

#[tokio::test]
async fn panic_leaves_the_key_free_or_failed() {
    for store in Store::each().await {
        for policy in [OnFailure::Retry, OnFailure::Keep] {
            let (app, count) = once_interrupted(|| async { panic!("the handler panics") });
            let w = store.another().await;
            let layer = windlass_tower::IdempotencyLayer::new(
                &w,
                &format!("{policy:?}"),
                windlass_tower::Everyone,
            );
            let app = app.layer(layer.on_interruption(policy));
            let service = app.clone();
            let panicked = tokio::spawn(service.oneshot(payment("key", "a")));
            assert!(panicked.await.unwrap_err().is_panic());
            let repeat = settled(&app).await;
            match policy {
                OnFailure::Retry => assert_eq!(repeat.body, "done"),
                _ => {
                    assert_eq!(repeat.status, StatusCode::INTERNAL_SERVER_ERROR);
                    assert_eq!(repeat.code(), "failed-before");
                }
            }
            let runs = if policy == OnFailure::Retry { 2 } else { 1 };
            assert_eq!(count.load(Ordering::Relaxed), runs);
        }
    }
}

#[tokio::test]
async fn timeout_leaves_the_key_free_or_failed() {
    for store in Store::each().await {
        for policy in [OnFailure::Retry, OnFailure::Keep] {
            let entered = Arc::new(tokio::sync::Notify::new());
            let inside = Arc::clone(&entered);
            let (app, count) = once_interrupted(move || {
                inside.notify_one();
                std::future::pending()
            });
            let layer = windlass_tower::IdempotencyLayer::new(
                &store.w,
                &format!("{policy:?}"),
                windlass_tower::Everyone,
            );
            let app = app.layer(layer.on_interruption(policy));
            // As tower's timeout does: the future is dropped.
            tokio::select! {
                reply = app.clone().oneshot(payment("key", "a")) => panic!("{reply:?}"),
                () = entered.notified() => {}
            }
            let repeat = settled(&app).await;
            match policy {
                OnFailure::Retry => assert_eq!(repeat.body, "done"),
                _ => assert_eq!(repeat.code(), "failed-before"),
            }
            let runs = if policy == OnFailure::Retry { 2 } else { 1 };
            assert_eq!(count.load(Ordering::Relaxed), runs);
        }
    }
}

/// The client closes its connection while the handler runs.
#[tokio::test]
async fn client_gone_in_mid_handler_leaves_the_key_free() {
    for store in Store::each().await {
        let entered = Arc::new(Semaphore::new(0));
        let inside = Arc::clone(&entered);
        let (app, count) = once_interrupted(move || {
            inside.add_permits(1);
            std::future::pending()
        });
        let app = app.layer(layer(&store.w));
        let server = Server::start(app.clone()).await;
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let request = "POST /pay HTTP/1.1\r\nhost: a\r\nx-account: ann\r\nidempotency-key: key\r\n\
                       content-length: 1\r\n\r\na";
        connection.write_all(request.as_bytes()).await.unwrap();
        entered.acquire().await.unwrap().forget();
        let busy = ask(&app, payment("key", "a")).await;
        assert_eq!(busy.status, StatusCode::CONFLICT);
        drop(connection);
        let repeat = settled(&app).await;
        assert_eq!(repeat.body, "done");
        assert_eq!(count.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_store_refuses_and_runs_nothing() {
    let store = Store::redis().await;
    let (app, count) = once_interrupted(|| async {});
    let w = windlass::Options::new()
        .call_timeout(500 * MS)
        .connect(&store.url)
        .await
        .unwrap();
    let app = app.layer(layer(&w));
    store.server.as_ref().unwrap().kill().unwrap();
    let reply = ask(&app, payment("key", "a")).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.code(), "store-unavailable");
    assert_eq!(count.load(Ordering::Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_store_runs_the_request_once() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = windlass::connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    proxy.delay(Direction::ToClient, 200 * MS);
    let (app, count) = once_interrupted(|| async {});
    let app = app.layer(layer(&w).wait(SOON));
    let (a, b) = tokio::join!(
        ask(&app, payment("key", "a")),
        ask(&app, payment("key", "a"))
    );
    assert_eq!((&a.body[..], &b.body[..]), (&b"done"[..], &b"done"[..]));
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// Redis without persistence: the lease is gone, and so is the record. The client gets its answer nevertheless.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_restarted_between_request_and_response_keeps_the_response() {
    let store = Store::redis().await;
    let server = Arc::new(store.server.unwrap());
    let restarted = Arc::clone(&server);
    let (app, count) = once_interrupted(move || {
        let server = Arc::clone(&restarted);
        async move {
            tokio::task::spawn_blocking(move || server.restart().unwrap())
                .await
                .unwrap();
        }
    });
    let app = app.layer(layer(&store.w).ttl(Duration::from_secs(30)));
    let reply = ask(&app, payment("key", "a")).await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (StatusCode::OK, &b"done"[..])
    );
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

/// Once the handler has returned, its response is stored, whether the client waits for it or not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn response_is_stored_though_the_client_is_gone() {
    let server = RedisServer::start().unwrap();
    let proxy = Arc::new(FaultProxy::start(server.addr()).unwrap());
    let w = windlass::connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let handled = Arc::new(tokio::sync::Notify::new());
    let (cut, is_handled) = (Arc::clone(&proxy), Arc::clone(&handled));
    let (app, count) = once_interrupted(move || {
        // The result cannot be stored at once.
        cut.refuse(true);
        cut.reset_all();
        is_handled.notify_one();
        std::future::ready(())
    });
    let app = app.layer(layer(&w));
    tokio::select! {
        biased;
        reply = app.clone().oneshot(payment("key", "a")) => panic!("{reply:?}"),
        () = handled.notified() => {}
    }
    proxy.refuse(false);
    let repeat = settled(&app).await;
    assert_eq!(
        repeat.header("idempotent-replayed"),
        Some("true"),
        "{repeat:?}"
    );
    assert_eq!(count.load(Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_store_starts_nothing_and_stores_what_was_started() {
    let store = Store::redis().await;
    let server = Arc::new(store.server.unwrap());
    let fill = move |limit: &'static str| {
        let set = ["CONFIG", "SET", "maxmemory", limit];
        server.command(&set).unwrap();
    };
    let fill_inside = fill.clone();
    let (app, count) = once_interrupted(move || {
        fill_inside("1");
        std::future::ready(())
    });
    let app = app.layer(layer(&store.w));
    let first = ask(&app, payment("key", "a")).await;
    assert_eq!(
        (first.status, &first.body[..]),
        (StatusCode::OK, &b"done"[..])
    );
    let repeat = ask(&app, payment("key", "a")).await;
    assert_eq!(
        repeat.header("idempotent-replayed"),
        Some("true"),
        "{repeat:?}"
    );
    let refused = ask(&app, payment("another", "a")).await;
    assert_eq!(refused.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(count.load(Ordering::Relaxed), 1);
    fill("0");
    assert_eq!(ask(&app, payment("another", "a")).await.body, "done");
}

/// A handler that has returned has done its work, also if its body takes a while: the client need not wait for it.
#[tokio::test]
async fn response_whose_body_comes_later_is_stored_though_the_client_is_gone() {
    for store in Store::each().await {
        let gate = Arc::new(Semaphore::new(0));
        let (returned, opened) = (Arc::new(Semaphore::new(0)), Arc::clone(&gate));
        let has_returned = Arc::clone(&returned);
        let count = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&count);
        let handler = move || async move {
            counted.fetch_add(1, Ordering::Relaxed);
            let (reader, mut writer) = tokio::io::duplex(64);
            tokio::spawn(async move {
                has_returned.add_permits(1);
                opened.acquire().await.unwrap().forget();
                let _ = writer.write_all(b"done").await;
            });
            Body::new(crate::fixture::Reading(reader))
        };
        let app = Router::new().route("/pay", post(handler));
        let app = app.layer(layer(&store.w));
        let call = app.clone();
        let call = tokio::spawn(async move { call.oneshot(payment("key", "a")).await.map(drop) });
        returned.acquire().await.unwrap().forget();
        call.abort();
        assert!(call.await.unwrap_err().is_cancelled());
        gate.add_permits(10);
        let repeat = settled(&app).await;
        assert_eq!(
            repeat.header("idempotent-replayed"),
            Some("true"),
            "{repeat:?}"
        );
        assert_eq!(repeat.body, "done");
        assert_eq!(count.load(Ordering::Relaxed), 1);
    }
}

/// A stream whose type does not say so: the client gets its beginning while the rest is still to come.
#[tokio::test(start_paused = true)]
async fn response_that_is_too_slow_is_passed_on_and_not_run_again() {
    let store = Store::memory().await;
    let gate = Arc::new(Semaphore::new(0));
    let opened = Arc::clone(&gate);
    let handler = move || async move {
        let (reader, mut writer) = tokio::io::duplex(64);
        tokio::spawn(async move {
            writer.write_all(b"first").await.unwrap();
            opened.acquire().await.unwrap().forget();
            writer.write_all(b" and last").await.unwrap();
        });
        Body::new(crate::fixture::Reading(reader))
    };
    let app = Router::new().route("/pay", post(handler));
    let app = app.layer(layer(&store.w));
    let response = app.clone().oneshot(payment("key", "a"));
    let response = tokio::time::timeout(Duration::from_secs(60), response).await;
    let response = response.expect("not held back").unwrap();
    gate.add_permits(1);
    assert_eq!(Reply::of(response).await.body, "first and last");
    let repeat = ask(&app, payment("key", "a")).await;
    assert_eq!(repeat.status, StatusCode::CONFLICT);
    assert_eq!(repeat.code(), "response-not-stored");
}

#[tokio::test(start_paused = true)]
async fn request_that_is_too_slow_gets_408_and_does_not_run() {
    let store = Store::memory().await;
    let (app, count) = once_interrupted(|| async {});
    let app = app.layer(layer(&store.w));
    let (reader, writer) = tokio::io::duplex(64);
    let slow = Body::new(crate::fixture::Reading(reader));
    let reply = ask(&app, payment("key", slow));
    let reply = tokio::time::timeout(Duration::from_secs(120), reply).await;
    let reply = reply.expect("not awaited forever");
    assert_eq!(reply.status, StatusCode::REQUEST_TIMEOUT);
    assert_eq!(reply.code(), "request-timeout");
    assert_eq!(count.load(Ordering::Relaxed), 0);
    drop(writer);
    assert_eq!(ask(&app, payment("key", "a")).await.body, "done");
}

/// A response that is not stored waits for the store as little as one that is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_response_does_not_wait_for_a_store_that_is_silent() {
    let server = RedisServer::start().unwrap();
    let proxy = Arc::new(FaultProxy::start(server.addr()).unwrap());
    let w = windlass::Options::new().call_timeout(Duration::from_secs(60));
    let w = w.connect(&format!("redis://{}", proxy.addr())).await;
    let w = w.unwrap();
    let cut = Arc::clone(&proxy);
    let handler = move || async move {
        cut.blackhole(Direction::ToClient);
        StatusCode::INTERNAL_SERVER_ERROR
    };
    let app = Router::new().route("/pay", post(handler));
    let app = app.layer(layer(&w).ttl(Duration::from_secs(300)));
    let reply = tokio::time::timeout(SOON, ask(&app, payment("key", "a"))).await;
    let reply = reply.expect("not held back");
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
}
