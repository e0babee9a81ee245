//! A network that delivers what was sent after its sender has hung up.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Passes bytes on, but can keep back what the first connection sends, and deliver it even after
/// its client has hung up. Later connections are not held back.
#[derive(Debug)]
pub struct LateLane {
    addr: SocketAddr,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    holding: AtomicBool,
    delivered: AtomicBool,
}

impl LateLane {
    /// Stands in front of `server`, for the life of the runtime.
    pub async fn start(server: SocketAddr) -> io::Result<LateLane> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(State::default());
        let shared = Arc::clone(&state);
        tokio::spawn(async move {
            let mut slow = Some(shared);
            while let Ok((client, _)) = listener.accept().await {
                let Ok(upstream) = TcpStream::connect(server).await else {
                    continue;
                };
                let (from_client, mut to_client) = client.into_split();
                let (mut from_server, to_server) = upstream.into_split();
                tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
                });
                tokio::spawn(pass_on(from_client, to_server, slow.take()));
            }
        });
        Ok(LateLane { addr, state })
    }

    /// Where to connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Keeps back what the first connection sends, or lets it go.
    pub fn hold_first_connection(&self, hold: bool) {
        self.state.holding.store(hold, Ordering::SeqCst);
    }

    /// Whether anything that was kept back has been delivered.
    pub fn delivered(&self) -> bool {
        self.state.delivered.load(Ordering::SeqCst)
    }
}

async fn pass_on(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, slow: Option<Arc<State>>) {
    let mut bytes = vec![0; 65536];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        let mut late = false;
        if let Some(state) = &slow {
            while state.holding.load(Ordering::SeqCst) {
                late = true;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        if to.write_all(&bytes[..n]).await.is_err() {
            return;
        }
        if let (true, Some(state)) = (late, &slow) {
            state.delivered.store(true, Ordering::SeqCst);
        }
    }
}
