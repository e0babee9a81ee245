//! Permissions in memory.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use super::{MemoryStore, reply};
use crate::name::Name;
use crate::permissions::Schema;
use crate::rules::permissions as rules;
use crate::store::{
    FieldRead, FieldWrite, Pending, PermissionStore, ScanCursor, SubjectPage, page,
};

/// Subjects on a page of a scan.
const PAGE: usize = 1_000;

/// One space. It is removed with all its subjects at once, so there are no leftovers to sweep.
pub(super) struct StoredSpace {
    schema: Schema,
    subjects: BTreeMap<String, Vec<u8>>,
}

impl MemoryStore {
    /// Acts in the space, if its schema still has this id.
    fn in_space<T: Send + 'static>(
        &self,
        space: &Name,
        id: &str,
        act: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T,
    ) -> Pending<'static, Option<T>> {
        let mut shard = self.spaces.of(space);
        let known = shard.map.get_mut(space);
        let open = known.filter(|space| rules::is_open(Some(&space.schema), id));
        let answer = open.map(|space| act(&mut space.subjects));
        reply(Ok(answer))
    }
}

impl PermissionStore for MemoryStore {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        let shard = self.spaces.of(&space);
        let schema = shard.map.get(&space).map(|space| space.schema.clone());
        reply(Ok(schema))
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        let mut shard = self.spaces.of(&space);
        let known = shard.map.get_mut(&space);
        let stored = known.as_ref().map(|space| &space.schema);
        let may = rules::may_define(stored, before.as_ref(), false);
        match known {
            Some(space) if may => space.schema = schema,
            None if may => {
                let subjects = BTreeMap::new();
                shard.map.insert(space, StoredSpace { schema, subjects });
            }
            _ => {}
        }
        reply(Ok(may))
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<FieldWrite>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        self.in_space(&space, &id, |subjects| {
            let write = |change: FieldWrite| {
                let bits = subjects.entry(change.subject).or_default();
                let fields = change.fields.into_iter();
                fields
                    .map(|(field, value)| rules::set(bits, field, value))
                    .collect()
            };
            changes.into_iter().map(write).collect()
        })
    }

    fn read(
        &self,
        space: Name,
        schema: Arc<Schema>,
        wanted: Vec<FieldRead>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        self.in_space(&space, &schema.id, |subjects| {
            let read = |wanted: FieldRead| {
                let bits = subjects.get(&wanted.subject).map_or(&[][..], Vec::as_slice);
                let fields = wanted.fields.into_iter();
                fields.map(|field| rules::get(bits, field)).collect()
            };
            wanted.into_iter().map(read).collect()
        })
    }

    fn clear(
        &self,
        space: Name,
        id: String,
        subjects: Vec<String>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        self.in_space(&space, &id, |known| {
            let clear = |subject: String| known.remove(&subject).is_some();
            subjects.into_iter().map(clear).collect()
        })
    }

    fn scan(
        &self,
        space: Name,
        id: String,
        cursor: ScanCursor,
    ) -> Pending<'_, Option<SubjectPage>> {
        self.in_space(&space, &id, |known| {
            let start = cursor.after.map_or(Bound::Unbounded, Bound::Excluded);
            let rest = known.range((start, Bound::Unbounded));
            let subjects: Vec<String> = rest.take(PAGE).map(|(s, _)| s.clone()).collect();
            page(subjects, PAGE, known.len() as u64)
        })
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        let sizes = self.in_space(&space, &id, |known| {
            let size = |subject: &String| {
                let bits = known.get(subject)?;
                Some((size_of::<(String, Vec<u8>)>() + subject.len() + bits.capacity()) as u64)
            };
            subjects.iter().filter_map(size).collect()
        });
        Box::pin(async { Ok(sizes.await?.unwrap_or_default()) })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        let mut shard = self.spaces.of(&space);
        let stored = shard.map.get(&space).map(|space| &space.schema);
        let there = rules::is_open(stored, &id);
        if there {
            shard.map.remove(&space);
        }
        reply(Ok(there))
    }

    fn leftovers(&self, _space: Name) -> Pending<'_, Vec<String>> {
        reply(Ok(Vec::new()))
    }

    fn sweep(
        &self,
        _space: Name,
        _id: String,
        _cursor: ScanCursor,
    ) -> Pending<'_, Option<ScanCursor>> {
        reply(Ok(None))
    }
}
