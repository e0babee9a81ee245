//! A small round-robin load balancer, which skips shops that do not accept connections.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

#[derive(Debug)]
pub(super) struct Balancer {
    addr: SocketAddr,
    shops: Arc<Backends>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Backends {
    addrs: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
}

impl Balancer {
    pub(super) async fn open(listen: SocketAddr, shops: Vec<SocketAddr>) -> io::Result<Balancer> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let shops = Arc::new(Backends {
            addrs: Mutex::new(shops),
            next: AtomicUsize::new(0),
        });
        let serving = tokio::spawn(serve(listener, Arc::clone(&shops)));
        Ok(Balancer {
            addr,
            shops,
            serving,
        })
    }

    pub(super) fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Changes the address of a shop.
    pub(super) fn set_addr(&self, shop: usize, addr: SocketAddr) {
        let addrs = self.shops.addrs.lock();
        addrs.unwrap_or_else(PoisonError::into_inner)[shop] = addr;
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, shops: Arc<Backends>) {
    // Dropped with this task, which closes all connections.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((buyer, _)) = accepted {
                connections.spawn(forward(buyer, Arc::clone(&shops)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Forwards one connection. If no shop accepts it, the connection is closed, and the buyer retries.
async fn forward(mut buyer: TcpStream, shops: Arc<Backends>) -> io::Result<()> {
    buyer.set_nodelay(true)?;
    let addrs = shops.addrs.lock();
    let addrs = addrs.unwrap_or_else(PoisonError::into_inner).clone();
    let first = shops.next.fetch_add(1, Ordering::Relaxed);
    for step in 0..addrs.len() {
        let addr = addrs[(first + step) % addrs.len()];
        if let Ok(mut shop) = TcpStream::connect(addr).await {
            shop.set_nodelay(true)?;
            copy_bidirectional(&mut buyer, &mut shop).await?;
            break;
        }
    }
    Ok(())
}
