//! Acquiring several locks at once: each node grants all of them or none.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::Poll;

use super::calls::{NodeCalls, StopFlag};
use super::claims::ClaimState;
use super::errors::NodeFailures;
use super::nodes::QuorumNode;
use super::release::undo;
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::{AcquireRequest, AcquiredAll, Pending};

pub(super) async fn acquire_all(
    state: &ClaimState,
    requests: Vec<AcquireRequest>,
) -> Result<AcquiredAll> {
    let Some(first) = requests.first() else {
        return Ok(AcquiredAll::Granted(Vec::new()));
    };
    let nodes = &state.nodes;
    let timeout = nodes.timeout(first.ttl);
    let stop = StopFlag::default();
    let call = |node: &Arc<QuorumNode>| -> Pending<'static, AcquiredAll> {
        let requests = requests.clone();
        node.call(nodes, &stop, move |client| client.acquire_all(requests))
    };
    let mut calls = NodeCalls::new(nodes.iter().map(call));
    let mut granted: Vec<Vec<Fence>> = Vec::new();
    let (mut busy, mut failures) = (Vec::new(), NodeFailures::default());
    let majority = nodes.majority;
    let mut take = |node, reply| {
        match reply {
            Ok(AcquiredAll::Granted(numbers)) => granted.push(numbers),
            Ok(AcquiredAll::Busy { which, holder }) => busy.push((which, holder)),
            Ok(AcquiredAll::OneByOne) => {
                let message = "a node of a quorum must decide on several locks in one step";
                failures.add(node, Error::new(ErrorKind::Unsupported, "call", message));
            }
            Err(e) => failures.add(node, e),
        }
        let missing = nodes.len() - granted.len() - busy.len() - failures.len();
        let counted = granted.len() + busy.len();
        let out_of_reach = granted.len() + missing < majority;
        match granted.len() >= majority || out_of_reach && counted >= majority {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    };
    // All requests are sent before the first await, so that a release cannot overtake them.
    poll_fn(|cx| {
        calls.send(cx, |node, reply| {
            let _ = take(node, reply);
        });
        Poll::Ready(())
    })
    .await;
    nodes.clock.within(timeout, calls.receive(&mut take)).await;
    failures.add_unanswered(calls.unanswered());
    calls.finish(nodes, &stop, timeout);
    let undo_all = || {
        for request in &requests {
            undo(nodes, nodes.all(), request, timeout);
        }
    };
    if granted.len() < majority {
        let counted = granted.len() + busy.len();
        if counted < majority {
            return Err(failures.error(nodes, counted));
        }
        undo_all();
        let (which, holder) = busy.into_iter().next().unwrap_or((0, None));
        return Ok(AcquiredAll::Busy { which, holder });
    }
    let mut fences = Vec::with_capacity(requests.len());
    for (i, request) in requests.iter().enumerate() {
        let numbers = granted.iter().map(|numbers| numbers[i].get()).collect();
        match state.fences.agree(request, numbers).await? {
            Some(fence) => fences.push(fence),
            None => {
                undo_all();
                return Ok(AcquiredAll::Busy {
                    which: i,
                    holder: None,
                });
            }
        }
    }
    Ok(AcquiredAll::Granted(fences))
}
