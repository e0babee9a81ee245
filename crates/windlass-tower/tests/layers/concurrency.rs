//! `ConcurrencyLayer`.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::routing::get as route;
use http::StatusCode;
use tokio::sync::Semaphore;
use tower::ServiceExt as _;
use windlass::Coordinator;
use windlass_testkit::eventually;
use windlass_tower::{ConcurrencyLayer, Path};

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
