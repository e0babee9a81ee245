//! What was seen, as lines of a table.

use std::collections::HashMap;
use std::time::Duration;

use windlass::{Holder, Kind, Occupancy};

use crate::commands::holders;
use crate::words;

/// One line: a holder of something, or something that is only waited for.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) kind: &'static str,
    pub(super) name: String,
    pub(super) holder: String,
    pub(super) age: Option<Duration>,
    pub(super) left: Left,
    /// How much of it is taken; only in the first line of each thing.
    pub(super) used: String,
    /// How many wait; only in the first line of each thing.
    pub(super) waiters: String,
}

/// How long it is held yet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Left {
    /// Nobody holds it.
    Nobody,
    /// A key of another program that never expires.
    Forever,
    /// So long, out of the most that was ever seen.
    For { left: Duration, of: Duration },
}

impl Left {
    /// In words, some time after it was seen.
    pub(super) fn after(self, since: Duration) -> String {
        match self {
            Left::Nobody => "-".to_owned(),
            Left::Forever => "for ever".to_owned(),
            Left::For { left, .. } => words::time(left.saturating_sub(since)),
        }
    }

    /// The part that is left, some time after it was seen.
    pub(super) fn part(self, since: Duration) -> Option<f64> {
        match self {
            Left::For { left, of } if !of.is_zero() => {
                let left = left.saturating_sub(since);
                Some((left.as_secs_f64() / of.as_secs_f64()).clamp(0.0, 1.0))
            }
            _ => None,
        }
    }
}

/// The most time that each holder was ever seen to have left: nobody says what its ttl is, but whoever renews
/// shows it.
#[derive(Debug, Default)]
pub(super) struct Scale {
    most: HashMap<(Kind, String, String), Duration>,
}

impl Scale {
    fn left(&mut self, seen: &Occupancy, holder: &Holder) -> Left {
        let Some(left) = holder.remaining else {
            return Left::Forever;
        };
        let key = (seen.kind, seen.name.clone(), holder.owner.clone());
        let of = self.most.entry(key).or_default();
        *of = left.max(*of);
        Left::For { left, of: *of }
    }

    /// Forgets those who are gone.
    fn forget(&mut self, found: &[Occupancy]) {
        let present: std::collections::HashSet<(Kind, &str, &str)> = found
            .iter()
            .flat_map(|seen| seen.holders.iter().map(move |h| (seen, h)))
            .map(|(seen, holder)| (seen.kind, seen.name.as_str(), holder.owner.as_str()))
            .collect();
        self.most
            .retain(|(kind, name, owner), _| present.contains(&(*kind, name, owner)));
    }
}

/// A line for each holder, and one for each thing that nobody holds.
pub(super) fn rows(found: &[Occupancy], scale: &mut Scale) -> Vec<Row> {
    scale.forget(found);
    let mut rows = Vec::new();
    for seen in found {
        let first = rows.len();
        let row = |holder: String, age, left| Row {
            kind: seen.kind.word(),
            name: seen.name.clone(),
            holder,
            age,
            left,
            used: String::new(),
            waiters: String::new(),
        };
        for holder in &seen.holders {
            let left = scale.left(seen, holder);
            rows.push(row(words::who(holder), holder.age, left));
        }
        let shown: u64 = seen.holders.iter().map(|h| u64::from(h.weight)).sum();
        if seen.holders.is_empty() {
            rows.push(row("-".to_owned(), None, Left::Nobody));
        } else if shown < seen.used {
            rows.push(row("… and others".to_owned(), None, Left::Nobody));
        }
        rows[first].used = holders::used(seen);
        rows[first].waiters = seen.waiters.to_string();
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn found(store: &windlass::Coordinator) -> Vec<Occupancy> {
        let mut found = store.survey("*", 2).await.unwrap();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        found
    }

    #[tokio::test]
    async fn every_holder_has_a_line_and_every_thing_one_summary() {
        let store = windlass::connect("memory:").await.unwrap();
        let lock = store.lock("a").owner("ann").note("why");
        let _lock = lock.acquire().await.unwrap();
        let semaphore = store.semaphore("b", 5);
        let mut permits = Vec::new();
        for owner in ["ben", "cleo", "dan"] {
            permits.push(semaphore.clone().owner(owner).acquire().await.unwrap());
        }
        let rows = rows(&found(&store).await, &mut Scale::default());
        let lines: Vec<_> = rows
            .iter()
            .map(|r| (r.kind, &*r.name, &*r.holder, &*r.used, &*r.waiters))
            .collect();
        assert_eq!(lines[0], ("lock", "a", "ann (why)", "1", "0"));
        assert_eq!((lines[1].0, lines[1].3, lines[1].4), ("sem", "3/5", "0"));
        assert_eq!((lines[2].3, lines[2].4), ("", ""));
        assert_eq!(lines[3], ("sem", "b", "… and others", "", ""));
        assert_eq!(lines.len(), 4);
    }

    #[tokio::test]
    async fn the_scale_is_the_most_that_was_seen_and_ends_with_its_holder() {
        let store = windlass::connect("memory:").await.unwrap();
        let minute = Duration::from_secs(60);
        let lock = store.lock("a").owner("ann").without_renewal();
        let guard = lock.clone().ttl(minute).acquire().await.unwrap();
        let mut scale = Scale::default();
        let of = |rows: Vec<Row>| match rows[0].left {
            Left::For { left, of } => (left, of),
            other => panic!("{other:?}"),
        };
        let (left, of_first) = of(rows(&found(&store).await, &mut scale));
        assert_eq!(left, of_first);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let (left, still) = of(rows(&found(&store).await, &mut scale));
        assert!(left < still && still == of_first);
        assert!(guard.release().await.unwrap().was_held());
        rows(&found(&store).await, &mut scale);
        assert!(scale.most.is_empty());
    }

    #[test]
    fn time_goes_on_between_two_looks() {
        let seconds = Duration::from_secs;
        let left = Left::For {
            left: seconds(20),
            of: seconds(40),
        };
        assert_eq!(left.part(seconds(10)), Some(0.25));
        assert_eq!(left.after(seconds(10)), "10s");
        assert_eq!(left.part(seconds(30)), Some(0.0));
        assert_eq!(
            (
                Left::Forever.part(seconds(1)),
                Left::Nobody.part(seconds(1))
            ),
            (None, None)
        );
    }
}
