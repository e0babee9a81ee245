//! A file that a command writes at its end. It is opened before the work, so that a wrong path costs no time, and is
//! unchanged if the command is interrupted.

use std::fs::{File, OpenOptions, remove_file};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// A writable file. If it was created here and is never written, it is removed again.
#[derive(Debug)]
pub struct OutputFile {
    file: File,
    created: Option<PathBuf>,
}

impl OutputFile {
    /// Opens or creates it, and changes nothing yet.
    pub fn open(path: &Path) -> io::Result<OutputFile> {
        let mut options = OpenOptions::new();
        options.write(true);
        let (file, created) = match options.clone().create_new(true).open(path) {
            Ok(file) => (file, Some(path.to_owned())),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => (options.open(path)?, None),
            Err(e) => return Err(e),
        };
        Ok(OutputFile { file, created })
    }

    /// Replaces its contents.
    pub fn write(mut self, text: &str) -> io::Result<()> {
        self.created = None;
        // A pipe cannot be truncated.
        if self.file.metadata()?.is_file() {
            self.file.set_len(0)?;
        }
        self.file.write_all(text.as_bytes())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if let Some(path) = &self.created {
            // It may have been removed already.
            let _ = remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_file_is_kept_until_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sale.html");
        drop(OutputFile::open(&path).unwrap());
        assert!(!path.exists());
        OutputFile::open(&path)
            .unwrap()
            .write("a long page")
            .unwrap();
        drop(OutputFile::open(&path).unwrap());
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a long page");
        OutputFile::open(&path).unwrap().write("short").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "short");
        assert!(OutputFile::open(&folder.path().join("no/sale.html")).is_err());
    }
}
