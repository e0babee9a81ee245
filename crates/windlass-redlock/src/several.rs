//! Several locks at once.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Poll;

use super::node::Node;
use super::{Failures, Over, Quorum, Round, Shared};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{AcquireRequest, AcquiredAll, Pending};

impl Quorum {
    /// Several locks at once: each node grants all or none.
    pub(super) async fn ask_for_all(
        shared: Arc<Shared>,
        asks: Vec<AcquireRequest>,
    ) -> Result<AcquiredAll> {
        let Some(first) = asks.first() else {
            return Ok(AcquiredAll::Granted(Vec::new()));
        };
        for ask in &asks {
            shared.check(ask)?;
        }
        let limit = shared.limit(first.ttl);
        let over = Over::default();
        let question = |node: &Arc<Node>| -> Pending<'static, AcquiredAll> {
            let asks = asks.clone();
            node.ask(&shared, &over, move |voter| voter.vote_for_all(asks))
        };
        let mut round = Round::new(shared.nodes.iter().map(question));
        let mut granted: Vec<Vec<Fence>> = Vec::new();
        let (mut busy, mut failures) = (Vec::new(), Failures::default());
        let majority = shared.majority;
        let mut take = |node, answer| {
            match answer {
                Ok(AcquiredAll::Granted(numbers)) => granted.push(numbers),
                Ok(AcquiredAll::Busy { which, holder }) => busy.push((which, holder)),
                Ok(AcquiredAll::Apart) => {
                    let message = "a node of a quorum must decide on several locks in one step";
                    failures.add(node, Error::new(ErrorKind::Unsupported, "call", message));
                }
                Err(e) => failures.add(node, e),
            }
            let left = shared.nodes.len() - granted.len() - busy.len() - failures.len();
            let heard = granted.len() + busy.len();
            match granted.len() >= majority || granted.len() + left < majority && heard >= majority
            {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            }
        };
        // All of it on its way before anything else is waited for.
        poll_fn(|cx| {
            round.begin(cx, |node, answer| {
                let _ = take(node, answer);
            });
            Poll::Ready(())
        })
        .await;
        shared.clock.within(limit, round.hear(&mut take)).await;
        failures.silent(round.silent());
        shared.finish(round, &over, limit);
        let give_back = || {
            for ask in &asks {
                shared.give_back_everywhere(ask, limit);
            }
        };
        if granted.len() < majority {
            if granted.len() + busy.len() < majority {
                return Err(failures.error(&shared, granted.len() + busy.len()));
            }
            give_back();
            let (which, holder) = busy.into_iter().next().unwrap_or((0, None));
            return Ok(AcquiredAll::Busy { which, holder });
        }
        let mut fences = Vec::with_capacity(asks.len());
        for (i, ask) in asks.iter().enumerate() {
            let numbers: Vec<u64> = granted.iter().map(|numbers| numbers[i].get()).collect();
            match shared.agree(ask, &numbers).await? {
                Some(fence) => fences.push(fence),
                None => {
                    give_back();
                    return Ok(AcquiredAll::Busy {
                        which: i,
                        holder: None,
                    });
                }
            }
        }
        Ok(AcquiredAll::Granted(fences))
    }
}
