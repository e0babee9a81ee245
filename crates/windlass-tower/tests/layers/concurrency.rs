//! `ConcurrencyLayer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::{get as route, post};
use http::StatusCode;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use windlass::Coordinator;
use windlass_testkit::eventually;
use windlass_tower::{ConcurrencyLayer, OnMissingKey, Path, key_fn};

use crate::fixture::{SOON, Store, ask, frames, get};

fn layer(w: &Coordinator) -> ConcurrencyLayer {
    ConcurrencyLayer::new(w, "reports", 3)
}

#[tokio::test]
async fn at_most_as_many_requests_as_permits_run_at_once() {
    for store in Store::each().await {
        let (running, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (inside, seen) = (Arc::clone(&running), Arc::clone(&most));
        let handler = move || async move {
            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
            seen.fetch_max(now, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        let app = Router::new().route("/", route(handler));
        // Two instances.
        let apps = [store.w.clone(), store.another().await]
            .map(|w| app.clone().layer(layer(&w).wait(SOON)));
        let mut tasks = tokio::task::JoinSet::new();
        for n in 0..40 {
            let app = apps[n % 2].clone();
            tasks.spawn(async move { ask(&app, get("/")).await.status });
        }
        assert!(
            tasks
                .join_all()
                .await
                .iter()
                .all(|status| *status == StatusCode::OK)
        );
        let most = most.load(Ordering::SeqCst);
        assert!((2..=3).contains(&most), "{most} at once");
    }
}

#[tokio::test]
async fn request_beyond_the_bound_gets_503_with_retry_after() {
    for store in Store::each().await {
        let gate = Arc::new(Semaphore::new(0));
        let entered = Arc::new(Semaphore::new(0));
        let (inner_gate, inner_entered) = (Arc::clone(&gate), Arc::clone(&entered));
        let handler = move |uri: http::Uri| async move {
            if uri.path() == "/a" {
                inner_entered.add_permits(1);
                inner_gate.acquire().await.unwrap().forget();
            }
        };
        let app = Router::new().route("/{*any}", route(handler));
        let bounded = layer(&store.w)
            .retry_after(Duration::from_millis(4_200))
            .key(Path);
        let app = app.layer(bounded);
        let calls: Vec<_> = (0..3)
            .map(|_| {
                let app = app.clone();
                tokio::spawn(async move { ask(&app, get("/a")).await })
            })
            .collect();
        entered.acquire_many(3).await.unwrap().forget();
        let reply = ask(&app, get("/a")).await;
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(
            (reply.code(), reply.header("retry-after")),
            ("too-many-concurrent".into(), Some("5"))
        );
        // Another key has permits of its own.
        assert_eq!(ask(&app, get("/b")).await.status, StatusCode::OK);
        // A caller that goes away gives its permit back.
        calls[0].abort();
        let semaphore = store.w.semaphore("reports//a", 3);
        let free = eventually(SOON, || async { semaphore.available().await.unwrap() == 1 });
        assert!(free.await);
        gate.add_permits(2);
        for call in calls.into_iter().skip(1) {
            assert_eq!(call.await.unwrap().status, StatusCode::OK);
        }
    }
}

/// A client that stops reading keeps the body open: only the bound on the hold ends that.
#[tokio::test]
async fn permit_is_held_for_at_most_max_hold() {
    for store in Store::each().await {
        let layer = ConcurrencyLayer::new(&store.w, "reports", 1);
        let layer = layer.max_hold(Duration::from_millis(300));
        let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
        let app = Router::new().route("/", route(endless)).layer(layer);
        let idle = app.clone().oneshot(get("/")).await.unwrap();
        let free = eventually(SOON, || async {
            app.clone().oneshot(get("/")).await.unwrap().status() == StatusCode::OK
        });
        assert!(free.await);
        drop(idle);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_store_refuses() {
    let store = Store::redis().await;
    let w = windlass::Options::new().call_timeout(Duration::from_millis(500));
    let w = w.connect(&store.url).await.unwrap();
    let runs = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&runs);
    let handler = move || async move { counted.fetch_add(1, Ordering::Relaxed).to_string() };
    let app = Router::new().route("/", route(handler)).layer(layer(&w));
    assert_eq!(ask(&app, get("/")).await.status, StatusCode::OK);
    store.server.as_ref().unwrap().kill().unwrap();
    let reply = ask(&app, get("/")).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(reply.code(), "store-unavailable");
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

/// Another request may have the place.
#[tokio::test]
async fn lost_permit_cancels_the_request() {
    let store = Store::redis().await;
    let entered = Arc::new(Semaphore::new(0));
    let inside = Arc::clone(&entered);
    let handler = move || async move {
        inside.add_permits(1);
        std::future::pending::<()>().await;
    };
    let layer = layer(&store.w).ttl(Duration::from_secs(2));
    let app = Router::new().route("/", route(handler)).layer(layer);
    let call = tokio::spawn(async move { ask(&app, get("/")).await });
    entered.acquire().await.unwrap().forget();
    store
        .server
        .as_ref()
        .unwrap()
        .command(&["FLUSHALL"])
        .unwrap();
    let reply = tokio::time::timeout(SOON, call).await.unwrap().unwrap();
    assert_eq!(
        (reply.status, reply.code()),
        (StatusCode::SERVICE_UNAVAILABLE, "lease-lost".into())
    );
}

#[tokio::test]
async fn permit_is_held_until_the_body_is_dropped() {
    for store in Store::each().await {
        let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
        let app = Router::new().route("/", route(endless));
        let app = app.layer(ConcurrencyLayer::new(&store.w, "reports", 1));
        let first = app.clone().oneshot(get("/")).await.unwrap();
        let busy = app.clone().oneshot(get("/")).await.unwrap();
        assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
        drop(first);
        let free = eventually(SOON, || async {
            app.clone().oneshot(get("/")).await.unwrap().status() == StatusCode::OK
        });
        assert!(free.await);
    }
}

#[tokio::test]
async fn requests_without_a_key_share_permits_are_refused_or_skipped() {
    let store = Store::memory().await;
    let app = |policy: Option<OnMissingKey>| {
        let layer = ConcurrencyLayer::new(&store.w, "reports", 1).key(key_fn(|_| None));
        let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
        Router::new()
            .route("/", route(endless))
            .layer(match policy {
                Some(policy) => layer.on_missing_key(policy),
                None => layer,
            })
    };
    let status = |app: Router| async { app.oneshot(get("/")).await.unwrap() };
    let first = status(app(None)).await;
    assert_eq!(first.status(), StatusCode::OK);
    let busy = status(app(None)).await;
    assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE);
    let refused = status(app(Some(OnMissingKey::Reject))).await;
    assert_eq!(refused.status(), StatusCode::BAD_REQUEST);
    let skipped = status(app(Some(OnMissingKey::Skip))).await;
    assert_eq!(skipped.status(), StatusCode::OK);
}

#[tokio::test]
async fn grpc_request_beyond_the_bound_gets_resource_exhausted() {
    let store = Store::memory().await;
    let layer = ConcurrencyLayer::new(&store.w, "reports", 1);
    let layer = layer.retry_after(Duration::from_millis(2_500));
    let endless = || async { Body::new(frames(std::iter::repeat("x"))) };
    let app = Router::new().route("/", post(endless)).layer(layer);
    let request = || {
        let request = http::Request::post("/").header("content-type", "application/grpc");
        request.body(Body::empty()).unwrap()
    };
    let first = app.clone().oneshot(request()).await.unwrap();
    assert!(first.headers().get("grpc-status").is_none());
    let busy = app.oneshot(request()).await.unwrap();
    assert_eq!(busy.status(), StatusCode::OK);
    assert_eq!(busy.headers()["grpc-status"], "8");
    assert_eq!(busy.headers()["grpc-retry-pushback-ms"], "2500");
    assert!(http_body::Body::is_end_stream(busy.body()));
}
