//! A barrier: two load generators start and finish together.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let generator = async |name: &str| {
        let party = w.barrier("load-test", 2).enter().await?; // waits for the other
        println!("{name} starts in round {}", party.round());
        party.leave().await?; // waits until the other is done, too
        windlass::Result::Ok(())
    };
    let (a, b) = tokio::join!(generator("a"), generator("b"));
    a.and(b)
}
