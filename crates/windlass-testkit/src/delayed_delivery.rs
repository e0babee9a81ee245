//! A proxy that delivers bytes after their sender has closed the connection.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

/// Forwards bytes, but can hold back what the first connection sends and deliver it even after its
/// client has closed the connection. Later connections are not held back.
#[derive(Debug)]
pub struct DelayedDeliveryProxy {
    addr: SocketAddr,
    state: Arc<DeliveryState>,
}

#[derive(Debug, Default)]
struct DeliveryState {
    holding: AtomicBool,
    /// Starts to hold when the client sends this text.
    holds_from: Mutex<Option<String>>,
    delivered: AtomicBool,
}

impl DeliveryState {
    fn hold_if_told(&self, bytes: &[u8]) {
        let mut from = self.holds_from();
        let sent = String::from_utf8_lossy(bytes);
        if from.as_ref().is_some_and(|text| sent.contains(text)) {
            self.holding.store(true, Ordering::SeqCst);
            *from = None;
        }
    }

    fn holds_from(&self) -> MutexGuard<'_, Option<String>> {
        let from = self.holds_from.lock();
        from.unwrap_or_else(PoisonError::into_inner)
    }
}

impl DelayedDeliveryProxy {
    /// Starts a proxy in front of `server`. It lives as long as the runtime.
    pub async fn start(server: SocketAddr) -> io::Result<DelayedDeliveryProxy> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let addr = listener.local_addr()?;
        let state = Arc::new(DeliveryState::default());
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
        Ok(DelayedDeliveryProxy { addr, state })
    }

    /// The address for clients to connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Holds back what the first connection sends, or releases it.
    pub fn hold_first_connection(&self, hold: bool) {
        self.state.holding.store(hold, Ordering::SeqCst);
    }

    /// Holds back what the first connection sends from `text` on.
    pub fn hold_from(&self, text: &str) {
        *self.state.holds_from() = Some(text.to_owned());
    }

    /// Whether the first connection is held back.
    pub fn is_holding(&self) -> bool {
        self.state.holding.load(Ordering::SeqCst)
    }

    /// Whether held bytes have been delivered.
    pub fn delivered(&self) -> bool {
        self.state.delivered.load(Ordering::SeqCst)
    }
}

async fn pass_on(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    slow: Option<Arc<DeliveryState>>,
) {
    let mut bytes = vec![0; 65536];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        let mut late = false;
        if let Some(state) = &slow {
            state.hold_if_told(&bytes[..n]);
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
