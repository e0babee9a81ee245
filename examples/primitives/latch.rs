//! A latch: wait until three imports are done.

use std::time::Duration;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let ready = w.latch("imports");
    ready.reset(3).await?;
    for import in ["customers", "orders", "prices"] {
        println!("{import} done, {} left", ready.count_down().await?);
    }
    let opening = ready.wait_within(Duration::from_secs(5)).await?;
    println!("start the report: {opening:?}");
    Ok(())
}
