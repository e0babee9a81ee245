//! Looking from outside.

use std::collections::VecDeque;

use zookeeper_client::Error as ZkError;

use super::errors::translate;
use super::node_name::{Child, read};
use super::queue::{View, size};
use super::{Store, claim_data as data, paths};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy, matches};

/// So many holders are read to find those whose claims end first.
const READ_AT_MOST: usize = 1000;

impl Store {
    pub(super) async fn look(&self, kind: Kind, name: &str, most: usize) -> Result<Occupancy> {
        let session = self.any_session().await?;
        let mut view = self.view(&session, kind, name).await?;
        if self.open_if_complete(&session, name, kind, &view).await? {
            view = self.view(&session, kind, name).await?;
        }
        let nodes = view.nodes.iter().zip(&view.held);
        let holding = nodes.filter(|(_, held)| **held).map(|(node, _)| node);
        let wanted = if most == 0 { 0 } else { READ_AT_MOST.max(most) };
        let holding: Vec<_> = holding.take(wanted).collect();
        let now = self.clock.now();
        let read = session.ask(|client| {
            // All are asked before the first is awaited.
            let asked: Vec<_> = holding
                .iter()
                .map(|node| client.get_data(&paths::child(kind, name, &node.name)))
                .collect();
            let holding = &holding;
            async move {
                let mut holders = Vec::with_capacity(asked.len());
                for (node, asked) in holding.iter().zip(asked) {
                    match asked.await {
                        Ok((bytes, stat)) => {
                            holders.push(data::holder(&bytes, &node.name, node.weight, &stat, now));
                        }
                        Err(ZkError::NoNode) => {}
                        Err(error) => return Err(error),
                    }
                }
                Ok(holders)
            }
        });
        let mut holders: Vec<Holder> = read.await?.map_err(translate)?;
        if kind != Kind::Lock {
            holders.sort_by_key(|holder| holder.remaining);
        }
        holders.truncate(most);
        let mut state = Occupancy::new(kind, name.to_owned());
        state.size = self.size_seen(kind, &view);
        state.used = view.used;
        state.waiters = view.waiters();
        state.holders = holders;
        state.open = view.open();
        Ok(state)
    }

    /// A size is known as long as anybody remembers it.
    fn size_seen(&self, kind: Kind, view: &View) -> u32 {
        match kind {
            Kind::Lock | Kind::Semaphore => size(kind, &view.room),
            _ if view.nodes.is_empty() => 0,
            _ => size(kind, &view.room),
        }
    }

    /// Walks the tree of names.
    pub(super) async fn survey(
        &self,
        kinds: &[Kind],
        pattern: &str,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut found = Vec::new();
        for &kind in kinds {
            for name in self.names(kind).await? {
                // What others have made may bring a name that we would not accept.
                if !matches(pattern, &name) || Name::new("list locks", None, &name).is_err() {
                    continue;
                }
                let seen = self.look(kind, &name, most).await?;
                if seen.used > 0 || seen.waiters > 0 {
                    found.push(seen);
                }
            }
        }
        found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        Ok(found)
    }

    /// All names of this kind to which there are claims.
    async fn names(&self, kind: Kind) -> Result<Vec<String>> {
        let session = self.any_session().await?;
        let root = match kind {
            Kind::Lock => String::new(),
            _ => paths::family_root(kind.word()),
        };
        let mut names = Vec::new();
        let mut paths = VecDeque::from([root.clone()]);
        while let Some(path) = paths.pop_front() {
            let listed = session.ask(|client| {
                let (client, path) = (client.clone(), path.clone());
                let path = if path.is_empty() {
                    "/".to_owned()
                } else {
                    path
                };
                async move { client.list_children(&path).await }
            });
            let children = match listed.await? {
                Ok(children) => children,
                // Gone since, or not for us to see.
                Err(ZkError::NoNode | ZkError::NoAuth) => continue,
                Err(error) => return Err(translate(error)),
            };
            let mut claimed = false;
            for child in children {
                match read(self.address.layout, kind, &child) {
                    Child::Claim(_) => claimed = true,
                    Child::Foreign => {}
                    Child::Other if path.is_empty() && super::paths::is_reserved(&child) => {}
                    Child::Other => paths.push_back(format!("{path}/{child}")),
                }
            }
            let inner = path[root.len()..].trim_start_matches('/');
            if claimed && let Some(name) = super::paths::unescape(inner) {
                names.push(name);
            }
        }
        Ok(names)
    }
}
