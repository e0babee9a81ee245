//! Clients that take turns under one lock, to measure how soon all of them are served after a fault.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use windlass::Coordinator;

use crate::eventually;

/// Clients that acquire and release the lock "stock", again and again, until dropped.
#[derive(Debug)]
pub struct LockClients {
    clients: Vec<Client>,
}

#[derive(Debug)]
struct Client {
    grants: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

impl LockClients {
    /// Two clients for each coordinator. They wait for `wait` and then start again, so that some of them
    /// give up during an outage.
    pub fn start(coordinators: Vec<Coordinator>, ttl: Duration, wait: Duration) -> LockClients {
        let holders = Arc::new(AtomicUsize::new(0));
        let twice = coordinators.iter().chain(&coordinators);
        let clients = twice.map(|w| Client::start(w.clone(), ttl, wait, Arc::clone(&holders)));
        let clients = clients.collect();
        LockClients { clients }
    }

    /// Waits until each client was granted the lock once more, and returns how long that took.
    ///
    /// # Panics
    ///
    /// If it takes longer than `limit`, or if two clients held the lock at once.
    pub async fn all_served(&self, after: &str, limit: Duration) -> Duration {
        let (before, since) = (self.grants(), Instant::now());
        let served = eventually(limit, || async {
            let now = self.grants();
            now.iter().zip(&before).all(|(now, before)| now > before)
        });
        let (served, now) = (served.await, self.grants());
        assert!(served, "{after}: grants {before:?}, now {now:?}");
        let ended = self.clients.iter().any(|client| client.task.is_finished());
        assert!(!ended, "{after}: two clients held the lock");
        let took = since.elapsed();
        println!("{after}: all served after {took:?}");
        took
    }

    fn grants(&self) -> Vec<u64> {
        let grants = |client: &Client| client.grants.load(Ordering::SeqCst);
        self.clients.iter().map(grants).collect()
    }
}

impl Drop for LockClients {
    fn drop(&mut self) {
        self.clients.iter().for_each(|client| client.task.abort());
    }
}

impl Client {
    fn start(w: Coordinator, ttl: Duration, wait: Duration, holders: Arc<AtomicUsize>) -> Client {
        let grants = Arc::new(AtomicU64::new(0));
        let granted = Arc::clone(&grants);
        let task = tokio::spawn(async move {
            loop {
                match w.lock("stock").ttl(ttl).wait(wait).acquire().await {
                    Ok(guard) => {
                        assert_eq!(holders.fetch_add(1, Ordering::SeqCst), 0, "two holders");
                        granted.fetch_add(1, Ordering::SeqCst);
                        holders.fetch_sub(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(5)).await; // work
                        drop(guard);
                    }
                    // The store may be down: not in a tight loop.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        Client { grants, task }
    }
}
