//! The service: a router behind the four layers.

use std::time::Duration;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use windlass::{Coordinator, Quota};
use windlass_tower::{
    ClientIp, ConcurrencyLayer, Header, IdempotencyLayer, IdempotentRequest, LimitLayer, LockLayer,
    Policy, RequestLock,
};

/// The limit of each client, over all instances. `client` says who sends a request.
pub(crate) fn limit(w: &Coordinator, client: ClientIp, per_minute: u64) -> LimitLayer {
    let minute = Quota::per_minute(per_minute).fixed_window();
    let day = Quota::per_day(per_minute * 100);
    let policies = [Policy::new("minute", minute), Policy::new("day", day)];
    LimitLayer::new(w, "api", policies).key(client)
}

/// The routes, and what protects them.
pub(crate) fn router(w: &Coordinator, limit: LimitLayer) -> Router {
    // A payment that is sent again, because the answer was lost, is not made again.
    let idempotency = IdempotencyLayer::new(w, "payments", Header::named("x-account")).required();

    // One writer for each document. A second one waits for up to two seconds, then gets 409.
    let lock = LockLayer::new(w, "documents", windlass_tower::Path).wait(Duration::from_secs(2));

    // At most two reports at once, over all instances; 503 beyond.
    let concurrency = ConcurrencyLayer::new(w, "reports", 2).retry_after(Duration::from_secs(5));

    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/payments", post(pay).layer(idempotency))
        .route("/documents/{id}", put(write).layer(lock))
        .route("/reports", get(report).layer(concurrency))
        .layer(limit)
}

async fn pay(
    Extension(request): Extension<IdempotentRequest>,
    order: String,
) -> (StatusCode, Json<serde_json::Value>) {
    // The fence keeps an instance that lost its lease from paying after its successor.
    let receipt = serde_json::json!({
        "order": order,
        "fence": request.fence().get(),
        "instance": std::process::id(),
    });
    (StatusCode::CREATED, Json(receipt))
}

async fn write(
    Path(id): Path<u64>,
    Extension(lock): Extension<RequestLock>,
    text: String,
) -> String {
    // A database would store the fence with the row, and reject a lower one.
    format!(
        "document {id}: {} bytes with fence {}\n",
        text.len(),
        lock.fence()
    )
}

async fn report() -> &'static str {
    tokio::time::sleep(Duration::from_millis(300)).await;
    "42 rows\n"
}
