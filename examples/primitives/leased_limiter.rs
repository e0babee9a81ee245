//! A leased limiter: decides in this process, and all processes together keep the quota.

use windlass::Quota;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let api = w.limiter("api", Quota::per_second(10_000)).leased();
    let mut allowed = 0;
    for _ in 0..1_000 {
        allowed += u32::from(api.check("tenant-7").await?.is_allowed());
    }
    println!(
        "{allowed} allowed with {} calls to the store",
        api.store_calls()
    );
    api.give_back().await?; // what was prefetched and not used
    Ok(())
}
