//! Publish and subscribe: drop a user from every cache.

use serde::{Deserialize, Serialize};
use windlass::Event;

#[derive(Serialize, Deserialize)]
struct Changed {
    user: u32,
}

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let changes = w.topic::<Changed>("users/changed");
    let mut subscription = changes.subscribe().await?;
    changes.publish(&Changed { user: 42 }).await?;
    match subscription.next().await? {
        Event::Message(changed) => println!("drop user {} from the cache", changed.user),
        // Messages may have been missed: start over from the source.
        _ => println!("drop everything from the cache"),
    }
    Ok(())
}
