//! Idempotent execution: which execution of a key may start, and whose result counts.
//!
//! Executions hold a lease and carry its fence. A process that was paused past its lease may still
//! finish: its result counts only if no execution with a higher fence has started.

use crate::Fence;
use crate::store::{OnceFinish, OnceRecord, OnceStart};

/// Starts an execution with this fence. Returns the decision and the record afterwards.
///
/// A result belongs to its payload. An execution that was interrupted has none, and the caller holds
/// the lease: any payload may start.
pub fn start(
    known: Option<OnceRecord>,
    fence: Fence,
    payload: [u8; 32],
) -> (OnceStart, Option<OnceRecord>) {
    let started = OnceRecord {
        fence,
        payload,
        result: None,
    };
    match known {
        None => (OnceStart::Go, Some(started)),
        Some(known) => match &known.result {
            Some(_) if known.payload != payload => (OnceStart::OtherPayload, Some(known)),
            Some(result) => (OnceStart::Done(result.clone()), Some(known)),
            None if known.fence > fence => (OnceStart::Stale, Some(known)),
            None => (OnceStart::Go, Some(started)),
        },
    }
}

/// Stores the result of the execution with this fence. Returns the decision and the record
/// afterwards.
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
                (OnceFinish::Stored, Some(OnceRecord { result, ..known }))
            }
        },
    }
}

/// Whether the record is removed; with a fence, only an unfinished execution with this fence is.
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
    fn interrupted_execution_may_be_replaced_by_another_payload() {
        let (_, record) = start(None, Fence::new(5), [1; 32]);
        let (started, replaced) = start(record.clone(), Fence::new(6), [2; 32]);
        assert_eq!(started, OnceStart::Go);
        let (kept, _) = finish(replaced, Fence::new(5), b"late".to_vec());
        assert_eq!(kept, OnceFinish::Stale);
        assert_eq!(start(record, Fence::new(4), [2; 32]).0, OnceStart::Stale);
    }

    #[test]
    fn the_late_result_of_a_paused_process_does_not_count() {
        let (old, new) = (Fence::new(5), Fence::new(6));
        let (started, record) = start(None, old, [1; 32]);
        assert_eq!(started, OnceStart::Go);
        let (started, record) = start(record, new, [1; 32]);
        assert_eq!(started, OnceStart::Go, "the lease of the first was lost");
        let (kept, record) = finish(record, old, b"late".to_vec());
        assert_eq!(kept, OnceFinish::Stale);
        assert_eq!(start(record.clone(), old, [1; 32]).0, OnceStart::Stale);
        let (kept, record) = finish(record, new, b"in time".to_vec());
        assert_eq!(kept, OnceFinish::Stored);
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
