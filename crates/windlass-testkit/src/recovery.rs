//! Clients that take turns under one lock, to measure how soon all of them are served after a fault.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use windlass::{Coordinator, LockGuard};

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
        let holder: Arc<CurrentHolder> = Arc::default();
        let twice = coordinators.iter().chain(&coordinators);
        let start = |(id, w): (usize, &Coordinator)| {
            Client::start(id, w.clone(), ttl, wait, Arc::clone(&holder))
        };
        let clients = twice.enumerate().map(start).collect();
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
            let all_served = now.iter().zip(&before).all(|(now, before)| now > before);
            all_served || self.has_two_holders()
        });
        let (served, now) = (served.await, self.grants());
        let exclusive = !self.has_two_holders();
        assert!(exclusive, "{after}: two clients held the lock");
        assert!(served, "{after}: grants {before:?}, now {now:?}");
        let took = since.elapsed();
        println!("{after}: all served after {took:?}");
        took
    }

    /// A client ends if it finds another holder.
    fn has_two_holders(&self) -> bool {
        self.clients.iter().any(|client| client.task.is_finished())
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

/// The client that holds the lock, and how long its lease is valid at least.
#[derive(Debug, Default)]
struct CurrentHolder(Mutex<Option<(usize, Instant)>>);

impl CurrentHolder {
    /// The client was granted the lock.
    ///
    /// # Panics
    ///
    /// If the lease of another client is still valid.
    fn begin(&self, client: usize, guard: &LockGuard) {
        let now = Instant::now();
        let valid_until = now + guard.remaining();
        let mut holder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((other, until)) = *holder {
            assert!(until <= now, "{other} and {client} hold the lock");
        }
        *holder = Some((client, valid_until));
    }

    /// The client is about to release the lock. Another one may hold it, if the lease was lost.
    fn end(&self, client: usize) {
        let mut holder = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        holder.take_if(|(current, _)| *current == client);
    }
}

impl Client {
    fn start(
        id: usize,
        w: Coordinator,
        ttl: Duration,
        wait: Duration,
        holder: Arc<CurrentHolder>,
    ) -> Client {
        let grants = Arc::new(AtomicU64::new(0));
        let granted = Arc::clone(&grants);
        let task = tokio::spawn(async move {
            loop {
                match w.lock("stock").ttl(ttl).wait(wait).acquire().await {
                    Ok(guard) => {
                        holder.begin(id, &guard);
                        granted.fetch_add(1, Ordering::SeqCst);
                        tokio::time::sleep(Duration::from_millis(5)).await; // work
                        holder.end(id);
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

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn one_holder_at_a_time_is_fine() {
        let w = windlass::connect("memory:").await.unwrap();
        let clients = LockClients::start(vec![w], TTL, TTL);
        clients.all_served("the start", TTL).await;
    }

    /// As if two stores were one.
    #[tokio::test]
    #[should_panic(expected = "two clients held the lock")]
    async fn two_holders_are_noticed() {
        let coordinators = [
            windlass::connect("memory:").await.unwrap(),
            windlass::connect("memory:").await.unwrap(),
        ];
        let clients = LockClients::start(coordinators.to_vec(), TTL, TTL);
        clients.all_served("the start", TTL).await;
    }
}
