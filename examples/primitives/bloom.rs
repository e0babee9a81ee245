//! A Bloom filter: was this URL crawled? A million items in 1.2 MB.

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    let urls = w.bloom("urls").capacity(1_000_000).error_rate(0.01);
    let urls = urls.create().await?;
    urls.insert("https://example.com/a").await?;
    for url in ["https://example.com/a", "https://example.com/b"] {
        match urls.contains(url).await? {
            true => println!("{url}: probably crawled"),
            false => println!("{url}: certainly new"),
        }
    }
    Ok(())
}
