//! A file that version 0.1.0 wrote is read by this version.
//!
//! `fixtures/windlass-0.1.db` was written by the command line of version 0.1.0. Its locks end with a
//! reboot of the machine; everything else outlives it.

use std::path::{Path, PathBuf};

use windlass::{Coordinator, ErrorKind, connect};

/// The highest fence in the file.
const LAST_FENCE: u64 = 1_794_819_709_760_005;

/// A copy that may be written to.
fn copy_into(folder: &Path) -> PathBuf {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/windlass-0.1.db");
    let copy = folder.join("windlass.db");
    std::fs::copy(fixture, &copy).unwrap();
    copy
}

async fn open(folder: &Path) -> Coordinator {
    let path = copy_into(folder);
    connect(&format!("file:{}", path.display())).await.unwrap()
}

#[tokio::test]
async fn fences_continue_above_those_in_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let w = open(folder.path()).await;
    let guard = w.lock("invoice/43").acquire().await.unwrap();
    assert!(guard.fence().get() > LAST_FENCE, "{}", guard.fence());
    assert!(guard.release().await.unwrap().was_held());
    let permits = w.semaphore("downloads", 5);
    assert!(permits.acquire().await.unwrap().fence().get() > LAST_FENCE);
}

#[tokio::test]
async fn counters_latches_and_results_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let w = open(folder.path()).await;
    assert_eq!(w.counter("visits").get().await.unwrap(), 42);
    let ready = w.latch("ready").generation("deploy-17");
    let state = ready.inspect().await.unwrap().expect("it was kept");
    assert_eq!((state.count, state.remaining), (3, 2));
    // The result is stored for the command that ran; another payload is rejected.
    let other = w.once("invoice-7").try_begin().await.unwrap_err();
    assert_eq!(other.kind(), ErrorKind::Mismatch, "{other}");
    let seen = w.seen("orders");
    assert!(seen.contains("order-42").await.unwrap());
    assert!(!seen.contains("order-44").await.unwrap());
}

#[tokio::test]
async fn filters_and_permissions_are_kept() {
    let folder = tempfile::tempdir().unwrap();
    let w = open(folder.path()).await;
    let crawled = w.bloom("crawled").open().await.unwrap();
    assert!(crawled.contains("https://example.org/").await.unwrap());
    assert!(!crawled.contains("https://example.net/").await.unwrap());
    let growing = w.bloom("growing").open().await.unwrap();
    assert!(growing.contains("one").await.unwrap());
    let repos = w.permissions("repos").open().await.unwrap();
    assert_eq!(repos.get("piers", "repo1").await.unwrap(), "read-write");
    assert_eq!(repos.get("fiers", "repo3").await.unwrap(), "read");
    assert_eq!(repos.get("fiers", "repo1").await.unwrap(), "no");
}
