//! The file that the page goes to: opened before the sales, written after them, and not touched if they are broken off.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A file that can be written to. If it was not there before and is never written, it goes away again.
#[derive(Debug)]
pub(in crate::commands::demo::flash_sale) struct PageFile {
    file: File,
    made: Option<PathBuf>,
}

impl PageFile {
    pub(in crate::commands::demo::flash_sale) fn open(path: &Path) -> io::Result<PageFile> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, made) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, Some(path.to_owned())),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (options.open(path)?, None),
            Err(e) => return Err(e),
        };
        Ok(PageFile { file, made })
    }

    pub(in crate::commands::demo::flash_sale) fn write(mut self, page: &str) -> io::Result<()> {
        self.made = None;
        // A pipe has no length.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(page.as_bytes())
    }
}

impl Drop for PageFile {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // Somebody else has removed it, perhaps.
            let _ = remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_there_stays_until_there_is_something_better() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sale.html");
        drop(PageFile::open(&path).unwrap());
        assert!(!path.exists());
        PageFile::open(&path).unwrap().write("a long page").unwrap();
        drop(PageFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a long page");
        PageFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        assert!(PageFile::open(&folder.path().join("no/sale.html")).is_err());
    }
}
