//! Bloom filters: bits in pages of the table `bloom_page`, changed by the shared rules.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::time::Duration;

use tokio_postgres::types::Type;
use tokio_postgres::{Client, Row};

use super::claims::only;
use super::connection::{Lanes, number, text};
use super::errors::{LostReply, from_reply, malformed_reply};
use super::transaction::{Params, begin_with, commit_with, end};
use windlass_core::bloom::{BloomKind, Digest, Plan};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::rules::bloom::{self as rules, Cells, Progress};
use windlass_core::store::{BloomStore, Pending};

/// Bytes of a page: small, since an insertion writes one for each hash, and small enough to be
/// stored in the row itself.
const PAGE: usize = 1024;
const PAGE_BITS: u64 = PAGE as u64 * 8;
/// Items in one transaction.
const CHUNK: usize = 500;

/// The filters of one client.
#[derive(Debug)]
pub(super) struct PostgresBlooms {
    pub(super) lanes: Lanes,
}

/// The pages that a transaction has read. Any other page has no set bit.
#[derive(Default)]
struct ReadPages(BTreeMap<(u64, u64), (Vec<u8>, bool)>);

impl ReadPages {
    fn read(&mut self, rows: &[Row]) -> Result<()> {
        for row in rows {
            let number = |n: usize| row.try_get::<_, i64>(n).map_err(malformed_reply);
            let mut bits: Vec<u8> = row.try_get(2).map_err(malformed_reply)?;
            bits.resize(PAGE, 0);
            let at = (number(0)? as u64, number(1)? as u64);
            self.0.insert(at, (bits, false));
        }
        Ok(())
    }
}

impl Cells for ReadPages {
    type Error = Infallible;

    fn get(&mut self, generation: u64, position: u64) -> Result<bool, Infallible> {
        let bit = position % PAGE_BITS;
        let page = self.0.get(&(generation, position / PAGE_BITS));
        Ok(page.is_some_and(|(bits, _)| bits[(bit / 8) as usize] & (0x80 >> (bit % 8)) != 0))
    }

    fn set(&mut self, generation: u64, position: u64) -> Result<(), Infallible> {
        let bit = position % PAGE_BITS;
        let page = self.0.entry((generation, position / PAGE_BITS));
        let (bits, changed) = page.or_insert_with(|| (vec![0; PAGE], false));
        let (byte, mask) = (&mut bits[(bit / 8) as usize], 0x80 >> (bit % 8));
        *changed |= *byte & mask == 0;
        *byte |= mask;
        Ok(())
    }
}

/// A filter that is locked for this transaction.
struct Locked {
    progress: Progress,
    now: Duration,
}

/// Begins a transaction that locks the filter of this plan.
async fn lock(
    client: &Client,
    schema: &str,
    name: &Name,
    plan: &Plan,
    change: bool,
) -> Result<Option<Locked>> {
    let sql = format!("SELECT * FROM \"{schema}\".bloom_lock($1,$2,$3)");
    let (name, plan) = (name.as_str(), plan.to_string());
    let params: Params<'_> = vec![
        (&name, Type::TEXT),
        (&plan, Type::TEXT),
        (&change, Type::BOOL),
    ];
    let rows = begin_with(client, &sql, &params).await?;
    let Some(row) = rows.first() else {
        return Ok(None);
    };
    let number = |n: usize| row.try_get::<_, i64>(n).map_err(malformed_reply);
    Ok(Some(Locked {
        progress: Progress {
            newest: number(0)? as u64,
            counted: number(1)? as u64,
        },
        now: Duration::from_micros(number(2)? as u64),
    }))
}

/// Reads the pages that the rules may look at for these items.
async fn read_pages(
    client: &Client,
    schema: &str,
    name: &Name,
    plan: &Plan,
    locked: &Locked,
    items: &[Digest],
) -> Result<ReadPages> {
    let mut wanted = std::collections::BTreeSet::new();
    for generation in rules::living(plan, locked.progress, locked.now) {
        let shape = plan.shape(generation);
        for item in items {
            let positions = item.positions(&shape);
            wanted.extend(positions.map(|at| (generation as i64, (at / PAGE_BITS) as i64)));
        }
    }
    let (generations, numbers): (Vec<i64>, Vec<i64>) = wanted.into_iter().unzip();
    let sql = format!("SELECT * FROM \"{schema}\".bloom_pages($1,$2,$3)");
    let name = name.as_str();
    let params: Params<'_> = vec![
        (&name, Type::TEXT),
        (&generations, Type::INT8_ARRAY),
        (&numbers, Type::INT8_ARRAY),
    ];
    let rows = client.query_typed(&sql, &params).await;
    let mut pages = ReadPages::default();
    pages.read(&rows.map_err(|e| from_reply(e, LostReply::Harmless))?)?;
    Ok(pages)
}

/// Writes what has changed, and commits.
async fn write(
    client: &Client,
    schema: &str,
    name: &Name,
    progress: Progress,
    oldest: u64,
    pages: &ReadPages,
) -> Result<()> {
    let changed = pages.0.iter().filter(|(_, (_, changed))| *changed);
    let mut columns: (Vec<i64>, Vec<i64>, Vec<&[u8]>) = Default::default();
    for ((generation, page), (bits, _)) in changed {
        columns.0.push(*generation as i64);
        columns.1.push(*page as i64);
        columns.2.push(bits);
    }
    let sql = format!("SELECT \"{schema}\".bloom_write($1,$2,$3,$4,$5,$6,$7)");
    let (name, newest, counted, oldest) = (
        name.as_str(),
        progress.newest as i64,
        progress.counted as i64,
        oldest as i64,
    );
    let params: Params<'_> = vec![
        (&name, Type::TEXT),
        (&newest, Type::INT8),
        (&counted, Type::INT8),
        (&oldest, Type::INT8),
        (&columns.0, Type::INT8_ARRAY),
        (&columns.1, Type::INT8_ARRAY),
        (&columns.2, Type::BYTEA_ARRAY),
    ];
    commit_with(client, &sql, &params).await
}

/// The oldest generation of a rotating filter that counts; 0 for other filters, which keep all.
fn oldest(plan: &Plan, progress: Progress, now: Duration) -> u64 {
    match plan.kind {
        BloomKind::Rotating { .. } => *rules::living(plan, progress, now).start(),
        _ => 0,
    }
}

fn parse(text: &str) -> Result<Plan> {
    text.parse().map_err(|()| {
        let message = format!("the parameters of the filter cannot be read: {text}");
        Error::new(ErrorKind::Store, "call", message)
    })
}

impl PostgresBlooms {
    fn insert_some(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> impl Future<Output = Result<Option<Vec<bool>>>> + Send + 'static + use<> {
        self.lanes.transact(&name.clone(), move |client, schema| {
            Box::pin(async move {
                let Some(locked) = lock(&client, &schema, &name, &plan, true).await? else {
                    end(&client).await?;
                    return Ok(None);
                };
                let read = read_pages(&client, &schema, &name, &plan, &locked, &items);
                let mut pages = read.await?;
                let mut progress = locked.progress;
                let mut answers = Vec::with_capacity(items.len());
                for item in items {
                    let Ok(new) = rules::insert(&mut pages, &plan, &mut progress, locked.now, item);
                    answers.push(new);
                }
                let oldest = oldest(&plan, progress, locked.now);
                write(&client, &schema, &name, progress, oldest, &pages).await?;
                Ok(Some(answers))
            })
        })
    }

    fn contains_some(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> impl Future<Output = Result<Option<Vec<bool>>>> + Send + 'static + use<> {
        self.lanes.transact(&name.clone(), move |client, schema| {
            Box::pin(async move {
                let Some(locked) = lock(&client, &schema, &name, &plan, false).await? else {
                    end(&client).await?;
                    return Ok(None);
                };
                let read = read_pages(&client, &schema, &name, &plan, &locked, &items);
                let mut pages = read.await?;
                end(&client).await?;
                let known = |item| {
                    let Ok(known) =
                        rules::contains(&mut pages, &plan, locked.progress, locked.now, item);
                    known
                };
                Ok(Some(items.into_iter().map(known).collect()))
            })
        })
    }
}

impl BloomStore for PostgresBlooms {
    fn create(&self, name: Name, plan: Plan) -> Pending<'_, Plan> {
        let sql = format!("SELECT {}($1,$2)", self.lanes.function("bloom_create"));
        let params = vec![text(&name), text(&plan.to_string())];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { parse(&only::<String>(&reply.await?)?) })
    }

    fn open(&self, name: Name) -> Pending<'_, Option<Plan>> {
        let sql = format!("SELECT {}($1)", self.lanes.function("bloom_plan"));
        let reply = self
            .lanes
            .call(&name, LostReply::Harmless, sql, vec![text(&name)]);
        Box::pin(async move {
            let plan: Option<String> = only(&reply.await?)?;
            plan.as_deref().map(parse).transpose()
        })
    }

    fn insert(&self, name: Name, plan: Plan, items: Vec<Digest>) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(items.len());
            for some in items.chunks(CHUNK) {
                match self.insert_some(name.clone(), plan, some.to_vec()).await? {
                    Some(new) => answers.extend(new),
                    None => return Ok(None),
                }
            }
            Ok(Some(answers))
        })
    }

    fn contains(
        &self,
        name: Name,
        plan: Plan,
        items: Vec<Digest>,
    ) -> Pending<'_, Option<Vec<bool>>> {
        Box::pin(async move {
            let mut answers = Vec::with_capacity(items.len());
            for some in items.chunks(CHUNK) {
                match self
                    .contains_some(name.clone(), plan, some.to_vec())
                    .await?
                {
                    Some(known) => answers.extend(known),
                    None => return Ok(None),
                }
            }
            Ok(Some(answers))
        })
    }

    fn generations(&self, name: Name, plan: Plan) -> Pending<'_, Option<RangeInclusive<u64>>> {
        Box::pin(self.lanes.transact(&name.clone(), move |client, schema| {
            Box::pin(async move {
                let locked = lock(&client, &schema, &name, &plan, false).await?;
                end(&client).await?;
                Ok(locked.map(|locked| rules::living(&plan, locked.progress, locked.now)))
            })
        }))
    }

    fn count_bits(
        &self,
        name: Name,
        plan: Plan,
        generation: u64,
        shard: u64,
    ) -> Pending<'_, Option<u64>> {
        let sql = format!(
            "SELECT {}($1,$2,$3,$4,$5)",
            self.lanes.function("bloom_count")
        );
        let pages = plan.shape(generation).pages(shard, PAGE_BITS);
        let params = vec![
            text(&name),
            text(&plan.to_string()),
            number(generation as i64),
            number(pages.start as i64),
            number(pages.end as i64),
        ];
        let reply = self.lanes.call(&name, LostReply::Harmless, sql, params);
        Box::pin(async move {
            let set: Option<i64> = only(&reply.await?)?;
            Ok(set.map(|set| set as u64))
        })
    }

    fn union(&self, into: Name, from: Name, plan: Plan, shard: u64) -> Pending<'_, Option<()>> {
        let exists = self.open(from.clone());
        Box::pin(async move {
            if exists.await? != Some(plan) {
                return Ok(None);
            }
            let united = self.lanes.transact(&into.clone(), move |client, schema| {
                Box::pin(async move {
                    let Some(locked) = lock(&client, &schema, &into, &plan, true).await? else {
                        end(&client).await?;
                        return Ok(None);
                    };
                    let range = plan.shape(0).pages(shard, PAGE_BITS);
                    let mut target = ReadPages::default();
                    let mut source = ReadPages::default();
                    for (name, pages) in [(&into, &mut target), (&from, &mut source)] {
                        let sql = format!("SELECT * FROM \"{schema}\".bloom_range($1,$2,$3,$4)");
                        let (name, first, end) =
                            (name.as_str(), range.start as i64, range.end as i64);
                        let params: Params<'_> = vec![
                            (&name, Type::TEXT),
                            (&0_i64, Type::INT8),
                            (&first, Type::INT8),
                            (&end, Type::INT8),
                        ];
                        let rows = client.query_typed(&sql, &params).await;
                        pages.read(&rows.map_err(|e| from_reply(e, LostReply::Harmless))?)?;
                    }
                    for (at, (bits, _)) in source.0 {
                        let page = target.0.entry(at).or_insert_with(|| (vec![0; PAGE], false));
                        page.0.iter_mut().zip(&bits).for_each(|(a, b)| *a |= b);
                        page.1 = true;
                    }
                    write(&client, &schema, &into, locked.progress, 0, &target).await?;
                    Ok(Some(()))
                })
            });
            united.await
        })
    }

    fn remove(&self, name: Name, plan: Plan) -> Pending<'_, bool> {
        let sql = format!("SELECT {}($1,$2)", self.lanes.function("bloom_remove"));
        let params = vec![text(&name), text(&plan.to_string())];
        let reply = self
            .lanes
            .call(&name, LostReply::OutcomeUnknown, sql, params);
        Box::pin(async move { only::<bool>(&reply.await?) })
    }
}
