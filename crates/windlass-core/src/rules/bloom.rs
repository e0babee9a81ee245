//! Bloom filters: insert and look up items in the generations of a filter.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::bloom::{BloomKind, Digest, Plan};

/// The bits of one filter.
pub trait Cells {
    /// A failure of the storage.
    type Error;

    /// Whether a bit is set.
    fn get(&mut self, generation: u64, position: u64) -> Result<bool, Self::Error>;

    /// Sets a bit.
    fn set(&mut self, generation: u64, position: u64) -> Result<(), Self::Error>;
}

/// The growth of a growing filter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The newest generation.
    pub newest: u64,
    /// The number of new items inserted into it.
    pub counted: u64,
}

/// The generations in use at `now`. New items are inserted into the last one.
///
/// Those of a rotating filter are numbered by time. An item inserted at the very end of a slice is
/// still known when `slices − 1` more slices have passed, which is the window.
pub fn living(plan: &Plan, progress: Progress, now: Duration) -> RangeInclusive<u64> {
    match (plan.kind, plan.period()) {
        (BloomKind::Rotating { slices, .. }, Some(period)) => {
            let current = (now.as_millis() / period.as_millis()) as u64;
            current.saturating_sub(u64::from(slices) - 1)..=current
        }
        (BloomKind::Growing, _) => 0..=progress.newest,
        _ => 0..=0,
    }
}

/// Whether the item is in any generation in use.
pub fn contains<C: Cells>(
    cells: &mut C,
    plan: &Plan,
    progress: Progress,
    now: Duration,
    item: Digest,
) -> Result<bool, C::Error> {
    for generation in living(plan, progress, now) {
        let mut all = true;
        for position in item.positions(&plan.shape(generation)) {
            all &= cells.get(generation, position)?;
        }
        if all {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Inserts the item. Returns whether it was new.
///
/// A growing filter leaves a known item where it is. A rotating filter inserts it again, so that it
/// stays for a whole window from now on.
pub fn insert<C: Cells>(
    cells: &mut C,
    plan: &Plan,
    progress: &mut Progress,
    now: Duration,
    item: Digest,
) -> Result<bool, C::Error> {
    let new = !contains(cells, plan, *progress, now, item)?;
    if !new && plan.kind == BloomKind::Growing {
        return Ok(false);
    }
    let active = *living(plan, *progress, now).end();
    for position in item.positions(&plan.shape(active)) {
        cells.set(active, position)?;
    }
    if new && plan.kind == BloomKind::Growing {
        progress.counted += 1;
        if progress.counted >= plan.capacity_of(active) && plan.has_next(active) {
            *progress = Progress {
                newest: active + 1,
                counted: 0,
            };
        }
    }
    Ok(new)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::convert::Infallible;

    use super::*;

    /// The bits of each generation.
    #[derive(Default)]
    struct Bits(HashMap<u64, Vec<u64>>);

    impl Cells for Bits {
        type Error = Infallible;

        fn get(&mut self, generation: u64, position: u64) -> Result<bool, Infallible> {
            let words = self.0.get(&generation);
            let word = words.and_then(|words| words.get((position / 64) as usize));
            Ok(word.is_some_and(|word| word & (1 << (position % 64)) != 0))
        }

        fn set(&mut self, generation: u64, position: u64) -> Result<(), Infallible> {
            let (words, word) = (
                self.0.entry(generation).or_default(),
                (position / 64) as usize,
            );
            if words.len() <= word {
                words.resize(word + 1, 0);
            }
            words[word] |= 1 << (position % 64);
            Ok(())
        }
    }

    fn item(n: u64) -> Digest {
        Digest::of(&n.to_le_bytes())
    }

    fn put(cells: &mut Bits, plan: &Plan, progress: &mut Progress, at: u64, n: u64) -> bool {
        let Ok(new) = insert(cells, plan, progress, Duration::from_millis(at), item(n));
        new
    }

    fn has(cells: &mut Bits, plan: &Plan, progress: Progress, at: u64, n: u64) -> bool {
        let Ok(known) = contains(cells, plan, progress, Duration::from_millis(at), item(n));
        known
    }

    #[test]
    fn the_error_rate_at_capacity_is_the_one_requested() {
        for (capacity, error) in [(50_000, 0.03), (50_000, 0.1), (20_000, 0.3)] {
            let plan = Plan::sized(BloomKind::Fixed, capacity, error).unwrap();
            let (mut cells, mut progress) = (Bits::default(), Progress::default());
            for n in 0..capacity {
                put(&mut cells, &plan, &mut progress, 0, n);
            }
            let lookups = 200_000;
            let wrong = (0..lookups)
                .filter(|n| has(&mut cells, &plan, progress, 0, n + 1_000_000_000))
                .count();
            let rate = wrong as f64 / lookups as f64;
            assert!(
                (rate / error - 1.0).abs() < 0.1,
                "{rate} instead of {error}"
            );
        }
    }

    #[test]
    fn a_growing_filter_keeps_its_error_rate() {
        let plan = Plan::sized(BloomKind::Growing, 1_000, 0.02).unwrap();
        let (mut cells, mut progress) = (Bits::default(), Progress::default());
        let inserted = 50_000;
        for n in 0..inserted {
            put(&mut cells, &plan, &mut progress, 0, n);
        }
        assert_eq!(progress.newest, 5, "1, 2, 4, 8 and 16 thousand are full");
        assert!((0..inserted).all(|n| has(&mut cells, &plan, progress, 0, n)));
        let lookups = 200_000;
        let wrong = (0..lookups)
            .filter(|n| has(&mut cells, &plan, progress, 0, n + 1_000_000_000))
            .count();
        assert!((wrong as f64) < 0.02 * lookups as f64 * 1.1, "{wrong}");
    }

    #[test]
    fn a_rotating_filter_keeps_items_for_one_window_and_not_for_two() {
        let window = Duration::from_millis(1000);
        for slices in [2, 3, 5] {
            let kind = BloomKind::Rotating { window, slices };
            let plan = Plan::sized(kind, 1_000, 0.001).unwrap();
            let (mut cells, mut progress) = (Bits::default(), Progress::default());
            for start in [5_000, 5_001, 5_499, 5_999] {
                assert!(put(&mut cells, &plan, &mut progress, start, start));
                assert!(has(&mut cells, &plan, progress, start + 1000, start));
                assert!(!has(&mut cells, &plan, progress, start + 2001, start));
            }
            assert!(!put(&mut cells, &plan, &mut progress, 6_400, 5_999));
            assert!(
                has(&mut cells, &plan, progress, 7_400, 5_999),
                "inserted again, it stays for a window from then on"
            );
        }
    }
}
