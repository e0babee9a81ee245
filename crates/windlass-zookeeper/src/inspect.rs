//! Inspecting one lock, semaphore, election or barrier.

use zookeeper_client::Error as ZkError;

use super::claim_data::holder;
use super::claims::ZooKeeperClaims;
use super::errors::from_client;
use super::paths;
use super::pool::begin_complete_round;
use super::queue::QueueView;
use windlass_core::error::Result;
use windlass_core::store::{Holder, Kind, Occupancy};

/// How many holders are read at most, to find those whose claims expire first.
const MAX_READ: usize = 1000;

/// Reads the queue, and up to `most` of its holders.
pub(super) async fn inspect(
    claims: &ZooKeeperClaims,
    kind: Kind,
    name: &str,
    most: usize,
) -> Result<Occupancy> {
    let session = claims.sessions.default_session().await?;
    let mut view = claims.queues.read(&session, kind, name).await?;
    if begin_complete_round(&session, kind, name, &view).await? {
        view = claims.queues.read(&session, kind, name).await?;
    }
    let nodes = view.nodes.iter().zip(&view.held);
    let holding = nodes.filter(|(_, held)| **held).map(|(node, _)| node);
    let limit = if most == 0 { 0 } else { MAX_READ.max(most) };
    let holding: Vec<_> = holding.take(limit).collect();
    let now = claims.clock.now();
    let read = session.retry(|client| {
        // All requests are sent before the first reply is awaited.
        let replies: Vec<_> = holding
            .iter()
            .map(|node| client.get_data(&paths::claim(kind, name, &node.name)))
            .collect();
        let holding = &holding;
        async move {
            let mut holders = Vec::with_capacity(replies.len());
            for (node, reply) in holding.iter().zip(replies) {
                match reply.await {
                    Ok((bytes, stat)) => {
                        holders.push(holder(&bytes, &node.name, node.weight, &stat, now));
                    }
                    Err(ZkError::NoNode) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(holders)
        }
    });
    let mut holders: Vec<Holder> = read.await?.map_err(from_client)?;
    if kind != Kind::Lock {
        holders.sort_by_key(|holder| holder.remaining);
    }
    holders.truncate(most);
    let mut state = Occupancy::new(kind, name.to_owned());
    state.size = shown_size(kind, &view);
    state.used = view.used;
    state.waiters = view.waiters();
    state.holders = holders;
    state.open = view.open_round();
    Ok(state)
}

/// The size to show. A read-write lock, an election or a barrier without claims shows none.
fn shown_size(kind: Kind, view: &QueueView) -> u32 {
    match kind {
        Kind::Lock | Kind::Semaphore => view.parent.pool.capacity(kind),
        _ if view.nodes.is_empty() => 0,
        _ => view.parent.pool.capacity(kind),
    }
}
