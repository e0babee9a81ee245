//! Deduplication windows (`seen`) in memory.

use std::collections::HashMap;
use std::time::Duration;

use super::{MemoryStore, reply};
use crate::name::Name;
use crate::rules::seen as rules;
use crate::seen::Member;
use crate::store::{Pending, SeenStore};

/// The items of a window, and until when each is kept. Expired items are removed whenever it has
/// doubled.
#[derive(Default)]
pub(super) struct SeenWindow {
    items: HashMap<Member, Duration>,
    sweep_at: usize,
}

impl SeenStore for MemoryStore {
    fn first(&self, name: Name, items: Vec<Member>, window: Duration) -> Pending<'_, Vec<bool>> {
        let mut shard = self.seen.of(&name);
        let now = self.window_now();
        shard.sweep(|w| {
            w.items
                .values()
                .all(|until| !rules::is_known(Some(*until), now))
        });
        let kept = shard.map.entry(name).or_default();
        let first = |item: Member| {
            let known = kept.items.get(&item).copied();
            let (new, until) = rules::first(known, now, window);
            kept.items.insert(item, until);
            new
        };
        let answers = items.into_iter().map(first).collect();
        if kept.items.len() >= kept.sweep_at {
            let alive = |_: &Member, until: &mut Duration| rules::is_known(Some(*until), now);
            kept.items.retain(alive);
            kept.sweep_at = (kept.items.len() * 2).max(64);
        }
        reply(Ok(answers))
    }

    fn contains(&self, name: Name, items: Vec<Member>) -> Pending<'_, Vec<bool>> {
        let (shard, now) = (self.seen.of(&name), self.window_now());
        let kept = shard.map.get(&name);
        let known = |item: &Member| {
            let until = kept.and_then(|w| w.items.get(item)).copied();
            rules::is_known(until, now)
        };
        let answers = items.iter().map(known).collect();
        reply(Ok(answers))
    }

    fn forget(&self, name: Name, item: Member) -> Pending<'_, bool> {
        let (mut shard, now) = (self.seen.of(&name), self.window_now());
        let kept = shard.map.get_mut(&name);
        let until = kept.and_then(|w| w.items.remove(&item));
        reply(Ok(rules::is_known(until, now)))
    }
}
