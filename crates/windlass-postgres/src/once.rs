//! Records of idempotent execution (`once`): the shared rules, on states in the table `state`.

use std::time::Duration;

use super::connection::{Lanes, micros};
use super::state::{StateKey, StoredState};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::once as rules;
use windlass_core::store::{OnceFinish, OnceRecord, OnceStart, OnceStore, Pending};

const KIND: &str = "once";

/// The records of one client.
#[derive(Debug)]
pub(super) struct PostgresOnces {
    pub(super) lanes: Lanes,
}

fn key(name: &Name) -> StateKey {
    StateKey {
        name: name.to_string(),
        kind: KIND,
    }
}

/// The fence, the digest of the request, and the result after a 1, or a 0.
fn write(record: &OnceRecord) -> Vec<u8> {
    let mut bytes = record.fence.get().to_be_bytes().to_vec();
    bytes.extend_from_slice(&record.payload);
    bytes.push(u8::from(record.result.is_some()));
    bytes.extend_from_slice(record.result.as_deref().unwrap_or_default());
    bytes
}

fn read(stored: &StoredState, now: u64) -> Result<Option<OnceRecord>> {
    let Some(value) = stored.value.as_deref().filter(|_| stored.until > now) else {
        return Ok(None);
    };
    let record = (|| {
        let (fence, rest) = value.split_first_chunk::<8>()?;
        let (payload, rest) = rest.split_first_chunk::<32>()?;
        let (has_result, result) = rest.split_first()?;
        Some(OnceRecord {
            fence: Fence::new(u64::from_be_bytes(*fence)),
            payload: *payload,
            result: (*has_result == 1).then(|| result.to_vec()),
        })
    })();
    let unreadable = || Error::new(ErrorKind::Store, "call", "the record cannot be read");
    record.map(Some).ok_or_else(unreadable)
}

impl PostgresOnces {
    fn decide<T, D>(
        &self,
        name: &Name,
        keep: Duration,
        decision: D,
    ) -> impl Future<Output = Result<T>> + Send + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(Option<OnceRecord>) -> (T, Option<OnceRecord>) + Send + 'static,
    {
        let key = key(name);
        let keys = vec![key.clone()];
        self.lanes.decide_states(keys, move |states| {
            let before = read(&states.get(&key), states.now)?;
            let (answer, after) = decision(before.clone());
            if after != before {
                let stored = after.map(|record| StoredState {
                    value: Some(write(&record)),
                    until: states.now + micros(keep) as u64,
                    written: states.now,
                });
                states.set(&key, stored.unwrap_or_default());
            }
            Ok(answer)
        })
    }
}

impl OnceStore for PostgresOnces {
    fn get(&self, name: Name) -> Pending<'_, Option<OnceRecord>> {
        let key = key(&name);
        let reply = self.lanes.read_state(key.clone());
        Box::pin(async move {
            let states = reply.await?;
            read(&states.get(&key), states.now)
        })
    }

    fn start(
        &self,
        name: Name,
        fence: Fence,
        payload: [u8; 32],
        keep: Duration,
    ) -> Pending<'_, OnceStart> {
        Box::pin(self.decide(&name, keep, move |known| {
            rules::start(known, fence, payload)
        }))
    }

    fn finish(
        &self,
        name: Name,
        fence: Fence,
        result: Vec<u8>,
        keep: Duration,
    ) -> Pending<'_, OnceFinish> {
        Box::pin(self.decide(&name, keep, move |known| {
            rules::finish(known, fence, result)
        }))
    }

    fn forget(&self, name: Name, fence: Option<Fence>) -> Pending<'_, bool> {
        Box::pin(self.decide(&name, Duration::ZERO, move |known| {
            let forget = rules::forget(known.as_ref(), fence);
            (forget, known.filter(|_| !forget))
        }))
    }
}
