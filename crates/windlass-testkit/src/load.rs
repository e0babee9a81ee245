//! Clients that count under one lock, for as long as they are let.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinHandle;
use windlass::Coordinator;

use crate::register::{RegisterClient, Written};

/// Longer than a renewal takes on a busy machine, shorter than a failover.
const TTL: Duration = Duration::from_millis(1500);
const WAIT: Duration = Duration::from_millis(2000);
const PAUSE: Duration = Duration::from_millis(10);

/// Clients that read, add one and write in a register that checks fences, each time under a lock. Whatever
/// goes wrong with the lock, they try again.
#[derive(Debug, Default)]
pub struct CountingLoad {
    stop: Arc<AtomicBool>,
    counted: Arc<AtomicU64>,
    clients: Vec<JoinHandle<()>>,
}

impl CountingLoad {
    /// Nobody counts yet.
    pub fn new() -> CountingLoad {
        CountingLoad::default()
    }

    /// One more client, on a connection of its own.
    pub fn join(&mut self, w: Coordinator, lock: &str, register: SocketAddr) {
        let (stop, counted) = (Arc::clone(&self.stop), Arc::clone(&self.counted));
        let lock = lock.to_owned();
        self.clients.push(tokio::spawn(async move {
            let mut client = RegisterClient::connect(register).expect("the register is there");
            while !stop.load(Ordering::Relaxed) {
                let Ok(guard) = w.lock(&lock).ttl(TTL).wait(WAIT).acquire().await else {
                    tokio::time::sleep(PAUSE).await;
                    continue;
                };
                let value = client.read().expect("the register answers");
                if !guard.is_held() {
                    continue;
                }
                let written = client.write(guard.fence().get(), value + 1);
                if let Written::Accepted = written.expect("the register answers") {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                let _ = guard.release().await;
            }
        }));
    }

    /// How often one was added.
    pub fn counted(&self) -> u64 {
        self.counted.load(Ordering::Relaxed)
    }

    /// Lets them finish.
    ///
    /// # Panics
    ///
    /// If one of them did.
    pub async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        for client in self.clients {
            client.await.expect("a client panicked");
        }
    }
}
