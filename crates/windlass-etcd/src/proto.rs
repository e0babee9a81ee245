//! The messages of etcd's v3 API that this crate uses.
//!
//! They are written out here, with the field numbers of etcd's `rpc.proto` and `kv.proto`, so that building
//! the crate needs no protobuf compiler. Fields that this crate neither sets nor reads are left out.

use prost::{Enumeration, Message, Oneof};

#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(super) struct ResponseHeader {
    /// The store's revision at the time of the reply.
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
    /// The raft term of the last entry that the member has applied.
    #[prost(uint64, tag = "4")]
    pub(super) raft_term: u64,
}

/// A reply that carries the store's revision and raft term.
pub(super) trait EtcdResponse: Message + Default + 'static {
    fn header(&self) -> Option<ResponseHeader>;
}

/// Declares messages: each field with its prost attribute.
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

/// Declares replies: messages that begin with a header.
macro_rules! responses {
    ($($(#[$about:meta])* $name:ident {
        $($(#[$field_about:meta])* $field:ident: $type:ty = [$($prost:tt)*],)*
    })+) => {
        messages! {
            $($(#[$about])* $name {
                header: Option<ResponseHeader> = [message, optional, tag = "1"],
                $($(#[$field_about])* $field: $type = [$($prost)*],)*
            })+
        }
        $(impl EtcdResponse for $name {
            fn header(&self) -> Option<ResponseHeader> {
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

responses! {
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

responses! {
    PutResponse {}
}

messages! {
    DeleteRequest {
        key: Vec<u8> = [bytes = "vec", tag = "1"],
        range_end: Vec<u8> = [bytes = "vec", tag = "2"],
    }
}

responses! {
    DeleteResponse {
        deleted: i64 = [int64, tag = "2"],
    }
}

messages! {
    RequestOp {
        op: Option<TxnOp> = [oneof = "TxnOp", tags = "1, 2, 3"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum TxnOp {
    #[prost(message, tag = "1")]
    Range(RangeRequest),
    #[prost(message, tag = "2")]
    Put(PutRequest),
    #[prost(message, tag = "3")]
    Delete(DeleteRequest),
}

messages! {
    ResponseOp {
        response: Option<TxnOpResponse> = [oneof = "TxnOpResponse", tags = "1, 2, 3"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum TxnOpResponse {
    #[prost(message, tag = "1")]
    Range(RangeResponse),
    #[prost(message, tag = "2")]
    Put(PutResponse),
    #[prost(message, tag = "3")]
    Delete(DeleteResponse),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum CompareResult {
    Equal = 0,
    Greater = 1,
    Less = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum CompareTarget {
    Create = 1,
    Mod = 2,
    Value = 3,
}

messages! {
    /// A condition. On a range, every key in it must meet it; a key that does not exist has revision 0.
    Compare {
        result: i32 = [enumeration = "CompareResult", tag = "1"],
        target: i32 = [enumeration = "CompareTarget", tag = "2"],
        key: Vec<u8> = [bytes = "vec", tag = "3"],
        operand: Option<CompareOperand> = [oneof = "CompareOperand", tags = "5, 6, 7"],
        range_end: Vec<u8> = [bytes = "vec", tag = "64"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum CompareOperand {
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

responses! {
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

responses! {
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

responses! {
    LeaseRevokeResponse {}
}

messages! {
    #[derive(Copy)]
    KeepAliveRequest {
        id: i64 = [int64, tag = "1"],
    }
}

responses! {
    KeepAliveResponse {
        id: i64 = [int64, tag = "2"],
        /// 0 if the lease no longer exists.
        ttl: i64 = [int64, tag = "3"],
    }
}

messages! {
    TimeToLiveRequest {
        id: i64 = [int64, tag = "1"],
        keys: bool = [bool, tag = "2"],
    }
}

responses! {
    TimeToLiveResponse {
        /// -1 if the lease no longer exists.
        ttl: i64 = [int64, tag = "3"],
        keys: Vec<Vec<u8>> = [bytes = "vec", repeated, tag = "5"],
    }
}

messages! {
    WatchRequest {
        request_union: Option<WatchRequestUnion> = [oneof = "WatchRequestUnion", tags = "1, 2"],
    }
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum WatchRequestUnion {
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
        /// Chosen by the client, which can then cancel a watch before its creation is confirmed.
        watch_id: i64 = [int64, tag = "7"],
        /// 0 filters out puts, 1 deletions.
        filters: Vec<i32> = [int32, repeated, tag = "5"],
    }

    WatchCancel {
        watch_id: i64 = [int64, tag = "1"],
    }
}

responses! {
    WatchResponse {
        watch_id: i64 = [int64, tag = "2"],
        created: bool = [bool, tag = "3"],
        canceled: bool = [bool, tag = "4"],
        compact_revision: i64 = [int64, tag = "5"],
        cancel_reason: String = [string, tag = "6"],
        events: Vec<WatchEvent> = [message, repeated, tag = "11"],
    }
}

messages! {
    WatchEvent {
        /// 0 for a put, 1 for a deletion.
        kind: i32 = [int32, tag = "1"],
        kv: Option<KeyValue> = [message, optional, tag = "2"],
    }
}

impl WatchEvent {
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

responses! {
    AuthenticateResponse {
        token: String = [string, tag = "2"],
    }
}

messages! {
    StatusRequest {}
}

responses! {
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

responses! {
    MemberListResponse {
        members: Vec<ClusterMember> = [message, repeated, tag = "2"],
    }
}

messages! {
    ClusterMember {
        id: u64 = [uint64, tag = "1"],
        name: String = [string, tag = "2"],
        client_urls: Vec<String> = [string, repeated, tag = "4"],
        is_learner: bool = [bool, tag = "5"],
    }

    AlarmRequest {}
}

responses! {
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
