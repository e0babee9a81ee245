//! The limiters that are in use, found in passing.

use std::collections::BTreeMap;

use redis::Value;

use super::claims::SCAN_STEP;
use super::{Redis, keys};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::limit::{QuotaUsage, RuleStates, usage};
use windlass_core::store::limit::{LimiterEntry, LimiterQuery};

/// Keys of all kinds that a listing walks over in all: some 200 round trips, for each of which the server is kept
/// from others for as long as it takes to walk over [`SCAN_STEP`] keys.
const WALKED_OVER: usize = 100_000;
/// RuleStates asked for in one go.
const AT_ONCE: usize = 500;

impl Redis {
    /// `SCAN`, never `KEYS`. It goes by hash and not by name: if it ends early, then these are any.
    pub(super) async fn list_limits(&self, search: LimiterQuery) -> Result<LimiterEntry> {
        let masters = self.link.masters();
        let steps = (WALKED_OVER / SCAN_STEP / masters.len().max(1)).max(1);
        let mut wanted: BTreeMap<(String, Name), u64> = BTreeMap::new();
        let mut more = false;
        for (_, master) in masters {
            // Each server goes by its own clock, and what it keeps was reckoned by that.
            let (seconds, micros): (u64, u64) = master.query(&redis::cmd("TIME")).await?;
            let now = seconds * 1_000_000 + micros;
            let mut cursor = 0u64;
            for step in 1.. {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor).arg("MATCH").arg(keys::all_limits());
                scan.arg("COUNT").arg(SCAN_STEP);
                let (next, found): (u64, Vec<Vec<u8>>) = master.query(&scan).await?;
                // Keys that are no text are not of our making; nor are names that we would not accept.
                let texts = found.iter().filter_map(|key| std::str::from_utf8(key).ok());
                for stored in texts.filter_map(keys::limited) {
                    if let (Some(shown), Ok(name)) =
                        (search.wanted(stored), Name::new("list", None, stored))
                    {
                        wanted.insert((shown, name), now);
                    }
                }
                cursor = next;
                if cursor == 0 {
                    break;
                } else if step >= steps || wanted.len() > search.most {
                    more = true;
                    break;
                }
            }
        }
        while wanted.len() > search.most {
            wanted.pop_last();
            more = true;
        }
        let limiters = self.look_at_limits(wanted.into_iter().collect()).await?;
        Ok(LimiterEntry { limiters, more })
    }

    async fn look_at_limits(
        &self,
        wanted: Vec<((String, Name), u64)>,
    ) -> Result<Vec<(String, Vec<QuotaUsage>)>> {
        let mut limiters = Vec::with_capacity(wanted.len());
        for some in wanted.chunks(AT_ONCE) {
            // Not `GET`, which fails for a key of another type; and one by one, since each has its slot.
            let get = |((_, name), _): &((String, Name), u64)| {
                let mut command = redis::cmd("MGET");
                command.arg(keys::limit(name));
                command
            };
            let answers = self.link.query_all(some.iter().map(get).collect()).await?;
            for (((shown, _), now), answer) in some.iter().zip(answers) {
                // What has ended meanwhile is gone, and what others wrote there is no limiter.
                let seen = states(&answer).map(|states| usage(&states, *now));
                if let Some(seen) = seen.filter(|seen| !seen.is_empty()) {
                    limiters.push((shown.clone(), seen));
                }
            }
        }
        Ok(limiters)
    }
}

fn states(answer: &Value) -> Option<RuleStates> {
    let Value::Array(answers) = answer else {
        return None;
    };
    let bytes = super::bytes(answers.first()?)?;
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
