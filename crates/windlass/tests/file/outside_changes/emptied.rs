//! Files that are emptied while processes use them.

use super::damaged::Left;
use super::*;

/// Nothing is left of a file that was emptied: its processes start again with higher fences.
#[tokio::test]
async fn emptied_file_ends_claims() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(3);
    let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    fs::write(&path, "").unwrap();
    tokio::time::timeout(SOON, guard.lost()).await.unwrap();
}

/// Whether this process has the file open.
fn is_open_here(path: &Path) -> bool {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    open.map(|file| fs::read_link(file.path()))
        .any(|file| file.is_ok_and(|file| file == path))
}

/// The holder opens the emptied file again while another process sets it up: SQLite has removed the
/// log, and the index still counts frames of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_file_is_shared_at_once() {
    for _ in 0..2 {
        let folder = tempfile::tempdir().unwrap();
        let path = create(folder.path()).await;
        let w = connect(&url(&path)).await.unwrap();
        let ttl = Duration::from_secs(60);
        let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
        let log = || fs::metadata(folder.path().join("locks.db-wal")).map(|log| log.ino());
        let used = log().unwrap();
        // By another process: to close the file here would drop the locks of the client.
        let mut truncate = Command::new("truncate");
        let truncated = truncate.args(["-s", "0"]).arg(&path).status().unwrap();
        assert!(truncated.success());
        let other = start(&[], "try", &path);
        assert!(eventually(SOON, async || log().ok() != Some(used)).await);
        // The longer it waits, the longer SQLite sleeps between two tries: the holder comes first.
        tokio::time::sleep(Duration::from_millis(300)).await;
        let e = guard
            .renew()
            .await
            .expect_err("nothing is left of the claim");
        assert_eq!(e.kind(), ErrorKind::Lost, "{e}");
        tokio::time::timeout(SOON, guard.lost()).await.unwrap();
        said(&other, "free");
        // The other process may have ended before it could release the lock.
        let w = connect(&url(&path)).await.unwrap();
        let next = w.lock("other").acquire().await.unwrap();
        assert!(next.fence() > guard.fence());
    }
}

/// The same at the moment in which the other process has written the first page, and no log yet.
#[tokio::test]
async fn index_of_an_emptied_file_is_no_evidence_of_damage() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await.canonicalize().unwrap();
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    fs::write(&path, "").unwrap();
    fs::remove_file(folder.path().join("locks.db-wal")).unwrap();
    assert!(eventually(SOON, async || !is_open_here(&path)).await);
    let other = folder.path().join("other.db");
    let first_page = Connection::open(&other).unwrap();
    first_page
        .pragma_update(None, "journal_mode", "WAL")
        .unwrap();
    drop(first_page);
    fs::copy(&other, &path).unwrap();
    assert!(next_fence(&path).await > guard.fence());
}

/// The same if all processes were killed meanwhile.
#[tokio::test]
async fn emptied_file_of_killed_processes_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let mut left = Left::by_a_killed_holder(folder.path());
    // SQLite takes a single byte for an empty file, too.
    for length in [1, 0] {
        left.contents[0].truncate(length);
        left.connect_with_log(&[]).await.expect("a new file");
    }
}
