//! Middleware for [tower](https://docs.rs/tower), axum, hyper and tonic, shared by all instances of a service:
//!
//! | layer | does | refuses with |
//! |---|---|---|
//! | [`LimitLayer`] | limits the rate by client, header, path or any key | 429, `RateLimit` and `Retry-After` |
//! | [`IdempotencyLayer`] | runs a request once per `Idempotency-Key`, and replays its response | 400, 409, 422 |
//! | [`LockLayer`] | lets one request at a time act on a key, with a fencing token | 409 or 423 |
//! | [`ConcurrencyLayer`] | bounds how many requests run at once | 503 and `Retry-After` |
//!
//! ```
//! use std::net::SocketAddr;
//!
//! use axum::{Router, routing::get};
//! use windlass::Quota;
//! use windlass_tower::{ClientIp, LimitLayer};
//!
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
//! let w = windlass::connect("memory:").await?; // or redis://127.0.0.1, shared by all instances
//! let limit = LimitLayer::new(&w, "api", Quota::per_minute(100)).key(ClientIp::new());
//! let app = Router::new().route("/", get(|| async { "hello" })).layer(limit);
//! // Without the address of the connection, all clients would share one limit.
//! let app = app.into_make_service_with_connect_info::<SocketAddr>();
//! # let _ = async move {
//! axum::serve(tokio::net::TcpListener::bind("127.0.0.1:8080").await?, app).await
//! # };
//! # Ok(()) }
//! ```
//!
//! # Refusals
//!
//! A refused request gets a body of type `application/problem+json` (RFC 9457); each layer takes another one with
//! `reject_with`. A gRPC request (POST with `content-type: application/grpc`) gets a gRPC status in a response without a
//! body instead, which tonic and other clients read as a `Status`. No refusal is cached (`cache-control: no-store`).
//!
//! # Behaviour in a tower stack
//!
//! - The layers are `Clone`; clones share their state. `poll_ready` is that of the inner service. A request that waits
//!   for a decision keeps the instance that was ready, and leaves a clone behind.
//! - A decision made in this process (`memory:`, or a [leased](LimitLayer::leased) limiter) needs no allocation and no
//!   clone of the inner service. A store call boxes one future.
//! - Cancel safety: dropping the response future, or the response body, releases what the request holds.
//! - The error type is that of the inner service: a failing store is a response (503), or what
//!   [`LimitLayer::on_store_error`] says.
//!
//! # Features
//!
//! | feature | enables |
//! |---|---|
//! | `axum` | the key `MatchedPath`, the peer address of axum's `ConnectInfo` for [`ClientIp`], and paths with the prefix that `Router::nest` removes |

mod body;
mod client_ip;
mod concurrency;
#[cfg(doctest)]
mod documentation;
mod grpc_status;
mod held_lease;
mod idempotency;
mod key;
mod lease_layer;
mod limit;
mod lock;
mod maybe_ready;
mod protected;
mod rejection;

pub use body::Body;
pub use client_ip::{ClientIp, PeerAddr, ProxyHeader};
pub use concurrency::ConcurrencyLayer;
pub use held_lease::HoldUntil;
pub use idempotency::{IdempotencyLayer, IdempotentRequest, OnLargeResponse};
#[cfg(feature = "axum")]
pub use key::MatchedPath;
pub use key::{
    AsyncKeyFn, Everyone, Header, KeyFn, OnMissingKey, Path, RequestKey, async_key_fn, key_fn,
};
pub use limit::{Charge, LimitLayer, Policies, Policy};
pub use lock::{BusyStatus, LockLayer, OnLoss, RequestLock};
pub use maybe_ready::MaybeReady;
pub use protected::{Entered, Protected, ResponseFuture, Stage, StartedCall};
pub use rejection::{Rejection, RejectionKind};

/// The error of a [`Body`].
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
