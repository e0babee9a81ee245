//! A file that other programs remove, restore and damage while it is in use.
//!
//! A second holder is possible until the first is notified, after a third of its TTL. Fences must
//! still grow, over every copy.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use super::failover::lost_by_failover;
use super::{Fault, StoreUnderTest};
use crate::history::Breach;

/// A file, and a copy of it from before it was used.
pub(super) struct DamagedFile {
    folder: TempDir,
}

impl DamagedFile {
    pub(super) fn new() -> DamagedFile {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = DamagedFile { folder };
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        runtime.block_on(async {
            let w = windlass::connect(&file.url()).await.expect("a new file");
            let guard = w.lock("first").acquire().await.expect("a free lock");
            assert!(guard.release().await.expect("a held lock").was_held());
        });
        drop(runtime);
        // The process that had it open has written everything to the file itself.
        let closed =
            crate::eventually_blocking(Duration::from_secs(10), || !file.path("-wal").exists());
        assert!(closed, "the file is still open");
        fs::copy(file.path(""), file.path(".copy")).expect("a copy of the file");
        file
    }

    fn path(&self, suffix: &str) -> PathBuf {
        self.folder.path().join(format!("windlass.db{suffix}"))
    }

    fn remove(&self, suffixes: &[&str]) {
        for suffix in suffixes {
            // It may not exist at the moment.
            let _ = fs::remove_file(self.path(suffix));
        }
    }

    /// Overwrites the middle of the log, if there is one.
    fn damage_log(&self) {
        let path = self.path("-wal");
        if let Ok(mut bytes) = fs::read(&path) {
            let from = bytes.len() / 3;
            for byte in bytes.iter_mut().skip(from).take(4096) {
                *byte ^= 0x5a;
            }
            let _ = fs::write(&path, bytes);
        }
    }

    /// Puts the copy in the place of the file, as a restored backup.
    fn restore_copy(&self) {
        let new = self.path(".new");
        fs::copy(self.path(".copy"), &new).expect("a copy of the copy");
        fs::rename(&new, self.path("")).expect("a file in the same folder");
        self.remove(&["-wal", "-shm"]);
    }
}

impl StoreUnderTest for DamagedFile {
    fn url(&self) -> String {
        format!("file:{}", self.path("").display())
    }

    fn tolerates(&self, breach: &Breach) -> bool {
        lost_by_failover(breach)
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let pause = Duration::from_millis(300);
        vec![
            Fault::new(
                ("remove", "the log and its index"),
                Duration::ZERO,
                || self.remove(&["-wal", "-shm"]),
                || (),
            ),
            Fault::new(
                ("restore an older copy of", "the file"),
                Duration::ZERO,
                || self.restore_copy(),
                || (),
            ),
            // The damaged file is refused, until the operator replaces it.
            Fault::new(
                ("damage", "the log"),
                pause,
                || self.damage_log(),
                || self.restore_copy(),
            ),
            Fault::new(
                ("delete", "the file"),
                Duration::ZERO,
                || self.remove(&["", "-wal", "-shm"]),
                || (),
            ),
        ]
    }
}
