//! Latches on etcd: the state in one key, and one key for each count, so that none counts twice.

use serde::{Deserialize, Serialize};

use super::Etcd;
use super::store::foreign;
use super::txn::{Txn, delete_all, get, put};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::latch::{self as rules, LatchChange};
use windlass_core::store::latch::{read_past, write_past};
use windlass_core::store::{CountedDown, LatchSpec, LatchState, LatchStore, Pending, Reset};

/// The value of a latch's key.
#[derive(Serialize, Deserialize)]
struct Stored {
    generation: String,
    count: u32,
    remaining: u32,
    /// Generations that are over, one a line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    past: String,
}

impl LatchStore for Etcd {
    fn reset(&self, terms: LatchSpec, count: u32) -> Pending<'_, Reset> {
        Box::pin(async move {
            let decide = |latch: Option<&LatchState>, _| rules::reset(latch, &terms, count);
            let decided = self.decide_latch(&terms, None, decide).await;
            self.store.remembering(decided)
        })
    }

    fn count_down(&self, terms: LatchSpec, by: u32, operation: u128) -> Pending<'_, CountedDown> {
        Box::pin(async move {
            let decide = |latch: Option<&LatchState>, is_known| {
                rules::count_down(latch, &terms, by, is_known)
            };
            let decided = self.decide_latch(&terms, Some(operation), decide).await;
            self.store.remembering(decided)
        })
    }

    fn look(&self, name: Name) -> Pending<'_, Option<LatchState>> {
        Box::pin(async move {
            let key = self.store.keys.latch(&name);
            let mut seen = self.store.link.txn(Txn::new().then(get(&key))).await?;
            let found = seen.found()?.pop();
            found.map(|kv| read(&kv.key, &kv.value)).transpose()
        })
    }
}

impl Etcd {
    /// Looks, decides by the rules, and writes if nobody else has written in between.
    async fn decide_latch<T>(
        &self,
        terms: &LatchSpec,
        operation: Option<u128>,
        decide: impl Fn(Option<&LatchState>, bool) -> (T, LatchChange),
    ) -> Result<T> {
        let (link, keys) = (&self.store.link, &self.store.keys);
        let key = keys.latch(&terms.name);
        let counts = keys.counts(&terms.name, &terms.generation);
        let counted = operation.map(|operation| format!("{counts}{operation:032x}"));
        let memory = self.store.leases.memory(terms.keep).await?;
        loop {
            let mut look = Txn::new().then(get(&key));
            if let Some(counted) = &counted {
                look = look.then(get(counted));
            }
            let mut seen = link.txn(look).await?;
            let found = seen.found()?.pop();
            let is_known = match &counted {
                Some(_) => seen.found()?.pop().is_some(),
                None => false,
            };
            let latch = match &found {
                Some(kv) => Some(read(&kv.key, &kv.value)?),
                None => None,
            };
            let (outcome, change) = decide(latch.as_ref(), is_known);
            let modified = found.map_or(0, |kv| kv.mod_revision);
            let mut txn = Txn::new().if_unchanged(&key, modified);
            match change {
                LatchChange::None => return Ok(outcome),
                LatchChange::Begin(state) => {
                    txn = txn.then(put(&key, write(&state), memory));
                    if let Some(before) = &latch {
                        let over = keys.counts(&terms.name, &before.generation);
                        txn = txn.then(delete_all(&over));
                    }
                }
                LatchChange::Count(state) => {
                    txn = txn.then(put(&key, write(&state), memory));
                    if let Some(counted) = &counted {
                        txn = txn.then(put(counted, Vec::new(), memory));
                    }
                }
            }
            if link.txn(txn).await?.succeeded {
                return Ok(outcome);
            }
            // Somebody else was faster: those who come next shall not come in step.
            let pause = std::time::Duration::from_micros(rand::random_range(0..2000));
            self.store.clock.sleep(pause).await;
        }
    }
}

fn read(key: &[u8], value: &[u8]) -> Result<LatchState> {
    let stored: Stored = serde_json::from_slice(value).map_err(|_| foreign(key))?;
    let past = read_past(&stored.past);
    Ok(LatchState::new(
        stored.generation,
        stored.count,
        stored.remaining,
        past,
    ))
}

fn write(state: &LatchState) -> Vec<u8> {
    let stored = Stored {
        generation: state.generation.clone(),
        count: state.count,
        remaining: state.remaining,
        past: write_past(&state.past),
    };
    serde_json::to_vec(&stored).expect("texts and numbers can be written")
}
