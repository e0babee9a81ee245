//! Exact deduplication within a window.

use std::time::Duration;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let messages = w.seen("messages").window(Duration::from_secs(24 * 3600));
    for id in ["m-1", "m-2", "m-1"] {
        match messages.first(id).await? {
            true => println!("{id}: process"),
            false => println!("{id}: seen before"),
        }
    }
    Ok(())
}
