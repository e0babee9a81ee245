//! Primitives on a store that does not have them: refused by name, never emulated weakly.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::counter::{Counted, CounterRequest, CounterStore};
use super::limit::{LimitOutcome, LimitRequest, LimitStore, LimiterEntry, LimiterQuery};
use super::notification::{Subscriber, SubscriptionHandle};
use super::{
    BloomStore, CountedDown, FieldRead, FieldWrite, Filled, LatchSpec, LatchState, LatchStore,
    OnceFinish, OnceRecord, OnceStart, OnceStore, Pending, PermissionStore, Reset, ScanCursor,
    SeenStore, SubjectPage, TopicStore,
};
use crate::Fence;
use crate::bloom::{Digest, Plan};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::permissions::Schema;
use crate::seen::Member;

/// All the stores that a backend of that kind does not have.
#[derive(Clone, Copy, Debug)]
pub struct Refused(pub &'static str);

impl Refused {
    fn answer<'a, T: Send + 'a>(self, what: &'static str) -> Pending<'a, T> {
        let error = unsupported(
            self.0,
            what,
            "this store decides who may act, not how much or what was seen",
        );
        Box::pin(std::future::ready(Err(error)))
    }
}

/// Flow or data on a backend that has none.
pub fn unsupported(kind: &'static str, what: &'static str, reason: &str) -> Error {
    refusal(kind, what, reason, "memory:, file: or redis://")
}

/// What every store that is not a quorum can decide, on a quorum.
pub fn unsupported_by_majority(kind: &'static str, what: &'static str, reason: &str) -> Error {
    let stores = "memory:, file:, redis:// (single server, redis+sentinel:// or redis+cluster://), \
                  etcd:// or zookeeper://";
    refusal(kind, what, reason, stores)
}

fn refusal(kind: &str, what: &str, reason: &str, stores: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "use the store",
        format!("there are no {what} on {kind}: {reason}"),
    )
    .with_hint(format!(
        "connect to {stores} for {what}, beside this store for what it has"
    ))
}

impl Refused {
    fn no_latches<'a, T: Send + 'a>(self) -> Pending<'a, T> {
        let reason = "each node counts for itself, and nodes that miss a count never agree on \
                      what remains";
        let error = unsupported_by_majority(self.0, "latches", reason);
        Box::pin(std::future::ready(Err(error)))
    }
}

impl LatchStore for Refused {
    fn reset(&self, _: LatchSpec, _: u32) -> Pending<'_, Reset> {
        self.no_latches()
    }

    fn count_down(&self, _: LatchSpec, _: u32, _: u128) -> Pending<'_, CountedDown> {
        self.no_latches()
    }

    fn look(&self, _: Name) -> Pending<'_, Option<LatchState>> {
        self.no_latches()
    }
}

/// A store that was left out of this build.
pub fn left_out(scheme: &str, feature: &str) -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "connect",
        format!("this build has no {scheme} backend"),
    )
    .with_hint(format!("build with the feature {feature:?}"))
}

impl CounterStore for Refused {
    fn add(&self, _: CounterRequest) -> Pending<'_, Counted> {
        self.answer("counters")
    }

    fn reset(&self, _: Name) -> Pending<'_, i64> {
        self.answer("counters")
    }
}

impl LimitStore for Refused {
    fn decide(&self, _: LimitRequest) -> Pending<'static, LimitOutcome> {
        self.answer("limiters")
    }

    fn decide_all(&self, _: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>> {
        self.answer("limiters")
    }

    fn reset(&self, _: Name) -> Pending<'_, bool> {
        self.answer("limiters")
    }

    fn list(&self, _: LimiterQuery) -> Pending<'_, LimiterEntry> {
        self.answer("limiters")
    }
}

impl BloomStore for Refused {
    fn create(&self, _: Name, _: Plan) -> Pending<'_, Plan> {
        self.answer("Bloom filters")
    }

    fn open(&self, _: Name) -> Pending<'_, Option<Plan>> {
        self.answer("Bloom filters")
    }

    fn insert(&self, _: Name, _: Plan, _: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        self.answer("Bloom filters")
    }

    fn contains(&self, _: Name, _: Plan, _: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        self.answer("Bloom filters")
    }

    fn survey(&self, _: Name, _: Plan) -> Pending<'_, Option<Vec<Filled>>> {
        self.answer("Bloom filters")
    }

    fn union(&self, _: Name, _: Name, _: Plan) -> Pending<'_, Option<()>> {
        self.answer("Bloom filters")
    }

    fn remove(&self, _: Name, _: Plan) -> Pending<'_, bool> {
        self.answer("Bloom filters")
    }
}

impl PermissionStore for Refused {
    fn schema(&self, _: Name) -> Pending<'_, Option<Schema>> {
        self.answer("permissions")
    }

    fn define(&self, _: Name, _: Option<Schema>, _: Schema) -> Pending<'_, bool> {
        self.answer("permissions")
    }

    fn write(&self, _: Name, _: String, _: Vec<FieldWrite>) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        self.answer("permissions")
    }

    fn read(
        &self,
        _: Name,
        _: Arc<Schema>,
        _: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        self.answer("permissions")
    }

    fn clear(&self, _: Name, _: String, _: Vec<String>) -> Pending<'_, Option<Vec<bool>>> {
        self.answer("permissions")
    }

    fn scan(&self, _: Name, _: String, _: ScanCursor) -> Pending<'_, Option<SubjectPage>> {
        self.answer("permissions")
    }

    fn memory(&self, _: Name, _: String, _: Vec<String>) -> Pending<'_, Vec<u64>> {
        self.answer("permissions")
    }

    fn remove(&self, _: Name, _: String) -> Pending<'_, bool> {
        self.answer("permissions")
    }

    fn leftovers(&self, _: Name) -> Pending<'_, Vec<String>> {
        self.answer("permissions")
    }

    fn sweep(&self, _: Name, _: String, _: ScanCursor) -> Pending<'_, Option<ScanCursor>> {
        self.answer("permissions")
    }
}

impl SeenStore for Refused {
    fn first(&self, _: Name, _: Vec<Member>, _: Duration) -> Pending<'_, Vec<bool>> {
        self.answer("items seen")
    }

    fn contains(&self, _: Name, _: Vec<Member>) -> Pending<'_, Vec<bool>> {
        self.answer("items seen")
    }

    fn forget(&self, _: Name, _: Member) -> Pending<'_, bool> {
        self.answer("items seen")
    }
}

impl OnceStore for Refused {
    fn look(&self, _: Name) -> Pending<'_, Option<OnceRecord>> {
        self.answer("things done once")
    }

    fn start(&self, _: Name, _: Fence, _: [u8; 32], _: Duration) -> Pending<'_, OnceStart> {
        self.answer("things done once")
    }

    fn finish(&self, _: Name, _: Fence, _: Vec<u8>, _: Duration) -> Pending<'_, OnceFinish> {
        self.answer("things done once")
    }

    fn forget(&self, _: Name, _: Option<Fence>) -> Pending<'_, bool> {
        self.answer("things done once")
    }
}

impl TopicStore for Refused {
    fn publish(&self, _: Name, _: Vec<u8>) -> Pending<'_, ()> {
        self.answer("topics")
    }

    fn subscribe(&self, _: Name, _: Weak<dyn Subscriber>) -> Pending<'_, SubscriptionHandle> {
        self.answer("topics")
    }

    fn refresh(&self, _: Name) -> Pending<'_, ()> {
        self.answer("topics")
    }
}
