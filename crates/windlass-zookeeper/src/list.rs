//! Listing the names that are held or waited for, by walking the tree of nodes.

use std::collections::VecDeque;

use zookeeper_client::Error as ZkError;

use super::claims::ZooKeeperClaims;
use super::errors::from_client;
use super::inspect::inspect;
use super::node_name::{ChildNode, parse};
use super::paths;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Occupancy, matches};

/// Inspects every name of these kinds that matches the pattern and has claims.
pub(super) async fn list(
    claims: &ZooKeeperClaims,
    kinds: &[Kind],
    pattern: &str,
    most: usize,
) -> Result<Vec<Occupancy>> {
    let mut found = Vec::new();
    for &kind in kinds {
        for name in names(claims, kind).await? {
            // Other programs may have created names that Windlass does not accept.
            if !matches(pattern, &name) || Name::new("list locks", None, &name).is_err() {
                continue;
            }
            let state = inspect(claims, kind, &name, most).await?;
            if state.used > 0 || state.waiters > 0 {
                found.push(state);
            }
        }
    }
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

/// All names of this kind that have claims.
async fn names(claims: &ZooKeeperClaims, kind: Kind) -> Result<Vec<String>> {
    let session = claims.sessions.default_session().await?;
    let root = match kind {
        Kind::Lock => String::new(),
        _ => paths::family_root(kind.word()),
    };
    let mut names = Vec::new();
    let mut unvisited = VecDeque::from([root.clone()]);
    while let Some(path) = unvisited.pop_front() {
        let listed = session.retry(|client| {
            let path = if path.is_empty() { "/" } else { &path };
            let (client, path) = (client.clone(), path.to_owned());
            async move { client.list_children(&path).await }
        });
        let children = match listed.await? {
            Ok(children) => children,
            // Removed since, or not readable for this client.
            Err(ZkError::NoNode | ZkError::NoAuth) => continue,
            Err(error) => return Err(from_client(error)),
        };
        let mut has_claims = false;
        for child in children {
            match parse(claims.queues.layout, kind, &child) {
                ChildNode::Claim(_) => has_claims = true,
                ChildNode::Foreign => {}
                ChildNode::Other if path.is_empty() && paths::is_reserved(&child) => {}
                ChildNode::Other => unvisited.push_back(format!("{path}/{child}")),
            }
        }
        let inner = path[root.len()..].trim_start_matches('/');
        if has_claims && let Some(name) = paths::unescape(inner) {
            names.push(name);
        }
    }
    Ok(names)
}
