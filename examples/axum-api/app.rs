//! The service: a router behind the four layers.

use std::time::Duration;

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::routing::{get, post, put};
use axum::{Extension, Json, Router};
use windlass::{Coordinator, Quota};
use windlass_tower::{
    ClientIp, ConcurrencyLayer, Header, IdempotencyLayer, IdempotentRequest, LimitLayer, LockLayer,
    Policy, RequestLock, key_fn,
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
    // A payment that is sent again, because the answer was lost, is not made again. `X-Account` stands for the
    // authentication, which a real service has: a key belongs to an account, and a client must not choose it.
    let idempotency = IdempotencyLayer::new(w, "payments", Header::named("x-account")).required();

    // One writer for each document. A second one waits for up to two seconds, then gets 409.
    // A client that does not read its response holds the lock for ten seconds, not for ever.
    let lock = LockLayer::new(w, "documents", key_fn(document))
        .wait(Duration::from_secs(2))
        .max_hold(Duration::from_secs(10));

    // At most two reports at once, over all instances; 503 beyond.
    let concurrency = ConcurrencyLayer::new(w, "reports", 2)
        .retry_after(Duration::from_secs(5))
        .max_hold(Duration::from_secs(60));

    Router::new()
        .route("/", get(|| async { "hello\n" }))
        .route("/payments", post(pay).layer(idempotency))
        .route("/documents/{id}", put(write).layer(lock))
        .route("/reports", get(report).layer(concurrency))
        .layer(limit)
}

/// The id of the document, which is the key of its lock. Another way to write it, such as `07` or `%37`, is no key, and
/// gets 400: two keys for one document would be two locks.
fn document(parts: &Parts) -> Option<String> {
    let text = parts.uri.path().strip_prefix("/documents/")?;
    let id: u64 = text.parse().ok()?;
    (id.to_string() == text).then(|| text.to_owned())
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
