//! A semaphore: at most three downloads at a time, on all machines.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let downloads = w.semaphore("downloads", 3);
    let first = downloads.acquire().await?;
    let heavy = downloads.acquire_many(2).await?;
    println!("{} free", downloads.available().await?);
    println!(
        "fourth is busy: {}",
        downloads.try_acquire().await?.is_busy()
    );
    let _ = heavy.release().await?;
    println!("{} free", downloads.available().await?);
    let _ = first.release().await?;
    Ok(())
}
