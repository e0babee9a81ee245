//! Where a demonstration keeps its locks, and how nothing of it stays behind.

use std::time::Duration;

use tempfile::TempDir;
use windlass::{Coordinator, Options};

use super::unique_prefix;
use crate::args::Global;
use crate::failure::Failure;

/// What is left undone after this has an end of its own in the store.
pub(super) const TIDYING: Duration = Duration::from_secs(3);

/// A store, and a folder that goes away.
#[derive(Debug)]
pub(super) struct Place {
    pub(super) store: Coordinator,
    pub(super) url: String,
    pub(super) namespace: Option<String>,
    pub(super) prefix: String,
    pub(super) folder: TempDir,
}

impl Place {
    /// The store that was asked for, or a temporary file.
    pub(super) async fn find(global: &Global, demo: &str) -> Result<Place, Failure> {
        let folder = tempfile::Builder::new().prefix("windlass-demo-").tempdir();
        let folder = folder
            .map_err(|e| Failure::internal(format!("cannot make a temporary folder: {e}")))?;
        let given = global.store.as_deref().filter(|url| !url.is_empty());
        let url = match given {
            Some(url) => url.to_owned(),
            None => format!("file:{}", folder.path().join("locks.db").display()),
        };
        let namespace = global.namespace.clone().filter(|text| !text.is_empty());
        let mut options = Options::new();
        if let Some(namespace) = &namespace {
            options = options.namespace(namespace.clone());
        }
        Ok(Place {
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

    /// Whether bare commands can be sent to it.
    pub(super) fn is_one_redis(&self) -> bool {
        is_one_redis(&self.url)
    }

    /// The store, as one may show it.
    pub(super) fn shown(&self) -> String {
        match self.url.contains(&*self.folder.path().to_string_lossy()) {
            true => "a temporary file".to_owned(),
            false => self.store.address().to_owned(),
        }
    }
}

/// Whether this is one server that speaks the commands of Redis: not a cluster, not several to choose from.
pub(super) fn is_one_redis(url: &str) -> bool {
    let scheme = url.split_once(':').map_or("", |(scheme, _)| scheme);
    ["redis", "rediss", "redis+unix"].contains(&scheme)
}
