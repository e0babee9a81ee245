//! The stream over which leases are renewed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::connection::EtcdConnection;
use super::errors::unreachable;
use super::proto::{KeepAliveRequest, KeepAliveResponse};
use windlass_core::error::Result;

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// The stream over which leases are renewed. For each lease, replies come in the order of the requests.
#[derive(Default)]
pub(super) struct KeepAliveStream(Arc<Mutex<KeepAliveState>>);

/// A reply to a keep-alive.
pub(super) struct KeepAliveReply {
    /// In seconds; 0 if the lease no longer exists.
    pub(super) ttl: i64,
    /// The connection over which the reply came.
    pub(super) generation: u64,
}

#[derive(Default)]
struct KeepAliveState {
    /// Counts the streams that were opened one after the other.
    number: u64,
    requests: Option<mpsc::UnboundedSender<KeepAliveRequest>>,
    /// By lease.
    pending: HashMap<i64, VecDeque<oneshot::Sender<KeepAliveReply>>>,
}

impl KeepAliveStream {
    pub(super) async fn renew(
        &self,
        connection: &Arc<EtcdConnection>,
        lease: i64,
    ) -> Result<KeepAliveReply> {
        let reply = self.send(connection, lease);
        reply
            .await
            .map_err(|_| unreachable("the keep-alive stream broke"))
    }

    fn send(
        &self,
        connection: &Arc<EtcdConnection>,
        lease: i64,
    ) -> oneshot::Receiver<KeepAliveReply> {
        let mut state = lock(&self.0);
        let request = KeepAliveRequest { id: lease };
        let was_sent = |requests: &mpsc::UnboundedSender<_>| requests.send(request).is_ok();
        if !state.requests.as_ref().is_some_and(was_sent) {
            // The server opens its side when the first request arrives, so that one is sent before.
            let (requests, receiver) = mpsc::unbounded_channel();
            let _ = requests.send(request);
            *state = KeepAliveState {
                number: state.number + 1,
                requests: Some(requests),
                pending: HashMap::new(),
            };
            let number = state.number;
            let (shared, connection) = (Arc::clone(&self.0), Arc::clone(connection));
            tokio::spawn(async move {
                run(&connection, receiver, &shared).await;
                let mut state = lock(&shared);
                if state.number == number {
                    // Pending requests fail.
                    state.requests = None;
                    state.pending.clear();
                }
            });
        }
        let (sender, reply) = oneshot::channel();
        state.pending.entry(lease).or_default().push_back(sender);
        reply
    }
}

/// Runs one stream until it ends.
async fn run(
    connection: &Arc<EtcdConnection>,
    requests: mpsc::UnboundedReceiver<KeepAliveRequest>,
    state: &Mutex<KeepAliveState>,
) {
    let mut generations = connection.generations();
    let opened = connection.stream::<_, KeepAliveResponse>(KEEP_ALIVE, requests);
    let Ok((mut replies, member)) = opened.await else {
        return;
    };
    let generation = member.generation;
    loop {
        let reply = tokio::select! {
            reply = replies.message() => reply,
            _ = generations.wait_for(|now| *now > generation) => return,
        };
        match reply {
            Ok(Some(reply)) => {
                member.observe_term(&reply);
                let mut state = lock(state);
                let pending = state.pending.get_mut(&reply.id);
                if let Some(sender) = pending.and_then(VecDeque::pop_front) {
                    let _ = sender.send(KeepAliveReply {
                        ttl: reply.ttl,
                        generation,
                    });
                }
            }
            Ok(None) => return,
            Err(status) => return connection.stream_ended(generation, &status),
        }
    }
}

fn lock(state: &Mutex<KeepAliveState>) -> MutexGuard<'_, KeepAliveState> {
    // Each change is a single insertion or removal: a panic leaves the state consistent.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
