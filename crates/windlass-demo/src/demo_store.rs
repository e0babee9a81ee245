//! The store that a demo uses, and the folder that is removed with it.

use std::time::Duration;

use tempfile::TempDir;
use windlass::{Coordinator, Options};
use windlass_term::{Failure, GlobalArgs, store};

use crate::unique_prefix;

/// Limit for cleaning up. What is left then expires by itself.
pub(super) const CLEANUP_TIMEOUT: Duration = Duration::from_secs(3);

/// The store, and a temporary folder.
#[derive(Debug)]
pub(super) struct DemoStore {
    pub(super) store: Coordinator,
    pub(super) url: String,
    pub(super) namespace: Option<String>,
    pub(super) prefix: String,
    pub(super) folder: TempDir,
}

impl DemoStore {
    /// Opens the store that `--store` names, or a temporary file.
    pub(super) async fn open(global: &GlobalArgs, demo: &str) -> Result<DemoStore, Failure> {
        let folder = tempfile::Builder::new().prefix("windlass-demo-").tempdir();
        let folder = folder
            .map_err(|e| Failure::internal(format!("cannot create a temporary folder: {e}")))?;
        let url = match store::is_given(global) {
            true => store::url(global)?,
            false => format!("file:{}", folder.path().join("locks.db").display()),
        };
        let namespace = global.namespace.clone().filter(|text| !text.is_empty());
        let mut options = Options::new();
        if let Some(namespace) = &namespace {
            options = options.namespace(namespace.clone());
        }
        Ok(DemoStore {
            store: options.connect(&url).await?,
            url,
            namespace,
            prefix: unique_prefix(demo),
            folder,
        })
    }

    pub(super) fn kind(&self) -> &'static str {
        self.store.capabilities().kind
    }

    /// Whether Redis commands can be sent to it.
    pub(super) fn is_one_redis(&self) -> bool {
        is_one_redis(&self.url)
    }

    /// The name of the store for output, without a password.
    pub(super) fn display_name(&self) -> String {
        match self.url.contains(&*self.folder.path().to_string_lossy()) {
            true => "a temporary file".to_owned(),
            false => self.store.address().to_owned(),
        }
    }
}

/// Whether this is a single Redis server: not a cluster, sentinels or a quorum.
pub(super) fn is_one_redis(url: &str) -> bool {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    ["redis", "rediss", "redis+unix"].contains(&scheme)
}
