//! `bench limit --holds`: an estimate that is charged and settled, beside a plain check.

use std::time::Duration;

use serde::Serialize;
use windlass::{Estimate, Limiter, Quota, Settle};
use windlass_term::{Failure, Printer};

use crate::args::LimitArgs;
use crate::interleave::{Cycle, PAIRS, Side, ratio, round};
use crate::latency::rounded;
use crate::report::{ProgressLine, ReportTable, short};
use crate::{invalid_run, unique_prefix};

/// Divides the round length for warm-up rounds.
const WARM_UP: u32 = 5;
/// More than any machine can use: the workload measures allowed calls.
const QUOTA: Quota = Quota::per_second(100_000_000);
/// Short, so that a long run leaves little behind.
const TTL: Duration = Duration::from_secs(1);

#[derive(Serialize)]
struct HoldReport {
    workload: &'static str,
    store: &'static str,
    tasks: u32,
    holds_per_s: f64,
    checks_per_s: f64,
    /// Of holds to checks: 0.5 if a hold and its settlement cost as much as two checks.
    ratio: Option<f64>,
    p50_us: f64,
    p99_us: f64,
    check_p50_us: f64,
    check_p99_us: f64,
}

pub(crate) async fn holds(args: &LimitArgs, url: &str, printer: &Printer) -> Result<(), Failure> {
    let store = windlass::connect(url).await?;
    let kind = store.capabilities().kind;
    let progress = ProgressLine::new(printer);
    let columns = [
        "tasks",
        "holds/s",
        "checks/s",
        "ratio",
        "p50 µs",
        "p99 µs",
        "check p50",
        "check p99",
    ];
    let table = ReportTable::new(printer, &columns);
    let length = args.seconds / PAIRS;
    let limiter = store.limiter(&unique_prefix(), QUOTA);
    for &tasks in &args.tasks {
        let held = || {
            (0..tasks).map(|i| HoldCycle {
                limiter: limiter.clone(),
                key: format!("held-{i}"),
            })
        };
        let checked = || {
            (0..tasks).map(|i| CheckCycle {
                limiter: limiter.clone(),
                key: format!("checked-{i}"),
            })
        };
        progress.now(format_args!("{tasks} tasks: warming up"));
        round(checked(), length / WARM_UP, None).await?;
        round(held(), length / WARM_UP, None).await?;
        let (mut holds, mut checks) = (Vec::new(), Vec::new());
        for pair in 1..=PAIRS {
            // The order alternates, so that drift of the machine favours neither side.
            for holds_turn in [pair % 2 == 0, pair % 2 == 1] {
                progress.now(format_args!("{tasks} tasks: round {pair} of {PAIRS}"));
                match holds_turn {
                    true => holds.push(round(held(), length, None).await?),
                    false => checks.push(round(checked(), length, None).await?),
                }
            }
        }
        progress.clear();
        let (hold, check) = (Side::of(&holds), Side::of(&checks));
        let report = HoldReport {
            workload: "hold",
            store: kind,
            tasks,
            holds_per_s: rounded(hold.per_second),
            checks_per_s: rounded(check.per_second),
            ratio: ratio(&holds, &checks).map(rounded),
            p50_us: rounded(hold.p50_us),
            p99_us: rounded(hold.p99_us),
            check_p50_us: rounded(check.p50_us),
            check_p99_us: rounded(check.p99_us),
        };
        let row = [
            tasks.to_string(),
            short(report.holds_per_s),
            short(report.checks_per_s),
            report.ratio.map_or_else(String::new, short),
            short(report.p50_us),
            short(report.p99_us),
            short(report.check_p50_us),
            short(report.check_p99_us),
        ];
        table.row(&report, &row);
    }
    Ok(())
}

/// Charges an estimate of two units, and settles it with one.
struct HoldCycle {
    limiter: Limiter,
    key: String,
}

impl Cycle for HoldCycle {
    async fn once(&mut self) -> Result<(), Failure> {
        let Estimate::Held(hold) = self.limiter.reserve_estimate(&self.key, 2, TTL).await? else {
            return Err(invalid_run(
                "an estimate was denied at 100 million a second",
            ));
        };
        match hold.settle(1).await? {
            Settle::NotFound => Err(invalid_run("a call took longer than a second")),
            _ => Ok(()),
        }
    }
}

struct CheckCycle {
    limiter: Limiter,
    key: String,
}

impl Cycle for CheckCycle {
    async fn once(&mut self) -> Result<(), Failure> {
        match self.limiter.check(&self.key).await?.is_allowed() {
            true => Ok(()),
            false => Err(invalid_run("a check was denied at 100 million a second")),
        }
    }
}
