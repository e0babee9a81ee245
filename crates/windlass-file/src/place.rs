//! Whether the database is still what its path names.
//!
//! A file that was deleted or replaced lives on for whoever has it open. Decisions taken in it would
//! keep nobody out who comes by the path.

use std::path::{Path, PathBuf};

/// A path, and the file that was found there.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    file: Option<(u64, u64)>,
}

impl Place {
    /// What the path names now.
    pub(super) fn of(path: &Path) -> Place {
        Place {
            path: path.to_owned(),
            file: identity(path),
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the path still names the same file.
    pub(super) fn is_same(&self) -> bool {
        identity(&self.path) == self.file
    }
}

#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::metadata(path).ok()?;
    Some((found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<(u64, u64)> {
    // The system does not let an open file be deleted.
    path.exists().then_some((0, 0))
}
