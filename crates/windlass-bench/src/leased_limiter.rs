//! `bench limit --leased`: decisions from prefetched tokens, and the calls they cost the store.

use std::time::{Duration, Instant};

use serde::Serialize;
use windlass::{LeasedKey, Quota};
use windlass_chart::BarGroup;
use windlass_term::Failure;

use crate::args::LimitArgs;
use crate::latency::rounded;
use crate::report::{Output, ProgressLine, ReportTable, short};
use crate::{unique_prefix, usage};

/// Tokens per second.
const RATE: u64 = 1_000_000;
/// Checks between two readings of the clock.
const BLOCK: u64 = 1_000;

#[derive(Serialize)]
struct LeasedLimiterReport {
    workload: &'static str,
    store: &'static str,
    /// Load: as fast as one core can check, or half of the rate.
    demand: &'static str,
    tasks: u32,
    ops_per_s: f64,
    allowed_per_s: f64,
    store_calls_per_s: f64,
    cpu_us_per_op: f64,
}

pub(crate) async fn leased_limiter(
    args: &LimitArgs,
    url: &str,
    printer: &Output<'_>,
) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let progress = ProgressLine::new(printer);
    let table = ReportTable::new(
        printer,
        &["demand", "checks/s", "allowed/s", "calls/s", "cpu ns"],
    );
    let mut picture = Vec::new();
    for demand in ["all", "half"] {
        let limiter = store.limiter(&unique_prefix(), Quota::per_second(RATE));
        let leased = limiter.leased();
        let key = leased.key("all")?;
        progress.now(format_args!("{demand}: warming up"));
        let half = demand == "half";
        run(&key, args.seconds / 5, half).await?;
        progress.now(format_args!("{demand}"));
        let (calls, cpu) = (leased.store_calls(), usage::own_cpu());
        let begun = Instant::now();
        let (checks, allowed) = run(&key, args.seconds, half).await?;
        let seconds = begun.elapsed().as_secs_f64();
        let calls = leased.store_calls() - calls;
        let cpu = usage::own_cpu() - cpu;
        progress.clear();
        let answer = LeasedLimiterReport {
            workload: "limit",
            store: kind,
            demand,
            tasks: 1,
            ops_per_s: rounded(checks as f64 / seconds),
            allowed_per_s: rounded(allowed as f64 / seconds),
            store_calls_per_s: rounded(calls as f64 / seconds),
            cpu_us_per_op: cpu.as_secs_f64() * 1e6 / checks.max(1) as f64,
        };
        table.row(
            &answer,
            &[
                demand.to_owned(),
                short(answer.ops_per_s),
                short(answer.allowed_per_s),
                short(answer.store_calls_per_s),
                short(answer.cpu_us_per_op * 1e3),
            ],
        );
        picture.push(BarGroup {
            label: demand.to_owned(),
            values: vec![Some(answer.ops_per_s), Some(answer.allowed_per_s)],
        });
        leased.give_back().await?;
    }
    printer.chart(
        "checks a second, by demand",
        &["checks", "allowed"],
        picture,
    );
    Ok(())
}

/// Checks in a loop. Returns the number of checks, and of those that were allowed.
async fn run(key: &LeasedKey, length: Duration, half: bool) -> Result<(u64, u64), Failure> {
    let (begun, mut checks, mut allowed) = (Instant::now(), 0u64, 0u64);
    while begun.elapsed() < length {
        for _ in 0..BLOCK {
            allowed += u64::from(key.check().await?.is_allowed());
        }
        checks += BLOCK;
        if half {
            let due = Duration::from_nanos(checks * 2_000_000_000 / RATE);
            tokio::time::sleep(due.saturating_sub(begun.elapsed())).await;
        } else {
            tokio::task::yield_now().await;
        }
    }
    Ok((checks, allowed))
}
