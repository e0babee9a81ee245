//! Bloom filters in a file.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::RangeInclusive;

use rusqlite::{Connection, OptionalExtension};

use super::File;
use super::transaction::StoreTransaction;
use windlass_core::bloom::{BloomKind, Digest, Plan};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::bloom::{self as rules, Cells, Progress};
use windlass_core::store::{BloomStore, Pending};

/// `blooms`: the plan of each filter, and how far it has grown. `bloom_pages`: its bits, in pages;
/// pages without a set bit are not stored.
pub(super) const TABLES: &str = "
    CREATE TABLE blooms (
        name    TEXT PRIMARY KEY,
        plan    TEXT NOT NULL,
        newest  INTEGER NOT NULL,
        counted INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE bloom_pages (
        name       TEXT NOT NULL,
        generation INTEGER NOT NULL,
        page       INTEGER NOT NULL,
        bits       BLOB NOT NULL,
        PRIMARY KEY (name, generation, page)
    );
";

/// Bytes of a page: small, since an insertion writes one for each hash.
const PAGE: usize = 1024;
const PAGE_BITS: u64 = PAGE as u64 * 8;

/// A filter's bits within a transaction. Each page is read once and written once.
struct StoredPages<'a> {
    database: &'a Connection,
    name: &'a Name,
    read: HashMap<(u64, u64), StoredPage>,
}

struct StoredPage {
    bits: Vec<u8>,
    changed: bool,
}

impl StoredPages<'_> {
    fn page(&mut self, generation: u64, position: u64) -> rusqlite::Result<&mut StoredPage> {
        let number = position / PAGE_BITS;
        match self.read.entry((generation, number)) {
            Entry::Occupied(page) => Ok(page.into_mut()),
            Entry::Vacant(free) => {
                let bits: Option<Vec<u8>> = self
                    .database
                    .prepare_cached(
                        "SELECT bits FROM bloom_pages
                         WHERE name = ?1 AND generation = ?2 AND page = ?3",
                    )?
                    .query_row(
                        (self.name.as_str(), generation as i64, number as i64),
                        |row| row.get(0),
                    )
                    .optional()?;
                let mut bits = bits.unwrap_or_default();
                bits.resize(PAGE, 0);
                Ok(free.insert(StoredPage {
                    bits,
                    changed: false,
                }))
            }
        }
    }

    fn write(&self) -> rusqlite::Result<()> {
        let mut replace = self.database.prepare_cached(
            "INSERT INTO bloom_pages VALUES (?1, ?2, ?3, ?4)
             ON CONFLICT (name, generation, page) DO UPDATE SET bits = excluded.bits",
        )?;
        for ((generation, number), page) in self.read.iter().filter(|(_, page)| page.changed) {
            let at = (*generation as i64, *number as i64);
            replace.execute((self.name.as_str(), at.0, at.1, &page.bits))?;
        }
        Ok(())
    }
}

impl Cells for StoredPages<'_> {
    type Error = rusqlite::Error;

    fn get(&mut self, generation: u64, position: u64) -> rusqlite::Result<bool> {
        let bit = position % PAGE_BITS;
        let page = self.page(generation, position)?;
        Ok(page.bits[(bit / 8) as usize] & (0x80 >> (bit % 8)) != 0)
    }

    fn set(&mut self, generation: u64, position: u64) -> rusqlite::Result<()> {
        let bit = position % PAGE_BITS;
        let page = self.page(generation, position)?;
        let (byte, mask) = (&mut page.bits[(bit / 8) as usize], 0x80 >> (bit % 8));
        page.changed |= *byte & mask == 0;
        *byte |= mask;
        Ok(())
    }
}

/// The progress of the filter of this name, if it has this plan.
fn find(database: &Connection, name: &Name, plan: &Plan) -> rusqlite::Result<Option<Progress>> {
    database
        .prepare_cached("SELECT newest, counted FROM blooms WHERE name = ?1 AND plan = ?2")?
        .query_row((name.as_str(), plan.to_string()), |row| {
            Ok(Progress {
                newest: row.get::<_, i64>(0)? as u64,
                counted: row.get::<_, i64>(1)? as u64,
            })
        })
        .optional()
}

fn stored(database: &Connection, name: &Name) -> rusqlite::Result<Option<Plan>> {
    let text: Option<String> = database
        .prepare_cached("SELECT plan FROM blooms WHERE name = ?1")?
        .query_row([name.as_str()], |row| row.get(0))
        .optional()?;
    text.map(|text| {
        text.parse().map_err(|()| {
            let message = format!("the parameters of the filter cannot be read: {text}");
            rusqlite::Error::ToSqlConversionFailure(message.into())
        })
    })
    .transpose()
}

impl File {
    /// Decides on the filter of this name, if it has this plan.
    fn with_filter<T, D>(
        &self,
        name: Name,
        plan: Plan,
        decision: D,
    ) -> impl Future<Output = Result<Option<T>>> + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&StoreTransaction<'_>, &Name, Progress) -> rusqlite::Result<T> + Send + 'static,
    {
        self.worker.decide(move |tx| {
            let found = find(tx.database, &name, &plan)?;
            let answer = found.map(|progress| decision(tx, &name, progress));
            answer.transpose()
        })
    }
}

fn pages<'a>(tx: &'a StoreTransaction<'_>, name: &'a Name) -> StoredPages<'a> {
    StoredPages {
        database: tx.database,
        name,
        read: HashMap::new(),
    }
}

/// Removes the expired slices of a rotating filter.
fn remove_expired(
    tx: &StoreTransaction<'_>,
    name: &Name,
    plan: &Plan,
    oldest: u64,
) -> rusqlite::Result<()> {
    if !matches!(plan.kind, BloomKind::Rotating { .. }) {
        return Ok(());
    }
    tx.database
        .prepare_cached("DELETE FROM bloom_pages WHERE name = ?1 AND generation < ?2")?
        .execute((name.as_str(), oldest as i64))
        .map(drop)
}

impl BloomStore for File {
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan> {
        Box::pin(self.worker.decide(move |tx| {
            if let Some(plan) = stored(tx.database, &name)? {
                return Ok(plan);
            }
            tx.database
                .prepare_cached("INSERT INTO blooms VALUES (?1, ?2, 0, 0)")?
                .execute((name.as_str(), plan.to_string()))?;
            Ok(plan)
        }))
    }

    fn open(&self, name: Name) -> Pending<'_, Option<Plan>> {
        Box::pin(self.worker.decide(move |tx| stored(tx.database, &name)))
    }

    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(self.with_filter(name, plan, move |tx, name, before| {
            let now = tx.window_now()?;
            let mut pages = pages(tx, name);
            let mut progress = before;
            let mut answers = Vec::with_capacity(items.len());
            for item in items {
                let new = rules::insert(&mut pages, &plan, &mut progress, now, item)?;
                answers.push(new);
            }
            pages.write()?;
            if progress != before {
                tx.database
                    .prepare_cached("UPDATE blooms SET newest = ?2, counted = ?3 WHERE name = ?1")?
                    .execute((
                        name.as_str(),
                        progress.newest as i64,
                        progress.counted as i64,
                    ))?;
            }
            remove_expired(
                tx,
                name,
                &plan,
                *rules::living(&plan, progress, now).start(),
            )?;
            Ok(answers)
        }))
    }

    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(self.with_filter(name, plan, move |tx, name, progress| {
            let now = tx.window_now()?;
            let mut pages = pages(tx, name);
            let contains = |item| rules::contains(&mut pages, &plan, progress, now, item);
            items.into_iter().map(contains).collect()
        }))
    }

    fn generations(&self, name: Name, plan: Plan) -> Pending<'_, Option<RangeInclusive<u64>>> {
        Box::pin(self.with_filter(name, plan, move |tx, _, progress| {
            Ok(rules::living(&plan, progress, tx.window_now()?))
        }))
    }

    fn count_bits(
        &self,
        name: Name,
        plan: Plan,
        generation: u64,
        shard: u64,
    ) -> Pending<'_, Option<u64>> {
        Box::pin(self.with_filter(name, plan, move |tx, name, _| {
            let mut query = tx.database.prepare_cached(
                "SELECT bits FROM bloom_pages
                 WHERE name = ?1 AND generation = ?2 AND page >= ?3 AND page < ?4",
            )?;
            let pages = plan.shape(generation).pages(shard, PAGE_BITS);
            let (first, end) = (pages.start as i64, pages.end as i64);
            let mut rows = query.query((name.as_str(), generation as i64, first, end))?;
            let mut set = 0;
            while let Some(row) = rows.next()? {
                let bits = row.get_ref(0)?.as_blob()?;
                set += bits.iter().map(|b| u64::from(b.count_ones())).sum::<u64>();
            }
            Ok(set)
        }))
    }

    fn union(&self, into: Name, from: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>> {
        Box::pin(self.worker.decide(move |tx| {
            let there = find(tx.database, &from, &plan)?.is_some()
                && find(tx.database, &into, &plan)?.is_some();
            if !there {
                return Ok(None);
            }
            let mut query = tx.database.prepare_cached(
                "SELECT page, bits FROM bloom_pages
                 WHERE name = ?1 AND generation = 0 AND page >= ?2 AND page < ?3",
            )?;
            let shard = plan.shape(0).pages(shard, PAGE_BITS);
            let mut rows = query.query((from.as_str(), shard.start as i64, shard.end as i64))?;
            let mut target = pages(tx, &into);
            while let Some(row) = rows.next()? {
                let bits: Vec<u8> = row.get(1)?;
                let page = target.page(0, row.get::<_, i64>(0)? as u64 * PAGE_BITS)?;
                page.bits.iter_mut().zip(&bits).for_each(|(a, b)| *a |= b);
                page.changed = true;
            }
            target.write()?;
            Ok(Some(()))
        }))
    }

    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool> {
        let removed = self.with_filter(name, plan, move |tx, name, _| {
            for table in ["blooms", "bloom_pages"] {
                tx.database.execute(
                    &format!("DELETE FROM {table} WHERE name = ?1"),
                    [name.as_str()],
                )?;
            }
            Ok(())
        });
        Box::pin(async move { Ok(removed.await?.is_some()) })
    }
}
