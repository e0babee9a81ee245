//! Primitives that a backend does not support.
//!
//! Each call fails with an error that names the primitive and the backend, and its hint names the
//! stores that support it. A primitive is never emulated with weaker guarantees.

use std::ops::RangeInclusive;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::counter::{Counted, CounterRequest, CounterStore};
use super::limit::{
    HoldOutcome, HoldRequest, LimitOutcome, LimitRequest, LimitStore, LimiterPage, LimiterQuery,
    SettleOutcome, SettleRequest,
};
use super::notification::{Subscriber, SubscriptionHandle};
use super::{
    BloomStore, CountedDown, FieldRead, FieldWrite, LatchSpec, LatchState, LatchStore, OnceFinish,
    OnceRecord, OnceStart, OnceStore, Pending, PermissionStore, Reset, ScanCursor, SeenStore,
    SubjectPage, TopicStore,
};
use crate::Fence;
use crate::bloom::{Digest, Plan};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::permissions::Schema;
use crate::seen::Member;

/// Every optional store trait of a backend that supports none of them. The field is the backend's
/// kind (`etcd`).
#[derive(Clone, Copy, Debug)]
pub struct UnsupportedStore(pub &'static str);

/// The stores that support every primitive.
pub(super) const ALL_PRIMITIVES: &str = "memory:, file:, redis:// or postgres://";

/// The stores that decide in one place, and therefore support all of coordination.
pub(super) const ALL_COORDINATION: &str = "memory:, file:, redis:// (single server, redis+sentinel:// or \
                                redis+cluster://), postgres://, etcd:// or zookeeper://";

impl UnsupportedStore {
    fn error<'a, T: Send + 'a>(self, primitive: &'static str) -> Pending<'a, T> {
        let error = not_supported(self.0, primitive, None, ALL_PRIMITIVES);
        Box::pin(std::future::ready(Err(error)))
    }

    fn no_latches<'a, T: Send + 'a>(self) -> Pending<'a, T> {
        let reason =
            "each node counts alone, and nodes that miss a count-down never agree on what remains";
        let error = unsupported_by_majority(self.0, "latches", reason);
        Box::pin(std::future::ready(Err(error)))
    }
}

/// `primitive`, which only stores that keep data have, is not supported on `kind`.
pub fn unsupported(kind: &'static str, primitive: &'static str, reason: &str) -> Error {
    not_supported(kind, primitive, Some(reason), ALL_PRIMITIVES)
}

/// `primitive`, which every store but a quorum has, is not supported on `kind`.
pub fn unsupported_by_majority(kind: &'static str, primitive: &'static str, reason: &str) -> Error {
    not_supported(kind, primitive, Some(reason), ALL_COORDINATION)
}

pub(super) fn not_supported(
    kind: &str,
    primitive: &str,
    reason: Option<&str>,
    stores: &str,
) -> Error {
    let verb = if primitive.ends_with('s') {
        "are"
    } else {
        "is"
    };
    let mut message = format!("{primitive} {verb} not supported on {kind}");
    if let Some(reason) = reason {
        message = format!("{message}: {reason}");
    }
    Error::new(ErrorKind::Unsupported, "use the store", message)
        .with_hint(format!("use {stores} for {primitive}"))
}

/// A lock of this store cannot be checked in a transaction.
pub fn not_a_database() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "check in a transaction",
        "this store keeps its locks outside of the database that the transaction is in",
    )
    .with_hint("use postgres:// for this, or send the fence with each write and compare it there")
}

/// The store of this URL scheme is not compiled in.
pub fn not_in_this_build(scheme: &str, feature: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "connect",
        format!("this build does not support {scheme}"),
    )
    .with_hint(format!("build with the feature {feature:?}"))
}

impl LatchStore for UnsupportedStore {
    fn reset(&self, _: LatchSpec, _: u32) -> Pending<'_, Reset> {
        self.no_latches()
    }

    fn count_down(&self, _: LatchSpec, _: u32, _: u128) -> Pending<'_, CountedDown> {
        self.no_latches()
    }

    fn inspect(&self, _: Name) -> Pending<'_, Option<LatchState>> {
        self.no_latches()
    }
}

impl CounterStore for UnsupportedStore {
    fn add(&self, _: CounterRequest) -> Pending<'_, Counted> {
        self.error("counters")
    }

    fn reset(&self, _: Name) -> Pending<'_, i64> {
        self.error("counters")
    }
}

impl LimitStore for UnsupportedStore {
    fn decide(&self, _: LimitRequest) -> Pending<'static, LimitOutcome> {
        self.error("limiters")
    }

    fn decide_all(&self, _: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        self.error("limiters")
    }

    fn hold(&self, _: HoldRequest) -> Pending<'static, HoldOutcome> {
        self.error("limiters")
    }

    fn settle(&self, _: SettleRequest) -> Pending<'static, SettleOutcome> {
        self.error("limiters")
    }

    fn reset(&self, _: Name) -> Pending<'_, bool> {
        self.error("limiters")
    }

    fn list(&self, _: LimiterQuery) -> Pending<'_, LimiterPage> {
        self.error("limiters")
    }
}

impl BloomStore for UnsupportedStore {
    fn create(&self, _: Name, _: Plan) -> Pending<'_, Plan> {
        self.error("Bloom filters")
    }

    fn open(&self, _: Name) -> Pending<'_, Option<Plan>> {
        self.error("Bloom filters")
    }

    fn insert(&self, _: Name, _: Plan, _: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        self.error("Bloom filters")
    }

    fn contains(&self, _: Name, _: Plan, _: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        self.error("Bloom filters")
    }

    fn generations(&self, _: Name, _: Plan) -> Pending<'_, Option<RangeInclusive<u64>>> {
        self.error("Bloom filters")
    }

    fn count_bits(&self, _: Name, _: Plan, _: u64, _: u64) -> Pending<'_, Option<u64>> {
        self.error("Bloom filters")
    }

    fn union(&self, _: Name, _: Name, _: Plan, _: u64) -> Pending<'_, Option<()>> {
        self.error("Bloom filters")
    }

    fn remove(&self, _: Name, _: Plan) -> Pending<'_, bool> {
        self.error("Bloom filters")
    }
}

impl PermissionStore for UnsupportedStore {
    fn schema(&self, _: Name) -> Pending<'_, Option<Schema>> {
        self.error("permissions")
    }

    fn define(&self, _: Name, _: Option<Schema>, _: Schema) -> Pending<'_, bool> {
        self.error("permissions")
    }

    fn write(&self, _: Name, _: String, _: Vec<FieldWrite>) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        self.error("permissions")
    }

    fn read(
        &self,
        _: Name,
        _: Arc<Schema>,
        _: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        self.error("permissions")
    }

    fn clear(&self, _: Name, _: String, _: Vec<String>) -> Pending<'_, Option<Vec<bool>>> {
        self.error("permissions")
    }

    fn scan(&self, _: Name, _: String, _: ScanCursor) -> Pending<'_, Option<SubjectPage>> {
        self.error("permissions")
    }

    fn memory(&self, _: Name, _: String, _: Vec<String>) -> Pending<'_, Vec<u64>> {
        self.error("permissions")
    }

    fn remove(&self, _: Name, _: String) -> Pending<'_, bool> {
        self.error("permissions")
    }

    fn leftovers(&self, _: Name) -> Pending<'_, Vec<String>> {
        self.error("permissions")
    }

    fn sweep(&self, _: Name, _: String, _: ScanCursor) -> Pending<'_, Option<ScanCursor>> {
        self.error("permissions")
    }
}

impl SeenStore for UnsupportedStore {
    fn first(&self, _: Name, _: Vec<Member>, _: Duration) -> Pending<'_, Vec<bool>> {
        self.error("deduplication (`seen`)")
    }

    fn contains(&self, _: Name, _: Vec<Member>) -> Pending<'_, Vec<bool>> {
        self.error("deduplication (`seen`)")
    }

    fn forget(&self, _: Name, _: Member) -> Pending<'_, bool> {
        self.error("deduplication (`seen`)")
    }
}

impl OnceStore for UnsupportedStore {
    fn get(&self, _: Name) -> Pending<'_, Option<OnceRecord>> {
        self.error("`once`")
    }

    fn start(&self, _: Name, _: Fence, _: [u8; 32], _: Duration) -> Pending<'_, OnceStart> {
        self.error("`once`")
    }

    fn finish(&self, _: Name, _: Fence, _: Vec<u8>, _: Duration) -> Pending<'_, OnceFinish> {
        self.error("`once`")
    }

    fn forget(&self, _: Name, _: Option<Fence>) -> Pending<'_, bool> {
        self.error("`once`")
    }
}

impl TopicStore for UnsupportedStore {
    fn publish(&self, _: Name, _: Vec<u8>) -> Pending<'_, ()> {
        self.error("topics")
    }

    fn subscribe(&self, _: Name, _: Weak<dyn Subscriber>) -> Pending<'_, SubscriptionHandle> {
        self.error("topics")
    }

    fn refresh(&self, _: Name) -> Pending<'_, ()> {
        self.error("topics")
    }
}
