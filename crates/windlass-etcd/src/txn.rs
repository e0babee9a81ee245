//! Transactions: conditions, operations and replies.

use std::collections::VecDeque;

use super::errors::{LostReply, malformed_reply};
use super::proto::{
    Compare, CompareOperand, CompareResult, CompareTarget, DeleteRequest, KeyValue, PutRequest,
    RangeRequest, RequestOp, SortOrder, SortTarget, TxnOp, TxnOpResponse, TxnRequest, TxnResponse,
};
use windlass_core::error::Result;

/// The most operations that etcd accepts in one transaction by default.
pub(super) const MAX_OPS: usize = 128;

/// A transaction: operations for the case that all conditions hold, and for the case that one does not.
#[derive(Clone, Debug)]
pub(super) struct Txn {
    pub(super) request: TxnRequest,
    /// Harmless while all operations only read.
    pub(super) lost_reply: LostReply,
}

impl Txn {
    pub(super) fn new() -> Txn {
        Txn {
            request: TxnRequest::default(),
            lost_reply: LostReply::Harmless,
        }
    }

    /// If the key does not exist.
    pub(super) fn if_absent(self, key: &str) -> Txn {
        self.compare(
            key,
            Vec::new(),
            CompareResult::Equal,
            CompareOperand::Create(0),
        )
    }

    /// If no key exists under the prefix.
    pub(super) fn if_empty(self, prefix: &str) -> Txn {
        let end = range_end(prefix);
        self.compare(prefix, end, CompareResult::Equal, CompareOperand::Create(0))
    }

    /// If no key under the prefix was written after `revision`. Deletions go unnoticed.
    pub(super) fn if_none_written_since(self, prefix: &str, revision: i64) -> Txn {
        let operand = CompareOperand::Mod(revision + 1);
        self.compare(prefix, range_end(prefix), CompareResult::Less, operand)
    }

    /// If the key's mod revision is the one that was read; 0 if the key did not exist.
    pub(super) fn if_unchanged(self, key: &str, mod_revision: i64) -> Txn {
        let operand = CompareOperand::Mod(mod_revision);
        self.compare(key, Vec::new(), CompareResult::Equal, operand)
    }

    /// If the key has exactly that value.
    pub(super) fn if_value(self, key: &str, value: &[u8]) -> Txn {
        let operand = CompareOperand::Value(value.to_vec());
        self.compare(key, Vec::new(), CompareResult::Equal, operand)
    }

    fn compare(
        mut self,
        key: &str,
        range_end: Vec<u8>,
        result: CompareResult,
        operand: CompareOperand,
    ) -> Txn {
        let target = match operand {
            CompareOperand::Create(_) => CompareTarget::Create,
            CompareOperand::Mod(_) => CompareTarget::Mod,
            CompareOperand::Value(_) => CompareTarget::Value,
        };
        self.request.compare.push(Compare {
            result: result.into(),
            target: target.into(),
            key: key.into(),
            operand: Some(operand),
            range_end,
        });
        self
    }

    pub(super) fn then(mut self, op: TxnOp) -> Txn {
        self.note_write(&op);
        self.request.success.push(RequestOp { op: Some(op) });
        self
    }

    pub(super) fn otherwise(mut self, op: TxnOp) -> Txn {
        self.note_write(&op);
        self.request.failure.push(RequestOp { op: Some(op) });
        self
    }

    pub(super) fn then_all(self, ops: impl IntoIterator<Item = TxnOp>) -> Txn {
        ops.into_iter().fold(self, Txn::then)
    }

    pub(super) fn otherwise_all(self, ops: impl IntoIterator<Item = TxnOp>) -> Txn {
        ops.into_iter().fold(self, Txn::otherwise)
    }

    fn note_write(&mut self, op: &TxnOp) {
        if !matches!(op, TxnOp::Range(_)) {
            self.lost_reply = LostReply::OutcomeUnknown;
        }
    }
}

pub(super) fn put(key: &str, value: Vec<u8>, lease: i64) -> TxnOp {
    TxnOp::Put(PutRequest {
        key: key.into(),
        value,
        lease,
    })
}

pub(super) fn delete(key: &str) -> TxnOp {
    TxnOp::Delete(DeleteRequest {
        key: key.into(),
        range_end: Vec::new(),
    })
}

pub(super) fn delete_all(prefix: &str) -> TxnOp {
    TxnOp::Delete(DeleteRequest {
        key: prefix.into(),
        range_end: range_end(prefix),
    })
}

pub(super) fn get(key: &str) -> TxnOp {
    TxnOp::Range(RangeRequest {
        key: key.into(),
        ..RangeRequest::default()
    })
}

/// All keys under the prefix, in the order of their creation.
pub(super) fn oldest_first(prefix: &str) -> RangeRequest {
    RangeRequest {
        key: prefix.into(),
        range_end: range_end(prefix),
        sort_order: SortOrder::Ascend.into(),
        sort_target: SortTarget::Create.into(),
        ..RangeRequest::default()
    }
}

/// Keys under the prefix in any order, at most `limit` of them, or all with a limit of 0. For a sorted range,
/// etcd reads all keys even if only a few are wanted.
pub(super) fn unsorted(prefix: &str, limit: i64) -> RangeRequest {
    RangeRequest {
        key: prefix.into(),
        range_end: range_end(prefix),
        limit,
        ..RangeRequest::default()
    }
}

/// The keys under the prefix that were created last, the newest first.
pub(super) fn newest(prefix: &str, limit: i64) -> RangeRequest {
    RangeRequest {
        limit,
        sort_order: SortOrder::Descend.into(),
        ..oldest_first(prefix)
    }
}

/// The keys under the prefix that were created last before `created`, the newest first.
pub(super) fn newest_before(prefix: &str, created: i64, limit: i64) -> RangeRequest {
    RangeRequest {
        max_create_revision: created - 1,
        ..newest(prefix, limit)
    }
}

/// The first key after all keys with the prefix.
pub(super) fn range_end(prefix: &str) -> Vec<u8> {
    let mut end = prefix.as_bytes().to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    vec![0] // all keys
}

/// The reply to a transaction. The replies to its operations are taken one by one, in order.
#[derive(Debug)]
pub(super) struct TxnReply {
    /// Whether the conditions held.
    pub(super) succeeded: bool,
    pub(super) revision: i64,
    pub(super) term: u64,
    responses: VecDeque<TxnOpResponse>,
}

impl TxnReply {
    pub(super) fn new(response: TxnResponse) -> TxnReply {
        let header = response.header.unwrap_or_default();
        let responses = response.responses.into_iter();
        TxnReply {
            succeeded: response.succeeded,
            revision: header.revision,
            term: header.raft_term,
            responses: responses.filter_map(|r| r.response).collect(),
        }
    }

    /// The replies to the next `count` operations.
    pub(super) fn split(&mut self, count: usize) -> TxnReply {
        let count = count.min(self.responses.len());
        TxnReply {
            responses: self.responses.drain(..count).collect(),
            ..*self
        }
    }

    /// The keys that the next operation, a range, found.
    pub(super) fn take_range(&mut self) -> Result<Vec<KeyValue>> {
        match self.responses.pop_front() {
            Some(TxnOpResponse::Range(range)) => Ok(range.kvs),
            other => Err(malformed_reply(format!("{other:?} to a range"))),
        }
    }

    /// The key that the next operation, a get, found.
    pub(super) fn take_key(&mut self) -> Result<Option<KeyValue>> {
        self.take_range().map(|mut kvs| kvs.pop())
    }

    /// The keys that the last operation, a range, found.
    pub(super) fn take_last_range(&mut self) -> Result<Vec<KeyValue>> {
        match self.responses.pop_back() {
            Some(TxnOpResponse::Range(range)) => Ok(range.kvs),
            other => Err(malformed_reply(format!("{other:?} to a range"))),
        }
    }

    /// The number of keys that the next operation, a deletion, deleted.
    pub(super) fn take_deleted(&mut self) -> Result<i64> {
        match self.responses.pop_front() {
            Some(TxnOpResponse::Delete(delete)) => Ok(delete.deleted),
            other => Err(malformed_reply(format!("{other:?} to a deletion"))),
        }
    }

    /// Skips the reply to a put.
    pub(super) fn skip_put(&mut self) -> Result<()> {
        match self.responses.pop_front() {
            Some(TxnOpResponse::Put(_)) => Ok(()),
            other => Err(malformed_reply(format!("{other:?} to a put"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_ends_right_after_its_prefix() {
        assert_eq!(range_end("a/"), b"a0");
        assert_eq!(range_end(""), [0]);
    }
}
