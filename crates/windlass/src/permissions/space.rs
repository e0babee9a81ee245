//! [`PermissionSpace`]: a defined permission space.

use std::sync::{Arc, PoisonError, RwLock};

use super::{Level, PermissionScan, Scale, Schema};
use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Field, FieldRead, FieldWrite, PermissionStore};

/// The most subjects in one store call.
const BATCH: usize = 4_096;
/// The most levels of one subject in one call: they are one step, during which the store serves no other client.
const MAX_FIELDS: usize = 100_000;

/// A permission space. Cheap to clone.
///
/// # Guarantees
///
/// What one call reads or writes for one subject is one atomic step; across subjects it is not. An unknown subject has
/// the lowest level everywhere, so lost data never grants anything. Each step checks that the space is still the one
/// that was defined or opened. If it was removed, or the store has lost it, nothing is read or written, and the
/// error's kind is [`NotFound`](ErrorKind::NotFound).
#[derive(Clone, Debug)]
pub struct PermissionSpace {
    pub(super) coordinator: Coordinator,
    pub(super) store: Arc<dyn PermissionStore>,
    pub(super) shown: String,
    pub(super) name: Name,
    schema: Arc<RwLock<Arc<Schema>>>,
}

impl PermissionSpace {
    pub(super) fn new(
        coordinator: Coordinator,
        shown: &str,
        name: Name,
        schema: Schema,
    ) -> PermissionSpace {
        PermissionSpace {
            store: coordinator.backend().permissions(),
            coordinator,
            shown: shown.to_owned(),
            name,
            schema: Arc::new(RwLock::new(Arc::new(schema))),
        }
    }

    /// The schema as this handle knows it. Other clients may have extended it since.
    pub fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Sets the level of a subject on a resource. Returns the former level.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the level may or may not have been set; setting it again is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a resource or level that is not in the schema,
    /// [`ErrorKind::NotFound`] if the space is gone.
    pub async fn set(&self, subject: &str, resource: &str, level: &str) -> Result<Level> {
        let before = self.set_all([(subject, resource, level)]).await?;
        Ok(before
            .into_iter()
            .next()
            .expect("one result for one request"))
    }

    /// Sets many levels in one round trip; those of one subject are set in one step. Returns the former levels, in the
    /// same order.
    ///
    /// # Errors
    ///
    /// As [`set`](PermissionSpace::set). [`ErrorKind::InvalidInput`], with nothing written, for more than 100,000 levels
    /// of one subject.
    pub async fn set_all<'a>(
        &self,
        given: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Result<Vec<Level>> {
        let operation = "set permissions";
        let given: Vec<_> = given.into_iter().collect();
        let schema = self.schema_for(operation, &given).await?;
        let mut writes = Vec::with_capacity(given.len());
        for (subject, resource, level) in given {
            let (field, value) = self.resolve(operation, &schema, resource, level)?;
            writes.push((subject, field, value));
        }
        self.write(operation, &schema, writes).await
    }

    /// Adds flags to those that a subject has. Returns which of them it had before.
    pub async fn grant(&self, subject: &str, resource: &str, flags: &str) -> Result<Level> {
        self.change_flags("grant", subject, resource, flags, 1)
            .await
    }

    /// Removes flags from those that a subject has. Returns which of them it had before.
    pub async fn revoke(&self, subject: &str, resource: &str, flags: &str) -> Result<Level> {
        self.change_flags("revoke", subject, resource, flags, 0)
            .await
    }

    /// Writes single bits, so that two clients that change different flags do not undo each other.
    async fn change_flags(
        &self,
        operation: &'static str,
        subject: &str,
        resource: &str,
        flags: &str,
        to: u64,
    ) -> Result<Level> {
        let given = [(subject, resource, flags)];
        let schema = self.schema_for(operation, &given).await?;
        if schema.scale != Scale::Flags {
            let error = Error::invalid(operation, "this space uses ranked levels")
                .with_name(&self.shown)
                .with_hint("use set, or define a space with flags");
            return Err(self.coordinator.describe(error));
        }
        let (field, wanted) = self.resolve(operation, &schema, resource, flags)?;
        let chosen: Vec<u32> = (0..schema.bits)
            .filter(|n| wanted & (1 << n) != 0)
            .collect();
        let bit = |flag: &u32| {
            let offset = field.offset + u64::from(field.width - 1 - flag);
            (subject, Field { offset, width: 1 }, to)
        };
        let writes = chosen.iter().map(bit).collect();
        let before = self.write(operation, &schema, writes).await?;
        let had = chosen
            .iter()
            .zip(before)
            .map(|(flag, had)| had.value() << flag);
        let value = had.fold(0, |all, flag| all | flag);
        Ok(schema.level(value))
    }

    async fn write(
        &self,
        operation: &'static str,
        schema: &Schema,
        writes: Vec<(&str, Field, u64)>,
    ) -> Result<Vec<Level>> {
        let mut before = vec![0; writes.len()];
        // The writes grouped by subject, and the position of each in the caller's order.
        let (mut changes, mut positions): (Vec<FieldWrite>, Vec<Vec<usize>>) =
            (Vec::new(), Vec::new());
        let mut known = std::collections::HashMap::new();
        for (position, (subject, field, value)) in writes.into_iter().enumerate() {
            check_subject(operation, subject)?;
            let at = *known.entry(subject).or_insert_with(|| {
                changes.push(FieldWrite {
                    subject: subject.to_owned(),
                    fields: Vec::new(),
                });
                positions.push(Vec::new());
                changes.len() - 1
            });
            changes[at].fields.push((field, value));
            positions[at].push(position);
        }
        if let Some(large) = changes.iter().find(|c| c.fields.len() > MAX_FIELDS) {
            let count = large.fields.len();
            let error = Error::invalid(operation, format!("{count} levels for one subject"));
            let hint = format!("the limit is {MAX_FIELDS} per call: use several calls");
            return Err(error.with_name(&self.shown).with_hint(hint));
        }
        let mut positions = positions.into_iter();
        let mut changes = changes.into_iter();
        loop {
            let batch: Vec<FieldWrite> = changes.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(before
                    .into_iter()
                    .map(|value| schema.level(value))
                    .collect());
            }
            let reply = self
                .store
                .write(self.name.clone(), schema.id.clone(), batch);
            let written = self.call_existing(operation, reply).await?;
            // The replies come first in `zip`: otherwise the end of each batch would consume a position.
            for (values, positions) in written.into_iter().zip(positions.by_ref()) {
                for (position, value) in positions.into_iter().zip(values) {
                    before[position] = value;
                }
            }
        }
    }

    /// The level of a subject on a resource.
    pub async fn get(&self, subject: &str, resource: &str) -> Result<Level> {
        let levels = self.get_all([(subject, resource)]).await?;
        Ok(levels
            .into_iter()
            .next()
            .expect("one result for one request"))
    }

    /// The levels of many subjects on many resources, in one round trip and one command per subject.
    pub async fn get_all<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Vec<Level>> {
        let operation = "get permissions";
        let wanted: Vec<_> = wanted.into_iter().map(|(s, r)| (s, r, None)).collect();
        let (schema, values) = self.values(operation, &wanted).await?;
        Ok(values
            .into_iter()
            .map(|value| schema.level(value))
            .collect())
    }

    /// Whether a subject has at least this level on a resource, or all of these flags.
    pub async fn check(&self, subject: &str, resource: &str, level: &str) -> Result<bool> {
        let allowed = self.check_all([(subject, resource, level)]).await?;
        Ok(allowed[0])
    }

    /// As [`check`](PermissionSpace::check) for many subjects and resources, in one round trip and one command per
    /// subject.
    pub async fn check_all<'a>(
        &self,
        wanted: impl IntoIterator<Item = (&'a str, &'a str, &'a str)>,
    ) -> Result<Vec<bool>> {
        let operation = "check permissions";
        let wanted: Vec<_> = wanted
            .into_iter()
            .map(|(s, r, l)| (s, r, Some(l)))
            .collect();
        let (schema, values) = self.values(operation, &wanted).await?;
        wanted
            .iter()
            .zip(values)
            .map(|((_, resource, level), has)| {
                let level = level.unwrap_or_default();
                let (_, needs) = self.resolve(operation, &schema, resource, level)?;
                Ok(schema.allows(has, needs))
            })
            .collect()
    }

    /// The levels of a subject on all resources.
    pub async fn list(&self, subject: &str) -> Result<Vec<(String, Level)>> {
        self.reload("list permissions").await?;
        let schema = self.schema();
        let wanted = schema.resources.iter().map(|r| (subject, r.as_str()));
        let levels = self.get_all(wanted).await?;
        Ok(schema.resources.iter().cloned().zip(levels).collect())
    }

    async fn values(
        &self,
        operation: &'static str,
        requested: &[(&str, &str, Option<&str>)],
    ) -> Result<(Arc<Schema>, Vec<u64>)> {
        let names: Vec<_> = requested
            .iter()
            .map(|(s, r, l)| (*s, *r, l.unwrap_or_default()))
            .collect();
        let with_level = requested
            .first()
            .is_some_and(|(_, _, level)| level.is_some());
        let schema = match with_level {
            true => self.schema_for(operation, &names).await?,
            false => self.schema_for_resources(operation, &names).await?,
        };
        let mut values = vec![0; requested.len()];
        // The reads grouped by subject, and the position of each in the caller's order.
        let (mut reads, mut positions): (Vec<FieldRead>, Vec<Vec<usize>>) =
            (Vec::new(), Vec::new());
        let mut known = std::collections::HashMap::new();
        for (position, (subject, resource, level)) in names.iter().enumerate() {
            check_subject(operation, subject)?;
            let field = match with_level {
                true => self.resolve(operation, &schema, resource, level)?.0,
                false => self.field(operation, &schema, resource)?,
            };
            let at = *known.entry(*subject).or_insert_with(|| {
                reads.push(FieldRead {
                    subject: (*subject).to_owned(),
                    fields: Vec::new(),
                });
                positions.push(Vec::new());
                reads.len() - 1
            });
            reads[at].fields.push(field);
            positions[at].push(position);
        }
        let (mut reads, mut positions) = (reads.into_iter(), positions.into_iter());
        loop {
            let batch: Vec<FieldRead> = reads.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok((schema, values));
            }
            let reply = self
                .store
                .read(self.name.clone(), Arc::clone(&schema), batch);
            let found = self.call_existing(operation, reply).await?;
            for (found, positions) in found.into_iter().zip(positions.by_ref()) {
                for (position, value) in positions.into_iter().zip(found) {
                    values[position] = value;
                }
            }
        }
    }

    /// Deletes all permissions of a subject. Returns whether there were any.
    pub async fn clear(&self, subject: &str) -> Result<bool> {
        let operation = "clear permissions";
        check_subject(operation, subject)?;
        let subjects = vec![subject.to_owned()];
        let id = self.schema().id.clone();
        let reply = self.store.clear(self.name.clone(), id, subjects);
        let cleared = self.call_existing(operation, reply).await?;
        Ok(cleared.first() == Some(&true))
    }

    /// Iterates over all subjects, page by page.
    ///
    /// A subject that exists during the whole scan is found; one that is added or removed meanwhile may be.
    pub fn scan(&self) -> PermissionScan {
        PermissionScan::new(self.clone())
    }

    /// A schema that has all these names: loaded again if the known one does not.
    pub(super) async fn schema_for(
        &self,
        operation: &'static str,
        names: &[(&str, &str, &str)],
    ) -> Result<Arc<Schema>> {
        let schema = self.schema();
        let known = |(_, resource, level): &(&str, &str, &str)| {
            schema.resource(resource).is_some() && schema.value(level).is_some()
        };
        if names.iter().all(known) {
            return Ok(schema);
        }
        self.reload(operation).await?;
        Ok(self.schema())
    }

    async fn schema_for_resources(
        &self,
        operation: &'static str,
        names: &[(&str, &str, &str)],
    ) -> Result<Arc<Schema>> {
        let schema = self.schema();
        if names.iter().all(|name| schema.resource(name.1).is_some()) {
            return Ok(schema);
        }
        self.reload(operation).await?;
        Ok(self.schema())
    }

    async fn reload(&self, operation: &'static str) -> Result<()> {
        let reply = self.store.schema(self.name.clone());
        let found = self.call(operation, reply).await?;
        let Some(found) = found.filter(|found| found.id == self.schema().id) else {
            return Err(self.coordinator.describe(gone(operation, &self.shown)));
        };
        *self.schema.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        Ok(())
    }

    fn field(&self, operation: &'static str, schema: &Schema, resource: &str) -> Result<Field> {
        let Some(index) = schema.resource(resource) else {
            return Err(self.unknown(operation, "resource", resource, &schema.resources));
        };
        Ok(Field {
            offset: index * u64::from(schema.bits),
            width: schema.bits,
        })
    }

    fn resolve(
        &self,
        operation: &'static str,
        schema: &Schema,
        resource: &str,
        level: &str,
    ) -> Result<(Field, u64)> {
        let field = self.field(operation, schema, resource)?;
        match schema.value(level) {
            Some(value) => Ok((field, value)),
            None => Err(self.unknown(operation, "level", level, &schema.levels)),
        }
    }

    fn unknown(&self, operation: &'static str, what: &str, name: &str, known: &[String]) -> Error {
        let mut examples: Vec<&str> = known.iter().map(String::as_str).take(10).collect();
        if known.len() > examples.len() {
            examples.push("…");
        }
        let error = Error::invalid(operation, format!("there is no {what} {name:?}"))
            .with_name(&self.shown)
            .with_hint(format!("known: {}", examples.join(", ")));
        self.coordinator.describe(error)
    }

    pub(super) async fn call<T>(
        &self,
        operation: &'static str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, &self.shown, reply).await
    }

    /// The reply; an error if the space is gone.
    pub(super) async fn call_existing<T>(
        &self,
        operation: &'static str,
        reply: impl Future<Output = Result<Option<T>>>,
    ) -> Result<T> {
        let gone = || self.coordinator.describe(gone(operation, &self.shown));
        self.call(operation, reply).await?.ok_or_else(gone)
    }

    pub(super) fn needs(
        &self,
        schema: &Schema,
        resource: &str,
        level: &str,
    ) -> Result<(Field, u64)> {
        self.resolve("find holders", schema, resource, level)
    }
}

fn check_subject(operation: &'static str, subject: &str) -> Result<()> {
    let problem = if subject.is_empty() {
        "the subject is empty"
    } else if subject.len() > Name::MAX_BYTES {
        "the subject is too long"
    } else if subject.chars().any(char::is_control) {
        "the subject contains a control character"
    } else {
        return Ok(());
    };
    let hint = format!("a subject is 1 to {} bytes of text", Name::MAX_BYTES);
    Err(Error::invalid(operation, problem).with_hint(hint))
}

pub(super) fn gone(operation: &'static str, name: &str) -> Error {
    Error::new(ErrorKind::NotFound, operation, "there is no such space")
        .with_name(name)
        .with_hint("define it with levels and resources")
}
