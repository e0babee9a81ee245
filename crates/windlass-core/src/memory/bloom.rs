//! Bloom filters in memory.

use std::collections::HashMap;
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::time::Duration;

use super::{MemoryStore, reply};
use crate::bloom::{Digest, Plan};
use crate::name::Name;
use crate::rules::bloom::{self as rules, Cells, Progress};
use crate::store::{BloomStore, Pending};

/// Bits of a page. A page is allocated when its first bit is set, so that a large filter costs what
/// it holds.
const PAGE: u64 = 1 << 16;

/// One filter.
pub(super) struct MemoryFilter {
    plan: Plan,
    progress: Progress,
    pages: BitPages,
    /// The oldest generation that was in use at the last call.
    oldest: u64,
}

#[derive(Default)]
struct BitPages(HashMap<(u64, u64), Box<[u64]>>);

impl Cells for BitPages {
    type Error = Infallible;

    fn get(&mut self, generation: u64, position: u64) -> Result<bool, Infallible> {
        let page = self.0.get(&(generation, position / PAGE));
        let word = page.map_or(0, |page| page[(position % PAGE / 64) as usize]);
        Ok(word & (1 << (position % 64)) != 0)
    }

    fn set(&mut self, generation: u64, position: u64) -> Result<(), Infallible> {
        let page = self.0.entry((generation, position / PAGE));
        let page = page.or_insert_with(|| vec![0; (PAGE / 64) as usize].into());
        page[(position % PAGE / 64) as usize] |= 1 << (position % 64);
        Ok(())
    }
}

impl MemoryFilter {
    /// Drops the pages of expired slices.
    fn remove_expired(&mut self, now: Duration) {
        let oldest = *rules::living(&self.plan, self.progress, now).start();
        if oldest > self.oldest {
            self.pages
                .0
                .retain(|(generation, _), _| *generation >= oldest);
            self.oldest = oldest;
        }
    }
}

impl MemoryStore {
    /// Now, for windows and rotating filters.
    pub(super) fn window_now(&self) -> Duration {
        Duration::from_nanos(self.clock.now().as_nanos())
    }

    fn with_filter<T>(
        &self,
        name: &Name,
        plan: &Plan,
        act: impl FnOnce(&mut MemoryFilter, Duration) -> T,
    ) -> Pending<'static, Option<T>>
    where
        T: Send + 'static,
    {
        let mut shard = self.blooms.of(name);
        let filter = shard.map.get_mut(name).filter(|f| f.plan == *plan);
        let answer = filter.map(|filter| {
            let now = self.window_now();
            filter.remove_expired(now);
            act(filter, now)
        });
        reply(Ok(answer))
    }
}

impl BloomStore for MemoryStore {
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan> {
        let mut shard = self.blooms.of(&name);
        let filter = shard.map.entry(name).or_insert_with(|| MemoryFilter {
            plan,
            progress: Progress::default(),
            pages: BitPages::default(),
            oldest: 0,
        });
        reply(Ok(filter.plan))
    }

    fn open(&self, name: Name) -> Pending<'_, Option<Plan>> {
        let plan = self.blooms.of(&name).map.get(&name).map(|f| f.plan);
        reply(Ok(plan))
    }

    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        self.with_filter(&name, &plan, |filter, now| {
            let insert = |item: Digest| {
                let (pages, progress) = (&mut filter.pages, &mut filter.progress);
                let Ok(new) = rules::insert(pages, &plan, progress, now, item);
                new
            };
            items.into_iter().map(insert).collect()
        })
    }

    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        self.with_filter(&name, &plan, |filter, now| {
            let contains = |item: Digest| {
                let Ok(known) =
                    rules::contains(&mut filter.pages, &plan, filter.progress, now, item);
                known
            };
            items.into_iter().map(contains).collect()
        })
    }

    fn generations(&self, name: Name, plan: Plan) -> Pending<'_, Option<RangeInclusive<u64>>> {
        self.with_filter(&name, &plan, |filter, now| {
            rules::living(&plan, filter.progress, now)
        })
    }

    fn count_bits(
        &self,
        name: Name,
        plan: Plan,
        generation: u64,
        shard: u64,
    ) -> Pending<'_, Option<u64>> {
        self.with_filter(&name, &plan, |filter, _| {
            let pages = plan.shape(generation).pages(shard, PAGE);
            let pages = pages.filter_map(|page| filter.pages.0.get(&(generation, page)));
            let words = pages.flat_map(|page| page.iter());
            words.map(|word| u64::from(word.count_ones())).sum()
        })
    }

    fn union(&self, into: Name, from: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>> {
        // One part of the table at a time: both filters might be in the same one.
        let copy: Option<Vec<_>> = {
            let part = self.blooms.of(&from);
            let filter = part.map.get(&from).filter(|f| f.plan == plan);
            filter.map(|filter| {
                let pages = plan.shape(0).pages(shard, PAGE).map(|page| (0, page));
                pages
                    .filter_map(|at| Some((at, filter.pages.0.get(&at)?.clone())))
                    .collect()
            })
        };
        let Some(copy) = copy else {
            return reply(Ok(None));
        };
        self.with_filter(&into, &plan, |filter, _| {
            for (at, words) in copy {
                match filter.pages.0.entry(at) {
                    std::collections::hash_map::Entry::Vacant(free) => {
                        free.insert(words);
                    }
                    std::collections::hash_map::Entry::Occupied(mut page) => {
                        page.get_mut()
                            .iter_mut()
                            .zip(&words)
                            .for_each(|(a, b)| *a |= b);
                    }
                }
            }
        })
    }

    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool> {
        let mut shard = self.blooms.of(&name);
        let there = shard.map.get(&name).is_some_and(|f| f.plan == plan);
        if there {
            shard.map.remove(&name);
        }
        reply(Ok(there))
    }
}
