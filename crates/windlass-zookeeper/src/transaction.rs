//! One transaction over the nodes of a queue.

use zookeeper_client::{CreateMode, Error as ZkError};

use super::MAX_REQUEST;
use super::claim_data::ClaimData;
use super::errors::from_client;
use super::session::Session;
use windlass_core::error::{Error, ErrorKind, Result};

/// The most that one operation adds to a request besides its path and data: mainly the ACL.
pub(super) const OPERATION_OVERHEAD: usize = 64;

/// Checks and changes that take effect together, or not at all.
#[derive(Default)]
pub(super) struct NodeTransaction<'a> {
    /// Nodes to delete.
    pub(super) delete: Vec<&'a str>,
    /// An ephemeral node to create.
    pub(super) create: Option<(&'a str, &'a ClaimData)>,
    /// Nodes that must exist.
    pub(super) require: Vec<String>,
    /// The parent's path, new data and expected version. Two transactions that write the parent cannot
    /// both succeed on the same version.
    pub(super) write_parent: Option<(&'a str, Vec<u8>, i32)>,
}

impl NodeTransaction<'_> {
    /// Commits it. `false` if a node is missing, exists already, or has another version.
    pub(super) async fn commit(self, session: &Session) -> Result<bool> {
        let length = |path: &String| path.len() + OPERATION_OVERHEAD;
        if self.require.iter().map(length).sum::<usize>() > MAX_REQUEST {
            let message = format!(
                "one transaction would have to check {} claims, more than a server accepts",
                self.require.len()
            );
            return Err(Error::new(ErrorKind::Store, "use the store", message)
                .with_hint("use fewer holders, each with a larger weight"));
        }
        session.wait_connected().await?;
        let mut writer = session.client().new_multi_writer();
        for path in &self.require {
            writer.add_check_version(path, -1).map_err(from_client)?;
        }
        if let Some((parent, data, version)) = &self.write_parent {
            let version = Some(*version);
            writer
                .add_set_data(parent, data, version)
                .map_err(from_client)?;
        }
        for path in &self.delete {
            writer.add_delete(path, None).map_err(from_client)?;
        }
        if let Some((path, data)) = self.create {
            let options = CreateMode::Ephemeral.with_acls(session.acls());
            writer
                .add_create(path, &data.bytes(), &options)
                .map_err(from_client)?;
        }
        match writer.commit().await.map_err(ZkError::from) {
            Ok(_) => Ok(true),
            Err(ZkError::NoNode | ZkError::BadVersion | ZkError::NodeExists) => Ok(false),
            Err(error) => Err(from_client(error)),
        }
    }
}
