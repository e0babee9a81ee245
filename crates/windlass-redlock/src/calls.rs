//! One call to several nodes at once, until the replies decide.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::nodes::QuorumNodes;
use windlass_core::error::Result;
use windlass_core::store::Pending;

/// Set when an operation ends: a call that was not sent by then must not be sent, because the
/// release that undoes it may have been sent before.
#[derive(Clone, Default)]
pub(super) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    pub(super) fn stop(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// The calls of one operation, at most one for each node, and their replies.
pub(super) struct NodeCalls<T> {
    pending: Vec<Option<Pending<'static, T>>>,
}

impl<T: Send + 'static> NodeCalls<T> {
    /// One call for each node, in the order of nodes. They are sent by [`NodeCalls::send`] or
    /// [`NodeCalls::receive`].
    pub(super) fn new(calls: impl IntoIterator<Item = Pending<'static, T>>) -> NodeCalls<T> {
        NodeCalls {
            pending: calls.into_iter().map(Some).collect(),
        }
    }

    /// No calls yet, to a quorum of `nodes`.
    pub(super) fn none(nodes: usize) -> NodeCalls<T> {
        NodeCalls {
            pending: (0..nodes).map(|_| None).collect(),
        }
    }

    pub(super) fn add(&mut self, node: usize, call: Pending<'static, T>) {
        self.pending[node] = Some(call);
    }

    /// Sends all calls without waiting for replies: polls each once.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, mut take: impl FnMut(usize, Result<T>)) {
        for (node, slot) in self.pending.iter_mut().enumerate() {
            if let Some(call) = slot
                && let Poll::Ready(reply) = call.as_mut().poll(cx)
            {
                *slot = None;
                take(node, reply);
            }
        }
    }

    /// Passes replies to `take` as they arrive, until it breaks. `None` if it never does.
    pub(super) async fn receive<R>(
        &mut self,
        mut take: impl FnMut(usize, Result<T>) -> ControlFlow<R>,
    ) -> Option<R> {
        poll_fn(|cx| {
            let mut waiting = false;
            for (node, slot) in self.pending.iter_mut().enumerate() {
                let Some(call) = slot else {
                    continue;
                };
                match call.as_mut().poll(cx) {
                    Poll::Pending => waiting = true,
                    Poll::Ready(reply) => {
                        *slot = None;
                        if let ControlFlow::Break(enough) = take(node, reply) {
                            return Poll::Ready(Some(enough));
                        }
                    }
                }
            }
            match waiting {
                true => Poll::Pending,
                false => Poll::Ready(None),
            }
        })
        .await
    }

    /// The nodes that were called and have not replied.
    pub(super) fn unanswered(&self) -> impl Iterator<Item = usize> {
        let unanswered = |(node, call): (usize, &Option<_>)| call.is_some().then_some(node);
        self.pending.iter().enumerate().filter_map(unanswered)
    }

    /// Ends the operation: calls that were sent may still arrive, within `timeout`; the others are
    /// not sent any more.
    pub(super) fn finish(mut self, nodes: &QuorumNodes, stop: &StopFlag, timeout: Duration) {
        stop.stop();
        // The connection gives up on a node that takes longer than the node timeout.
        let timeout = timeout.max(nodes.node_timeout);
        // Polled here and not in the task: whatever undoes these calls must be sent after them.
        self.send(&mut Context::from_waker(Waker::noop()), |_, _| ());
        if self.unanswered().next().is_none() {
            return;
        }
        let clock = nodes.clock.clone();
        nodes.runtime.spawn(async move {
            let rest = self.receive(|_, _| ControlFlow::<()>::Continue(()));
            clock.within(timeout, rest).await;
        });
    }
}
