//! The leased limiter beside the plain one, over a store whose round trip is slow: a Redis server
//! behind a proxy that delays.
//!
//! ```text
//! cargo run -p windlass-testkit --example slow_limiter [-- SECONDS]
//! ```
//!
//! Each task checks in a loop, and sleeps for a millisecond after a denial. The last rows are 64
//! clients of one limiter, each with more demand than its share.

use std::time::{Duration, Instant};

use windlass::{LeasedLimiter, Limiter, Quota};
use windlass_testkit::{Direction, FaultProxy, RedisServer};

const RATE: u64 = 1_000;
const BURST: u64 = 100;

#[derive(Clone)]
enum ComparedLimiter {
    Plain(Limiter),
    Leased(LeasedLimiter),
}

impl ComparedLimiter {
    async fn check(&self) -> bool {
        let decision = match self {
            ComparedLimiter::Plain(limiter) => limiter.check("all").await,
            ComparedLimiter::Leased(limiter) => limiter.check("all").await,
        };
        decision.is_ok_and(|decision| decision.is_allowed())
    }
}

/// Units admitted, and the longest time of a call.
async fn run(limiters: &[ComparedLimiter], tasks: usize, length: Duration) -> (u64, Duration) {
    let begun = Instant::now();
    let all: Vec<_> = (0..tasks)
        .map(|i| {
            let limiter = limiters[i % limiters.len()].clone();
            tokio::spawn(async move {
                let (mut admitted, mut worst) = (0, Duration::ZERO);
                while begun.elapsed() < length {
                    let sent = Instant::now();
                    let allowed = limiter.check().await;
                    worst = worst.max(sent.elapsed());
                    if allowed {
                        admitted += u64::from(begun.elapsed() < length);
                    } else {
                        tokio::time::sleep(Duration::from_millis(1)).await;
                    }
                }
                (admitted, worst)
            })
        })
        .collect();
    let (mut admitted, mut worst) = (0, Duration::ZERO);
    for task in all {
        let (units, longest) = task.await.expect("a task failed");
        admitted += units;
        worst = worst.max(longest);
    }
    (admitted, worst)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds: f64 = std::env::args().nth(1).map_or(Ok(5.0), |s| s.parse())?;
    let length = Duration::from_secs_f64(seconds);
    let server = RedisServer::start()?;
    let proxy = FaultProxy::start(server.addr())?;
    let url = format!("redis://{}", proxy.addr());
    println!("quota {RATE}/s, burst {BURST}, {seconds} s each\n");
    println!(
        "| round trip | tasks | plain | leased | plain, worst | leased, worst | store calls/s |"
    );
    println!("|---|---|---|---|---|---|---|");
    let mut number = 0;
    for millis in [1, 10, 30, 100, 200] {
        proxy.delay(Direction::Both, Duration::from_micros(millis * 500));
        for tasks in [1, 20, 200] {
            let mut figures = Vec::new();
            let mut calls = 0;
            for leased in [false, true] {
                number += 1;
                let w = windlass::connect(&url).await?;
                let quota = Quota::per_second(RATE).burst(BURST);
                let limiter = w.limiter(&format!("slow-{number}"), quota);
                // Connects and loads the script.
                let _ = limiter.check("other").await?;
                let kind = match leased {
                    true => ComparedLimiter::Leased(limiter.leased()),
                    false => ComparedLimiter::Plain(limiter),
                };
                figures.push(run(std::slice::from_ref(&kind), tasks, length).await);
                if let ComparedLimiter::Leased(limiter) = kind {
                    calls = limiter.store_calls();
                }
            }
            println!(
                "| {millis} ms | {tasks} | {} | {} | {:.2?} | {:.2?} | {:.0} |",
                figures[0].0,
                figures[1].0,
                figures[0].1,
                figures[1].1,
                calls as f64 / seconds
            );
        }
    }
    for millis in [1, 30] {
        proxy.delay(Direction::Both, Duration::from_micros(millis * 500));
        let mut fleet = Vec::new();
        for _ in 0..64 {
            let w = windlass::connect(&url).await?;
            let quota = Quota::per_second(RATE).burst(BURST);
            fleet.push(w.limiter(&format!("fleet-{millis}"), quota).leased());
        }
        let kinds: Vec<ComparedLimiter> =
            fleet.iter().cloned().map(ComparedLimiter::Leased).collect();
        let (admitted, worst) = run(&kinds, 256, length).await;
        let calls: u64 = fleet.iter().map(LeasedLimiter::store_calls).sum();
        println!(
            "| {millis} ms | 64 clients, 256 tasks | | {admitted} | | {worst:.2?} | {:.0} |",
            calls as f64 / seconds
        );
    }
    Ok(())
}
