//! The buyers. Each wants one, and comes again when hung up on.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long a buyer takes to press the button again.
const AGAIN: Duration = Duration::from_millis(20);

/// What became of a buyer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    pub(super) got_one: bool,
    pub(super) at: Instant,
}

/// So many buyers, on their way to the balancer. Dropping them sends them home.
pub(super) fn gather(balancer: SocketAddr, sale: &str, buyers: u32) -> JoinSet<Served> {
    let mut crowd = JoinSet::new();
    for number in 0..buyers {
        crowd.spawn(buy(balancer, format!("{sale}-{number}")));
    }
    crowd
}

async fn buy(balancer: SocketAddr, name: String) -> Served {
    loop {
        // Hung up on, or "try again later": a shop has crashed, or could not reach its store.
        if let Ok(Some(got_one)) = ask(balancer, &name).await {
            let at = Instant::now();
            return Served { got_one, at };
        }
        sleep(AGAIN).await;
    }
}

/// Whether the buyer got one; `None` if the answer was neither yes nor no.
async fn ask(balancer: SocketAddr, name: &str) -> io::Result<Option<bool>> {
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
