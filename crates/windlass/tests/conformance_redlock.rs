//! Every behaviour that a quorum shares with the other backends, on three real servers; and that it
//! refuses the rest.

use windlass::ErrorKind;
use windlass_testkit::Flavor;
use windlass_testkit::conformance::Stage;

fn stage() -> Stage {
    Stage::redlock(3, Flavor::Valkey)
}

windlass_testkit::majority_conformance! { stage }
windlass_testkit::conformance_cases! { stage; refused: flow_and_data_are_refused; }

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
    // Latches and barriers are sound, but for what would be too much to agree on.
    let e = w.barrier("start", 1025).enter().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("1024"), "{e}");
    let e = w.latch("ready").reset(4097).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("4096"), "{e}");
    let week = std::time::Duration::from_secs(7 * 24 * 60 * 60);
    let e = w.latch("ready").keep(week).reset(1).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("24 h at most"), "{e}");
}
