//! A lock: one client acts at a time, and sends its fencing token along.

use windlass::Attempt;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let lock = w.lock("invoice/42").note("nightly billing");

    let guard = lock.acquire().await?; // waits in a queue, first come, first served
    println!("bill invoice 42 under fence {}", guard.fence());

    // Another client does not get it, and learns who has it.
    match lock.try_acquire().await? {
        Attempt::Acquired(_) => unreachable!("the lock is held"),
        Attempt::Busy(busy) => println!("busy: {busy:?}"),
    }

    // The work is dropped if the lease is lost, before another client can have the lock.
    let billed = guard.run(async { "billed" }).await;
    println!("{billed:?}");
    println!("released: {:?}", guard.release().await?); // whether it was still held
    Ok(())
}
