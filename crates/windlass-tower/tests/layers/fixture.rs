//! Stores, servers and clients for the tests.

use std::convert::Infallible;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncRead as _, ReadBuf};
use tokio::net::TcpListener;
use tower::{Service, ServiceExt as _};
use windlass::{Coordinator, Options};
use windlass_testkit::RedisServer;

pub(crate) const MS: Duration = Duration::from_millis(1);
/// Longer than anything takes on a busy machine.
pub(crate) const SOON: Duration = Duration::from_secs(20);

/// A store of its own for a test.
pub(crate) struct Store {
    pub(crate) w: Coordinator,
    pub(crate) url: String,
    pub(crate) server: Option<RedisServer>,
}

impl Store {
    pub(crate) async fn memory() -> Store {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        Store::at(format!("memory:tower-{number}"), None).await
    }

    pub(crate) async fn redis() -> Store {
        let server = RedisServer::start().unwrap();
        Store::at(server.url(), Some(server)).await
    }

    /// One of each kind.
    pub(crate) async fn each() -> [Store; 2] {
        [Store::memory().await, Store::redis().await]
    }

    async fn at(url: String, server: Option<RedisServer>) -> Store {
        Store {
            w: windlass::connect(&url).await.unwrap(),
            url,
            server,
        }
    }

    /// A coordinator of another process, as far as the store can tell.
    pub(crate) async fn another(&self) -> Coordinator {
        Options::new().connect(&self.url).await.unwrap()
    }

    /// The same, for more calls at once than a busy machine answers within the usual time limit.
    pub(crate) async fn patient(&self) -> Coordinator {
        let options = Options::new().call_timeout(Duration::from_secs(60));
        options.connect(&self.url).await.unwrap()
    }
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) async fn of<B>(response: Response<B>) -> Reply
    where
        B: http_body::Body<Data = Bytes>,
        B::Error: std::fmt::Debug,
    {
        let (parts, body) = response.into_parts();
        Reply {
            status: parts.status,
            headers: parts.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    /// The problem document, whose form is checked.
    pub(crate) fn problem(&self) -> serde_json::Value {
        assert_eq!(
            self.header("content-type"),
            Some("application/problem+json")
        );
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status.as_u16());
        for member in ["type", "title", "detail", "code"] {
            assert!(problem[member].is_string(), "{problem}");
        }
        problem
    }

    pub(crate) fn code(&self) -> String {
        self.problem()["code"].as_str().unwrap().to_owned()
    }
}

/// Sends a request to a service in this process.
pub(crate) async fn ask<S, B>(service: &S, request: Request<Body>) -> Reply
where
    S: Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    Reply::of(service.clone().oneshot(request).await.unwrap()).await
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).unwrap()
}

/// A server on a free port, which ends with the value.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    task: tokio::task::JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(router: Router) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let service = router.into_make_service_with_connect_info::<SocketAddr>();
        let task = tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
        Server { address, task }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

pub(crate) type HttpClient = Client<HttpConnector, Full<Bytes>>;

pub(crate) fn client() -> HttpClient {
    Client::builder(TokioExecutor::new()).build_http()
}

/// A client whose connections come from this address.
pub(crate) fn client_at(address: Ipv4Addr) -> HttpClient {
    let mut connector = HttpConnector::new();
    connector.set_local_address(Some(address.into()));
    Client::builder(TokioExecutor::new()).build(connector)
}

/// Sends a request over a real connection.
pub(crate) async fn send(
    client: &HttpClient,
    address: SocketAddr,
    request: http::request::Builder,
    body: impl Into<Bytes>,
) -> Reply {
    let mut request = request.body(Full::new(body.into())).unwrap();
    let target = request.uri().path_and_query().unwrap().as_str();
    *request.uri_mut() = format!("http://{address}{target}").parse().unwrap();
    Reply::of(client.request(request).await.unwrap()).await
}

/// A body of these frames, whose end is not known in advance.
pub(crate) fn frames(
    frames: impl Iterator<Item = &'static str> + Send + Unpin + 'static,
) -> impl http_body::Body<Data = Bytes, Error = Infallible> + Send + 'static {
    struct Frames<I>(I);

    impl<I: Iterator<Item = &'static str> + Unpin> http_body::Body for Frames<I> {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            let frame = self.0.next();
            Poll::Ready(frame.map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes())))))
        }
    }

    Frames(frames)
}

/// A body of what another task writes.
pub(crate) struct Reading(pub(crate) tokio::io::DuplexStream);

impl http_body::Body for Reading {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let mut space = [0; 64];
        let mut read = ReadBuf::new(&mut space);
        std::task::ready!(Pin::new(&mut self.0).poll_read(cx, &mut read))?;
        let data = Bytes::copy_from_slice(read.filled());
        Poll::Ready((!data.is_empty()).then(|| Ok(Frame::data(data))))
    }
}
