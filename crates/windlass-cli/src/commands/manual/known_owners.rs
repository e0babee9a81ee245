//! The owners of locks that this user acquired with `lock acquire` on this machine, so that `lock release` and
//! `lock renew` need no `--owner`.
//!
//! One small file for each lock, in the user's state directory. They are a convenience: if the file cannot be written,
//! the command still acquires the lock, and releasing it needs `--owner`.

use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use windlass::Coordinator;
use windlass_term::{GlobalArgs, store};

/// Who acquired a lock. Store, namespace and name identify it.
#[derive(Debug, Deserialize, Serialize)]
struct OwnerRecord {
    store: String,
    namespace: String,
    name: String,
    owner: String,
    /// When the lock expires, in milliseconds since 1970. The file is removed some time after that.
    until: u64,
}

/// The known owners of the locks in one store.
pub(in crate::commands) struct KnownOwners {
    folder: PathBuf,
    store: String,
    namespace: String,
}

impl KnownOwners {
    pub(in crate::commands) fn open(
        store: &Coordinator,
        global: &GlobalArgs,
    ) -> io::Result<KnownOwners> {
        let folder = store::state_directory()?.join("owners");
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&folder)?;
        Ok(KnownOwners {
            folder,
            store: store.address().to_owned(),
            namespace: store::namespace(global).to_owned(),
        })
    }

    /// The owner that acquired the lock last.
    pub(in crate::commands) fn find(&self, name: &str) -> Option<String> {
        let record = read(&self.path(name))?;
        let key = (&record.store, &record.namespace, record.name.as_str());
        (key == (&self.store, &self.namespace, name)).then_some(record.owner)
    }

    pub(in crate::commands) fn remember(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> io::Result<()> {
        self.remove_expired();
        let record = OwnerRecord {
            store: self.store.clone(),
            namespace: self.namespace.clone(),
            name: name.to_owned(),
            owner: owner.to_owned(),
            until: now().saturating_add(crate::humanize::millis(ttl)),
        };
        // Renamed into place: a reader finds a whole record.
        let path = self.path(name);
        let written = path.with_extension(std::process::id().to_string());
        let mut file = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&written)?;
        file.write_all(serde_json::to_string(&record)?.as_bytes())?;
        fs::rename(&written, &path)
    }

    /// Forgets the owner of a lock that it does not hold any more.
    pub(in crate::commands) fn forget(&self, name: &str, owner: &str) {
        if self.find(name).as_deref() == Some(owner) {
            // Left behind, it is removed after its expiry.
            let _ = fs::remove_file(self.path(name));
        }
    }

    /// Errors are ignored: what is left is removed next time.
    fn remove_expired(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else {
            return;
        };
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if read(&path).is_some_and(|record| record.until < now()) {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        // A build with a newer standard library may hash differently, and so not find the files of this one: releasing
        // a lock that this one acquired then needs `--owner`.
        let mut hasher = DefaultHasher::new();
        (&self.store, &self.namespace, name).hash(&mut hasher);
        self.folder.join(format!("{:016x}.json", hasher.finish()))
    }
}

fn read(path: &Path) -> Option<OwnerRecord> {
    serde_json::from_str(&fs::read_to_string(path).ok()?).ok()
}

fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, crate::humanize::millis)
}
