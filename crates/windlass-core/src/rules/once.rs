//! What has been done, and by whom.

use crate::Fence;
use crate::store::{Kept, Record, Started};

/// Whether whoever holds `fence` may begin, and the record from then on.
pub fn start(known: Option<Record>, fence: Fence, payload: [u8; 32]) -> (Started, Option<Record>) {
    let begin = Record {
        fence,
        payload,
        result: None,
    };
    match known {
        None => (Started::Go, Some(begin)),
        Some(known) if known.payload != payload => (Started::OtherPayload, Some(known)),
        Some(known) => match &known.result {
            Some(result) => (Started::Done(result.clone()), Some(known)),
            None if known.fence > fence => (Started::Stale, Some(known)),
            None => (Started::Go, Some(begin)),
        },
    }
}

/// Whether the result of whoever began with `fence` counts, and the record from then on.
pub fn finish(known: Option<Record>, fence: Fence, result: Vec<u8>) -> (Kept, Option<Record>) {
    match known {
        None => (Kept::Stale, None),
        Some(known) => match &known.result {
            Some(result) => (Kept::Done(result.clone()), Some(known)),
            None if known.fence != fence => (Kept::Stale, Some(known)),
            None => {
                let result = Some(result);
                (Kept::Kept, Some(Record { result, ..known }))
            }
        },
    }
}

/// Whether the key is forgotten.
pub fn forget(known: Option<&Record>, fence: Option<Fence>) -> bool {
    match (known, fence) {
        (None, _) => false,
        (Some(_), None) => true,
        (Some(known), Some(fence)) => known.fence == fence && known.result.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_late_result_of_a_sleeper_does_not_count() {
        let (old, new) = (Fence::new(5), Fence::new(6));
        let (started, record) = start(None, old, [1; 32]);
        assert_eq!(started, Started::Go);
        let (started, record) = start(record, new, [1; 32]);
        assert_eq!(started, Started::Go, "the lease of the first was lost");
        let (kept, record) = finish(record, old, b"late".to_vec());
        assert_eq!(kept, Kept::Stale);
        assert_eq!(start(record.clone(), old, [1; 32]).0, Started::Stale);
        let (kept, record) = finish(record, new, b"in time".to_vec());
        assert_eq!(kept, Kept::Kept);
        let (kept, record) = finish(record, old, b"late".to_vec());
        assert_eq!(kept, Kept::Done(b"in time".to_vec()));
        let (started, record) = start(record, Fence::new(7), [1; 32]);
        assert_eq!(started, Started::Done(b"in time".to_vec()));
        assert_eq!(
            start(record.clone(), Fence::new(8), [2; 32]).0,
            Started::OtherPayload
        );
        assert!(!forget(record.as_ref(), Some(new)), "it has a result");
        assert!(forget(record.as_ref(), None));
    }
}
