//! Guide "run cron once": every machine starts the job, one runs it, and only once a night.

use windlass::{Attempt, Coordinator, Result};

#[tokio::main]
async fn main() -> Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    for machine in ["host-1", "host-2"] {
        println!("{machine}: {}", nightly(&w, "2026-11-18").await?);
    }
    Ok(())
}

/// What cron starts on each machine.
async fn nightly(w: &Coordinator, night: &str) -> Result<&'static str> {
    // A run that is still going on, perhaps on another machine.
    let Attempt::Acquired(guard) = w.lock("nightly-report").try_acquire().await? else {
        return Ok("still running");
    };
    // A run of this night that is over, because the clocks of machines differ.
    if !w.seen("nightly-report").first(night).await? {
        return Ok("done already");
    }
    println!("make the report under fence {}", guard.fence());
    let _ = guard.release().await?;
    Ok("made")
}
