//! Whether the open database is still what its path names.
//!
//! A file that was deleted or replaced lives on for the processes that have it open. Decisions
//! taken in it would not exclude processes that open the path. The same holds for SQLite's log
//! (`-wal`) and the index of it (`-shm`), which stay as long as a connection is open unless another
//! program removes them.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long to wait for other clients of this process to close files that were removed.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// A path, and the files that it named when the database was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    /// The path without symbolic links, from which SQLite derives the names of the side files.
    real: PathBuf,
    file: Option<FileId>,
    side_files: [Option<FileId>; 2],
    /// The database never shrinks: checkpoints only add to it.
    length: u64,
}

/// Device and inode.
type FileId = (u64, u64);

impl FileIdentity {
    pub(super) fn of(path: &Path) -> FileIdentity {
        let real = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        FileIdentity {
            path: path.to_owned(),
            file: file_id(path),
            side_files: side_files(&real).map(|file| file_id(&file)),
            length: length(path),
            real,
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still names the same files.
    pub(super) fn is_current(&mut self) -> bool {
        let Ok(found) = std::fs::metadata(&self.path) else {
            return false;
        };
        let shrunk = found.len() < self.length;
        self.length = found.len();
        !shrunk
            && Some(id(&found)) == self.file
            && side_files(&self.real).map(|file| file_id(&file)) == self.side_files
    }
}

/// The log and its index. `real` is a path without symbolic links.
pub(super) fn side_files(real: &Path) -> [PathBuf; 2] {
    ["-wal", "-shm"].map(|suffix| {
        let mut name = OsString::from(real);
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// Waits until no client of this process has a removed log or index open. SQLite shares the index
/// among the connections of a process to one file, so a new connection would get the removed one.
/// Each client looks for removed files from time to time, and closes them.
pub(super) fn wait_for_closed_side_files(path: &Path) -> bool {
    let Ok(real) = path.canonicalize() else {
        return true;
    };
    let deadline = Instant::now() + CLOSE_TIMEOUT;
    while has_removed_side_files(&real) {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Whether this process has the file open together with a removed log or index.
fn has_removed_side_files(real: &Path) -> bool {
    let removed = side_files(real).map(|file| {
        let mut name = OsString::from(file);
        name.push(" (deleted)");
        PathBuf::from(name)
    });
    let open = open_files();
    open.contains(real) && removed.iter().any(|file| open.contains(file))
}

/// Whether this process has the file open.
#[cfg(target_os = "linux")]
pub(super) fn is_open_here(real: &Path) -> bool {
    open_files().contains(real)
}

/// The files that this process has open, as far as the system tells.
fn open_files() -> HashSet<PathBuf> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else {
        return HashSet::new();
    };
    let targets = open.flatten().map(|file| std::fs::read_link(file.path()));
    targets.flatten().collect()
}

fn file_id(path: &Path) -> Option<FileId> {
    std::fs::metadata(path).ok().map(|found| id(&found))
}

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |found| found.len())
}

#[cfg(unix)]
fn id(found: &Metadata) -> FileId {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

#[cfg(not(unix))]
fn id(_found: &Metadata) -> FileId {
    // The system does not let an open file be deleted.
    (0, 0)
}
