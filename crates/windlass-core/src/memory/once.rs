//! Records of idempotent execution (`once`) in memory.

use std::time::Duration;

use super::{MemoryStore, reply};
use crate::name::Name;
use crate::rules::once as rules;
use crate::store::{OnceFinish, OnceRecord, OnceStart, OnceStore, Pending};
use crate::{Fence, Moment};

/// A record, and until when it is kept.
pub(super) struct KeptRecord {
    record: OnceRecord,
    pub(super) until: Moment,
}

impl MemoryStore {
    fn decide_once<T: Send + 'static>(
        &self,
        key: Name,
        keep: Duration,
        decision: impl FnOnce(Option<OnceRecord>) -> (T, Option<OnceRecord>),
    ) -> Pending<'static, T> {
        let mut shard = self.onces.of(&key);
        let now = self.clock.now();
        let known = shard.map.get(&key).filter(|entry| entry.until > now);
        let (before, until) = match known {
            Some(entry) => (Some(entry.record.clone()), entry.until),
            None => (None, now),
        };
        let (answer, after) = decision(before.clone());
        if after != before {
            shard.sweep(|entry| entry.until <= now);
            let until = if keep.is_zero() { until } else { now + keep };
            match after {
                Some(record) => drop(shard.map.insert(key, KeptRecord { record, until })),
                None => drop(shard.map.remove(&key)),
            }
        }
        reply(Ok(answer))
    }
}

impl OnceStore for MemoryStore {
    fn get(&self, key: Name) -> Pending<'_, Option<OnceRecord>> {
        self.decide_once(key, Duration::ZERO, |known| (known.clone(), known))
    }

    fn start(
        &self,
        key: Name,
        fence: Fence,
        payload: [u8; 32],
        keep: Duration,
    ) -> Pending<'_, OnceStart> {
        self.decide_once(key, keep, |known| rules::start(known, fence, payload))
    }

    fn finish(
        &self,
        key: Name,
        fence: Fence,
        result: Vec<u8>,
        keep: Duration,
    ) -> Pending<'_, OnceFinish> {
        self.decide_once(key, keep, |known| rules::finish(known, fence, result))
    }

    fn forget(&self, key: Name, fence: Option<Fence>) -> Pending<'_, bool> {
        self.decide_once(key, Duration::ZERO, |known| {
            let forget = rules::forget(known.as_ref(), fence);
            (forget, known.filter(|_| !forget))
        })
    }
}
