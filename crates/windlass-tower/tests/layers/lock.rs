//! `LockLayer`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Body;
use axum::routing::get as route;
use axum::{Extension, Router};
use http::StatusCode;
use http_body_util::BodyExt as _;
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use windlass_testkit::{Direction, FaultProxy, eventually};
use windlass_tower::{
    BusyStatus, HoldUntil, LockLayer, OnLoss, OnMissingKey, Path, RequestLock, key_fn,
};

use crate::fixture::{SOON, Server, Store, ask, client, frames, get, send};

/// A handler that waits until it is let go.
struct Gated {
    app: Router,
    gate: Arc<Semaphore>,
    entered: Arc<Semaphore>,
}

fn gated(layer: LockLayer) -> Gated {
    let gate = Arc::new(Semaphore::new(0));
    let entered = Arc::new(Semaphore::new(0));
    let (inner_gate, inner_entered) = (Arc::clone(&gate), Arc::clone(&entered));
    let handler = move || async move {
        inner_entered.add_permits(1);
        inner_gate.acquire().await.unwrap().forget();
        "done"
    };
    let app = Router::new().route("/{*any}", route(handler)).layer(layer);
    Gated { app, gate, entered }
}

#[tokio::test]
async fn one_request_at_a_time_for_each_key() {
    for store in Store::each().await {
        let Gated { app, gate, entered } = gated(LockLayer::new(&store.w, "doc", Path));
        let first = tokio::spawn({
            let app = app.clone();
            async move { ask(&app, get("/a")).await }
        });
        entered.acquire().await.unwrap().forget();
        let busy = ask(&app, get("/a")).await;
        assert_eq!(
            (busy.status, busy.code()),
            (StatusCode::CONFLICT, "lock-busy".into())
        );
        let locked = LockLayer::new(&store.another().await, "doc", Path);
        let locked = gated(locked.busy_status(BusyStatus::Locked));
        assert_eq!(ask(&locked.app, get("/a")).await.status, StatusCode::LOCKED);
        // Another key is free.
        gate.add_permits(2);
        assert_eq!(ask(&app, get("/b")).await.status, StatusCode::OK);
        assert_eq!(first.await.unwrap().status, StatusCode::OK);
    }
}

#[tokio::test]
async fn waiting_requests_are_served_in_turn_with_growing_fences() {
    for store in Store::each().await {
        let running = Arc::new(AtomicU64::new(0));
        let fences = Arc::new(Mutex::new(Vec::new()));
        let (inside, seen) = (Arc::clone(&running), Arc::clone(&fences));
        let handler = move |Extension(lock): Extension<RequestLock>| async move {
            assert_eq!(
                inside.fetch_add(1, Ordering::SeqCst),
                0,
                "another request runs"
            );
            assert!(!lock.is_lost());
            tokio::task::yield_now().await;
            seen.lock().unwrap().push(lock.fence());
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        let layer = LockLayer::new(&store.w, "doc", Path).wait(SOON);
        let app = Router::new().route("/a", route(handler)).layer(layer);
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..20 {
            let app = app.clone();
            tasks.spawn(async move { ask(&app, get("/a")).await.status });
        }
        assert!(
            tasks
                .join_all()
                .await
                .iter()
                .all(|status| *status == StatusCode::OK)
        );
        let fences = fences.lock().unwrap();
        assert!(fences.len() == 20 && fences.is_sorted(), "{fences:?}");
    }
}

#[tokio::test]
async fn missing_key_is_refused_unless_another_policy_is_set() {
    let store = Store::memory().await;
    let layer = LockLayer::new(&store.w, "doc", key_fn(|_| None));
    let Gated { app, gate, .. } = gated(layer.clone());
    let reply = ask(&app, get("/a")).await;
    assert_eq!(
        (reply.status, reply.code()),
        (StatusCode::BAD_REQUEST, "missing-key".into())
    );
    drop(gate);
    let skip = gated(layer.on_missing_key(OnMissingKey::Skip));
    skip.gate.add_permits(1);
    assert_eq!(ask(&skip.app, get("/a")).await.status, StatusCode::OK);
}

/// The client sees the end of a response only after the release: it never finds its own lock busy.
#[tokio::test]
async fn next_request_of_the_same_client_never_finds_the_lock_busy() {
    for store in Store::each().await {
        for until in [HoldUntil::BodyEnd, HoldUntil::Response] {
            let layer = LockLayer::new(&store.w, &format!("{until:?}"), Path).hold_until(until);
            let app = Router::new()
                .route("/whole", route(|| async { "text" }))
                .route("/empty", route(|| async { StatusCode::NO_CONTENT }))
                .route(
                    "/streamed",
                    route(|| async { Body::new(frames(VecDeque::from(["a", "b"]).into_iter())) }),
                )
                .layer(layer);
            let server = Server::start(app).await;
            let client = client();
            for path in ["/whole", "/empty", "/streamed"] {
                for n in 0..30 {
                    let request = http::Request::get(path);
                    let reply = send(&client, server.address, request, "").await;
                    assert!(reply.status.is_success(), "{until:?} {path} {n}: {reply:?}");
                }
            }
        }
    }
}

#[tokio::test]
async fn lock_is_held_until_the_body_ends_or_the_response_is_returned() {
    for store in Store::each().await {
        for until in [HoldUntil::BodyEnd, HoldUntil::Response] {
            let layer = LockLayer::new(&store.w, &format!("{until:?}"), Path).hold_until(until);
            let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
            let app = Router::new().route("/a", route(endless)).layer(layer);
            let mut body = app.clone().oneshot(get("/a")).await.unwrap().into_body();
            body.frame().await.unwrap().unwrap();
            let status = app.clone().oneshot(get("/a")).await.unwrap().status();
            match until {
                HoldUntil::BodyEnd => assert_eq!(status, StatusCode::CONFLICT),
                _ => assert_eq!(status, StatusCode::OK),
            }
            // A dropped body releases the lock.
            drop(body);
            let free = eventually(SOON, || async {
                app.clone().oneshot(get("/a")).await.unwrap().status() == StatusCode::OK
            });
            assert!(free.await);
        }
    }
}

#[tokio::test]
async fn client_gone_in_mid_handler_releases_the_lock() {
    for store in Store::each().await {
        let Gated { app, gate, entered } = gated(LockLayer::new(&store.w, "doc", Path));
        let server = Server::start(app.clone()).await;
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        connection
            .write_all(b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n")
            .await
            .unwrap();
        entered.acquire().await.unwrap().forget();
        assert_eq!(ask(&app, get("/a")).await.status, StatusCode::CONFLICT);
        drop(connection);
        // Nobody lets the handler go: only its end by the disconnect releases the lock.
        let lock = store.w.lock("doc//a");
        let free = eventually(SOON, || async {
            lock.inspect().await.unwrap().holder.is_none()
        });
        assert!(free.await);
        gate.add_permits(1);
        assert_eq!(ask(&app, get("/a")).await.status, StatusCode::OK);
    }
}

#[tokio::test]
async fn panic_releases_the_lock() {
    let store = Store::memory().await;
    let count = Arc::new(AtomicU64::new(0));
    let handler = move || async move {
        assert!(
            count.fetch_add(1, Ordering::Relaxed) > 0,
            "the first handler panics"
        );
    };
    let layer = LockLayer::new(&store.w, "doc", Path);
    let app = Router::new().route("/a", route(handler)).layer(layer);
    let service = app.clone();
    let panicked = tokio::spawn(async move { ask(&service, get("/a")).await });
    assert!(panicked.await.unwrap_err().is_panic());
    let free = eventually(SOON, || async {
        ask(&app, get("/a")).await.status == StatusCode::OK
    });
    assert!(free.await);
}

#[tokio::test]
async fn loss_of_the_lease_cancels_or_marks_the_request() {
    for store in Store::each().await {
        for policy in [OnLoss::Cancel, OnLoss::Mark] {
            let entered = Arc::new(Semaphore::new(0));
            let inside = Arc::clone(&entered);
            let handler = move |Extension(lock): Extension<RequestLock>| async move {
                inside.add_permits(1);
                lock.lost().await;
                assert!(lock.is_lost());
                // A cancelled handler does not come further than this await.
                tokio::time::sleep(Duration::from_millis(100)).await;
                inside.add_permits(1);
                "marked"
            };
            let name = format!("{policy:?}");
            let layer = LockLayer::new(&store.w, &name, Path).on_loss(policy);
            let layer = layer.ttl(Duration::from_secs(2));
            let app = Router::new().route("/a", route(handler)).layer(layer);
            let call = tokio::spawn(async move { ask(&app, get("/a")).await });
            entered.acquire().await.unwrap().forget();
            let lock = store.another().await.lock(&format!("{name}//a"));
            assert!(lock.break_lock().await.unwrap().is_some());
            let reply = call.await.unwrap();
            match policy {
                OnLoss::Cancel => {
                    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
                    assert_eq!(reply.code(), "lease-lost");
                    assert_eq!(entered.available_permits(), 0);
                }
                _ => assert_eq!(reply.body, "marked"),
            }
        }
    }
}

#[tokio::test]
async fn loss_while_the_body_is_sent_ends_it_with_an_error() {
    let store = Store::memory().await;
    let layer = LockLayer::new(&store.w, "doc", Path).ttl(Duration::from_secs(2));
    let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
    let app = Router::new().route("/a", route(endless)).layer(layer);
    let mut body = app.oneshot(get("/a")).await.unwrap().into_body();
    body.frame().await.unwrap().unwrap();
    store
        .another()
        .await
        .lock("doc//a")
        .break_lock()
        .await
        .unwrap();
    let error = tokio::time::timeout(SOON, async {
        loop {
            match body.frame().await.unwrap() {
                Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                Err(error) => break error,
            }
        }
    });
    let error = error.await.unwrap().to_string();
    assert!(error.contains("lease was lost"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_store_refuses() {
    let store = Store::redis().await;
    let w = windlass::Options::new().call_timeout(Duration::from_millis(500));
    let w = w.connect(&store.url).await.unwrap();
    let Gated { app, entered, .. } = gated(LockLayer::new(&w, "doc", Path));
    store.server.as_ref().unwrap().kill().unwrap();
    let reply = ask(&app, get("/a")).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.code(), "store-unavailable");
    assert_eq!(entered.available_permits(), 0);
}

/// A client that stops reading keeps the body open: only the bound on the hold ends that.
#[tokio::test]
async fn lock_is_held_for_at_most_max_hold() {
    for store in Store::each().await {
        let layer = LockLayer::new(&store.w, "doc", Path);
        let layer = layer.max_hold(Duration::from_millis(300));
        let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
        let app = Router::new()
            .route("/a", route(endless))
            .route("/b", route(std::future::pending::<()>))
            .layer(layer);
        // Not read any further, and not dropped.
        let idle = app.clone().oneshot(get("/a")).await.unwrap();
        let free = eventually(SOON, || async {
            app.clone().oneshot(get("/a")).await.unwrap().status() == StatusCode::OK
        });
        assert!(free.await);
        let mut body = idle.into_body();
        let lost = tokio::time::timeout(SOON, async {
            while body.frame().await.unwrap().is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        });
        lost.await.expect("the body ends with an error");
        // A handler that takes longer is cancelled.
        let reply = ask(&app, get("/b")).await;
        assert_eq!(
            (reply.status, reply.code()),
            (StatusCode::SERVICE_UNAVAILABLE, "lease-lost".into())
        );
    }
}

#[tokio::test]
async fn client_gone_while_it_waits_leaves_the_queue() {
    for store in Store::each().await {
        let layer = LockLayer::new(&store.w, "doc", Path).wait(6 * SOON);
        let Gated { app, gate, entered } = gated(layer);
        let server = Server::start(app.clone()).await;
        let holder = tokio::spawn({
            let app = app.clone();
            async move { ask(&app, get("/a")).await }
        });
        entered.acquire().await.unwrap().forget();
        let mut connection = TcpStream::connect(server.address).await.unwrap();
        let request = b"GET /a HTTP/1.1\r\nhost: a\r\n\r\n";
        connection.write_all(request).await.unwrap();
        let lock = store.w.lock("doc//a");
        let waiting = |expected| {
            let lock = &lock;
            eventually(SOON, move || async move {
                lock.inspect().await.unwrap().waiters == expected
            })
        };
        assert!(waiting(1).await);
        drop(connection);
        assert!(waiting(0).await);
        gate.add_permits(1);
        assert_eq!(holder.await.unwrap().status, StatusCode::OK);
        // The request of the client that is gone does not run, and is not waited for.
        let free = eventually(SOON, || async {
            lock.inspect().await.unwrap().holder.is_none()
        });
        assert!(free.await);
        assert_eq!(entered.available_permits(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_store_still_excludes() {
    let store = Store::redis().await;
    let proxy = FaultProxy::start(store.server.as_ref().unwrap().addr()).unwrap();
    let w = windlass::connect(&format!("redis://{}", proxy.addr())).await;
    let w = w.unwrap();
    proxy.delay(Direction::ToClient, Duration::from_millis(200));
    let running = Arc::new(AtomicU64::new(0));
    let inside = Arc::clone(&running);
    let handler = move || async move {
        let others = inside.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        inside.fetch_sub(1, Ordering::SeqCst);
        others.to_string()
    };
    let layer = LockLayer::new(&w, "doc", Path).wait(SOON);
    let app = Router::new().route("/a", route(handler)).layer(layer);
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..4 {
        let app = app.clone();
        tasks.spawn(async move { ask(&app, get("/a")).await });
    }
    for reply in tasks.join_all().await {
        assert_eq!((reply.status, &reply.body[..]), (StatusCode::OK, &b"0"[..]));
    }
}

/// Redis without persistence: the lease is gone, and another request may get the lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_restarted_in_mid_handler_cancels_the_request() {
    let store = Store::redis().await;
    let layer = LockLayer::new(&store.w, "doc", Path).ttl(Duration::from_secs(2));
    let Gated { app, entered, gate } = gated(layer);
    let call = tokio::spawn({
        let app = app.clone();
        async move { ask(&app, get("/a")).await }
    });
    entered.acquire().await.unwrap().forget();
    let server = store.server.unwrap();
    let server = tokio::task::spawn_blocking(move || server.restart().map(|()| server));
    let _server = server.await.unwrap().unwrap();
    let reply = tokio::time::timeout(SOON, call).await.unwrap().unwrap();
    assert_eq!(
        (reply.status, reply.code()),
        (StatusCode::SERVICE_UNAVAILABLE, "lease-lost".into())
    );
    gate.add_permits(1);
    let free = eventually(SOON, || async {
        ask(&app, get("/a")).await.status == StatusCode::OK
    });
    assert!(free.await);
}
