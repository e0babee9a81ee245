//! The JSON of the values that programs send over the wire.
#![cfg(feature = "serde")]

use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{json, to_value};
use windlass_core::decision::{Basis, Decision};
use windlass_core::rules::limit::LimitStatus;
use windlass_core::store::{
    Admission, Finding, Holder, Kind, LatchState, Occupancy, PastGeneration, Released, Severity,
};
use windlass_core::{Fence, FenceStrength, Owner};

fn round_trip<T>(value: &T, expected: &serde_json::Value)
where
    T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug,
{
    assert_eq!(to_value(value).unwrap(), *expected);
    let read: T = serde_json::from_value(expected.clone()).unwrap();
    assert_eq!(read, *value);
}

#[test]
fn fences_and_owners_are_a_number_and_a_text() {
    round_trip(&Fence::new(7), &json!(7));
    round_trip(&Owner::new("me").unwrap(), &json!("me"));
    round_trip(&FenceStrength::SingleNode, &json!("single-node"));
    assert_eq!(
        to_value(FenceStrength::SingleNode).unwrap(),
        FenceStrength::SingleNode.to_string()
    );
}

#[test]
fn an_invalid_owner_is_rejected() {
    for text in ["", "a b", &"x".repeat(Owner::MAX_BYTES + 1)] {
        let read = serde_json::from_value::<Owner>(json!(text));
        assert!(
            read.unwrap_err().to_string().contains("the owner"),
            "{text}"
        );
    }
}

#[test]
fn kinds_have_their_stored_names() {
    for kind in Kind::ALL {
        round_trip(&kind, &json!(kind.word()));
    }
}

#[test]
fn decisions_have_the_keys_of_the_command_line() {
    let status = LimitStatus {
        limit: 5,
        quota: 0,
        remaining: 0,
        retry_after: Some(1_500),
        reset_after: None,
    };
    let denied = Decision::new(false, status, Basis::Store);
    assert_eq!(
        to_value(denied).unwrap(),
        json!({
            "allowed": false, "limit": 5, "remaining": 0,
            "retry_after_ms": 2, "reset_after_ms": null, "basis": "store",
        })
    );
    let never = LimitStatus {
        retry_after: None,
        reset_after: Some(3_000),
        ..status
    };
    let never = Decision::new(false, never, Basis::Leased);
    let read: Decision = serde_json::from_value(to_value(never).unwrap()).unwrap();
    assert_eq!(read, never);
    assert!(read.is_never());
}

#[test]
fn states_are_objects() {
    let mut holder = Holder::new("me");
    holder.fence = Some(Fence::new(3));
    holder.remaining = Some(Duration::from_millis(1_200));
    let mut occupancy = Occupancy::new(Kind::Semaphore, "jobs");
    occupancy.size = 2;
    occupancy.holders.push(holder);
    round_trip(
        &occupancy,
        &json!({
            "kind": "sem", "name": "jobs", "size": 2, "used": 0, "waiters": 0, "open": null,
            "holders": [{
                "owner": "me", "fence": 3, "weight": 1,
                "remaining_ms": 1200, "age_ms": null, "note": null,
            }],
        }),
    );
    round_trip(
        &LatchState::new("2".into(), 3, 1, vec![PastGeneration::new("1", true)]),
        &json!({
            "generation": "2", "count": 3, "remaining": 1,
            "past": [{ "generation": "1", "opened": true }],
        }),
    );
    round_trip(&Admission::Admitted, &json!("admitted"));
    let highest = Fence::new(9);
    round_trip(
        &Admission::Stale { highest },
        &json!({ "stale": { "highest": 9 } }),
    );
    round_trip(&Released::WasHeld, &json!("was-held"));
    let finding = Finding::new(Severity::Warning, "version", "old");
    assert_eq!(
        to_value(finding).unwrap(),
        json!({ "severity": "warning", "topic": "version", "message": "old" })
    );
}
