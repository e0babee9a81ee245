//! Several locks at once, all or none, without deadlocks.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    // The order does not matter: the store acquires them in one order everywhere.
    let guard = w.locks(["account/7", "account/12"]).acquire().await?;
    for name in guard.names() {
        println!("{name}: fence {:?}", guard.fence(name));
    }
    // One that is held keeps the others free.
    let other = w.locks(["account/12", "account/99"]);
    println!(
        "other transfer is busy: {}",
        other.try_acquire().await?.is_busy()
    );
    let _ = guard.release().await?;
    Ok(())
}
