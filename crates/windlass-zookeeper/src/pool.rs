//! The pool of a semaphore or a barrier: its size, kept as the data of the claims' parent.

use serde::{Deserialize, Serialize};

use super::errors::from_client;
use super::paths;
use super::queue::QueueView;
use super::session::Session;
use super::transaction::NodeTransaction;
use windlass_core::error::{ErrorKind, Result};
use windlass_core::store::{Kind, MAX_READERS};

/// The data of the parent node, as JSON.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PoolData {
    /// 0 if no client has set it.
    #[serde(default)]
    pub(super) size: u32,
    /// Claims up to this sequence number hold, though the pool may be smaller by now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) held_to: Option<i32>,
    /// The barrier's current round. It lasts until its last party leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) round: Option<BarrierRound>,
}

/// A round that has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct BarrierRound {
    /// The sequence number of its last party: later claims belong to another round.
    pub(super) last: i32,
    /// A number that no other round of this barrier has.
    pub(super) number: u64,
}

impl PoolData {
    pub(super) fn with_size(size: u32) -> PoolData {
        PoolData {
            size,
            ..PoolData::default()
        }
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers are valid JSON")
    }

    /// Data that Windlass did not write counts as no data.
    pub(super) fn read(bytes: &[u8]) -> PoolData {
        serde_json::from_slice(bytes).unwrap_or_default()
    }

    /// The total weight that can be held at once.
    pub(super) fn capacity(&self, kind: Kind) -> u32 {
        match kind {
            Kind::ReadWrite => MAX_READERS,
            Kind::Semaphore | Kind::Barrier => self.size,
            _ => 1,
        }
    }
}

/// Whether callers set the size for this kind, so that the parent node carries [`PoolData`].
pub(super) fn has_pool(kind: Kind) -> bool {
    matches!(kind, Kind::Semaphore | Kind::Barrier)
}

/// Writes the pool if its version is unchanged and the claim still exists. Returns whether it was
/// written; `false` also if an earlier attempt, whose reply was lost, wrote it.
///
/// The claim proves that it is still the same parent: an empty parent that the server removed and a
/// client created again counts its versions from the start.
pub(super) async fn write_pool(
    session: &Session,
    parent: &str,
    claim: &str,
    pool: &PoolData,
    version: i32,
) -> Result<bool> {
    loop {
        let transaction = NodeTransaction {
            require: vec![claim.to_owned()],
            write_parent: Some((parent, pool.bytes(), version)),
            ..NodeTransaction::default()
        };
        match transaction.commit(session).await {
            Err(e) if e.kind() == ErrorKind::OutcomeUnknown && !session.has_ended() => {}
            written => return written,
        }
    }
}

/// Begins a barrier's round if all its parties have arrived, so that it stays begun when parties leave.
/// Returns whether the round was complete.
pub(super) async fn begin_complete_round(
    session: &Session,
    kind: Kind,
    name: &str,
    view: &QueueView,
) -> Result<bool> {
    let Some(last) = view.complete_round().filter(|_| kind == Kind::Barrier) else {
        return Ok(false);
    };
    let path = paths::claim(kind, name, &last.name);
    let stat = session.retry(|client| client.check_stat(&path)).await?;
    let Some(stat) = stat.map_err(from_client)? else {
        return Ok(true);
    };
    let mut pool = view.parent.pool.clone();
    pool.round = Some(BarrierRound {
        last: last.sequence.0,
        number: stat.czxid as u64,
    });
    let parent = paths::queue(kind, name);
    let written = write_pool(session, &parent, &path, &pool, view.parent.version);
    written.await.map(|_| true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pool_data_is_read_as_written() {
        let pool = PoolData {
            size: 3,
            held_to: Some(-1),
            round: Some(BarrierRound { last: 7, number: 9 }),
        };
        assert_eq!(PoolData::read(&pool.bytes()), pool);
        assert_eq!(PoolData::read(b""), PoolData::default());
    }
}
