//! A gate: the resource rejects a writer whose lock has gone to another.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let gate = w.gate("stock"); // where the write lands

    let paused = w.lock("stock").acquire().await?;
    let stale = paused.fence();
    w.lock("stock").break_lock().await?; // as if its lease had expired while it was suspended

    let next = w.lock("stock").acquire().await?;
    println!("new holder: {:?}", gate.admit(next.fence()).await?);
    println!("old holder: {:?}", gate.admit(stale).await?);
    Ok(())
}
