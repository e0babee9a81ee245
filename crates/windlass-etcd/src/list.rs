//! What there is, by a pattern.

use std::collections::BTreeMap;

use super::keys::{Whose, end_of, whose};
use super::rooms::View;
use super::store::Store;
use super::wire::{KeyValue, RangeRequest};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Occupancy, matches};

/// How many keys are listed in one call.
const PAGE: i64 = 1000;

impl Store {
    /// All keys of which `keep` thinks that they matter, page by page.
    async fn scan(&self, prefix: &str) -> Result<Vec<KeyValue>> {
        let mut found = Vec::new();
        let mut key = prefix.as_bytes().to_vec();
        if key.is_empty() {
            key.push(0);
        }
        loop {
            let page = RangeRequest {
                key: key.clone(),
                range_end: end_of(prefix),
                limit: PAGE,
                ..RangeRequest::default()
            };
            let page = self.link.range(page).await?;
            let Some(last) = page.kvs.last() else {
                return Ok(found);
            };
            key = last.key.clone();
            key.push(0);
            found.extend(page.kvs);
            if !page.more {
                return Ok(found);
            }
        }
    }

    pub(super) async fn list_lines(
        &self,
        kinds: &[Kind],
        pattern: &str,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut lines: BTreeMap<(String, Kind), Vec<KeyValue>> = BTreeMap::new();
        for kv in self.scan(&self.keys.scan(Kind::Lock, pattern)).await? {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            let Some((name, rest)) = self.keys.in_line(&key) else {
                continue;
            };
            let kind = match whose(rest, kv.lease) {
                Whose::Ours { kind, .. } => kind,
                // A neighbour's lock has no value, a leader has one.
                Whose::Neighbours if kv.value.is_empty() => Kind::Lock,
                Whose::Neighbours => Kind::Election,
                _ => continue,
            };
            if kinds.contains(&kind) && matches(pattern, name) {
                lines.entry((name.to_owned(), kind)).or_default().push(kv);
            }
        }
        let mut listed = Vec::new();
        for ((name, kind), mut parts) in lines {
            parts.sort_by_key(|kv| kv.create_revision);
            let prefix = self.keys.prefix(kind, &Name::checked(&name));
            listed.push(
                self.occupancy_of_line(kind, name, &prefix, &parts, most)
                    .await?,
            );
        }
        Ok(listed)
    }

    pub(super) async fn list_rooms(
        &self,
        kind: Kind,
        pattern: &str,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut rooms: BTreeMap<String, Vec<KeyValue>> = BTreeMap::new();
        for kv in self.scan(&self.keys.scan(kind, pattern)).await? {
            let key = String::from_utf8_lossy(&kv.key).into_owned();
            if let Some((name, _)) = self.keys.in_room(kind, &key)
                && matches(pattern, &name)
            {
                rooms.entry(name).or_default().push(kv);
            }
        }
        let mut listed = Vec::new();
        for (name, kvs) in rooms {
            let prefix = self.keys.prefix(kind, &Name::checked(&name));
            let view = View::read(kind, &prefix, 0, kvs)?;
            // What is only remembered is neither held nor waited for.
            if !view.seats.is_empty() {
                listed.push(self.occupancy_of_room(kind, name, &view, most).await?);
            }
        }
        Ok(listed)
    }
}
