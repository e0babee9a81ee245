//! Guide "elect a leader": work while leader, stop before another can lead.

use std::time::Duration;
use windlass::Fence;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    // In a service, this is a loop: campaign again after each loss.
    let leadership = w.election("scheduler").campaign("10.0.0.7:8080").await?;
    match leadership.run(schedule(leadership.fence())).await {
        Ok(jobs) => println!("scheduled {jobs} jobs"),
        Err(lost) => println!("stopped: {lost}"),
    }
    let _ = leadership.resign().await?;
    Ok(())
}

/// Each write carries the fence, so that the database can reject a late one.
async fn schedule(fence: Fence) -> u32 {
    let mut jobs = 0;
    for job in ["mail", "invoice", "cleanup"] {
        println!("schedule {job} under fence {fence}");
        tokio::time::sleep(Duration::from_millis(1)).await;
        jobs += 1;
    }
    jobs
}
