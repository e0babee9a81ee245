//! A read-write lock: many readers or one writer.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let config = w.rwlock("config");
    let (first, second) = (config.read().await?, config.read().await?);
    println!("writer is busy: {}", config.try_write().await?.is_busy());
    let _ = first.release().await?;
    let _ = second.release().await?;

    let writer = config.write().await?;
    println!("write under fence {}", writer.fence());
    let reader = writer.downgrade().await?; // no writer can come in between
    let _ = reader.release().await?;
    Ok(())
}
