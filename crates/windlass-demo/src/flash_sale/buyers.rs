//! The buyers: each wants one item, and retries when its connection is closed.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pause before a buyer retries.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The answer that a buyer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ServedBuyer {
    pub(super) got_one: bool,
    pub(super) at: Instant,
}

/// Starts the buyers. Dropping the set ends them.
pub(super) fn start(balancer: SocketAddr, sale: &str, buyers: u32) -> JoinSet<ServedBuyer> {
    let mut running = JoinSet::new();
    for number in 0..buyers {
        running.spawn(buy(balancer, format!("{sale}-{number}")));
    }
    running
}

async fn buy(balancer: SocketAddr, name: String) -> ServedBuyer {
    loop {
        // A closed connection, or status 503: a shop has crashed, or could not reach its store.
        if let Ok(Some(got_one)) = request(balancer, &name).await {
            let at = Instant::now();
            return ServedBuyer { got_one, at };
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Whether the buyer got an item; `None` if the answer was neither yes nor no.
async fn request(balancer: SocketAddr, name: &str) -> io::Result<Option<bool>> {
    let mut stream = TcpStream::connect(balancer).await?;
    stream.set_nodelay(true)?;
    let request = format!(
        "POST /buy/{name} HTTP/1.1\r\nHost: shop\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let status = answer.split(|byte| *byte == b' ').nth(1);
    Ok(match status {
        Some(b"200") => Some(true),
        Some(b"410") => Some(false),
        _ => None,
    })
}
