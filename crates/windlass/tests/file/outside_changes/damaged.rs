//! Files and logs that are cut off or overwritten.

use super::*;

/// A log whose end is gone would show an earlier state, in which held locks are free.
#[tokio::test]
async fn damaged_log_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let holder = start(&[], "detach", &path);
    let fence = fence_of(&said(&holder, "detached"));
    holder.kill9().unwrap();
    let files = ["locks.db", "locks.db-wal", "locks.db-shm"];
    let contents = files.map(|file| fs::read(folder.path().join(file)).unwrap());
    let log = contents[1].len();
    let copy = |damage: &dyn Fn(&mut Vec<u8>)| {
        let folder = tempfile::tempdir().unwrap();
        for (file, bytes) in files.iter().zip(&contents) {
            let mut bytes = bytes.clone();
            if file.ends_with("-wal") {
                damage(&mut bytes);
            }
            fs::write(folder.path().join(file), bytes).unwrap();
        }
        folder
    };
    let intact = copy(&|_| {});
    said(&start(&[], "try", &intact.path().join("locks.db")), "busy");
    let mut damaged = Vec::new();
    for at in [9, 60, log / 3, log / 2, log - 100] {
        damaged.push(copy(&|bytes| bytes[at] ^= 0x40));
        damaged.push(copy(&|bytes| bytes.truncate(at)));
    }
    damaged.push(copy(&|bytes| bytes.clear()));
    for folder in damaged {
        // It stays refused: the first attempt to open it must not hide the damage.
        for _ in 0..2 {
            let e = connect(&url(&folder.path().join("locks.db"))).await;
            let e = e.expect_err("refused");
            assert_eq!(e.kind(), ErrorKind::Store, "{e}");
            assert!(e.to_string().contains("damaged"), "{e}");
            assert!(e.hint().unwrap().contains("move it away"), "{e:?}");
        }
        for file in files {
            let _ = fs::remove_file(folder.path().join(file));
        }
        assert!(next_fence(&folder.path().join("locks.db")).await > fence);
    }
}

/// What the file, its log and its index have after the process that used them was killed.
pub(super) struct Left {
    pub(super) contents: [Vec<u8>; 3],
}

impl Left {
    const FILES: [&str; 3] = ["locks.db", "locks.db-wal", "locks.db-shm"];

    /// Another process acquires the lock in the file and is killed.
    pub(super) fn by_a_killed_holder(folder: &Path) -> Left {
        let holder = start(&[], "detach", &folder.join("locks.db"));
        said(&holder, "detached");
        holder.kill9().unwrap();
        Left::in_folder(folder)
    }

    fn in_folder(folder: &Path) -> Left {
        Left {
            contents: Left::FILES.map(|file| fs::read(folder.join(file)).unwrap()),
        }
    }

    fn log(&self) -> &[u8] {
        &self.contents[1]
    }

    /// Connects to a copy with another log.
    pub(super) async fn connect_with_log(
        &self,
        log: &[u8],
    ) -> windlass::Result<windlass::Coordinator> {
        let [file, _, index] = &self.contents;
        let copy = Left::copy([Some(file), Some(log), Some(index)]);
        connect(&url(&copy.path().join("locks.db"))).await
    }

    /// A folder with these files.
    fn copy(contents: [Option<&[u8]>; 3]) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        for (name, bytes) in Left::FILES.iter().zip(contents) {
            if let Some(bytes) = bytes {
                fs::write(folder.path().join(name), bytes).unwrap();
            }
        }
        folder
    }
}

/// The frame with which a boot begins may be lost, too: that does not make the loss one of an
/// earlier boot, after which locks are free.
#[tokio::test]
async fn log_damaged_at_any_frame_is_refused() {
    const LOG_HEADER: usize = 32;
    const FRAME: usize = 24 + 4096;
    let new = tempfile::tempdir().unwrap();
    let rebooted = tempfile::tempdir().unwrap();
    let path = create(rebooted.path()).await;
    let database = Connection::open(&path).unwrap();
    let earlier_boot = "UPDATE fences SET boot = 'earlier'";
    database.execute(earlier_boot, []).unwrap();
    drop(database);
    for folder in [new, rebooted] {
        let left = Left::by_a_killed_holder(folder.path());
        let log = left.log();
        left.connect_with_log(log).await.expect("intact");
        for start in (LOG_HEADER..log.len()).step_by(FRAME) {
            let mut flipped = log.to_vec();
            flipped[start + 24 + start % 4096] ^= 0x10;
            for damaged in [&log[..start], flipped.as_slice()] {
                let e = left.connect_with_log(damaged).await;
                let e = e
                    .err()
                    .unwrap_or_else(|| panic!("accepted with damage at {start}"));
                assert!(e.to_string().contains("damaged"), "{e}");
            }
        }
    }
}

/// A power cut may lose the end of the log and keep a newer index. Its claims end anyway.
#[tokio::test]
async fn log_cut_off_before_a_reboot_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let database = Connection::open(&path).unwrap();
    let earlier_boot = "UPDATE fences SET boot = 'earlier'; PRAGMA wal_checkpoint(TRUNCATE);
                        UPDATE fences SET last = last + 1;";
    database.execute_batch(earlier_boot).unwrap();
    let left = Left::in_folder(folder.path());
    let log = left.log();
    let w = left.connect_with_log(&log[..log.len() - 100]).await;
    w.expect("nothing of this boot is missing");
}

/// A process may be killed while it voids the claims of the earlier boot.
#[tokio::test]
async fn interrupted_start_of_a_boot_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let database = Connection::open(&path).unwrap();
    let starting = "UPDATE fences SET boot = 'starting ' || boot";
    database.execute(starting, []).unwrap();
    drop(database);
    let holder = start(&[], "detach", &path);
    said(&holder, "detached");
    said(&start(&[], "try", &path), "busy");
    holder.kill9().unwrap();
    let database = Connection::open(&path).unwrap();
    let boot: String = database
        .query_row("SELECT boot FROM fences", [], |row| row.get(0))
        .unwrap();
    assert!(!boot.starts_with("starting"), "{boot}");
}

/// A kill at any moment is no damage, not even if it ends all processes at once.
#[tokio::test]
async fn log_of_killed_processes_is_whole() {
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let mut counted = 0;
    for round in 0..20 {
        let children: Vec<_> = (0..3).map(|_| start(&[], "churn", &path)).collect();
        for child in &children {
            said(child, "ready");
        }
        // The kills hit other points of a transaction, of a checkpoint, of a restart of the log.
        tokio::time::sleep(Duration::from_millis(13 * round)).await;
        for child in &children {
            child.kill9().unwrap();
        }
        let w = connect(&url(&path)).await.expect("the log is whole");
        let rounds = w.counter("rounds").get().await.unwrap();
        assert!(rounds >= counted, "{rounds} after {counted}");
        counted = rounds;
    }
    assert!(counted > 0);
}

/// What is missing is zeros to SQLite. A file of up to one byte is a new one; any other is damaged, or
/// its log has all that is needed.
#[tokio::test]
async fn file_cut_off_anywhere_frees_no_lock() {
    const PAGE: usize = 4096;
    let folder = tempfile::tempdir().unwrap();
    let path = create(folder.path()).await;
    let holder = start(&[], "detach", &path);
    let fence = fence_of(&said(&holder, "detached"));
    holder.kill9().unwrap();
    let left = Left::in_folder(folder.path());
    let [file, log, index] = &left.contents;
    let within_first_page = [
        0,
        1,
        2,
        15,
        16,
        23,
        24,
        99,
        100,
        101,
        104,
        108,
        511,
        PAGE - 1,
    ];
    let pages = (PAGE..file.len()).step_by(PAGE);
    assert!(pages.len() > 10, "{} bytes", file.len());
    let (mut refused, mut busy) = (0, 0);
    for length in within_first_page.into_iter().chain(pages) {
        let side_files = [
            (Some(log), Some(index)),
            (None, None),
            (Some(log), None),
            (None, Some(index)),
        ];
        // Every combination takes its time.
        let tried = if length < PAGE { 4 } else { 2 };
        for (log, index) in side_files.into_iter().take(tried) {
            let what = format!("{length} bytes, {:?}", (log.is_some(), index.is_some()));
            let contents = [
                Some(&file[..length]),
                log.map(Vec::as_slice),
                index.map(Vec::as_slice),
            ];
            let copy = Left::copy(contents);
            let attempt = async {
                let w = connect(&url(&copy.path().join("locks.db"))).await?;
                w.lock("stock").try_acquire().await
            };
            match attempt.await {
                Ok(Attempt::Acquired(guard)) => {
                    assert!(length <= 1, "{what}: granted");
                    assert!(
                        guard.fence() > fence,
                        "{what}: {:?} after {fence:?}",
                        guard.fence()
                    );
                }
                Ok(_) => busy += 1,
                Err(e) => {
                    assert!(e.to_string().contains("damaged"), "{what}: {e}");
                    assert!(e.hint().unwrap().contains("move it away"), "{what}: {e:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > busy, "{refused} refused, {busy} busy");
}

/// The first page is not in this log: SQLite finds the header, and an empty schema.
#[tokio::test]
async fn file_cut_off_behind_its_header_is_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let database = Connection::open(create(folder.path()).await).unwrap();
    let update = "UPDATE fences SET last = last + 1";
    database.execute(update, []).unwrap();
    let left = Left::in_folder(folder.path());
    let [file, log, index] = &left.contents;
    for length in 100..110 {
        let copy = Left::copy([Some(&file[..length]), Some(log), Some(index)]);
        let e = connect(&url(&copy.path().join("locks.db"))).await;
        let e = e.expect_err("refused");
        assert!(e.to_string().contains("damaged"), "{length} bytes: {e}");
    }
}
