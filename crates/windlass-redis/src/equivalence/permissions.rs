//! Permissions: random operations with current and outdated schemas give the same answers as the
//! rules, and leave the same bytes.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;

use super::fixture::RedisFixture;
use crate::keys::Keys;
use windlass_core::name::Name;
use windlass_core::permissions::{Scale, Schema};
use windlass_core::rules::permissions as rules;
use windlass_core::store::{Field, FieldRead, FieldWrite, PermissionStore, ScanCursor};

/// The schema that an operation uses: 0 is the newest, 1 the one before it, and so on.
type Handle = usize;

#[derive(Clone, Debug)]
enum PermissionOp {
    Write(Handle, Vec<(u8, Field, u64)>),
    Read(Handle, Vec<(u8, Vec<Field>)>),
    Clear(Handle, u8),
    /// Defines the space, with a new schema or with the id of this one; as a client that knows the
    /// second one as current.
    Define(Option<Handle>, Option<Handle>),
    Remove(Handle),
    /// Lists all subjects.
    Scan(Handle),
    /// Deletes the subjects of a removed schema: all of them, or one page.
    Sweep(Handle, bool),
}

fn field() -> impl Strategy<Value = Field> {
    (0..200u64, 1..=32u32).prop_map(|(offset, width)| Field { offset, width })
}

fn ops() -> impl Strategy<Value = Vec<PermissionOp>> {
    // Mostly the newest.
    let handle = || prop_oneof![4 => Just(0usize), 1 => 0..3usize];
    let seen = || prop::option::weighted(0.3, 0..3usize);
    let write = (0..3u8, field(), any::<u64>());
    // Covers both ways of reading: naming a few fields of long strings, and fetching whole strings.
    let read = (0..3u8, prop::collection::vec(field(), 1..80));
    let op = prop_oneof![
        8 => (handle(), prop::collection::vec(write, 1..9)).prop_map(|(h, w)| PermissionOp::Write(h, w)),
        4 => (handle(), prop::collection::vec(read, 1..4)).prop_map(|(h, r)| PermissionOp::Read(h, r)),
        2 => (handle(), 0..3u8).prop_map(|(h, s)| PermissionOp::Clear(h, s)),
        2 => (seen(), seen()).prop_map(|(id, before)| PermissionOp::Define(id, before)),
        1 => handle().prop_map(PermissionOp::Remove),
        1 => handle().prop_map(PermissionOp::Scan),
        1 => (handle(), any::<bool>()).prop_map(|(h, all)| PermissionOp::Sweep(h, all)),
    ];
    prop::collection::vec(op, 1..30)
}

#[derive(Default)]
struct PermissionModel {
    stored: Option<Schema>,
    /// By schema id, then by subject.
    bits: HashMap<String, HashMap<String, Vec<u8>>>,
    removed: Vec<String>,
}

impl PermissionModel {
    fn open(&mut self, schema: &Schema) -> Option<&mut HashMap<String, Vec<u8>>> {
        let open = rules::is_open(self.stored.as_ref(), &schema.id);
        open.then(|| self.bits.entry(schema.id.clone()).or_default())
    }

    fn write(&mut self, schema: &Schema, changes: &[FieldWrite]) -> Option<Vec<Vec<u64>>> {
        let subjects = self.open(schema)?;
        let write = |change: &FieldWrite| {
            let bits = subjects.entry(change.subject.clone()).or_default();
            let fields = change.fields.iter();
            fields
                .map(|(field, value)| rules::set(bits, *field, *value))
                .collect()
        };
        Some(changes.iter().map(write).collect())
    }

    fn read(&mut self, schema: &Schema, wanted: &[FieldRead]) -> Option<Vec<Vec<u64>>> {
        let subjects = self.open(schema)?;
        let read = |wanted: &FieldRead| {
            let bits = subjects.get(&wanted.subject).map_or(&[][..], Vec::as_slice);
            wanted
                .fields
                .iter()
                .map(|field| rules::get(bits, *field))
                .collect()
        };
        Some(wanted.iter().map(read).collect())
    }
}

struct Case {
    store: Arc<dyn PermissionStore>,
    space: Name,
    model: PermissionModel,
    /// All schemas that were defined, oldest first.
    known: Vec<Arc<Schema>>,
    /// Whether the strings of subjects are long.
    long: bool,
}

impl Case {
    fn handle(&self, handle: Handle) -> Arc<Schema> {
        let last = self.known.len() - 1;
        Arc::clone(&self.known[last.saturating_sub(handle)])
    }

    fn fresh(&self) -> Schema {
        let names = |n: usize| (0..n).map(|n| n.to_string()).collect();
        let (bits, resources) = if self.long { (32, 100) } else { (1, 1) };
        Schema::new(Scale::Ranked, names(2), Some(bits), names(resources)).unwrap()
    }

    async fn define(&mut self, id: Option<Handle>, before: Option<Handle>) -> TestCaseResult {
        let mut next = match id {
            Some(handle) => (*self.handle(handle)).clone(),
            None => self.fresh(),
        };
        let before = match before {
            Some(handle) => Some((*self.handle(handle)).clone()),
            None => self.model.stored.clone(),
        };
        if before.as_ref().is_some_and(|before| before.id == next.id) {
            next.version = before.as_ref().unwrap().version + 1;
        }
        let left_over = self.model.removed.contains(&next.id);
        let expected = rules::may_define(self.model.stored.as_ref(), before.as_ref(), left_over);
        // Callers never replace a schema by one with another id.
        let replaced = self.model.stored.as_ref().is_some_and(|s| s.id != next.id);
        if expected && replaced {
            return Ok(());
        }
        let defined = self.store.define(self.space.clone(), before, next.clone());
        prop_assert_eq!(defined.await.unwrap(), expected);
        if expected {
            self.model.stored = Some(next.clone());
            self.known.push(Arc::new(next));
        }
        Ok(())
    }

    async fn apply(&mut self, op: PermissionOp) -> TestCaseResult {
        let (store, space) = (Arc::clone(&self.store), self.space.clone());
        match op {
            PermissionOp::Write(handle, writes) => {
                let schema = self.handle(handle);
                let change = |(subject, field, value): (u8, Field, u64)| FieldWrite {
                    subject: subject.to_string(),
                    // Callers check that values fit their fields.
                    fields: vec![(field, value & ((1 << field.width) - 1))],
                };
                let changes: Vec<FieldWrite> = writes.into_iter().map(change).collect();
                let expected = self.model.write(&schema, &changes);
                let found = store.write(space, schema.id.clone(), changes).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            PermissionOp::Read(handle, reads) => {
                let schema = self.handle(handle);
                let read = |(subject, fields): (u8, Vec<Field>)| FieldRead {
                    subject: subject.to_string(),
                    fields,
                };
                let wanted: Vec<FieldRead> = reads.into_iter().map(read).collect();
                let expected = self.model.read(&schema, &wanted);
                let found = store.read(space, schema, wanted).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            PermissionOp::Clear(handle, subject) => {
                let (schema, subject) = (self.handle(handle), subject.to_string());
                let subjects = self.model.open(&schema);
                let expected = subjects.map(|known| vec![known.remove(&subject).is_some()]);
                let found = store.clear(space, schema.id.clone(), vec![subject]).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            PermissionOp::Define(id, before) => self.define(id, before).await?,
            PermissionOp::Remove(handle) => {
                let schema = self.handle(handle);
                let expected = rules::is_open(self.model.stored.as_ref(), &schema.id);
                if expected {
                    self.model.stored = None;
                    self.model.removed.push(schema.id.clone());
                }
                let found = store.remove(space.clone(), schema.id.clone()).await;
                prop_assert_eq!(found.unwrap(), expected);
            }
            PermissionOp::Scan(handle) => {
                let schema = self.handle(handle);
                let subjects = self.model.open(&schema);
                let expected = subjects.map(|known| known.keys().cloned().collect::<Vec<_>>());
                let (mut found, mut cursor) = (Some(Vec::new()), Some(ScanCursor::default()));
                while let Some(from) = cursor.take() {
                    let page = store.scan(space.clone(), schema.id.clone(), from);
                    let page = page.await.unwrap();
                    cursor = page.as_ref().and_then(|page| page.next.clone());
                    found = found.zip(page).map(|(mut all, page)| {
                        all.extend(page.subjects);
                        all
                    });
                }
                let sorted = |names: Option<Vec<String>>| {
                    names.map(|mut names| {
                        names.sort();
                        names.dedup();
                        names
                    })
                };
                prop_assert_eq!(sorted(found), sorted(expected));
            }
            PermissionOp::Sweep(handle, all) => {
                let schema = self.handle(handle);
                let mut cursor = Some(ScanCursor::default());
                while let Some(from) = cursor.take() {
                    let swept = store.sweep(space.clone(), schema.id.clone(), from);
                    cursor = swept.await.unwrap();
                    if !all && cursor.is_some() {
                        return Ok(());
                    }
                }
                if self.model.removed.contains(&schema.id) {
                    self.model.removed.retain(|id| *id != schema.id);
                    self.model.bits.remove(&schema.id);
                }
                let leftovers = store.leftovers(space).await.unwrap();
                prop_assert!(!leftovers.contains(&schema.id));
            }
        }
        Ok(())
    }
}

async fn check(
    redis: &RedisFixture,
    space: Name,
    long: bool,
    ops: Vec<PermissionOp>,
) -> TestCaseResult {
    let mut case = Case {
        store: redis.backend.permissions(),
        space: space.clone(),
        model: PermissionModel::default(),
        known: Vec::new(),
        long,
    };
    case.known.push(Arc::new(case.fresh()));
    for op in ops {
        case.apply(op).await?;
    }
    let client = redis::Client::open(redis.server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let Some(stored) = &case.model.stored else {
        return Ok(());
    };
    for (subject, bits) in case.model.bits.remove(&stored.id).unwrap_or_default() {
        let key = Keys::default().permissions(&space, &stored.id) + &subject;
        let mut get = redis::cmd("GET");
        let found: Vec<u8> = get.arg(key).query_async(&mut connection).await.unwrap();
        prop_assert_eq!(found, bits, "the bytes of {}", subject);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn permissions_are_stored_as_the_rules_say(long in any::<bool>(), ops in ops()) {
        static REDIS: LazyLock<RedisFixture> = LazyLock::new(RedisFixture::start);
        REDIS.case(|redis, space| check(redis, space, long, ops))?;
    }
}
