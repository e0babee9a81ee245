//! `LimitLayer` when the store is dead, slow or restarted.

use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get as route;
use http::StatusCode;
use windlass::{OnStoreError, Options, Quota};
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};
use windlass_tower::LimitLayer;

use crate::fixture::{MS, SOON, ask, get};

fn app(layer: LimitLayer) -> Router {
    Router::new()
        .route("/", route(|| async { "hello" }))
        .layer(layer)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_store_refuses_allows_or_decides_locally() {
    let server = RedisServer::start().unwrap();
    let w = Options::new()
        .call_timeout(500 * MS)
        .connect(&server.url())
        .await
        .unwrap();
    let limit = LimitLayer::new(&w, "api", Quota::per_hour(2).fixed_window());
    let closed = app(limit.clone());
    let [deny, allow, local] = [OnStoreError::Deny, OnStoreError::Allow, OnStoreError::Local]
        .map(|policy| app(limit.clone().on_store_error(policy).call_timeout(200 * MS)));
    assert_eq!(ask(&closed, get("/")).await.status, StatusCode::OK);
    server.kill().unwrap();
    for app in [&closed, &deny] {
        let reply = ask(app, get("/")).await;
        // Not 429: it is not the client's fault.
        assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(reply.code(), "store-unavailable");
        assert!(reply.header("retry-after").is_some());
        assert_eq!(
            reply.header("ratelimit"),
            None,
            "nothing is known about the limit"
        );
        let text = String::from_utf8_lossy(&reply.body).into_owned();
        assert!(!text.contains(&server.port().to_string()), "{text}");
    }
    for _ in 0..5 {
        let reply = ask(&allow, get("/")).await;
        assert_eq!(reply.status, StatusCode::OK);
        assert_eq!(reply.header("ratelimit"), None);
    }
    for n in 0..4 {
        let reply = ask(&local, get("/")).await;
        assert_eq!(reply.status == StatusCode::OK, n < 2, "{n}");
        assert!(reply.header("ratelimit").is_some());
    }
    // When the store is back, it decides again.
    server.restart().unwrap();
    let back = eventually(SOON, || async {
        ask(&closed, get("/")).await.status == StatusCode::OK
    });
    assert!(back.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_store_delays_strict_requests_and_hardly_leased_ones() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = windlass::connect(&format!("redis://{}", proxy.addr()))
        .await
        .unwrap();
    let quota = Quota::per_second(1_000).burst(100_000);
    let strict = app(LimitLayer::new(&w, "strict", quota));
    let leased = app(LimitLayer::new(&w, "leased", quota).leased());
    for app in [&strict, &leased] {
        assert_eq!(ask(app, get("/")).await.status, StatusCode::OK);
    }
    proxy.delay(Direction::ToClient, 200 * MS);
    let begun = Instant::now();
    assert_eq!(ask(&strict, get("/")).await.status, StatusCode::OK);
    assert!(begun.elapsed() >= 200 * MS);
    // 500 requests, one after the other, in far less than 500 round trips.
    let begun = Instant::now();
    for _ in 0..500 {
        assert_eq!(ask(&leased, get("/")).await.status, StatusCode::OK);
    }
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "{:?}",
        begun.elapsed()
    );
    // A limit on the round trip, and a fallback.
    let local = LimitLayer::new(&w, "local", Quota::per_hour(1)).call_timeout(50 * MS);
    let local = app(local.on_store_error(OnStoreError::Local));
    assert_eq!(ask(&local, get("/")).await.status, StatusCode::OK);
    assert_eq!(
        ask(&local, get("/")).await.status,
        StatusCode::TOO_MANY_REQUESTS
    );
}

/// Redis without persistence forgets what was used. The response is not affected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_restarted_between_request_and_response_does_not_fail_the_request() {
    let server = std::sync::Arc::new(RedisServer::start().unwrap());
    let w = windlass::connect(&server.url()).await.unwrap();
    let restarted = std::sync::Arc::clone(&server);
    let handler = move || {
        let server = std::sync::Arc::clone(&restarted);
        async move {
            tokio::task::spawn_blocking(move || server.restart().unwrap())
                .await
                .unwrap();
            "done"
        }
    };
    let layer = LimitLayer::new(&w, "api", Quota::per_hour(10)).charge_status(|_| 2);
    let app = Router::new().route("/", route(handler)).layer(layer);
    let reply = ask(&app, get("/")).await;
    assert_eq!(
        (reply.status, &reply.body[..]),
        (StatusCode::OK, &b"done"[..])
    );
    assert!(reply.header("ratelimit").is_some());
    // The charge after the response reaches the new server, which knows nothing of the cost before it.
    let limiter = w.limiter("api", Quota::per_hour(10));
    let charged = eventually(SOON, || async {
        limiter
            .peek("")
            .await
            .is_ok_and(|decision| decision.remaining() == 8)
    });
    assert!(charged.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_store_refuses_or_decides_locally() {
    let server = RedisServer::start().unwrap();
    let w = windlass::connect(&server.url()).await.unwrap();
    let limit = LimitLayer::new(&w, "api", Quota::per_hour(2));
    let closed = app(limit.clone());
    let local = app(limit.on_store_error(OnStoreError::Local));
    let fill = |limit| {
        server
            .command(&["CONFIG", "SET", "maxmemory", limit])
            .unwrap()
    };
    fill("1");
    let reply = ask(&closed, get("/")).await;
    assert_eq!(reply.status, StatusCode::SERVICE_UNAVAILABLE);
    for n in 0..3 {
        assert_eq!(
            ask(&local, get("/")).await.status == StatusCode::OK,
            n < 2,
            "{n}"
        );
    }
    fill("0");
    let back = eventually(SOON, || async {
        ask(&closed, get("/")).await.status == StatusCode::OK
    });
    assert!(back.await);
}

/// A limit that is only tried out does not make requests wait for a store that does not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shadow_mode_does_not_wait_for_a_dead_store() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let w = Options::new().call_timeout(Duration::from_secs(5));
    let w = w.connect(&format!("redis://{}", proxy.addr())).await;
    let w = w.unwrap();
    let shadow = LimitLayer::new(&w, "tried", Quota::per_hour(1)).shadow();
    let shadows = [shadow.clone(), shadow.leased()].map(app);
    proxy.blackhole(Direction::ToClient);
    let begun = Instant::now();
    for _ in 0..10 {
        for app in &shadows {
            assert_eq!(ask(app, get("/")).await.status, StatusCode::OK);
        }
    }
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
}

/// Tokens that were prefetched are used; without any, the fallback decides.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leased_limit_without_the_store_falls_back() {
    let server = RedisServer::start().unwrap();
    let w = windlass::connect(&server.url()).await.unwrap();
    let limit = |name: &str| {
        let quota = Quota::per_hour(1_000).fixed_window();
        LimitLayer::new(&w, name, quota)
            .leased()
            .call_timeout(200 * MS)
    };
    let [deny, allow, local] = [OnStoreError::Deny, OnStoreError::Allow, OnStoreError::Local]
        .map(|policy| app(limit(&format!("{policy:?}")).on_store_error(policy)));
    let refuse = app(limit("refuse"));
    for app in [&deny, &allow, &local, &refuse] {
        assert_eq!(ask(app, get("/")).await.status, StatusCode::OK);
    }
    server.kill().unwrap();
    for app in [&deny, &refuse] {
        let refused = eventually(SOON, || async {
            let reply = ask(app, get("/")).await;
            reply.status == StatusCode::SERVICE_UNAVAILABLE && reply.code() == "store-unavailable"
        });
        assert!(refused.await);
    }
    let mut allowed = 0;
    for _ in 0..3_000 {
        assert_eq!(ask(&allow, get("/")).await.status, StatusCode::OK);
        allowed += u64::from(ask(&local, get("/")).await.status == StatusCode::OK);
    }
    // What was prefetched, and the quota of this process.
    assert!((1_000..2_000).contains(&allowed), "{allowed}");
}
