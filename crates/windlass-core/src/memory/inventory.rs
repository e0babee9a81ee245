//! The names in memory.

use super::{MemoryStore, Shards, reply};
use crate::store::{DataKind, InventoryStore, NamePage, Pending, matches};

impl InventoryStore for MemoryStore {
    fn names(&self, kind: DataKind, pattern: String, most: usize) -> Pending<'_, NamePage> {
        let now = self.clock.now();
        let micros = now.as_nanos() / 1_000;
        let names = match kind {
            DataKind::Latch => names(&self.latches, &pattern, |latch| latch.until > now),
            DataKind::Gate => names(&self.gates, &pattern, |seen| seen.until > now),
            DataKind::Counter => names(&self.counters, &pattern, |state| {
                state.ends().is_none_or(|ends| ends > micros)
            }),
            DataKind::Bloom => names(&self.blooms, &pattern, |_| true),
            DataKind::Permissions => names(&self.spaces, &pattern, |_| true),
            DataKind::Once => names(&self.onces, &pattern, |kept| kept.until > now),
        };
        reply(Ok(NamePage::new(names, most)))
    }
}

fn names<T>(shards: &Shards<T>, pattern: &str, is_kept: impl Fn(&T) -> bool) -> Vec<String> {
    let mut names = Vec::new();
    for shard in shards.iter() {
        let kept = shard
            .map
            .iter()
            .filter(|(name, entry)| matches(pattern, name.as_str()) && is_kept(entry));
        names.extend(kept.map(|(name, _)| name.to_string()));
    }
    names
}
