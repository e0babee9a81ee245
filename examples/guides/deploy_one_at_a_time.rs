//! Guide "deploy one at a time": wait for the running deployment, but not for ever.

use std::time::Duration;
use windlass::Attempt;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let deployment = w.lock("deploy/production").note("ann, build 17");
    match deployment.acquire_within(Duration::from_secs(600)).await? {
        Attempt::Acquired(guard) => {
            let state = w.lock("deploy/production").inspect().await?;
            println!("deploying: {:?}", state.holder.map(|holder| holder.note));
            let _ = guard.release().await?;
        }
        Attempt::Busy(busy) => println!("another deployment is running: {busy:?}"),
    }
    Ok(())
}
