//! A critical section: read a number from a file, pause, write it back plus one.
//!
//! The file has 20 bytes: 19 digits and a letter for the side that wrote last. It is written in
//! place, so that a reader sees one number or the other and never a mix: an update is lost only if
//! two processes were in the section at the same time.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::Duration;

const DIGITS: usize = 19;

/// Long enough for two concurrent sections to lose an update.
pub(crate) const THINK: Duration = Duration::from_micros(500);

/// The counter file.
#[derive(Debug)]
pub(crate) struct SharedCounter(File);

impl SharedCounter {
    /// Creates a counter file, at zero.
    pub(crate) fn create(path: &Path) -> io::Result<()> {
        std::fs::write(path, format!("{:0DIGITS$}-", 0))
    }

    /// Opens an existing counter file.
    pub(crate) fn open(path: &Path) -> io::Result<SharedCounter> {
        let file = OpenOptions::new().read(true).write(true).open(path)?;
        Ok(SharedCounter(file))
    }

    /// The number, and the side that wrote it.
    pub(crate) fn read(&self) -> io::Result<(u64, u8)> {
        let mut bytes = [0; DIGITS + 1];
        self.0.read_exact_at(&mut bytes, 0)?;
        let digits = std::str::from_utf8(&bytes[..DIGITS]).unwrap_or_default();
        let number = digits.parse().map_err(io::Error::other)?;
        Ok((number, bytes[DIGITS]))
    }

    /// Writes the number.
    pub(crate) fn write(&self, number: u64, side: char) -> io::Result<()> {
        self.0
            .write_all_at(format!("{number:0DIGITS$}{side}").as_bytes(), 0)
    }
}
