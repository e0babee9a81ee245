//! What etcd is sent and what it answers: the messages of its API (v3) that are used here.
//!
//! Written by hand from etcd's `rpc.proto` and `kv.proto`, whose numbers are fixed for ever, so that
//! nobody needs a protobuf compiler to build this crate. Fields that are never set are left out.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct Header {
    /// The store's revision when it answered.
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    /// The term of the last entry that the member has applied.
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

/// An answer that tells the store's revision and term.
pub(super) trait Answer: Message + Default + 'static {
    fn header(&self) -> Option<Header>;
}

/// A message for each name: the fields, and what prost is to know of each.
macro_rules! messages {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$field_about:meta])* $field:ident: $type:ty = [$($prost:tt)*],)*
    })+) => {
        $($(#[$about])*
        #[derive(Clone, PartialEq, Message)]
        pub(super) struct $name {
            $($(#[$field_about])* #[prost($($prost)*)] pub(super) $field: $type,)*
        })+
    };
}

/// The same for answers, all of which begin with a header.
macro_rules! answers {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$field_about:meta])* $field:ident: $type:ty = [$($prost:tt)*],)*
    })+) => {
        messages! {
            $($(#[$about])* $name {
                header: Option<Header> = [message, optional, tag = "1"],
                $($(#[$field_about])* $field: $type = [$($prost)*],)*
            })+
        }
        $(impl Answer for $name {
            fn header(&self) -> Option<Header> {
                self.header
            }
        })+
    };
}

messages! {
    KeyValue {
        key: Vec<u8> = [bytes = "vec", tag = "1"],
        create_revision: i64 = [int64, tag = "2"],
        mod_revision: i64 = [int64, tag = "3"],
        value: Vec<u8> = [bytes = "vec", tag = "5"],
        lease: i64 = [int64, tag = "6"],
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum SortOrder {
    None = 0,
    Ascend = 1,
    Descend = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum SortTarget {
    Key = 0,
    Create = 2,
}

messages! {
    RangeRequest {
        key: Vec<u8> = [bytes = "vec", tag = "1"],
        range_end: Vec<u8> = [bytes = "vec", tag = "2"],
        limit: i64 = [int64, tag = "3"],
        revision: i64 = [int64, tag = "4"],
        sort_order: i32 = [enumeration = "SortOrder", tag = "5"],
        sort_target: i32 = [enumeration = "SortTarget", tag = "6"],
        keys_only: bool = [bool, tag = "8"],
        count_only: bool = [bool, tag = "9"],
        max_create_revision: i64 = [int64, tag = "13"],
    }
}

answers! {
    RangeResponse {
        kvs: Vec<KeyValue> = [message, repeated, tag = "2"],
        more: bool = [bool, tag = "3"],
    }
}

messages! {
    PutRequest {
        key: Vec<u8> = [bytes = "vec", tag = "1"],
        value: Vec<u8> = [bytes = "vec", tag = "2"],
        lease: i64 = [int64, tag = "3"],
    }
}

answers! {
    PutResponse {}
}

messages! {
    DeleteRequest {
        key: Vec<u8> = [bytes = "vec", tag = "1"],
        range_end: Vec<u8> = [bytes = "vec", tag = "2"],
    }
}

answers! {
    DeleteResponse {
        deleted: i64 = [int64, tag = "2"],
    }
}

messages! {
    RequestOp {
        op: Option<Op> = [oneof = "Op", tags = "1, 2, 3"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Op {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

messages! {
    ResponseOp {
        outcome: Option<Outcome> = [oneof = "Outcome", tags = "1, 2, 3"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Outcome {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum Relation {
    Equal = 0,
    Greater = 1,
    Less = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum Target {
    Create = 1,
    Mod = 2,
    Value = 3,
}

messages! {
    /// A condition. On a range, every key in it must meet it; a key that does not exist has revision 0.
    Compare {
        result: i32 = [enumeration = "Relation", tag = "1"],
        target: i32 = [enumeration = "Target", tag = "2"],
        key: Vec<u8> = [bytes = "vec", tag = "3"],
        operand: Option<Operand> = [oneof = "Operand", tags = "5, 6, 7"],
        range_end: Vec<u8> = [bytes = "vec", tag = "64"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Operand {
    #[prost(int64, tag = "5")]
    Create(i64),
    #[prost(int64, tag = "6")]
    Mod(i64),
    #[prost(bytes, tag = "7")]
    Value(Vec<u8>),
}

messages! {
    TxnRequest {
        compare: Vec<Compare> = [message, repeated, tag = "1"],
        success: Vec<RequestOp> = [message, repeated, tag = "2"],
        failure: Vec<RequestOp> = [message, repeated, tag = "3"],
    }
}

answers! {
    TxnResponse {
        succeeded: bool = [bool, tag = "2"],
        responses: Vec<ResponseOp> = [message, repeated, tag = "3"],
    }
}

messages! {
    LeaseGrantRequest {
        ttl: i64 = [int64, tag = "1"],
    }
}

answers! {
    LeaseGrantResponse {
        id: i64 = [int64, tag = "2"],
        ttl: i64 = [int64, tag = "3"],
    }
}

messages! {
    LeaseRevokeRequest {
        id: i64 = [int64, tag = "1"],
    }
}

answers! {
    LeaseRevokeResponse {}
}

messages! {
    #[derive(Copy)]
    KeepAliveRequest {
        id: i64 = [int64, tag = "1"],
    }
}

answers! {
    KeepAliveResponse {
        id: i64 = [int64, tag = "2"],
        /// 0 if there is no such lease any more.
        ttl: i64 = [int64, tag = "3"],
    }
}

messages! {
    TimeToLiveRequest {
        id: i64 = [int64, tag = "1"],
        keys: bool = [bool, tag = "2"],
    }
}

answers! {
    TimeToLiveResponse {
        /// -1 if there is no such lease any more.
        ttl: i64 = [int64, tag = "3"],
        keys: Vec<Vec<u8>> = [bytes = "vec", repeated, tag = "5"],
    }
}

messages! {
    WatchRequest {
        order: Option<WatchOrder> = [oneof = "WatchOrder", tags = "1, 2"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchOrder {
    #[prost(message, tag = "1")]
    Create(WatchCreate),
    #[prost(message, tag = "2")]
    Cancel(WatchCancel),
}

messages! {
    WatchCreate {
        key: Vec<u8> = [bytes = "vec", tag = "1"],
        range_end: Vec<u8> = [bytes = "vec", tag = "2"],
        start_revision: i64 = [int64, tag = "3"],
        /// Of our own choice, so that no answer is needed to know it.
        watch_id: i64 = [int64, tag = "7"],
        /// 0 leaves puts out, 1 deletions.
        filters: Vec<i32> = [int32, repeated, tag = "5"],
    }

    WatchCancel {
        watch_id: i64 = [int64, tag = "1"],
    }
}

answers! {
    WatchResponse {
        watch_id: i64 = [int64, tag = "2"],
        created: bool = [bool, tag = "3"],
        canceled: bool = [bool, tag = "4"],
        compact_revision: i64 = [int64, tag = "5"],
        cancel_reason: String = [string, tag = "6"],
        events: Vec<Event> = [message, repeated, tag = "11"],
    }
}

messages! {
    Event {
        /// 0 for a put, 1 for a deletion.
        kind: i32 = [int32, tag = "1"],
        kv: Option<KeyValue> = [message, optional, tag = "2"],
    }
}

impl Event {
    pub(super) fn is_deletion(&self) -> bool {
        self.kind == 1
    }
}

messages! {
    AuthenticateRequest {
        name: String = [string, tag = "1"],
        password: String = [string, tag = "2"],
    }
}

answers! {
    AuthenticateResponse {
        token: String = [string, tag = "2"],
    }
}

messages! {
    StatusRequest {}
}

answers! {
    StatusResponse {
        version: String = [string, tag = "2"],
        db_size: i64 = [int64, tag = "3"],
        leader: u64 = [uint64, tag = "4"],
        errors: Vec<String> = [string, repeated, tag = "8"],
        db_size_in_use: i64 = [int64, tag = "9"],
        db_size_quota: i64 = [int64, tag = "12"],
    }
}

messages! {
    MemberListRequest {}
}

answers! {
    MemberListResponse {
        members: Vec<Member> = [message, repeated, tag = "2"],
    }
}

messages! {
    Member {
        id: u64 = [uint64, tag = "1"],
        name: String = [string, tag = "2"],
        client_urls: Vec<String> = [string, repeated, tag = "4"],
        is_learner: bool = [bool, tag = "5"],
    }

    AlarmRequest {}
}

answers! {
    AlarmResponse {
        alarms: Vec<AlarmMember> = [message, repeated, tag = "2"],
    }
}

messages! {
    AlarmMember {
        member: u64 = [uint64, tag = "1"],
        /// 1 for no space, 2 for corrupt data.
        alarm: i32 = [int32, tag = "2"],
    }
}
