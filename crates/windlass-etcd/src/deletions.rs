//! Deletions that come at the same time are sent together: each is a consensus of its own otherwise.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::link::Link;
use super::txn::{MOST_OPS, Txn, delete};
use windlass_core::error::{Error, ErrorKind, Result};

/// Keys to be deleted, whatever they hold.
#[derive(Debug)]
pub(super) struct Deletions {
    link: Arc<Link>,
    runtime: Handle,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    wanted: Vec<Wanted>,
    /// Somebody sends what is in the queue.
    sending: bool,
}

#[derive(Debug)]
struct Wanted {
    keys: Vec<String>,
    tell: oneshot::Sender<Result<bool>>,
}

impl Deletions {
    pub(super) fn new(link: Arc<Link>, runtime: Handle) -> Arc<Deletions> {
        Arc::new(Deletions {
            link,
            runtime,
            queue: Mutex::default(),
        })
    }

    /// Deletes some keys, and tells whether the first of them was there.
    pub(super) async fn delete(self: &Arc<Deletions>, keys: Vec<String>) -> Result<bool> {
        let (tell, told) = oneshot::channel();
        let begins = {
            let mut queue = self.queue();
            queue.wanted.push(Wanted { keys, tell });
            !std::mem::replace(&mut queue.sending, true)
        };
        if begins {
            let this = Arc::clone(self);
            self.runtime.spawn(async move { this.send_all().await });
        }
        told.await.unwrap_or_else(|_| {
            let message = "the runtime that this coordinator was connected in has ended";
            Err(Error::new(ErrorKind::Store, "release", message))
        })
    }

    async fn send_all(&self) {
        loop {
            let wanted = {
                let mut queue = self.queue();
                let (mut count, mut keys) = (0, 0);
                for wanted in &queue.wanted {
                    keys += wanted.keys.len();
                    if keys > MOST_OPS {
                        break;
                    }
                    count += 1;
                }
                if count == 0 {
                    queue.sending = false;
                    return;
                }
                queue.wanted.drain(..count).collect::<Vec<Wanted>>()
            };
            // No two of one owner and name are under way at once, save in a retry: a key twice would be refused.
            let mut txn = Txn::new();
            let mut known: Vec<&str> = Vec::new();
            for key in wanted.iter().flat_map(|wanted| &wanted.keys) {
                if !known.contains(&key.as_str()) {
                    known.push(key);
                    txn = txn.then(delete(key));
                }
            }
            let done = self.link.txn(txn).await;
            let deleted: Result<Vec<bool>> =
                done.and_then(|mut done| known.iter().map(|_| Ok(done.deleted()? > 0)).collect());
            let found = |wanted: &Wanted| match &deleted {
                Ok(deleted) => {
                    let at = known
                        .iter()
                        .position(|key| Some(*key) == wanted.keys.first().map(String::as_str));
                    Ok(at.is_some_and(|at| deleted[at]))
                }
                Err(e) => Err(e.again()),
            };
            let answers: Vec<Result<bool>> = wanted.iter().map(found).collect();
            for (wanted, answer) in wanted.into_iter().zip(answers) {
                let _ = wanted.tell.send(answer);
            }
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Each change is a single insertion or removal: a panic leaves nothing half done.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
