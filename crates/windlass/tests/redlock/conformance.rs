//! Every behaviour that a quorum shares with the other backends, on three real servers; and that it
//! refuses the rest.

use windlass::ErrorKind;
use windlass_testkit::Flavor;
use windlass_testkit::conformance::Stage;

fn stage() -> Stage {
    Stage::redlock(3, Flavor::Valkey)
}

windlass_testkit::majority_conformance! { stage }
windlass_testkit::conformance_cases! { stage;
    refused: flow_and_data_are_refused, latches_and_barriers_are_refused;
}

/// What a majority cannot decide is refused with the reason, never decided weakly.
#[tokio::test]
async fn what_is_not_sound_is_refused() {
    let stage = stage();
    let w = stage.connect().await;
    let refused = |error: windlass::Error, words: &[&str]| {
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{error}");
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
    };
    let e = w.semaphore("pool", 3).acquire().await.unwrap_err();
    refused(e, &["redlock", "semaphores", "no common node"]);
}
