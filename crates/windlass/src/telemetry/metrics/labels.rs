//! A bound on the number of labels.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock};

/// The label of everything beyond a bound.
pub(super) const OTHER: &str = "other";

/// The entry of `label`; that of [`OTHER`] if `max` others exist.
pub(super) fn bounded<T: Clone>(
    map: &RwLock<HashMap<Box<str>, T>>,
    label: &str,
    max: usize,
    new: impl FnOnce(&str) -> T,
) -> T {
    let is_full = |known: &HashMap<Box<str>, T>| {
        let others = usize::from(known.contains_key(OTHER));
        known.len() - others >= max
    };
    {
        // Each acquisition comes here, also for a name beyond the bound: none waits for the others.
        let known = map.read().unwrap_or_else(PoisonError::into_inner);
        let other = || is_full(&known).then(|| known.get(OTHER)).flatten();
        if let Some(entry) = known.get(label).or_else(other) {
            return entry.clone();
        }
    }
    let mut known = map.write().unwrap_or_else(PoisonError::into_inner);
    let label = match known.contains_key(label) || !is_full(&known) {
        true => label,
        false => OTHER,
    };
    let entry = known.entry(label.into()).or_insert_with(|| new(label));
    entry.clone()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    #[test]
    fn labels_beyond_the_bound_share_one() {
        let map = RwLock::default();
        let label = |name: &str| bounded(&map, name, 2, str::to_owned);
        assert_eq!(
            ["a", "b", "c", "a", "d", "other"].map(label),
            ["a", "b", "other", "a", "other", "other"]
        );
        assert_eq!(map.read().unwrap().len(), 3);
    }

    /// The writer would wait for the reader, and all later readers for the writer.
    #[test]
    fn label_beyond_the_bound_does_not_lock_out_others() {
        let map: Arc<RwLock<HashMap<Box<str>, String>>> = Arc::default();
        for name in ["a", "b"] {
            bounded(&map, name, 1, str::to_owned);
        }
        let reading = map.read().unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        let shared = Arc::clone(&map);
        let looking_up = std::thread::spawn(move || {
            let _ = sender.send(bounded(&shared, "c", 1, str::to_owned));
        });
        let label = receiver.recv_timeout(Duration::from_secs(20));
        drop(reading);
        looking_up.join().unwrap();
        assert_eq!(label.unwrap(), OTHER);
    }
}
