//! Leader election: one candidate leads, all can see which.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let election = w.election("scheduler");
    let leadership = election.campaign("10.0.0.7:8080").await?;

    // Any process can follow the leader.
    let mut leaders = w.election("scheduler").observe();
    if let Some(leader) = leaders.next().await? {
        println!("leader: {}", leader.value);
    }
    println!("scheduling under fence {}", leadership.fence());
    let _ = leadership.resign().await?;
    println!(
        "leader: {:?}",
        election.leader().await?.map(|leader| leader.value)
    );
    Ok(())
}
