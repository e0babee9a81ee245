//! `LimitLayer`: charging after the response.

use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;

use axum::body::Body;
use axum::routing::get as route;
use axum::{Extension, Router};
use http::{Request, Response, StatusCode};
use tokio::sync::Notify;
use tower::{Layer as _, ServiceExt as _};
use windlass::{Coordinator, Quota};
use windlass_testkit::eventually;
use windlass_tower::{Charge, LimitLayer};

use crate::fixture::{SOON, Store, ask, frames, get};

/// Waits until this number of units is left: charges are made in the background.
async fn wait_for_remaining(w: &Coordinator, name: &str, quota: Quota, expected: u64) {
    let limiter = w.limiter(name, quota);
    let charged = eventually(SOON, || async {
        limiter.peek("").await.unwrap().remaining() == expected
    });
    assert!(
        charged.await,
        "not {expected}: {:?}",
        limiter.peek("").await
    );
}

fn app(layer: LimitLayer) -> Router {
    Router::new()
        .route("/ok", route(|| async { "0123456789" }))
        .route("/denied", route(|| async { StatusCode::UNAUTHORIZED }))
        .route("/rows", route(|| async { (Extension(Charge(4)), "rows") }))
        .layer(layer)
}

#[tokio::test]
async fn failed_requests_are_charged_by_status() {
    for store in Store::each().await {
        let quota = Quota::per_hour(2).fixed_window();
        let layer = LimitLayer::new(&store.w, "login", quota);
        let failures = |status| u64::from(status == StatusCode::UNAUTHORIZED);
        let app = app(layer.cost(|_| 0).charge_status(failures));
        for _ in 0..5 {
            assert_eq!(ask(&app, get("/ok")).await.status, StatusCode::OK);
        }
        for left in [1, 0] {
            let reply = ask(&app, get("/denied")).await;
            assert_eq!(reply.status, StatusCode::UNAUTHORIZED);
            wait_for_remaining(&store.w, "login", quota, left).await;
        }
        // No failure is left: not even a good request comes through.
        let reply = ask(&app, get("/ok")).await;
        assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS);
        assert!(reply.header("retry-after").is_some());
    }
}

#[tokio::test]
async fn handler_charges_what_it_did_and_a_bucket_goes_into_debt() {
    for store in Store::each().await {
        let quota = Quota::per_hour(5);
        let app = app(LimitLayer::new(&store.w, "rows", quota));
        // 1 before, 4 after; then the next has nothing left.
        assert_eq!(ask(&app, get("/rows")).await.status, StatusCode::OK);
        wait_for_remaining(&store.w, "rows", quota, 0).await;
        assert_eq!(
            ask(&app, get("/rows")).await.status,
            StatusCode::TOO_MANY_REQUESTS
        );
        // Two more than there are: a debt, which makes the next request wait longer than for one unit.
        let quota = Quota::per_hour(3);
        let debtor = app_of(&store.w, "debt", quota);
        assert_eq!(ask(&debtor, get("/rows")).await.status, StatusCode::OK);
        wait_for_remaining(&store.w, "debt", quota, 0).await;
        let reply = ask(&debtor, get("/rows")).await;
        let wait: u64 = reply.header("retry-after").unwrap().parse().unwrap();
        // 1 + 4 of 3 were used: 3 units at 20 minutes each.
        assert!((3_500..=3_600).contains(&wait), "{wait}");
        // A window is emptied.
        let quota = Quota::per_hour(3).fixed_window();
        let window = app_of(&store.w, "window", quota);
        assert_eq!(ask(&window, get("/rows")).await.status, StatusCode::OK);
        wait_for_remaining(&store.w, "window", quota, 0).await;
    }
}

fn app_of(w: &Coordinator, name: &str, quota: Quota) -> Router {
    app(LimitLayer::new(w, name, quota))
}

#[tokio::test]
async fn bytes_are_charged_when_the_body_ends_or_is_dropped() {
    for store in Store::each().await {
        let quota = Quota::per_hour(100);
        let layer = LimitLayer::new(&store.w, "bytes", quota).cost(|_| 0);
        let app = app(layer.charge_bytes(4));
        assert_eq!(ask(&app, get("/ok")).await.body, "0123456789");
        wait_for_remaining(&store.w, "bytes", quota, 97).await;
        // A client that goes away pays for what it was sent.
        let layer = LimitLayer::new(&store.w, "dropped", quota).cost(|_| 0);
        let endless = || async { Body::new(frames(std::iter::repeat("12345678"))) };
        let app = Router::new()
            .route("/", route(endless))
            .layer(layer.charge_bytes(4));
        let mut body = app.oneshot(get("/")).await.unwrap().into_body();
        for _ in 0..3 {
            let frame = http_body_util::BodyExt::frame(&mut body).await;
            assert_eq!(frame.unwrap().unwrap().into_data().unwrap(), "12345678");
        }
        drop(body);
        wait_for_remaining(&store.w, "dropped", quota, 94).await;
    }
}

/// A client cannot avoid the charge by going away, and a handler that fails is not free.
#[tokio::test]
async fn interrupted_requests_are_charged_as_status_499() {
    for store in Store::each().await {
        let quota = Quota::per_hour(100);
        let charges = |status: StatusCode| match status.as_u16() {
            499 => 7,
            _ => 0,
        };
        let layer = LimitLayer::new(&store.w, "interrupted", quota);
        let layer = layer.cost(|_| 0).charge_status(charges);
        let entered = Arc::new(Notify::new());
        let inside = Arc::clone(&entered);
        let slow = move || async move {
            inside.notify_one();
            pending::<()>().await;
        };
        let app = Router::new()
            .route("/slow", route(slow))
            .route("/panic", route(panicking))
            .route("/ok", route(|| async {}))
            .layer(layer.clone());
        tokio::select! {
            reply = app.clone().oneshot(get("/slow")) => panic!("{reply:?}"),
            () = entered.notified() => {}
        }
        wait_for_remaining(&store.w, "interrupted", quota, 93).await;
        let panics = app.clone();
        let call = tokio::spawn(async move { panics.oneshot(get("/panic")).await.map(drop) });
        assert!(call.await.unwrap_err().is_panic());
        wait_for_remaining(&store.w, "interrupted", quota, 86).await;
        let failing = |_: Request<Body>| async { Err::<Response<Body>, _>("the backend is down") };
        let failing = layer.layer(tower::service_fn(failing));
        assert!(failing.oneshot(get("/")).await.is_err());
        wait_for_remaining(&store.w, "interrupted", quota, 79).await;
        // A request that ends is charged by its own status only.
        assert_eq!(ask(&app, get("/ok")).await.status, StatusCode::OK);
        wait_for_remaining(&store.w, "interrupted", quota, 79).await;
    }
}

/// A bucket that is never refilled has no debt: what remains of it is taken.
#[tokio::test]
async fn charge_empties_a_quota_that_is_not_refilled() {
    for store in Store::each().await {
        let quota = Quota::per_second(0).burst(3);
        let app = app(LimitLayer::new(&store.w, "once", quota));
        assert_eq!(ask(&app, get("/rows")).await.status, StatusCode::OK);
        wait_for_remaining(&store.w, "once", quota, 0).await;
    }
}

/// gRPC's errors have no body: a client reads the status of the headers only if they end the response.
#[tokio::test]
async fn response_without_a_body_stays_without_one() {
    let store = Store::memory().await;
    let layer = LimitLayer::new(&store.w, "bytes", Quota::per_hour(100)).charge_bytes(1);
    let empty = |_: Request<Body>| async {
        let response = Response::builder().header("grpc-status", "5");
        Ok::<_, Infallible>(response.body(Body::empty()).unwrap())
    };
    let response = layer.layer(tower::service_fn(empty)).oneshot(get("/"));
    let response = response.await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "5");
    assert!(http_body::Body::is_end_stream(response.body()));
}

#[tokio::test]
async fn grpc_error_is_charged_by_the_http_status_it_corresponds_to() {
    let store = Store::memory().await;
    let quota = Quota::per_hour(100);
    let layer = LimitLayer::new(&store.w, "grpc", quota).cost(|_| 0);
    let layer = layer.charge_status(|status| match status {
        StatusCode::NOT_FOUND => 5,
        StatusCode::OK => 1,
        _ => 0,
    });
    let app = Router::new()
        .route("/missing", route(|| async { [("grpc-status", "5")] }))
        .route("/found", route(|| async { [("grpc-status", "0")] }))
        .layer(layer);
    assert_eq!(ask(&app, get("/missing")).await.status, StatusCode::OK);
    wait_for_remaining(&store.w, "grpc", quota, 95).await;
    assert_eq!(ask(&app, get("/found")).await.status, StatusCode::OK);
    wait_for_remaining(&store.w, "grpc", quota, 94).await;
}

async fn panicking() -> StatusCode {
    panic!("the handler fails")
}
