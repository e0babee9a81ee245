//! Whether the log lost committed transactions while no process had the database open.
//!
//! SQLite ignores a damaged log from the first bad frame on: the database shows an earlier state,
//! in which held locks are free. The index tells how many frames were committed. It survives the
//! processes that used it, and the last one to close the database removes it, so an index without
//! users is left by processes that were killed. Their writes are in the page cache of the system,
//! so the log has at least the frames that the index counts, unless another program changed it.
//! After a reboot the index proves nothing: the disk may have a newer index than log.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;

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
    let [log, index] = side_files(real);
    let Some(index) = read_unused_index(&index) else {
        return false;
    };
    index.applied < index.frames && valid_frames(&log, &index) < index.frames
}

/// The header of the index.
struct Index {
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
    (checksum == (number(40), number(44))).then_some(Index {
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
