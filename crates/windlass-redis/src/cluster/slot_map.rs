//! The slot map: which master serves which slot, and how the client keeps it current.
//!
//! **Refresh.** Several nodes are asked, and the layout with the highest epoch among those that
//! find the cluster healthy counts: a node that is cut off from the others reports the cluster as
//! down, or has not heard of the newest epoch.
//!
//! **Why it must be current for fences.** [`CheckedSlots`](crate::master_epoch::CheckedSlots)
//! records that a slot's fence counter was raised for the node that serves it. If the slot leaves
//! the node and returns, that is not true any more: the other node may have granted fences that
//! this node never received. Three rules keep the record safe:
//!
//! 1. When the cluster's epoch changes, the record of every node is cleared: a slot does not return
//!    without a new epoch, except for moves to the node that has the newest one.
//! 2. When the owner of a slot changes, by the map or by a redirection, the slot is cleared on both
//!    nodes.
//! 3. A client that has not verified the map for [`MAX_UNVERIFIED`], because it was suspended or no
//!    node answered, clears all records before it takes the next fence, and does not trust a fence
//!    whose reply took that long.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::Value;

use super::Cluster;
use crate::address::HostPort;
use crate::connection::{Connection, pipeline};
use crate::connector::info_field;
use crate::errors::{CommandError, Rejection};
use crate::first_enough::first_enough;
use crate::slots::SLOTS;
use crate::topology::{ClusterLayout, newest_epoch};
use windlass_core::Moment;
use windlass_core::error::{Error, ErrorKind};

/// Nodes asked for the layout at the same time.
const ASKED_AT_ONCE: usize = 8;
/// How often a node is asked whether the map is current.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// After this time without such a check, the records of raised fence counters do not count any
/// more.
pub(super) const MAX_UNVERIFIED: Duration = Duration::from_secs(5);
/// The map is refreshed even if nothing seems wrong: once in this many checks.
const CHECKS_PER_REFRESH: u32 = 30;

/// The master of each slot.
#[derive(Default)]
pub(super) struct SlotMap {
    pub(super) layout: ClusterLayout,
    /// For each slot, the index of its master in the layout.
    owners: Vec<Option<u16>>,
    pub(super) masters: Vec<Arc<Connection>>,
}

impl SlotMap {
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Connection>> {
        self.master_of(slot).cloned()
    }

    fn master_of(&self, slot: u16) -> Option<&Arc<Connection>> {
        let owner = (*self.owners.get(usize::from(slot))?)?;
        self.masters.get(usize::from(owner))
    }
}

impl Cluster {
    /// Asks the nodes for the layout. Callers that arrive during a refresh wait for it, and start
    /// another one only if theirs was requested after it began.
    pub(crate) async fn refresh(self: &Arc<Cluster>) -> Result<(), CommandError> {
        let requested = Instant::now();
        let _one_at_a_time = self.refreshing.lock().await;
        let last = *self
            .refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if last.is_some_and(|last| last > requested) {
            return Ok(());
        }
        let (begun, asked) = (Instant::now(), self.clock.now());
        // Shuffled: the first nodes may all be gone.
        let known = self.shuffled();
        let mut replies = Vec::new();
        for some in known.chunks(ASKED_AT_ONCE) {
            replies.extend(self.ask_for_layout(some).await);
            if replies.iter().any(|(_, layout)| layout.is_ok()) {
                break;
            }
        }
        let layouts = replies.iter().filter_map(|(_, reply)| reply.as_ref().ok());
        let Some(newest) = layouts.max_by_key(|layout| (layout.is_ok, layout.epoch)) else {
            return Err(no_layout(&replies));
        };
        let known_epoch = self.layout().epoch;
        self.adopt(newest.clone())?;
        // A node that lacks the known epoch would not know of a later change either.
        if newest.is_ok && newest.epoch >= known_epoch {
            self.set_verified(asked);
        }
        *self
            .refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(begun);
        Ok(())
    }

    /// The layout as each of these nodes knows it, until a majority of them has replied.
    async fn ask_for_layout(
        &self,
        nodes: &[HostPort],
    ) -> Vec<(HostPort, Result<ClusterLayout, CommandError>)> {
        let majority = nodes.len() / 2 + 1;
        let ask = |address: HostPort| {
            let connection = self.connection(&address);
            Box::pin(async move {
                let questions = [["CLUSTER", "INFO"], ["CLUSTER", "SLOTS"]].map(|[verb, what]| {
                    let mut question = redis::cmd(verb);
                    question.arg(what);
                    question
                });
                let replies = match connection {
                    Ok(connection) => connection.send_all(&pipeline(questions)).await,
                    Err(error) => Err(error),
                };
                let replies = replies.and_then(|replies| replies.into_iter().collect());
                let layout = replies.and_then(|replies: Vec<Value>| {
                    ClusterLayout::read(&replies, &address.host).ok_or_else(malformed)
                });
                (address, layout)
            })
        };
        let asked = nodes.iter().cloned().map(ask).collect();
        let enough = |got: &[(HostPort, Result<ClusterLayout, CommandError>)]| {
            got.iter().filter(|(_, layout)| layout.is_ok()).count() >= majority
        };
        first_enough(asked, self.call_timeout / 2, Duration::ZERO, enough).await
    }

    /// The map was current at that moment.
    fn set_verified(&self, begun: Moment) {
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        *verified = begun.max(*verified);
    }

    /// Clears all records of raised fence counters if the map has not been verified for too long.
    pub(super) fn recheck_fences_if_unverified(&self) {
        let now = self.clock.now();
        let mut verified = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(*verified) > MAX_UNVERIFIED {
            *verified = now;
            let connections = self.connections();
            connections
                .values()
                .for_each(|node| node.slots_may_have_moved());
        }
    }

    pub(super) fn refresh_soon(self: &Arc<Cluster>) {
        let cluster = Arc::clone(self);
        tokio::spawn(async move { cluster.refresh().await });
    }

    /// Makes this layout the current one.
    fn adopt(&self, layout: ClusterLayout) -> Result<(), CommandError> {
        let masters = layout.masters.iter().map(|at| self.connection(at));
        let masters = masters.collect::<Result<Vec<_>, _>>()?;
        let mut owners = vec![None; usize::from(SLOTS)];
        for (range, master) in &layout.ranges {
            for slot in range.clone() {
                owners[usize::from(slot)] = Some(*master);
            }
        }
        let now = Arc::new(SlotMap {
            layout,
            owners,
            masters,
        });
        let before = {
            let mut current = self
                .slot_map
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, Arc::clone(&now))
        };
        if now.layout.epoch != before.layout.epoch {
            let nodes = now.masters.iter();
            nodes.for_each(|node| node.slots_may_have_moved());
        }
        for slot in 0..SLOTS {
            let (was, is) = (before.master_of(slot), now.master_of(slot));
            let moved = was.map(Arc::as_ptr) != is.map(Arc::as_ptr);
            let ends = was.into_iter().chain(is).filter(|_| moved);
            ends.for_each(|node| node.slot_moved(slot));
        }
        let known = self.known();
        self.connections().retain(|address, connection| {
            // A node that is no master any more may become one again, in another epoch.
            if !now.layout.masters.contains(address) {
                connection.drop_connection();
            }
            known.contains(address)
        });
        Ok(())
    }
}

fn malformed() -> CommandError {
    CommandError::Sent((redis::ErrorKind::Parse, "malformed reply to CLUSTER SLOTS").into())
}

/// Why no node gave a layout: the reason that the user can act on, or the reason of each node.
fn no_layout(replies: &[(HostPort, Result<ClusterLayout, CommandError>)]) -> CommandError {
    let errors = || replies.iter().filter_map(|(_, reply)| reply.as_ref().err());
    let actionable = errors().find(|error| {
        let kind = Error::from((*error).clone()).kind();
        matches!(kind, ErrorKind::InvalidInput | ErrorKind::AccessDenied)
    });
    // Such as "This instance has cluster support disabled".
    let actionable = actionable.or_else(|| errors().find(|error| error.code().is_some()));
    if let Some(error) = actionable {
        return error.clone();
    }
    let each = replies.iter().map(|(address, reply)| match reply {
        Err(CommandError::NotSent(e) | CommandError::Sent(e)) => format!("{address}: {e}"),
        Err(CommandError::Rejected(rejection)) => format!("{address}: {}", rejection.message),
        Ok(_) => address.to_string(),
    });
    let each: Vec<String> = each.collect();
    CommandError::Rejected(Rejection {
        kind: ErrorKind::Unreachable,
        message: match each.is_empty() {
            true => "no node of the cluster answers".to_owned(),
            false => format!("no node of the cluster answers ({})", each.join("; ")),
        },
        hint: "check that they are running, and hosts, ports and TLS in the URL",
    })
}

/// What a node's `CLUSTER INFO` says about the slot map.
#[derive(Debug, PartialEq, Eq)]
enum MapStatus {
    Current,
    /// The node knows of a change, or has not heard of the last one, and so would not know of
    /// another.
    Unverified,
    /// The node has no contact with the others.
    CutOff,
}

fn map_status(info: &str, known_epoch: u64) -> MapStatus {
    if info_field(info, "cluster_state:") != Some("ok") {
        return MapStatus::CutOff;
    }
    match newest_epoch(info) {
        Some(epoch) if epoch == known_epoch => MapStatus::Current,
        _ => MapStatus::Unverified,
    }
}

/// Checks periodically that the map is current, since an idle client gets no redirections; and that
/// the push connection is alive, since no call would notice its end.
pub(super) async fn watch(cluster: Weak<Cluster>) {
    for check in 1u32.. {
        tokio::time::sleep(CHECK_INTERVAL).await;
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        let mut question = redis::cmd("CLUSTER");
        question.arg("INFO");
        let begun = cluster.clock.now();
        let push_connection = cluster.push_connection();
        match push_connection.query::<String>(&question).await {
            Ok(info) => match map_status(&info, cluster.layout().epoch) {
                MapStatus::Current => cluster.set_verified(begun),
                MapStatus::Unverified => drop(cluster.refresh().await),
                MapStatus::CutOff => {
                    let _ = cluster.refresh().await;
                    if cluster.layout().is_ok {
                        push_connection.abandon();
                    }
                }
            },
            Err(_) => {
                let _ = cluster.refresh().await;
                let _ = push_connection.connect().await;
            }
        }
        if check % CHECKS_PER_REFRESH == 0 {
            let _ = cluster.refresh().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_with_the_known_epoch_verifies_the_map() {
        let status = |info: &str| map_status(info, 7);
        let ok = |epoch| format!("cluster_state:ok\r\ncluster_current_epoch:{epoch}\r\n");
        assert_eq!(status(&ok(7)), MapStatus::Current);
        assert_eq!(status(&ok(8)), MapStatus::Unverified);
        assert_eq!(
            status(&ok(6)),
            MapStatus::Unverified,
            "the node has not heard of the last change"
        );
        assert_eq!(status("cluster_state:ok\r\n"), MapStatus::Unverified);
        assert_eq!(
            status("cluster_state:fail\r\ncluster_current_epoch:7\r\n"),
            MapStatus::CutOff
        );
    }
}
