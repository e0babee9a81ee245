//! A space of permissions that exists.

use std::sync::{Arc, PoisonError, RwLock};

use super::{Level, Scale, Scan, Schema};
use crate::coordinator::Coordinator;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Field, FieldRead, FieldWrite, PermissionStore};

/// Subjects in one question to the store.
const BATCH: usize = 4_096;
/// The most that one subject is given by one call: it is one step, which keeps the store from others.
const MOST_FIELDS: usize = 100_000;

/// A space of permissions. Cheap to clone.
///
/// # Guarantees
///
/// What is written or read for one subject in one call is one indivisible step. Across subjects it is not. A
/// subject that was never heard of has the lowest level everywhere: whatever is lost, nobody gains. Each step
/// looks whether the space is still the one that was defined or opened: of one that was removed, even if its
/// removal was interrupted, or that the store has lost, nothing is read or written, and the answer is an error of
/// the kind [`NotFound`](ErrorKind::NotFound).
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

    /// The schema, as far as this handle knows it. Others may have added to it.
    pub fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Gives a subject a level. Returns the one it had.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, it may or may not have been written; writing it again is harmless.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::InvalidInput`] for a resource or level that is not in the schema,
    /// [`ErrorKind::NotFound`] if the space is gone.
    pub async fn set(&self, subject: &str, resource: &str, level: &str) -> Result<Level> {
        let before = self.set_all([(subject, resource, level)]).await?;
        Ok(before.into_iter().next().expect("one was asked for"))
    }

    /// Gives many subjects their levels, in one trip; all that is given to one subject is given in one
    /// step. Returns the levels they had, in this order.
    ///
    /// # Errors
    ///
    /// As [`set`](PermissionSpace::set); and [`ErrorKind::InvalidInput`], and nothing is written, if one subject is
    /// given more than 100,000 levels.
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

    /// Adds flags to those that a subject has. Returns those of them that it had before.
    pub async fn grant(&self, subject: &str, resource: &str, flags: &str) -> Result<Level> {
        self.change_flags("grant", subject, resource, flags, 1)
            .await
    }

    /// Takes flags from a subject, and leaves the others. Returns those of them that it had.
    pub async fn revoke(&self, subject: &str, resource: &str, flags: &str) -> Result<Level> {
        self.change_flags("revoke", subject, resource, flags, 0)
            .await
    }

    /// Flags are bits of their own, so that two who change different ones do not undo each other.
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
            let error = Error::invalid(operation, "the levels of this space rank")
                .with_name(&self.shown)
                .with_hint("set the level, or define a space with flags");
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
        let mut answers = vec![0; writes.len()];
        let (mut changes, mut places): (Vec<FieldWrite>, Vec<Vec<usize>>) =
            (Vec::new(), Vec::new());
        let mut known = std::collections::HashMap::new();
        for (place, (subject, field, value)) in writes.into_iter().enumerate() {
            check_subject(operation, subject)?;
            let at = *known.entry(subject).or_insert_with(|| {
                changes.push(FieldWrite {
                    subject: subject.to_owned(),
                    fields: Vec::new(),
                });
                places.push(Vec::new());
                changes.len() - 1
            });
            changes[at].fields.push((field, value));
            places[at].push(place);
        }
        if let Some(large) = changes.iter().find(|c| c.fields.len() > MOST_FIELDS) {
            let count = large.fields.len();
            let error = Error::invalid(operation, format!("{count} levels for one subject"));
            let hint = format!("up to {MOST_FIELDS} are one step: use several calls");
            return Err(error.with_name(&self.shown).with_hint(hint));
        }
        let mut places = places.into_iter();
        let mut changes = changes.into_iter();
        loop {
            let batch: Vec<FieldWrite> = changes.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok(answers
                    .into_iter()
                    .map(|value| schema.level(value))
                    .collect());
            }
            let answer = self
                .store
                .write(self.name.clone(), schema.id.clone(), batch);
            let before = self.ask_open(operation, answer).await?;
            // The answers lead: the other way round, a place would be taken for each batch that ends.
            for (values, places) in before.into_iter().zip(places.by_ref()) {
                for (place, value) in places.into_iter().zip(values) {
                    answers[place] = value;
                }
            }
        }
    }

    /// The level that a subject has.
    pub async fn get(&self, subject: &str, resource: &str) -> Result<Level> {
        let levels = self.get_all([(subject, resource)]).await?;
        Ok(levels.into_iter().next().expect("one was asked for"))
    }

    /// The levels of many subjects on many resources, in one trip and one command for each subject.
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

    /// Whether a subject has the level, or a higher one; or all these flags.
    pub async fn check(&self, subject: &str, resource: &str, level: &str) -> Result<bool> {
        let answers = self.check_all([(subject, resource, level)]).await?;
        Ok(answers[0])
    }

    /// The same for many subjects and resources, in one trip and one command for each subject.
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

    /// The levels that a subject has on all resources.
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
        asked: &[(&str, &str, Option<&str>)],
    ) -> Result<(Arc<Schema>, Vec<u64>)> {
        let names: Vec<_> = asked
            .iter()
            .map(|(s, r, l)| (*s, *r, l.unwrap_or_default()))
            .collect();
        let with_level = asked.first().is_some_and(|(_, _, level)| level.is_some());
        let schema = match with_level {
            true => self.schema_for(operation, &names).await?,
            false => self.schema_for_resources(operation, &names).await?,
        };
        let mut values = vec![0; asked.len()];
        let (mut wanted, mut places): (Vec<FieldRead>, Vec<Vec<usize>>) = (Vec::new(), Vec::new());
        let mut known = std::collections::HashMap::new();
        for (place, (subject, resource, level)) in names.iter().enumerate() {
            check_subject(operation, subject)?;
            let field = match with_level {
                true => self.resolve(operation, &schema, resource, level)?.0,
                false => self.field(operation, &schema, resource)?,
            };
            let at = *known.entry(*subject).or_insert_with(|| {
                wanted.push(FieldRead {
                    subject: (*subject).to_owned(),
                    fields: Vec::new(),
                });
                places.push(Vec::new());
                wanted.len() - 1
            });
            wanted[at].fields.push(field);
            places[at].push(place);
        }
        let (mut wanted, mut places) = (wanted.into_iter(), places.into_iter());
        loop {
            let batch: Vec<FieldRead> = wanted.by_ref().take(BATCH).collect();
            if batch.is_empty() {
                return Ok((schema, values));
            }
            let answer = self
                .store
                .read(self.name.clone(), Arc::clone(&schema), batch);
            let found = self.ask_open(operation, answer).await?;
            for (found, places) in found.into_iter().zip(places.by_ref()) {
                for (place, value) in places.into_iter().zip(found) {
                    values[place] = value;
                }
            }
        }
    }

    /// Forgets all that a subject may do. Tells whether anything was known.
    pub async fn clear(&self, subject: &str) -> Result<bool> {
        let operation = "clear permissions";
        check_subject(operation, subject)?;
        let subjects = vec![subject.to_owned()];
        let id = self.schema().id.clone();
        let answer = self.store.clear(self.name.clone(), id, subjects);
        let cleared = self.ask_open(operation, answer).await?;
        Ok(cleared.first() == Some(&true))
    }

    /// Looks through all subjects, page by page.
    ///
    /// Whoever was there all the time is found; whoever comes or goes meanwhile may be.
    pub fn scan(&self) -> Scan {
        Scan::new(self.clone())
    }

    /// The schema that knows all these names: asked for anew if ours does not.
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
        let answer = self.store.schema(self.name.clone());
        let found = self.ask(operation, answer).await?;
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
        let mut some: Vec<&str> = known.iter().map(String::as_str).take(10).collect();
        if known.len() > some.len() {
            some.push("…");
        }
        let error = Error::invalid(operation, format!("there is no {what} {name:?}"))
            .with_name(&self.shown)
            .with_hint(format!("there are: {}", some.join(", ")));
        self.coordinator.describe(error)
    }

    pub(super) async fn ask<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, &self.shown, answer).await
    }

    /// The answer, unless the space is gone.
    pub(super) async fn ask_open<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<Option<T>>>,
    ) -> Result<T> {
        let gone = || self.coordinator.describe(gone(operation, &self.shown));
        self.ask(operation, answer).await?.ok_or_else(gone)
    }

    pub(super) fn needs(
        &self,
        schema: &Schema,
        resource: &str,
        level: &str,
    ) -> Result<(Field, u64)> {
        self.resolve("look for holders", schema, resource, level)
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
    Error::new(
        ErrorKind::NotFound,
        operation,
        "there is no such space (any more)",
    )
    .with_name(name)
    .with_hint("define it, with levels and resources")
}
