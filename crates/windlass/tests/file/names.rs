//! One file, several names; and names that are no file.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use windlass::{Attempt, ErrorKind, connect};

use super::child::{said, start, url};

/// SQLite finds its two other files by the name of the first: under another name, the same file has
/// others, and two processes would not exclude each other.
#[tokio::test]
async fn hard_link_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (path, link) = (folder.path().join("a.db"), folder.path().join("b.db"));
    let w = connect(&url(&path)).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    fs::hard_link(&path, &link).unwrap();
    let e = connect(&url(&link)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert!(e.to_string().contains("hard link"), "{e}");
    assert!(guard.release().await.unwrap().was_held());
    fs::remove_file(&link).unwrap();
    connect(&url(&path)).await.expect("it has one name again");
}

#[tokio::test]
async fn symbolic_links_name_the_same_store() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    fs::create_dir(&real).unwrap();
    let link = folder.path().join("link.db");
    symlink(real.join("locks.db"), &link).unwrap();
    symlink(&real, folder.path().join("folder")).unwrap();
    let w = connect(&url(&link)).await.unwrap();
    let _held = w.lock("stock").acquire().await.unwrap();
    for name in ["real/locks.db", "folder/locks.db", "link.db"] {
        let other = connect(&url(&folder.path().join(name))).await.unwrap();
        let busy = other.lock("stock").try_acquire().await.unwrap();
        assert!(busy.is_busy(), "{name}");
    }
}

/// As a container sees them, with `-v FILE:FILE` and `-v FOLDER:FOLDER`.
#[tokio::test]
async fn mounted_file_is_refused_and_mounted_folder_works() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for name in ["a", "b", "c"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("b/locks.db"), "").unwrap();
    let path = at("a/locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let _held = w.lock("stock").acquire().await.unwrap();
    let mount = |from: &str, to: &str| {
        format!(
            "mount --bind {} {} && exec \"$0\" \"$@\"",
            at(from).display(),
            at(to).display()
        )
    };
    let unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
    let alone = mount("a/locks.db", "b/locks.db");
    let child = start(
        &[&unshare[..], &[&alone]].concat(),
        "try",
        &at("b/locks.db"),
    );
    let reason = said(&child, "refused");
    assert!(reason.contains("mount"), "{reason}");
    let whole = mount("a", "c");
    let child = start(
        &[&unshare[..], &[&whole]].concat(),
        "try",
        &at("c/locks.db"),
    );
    said(&child, "busy");
}

/// A container may have a boot clock of its own.
#[tokio::test]
async fn time_namespaces_share_one_clock() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let unshare = [
        "unshare",
        "--map-root-user",
        "--time",
        "--boottime",
        "1000000",
        "--fork",
    ];
    let w = connect(&url(&path)).await.unwrap();
    let ttl = Duration::from_secs(600);
    let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
    said(&start(&unshare, "try", &path), "busy");
    // Without a fork, the kernel's version decides whether the process gets the new clock.
    said(&start(&unshare[..5], "try", &path), "busy");
    assert!(guard.release().await.unwrap().was_held());
    // The other way round: what the namespace writes is no million seconds ahead.
    let child = start(&unshare, "detach", &path);
    said(&child, "detached");
    let Attempt::Busy(Some(holder)) = w.lock("stock").try_acquire().await.unwrap() else {
        panic!("it is held");
    };
    assert!(holder.remaining.unwrap() <= ttl, "{holder:?}");
}

/// SQLite keeps these in the memory of one process, where they exclude nobody.
#[tokio::test]
async fn names_of_databases_in_memory_are_refused() {
    for url in [
        "file::memory:",
        "file://:memory:",
        "file:file::memory:",
        "file:file:locks.db?mode=memory",
        "file:locks.db?mode=memory&cache=shared",
    ] {
        let e = connect(url).await.expect_err(url);
        assert_eq!(e.kind(), ErrorKind::InvalidInput, "{url}: {e}");
        assert!(e.hint().is_some(), "{url}: {e}");
    }
}

#[tokio::test]
async fn permissions_of_the_file_apply_to_its_side_files() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    let side_files = ["locks.db-wal", "locks.db-shm"].map(|name| folder.path().join(name));
    for file in &side_files {
        fs::set_permissions(file, Permissions::from_mode(0o644)).unwrap();
    }
    fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
    connect(&url(&path)).await.unwrap();
    for file in &side_files {
        let mode = fs::metadata(file).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666, "{}", file.display());
    }
    drop(w);
}

/// It belongs to another user, for example, and was created before the permissions of the file were
/// changed.
#[tokio::test]
async fn side_file_that_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("locks.db");
    let w = connect(&url(&path)).await.unwrap();
    for suffix in ["-wal", "-shm"] {
        let file = format!("{}{suffix}", path.display());
        let read_only = format!(
            "mount --bind {file} {file} && mount -o remount,bind,ro {file} && exec \"$0\" \"$@\""
        );
        let unshare = ["unshare", "--map-root-user", "--mount", "sh", "-c"];
        let child = start(&[&unshare[..], &[&read_only]].concat(), "try", &path);
        let reason = said(&child, "refused");
        let named = format!("locks.db{suffix} cannot be written");
        assert!(reason.contains(&named), "{reason}");
        assert!(reason.contains("chown and chmod"), "{reason}");
    }
    drop(w);
}
