//! Latches: the state in one key, and one key for each count, so that a retry counts once.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::connection::EtcdConnection;
use super::errors::foreign_key;
use super::keys::EtcdKeys;
use super::leases::Leases;
use super::proto::KeyValue;
use super::txn::{Txn, delete_all, get, put};
use windlass_core::Clock;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::latch::{self as rules, LatchChange};
use windlass_core::store::latch::{read_past, write_past};
use windlass_core::store::{CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset};

/// The longest pause after a conflict.
const MAX_PAUSE: Duration = Duration::from_millis(2);

/// Latches on etcd.
#[derive(Debug)]
pub(super) struct EtcdLatches {
    pub(super) connection: Arc<EtcdConnection>,
    pub(super) leases: Arc<Leases>,
    pub(super) keys: EtcdKeys,
    pub(super) clock: Clock,
}

/// The value of a latch's key.
#[derive(Serialize, Deserialize)]
struct StoredLatch {
    generation: String,
    count: u32,
    remaining: u32,
    /// Generations that have ended, one per line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    past: String,
}

impl LatchStore for EtcdLatches {
    fn reset(&self, spec: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            let decide = |latch: Option<&LatchState>, _| rules::reset(latch, &spec, count);
            let decided = self.decide(&spec, None, decide).await;
            self.leases.after_retained_write(decided)
        })
    }

    fn count_down(&self, spec: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            let decide = |latch: Option<&LatchState>, is_known| {
                rules::count_down(latch, &spec, by, is_known)
            };
            let decided = self.decide(&spec, Some(operation), decide).await;
            self.leases.after_retained_write(decided)
        })
    }

    fn inspect(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let read = Txn::new().then(get(&self.keys.latch(&name)));
            let found = self.connection.txn(read).await?.take_key()?;
            found.map(|kv| from_json(&kv)).transpose()
        })
    }
}

impl EtcdLatches {
    /// Reads the latch, decides by the rules, and writes if it has not changed since.
    async fn decide<T>(
        &self,
        spec: &LatchSpec,
        operation: Option<u128>,
        decide: impl Fn(Option<&LatchState>, bool) -> (T, LatchChange),
    ) -> Result<T> {
        let key = self.keys.latch(&spec.name);
        let counts = self.keys.latch_counts(&spec.name, &spec.generation);
        let count_key = operation.map(|operation| format!("{counts}{operation:032x}"));
        let lease = self.leases.retention(spec.keep).await?;
        loop {
            let mut read = Txn::new().then(get(&key));
            if let Some(count_key) = &count_key {
                read = read.then(get(count_key));
            }
            let mut reply = self.connection.txn(read).await?;
            let found = reply.take_key()?;
            let is_known = match &count_key {
                Some(_) => reply.take_key()?.is_some(),
                None => false,
            };
            let latch = found.as_ref().map(from_json).transpose()?;
            let (outcome, change) = decide(latch.as_ref(), is_known);
            let mod_revision = found.map_or(0, |kv| kv.mod_revision);
            let mut txn = Txn::new().if_unchanged(&key, mod_revision);
            match change {
                LatchChange::None => return Ok(outcome),
                LatchChange::Begin(state) => {
                    txn = txn.then(put(&key, to_json(&state), lease));
                    if let Some(previous) = &latch {
                        let ended = self.keys.latch_counts(&spec.name, &previous.generation);
                        txn = txn.then(delete_all(&ended));
                    }
                }
                LatchChange::Count(state) => {
                    txn = txn.then(put(&key, to_json(&state), lease));
                    if let Some(count_key) = &count_key {
                        txn = txn.then(put(count_key, Vec::new(), lease));
                    }
                }
            }
            if self.connection.txn(txn).await?.succeeded {
                return Ok(outcome);
            }
            // Another client was faster. Random pauses keep clients from retrying in step.
            let pause = MAX_PAUSE.mul_f64(rand::random_range(0.0..1.0));
            self.clock.sleep(pause).await;
        }
    }
}

fn from_json(kv: &KeyValue) -> Result<LatchState> {
    let stored: StoredLatch =
        serde_json::from_slice(&kv.value).map_err(|_| foreign_key(&kv.key))?;
    let past = read_past(&stored.past);
    Ok(LatchState::new(
        stored.generation,
        stored.count,
        stored.remaining,
        past,
    ))
}

fn to_json(state: &LatchState) -> Vec<u8> {
    let stored = StoredLatch {
        generation: state.generation.clone(),
        count: state.count,
        remaining: state.remaining,
        past: write_past(&state.past),
    };
    serde_json::to_vec(&stored).expect("strings and numbers can be serialized")
}
