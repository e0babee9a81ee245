//! What happened to each name since `top` started, as far as the surveys show it.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::Instant;

use windlass::{Fence, Kind, Occupancy};
use windlass_term::printable;

/// Events that are kept of one name.
const MAX_EVENTS: usize = 50;
/// Names whose events are kept; beyond that, names without a holder are forgotten.
const MAX_NAMES: usize = 2_000;

#[derive(Debug, Default)]
pub(super) struct History {
    /// Whether there was a survey: what the first one shows began earlier.
    has_begun: bool,
    names: HashMap<(Kind, String), NameHistory>,
}

#[derive(Debug, Default)]
struct NameHistory {
    /// Owners and their fences, at the last survey.
    holders: BTreeMap<String, Option<Fence>>,
    /// The latest last.
    events: VecDeque<(Instant, String)>,
}

impl History {
    pub(super) fn record(&mut self, found: &[Occupancy], now: Instant) {
        if self.names.len() > MAX_NAMES {
            self.names.retain(|_, name| !name.holders.is_empty());
        }
        let log = self.has_begun;
        for seen in found {
            let holders = seen.holders.iter();
            let holders = holders.map(|holder| (holder.owner.clone(), holder.fence));
            let name = self.names.entry((seen.kind, seen.name.clone()));
            name.or_default().update(holders.collect(), log, now);
        }
        let found: HashSet<(Kind, &str)> = found.iter().map(|s| (s.kind, &*s.name)).collect();
        for ((kind, name), history) in &mut self.names {
            if !history.holders.is_empty() && !found.contains(&(*kind, name)) {
                history.update(BTreeMap::new(), log, now);
            }
        }
        self.has_begun = true;
    }

    /// The events of a name, the latest first.
    pub(super) fn of(&self, kind: Kind, name: &str) -> impl Iterator<Item = &(Instant, String)> {
        let found = self.names.get(&(kind, name.to_owned()));
        found.into_iter().flat_map(|name| name.events.iter().rev())
    }
}

impl NameHistory {
    fn update(&mut self, holders: BTreeMap<String, Option<Fence>>, log: bool, now: Instant) {
        let before = std::mem::replace(&mut self.holders, holders);
        if !log {
            return;
        }
        let is_in = |all: &BTreeMap<String, Option<Fence>>, owner: &String, fence| {
            all.get(owner) == Some(fence)
        };
        let ended = before.iter().filter(|(o, f)| !is_in(&self.holders, o, f));
        let ended = ended.map(|(owner, _)| format!("{} ended", printable(owner)));
        let begun = self.holders.iter().filter(|(o, f)| !is_in(&before, o, f));
        let begun = begun.map(|(owner, fence)| match fence {
            Some(fence) => format!("{} acquired it, fence {fence}", printable(owner)),
            None => format!("{} acquired it", printable(owner)),
        });
        let events: Vec<String> = ended.chain(begun).collect();
        self.events
            .extend(events.into_iter().map(|event| (now, event)));
        let excess = self.events.len().saturating_sub(MAX_EVENTS);
        self.events.drain(..excess);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn changes_of_holders_are_events() {
        let store = windlass::connect("memory:").await.unwrap();
        let (mut history, now) = (History::default(), Instant::now());
        let lock = |owner: &str| store.lock("a").owner(owner);
        let survey = async || store.survey("*", 10).await.unwrap();
        let guard = lock("ann").acquire().await.unwrap();
        history.record(&survey().await, now);
        assert_eq!(history.of(Kind::Lock, "a").count(), 0, "it began earlier");
        assert!(guard.release().await.unwrap().was_held());
        history.record(&survey().await, now);
        let guard = lock("ben").acquire().await.unwrap();
        history.record(&survey().await, now);
        history.record(&survey().await, now);
        let events: Vec<&str> = history.of(Kind::Lock, "a").map(|(_, e)| &**e).collect();
        let acquired = format!("ben acquired it, fence {}", guard.fence());
        assert_eq!(events, [acquired.as_str(), "ann ended"]);
    }

    #[tokio::test]
    async fn memory_is_bounded() {
        let store = windlass::connect("memory:").await.unwrap();
        let mut history = History::default();
        for _ in 0..2 * MAX_EVENTS {
            let guard = store.lock("a").acquire().await.unwrap();
            history.record(&store.survey("*", 10).await.unwrap(), Instant::now());
            assert!(guard.release().await.unwrap().was_held());
        }
        assert_eq!(history.of(Kind::Lock, "a").count(), MAX_EVENTS);
        let many = |from: usize| {
            let names = (from..from + MAX_NAMES).map(|n| n.to_string());
            names.map(|name| Occupancy::new(Kind::Lock, name)).collect()
        };
        for n in 0..4 {
            let found: Vec<Occupancy> = many(n * MAX_NAMES);
            history.record(&found, Instant::now());
        }
        assert!(history.names.len() <= 2 * MAX_NAMES + 1);
    }
}
