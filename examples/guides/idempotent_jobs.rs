//! Guide "idempotent jobs": a queue delivers twice, the job runs once, a failure may be retried.

use windlass::{Coordinator, Ran, Result};

#[tokio::main]
async fn main() -> Result<()> {
    // A store URL as argument: file:/tmp/locks.db, redis://127.0.0.1, …
    let url = std::env::args().nth(1).unwrap_or("memory:".to_owned());
    let w = windlass::connect(&url).await?;
    println!("{}", deliver(&w, false).await?); // the mail server is down
    println!("{}", deliver(&w, true).await?);
    println!("{}", deliver(&w, true).await?);
    Ok(())
}

async fn deliver(w: &Coordinator, mail_server_works: bool) -> Result<String> {
    let mail = w.once("welcome-mail/ann");
    let ran = mail.run(|_fence| async move {
        match mail_server_works {
            true => Ok(b"250 queued".to_vec()),
            false => Err(std::io::Error::other("no connection")),
        }
    });
    Ok(match ran.await? {
        Ran::First(_) => "sent".to_owned(),
        Ran::Again(_) => "sent before".to_owned(),
        // By default a failure is not kept, and the next delivery tries again.
        Ran::Failed(error) => format!("failed: {error}"),
        Ran::FailedBefore(why) => format!("failed before: {why}"),
    })
}
