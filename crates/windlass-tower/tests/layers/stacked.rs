//! Layers inside one another, and inside routers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::Body;
use axum::routing::{get as get_route, post};
use axum::{Extension, Router};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use windlass::{Decision, Quota};
use windlass_testkit::eventually;
use windlass_tower::{
    Charge, ConcurrencyLayer, Everyone, IdempotencyLayer, LimitLayer, LockLayer, OnMissingKey,
    Path, Rejection, key_fn,
};

use crate::axum_api;
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

/// `/7`, `/07` and `/%37` reach the handler with the same id.
#[tokio::test]
async fn path_key_is_the_decoded_text_and_the_example_locks_the_document() {
    let store = Store::memory().await;
    let held = store.w.lock("doc//a b/7").acquire().await.unwrap();
    let lock = LockLayer::new(&store.w, "doc", Path);
    let app = Router::new()
        .route("/{*any}", get_route(|| async {}))
        .layer(lock);
    for path in ["/a%20b/7", "/a%20b/%37", "/%61%20b%2f7"] {
        assert_eq!(
            ask(&app, get(path)).await.status,
            StatusCode::CONFLICT,
            "{path}"
        );
    }
    drop(held);

    let client = windlass_tower::ClientIp::new();
    let app = axum_api::router(&store.w, axum_api::limit(&store.w, client, 1_000));
    let write = |path: &str| Request::put(path).body(Body::from("text")).unwrap();
    assert_eq!(
        ask(&app, write("/documents/7")).await.status,
        StatusCode::OK
    );
    for path in [
        "/documents/07",
        "/documents/%37",
        "/documents/+7",
        "/documents/seven",
    ] {
        let reply = ask(&app, write(path)).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path}");
        assert_eq!(reply.code(), "missing-key", "{path}");
    }
}

/// axum's `nest` cuts the prefix off: two tenants must not share a limit or an idempotency key for that.
#[tokio::test]
async fn nested_routers_keep_their_prefix() {
    let store = Store::memory().await;
    let limit = LimitLayer::new(&store.w, "api", Quota::per_hour(1)).key(Path);
    let once = IdempotencyLayer::new(&store.w, "payments", Everyone);
    let tenant = |name: &'static str| {
        Router::new()
            .route("/limited", get_route(move || async move { name }))
            .layer(limit.clone())
            .route(
                "/pay",
                post(move || async move { name }).layer(once.clone()),
            )
    };
    let app = Router::new()
        .nest("/ann", tenant("ann"))
        .nest("/bob", tenant("bob"));
    for name in ["ann", "bob"] {
        let reply = ask(&app, get(&format!("/{name}/limited"))).await;
        assert_eq!(reply.body, name);
    }
    let pay = |name: &str| {
        let mut request = payment("key", "a");
        *request.uri_mut() = format!("/{name}/pay").parse().unwrap();
        request
    };
    assert_eq!(ask(&app, pay("ann")).await.body, "ann");
    let other = ask(&app, pay("bob")).await;
    assert_eq!(other.status, StatusCode::UNPROCESSABLE_ENTITY, "{other:?}");
}

/// A limit that is tried out changes nothing for the limits that are enforced.
#[tokio::test]
async fn shadow_mode_leaves_enforced_limits_alone() {
    let store = Store::memory().await;
    let enforced = Quota::per_hour(10);
    let shadow = LimitLayer::new(&store.w, "shadow", Quota::per_hour(100)).shadow();
    let rows = |Extension(decision): Extension<Decision>| async move {
        (Extension(Charge(4)), decision.remaining().to_string())
    };
    let app = Router::new()
        .route("/", get_route(rows))
        .layer(shadow)
        .layer(LimitLayer::new(&store.w, "enforced", enforced));
    // The handler sees the decision of the enforced limit.
    assert_eq!(ask(&app, get("/")).await.body, "9");
    // Both are charged: 1 before, 4 after.
    for (name, left) in [("enforced", 5), ("shadow", 95)] {
        let quota = Quota::per_hour(if name == "shadow" { 100 } else { 10 });
        let limiter = store.w.limiter(name, quota);
        let charged = eventually(SOON, || async {
            limiter.peek("").await.unwrap().remaining() == left
        });
        assert!(charged.await, "{name}: {:?}", limiter.peek("").await);
    }

    let keyless = LimitLayer::new(&store.w, "keyless", Quota::per_hour(1))
        .key(key_fn(|_| None))
        .on_missing_key(OnMissingKey::Reject)
        .shadow();
    let app = Router::new()
        .route("/", get_route(|| async {}))
        .layer(keyless.clone());
    assert_eq!(ask(&app, get("/")).await.status, StatusCode::OK);
    assert_eq!(keyless.shadow_denied(), 1);
}

/// The names of different layers and keys differ, whatever they contain.
#[tokio::test]
async fn keys_of_different_layers_and_requests_never_collide() {
    let store = Store::memory().await;
    let key = |key: &'static str| key_fn(move |_| Some(key.to_owned()));
    let outer = LockLayer::new(&store.w, "a", key("b/c"));
    let inner = LockLayer::new(&store.w, "a/b", key("c"));
    let app = Router::new().route("/", get_route(|| async { "both" }));
    let app = app.layer(inner).layer(outer);
    assert_eq!(ask(&app, get("/")).await.body, "both");

    // A request without a key, and one whose key is any text.
    let of_query = key_fn(|parts| parts.uri.query().map(|query| query.replace('+', " ")));
    let limit = LimitLayer::new(&store.w, "api", Quota::per_hour(1)).key(of_query);
    let app = Router::new()
        .route("/", get_route(|| async {}))
        .layer(limit);
    let long = "x".repeat(1_000);
    // The digest of the long key.
    let digest = "3668070a92f96267ac3d294efae4f46d7f01fb10284ca78fe04decdd253c5d34";
    for path in [
        "/",
        "/?(no+key)",
        &format!("/?{long}"),
        &format!("/?{digest}"),
    ] {
        assert_eq!(ask(&app, get(path)).await.status, StatusCode::OK, "{path}");
    }
}

/// No wait helps: the request is too large, and the store is well.
#[tokio::test]
async fn cost_beyond_any_limit_is_a_429_without_retry_after() {
    for store in Store::each().await {
        for cost in [11, Quota::MAX_UNITS + 1, u64::MAX] {
            let limit = LimitLayer::new(&store.w, "api", Quota::per_hour(10)).cost(move |_| cost);
            for limit in [limit.clone(), limit.leased()] {
                let app = Router::new()
                    .route("/", get_route(|| async {}))
                    .layer(limit);
                let reply = ask(&app, get("/")).await;
                assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS, "{cost}");
                assert_eq!(reply.header("retry-after"), None, "{cost}");
                assert_eq!(reply.code(), "rate-limited");
            }
        }
    }
}

/// A request that has no principal is refused before its body is read.
#[tokio::test]
async fn body_of_a_request_without_a_principal_is_not_read() {
    let store = Store::memory().await;
    let read = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&read);
    let body = std::iter::from_fn(move || {
        count.fetch_add(1, Ordering::Relaxed);
        (count.load(Ordering::Relaxed) < 100).then_some("x")
    });
    let mut request = payment("key", Body::new(crate::fixture::frames(body)));
    request.headers_mut().remove("x-account");
    let app = Router::new().route("/pay", post(|| async { "paid" }));
    let reply = ask(&app.layer(layer(&store.w)), request).await;
    assert_eq!(reply.code(), "missing-key");
    assert_eq!(read.load(Ordering::Relaxed), 0);
}
