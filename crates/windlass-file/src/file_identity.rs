//! Whether the open database is still the file that its path names.
//!
//! A file that was deleted or replaced lives on for the processes that have it open. Decisions
//! taken in it would not exclude processes that open the path.

use std::path::{Path, PathBuf};

/// A path, and the file that it named when the database was opened.
#[derive(Debug)]
pub(super) struct FileIdentity {
    path: PathBuf,
    file: Option<FileId>,
}

/// Device and inode.
type FileId = (u64, u64);

impl FileIdentity {
    pub(super) fn of(path: &Path) -> FileIdentity {
        FileIdentity {
            path: path.to_owned(),
            file: file_id(path),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still names the same file.
    pub(super) fn is_current(&self) -> bool {
        file_id(&self.path) == self.file
    }
}

#[cfg(unix)]
fn file_id(path: &Path) -> Option<FileId> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn file_id(path: &Path) -> Option<FileId> {
    // The system does not let an open file be deleted.
    path.exists().then_some((0, 0))
}
