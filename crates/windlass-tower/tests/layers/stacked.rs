//! Layers inside one another, and inside routers.

use axum::Router;
use axum::body::Body;
use axum::routing::{get as get_route, post};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use windlass::Quota;
use windlass_testkit::eventually;
use windlass_tower::{ConcurrencyLayer, LimitLayer, LockLayer, Rejection, key_fn};

use crate::fixture::{SOON, Store, ask, get};
use crate::idempotency::{layer, payment};

/// A refusal of an inner layer passes: stored, it would be the answer for a day.
#[tokio::test]
async fn refusals_of_inner_layers_are_not_stored() {
    for store in Store::each().await {
        // As final as a status can look.
        let final_status = |_: &Rejection| {
            let mut response = Response::new(Bytes::from_static(b"later"));
            *response.status_mut() = StatusCode::FORBIDDEN;
            response
        };
        let handler = Router::new().route("/pay", post(|| async { "paid" }));
        let lock = LockLayer::new(&store.w, "accounts", key_fn(|_| Some("ann".to_owned())));
        let concurrency = ConcurrencyLayer::new(&store.w, "pay", 1).reject_with(final_status);
        let limit = LimitLayer::new(&store.w, "pay", Quota::per_second(2).burst(1));
        let limit = limit.reject_with(final_status);

        let held = store.w.lock("accounts/ann").acquire().await.unwrap();
        let app = handler.clone().layer(lock).layer(layer(&store.w));
        let busy = ask(&app, payment("lock", "a")).await;
        assert_eq!(
            (busy.status, busy.code()),
            (StatusCode::CONFLICT, "lock-busy".into())
        );
        assert!(held.release().await.unwrap().was_held());
        assert_eq!(ask(&app, payment("lock", "a")).await.body, "paid");

        let permit = store.w.semaphore("pay", 1).acquire().await.unwrap();
        let app = handler.clone().layer(concurrency).layer(layer(&store.w));
        assert_eq!(ask(&app, payment("permit", "a")).await.body, "later");
        assert!(permit.release().await.unwrap().was_held());
        assert_eq!(ask(&app, payment("permit", "a")).await.body, "paid");

        let app = handler.layer(limit).layer(layer(&store.w));
        assert_eq!(ask(&app, payment("first", "a")).await.body, "paid");
        let runs = eventually(SOON, || async {
            ask(&app, payment("limit", "a")).await.body == "paid"
        });
        assert!(runs.await, "the refusal was stored");
    }
}

/// `application/grpc` on a request that is not gRPC's does not hide a refusal in a 200.
#[tokio::test]
async fn only_grpc_requests_get_a_grpc_status() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "api", Quota::per_hour(1));
    let app = Router::new().route("/", get_route(|| async {}).post(|| async {}));
    let app = app.layer(layer);
    assert_eq!(ask(&app, get("/")).await.status, StatusCode::OK);
    let request = |method: &str, content: &str| {
        let request = Request::builder().method(method).uri("/");
        let request = request.header("content-type", content);
        request.body(Body::empty()).unwrap()
    };
    for (method, content) in [
        ("GET", "application/grpc"),
        ("POST", "application/grpc "),
        ("POST", "application/grpc x"),
        ("POST", "application/grpc-web"),
        ("POST", "application/grpcx"),
    ] {
        let reply = ask(&app, request(method, content)).await;
        assert_eq!(
            reply.status,
            StatusCode::TOO_MANY_REQUESTS,
            "{method} {content:?}"
        );
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    for content in [
        "application/grpc",
        "application/grpc+proto",
        "application/grpc;a=b",
    ] {
        let reply = ask(&app, request("POST", content)).await;
        assert_eq!(reply.status, StatusCode::OK, "{content}");
        assert_eq!(reply.header("grpc-status"), Some("8"), "{content}");
    }
}
