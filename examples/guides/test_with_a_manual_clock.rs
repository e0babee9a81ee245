//! Guide "test programs that use locks": time that moves when the test says so.

use std::time::Duration;
use windlass::{Clock, Options, Quota};

#[tokio::main]
async fn main() -> windlass::Result<()> {
    let clock = Clock::manual();
    let options = Options::new().clock(clock.clone());
    let w = options.connect("memory:").await?;
    let logins = w.limiter("login", Quota::per_minute(1));
    println!("first: {}", logins.check("ann").await?.is_allowed());
    println!("second: {}", logins.check("ann").await?.is_allowed());
    clock.advance(Duration::from_secs(60));
    println!(
        "a minute later: {}",
        logins.check("ann").await?.is_allowed()
    );
    Ok(())
}
