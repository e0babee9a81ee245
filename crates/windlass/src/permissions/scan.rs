//! Looking through all subjects of a space.

use std::sync::Arc;

use super::PermissionSpace;
use super::{Level, Schema};
use windlass_core::error::Result;
use windlass_core::store::{FieldRead, ScanCursor};

/// A walk through the subjects of a space, page by page. Between pages the store is free for others.
#[derive(Debug)]
#[must_use = "nothing is looked at until a page is asked for"]
pub struct Scan {
    space: PermissionSpace,
    cursor: Option<ScanCursor>,
    looked_at: u64,
    total: u64,
}

/// Some of those who have a level.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Holders {
    /// Who, and the level each has. A subject may come twice if the store reorganises itself meanwhile.
    pub holders: Vec<(String, Level)>,
    /// How much of the space has been looked at, from 0 to 1, as far as can be told.
    pub progress: f64,
}

/// What a space takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PermissionStats {
    /// How many subjects are known.
    pub subjects: u64,
    /// Bytes they take in the store, names and bookkeeping of each included.
    pub bytes: u64,
}

impl Scan {
    pub(super) fn new(space: PermissionSpace) -> Scan {
        Scan {
            space,
            cursor: Some(ScanCursor::default()),
            looked_at: 0,
            total: 0,
        }
    }

    /// The next subjects, maybe none on this page; `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the same page can be asked for again.
    pub async fn next(&mut self) -> Result<Option<Vec<String>>> {
        let Some(cursor) = self.cursor.clone() else {
            return Ok(None);
        };
        let space = &self.space;
        let id = space.schema().id.clone();
        let answer = space.store.scan(space.name.clone(), id, cursor);
        let page = space.ask_open("look through the space", answer).await?;
        self.cursor = page.next;
        self.looked_at += page.looked_at;
        self.total = page.total;
        Ok(Some(page.subjects))
    }

    /// How much has been looked at, from 0 to 1, as far as can be told.
    pub fn progress(&self) -> f64 {
        match self.cursor {
            None => 1.0,
            Some(_) if self.total == 0 => 0.0,
            Some(_) => (self.looked_at as f64 / self.total as f64).min(0.99),
        }
    }

    /// Of the next subjects, those who have the level on the resource, or a higher one (or all of the flags);
    /// `None` at the end.
    pub async fn next_holders(&mut self, resource: &str, wanted: &str) -> Result<Option<Holders>> {
        let names = [("", resource, wanted)];
        let schema = self.space.schema_for("look for holders", &names).await?;
        let (field, needs) = self.space.needs(&schema, resource, wanted)?;
        let before = (self.cursor.clone(), self.looked_at);
        let Some(subjects) = self.next().await? else {
            return Ok(None);
        };
        let fields = |subject: &String| FieldRead {
            subject: subject.clone(),
            fields: vec![field],
        };
        let asked = subjects.iter().map(fields).collect();
        let space = &self.space;
        let answer = space
            .store
            .read(space.name.clone(), Arc::clone(&schema), asked);
        let values = match space.ask_open("look for holders", answer).await {
            Ok(values) => values,
            Err(e) => {
                (self.cursor, self.looked_at) = before;
                return Err(e);
            }
        };
        let has = |(subject, values): (String, Vec<u64>)| -> Option<(String, Level)> {
            let value = *values.first()?;
            let holds = schema.allows(value, needs);
            holds.then(|| (subject, schema.level(value)))
        };
        Ok(Some(Holders {
            holders: subjects.into_iter().zip(values).filter_map(has).collect(),
            progress: self.progress(),
        }))
    }
}

impl PermissionSpace {
    /// Everybody who has the level on the resource, or a higher one; or all of the flags. All subjects are
    /// looked at: with many, use [`scan`](PermissionSpace::scan), which tells how far it is.
    pub async fn who_has(&self, resource: &str, level: &str) -> Result<Vec<(String, Level)>> {
        let mut found = std::collections::BTreeMap::new();
        let mut scan = self.scan();
        while let Some(page) = scan.next_holders(resource, level).await? {
            found.extend(page.holders);
        }
        Ok(found.into_iter().collect())
    }

    /// How many subjects there are, and what they take. All of them are looked at.
    pub async fn stats(&self) -> Result<PermissionStats> {
        let mut stats = PermissionStats {
            subjects: 0,
            bytes: 0,
        };
        let mut scan = self.scan();
        let schema: Arc<Schema> = self.schema();
        while let Some(subjects) = scan.next().await? {
            let answer = self
                .store
                .memory(self.name.clone(), schema.id.clone(), subjects);
            let sizes = self.ask("measure the space", answer).await?;
            stats.subjects += sizes.len() as u64;
            stats.bytes += sizes.iter().sum::<u64>();
        }
        Ok(stats)
    }
}
