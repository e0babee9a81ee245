//! Transactions, put together so that they read as sentences.

use std::collections::VecDeque;

use super::keys::end_of;
use super::link::{Changes, Link};
use super::translate::strange_answer;
use super::wire::{
    Compare, DeleteRequest, KeyValue, Op, Operand, Outcome, PutRequest, RangeRequest,
    RangeResponse, Relation, RequestOp, SortOrder, SortTarget, Target, TxnRequest, TxnResponse,
};
use windlass_core::error::Result;

/// The most operations that etcd takes in one transaction, unless it was told otherwise.
pub(super) const MOST_OPS: usize = 128;

const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";

/// What is to be decided in one step.
#[derive(Clone, Debug, Default)]
pub(super) struct Txn(TxnRequest);

impl Txn {
    pub(super) fn new() -> Txn {
        Txn::default()
    }

    /// If there is no such key.
    pub(super) fn if_absent(mut self, key: &str) -> Txn {
        self.0.compare.push(revision(
            key,
            Vec::new(),
            Relation::Equal,
            Operand::Create(0),
        ));
        self
    }

    /// If nothing is under the prefix.
    pub(super) fn if_empty(mut self, prefix: &str) -> Txn {
        let end = end_of(prefix);
        self.0
            .compare
            .push(revision(prefix, end, Relation::Equal, Operand::Create(0)));
        self
    }

    /// If nothing under the prefix was written after `revision`. What has vanished since is not noticed.
    pub(super) fn if_untouched(mut self, prefix: &str, since: i64) -> Txn {
        let end = end_of(prefix);
        self.0.compare.push(revision(
            prefix,
            end,
            Relation::Less,
            Operand::Mod(since + 1),
        ));
        self
    }

    /// If the key is as it was when it was read. A revision of 0 means that it was not there.
    pub(super) fn if_unchanged(mut self, key: &str, modified: i64) -> Txn {
        self.0.compare.push(revision(
            key,
            Vec::new(),
            Relation::Equal,
            Operand::Mod(modified),
        ));
        self
    }

    /// If the key holds just that.
    pub(super) fn if_value(mut self, key: &str, value: &[u8]) -> Txn {
        let operand = Operand::Value(value.to_vec());
        self.0
            .compare
            .push(revision(key, Vec::new(), Relation::Equal, operand));
        self
    }

    pub(super) fn then(mut self, op: Op) -> Txn {
        self.0.success.push(RequestOp { op: Some(op) });
        self
    }

    pub(super) fn otherwise(mut self, op: Op) -> Txn {
        self.0.failure.push(RequestOp { op: Some(op) });
        self
    }

    pub(super) fn then_all(self, ops: impl IntoIterator<Item = Op>) -> Txn {
        ops.into_iter().fold(self, Txn::then)
    }

    pub(super) fn otherwise_all(self, ops: impl IntoIterator<Item = Op>) -> Txn {
        ops.into_iter().fold(self, Txn::otherwise)
    }

    fn changes(&self) -> Changes {
        let reads = |op: &RequestOp| matches!(op.op, Some(Op::Range(_)));
        match self.0.success.iter().chain(&self.0.failure).all(reads) {
            true => Changes::Nothing,
            false => Changes::Something,
        }
    }
}

fn revision(key: &str, range_end: Vec<u8>, relation: Relation, operand: Operand) -> Compare {
    let target = match operand {
        Operand::Create(_) => Target::Create,
        Operand::Mod(_) => Target::Mod,
        Operand::Value(_) => Target::Value,
    };
    Compare {
        result: relation.into(),
        target: target.into(),
        key: key.into(),
        operand: Some(operand),
        range_end,
    }
}

pub(super) fn put(key: &str, value: Vec<u8>, lease: i64) -> Op {
    Op::Put(PutRequest {
        key: key.into(),
        value,
        lease,
    })
}

pub(super) fn delete(key: &str) -> Op {
    Op::Delete(DeleteRequest {
        key: key.into(),
        range_end: Vec::new(),
    })
}

pub(super) fn delete_all(prefix: &str) -> Op {
    Op::Delete(DeleteRequest {
        key: prefix.into(),
        range_end: end_of(prefix),
    })
}

pub(super) fn get(key: &str) -> Op {
    Op::Range(RangeRequest {
        key: key.into(),
        ..RangeRequest::default()
    })
}

/// All under the prefix, those first that were made first.
pub(super) fn all(prefix: &str) -> RangeRequest {
    RangeRequest {
        key: prefix.into(),
        range_end: end_of(prefix),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// All under the prefix, in no order that matters: to put them in order, etcd would read them all even
/// where only a few are wanted.
pub(super) fn some(prefix: &str, limit: i64) -> RangeRequest {
    RangeRequest {
        key: prefix.into(),
        range_end: end_of(prefix),
        limit,
        ..RangeRequest::default()
    }
}

/// The last few under the prefix that were made, the last one first.
pub(super) fn last(prefix: &str, limit: i64) -> RangeRequest {
    RangeRequest {
        limit,
        sort_order: SortOrder::Descend.into(),
        ..all(prefix)
    }
}

/// The last few under the prefix that were made before that revision, the last one first.
pub(super) fn last_before(prefix: &str, created: i64, limit: i64) -> RangeRequest {
    RangeRequest {
        max_create_revision: created - 1,
        ..last(prefix, limit)
    }
}

/// The outcome of a transaction.
#[derive(Debug)]
pub(super) struct Done {
    /// Whether the conditions were met.
    pub(super) succeeded: bool,
    pub(super) revision: i64,
    pub(super) term: u64,
    outcomes: VecDeque<Outcome>,
}

impl Done {
    /// What the next operation, a range, has found.
    pub(super) fn found(&mut self) -> Result<Vec<KeyValue>> {
        match self.outcomes.pop_front() {
            Some(Outcome::Range(range)) => Ok(range.kvs),
            other => Err(strange_answer(&format!("{other:?} to a range"))),
        }
    }

    /// What the last operation, a range, has found.
    pub(super) fn last_found(&mut self) -> Result<Vec<KeyValue>> {
        match self.outcomes.pop_back() {
            Some(Outcome::Range(range)) => Ok(range.kvs),
            other => Err(strange_answer(&format!("{other:?} to a range"))),
        }
    }

    /// How many keys the next operation, a deletion, has deleted.
    pub(super) fn deleted(&mut self) -> Result<i64> {
        match self.outcomes.pop_front() {
            Some(Outcome::Delete(delete)) => Ok(delete.deleted),
            other => Err(strange_answer(&format!("{other:?} to a deletion"))),
        }
    }

    /// Passes over the answer to a put.
    pub(super) fn was_put(&mut self) -> Result<()> {
        match self.outcomes.pop_front() {
            Some(Outcome::Put(_)) => Ok(()),
            other => Err(strange_answer(&format!("{other:?} to a put"))),
        }
    }
}

impl Link {
    pub(super) async fn txn(&self, txn: Txn) -> Result<Done> {
        let changes = txn.changes();
        let answer: TxnResponse = self.call(TXN, txn.0, changes).await?;
        let header = answer.header.unwrap_or_default();
        Ok(Done {
            succeeded: answer.succeeded,
            revision: header.revision,
            term: header.raft_term,
            outcomes: answer
                .responses
                .into_iter()
                .filter_map(|r| r.outcome)
                .collect(),
        })
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.call(RANGE, request, Changes::Nothing).await
    }
}
