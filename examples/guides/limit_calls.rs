//! Guide "limit calls": keep the quota of an API that all machines call, and wait for a turn.

use std::time::Duration;
use windlass::{OnStoreError, Quota};

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let calls = w
        .limiter(
            "partner-api",
            [Quota::per_second(5), Quota::per_day(10_000)],
        )
        // A store that cannot be reached must not stop the service: each process keeps the quota alone.
        .on_store_error(OnStoreError::Local);
    for call in 1..=7 {
        let decision = calls.acquire_within("", 1, Duration::from_secs(5)).await?;
        match decision.is_allowed() {
            true => println!("call {call}"),
            false => println!("call {call} given up"),
        }
    }
    Ok(())
}
