//! Whether the log lost committed transactions while no process had the database open.
//!
//! SQLite ignores a damaged log from the first bad frame on: the database shows an earlier state,
//! in which held locks are free. The index tells how many frames were committed. It survives the
//! processes that used it, and the last one to close the database removes it, so an index without
//! users is left by processes that were killed. Their writes are in the page cache of the system,
//! so the log has at least the frames that the index counts, unless another program changed it.
//! After a reboot the index proves nothing: the disk may have a newer index than log.

use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use rustix::process::{Flock, FlockType, fcntl_getlk};

use super::file_identity::side_files;

/// The byte of the index that every connection has locked, shared.
const CONNECTED: u64 = 128;
/// The header of the index, twice, and the count of frames that are in the database already.
const INDEX_HEADER: usize = 100;
const LOG_HEADER: usize = 32;
const FRAME_HEADER: usize = 24;

/// Whether frames that the index counts are missing in the log. Only for a database that no
/// connection of this process uses: to close the index drops their locks.
pub(super) fn has_lost_frames(real: &Path) -> bool {
    lost_frames(real, || ())
}

/// Empties the index, if no process uses it, as SQLite does when the first process opens a database.
/// Only for a database that no connection of this process uses.
pub(super) fn discard_unused_index(real: &Path) -> io::Result<()> {
    let [_, path] = side_files(real);
    let file = File::options().write(true).open(path)?;
    // Includes the byte that every connection has locked.
    match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => file.set_len(0),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

/// `log_was_read` runs between the two readings of the index.
fn lost_frames(real: &Path, log_was_read: impl FnOnce()) -> bool {
    let [log, path] = side_files(real);
    let Some(index) = read_unused_index(&path) else {
        return false;
    };
    let valid = valid_frames(&log, &index);
    // If the database has all frames, it is whole without a log. The first part of the log would
    // hide later pages of the database.
    let has_all = index.applied >= index.frames;
    if valid >= index.frames || (has_all && valid == 0) {
        return false;
    }
    log_was_read();
    // Another process may have opened the database meanwhile, and started a new log or removed it. It
    // changes or removes the index first, so then the index is not the same any more.
    read_unused_index(&path).as_ref() == Some(&index)
}

/// The index, as far as it says what the log must have.
#[derive(PartialEq)]
struct Index {
    /// Which file it is: a removed one may be replaced.
    inode: u64,
    header: [u8; INDEX_HEADER],
    frames: u32,
    applied: u32,
    salt: [u8; 8],
}

/// The index, if there is one, no process uses it, and its header is complete.
fn read_unused_index(path: &Path) -> Option<Index> {
    let mut file = File::open(path).ok()?;
    let mut wanted = Flock::from(FlockType::WriteLock);
    (wanted.start, wanted.length) = (CONNECTED, 1);
    if fcntl_getlk(&file, &wanted).ok()?.is_some() {
        return None;
    }
    let mut header = [0; INDEX_HEADER];
    file.read_exact(&mut header).ok()?;
    let number = |at: usize| u32::from_ne_bytes(*header[at..].first_chunk().unwrap_or(&[0; 4]));
    let checksum = checksum((0, 0), &header[..40], cfg!(target_endian = "big"));
    let inode = file.metadata().ok()?.ino();
    (checksum == (number(40), number(44))).then_some(Index {
        inode,
        header,
        frames: number(16),
        applied: number(96),
        salt: *header[32..].first_chunk()?,
    })
}

/// How many frames SQLite would accept, up to the number in the index.
fn valid_frames(log: &Path, index: &Index) -> u32 {
    let mut valid = 0;
    let _ = File::open(log).ok().and_then(|mut file| {
        let mut header = [0; LOG_HEADER];
        file.read_exact(&mut header).ok()?;
        let number = |bytes: &[u8], at: usize| {
            u32::from_be_bytes(*bytes[at..].first_chunk().unwrap_or(&[0; 4]))
        };
        let big_endian = match number(&header, 0) {
            0x377f_0682 => false,
            0x377f_0683 => true,
            _ => return None,
        };
        let page = number(&header, 8) as usize;
        let mut sum = checksum((0, 0), &header[..24], big_endian);
        if sum != (number(&header, 24), number(&header, 28))
            || header[16..24] != index.salt
            || !(512..=65536).contains(&page)
        {
            return None;
        }
        let mut frame = vec![0; FRAME_HEADER + page];
        while valid < index.frames {
            file.read_exact(&mut frame).ok()?;
            sum = checksum(sum, &frame[..8], big_endian);
            sum = checksum(sum, &frame[FRAME_HEADER..], big_endian);
            if frame[8..16] != index.salt || sum != (number(&frame, 16), number(&frame, 20)) {
                return None;
            }
            valid += 1;
        }
        Some(())
    });
    valid
}

/// SQLite's checksum of a log, continued from `sum`.
fn checksum(sum: (u32, u32), bytes: &[u8], big_endian: bool) -> (u32, u32) {
    let word = |bytes: &[u8; 4]| match big_endian {
        true => u32::from_be_bytes(*bytes),
        false => u32::from_le_bytes(*bytes),
    };
    let mut words = bytes.as_chunks::<4>().0.iter().map(word);
    let (mut first, mut second) = sum;
    while let (Some(a), Some(b)) = (words.next(), words.next()) {
        first = first.wrapping_add(a).wrapping_add(second);
        second = second.wrapping_add(b).wrapping_add(first);
    }
    (first, second)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use rusqlite::Connection;

    use super::*;

    fn write(path: &Path) -> Connection {
        let database = Connection::open(path).unwrap();
        database
            .execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE IF NOT EXISTS t (x); INSERT INTO t VALUES (1);")
            .unwrap();
        database
    }

    /// A database with the log and the index of a process that was killed.
    fn left_by_a_killed_process(folder: &Path) -> PathBuf {
        left_by_a_killed_process_after(folder, "")
    }

    /// The same after more statements.
    fn left_by_a_killed_process_after(folder: &Path, statements: &str) -> PathBuf {
        let used = folder.join("used.db");
        let database = write(&used);
        database.execute_batch(statements).unwrap();
        let left = folder.join("left.db");
        for suffix in ["", "-wal", "-shm"] {
            let copy = |path: &Path| PathBuf::from(format!("{}{suffix}", path.display()));
            fs::copy(copy(&used), copy(&left)).unwrap();
        }
        drop(database);
        left
    }

    #[test]
    fn cut_log_has_lost_frames() {
        let folder = tempfile::tempdir().unwrap();
        let path = left_by_a_killed_process(folder.path());
        assert!(!has_lost_frames(&path));
        let [log, _] = side_files(&path);
        let length = fs::metadata(&log).unwrap().len();
        let log = fs::OpenOptions::new().write(true).open(log).unwrap();
        log.set_len(length - 100).unwrap();
        assert!(has_lost_frames(&path));
    }

    /// SQLite prefers pages of the log to those of the database, which are newer here.
    #[test]
    fn cut_log_hides_what_the_database_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = left_by_a_killed_process_after(folder.path(), "PRAGMA wal_checkpoint(PASSIVE)");
        assert!(!has_lost_frames(&path));
        let [log, _] = side_files(&path);
        let length = fs::metadata(&log).unwrap().len();
        let log = fs::OpenOptions::new().write(true).open(log).unwrap();
        log.set_len(length - 100).unwrap();
        assert!(has_lost_frames(&path));
        log.set_len(0).unwrap();
        assert!(!has_lost_frames(&path), "the database has everything");
    }

    /// A process that opens and closes the database meanwhile removes the log; that is no damage.
    #[test]
    fn log_that_another_process_removes_meanwhile_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = left_by_a_killed_process(folder.path());
        let [log, _] = side_files(&path);
        let all = fs::read(&log).unwrap();
        // As this process finds it if the other one has removed it.
        fs::remove_file(&log).unwrap();
        let other_process = || {
            fs::write(&log, &all).unwrap();
            drop(write(&path));
            assert!(!log.exists());
        };
        assert!(!lost_frames(&path, other_process));
    }

    /// The same with a process that still uses the new log.
    #[test]
    fn log_that_another_process_restarts_meanwhile_is_not_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = left_by_a_killed_process(folder.path());
        let [log, _] = side_files(&path);
        let all = fs::read(&log).unwrap();
        fs::remove_file(&log).unwrap();
        let mut other = None;
        let lost = lost_frames(&path, || {
            fs::write(&log, &all).unwrap();
            let database = write(&path);
            database
                .query_row("PRAGMA wal_checkpoint(RESTART)", [], |_| Ok(()))
                .unwrap();
            database.execute("INSERT INTO t VALUES (2)", []).unwrap();
            other = Some(database);
        });
        assert!(!lost);
    }
}
