//! The in-memory limiter compared with governor's, one thread, many keys: the same loop for both,
//! in turns.
//!
//! ```text
//! cargo run --release --manifest-path bench/Cargo.toml --bin limiters
//! ```

use std::num::NonZeroU32;
use std::time::{Duration, Instant};

use governor::{Quota as TheirQuota, RateLimiter};
use windlass::Quota;

const KEYS: usize = 1_000;
const ROUNDS: usize = 7;
const ROUND: Duration = Duration::from_millis(700);
/// More than is used here: only allowed calls are measured.
const RATE: u32 = 1_000_000_000;
/// How many calls between two readings of the clock.
const BLOCK: usize = 1_000;

#[tokio::main(flavor = "current_thread")]
async fn main() -> windlass::Result<()> {
    let keys: Vec<String> = (0..KEYS).map(|i| format!("customer-{i}")).collect();
    let w = windlass::connect("memory:").await?;
    let ours = w.limiter("api", Quota::per_second(u64::from(RATE)));
    let rate = NonZeroU32::new(RATE).expect("it is not zero");
    let theirs = RateLimiter::keyed(TheirQuota::per_second(rate));
    let leased = ours.leased();

    let mut rates = [Vec::new(), Vec::new(), Vec::new()];
    for round in 0..=ROUNDS {
        let (mut done, begun) = (0u64, Instant::now());
        while begun.elapsed() < ROUND {
            for i in 0..BLOCK {
                let decision = ours.check(&keys[i % KEYS]).await?;
                assert!(decision.is_allowed());
            }
            done += BLOCK as u64;
        }
        let us = done as f64 / begun.elapsed().as_secs_f64();

        let (mut done, begun) = (0u64, Instant::now());
        while begun.elapsed() < ROUND {
            for i in 0..BLOCK {
                assert!(theirs.check_key(&keys[i % KEYS]).is_ok());
            }
            done += BLOCK as u64;
        }
        let them = done as f64 / begun.elapsed().as_secs_f64();

        let (mut done, begun) = (0u64, Instant::now());
        while begun.elapsed() < ROUND {
            for i in 0..BLOCK {
                let decision = leased.check(&keys[i % KEYS]).await?;
                assert!(decision.is_allowed());
            }
            done += BLOCK as u64;
        }
        let lent = done as f64 / begun.elapsed().as_secs_f64();
        // The first round warms up caches and the allocator.
        if round > 0 {
            for (rates, rate) in rates.iter_mut().zip([us, them, lent]) {
                rates.push(rate);
            }
        }
    }
    let [us, them, lent] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[rates.len() / 2]
    });
    println!("windlass memory:    {us:>12.0} checks/s");
    println!("windlass, leased:   {lent:>12.0} checks/s");
    println!("governor, keyed:    {them:>12.0} checks/s");
    println!(
        "ratio, memory: {:.2}; leased: {:.2}",
        us / them,
        lent / them
    );
    Ok(())
}
