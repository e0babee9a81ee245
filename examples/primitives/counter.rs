//! A bounded counter: sell at most the stock, without a lock.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let sold = w.counter("sold").max(2);
    for buyer in ["ann", "ben", "cid"] {
        println!("{buyer}: {:?}", sold.add(1).await?);
    }
    // A repeated request counts once.
    let likes = w.counter("likes");
    for _ in 0..2 {
        println!("like: {:?}", likes.add_once("request-1", 1).await?);
    }
    println!("{} sold, {} like", sold.get().await?, likes.get().await?);
    Ok(())
}
