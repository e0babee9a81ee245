//! Which process keeps the database locked.
//!
//! SQLite's write lock is a lock on a byte of the index. Its holder is read from `/proc/locks`: to
//! open the index for `F_GETLK`, and to close it again, would drop the locks of this process.

use std::fmt;
use std::path::Path;

/// The byte of the index that a writer locks in WAL mode.
const WRITE_LOCK: u64 = 120;
/// The byte of the database that a writer locks in other modes.
const PENDING_LOCK: u64 = 0x4000_0000;

/// A process that has locked the database.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct LockHolder {
    pub(super) pid: u32,
    command: String,
}

impl LockHolder {
    /// The process that keeps others from writing to the database at `path`, if it can be seen.
    pub(super) fn find(path: &Path) -> Option<LockHolder> {
        let real = path.canonicalize().ok()?;
        let [_, index] = super::file_identity::side_files(&real);
        let locks = std::fs::read_to_string("/proc/locks").ok()?;
        let holder = |file: &Path, byte| pid(&locks, inode(file)?, byte);
        let pid = holder(&index, WRITE_LOCK).or_else(|| holder(&real, PENDING_LOCK))?;
        let command = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Some(LockHolder {
            pid,
            command: command.trim().to_owned(),
        })
    }
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command.as_str() {
            "" => write!(f, "process {}", self.pid),
            command => write!(f, "process {} ({})", self.pid, command.escape_debug()),
        }
    }
}

/// The process with a write lock on this byte. A line of `/proc/locks` is, for example,
/// `1: POSIX  ADVISORY  WRITE 4242 08:01:131 120 120`.
fn pid(locks: &str, inode: u64, byte: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, "POSIX" | "OFDLCK", _, "WRITE", pid, file, start, end] = fields[..] else {
            return None;
        };
        let (_, locked) = file.rsplit_once(':')?;
        let covers = start.parse::<u64>().ok()? <= byte
            && (end == "EOF" || end.parse::<u64>().ok()? >= byte);
        (locked.parse() == Ok(inode) && covers)
            .then(|| pid.parse().ok())
            .flatten()
    })
}

#[cfg(unix)]
fn inode(path: &Path) -> Option<u64> {
    use std::os::unix::fs::MetadataExt as _;
    std::fs::metadata(path).ok().map(|found| found.ino())
}

#[cfg(not(unix))]
fn inode(_path: &Path) -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holder_of_the_byte_is_found() {
        let locks = "1: FLOCK  ADVISORY  WRITE 11 08:01:131 0 EOF\n\
                     2: POSIX  ADVISORY  READ  12 08:01:131 120 120\n\
                     2: -> POSIX  ADVISORY  WRITE 13 08:01:131 120 120\n\
                     3: POSIX  ADVISORY  WRITE 14 08:01:131 123 123\n\
                     4: POSIX  ADVISORY  WRITE 15 08:01:131 120 120\n\
                     5: POSIX  ADVISORY  WRITE 16 08:01:132 0 EOF\n";
        assert_eq!(pid(locks, 131, 120), Some(15));
        assert_eq!(pid(locks, 132, 120), Some(16));
        assert_eq!(pid(locks, 133, 120), None);
    }
}
