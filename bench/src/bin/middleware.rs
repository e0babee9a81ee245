//! `LimitLayer` compared with tower_governor: what each adds to a call of the service in the process, and requests per
//! second, p99 and CPU time through a real hyper server; all in turns.
//!
//! ```text
//! cargo run --release --manifest-path bench/Cargo.toml --bin middleware
//! ```
//!
//! Both limit by the address of the connection, allow every request, and add two headers to the response. It starts its
//! own Redis server.
//!
//! `--only NAME --calls N` makes N calls in the process of one service, for tools that count instructions or
//! allocations. The difference between two such runs does not contain the start:
//!
//! ```text
//! valgrind --tool=callgrind bench/target/release/middleware --only leased --calls 20000
//! ```

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::ConnectInfo;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Request, Response};
use axum::routing::get;
use clap::{Parser, ValueEnum};
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
/// More than is used here: only allowed requests are measured.
const RATE: u64 = 100_000_000;

/// Compares LimitLayer with tower_governor
#[derive(Debug, Parser)]
struct MiddlewareArgs {
    /// How many rounds of calls in the process
    #[arg(long, value_name = "N", default_value_t = 401)]
    rounds: usize,

    /// How many calls each has in a round
    #[arg(long, value_name = "N", default_value_t = 2_000)]
    calls: u32,

    /// How many rounds through a server
    #[arg(long, value_name = "N", default_value_t = 41)]
    server_rounds: usize,

    /// How long each is driven in a round
    #[arg(long, value_name = "MS", default_value_t = 300)]
    millis: u64,

    /// Makes one round of calls of one service, and measures nothing
    #[arg(long, value_name = "NAME")]
    only: Option<Contender>,
}

#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Contender {
    /// The service without a layer
    None,
    /// tower_governor
    Governor,
    /// LimitLayer on `memory:`
    Memory,
    /// LimitLayer, leased on Redis
    Leased,
    /// LimitLayer, leased on Redis, without headers in the response
    Bare,
    /// The check of a leased limiter, without a layer
    Check,
    /// LimitLayer, strict on Redis
    Strict,
}

impl Contender {
    fn name(self) -> &'static str {
        match self {
            Contender::None => "no layer",
            Contender::Governor => "tower_governor",
            Contender::Memory => "LimitLayer, memory:",
            Contender::Leased => "LimitLayer, leased on Redis",
            Contender::Bare => "… without headers",
            Contender::Check => "… the check alone",
            Contender::Strict => "LimitLayer, strict on Redis",
        }
    }
}

/// Without the strict layer, which makes a round trip for each request.
const IN_PROCESS: [Contender; 6] = [
    Contender::None,
    Contender::Governor,
    Contender::Memory,
    Contender::Leased,
    Contender::Bare,
    Contender::Check,
];

const SERVED: [Contender; 5] = [
    Contender::None,
    Contender::Governor,
    Contender::Memory,
    Contender::Leased,
    Contender::Strict,
];

#[tokio::main]
async fn main() -> Result<()> {
    let args = MiddlewareArgs::parse();
    let redis = RedisServer::start()?;
    let memory = windlass::connect("memory:").await?;
    let shared = windlass::connect(&redis.url()).await?;
    let limit = |w| LimitLayer::new(w, "api", Quota::per_second(RATE)).key(ClientIp::new());
    let (in_memory, leased, strict) = (limit(&memory), limit(&shared).leased(), limit(&shared));
    let bare = leased.clone().without_headers();
    let checked = shared.limiter("api", Quota::per_second(RATE)).leased();
    let mut governor = GovernorConfigBuilder::default();
    let governor = governor
        .period(Duration::from_nanos(10))
        .burst_size(u32::MAX);
    let governor = governor.use_headers().finish().ok_or("an invalid quota")?;
    let governor = GovernorLayer::new(governor);

    // As a handler's response, it has a header already.
    let inner = service_fn(async |_: Request<Body>| {
        let mut response = Response::new(Body::empty());
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        Ok::<_, Infallible>(response)
    });
    let calls = async |contender| match contender {
        Contender::None => nanos_per_call(inner, args.calls).await,
        Contender::Governor => nanos_per_call(governor.layer(inner), args.calls).await,
        Contender::Memory => nanos_per_call(in_memory.layer(inner), args.calls).await,
        Contender::Leased => nanos_per_call(leased.layer(inner), args.calls).await,
        Contender::Bare => nanos_per_call(bare.layer(inner), args.calls).await,
        Contender::Strict => nanos_per_call(strict.layer(inner), args.calls).await,
        // Beside the service, so that what it adds is comparable.
        Contender::Check => {
            let checking = service_fn(async |request| {
                if checked.check_now("127.0.0.1", 1).is_none() {
                    let _ = checked.check("127.0.0.1").await?;
                }
                Ok::<_, windlass::Error>(inner.oneshot(request).await.expect("it cannot fail"))
            });
            nanos_per_call(checking, args.calls).await
        }
    };
    if let Some(contender) = args.only {
        return calls(contender).await.map(drop);
    }
    let mut times = [const { Vec::new() }; IN_PROCESS.len()];
    for round in 0..=args.rounds {
        for (contender, times) in IN_PROCESS.into_iter().zip(&mut times) {
            let time = calls(contender).await?;
            // The first round warms up.
            if round > 0 {
                times.push(time);
            }
        }
    }
    println!(
        "in the process, {} rounds of {} calls: ns per call, and ns added in the same round",
        args.rounds, args.calls
    );
    for (contender, time) in IN_PROCESS.into_iter().zip(&times) {
        let added = time.iter().zip(&times[0]).map(|(with, bare)| with - bare);
        println!(
            "{:<30} {:>16}   {}",
            contender.name(),
            spread(time.iter().copied(), 0),
            spread(added, 0)
        );
    }

    let app = |contender| {
        let app = Router::new().route("/", get(|| async { "hello" }));
        match contender {
            Contender::None | Contender::Check => app,
            Contender::Governor => app.layer(governor.clone()),
            Contender::Memory => app.layer(in_memory.clone()),
            Contender::Leased => app.layer(leased.clone()),
            Contender::Bare => app.layer(bare.clone()),
            Contender::Strict => app.layer(strict.clone()),
        }
    };
    let mut servers = Vec::new();
    for contender in SERVED {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let app = app(contender).into_make_service_with_connect_info::<SocketAddr>();
        tokio::spawn(async move { axum::serve(listener, app).await });
        servers.push((contender, address, Vec::new()));
    }
    for round in 0..=args.server_rounds {
        // Each goes first as often as the others.
        for turn in 0..servers.len() {
            let i = (round + turn) % servers.len();
            let (_, address, results) = &mut servers[i];
            let result = drive(*address, Duration::from_millis(args.millis)).await?;
            if round > 0 {
                results.push(result);
            }
        }
    }
    println!(
        "\nthrough a server, {CONNECTIONS} connections, {} rounds of {} ms: with the ratios to tower_governor in the \
         same round",
        args.server_rounds, args.millis
    );
    let governor = servers[1].2.clone();
    for (contender, _, results) in &servers {
        println!("{}", contender.name());
        let measured: [(&str, fn(&Driven) -> f64); 3] = [
            ("requests/s", |driven| driven.rate),
            ("p99, ms", |driven| driven.p99_millis),
            ("CPU µs per request", |driven| driven.cpu_micros),
        ];
        for (name, of) in measured {
            let ratio = |(ours, theirs)| of(ours) / of(theirs);
            println!(
                "  {name:<20} {:>26}   {}",
                spread(results.iter().map(of), 2),
                spread(results.iter().zip(&governor).map(ratio), 3)
            );
        }
    }
    Ok(())
}

/// What one server did in one round.
#[derive(Clone, Debug)]
struct Driven {
    rate: f64,
    p99_millis: f64,
    /// Of client and server together.
    cpu_micros: f64,
}

async fn drive(address: SocketAddr, length: Duration) -> Result<Driven> {
    let mut connections = tokio::task::JoinSet::new();
    let (begun, cpu) = (Instant::now(), cpu_micros());
    for _ in 0..CONNECTIONS {
        connections.spawn(async move {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let (mut sender, connection) =
                hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
            tokio::spawn(connection);
            let mut latencies = Vec::new();
            // At least one, however late the connection was made.
            while latencies.is_empty() || begun.elapsed() < length {
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
    let requests = latencies.len() as f64;
    let (time, cpu) = (begun.elapsed(), cpu_micros() - cpu);
    latencies.sort_unstable();
    Ok(Driven {
        rate: requests / time.as_secs_f64(),
        p99_millis: latencies[latencies.len() * 99 / 100].as_secs_f64() * 1e3,
        cpu_micros: cpu / requests,
    })
}

/// How long one call of a service takes, one after the other.
async fn nanos_per_call<S, B>(mut service: S, calls: u32) -> Result<f64>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Error: Into<Box<dyn Error + Send + Sync>>,
{
    let peer = ConnectInfo(SocketAddr::from(([127, 0, 0, 1], 4711)));
    let begun = Instant::now();
    for _ in 0..calls {
        let mut request = Request::new(Body::empty());
        request.extensions_mut().insert(peer);
        let ready = service.ready().await.map_err(Into::into)?;
        let response = ready.call(request).await.map_err(Into::into)?;
        assert!(response.status().is_success(), "{}", response.status());
    }
    Ok(begun.elapsed().as_nanos() as f64 / f64::from(calls))
}

/// The CPU time that this process has used.
fn cpu_micros() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e6 + used.tv_nsec as f64 / 1e3
}

/// The median, with the quartiles in parentheses.
fn spread(values: impl Iterator<Item = f64>, digits: usize) -> String {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let [low, median, high] = [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4]);
    format!("{median:.digits$} ({low:.digits$} to {high:.digits$})")
}
