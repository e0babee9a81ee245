//! The rows of locks, semaphores, elections and everything else that is held.

use std::collections::HashMap;
use std::time::Duration;

use windlass::{Holder, Kind, Occupancy};
use windlass_term::printable;

use crate::commands::holders;
use crate::humanize;

/// One row: a holder, or a name that has only waiters.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct ClaimRow {
    pub(super) kind: Kind,
    pub(super) name: String,
    /// The size of the pool.
    pub(super) size: u32,
    /// The owner, if the row is of a single one.
    pub(super) owner: Option<String>,
    /// The note and the owner, as they are shown.
    pub(super) holder: String,
    pub(super) age: Option<Duration>,
    pub(super) left: TimeLeft,
    /// How much is in use; only in the first row of each name.
    pub(super) used: String,
    /// The number of waiters; only in the first row of each name.
    pub(super) waiters: String,
}

/// The remaining time of a holder.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum TimeLeft {
    /// There is no holder.
    NotHeld,
    /// A key of another program that never expires.
    Forever,
    /// The remaining time, and the longest that was seen.
    For { left: Duration, of: Duration },
}

impl TimeLeft {
    /// As text, `since` after the survey.
    pub(super) fn after(self, since: Duration) -> String {
        match self {
            TimeLeft::NotHeld => "-".to_owned(),
            TimeLeft::Forever => "forever".to_owned(),
            TimeLeft::For { left, .. } => humanize::duration(left.saturating_sub(since)),
        }
    }

    /// The remaining fraction, `since` after the survey.
    pub(super) fn part(self, since: Duration) -> Option<f64> {
        match self {
            TimeLeft::For { left, of } if !of.is_zero() => {
                let left = left.saturating_sub(since);
                Some((left.as_secs_f64() / of.as_secs_f64()).clamp(0.0, 1.0))
            }
            _ => None,
        }
    }
}

/// The longest remaining time seen of each holder: an estimate of its TTL, which stores do not report.
#[derive(Debug, Default)]
pub(super) struct TtlEstimates {
    longest: HashMap<(Kind, String, String), Duration>,
}

impl TtlEstimates {
    /// After a survey. Holders that are gone are forgotten.
    pub(super) fn update(&mut self, found: &[Occupancy]) {
        for seen in found {
            for holder in &seen.holders {
                let key = (seen.kind, seen.name.clone(), holder.owner.clone());
                let of = self.longest.entry(key).or_default();
                *of = holder.remaining.unwrap_or_default().max(*of);
            }
        }
        let present: std::collections::HashSet<(Kind, &str, &str)> = found
            .iter()
            .flat_map(|seen| seen.holders.iter().map(move |h| (seen, h)))
            .map(|(seen, holder)| (seen.kind, seen.name.as_str(), holder.owner.as_str()))
            .collect();
        self.longest
            .retain(|(kind, name, owner), _| present.contains(&(*kind, name, owner)));
    }

    fn left(&self, seen: &Occupancy, holder: &Holder) -> TimeLeft {
        let Some(left) = holder.remaining else {
            return TimeLeft::Forever;
        };
        let key = (seen.kind, seen.name.clone(), holder.owner.clone());
        let of = self.longest.get(&key).copied().unwrap_or(left);
        TimeLeft::For { left, of }
    }
}

/// The note first: it says more than an owner, and is not cut off.
fn note_and_owner(holder: &Holder) -> String {
    let owner = printable(&holder.owner);
    match holder.note.as_deref().filter(|note| !note.is_empty()) {
        Some(note) => format!("{} ({owner})", printable(note)),
        None => owner.into_owned(),
    }
}

/// A row per holder, and one per name without a holder.
pub(super) fn rows(found: &[&Occupancy], ttls: &TtlEstimates) -> Vec<ClaimRow> {
    let mut rows = Vec::new();
    for seen in found {
        let first = rows.len();
        let row = |owner, holder: String, age, left| ClaimRow {
            kind: seen.kind,
            name: seen.name.clone(),
            size: seen.size,
            owner,
            holder,
            age,
            left,
            used: String::new(),
            waiters: String::new(),
        };
        for holder in &seen.holders {
            let left = ttls.left(seen, holder);
            let owner = Some(holder.owner.clone());
            rows.push(row(owner, note_and_owner(holder), holder.age, left));
        }
        let shown: u64 = seen.holders.iter().map(|h| u64::from(h.weight)).sum();
        if seen.holders.is_empty() {
            rows.push(row(None, "-".to_owned(), None, TimeLeft::NotHeld));
        } else if shown < seen.used {
            rows.push(row(
                None,
                "… and others".to_owned(),
                None,
                TimeLeft::NotHeld,
            ));
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
    async fn every_holder_has_a_row_and_every_name_one_summary() {
        let store = windlass::connect("memory:").await.unwrap();
        let lock = store.lock("a").owner("ann").note("why");
        let _lock = lock.acquire().await.unwrap();
        let semaphore = store.semaphore("b", 5);
        let mut permits = Vec::new();
        for owner in ["ben", "cleo", "dan"] {
            permits.push(semaphore.clone().owner(owner).acquire().await.unwrap());
        }
        let found = found(&store).await;
        let rows = rows(&found.iter().collect::<Vec<_>>(), &TtlEstimates::default());
        let lines: Vec<_> = rows
            .iter()
            .map(|r| (r.kind.word(), &*r.name, &*r.holder, &*r.used, &*r.waiters))
            .collect();
        assert_eq!(lines[0], ("lock", "a", "why (ann)", "1", "0"));
        assert_eq!((lines[1].0, lines[1].3, lines[1].4), ("sem", "3/5", "0"));
        assert_eq!((lines[2].3, lines[2].4), ("", ""));
        assert_eq!(lines[3], ("sem", "b", "… and others", "", ""));
        assert_eq!(lines.len(), 4);
    }

    #[tokio::test]
    async fn ttl_estimate_is_the_longest_time_seen_and_ends_with_its_holder() {
        let store = windlass::connect("memory:").await.unwrap();
        let minute = Duration::from_secs(60);
        let lock = store.lock("a").owner("ann").without_renewal();
        let guard = lock.clone().ttl(minute).acquire().await.unwrap();
        let mut ttls = TtlEstimates::default();
        let mut read = async || {
            let found = found(&store).await;
            ttls.update(&found);
            let rows = rows(&found.iter().collect::<Vec<_>>(), &ttls);
            rows.first().map(|row| row.left)
        };
        let Some(TimeLeft::For { left, of }) = read().await else {
            panic!("not held");
        };
        assert_eq!(left, of);
        tokio::time::sleep(Duration::from_millis(20)).await;
        let Some(TimeLeft::For { left, of: still }) = read().await else {
            panic!("not held");
        };
        assert!(left < still && still == of);
        assert!(guard.release().await.unwrap().was_held());
        assert_eq!(read().await, None);
        assert!(ttls.longest.is_empty());
    }

    #[test]
    fn remaining_time_decreases_between_surveys() {
        let seconds = Duration::from_secs;
        let left = TimeLeft::For {
            left: seconds(20),
            of: seconds(40),
        };
        assert_eq!(left.part(seconds(10)), Some(0.25));
        assert_eq!(left.after(seconds(10)), "10s");
        assert_eq!(left.part(seconds(30)), Some(0.0));
        assert_eq!(
            (
                TimeLeft::Forever.part(seconds(1)),
                TimeLeft::NotHeld.part(seconds(1))
            ),
            (None, None)
        );
    }
}
