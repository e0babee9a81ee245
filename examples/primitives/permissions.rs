//! Permissions in two bits each.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let repos = w
        .permissions("repos")
        .levels(["no", "read", "write", "read-write"]);
    let repos = repos.resources(["repo1", "repo2"]).define().await?;
    repos.set("ann", "repo1", "write").await?;
    println!(
        "ann may write repo1: {}",
        repos.check("ann", "repo1", "write").await?
    );
    println!(
        "ann may read repo2: {}",
        repos.check("ann", "repo2", "read").await?
    );
    Ok(())
}
