//! The layers in plain tower, hyper and tonic; the other tests use axum.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tonic::server::{NamedService, UnaryService};
use tonic::transport::{Channel, Server};
use tonic::{Code, Status};
use tower::{Layer as _, Service, ServiceBuilder, ServiceExt, service_fn};
use windlass::Quota;
use windlass_tower::{
    ClientIp, ConcurrencyLayer, Everyone, IdempotencyLayer, LimitLayer, LockLayer, PeerAddr,
};

use crate::fixture::{Reply, SOON, Store, client, send};

/// Counts its calls, and fails if an instance is called that was not ready.
#[derive(Debug)]
struct Strict {
    ready: bool,
    calls: Arc<AtomicU64>,
}

impl Clone for Strict {
    fn clone(&self) -> Strict {
        Strict {
            ready: false,
            calls: Arc::clone(&self.calls),
        }
    }
}

impl<B> Service<Request<B>> for Strict {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<B>) -> Self::Future {
        assert!(self.ready, "called without being ready");
        self.ready = false;
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(Full::from("done"))))
    }
}

fn request() -> Request<Full<Bytes>> {
    let request = Request::post("/").header("idempotency-key", "key");
    request.body(Full::from("a")).unwrap()
}

#[tokio::test]
async fn only_an_instance_that_was_ready_is_called() {
    for store in Store::each().await {
        let calls = Arc::new(AtomicU64::new(0));
        let strict = Strict {
            ready: false,
            calls: Arc::clone(&calls),
        };
        let mut service = ServiceBuilder::new()
            .layer(LimitLayer::new(&store.w, "limit", Quota::per_hour(5)))
            .layer(LockLayer::new(&store.w, "lock", Everyone))
            .layer(ConcurrencyLayer::new(&store.w, "bound", 1))
            .layer(IdempotencyLayer::new(&store.w, "once", Everyone))
            .service(strict);
        // One instance, call after call, as a connection uses it.
        for n in 0..7 {
            let ready: &mut _ = ServiceExt::<Request<Full<Bytes>>>::ready(&mut service)
                .await
                .unwrap();
            let response = ready.call(request()).await.unwrap();
            let reply = Reply::of(response).await;
            let expected = if n < 5 {
                StatusCode::OK
            } else {
                StatusCode::TOO_MANY_REQUESTS
            };
            assert_eq!(reply.status, expected, "{n}");
            assert_eq!(
                reply.header("idempotent-replayed").is_some(),
                (1..5).contains(&n)
            );
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

/// The permit of tower's own limit is not lost when a request is refused.
#[tokio::test]
async fn refused_request_does_not_use_up_the_inner_readiness() {
    for store in Store::each().await {
        let limit = LimitLayer::new(&store.w, "limit", Quota::per_hour(0));
        let inner = service_fn(async |_: Request<Full<Bytes>>| {
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
        });
        let inner = ServiceBuilder::new().concurrency_limit(1).service(inner);
        let mut service = limit.layer(inner);
        for _ in 0..3 {
            let ready = tokio::time::timeout(
                SOON,
                ServiceExt::<Request<Full<Bytes>>>::ready(&mut service),
            )
            .await
            .unwrap()
            .unwrap();
            let response = ready.call(request()).await.unwrap();
            assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        }
    }
}

#[tokio::test]
async fn hyper_server() {
    let store = Store::redis().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let service = ServiceBuilder::new()
        .layer(LimitLayer::new(&store.w, "limit", Quota::per_hour(2)).key(ClientIp::new()))
        .layer(LockLayer::new(&store.w, "lock", Everyone).wait(SOON))
        .service_fn(async |request: Request<hyper::body::Incoming>| {
            let body = request.into_body().collect().await?.to_bytes();
            Ok::<_, hyper::Error>(Response::new(Full::new(body)))
        });
    let server = tokio::spawn(async move {
        loop {
            let (stream, peer) = listener.accept().await.unwrap();
            let service = service.clone();
            let service = service_fn(move |mut request: Request<hyper::body::Incoming>| {
                request.extensions_mut().insert(PeerAddr(peer));
                service.clone().oneshot(request)
            });
            tokio::spawn(
                hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), TowerToHyperService::new(service)),
            );
        }
    });
    let client = client();
    for n in 0..4 {
        let reply = send(&client, address, Request::post("/"), "hello").await;
        match n < 2 {
            true => assert_eq!(reply.body, "hello"),
            false => assert_eq!(reply.status, StatusCode::TOO_MANY_REQUESTS),
        }
    }
    let survey = store.w.survey_limiters("*", 10).await.unwrap();
    assert_eq!(survey.limiters[0].key.as_deref(), Some("127.0.0.1"));
    server.abort();
}

/// A gRPC service with one method, written without generated code.
#[derive(Clone)]
struct Ping(Arc<AtomicU64>);

impl NamedService for Ping {
    const NAME: &'static str = "test.Ping";
}

impl UnaryService<()> for Ping {
    type Response = ();
    type Future = Ready<Result<tonic::Response<()>, Status>>;

    fn call(&mut self, request: tonic::Request<()>) -> Self::Future {
        let calls = self.0.fetch_add(1, Ordering::Relaxed) + 1;
        ready(
            match request.metadata().contains_key("fail") && calls == 3 {
                true => Err(Status::unavailable("try again")),
                false => Ok(tonic::Response::new(())),
            },
        )
    }
}

impl<B> Service<Request<B>> for Ping
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<windlass_tower::BoxError> + Send + 'static,
{
    type Response = Response<tonic::body::Body>;
    type Error = Infallible;
    type Future =
        std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let ping = self.clone();
        Box::pin(async move {
            let codec = tonic_prost::ProstCodec::default();
            Ok(tonic::server::Grpc::new(codec).unary(ping, request).await)
        })
    }
}

async fn ping(channel: &Channel, key: Option<&'static str>) -> Result<tonic::Response<()>, Status> {
    let mut client = tonic::client::Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = tonic::Request::new(());
    if let Some(key) = key {
        let metadata = request.metadata_mut();
        metadata.insert("idempotency-key", key.parse().unwrap());
        if key == "fails" {
            metadata.insert("fail", "once".parse().unwrap());
        }
    }
    let path = http::uri::PathAndQuery::from_static("/test.Ping/Ping");
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    client.unary(request, path, codec).await
}

#[tokio::test]
async fn tonic_server_answers_with_statuses() {
    let store = Store::redis().await;
    let calls = Arc::new(AtomicU64::new(0));
    let peer = |extensions: &http::Extensions| {
        let info = extensions.get::<tonic::transport::server::TcpConnectInfo>()?;
        Some(info.remote_addr()?.ip())
    };
    let router = Server::builder()
        .layer(
            LimitLayer::new(&store.w, "limit", Quota::per_hour(6)).key(ClientIp::new().peer(peer)),
        )
        .layer(IdempotencyLayer::new(&store.w, "once", Everyone))
        .layer(LockLayer::new(&store.w, "lock", Everyone))
        .add_service(Ping(Arc::clone(&calls)));
    let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    drop(listener);
    let server = tokio::spawn(router.serve(address));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = tokio::time::timeout(SOON, async {
        loop {
            match channel.connect().await {
                Ok(channel) => break channel,
                Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
            }
        }
    });
    let channel = channel.await.unwrap();
    ping(&channel, None).await.unwrap();
    // A repeat is replayed, trailers included.
    let first = ping(&channel, Some("key")).await.unwrap();
    assert!(first.metadata().get("idempotent-replayed").is_none());
    let again = ping(&channel, Some("key")).await.unwrap();
    assert_eq!(again.metadata().get("idempotent-replayed").unwrap(), "true");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
    // A failure that passes is not stored, though its HTTP status is 200.
    let failed = ping(&channel, Some("fails")).await.unwrap_err();
    assert_eq!(failed.code(), Code::Unavailable);
    ping(&channel, Some("fails")).await.unwrap();
    assert_eq!(calls.load(Ordering::Relaxed), 4);
    // A lock that another client holds.
    let guard = store.another().await.lock("lock").acquire().await.unwrap();
    let busy = ping(&channel, None).await.unwrap_err();
    assert_eq!(busy.code(), Code::Aborted);
    assert!(guard.release().await.unwrap().was_held());
    let limited = ping(&channel, None).await.unwrap_err();
    assert_eq!(limited.code(), Code::ResourceExhausted);
    assert_eq!(limited.message(), "too many requests");
    let wait = limited.metadata().get("grpc-retry-pushback-ms").unwrap();
    assert!(wait.to_str().unwrap().parse::<u64>().unwrap() > 1_000);
    assert!(limited.metadata().get("ratelimit").is_some());
    server.abort();
}
