//! An idempotency key: a payment runs once, a repeat gets the stored receipt.

use windlass::Ran;

#[tokio::main]
async fn main() -> windlass::Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    for delivery in 1..=2 {
        let charge = w.once("charge/order-42").payload("1999");
        let ran = charge.run(|fence| async move {
            println!("charge the card under fence {fence}");
            std::io::Result::Ok(b"receipt 7".to_vec())
        });
        match ran.await? {
            Ran::First(receipt) => println!("delivery {delivery}: {}", text(&receipt)),
            Ran::Again(receipt) => println!("delivery {delivery}: {}, again", text(&receipt)),
            Ran::Failed(error) => println!("delivery {delivery}: {error}"),
            Ran::FailedBefore(why) => println!("delivery {delivery}: {why}"),
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
