//! The path in a `file:` URL: what it may name, and what is refused because SQLite would not keep
//! processes apart there.

use std::path::{Path, PathBuf};

use windlass_core::error::{Error, ErrorKind, Result};

/// The absolute path, if it names a regular file, or one to create, on which SQLite is safe.
pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    check_text(path)?;
    let failed = |e: std::io::Error| Error::new(ErrorKind::Unreachable, "connect", e.to_string());
    // SQLite treats no absolute path as special, and the working directory may change.
    let path = std::path::absolute(path).map_err(failed)?;
    let folder = path.parent().unwrap_or(&path);
    if path.is_dir() {
        return Err(Error::invalid("connect", "the path is a folder")
            .with_hint("give the path of a file in it"));
    }
    if path.exists() && !path.is_file() {
        return Err(Error::invalid("connect", "the path is not a regular file")
            .with_hint("choose the path of a regular file, or of one to create"));
    }
    if !folder.is_dir() {
        return Err(Error::new(
            ErrorKind::Unreachable,
            "connect",
            format!("the folder {} does not exist", folder.display()),
        )
        .with_hint("create the folder first"));
    }
    if let Some(kind) = network_file_system(folder) {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "connect",
            format!("{} is on a network file system ({kind})", folder.display()),
        )
        .with_hint(
            "SQLite's locking and shared memory are not safe there: use a local disk, or a \
             server such as redis://",
        ));
    }
    check_only_name(&path)?;
    Ok(path)
}

/// SQLite gives some names a meaning of its own: a database in memory, or a URL with options.
fn check_text(path: &Path) -> Result<()> {
    let text = path.to_string_lossy();
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    if text == ":memory:" || text.starts_with("file:") {
        let problem = format!("{text:?} names no file that processes can share");
        return Err(Error::invalid("connect", problem).with_hint(
            "for example file:/var/lib/app/locks.db; memory: is a store within one process",
        ));
    }
    if name.contains('?') && name.contains('=') {
        let problem = format!("file: URLs have no options, but the file name is {name:?}");
        return Err(Error::invalid("connect", problem).with_hint("remove the part from ? on"));
    }
    Ok(())
}

/// Refuses a file with a second name. SQLite finds the log and its index by the name of the file,
/// so processes that use different names would not exclude each other. Symbolic links are
/// resolved, and a mounted folder has all three files in it: both are safe.
#[cfg(target_os = "linux")]
fn check_only_name(path: &Path) -> Result<()> {
    use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
    use std::os::unix::fs::MetadataExt as _;
    let refuse = |problem: &str, hint: &str| {
        let problem = format!("{} {problem}", path.display());
        Err(Error::new(ErrorKind::Unsupported, "connect", problem).with_hint(hint.to_owned()))
    };
    if std::fs::metadata(path).is_ok_and(|found| found.nlink() > 1) {
        return refuse(
            "has a second name (a hard link), and processes that use different names would not \
             exclude each other",
            "remove the other link, or replace it by a symbolic link",
        );
    }
    // Known to Linux 5.8 and later.
    let found = statx(CWD, path, AtFlags::empty(), StatxFlags::empty());
    if found.is_ok_and(|found| found.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)) {
        return refuse(
            "is a mount of a single file, and processes that use different names would not \
             exclude each other",
            "mount the folder that holds the file, as SQLite keeps two more files in it",
        );
    }
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn check_only_name(_path: &Path) -> Result<()> {
    Ok(())
}

/// The name of the network file system that `folder` is on, if it is.
#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> Option<&'static str> {
    // Magic numbers from statfs(2).
    let known = [
        (0x6969, "NFS"),
        (0x517b, "SMB"),
        (0xff53_4d42, "CIFS"),
        (0xfe53_4d42, "SMB2"),
        (0x0102_1997, "9P"),
        (0x5346_414f, "AFS"),
        (0x00c3_6400, "Ceph"),
        (0x0bd0_0bd0, "Lustre"),
        (0x7461_636f, "OCFS2"),
        (0x0116_1970, "GFS2"),
    ];
    let kind = rustix::fs::statfs(folder).ok()?.f_type as u64 & 0xffff_ffff;
    known.iter().find(|(magic, _)| *magic == kind).map(|k| k.1)
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_folder: &Path) -> Option<&'static str> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_rejected() {
        for path in ["/dev/null", "/dev/full", "/"] {
            let error = resolve(Path::new(path)).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{path}: {error}");
        }
    }
}
