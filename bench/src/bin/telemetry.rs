//! What metrics and spans cost: the same work with and without them, in turns.
//!
//! ```text
//! cargo run --release --manifest-path bench/Cargo.toml --features metrics --bin telemetry
//! ```
//!
//! Metrics go to a Prometheus exporter with buckets, which is rendered once per second. Spans go to a registry that
//! stores them until they close. It starts its own Redis server. `--only NAME` measures one variant, for profilers.
//!
//! Times are CPU times, which other load on the machine changes much less than what the clock shows. For Redis, the
//! first line is client and server together, which share the cores: what limits the cycles per second. The second is
//! the client alone.

use std::error::Error;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::task::JoinSet;
use tracing::subscriber::Interest;
use tracing::{Metadata, Subscriber};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::{Context, Layer};
use tracing_subscriber::prelude::*;
use windlass::{Coordinator, Options, Quota};
use windlass_testkit::RedisServer;

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// More than is used here: only allowed checks are measured.
const RATE: u64 = 1_000_000_000;
/// How many checks between two readings of the clock.
const BLOCK: u64 = 1_000;

/// Measures what metrics and spans cost
#[derive(Debug, Parser)]
struct TelemetryArgs {
    /// How many tasks lock and unlock at once, each its own name
    #[arg(long, value_name = "N", default_value_t = 64)]
    tasks: u32,

    /// How long one round lasts
    #[arg(long, value_name = "MS", default_value_t = 250)]
    millis: u64,

    /// How many rounds each has
    #[arg(long, value_name = "N", default_value_t = 41)]
    rounds: usize,

    /// Measures one variant: off, metrics, spans or both
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
}

/// What is on in a round.
#[derive(Clone, Copy)]
struct Variant {
    name: &'static str,
    metrics: bool,
    spans: bool,
}

const VARIANTS: [Variant; 4] = [
    Variant {
        name: "off",
        metrics: false,
        spans: false,
    },
    Variant {
        name: "metrics",
        metrics: true,
        spans: false,
    },
    Variant {
        name: "spans",
        metrics: false,
        spans: true,
    },
    Variant {
        name: "both",
        metrics: true,
        spans: true,
    },
];

/// Turns spans on and off. `tracing_subscriber::reload` would take a lock for each event of a span, which is measurable.
struct SpanSwitch;

static SPANS: AtomicBool = AtomicBool::new(false);

impl SpanSwitch {
    fn set(on: bool) {
        SPANS.store(on, Ordering::Relaxed);
        tracing::callsite::rebuild_interest_cache();
    }
}

impl<S: Subscriber> Layer<S> for SpanSwitch {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        match SPANS.load(Ordering::Relaxed) {
            true => Interest::always(),
            false => Interest::never(),
        }
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        SPANS.load(Ordering::Relaxed)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(match SPANS.load(Ordering::Relaxed) {
            true => LevelFilter::INFO,
            // The same as no subscriber: a span is one comparison then.
            false => LevelFilter::OFF,
        })
    }
}

/// The same store, with metrics and without.
struct Pair {
    with: Coordinator,
    without: Coordinator,
}

impl Pair {
    async fn connect(url: &str) -> Result<Pair> {
        Ok(Pair {
            with: windlass::connect(url).await?,
            without: Options::new().metrics(false).connect(url).await?,
        })
    }

    fn of(&self, variant: Variant) -> &Coordinator {
        match variant.metrics {
            true => &self.with,
            false => &self.without,
        }
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = TelemetryArgs::parse();
    let exporter = PrometheusBuilder::new()
        .set_buckets(&windlass::SECONDS_BUCKETS)?
        .install_recorder()?;
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_secs(1)).await;
            let _ = exporter.render();
        }
    });
    tracing_subscriber::registry().with(SpanSwitch).init();
    let server = RedisServer::start()?;
    let length = Duration::from_millis(args.millis);

    let redis = Pair::connect(&server.url()).await?;
    let memory = Pair::connect("memory:").await?;
    let all = || Ok(cpu_nanos() + server_cpu_nanos(&server)?);
    let alone = || Ok(cpu_nanos());
    let works: [(&str, &Pair, &dyn Fn() -> Result<f64>); 3] = [
        ("Redis, client and server", &redis, &all),
        ("Redis, client", &redis, &alone),
        ("memory:", &memory, &alone),
    ];
    for (name, pair, cpu) in works {
        let name = format!("lock, {} tasks, {name}: CPU ns per cycle", args.tasks);
        compare(&name, &args, async |variant| {
            let before = cpu()?;
            let cycles = locks(pair.of(variant), args.tasks, length).await?;
            Ok((cpu()? - before) / cycles as f64)
        })
        .await?;
    }
    compare(
        "leased check, one key: CPU ns per check",
        &args,
        async |variant| leased(memory.of(variant), length).await,
    )
    .await
}

/// Runs the variants in turns, and prints the times of each, and their ratios to those of the same turn without any.
async fn compare(
    name: &str,
    args: &TelemetryArgs,
    work: impl AsyncFn(Variant) -> Result<f64>,
) -> Result<()> {
    let mut times = [const { Vec::new() }; VARIANTS.len()];
    for round in 0..=args.rounds {
        // Each goes first as often as the others.
        for turn in 0..VARIANTS.len() {
            let i = (round + turn) % VARIANTS.len();
            if let Some(only) = &args.only
                && only != VARIANTS[i].name
            {
                continue;
            }
            SpanSwitch::set(VARIANTS[i].spans);
            let time = work(VARIANTS[i]).await?;
            // The first round warms up.
            if round > 0 {
                times[i].push(time);
            }
        }
    }
    if args.only.is_some() {
        return Ok(());
    }
    println!("{name}, {} rounds of {} ms", args.rounds, args.millis);
    for (variant, time) in VARIANTS.iter().zip(&times) {
        let pairs = || time.iter().zip(&times[0]);
        let [low, ratio, high] = spread(pairs().map(|(on, off)| on / off).collect());
        let [least, more, most] = spread(pairs().map(|(on, off)| on - off).collect());
        let [_, median, _] = spread(time.clone());
        println!(
            "  {:<8} {median:>9.1}  ratio {ratio:.3} ({low:.3} to {high:.3})  difference {more:+.1} ({least:+.1} to {most:+.1})  \
             undisturbed {:.1}, ratio {:.3}",
            variant.name,
            undisturbed(time),
            undisturbed(time) / undisturbed(&times[0])
        );
    }
    Ok(())
}

/// The lower quartile, the median and the upper quartile.
fn spread(mut values: Vec<f64>) -> [f64; 3] {
    values.sort_by(f64::total_cmp);
    [1, 2, 3].map(|quarter| values[(values.len() - 1) * quarter / 4])
}

/// The lowest tenth: the rounds in which other processes took the least from the caches.
fn undisturbed(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 10]
}

/// The cycles of all tasks together.
async fn locks(w: &Coordinator, tasks: u32, length: Duration) -> Result<u64> {
    let begun = Instant::now();
    let mut running: JoinSet<windlass::Result<u64>> = JoinSet::new();
    for task in 0..tasks {
        let w = w.clone();
        running.spawn(async move {
            let lock = w.lock(&format!("telemetry/{task}"));
            let mut cycles = 0u64;
            while begun.elapsed() < length {
                let _ = lock.acquire().await?.release().await?;
                cycles += 1;
            }
            Ok(cycles)
        });
    }
    let mut cycles = 0;
    while let Some(done) = running.join_next().await {
        cycles += done??;
    }
    Ok(cycles)
}

async fn leased(w: &Coordinator, length: Duration) -> Result<f64> {
    let limiter = w.limiter("api", Quota::per_second(RATE)).leased();
    let key = limiter.key("customer")?;
    let (mut checks, begun, cpu) = (0, Instant::now(), cpu_nanos());
    while begun.elapsed() < length {
        for _ in 0..BLOCK {
            let decision = key.check().await?;
            assert!(decision.is_allowed());
        }
        checks += BLOCK;
    }
    Ok((cpu_nanos() - cpu) / checks as f64)
}

/// The CPU time that this process has used.
fn cpu_nanos() -> f64 {
    let used = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    used.tv_sec as f64 * 1e9 + used.tv_nsec as f64
}

/// The CPU time that the server has used.
fn server_cpu_nanos(server: &RedisServer) -> Result<f64> {
    let info = server.command(&["INFO", "cpu"])?;
    let seconds = |name: &str| -> Result<f64> {
        let value = info.split(name).nth(1).ok_or("no CPU time")?;
        let value = value.split(['\r', '\n', '\\']).next().unwrap_or_default();
        Ok(value.parse()?)
    };
    Ok((seconds("used_cpu_sys:")? + seconds("used_cpu_user:")?) * 1e9)
}
