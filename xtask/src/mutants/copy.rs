//! A copy of the sources for mutants.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies what git tracks, and writes only changed files, so that little is compiled again.
pub(super) fn copy_sources(root: &Path, tree: &Path) -> std::io::Result<()> {
    let listing = Command::new("git")
        .args(["ls-files", "-z"])
        .current_dir(root)
        .output()?;
    let files: Vec<PathBuf> = String::from_utf8_lossy(&listing.stdout)
        .split_terminator('\0')
        .map(PathBuf::from)
        .collect();
    remove_others(tree, tree, &files)?;
    for file in files {
        let (from, to) = (root.join(&file), tree.join(&file));
        let Ok(bytes) = fs::read(&from) else {
            continue; // removed, but not committed yet
        };
        if fs::read(&to).is_ok_and(|known| known == bytes) {
            continue;
        }
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        fs::write(to, bytes)?;
    }
    Ok(())
}

/// Removes files of an earlier copy that the sources no longer have.
fn remove_others(tree: &Path, folder: &Path, files: &[PathBuf]) -> std::io::Result<()> {
    let Ok(entries) = fs::read_dir(folder) else {
        return Ok(()); // nothing was copied yet
    };
    for entry in entries {
        let path = entry?.path();
        let known = path.strip_prefix(tree).unwrap_or(&path);
        if path.is_dir() {
            remove_others(tree, &path, files)?;
        } else if !files.iter().any(|file| file == known) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
