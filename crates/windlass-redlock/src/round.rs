//! Asking several nodes at once, and stopping to listen when the answer is certain.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use windlass_core::error::Result;
use windlass_core::store::Pending;

/// Whether a round is over: what has not left by then must not leave any more, because what undoes it
/// may have left.
#[derive(Clone, Default)]
pub(super) struct Over(Arc<AtomicBool>);

impl Over {
    pub(super) fn now(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(super) fn is_over(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

/// One question to several nodes, each with its answer on the way.
pub(super) struct Round<T> {
    answers: Vec<Option<Pending<'static, T>>>,
}

impl<T: Send + 'static> Round<T> {
    /// Each is begun when the round is first waited for or [begun](Round::begin), in the order of nodes.
    pub(super) fn new(answers: impl IntoIterator<Item = Pending<'static, T>>) -> Round<T> {
        Round {
            answers: answers.into_iter().map(Some).collect(),
        }
    }

    /// Nobody of so many is asked yet.
    pub(super) fn to_nobody(nodes: usize) -> Round<T> {
        Round {
            answers: (0..nodes).map(|_| None).collect(),
        }
    }

    /// Asks one who was not asked yet.
    pub(super) fn ask(&mut self, node: usize, answer: Pending<'static, T>) {
        self.answers[node] = Some(answer);
    }

    /// Sends what can be sent at once.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, mut take: impl FnMut(usize, Result<T>)) {
        for (node, answer) in self.answers.iter_mut().enumerate() {
            if let Some(waiting) = answer
                && let Poll::Ready(told) = waiting.as_mut().poll(cx)
            {
                *answer = None;
                take(node, told);
            }
        }
    }

    /// Subscriber the answers as they come, until `take` has heard enough. `None` if it never has.
    pub(super) async fn hear<R>(
        &mut self,
        mut take: impl FnMut(usize, Result<T>) -> ControlFlow<R>,
    ) -> Option<R> {
        poll_fn(|cx| {
            let mut waiting = false;
            for (node, answer) in self.answers.iter_mut().enumerate() {
                let Some(pending) = answer else {
                    continue;
                };
                match pending.as_mut().poll(cx) {
                    Poll::Pending => waiting = true,
                    Poll::Ready(told) => {
                        *answer = None;
                        if let ControlFlow::Break(enough) = take(node, told) {
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

    /// The nodes that were asked and have not answered.
    pub(super) fn silent(&self) -> impl Iterator<Item = usize> {
        let silent = |(node, answer): (usize, &Option<_>)| answer.is_some().then_some(node);
        self.answers.iter().enumerate().filter_map(silent)
    }
}
