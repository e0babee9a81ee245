//! [`PermissionScan`]: iterating over all subjects of a space.

use std::sync::Arc;

use super::PermissionSpace;
use super::{Level, Schema};
use windlass_core::error::Result;
use windlass_core::store::{FieldRead, ScanCursor};

/// Iterates over the subjects of a space, page by page. The store serves other clients between pages.
#[derive(Debug)]
#[must_use = "nothing is read until the next page is awaited"]
pub struct PermissionScan {
    space: PermissionSpace,
    cursor: Option<ScanCursor>,
    scanned: u64,
    progress: f64,
}

/// One page of the subjects that have a level.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PermissionHolders {
    /// The subjects, with the level of each. A subject may come twice if the store rehashes in between.
    pub holders: Vec<(String, Level)>,
    /// The estimated fraction of the space that has been scanned, from 0 to 1.
    pub progress: f64,
}

/// The size of a permission space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct PermissionStats {
    /// How many subjects are stored.
    pub subjects: u64,
    /// The bytes they take in the store, including names and the store's overhead.
    pub bytes: u64,
}

impl PermissionScan {
    pub(super) fn new(space: PermissionSpace) -> PermissionScan {
        PermissionScan {
            space,
            cursor: Some(ScanCursor::default()),
            scanned: 0,
            progress: 0.0,
        }
    }

    /// The next subjects; a page may be empty. `None` at the end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the next call returns the same page.
    pub async fn next(&mut self) -> Result<Option<Vec<String>>> {
        let Some(cursor) = self.cursor.clone() else {
            return Ok(None);
        };
        let space = &self.space;
        let id = space.schema().id.clone();
        let reply = space.store.scan(space.name.clone(), id, cursor);
        let page = space.call_existing("scan the space", reply).await?;
        self.cursor = page.next;
        self.scanned += page.scanned;
        self.progress = match self.cursor {
            None => 1.0,
            Some(_) => progress_after(self.progress, self.scanned, page.total),
        };
        Ok(Some(page.subjects))
    }

    /// The estimated fraction that has been scanned, from 0 to 1.
    pub fn progress(&self) -> f64 {
        self.progress
    }

    /// Of the next page, the subjects that have at least this level on the resource, or all of these flags. `None` at
    /// the end.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a page may be skipped: start a new scan.
    pub async fn next_holders(
        &mut self,
        resource: &str,
        wanted: &str,
    ) -> Result<Option<PermissionHolders>> {
        let names = [("", resource, wanted)];
        let schema = self.space.schema_for("find holders", &names).await?;
        let (field, needs) = self.space.needs(&schema, resource, wanted)?;
        let before = (self.cursor.clone(), self.scanned);
        let Some(subjects) = self.next().await? else {
            return Ok(None);
        };
        let fields = |subject: &String| FieldRead {
            subject: subject.clone(),
            fields: vec![field],
        };
        let reads = subjects.iter().map(fields).collect();
        let space = &self.space;
        let reply = space
            .store
            .read(space.name.clone(), Arc::clone(&schema), reads);
        let values = match space.call_existing("find holders", reply).await {
            Ok(values) => values,
            Err(e) => {
                (self.cursor, self.scanned) = before;
                return Err(e);
            }
        };
        let has = |(subject, values): (String, Vec<u64>)| -> Option<(String, Level)> {
            let value = *values.first()?;
            let holds = schema.allows(value, needs);
            holds.then(|| (subject, schema.level(value)))
        };
        Ok(Some(PermissionHolders {
            holders: subjects.into_iter().zip(values).filter_map(has).collect(),
            progress: self.progress(),
        }))
    }
}

/// The fraction that is reported before the end of a scan. It never goes back, although the store
/// may grow faster than it is scanned.
fn progress_after(before: f64, scanned: u64, total: u64) -> f64 {
    match total {
        0 => before,
        _ => before.max((scanned as f64 / total as f64).min(0.99)),
    }
}

impl PermissionSpace {
    /// All subjects that have at least this level on the resource, or all of these flags. Scans all subjects: for large
    /// spaces use [`scan`](PermissionSpace::scan), which reports its progress.
    pub async fn who_has(&self, resource: &str, level: &str) -> Result<Vec<(String, Level)>> {
        let mut found = std::collections::BTreeMap::new();
        let mut scan = self.scan();
        while let Some(page) = scan.next_holders(resource, level).await? {
            found.extend(page.holders);
        }
        Ok(found.into_iter().collect())
    }

    /// The number of subjects, and the bytes they take. Scans all subjects.
    pub async fn stats(&self) -> Result<PermissionStats> {
        let mut stats = PermissionStats {
            subjects: 0,
            bytes: 0,
        };
        let mut scan = self.scan();
        let schema: Arc<Schema> = self.schema();
        while let Some(subjects) = scan.next().await? {
            let reply = self
                .store
                .memory(self.name.clone(), schema.id.clone(), subjects);
            let sizes = self.call("measure the space", reply).await?;
            stats.subjects += sizes.len() as u64;
            stats.bytes += sizes.iter().sum::<u64>();
        }
        Ok(stats)
    }
}

#[cfg(test)]
mod tests {
    use super::progress_after;

    #[test]
    fn progress_never_goes_back() {
        let pages = [(100, 1_000), (200, 4_000), (1_000, 4_000), (5_000, 4_000)];
        let mut reported = Vec::new();
        for (scanned, total) in pages {
            let before = reported.last().copied().unwrap_or(0.0);
            reported.push(progress_after(before, scanned, total));
        }
        assert_eq!(reported, [0.1, 0.1, 0.25, 0.99]);
        assert_eq!(progress_after(0.5, 7, 0), 0.5, "an empty store");
    }
}
