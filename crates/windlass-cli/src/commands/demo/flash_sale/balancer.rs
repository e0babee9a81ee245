//! A small load balancer: each connection goes to the next shop in turn, or the one after it if that is closed.

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
    shops: Arc<Shops>,
    serving: JoinHandle<()>,
}

#[derive(Debug)]
struct Shops {
    addrs: Mutex<Vec<SocketAddr>>,
    next: AtomicUsize,
}

impl Balancer {
    pub(super) async fn open(listen: SocketAddr, shops: Vec<SocketAddr>) -> io::Result<Balancer> {
        let listener = TcpListener::bind(listen).await?;
        let addr = listener.local_addr()?;
        let shops = Arc::new(Shops {
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

    /// A shop is to be found at another address from now on.
    pub(super) fn moved(&self, shop: usize, addr: SocketAddr) {
        let addrs = self.shops.addrs.lock();
        addrs.unwrap_or_else(PoisonError::into_inner)[shop] = addr;
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

async fn serve(listener: TcpListener, shops: Arc<Shops>) {
    // Dropped with this task, and all connections with it.
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((buyer, _)) = accepted {
                connections.spawn(pass_on(buyer, Arc::clone(&shops)));
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

/// If no shop is open, the buyer is hung up on, and may come again.
async fn pass_on(mut buyer: TcpStream, shops: Arc<Shops>) -> io::Result<()> {
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
