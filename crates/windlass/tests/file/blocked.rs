//! A process that stops within a transaction keeps the file to itself.

use std::path::Path;
use std::time::{Duration, Instant};

use windlass::{ErrorKind, connect};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{TestProcess, eventually};

use super::child::{said, start, url};

/// Another process, frozen within a transaction.
fn block(path: &Path) -> TestProcess {
    let blocker = start(&[], "block", path);
    said(&blocker, "blocks");
    blocker.pause().unwrap();
    blocker
}

fn names(text: impl ToString, blocker: &TestProcess) -> bool {
    let process = format!("process {} ", blocker.pid());
    text.to_string().contains(&process)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_on_a_blocked_file_name_the_blocker() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let blocker = block(&path);
    let started = Instant::now();
    let e = w.lock("stock").try_acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert!(names(&e, &blocker), "{e}");
    let resume = format!("kill -CONT {} ", blocker.pid());
    assert!(e.hint().unwrap().contains(&resume), "{e:?}");
    // To open the file is no different.
    let e = connect(&url(&path)).await.unwrap_err();
    assert!(names(&e, &blocker), "{e}");
    assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
}

/// The renewal that was due meanwhile has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_outlasts_a_blocked_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(9);
    let guard = w.lock("bystander").ttl(ttl).acquire().await.unwrap();
    let blocker = block(&path);
    let failed = eventually(ttl, async || guard.renewal_error().is_some());
    assert!(failed.await);
    let e = guard.renewal_error().unwrap();
    assert!(names(&e, &blocker), "{e}");
    assert!(guard.is_held());
    blocker.kill9().unwrap();
    let renewed = eventually(ttl, async || guard.remaining() > ttl * 2 / 3);
    assert!(renewed.await);
    assert!(guard.renewal_error().is_none());
    assert!(guard.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_in_a_blocked_file_is_held_until_its_validity_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(3);
    let guard = w.lock("bystander").ttl(ttl).acquire().await.unwrap();
    let blocker = block(&path);
    let (blocked, remaining) = (Instant::now(), guard.remaining());
    assert!(!remaining.is_zero());
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
    let held = blocked.elapsed();
    let timers = Duration::from_millis(50);
    assert!(held + timers >= remaining, "{held:?} of {remaining:?}");
    let e = guard.renewal_error().unwrap();
    assert!(names(&e, &blocker), "{e}");
}
