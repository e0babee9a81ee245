//! The list of limiters in use.

use std::collections::BTreeMap;

use redis::Value;

use crate::claims::list::SCAN_STEP;
use crate::router::Router;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::rules::limit::{QuotaUsage, RuleStates, usage};
use windlass_core::store::limit::{LimiterPage, LimiterQuery};

/// Keys of all kinds that one listing scans: about 200 round trips, each of which blocks the server
/// for [`SCAN_STEP`] keys.
const MAX_SCANNED: usize = 100_000;
/// States read in one pipeline.
const STATES_PER_PIPELINE: usize = 500;

/// Lists limiters by `SCAN`, never `KEYS`. The order is that of hashes: a listing that ends early
/// has arbitrary ones.
pub(super) async fn list(router: &Router, query: LimiterQuery) -> Result<LimiterPage> {
    let masters = router.masters();
    let steps = (MAX_SCANNED / SCAN_STEP / masters.len().max(1)).max(1);
    let mut found: BTreeMap<(String, Name), u64> = BTreeMap::new();
    let mut more = false;
    for (_, master) in masters {
        // The states of a server are by that server's clock.
        let (seconds, micros): (u64, u64) = master.query(&redis::cmd("TIME")).await?;
        let now = seconds * 1_000_000 + micros;
        let mut cursor = 0u64;
        for step in 1.. {
            let mut scan = redis::cmd("SCAN");
            scan.arg(cursor)
                .arg("MATCH")
                .arg(router.keys().all_limits());
            scan.arg("COUNT").arg(SCAN_STEP);
            let (next, keys): (u64, Vec<Vec<u8>>) = master.query(&scan).await?;
            // Keys that are not text, and names that are not valid, belong to other programs.
            let texts = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
            for stored in texts.filter_map(|key| router.keys().limiter_of_key(key)) {
                if let (Some(shown), Ok(name)) =
                    (query.wanted(stored), Name::new("list", None, stored))
                {
                    found.insert((shown, name), now);
                }
            }
            cursor = next;
            if cursor == 0 {
                break;
            } else if step >= steps || found.len() > query.most {
                more = true;
                break;
            }
        }
    }
    while found.len() > query.most {
        found.pop_last();
        more = true;
    }
    let limiters = read_states(router, found.into_iter().collect()).await?;
    Ok(LimiterPage { limiters, more })
}

async fn read_states(
    router: &Router,
    found: Vec<((String, Name), u64)>,
) -> Result<Vec<(String, Vec<QuotaUsage>)>> {
    let mut limiters = Vec::with_capacity(found.len());
    for some in found.chunks(STATES_PER_PIPELINE) {
        // MGET, because GET fails for a key of another type; one key each, because each has its own
        // slot.
        let get = |((_, name), _): &((String, Name), u64)| {
            let mut command = redis::cmd("MGET");
            command.arg(router.keys().limit(name));
            command
        };
        let replies = router.query_all(some.iter().map(get).collect()).await?;
        for (((shown, _), now), reply) in some.iter().zip(replies) {
            // A limiter may have expired meanwhile, and other programs may have written to the key.
            let usage = states(&reply).map(|states| usage(&states, *now));
            if let Some(usage) = usage.filter(|usage| !usage.is_empty()) {
                limiters.push((shown.clone(), usage));
            }
        }
    }
    Ok(limiters)
}

fn states(reply: &Value) -> Option<RuleStates> {
    let Value::Array(replies) = reply else {
        return None;
    };
    let bytes = crate::bytes(replies.first()?)?;
    std::str::from_utf8(bytes).ok()?.parse().ok()
}
