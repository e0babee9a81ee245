//! A rate limiter: three logins a minute for each user.

use windlass::Quota;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let logins = w.limiter("login", Quota::per_minute(3));
    for attempt in 1..=4 {
        let decision = logins.check("ann").await?;
        match decision.is_allowed() {
            true => println!("attempt {attempt}: {} left", decision.remaining()),
            false => println!("attempt {attempt}: retry in {:?}", decision.retry_after()),
        }
    }
    println!("ben: {}", logins.check("ben").await?.is_allowed());
    Ok(())
}
