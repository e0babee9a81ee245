//! `LimitLayer` compared with tower_governor: requests a second and p99 through a real hyper server, in turns; and what
//! each adds to a call of the service in the process.
//!
//! ```text
//! cargo run --release --manifest-path bench/Cargo.toml --bin middleware
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::{Request, Response};
use axum::routing::get;
use http_body_util::{BodyExt as _, Empty};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer as _, Service, ServiceExt as _, service_fn};
use tower_governor::GovernorLayer;
use tower_governor::governor::GovernorConfigBuilder;
use windlass::Quota;
use windlass_testkit::RedisServer;
use windlass_tower::{ClientIp, LimitLayer};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

const CONNECTIONS: usize = 32;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_millis(1_500);
/// Calls in one round in the process.
const CALLS: u32 = 200_000;
/// More than is used here: only allowed requests are measured.
const RATE: u64 = 100_000_000;

#[tokio::main]
async fn main() -> Result<()> {
    let redis = RedisServer::start()?;
    let memory = windlass::connect("memory:").await?;
    let shared = windlass::connect(&redis.url()).await?;
    let limit = |w| LimitLayer::new(w, "api", Quota::per_second(RATE)).key(ClientIp::new());
    let (in_memory, leased, strict) = (limit(&memory), limit(&shared).leased(), limit(&shared));
    let mut governor = GovernorConfigBuilder::default();
    let governor = governor
        .period(Duration::from_nanos(10))
        .burst_size(u32::MAX);
    let governor = governor.use_headers().finish().ok_or("an invalid quota")?;
    let governor = GovernorLayer::new(governor);

    let app = || Router::new().route("/", get(|| async { "hello" }));
    let contenders = [
        ("no layer", app()),
        ("tower_governor", app().layer(governor.clone())),
        ("LimitLayer, memory:", app().layer(in_memory.clone())),
        ("LimitLayer, leased on Redis", app().layer(leased.clone())),
        ("LimitLayer, strict on Redis", app().layer(strict)),
    ];
    let mut servers = Vec::new();
    for (name, app) in contenders {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let app = app.into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        servers.push((name, address, Vec::new()));
    }
    for round in 0..=ROUNDS {
        for (_, address, results) in &mut servers {
            let result = drive(*address).await?;
            // The first round warms up.
            if round > 0 {
                results.push(result);
            }
        }
    }
    println!("{CONNECTIONS} connections, median of {ROUNDS} rounds:");
    for (name, _, results) in servers {
        let rate = median(results.iter().map(|result| result.0).collect());
        let p99 = median(results.iter().map(|result| result.1).collect());
        println!("{name:<30} {rate:>8.0} requests/s   p99 {p99:>6.2} ms");
    }

    println!("\nin the process, added to one call:");
    let inner =
        service_fn(async |_: Request<Body>| Ok::<_, Infallible>(Response::new(Body::empty())));
    let mut bare = Vec::new();
    let mut added: [Vec<f64>; 3] = Default::default();
    for _ in 0..ROUNDS {
        let base = nanos_per_call(inner).await?;
        bare.push(base);
        added[0].push(nanos_per_call(governor.layer(inner)).await? - base);
        added[1].push(nanos_per_call(in_memory.layer(inner)).await? - base);
        added[2].push(nanos_per_call(leased.layer(inner)).await? - base);
    }
    println!("{:<30} {:>8.0} ns", "the service alone", median(bare));
    let names = [
        "tower_governor",
        "LimitLayer, memory:",
        "LimitLayer, leased on Redis",
    ];
    for (name, added) in names.into_iter().zip(added) {
        println!("{name:<30} {:>8.0} ns", median(added));
    }
    Ok(())
}

/// Requests a second over all connections, and the 99th percentile of their latencies in milliseconds.
async fn drive(address: SocketAddr) -> Result<(f64, f64)> {
    let mut connections = tokio::task::JoinSet::new();
    let begun = Instant::now();
    for _ in 0..CONNECTIONS {
        connections.spawn(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let mut latencies = Vec::new();
            while begun.elapsed() < ROUND {
                let request = Request::get("/")
                    .header("host", "bench")
                    .body(Empty::<&[u8]>::new())?;
                let sent = Instant::now();
                let response = sender.send_request(request).await?;
                assert!(response.status().is_success(), "{}", response.status());
                response.into_body().collect().await?;
                latencies.push(sent.elapsed());
            }
            Ok::<_, Box<dyn Error + Send + Sync>>(latencies)
        });
    }
    let mut latencies = Vec::new();
    while let Some(ended) = connections.join_next().await {
        latencies.extend(ended??);
    }
    let rate = latencies.len() as f64 / begun.elapsed().as_secs_f64();
    latencies.sort_unstable();
    let p99 = latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e3;
    Ok((rate, p99))
}

/// How long one call of a service takes, one after the other.
async fn nanos_per_call<S, B>(mut service: S) -> Result<f64>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let peer = ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711)));
    let begun = Instant::now();
    for _ in 0..CALLS {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(peer);
        let ready = service.ready().await.map_err(Into::into)?;
        let response = ready.call(request).await.map_err(Into::into)?;
        assert!(response.status().is_success(), "{}", response.status());
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(CALLS))
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
