//! The stream over which leases are renewed.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{mpsc, oneshot};

use super::feed::Feed;
use super::link::Link;
use super::translate::unreachable;
use super::wire::{KeepAliveRequest, KeepAliveResponse};
use windlass_core::error::Result;

const KEEP_ALIVE: &str = "/etcdserverpb.Lease/LeaseKeepAlive";

/// The stream over which leases are renewed. Answers come in the order of the requests for each lease.
#[derive(Default)]
pub(super) struct Lane(Arc<Mutex<LaneState>>);

#[derive(Default)]
struct LaneState {
    /// Which of the streams that were opened one after the other.
    number: u64,
    requests: Option<mpsc::UnboundedSender<KeepAliveRequest>>,
    waiting: HashMap<i64, VecDeque<oneshot::Sender<(i64, u64)>>>,
}

impl Lane {
    /// The ttl that the server answers with, 0 if the lease is gone; and over which connection it came.
    pub(super) async fn keep_alive(&self, link: &Arc<Link>, id: i64) -> Result<(i64, u64)> {
        let answer = self.ask(link, id);
        let answer = answer.await;
        answer.map_err(|_| unreachable("the stream of renewals broke".to_owned()))
    }

    fn ask(&self, link: &Arc<Link>, id: i64) -> oneshot::Receiver<(i64, u64)> {
        let mut state = lock(&self.0);
        let request = KeepAliveRequest { id };
        let is_open = |requests: &mpsc::UnboundedSender<_>| requests.send(request).is_ok();
        if !state.requests.as_ref().is_some_and(is_open) {
            // The server opens its side when the first request has come, so that one goes ahead.
            let (requests, feed) = mpsc::unbounded_channel();
            let _ = requests.send(request);
            *state = LaneState {
                number: state.number + 1,
                requests: Some(requests),
                waiting: HashMap::new(),
            };
            let (number, lane, link) = (state.number, Arc::clone(&self.0), Arc::clone(link));
            tokio::spawn(async move {
                run(&link, feed, &lane).await;
                let mut state = lock(&lane);
                if state.number == number {
                    // Whoever waits hears that it is over.
                    state.requests = None;
                    state.waiting.clear();
                }
            });
        }
        let (tell, answer) = oneshot::channel();
        state.waiting.entry(id).or_default().push_back(tell);
        answer
    }
}

/// One stream, from its beginning to its end.
async fn run(
    link: &Arc<Link>,
    feed: mpsc::UnboundedReceiver<KeepAliveRequest>,
    lane: &Mutex<LaneState>,
) {
    let mut generations = link.generations();
    let opened = link.stream::<_, KeepAliveResponse>(KEEP_ALIVE, Feed(feed));
    let Ok((mut answers, open)) = opened.await else {
        return;
    };
    let generation = open.generation;
    loop {
        let answer = tokio::select! {
            answer = answers.message() => answer,
            // Not to be used any more: whoever waits shall ask over another one.
            _ = generations.wait_for(|now| *now > generation) => return,
        };
        match answer {
            Ok(Some(answer)) => {
                open.learn(&answer);
                let mut state = lock(lane);
                let first = state
                    .waiting
                    .get_mut(&answer.id)
                    .and_then(VecDeque::pop_front);
                if let Some(first) = first {
                    let _ = first.send((answer.ttl, generation));
                }
            }
            Ok(None) => return,
            Err(status) => return link.stream_ended(generation, &status),
        }
    }
}

fn lock(state: &Mutex<LaneState>) -> MutexGuard<'_, LaneState> {
    // Each change is a single insertion or removal: a panic leaves nothing half done.
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
