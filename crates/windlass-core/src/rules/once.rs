//! What has been done, and by whom.

use crate::Fence;
use crate::store::{OnceFinish, OnceRecord, OnceStart};

/// Whether whoever holds `fence` may begin, and the record from then on.
pub fn start(
    known: Option<OnceRecord>,
    fence: Fence,
    payload: [u8; 32],
) -> (OnceStart, Option<OnceRecord>) {
    let begin = OnceRecord {
        fence,
        payload,
        result: None,
    };
    match known {
        None => (OnceStart::Go, Some(begin)),
        Some(known) if known.payload != payload => (OnceStart::OtherPayload, Some(known)),
        Some(known) => match &known.result {
            Some(result) => (OnceStart::Done(result.clone()), Some(known)),
            None if known.fence > fence => (OnceStart::Stale, Some(known)),
            None => (OnceStart::Go, Some(begin)),
        },
    }
}

/// Whether the result of whoever began with `fence` counts, and the record from then on.
pub fn finish(
    known: Option<OnceRecord>,
    fence: Fence,
    result: Vec<u8>,
) -> (OnceFinish, Option<OnceRecord>) {
    match known {
        None => (OnceFinish::Stale, None),
        Some(known) => match &known.result {
            Some(result) => (OnceFinish::Done(result.clone()), Some(known)),
            None if known.fence != fence => (OnceFinish::Stale, Some(known)),
            None => {
                let result = Some(result);
                (OnceFinish::OnceFinish, Some(OnceRecord { result, ..known }))
            }
        },
    }
}

/// Whether the key is forgotten.
pub fn forget(known: Option<&OnceRecord>, fence: Option<Fence>) -> bool {
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
        assert_eq!(started, OnceStart::Go);
        let (started, record) = start(record, new, [1; 32]);
        assert_eq!(started, OnceStart::Go, "the lease of the first was lost");
        let (kept, record) = finish(record, old, b"late".to_vec());
        assert_eq!(kept, OnceFinish::Stale);
        assert_eq!(start(record.clone(), old, [1; 32]).0, OnceStart::Stale);
        let (kept, record) = finish(record, new, b"in time".to_vec());
        assert_eq!(kept, OnceFinish::OnceFinish);
        let (kept, record) = finish(record, old, b"late".to_vec());
        assert_eq!(kept, OnceFinish::Done(b"in time".to_vec()));
        let (started, record) = start(record, Fence::new(7), [1; 32]);
        assert_eq!(started, OnceStart::Done(b"in time".to_vec()));
        assert_eq!(
            start(record.clone(), Fence::new(8), [2; 32]).0,
            OnceStart::OtherPayload
        );
        assert!(!forget(record.as_ref(), Some(new)), "it has a result");
        assert!(forget(record.as_ref(), None));
    }
}
