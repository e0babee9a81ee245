//! Permissions in memory.

use std::collections::BTreeMap;
use std::future::ready;
use std::ops::Bound;

use super::World;
use crate::backend::rules::permissions as rules;
use crate::backend::{Change, Cursor, Page, Pending, PermissionStore, Wanted};
use crate::name::Name;
use crate::permissions::Schema;

/// Subjects on a page of a scan.
const PAGE: usize = 1_000;

/// One space.
pub(super) struct Space {
    /// Gone if the space was removed and its subjects are still being cleared.
    schema: Option<Schema>,
    /// By the schema's id, then by subject.
    bits: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
}

impl World {
    fn with_subjects<T: Send + 'static>(
        &self,
        space: &Name,
        id: &str,
        act: impl FnOnce(&mut BTreeMap<String, Vec<u8>>) -> T,
    ) -> Pending<'static, T> {
        let mut shard = self.spaces.of(space);
        let known = shard.map.get_mut(space);
        let answer = match known.and_then(|space| space.bits.get_mut(id)) {
            Some(subjects) => act(subjects),
            None => act(&mut BTreeMap::new()),
        };
        Box::pin(ready(Ok(answer)))
    }
}

impl PermissionStore for World {
    fn schema(&self, space: Name) -> Pending<'_, Option<Schema>> {
        let shard = self.spaces.of(&space);
        let schema = shard.map.get(&space).and_then(|s| s.schema.clone());
        Box::pin(ready(Ok(schema)))
    }

    fn define(&self, space: Name, before: Option<Schema>, schema: Schema) -> Pending<'_, bool> {
        let mut shard = self.spaces.of(&space);
        let known = shard.map.get(&space).and_then(|s| s.schema.clone());
        let same = known == before;
        if same {
            let bits = BTreeMap::new();
            let entry = shard
                .map
                .entry(space)
                .or_insert_with(|| Space { schema: None, bits });
            entry.bits.entry(schema.id.clone()).or_default();
            entry.schema = Some(schema);
        }
        Box::pin(ready(Ok(same)))
    }

    fn write(
        &self,
        space: Name,
        id: String,
        changes: Vec<Change>,
    ) -> Pending<'_, Option<Vec<Vec<u64>>>> {
        let there = {
            let shard = self.spaces.of(&space);
            let schema = shard.map.get(&space).and_then(|s| s.schema.as_ref());
            schema.is_some_and(|schema| schema.id == id)
        };
        if !there {
            return Box::pin(ready(Ok(None)));
        }
        self.with_subjects(&space, &id, |subjects| {
            let write = |change: Change| {
                let bits = subjects.entry(change.subject).or_default();
                let fields = change.fields.into_iter();
                fields
                    .map(|(field, value)| rules::set(bits, field, value))
                    .collect()
            };
            Some(changes.into_iter().map(write).collect())
        })
    }

    fn read(&self, space: Name, id: String, wanted: Vec<Wanted>) -> Pending<'_, Vec<Vec<u64>>> {
        self.with_subjects(&space, &id, |subjects| {
            let read = |wanted: Wanted| {
                let bits = subjects.get(&wanted.subject).map_or(&[][..], Vec::as_slice);
                let fields = wanted.fields.into_iter();
                fields.map(|field| rules::get(bits, field)).collect()
            };
            wanted.into_iter().map(read).collect()
        })
    }

    fn clear(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<bool>> {
        self.with_subjects(&space, &id, |known| {
            let clear = |subject: String| known.remove(&subject).is_some();
            subjects.into_iter().map(clear).collect()
        })
    }

    fn scan(&self, space: Name, id: String, cursor: Cursor) -> Pending<'_, Page> {
        self.with_subjects(&space, &id, |known| {
            let start = cursor.after.map_or(Bound::Unbounded, Bound::Excluded);
            let rest = known.range((start, Bound::Unbounded));
            let subjects: Vec<String> = rest.take(PAGE).map(|(s, _)| s.clone()).collect();
            page(subjects, PAGE, known.len() as u64)
        })
    }

    fn memory(&self, space: Name, id: String, subjects: Vec<String>) -> Pending<'_, Vec<u64>> {
        self.with_subjects(&space, &id, |known| {
            let size = |subject: &String| {
                let bits = known.get(subject)?;
                Some((size_of::<(String, Vec<u8>)>() + subject.len() + bits.capacity()) as u64)
            };
            subjects.iter().filter_map(size).collect()
        })
    }

    fn remove(&self, space: Name, id: String) -> Pending<'_, bool> {
        let mut shard = self.spaces.of(&space);
        let there = shard
            .map
            .get(&space)
            .is_some_and(|s| s.schema.as_ref().is_some_and(|s| s.id == id));
        if there {
            // All at once is as quick as page by page.
            shard.map.remove(&space);
        }
        Box::pin(ready(Ok(there)))
    }
}

/// A page of subjects that come in order.
pub(in crate::backend) fn page(subjects: Vec<String>, full: usize, total: u64) -> Page {
    let next = subjects.last().filter(|_| subjects.len() == full);
    Page {
        next: next.map(|last| Cursor {
            number: 0,
            after: Some(last.clone()),
        }),
        looked_at: subjects.len() as u64,
        total,
        subjects,
    }
}
